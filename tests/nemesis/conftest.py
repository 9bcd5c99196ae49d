"""A world in memory, in virtual time: agents that drop datagrams by their rules, processes that are
states, a system whose standing a test sets. What the nemesis does in it is what it does anywhere.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

import pytest

from harness.contracts import (
    ClockOffset,
    ClusterState,
    CommandResult,
    LinkRule,
    Node,
    ProcessState,
    PythonRuntime,
    TestBed,
    TimedDatagram,
)
from harness.errors import BedFailed, NodeGone

NODES = (
    Node("nameserver-1", "nameserver", "10.0.0.1"),
    *(Node(f"controller-{n}", "controller", f"10.0.1.{n}") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker", f"10.0.2.{n}") for n in (1, 2, 3)),
    *(Node(f"client-{n}", "client", f"10.0.3.{n}") for n in (1, 2)),
)
STANDING = ClusterState(
    masters={"set-1": "broker-1"},
    slaves=("broker-2", "broker-3"),
    in_set=("broker-1", "broker-2"),
    out_of_set=("broker-3",),
    controller_leader="controller-2",
    epochs={"set-1": 1},
    redundant=True,
)
NO_LIMIT = -1


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer when there is nothing else to do."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class MemoryAgent:
    """One node's agent; `broken` names verbs that fail, `gone` is all of them for good."""

    def __init__(self, world: "World", node: Node, pid: int) -> None:
        self.world, self.node, self.pid = world, node, pid
        self.rules: tuple[LinkRule, ...] = ()
        self.counts: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.flights: dict[str, list[TimedDatagram]] = {}
        self.process, self.code = "running", 0
        self.deaf: set[int] = set()  # signals that it does not hear
        self.clock = (0, 1.0, 0)  # ahead by so many ns, at which rate, since when
        self.limit = NO_LIMIT
        self.broken: set[str] = set()
        self.gone = False

    async def links(self, rules: Sequence[LinkRule]) -> None:
        await self._do("links")
        self.rules, self.counts = tuple(rules), {}

    async def dropped(self) -> Mapping[str, int]:
        await self._do("dropped")
        return dict(self.counts)

    async def probe(self, target: str, token: str, count: int) -> None:
        await self._do("probe")
        sink = next(a for a in self.world.agents.values() if a.node.address == target)
        for _ in range(count):
            sink.receive(self.node.address, token)

    async def probed(self, token: str) -> int:
        await self._do("probed")
        return self.arrived.get(token, 0)

    async def send_timed(self, target: str, token: str, count: int, size_bytes: int) -> None:
        await self._do("fly")
        sink = next(a for a in self.world.agents.values() if a.node.address == target)
        for number in range(count):
            sink.land(self.node.address, token, number, size_bytes + 28)

    async def timed_arrivals(self, token: str) -> Sequence[TimedDatagram]:
        await self._do("flown")
        now_ns = self.world.bed.now_ns()
        landed = sorted(self.flights.get(token, ()), key=lambda flight: flight.arrived_ns)
        return [flight for flight in landed if flight.arrived_ns <= now_ns]

    async def lacks(self, _ability: str) -> str:
        await self._do("lacks")
        return ""

    def land(self, source: str, token: str, number: int, size: int) -> None:
        """A datagram, which the rules may make late."""
        rule = next((rule for rule in self.rules if rule.source == source), LinkRule(source, 0.0))
        dice, now_ns = self.world.random, self.world.bed.now_ns()
        if dice.random() >= rule.drop:
            late = dice.random() >= rule.reorder
            waits_s = (number + 1) * size / rule.bytes_per_s if rule.bytes_per_s else 0.0
            uneven_s = dice.random() * rule.jitter_s if rule.jitter_s else 0.0
            late_ns = round(1e9 * (waits_s + late * (rule.delay_s + uneven_s) + 0.0001))
            flight = TimedDatagram(number, now_ns, now_ns + late_ns)
            self.flights.setdefault(token, []).append(flight)

    async def state(self, _name: str) -> ProcessState:
        await self._do("state")
        if self.process == "exited":
            return ProcessState("exited", self.pid, self.code)
        return ProcessState("stopped" if self.process == "stopped" else "running", self.pid)

    async def signal(self, _name: str, number: int) -> None:
        await self._do("signal")
        if number in self.deaf or self.process == "exited":
            return
        if number in (SIGKILL, SIGTERM):
            self.end(-9 if number == SIGKILL else 0)
        else:
            self.process = {SIGSTOP: "stopped", SIGCONT: "running"}[number]

    def end(self, code: int) -> None:
        """It ends, and what was done to it is gone with it."""
        self.process, self.code = "exited", code
        self.clock, self.limit = (0, 1.0, 0), NO_LIMIT

    async def run(self, argv: Sequence[str], *_: Any, **__: Any) -> CommandResult:
        await self._do("run")
        match list(argv):
            case [_, _, _, "/clusters/hosts/_faults/wall_clock.py", verb, pid, *words]:
                return self._told(pid, self._clock, verb, words)
            case [_, _, _, "/clusters/hosts/_faults/rlimits.py", verb, pid, _, *words]:
                return self._told(pid, self._limits, verb, words)
        letter = "T" if self.process == "stopped" else "S"
        return CommandResult(0, f"{self.pid} (python3) {letter} 1 {self.pid} {self.pid} 0\n", "")

    def _told(
        self, pid: str, tell: Callable[[str, Sequence[str]], Any], verb: str, words: Sequence[str]
    ) -> CommandResult:
        if self.process == "exited" or int(pid) != self.pid:
            return CommandResult(1, "", f"no process of group {pid} lives")
        return CommandResult(0, json.dumps({pid: tell(verb, words)}), "")

    def _clock(self, verb: str, words: Sequence[str]) -> Any:
        """Do what wall_clock.py does."""
        now_ns = self.world.bed.now_ns()
        if verb != "read":
            set_to = (int(words[0]), float(words[1])) if verb == "set" else (0, 1.0)
            self.clock = (*set_to, now_ns)
        ahead_ns, rate, since_ns = self.clock
        return {"ahead_s": (ahead_ns + (rate - 1) * (now_ns - since_ns)) / 1e9, "rate": rate}

    def _limits(self, verb: str, words: Sequence[str]) -> Any:
        """Do what rlimits.py does with a process of ten files, or bytes."""
        was = self.limit
        if verb != "look":
            self.limit = int(words[0]) + (10 if verb == "take" else 0)
        return {"was": was, "limit": self.limit, "used": 10, "room": self.limit - 10}

    def receive(self, source: str, token: str) -> None:
        drop = next((rule.drop for rule in self.rules if rule.source == source), 0.0)
        if self.world.random.random() < drop:
            self.counts[source] = self.counts.get(source, 0) + 1
        else:
            self.arrived[token] = self.arrived.get(token, 0) + 1

    async def _do(self, verb: str) -> None:
        if self.gone:
            raise NodeGone(f"{self.node.name} is gone: its agent ended")
        if verb in self.broken:
            raise BedFailed(f"the agent of {self.node.name} is gone")
        await asyncio.sleep(0.001)


class MemorySystem:
    detection_s = 1.5

    def __init__(self, world: "World") -> None:
        self.world = world

    def process(self, _node: str) -> str:
        return "flotilla"

    async def cluster_state(self, _bed: TestBed) -> ClusterState:
        await asyncio.sleep(0.001)
        return self.world.standing

    async def start_node(self, _bed: TestBed, node: str) -> None:
        self.world.log.append(f"start {node}")
        agent = self.world.agents[node]
        agent.process, agent.pid = "running", agent.pid + 100


class World:
    """The bed, and what a test may look at and change."""

    def __init__(self) -> None:
        self.random = Random(7)
        self.log: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.alarms: list[str] = []
        self.standing = STANDING
        self.acknowledged = 0
        self.agents = {n.name: MemoryAgent(self, n, 10 + i) for i, n in enumerate(NODES)}
        can = frozenset(
            {"links", "loss", "delay", "bandwidth", "signal", "restart", "clock", "limits"}
        )
        self.bed = TestBed(
            nodes=NODES,
            agents=self.agents,  # type: ignore[arg-type]
            hosts=type(
                "Hosts", (), {"can": can, "shares_files": True, "python": _python, "clock": _clock}
            )(),
            system=MemorySystem(self),  # type: ignore[arg-type]
            record=self,  # type: ignore[arg-type]
            now_ns=lambda: round(asyncio.get_running_loop().time() * 1e9),
            acknowledged=lambda: self.acknowledged,
            sleep=asyncio.sleep,
        )

    def fault(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def alarm(self, text: str) -> None:
        self.alarms.append(text)

    def last(self, number: int) -> dict[str, Any]:
        """How a fault ended."""
        return [row for row in self.rows if row["id"] == number][-1]

    def run(self, story: Callable[["World"], Awaitable[Any]]) -> Any:
        """Run a story in virtual time."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(story(self))  # type: ignore[arg-type]

    @property
    def sound(self) -> bool:
        """Whether nothing of any fault is left."""
        return all(
            (a.process, a.rules, a.clock[:2], a.limit) == ("running", (), (0, 1.0), NO_LIMIT)
            for a in self.agents.values()
        )


def _clock(_hosts: object, _node: str) -> ClockOffset:
    return ClockOffset()


def _python(_hosts: Any, _node: str) -> PythonRuntime:
    return PythonRuntime("python3", "")


@pytest.fixture
def world() -> World:
    return World()
