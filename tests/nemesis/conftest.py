"""A world in memory, in virtual time: agents that drop datagrams by their rules, processes that are
states, a system whose standing a test sets. What the nemesis does in it is what it does anywhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from harness.contracts import Bed, Completed, LinkRule, Node, ProcessState, Standing
from harness.errors import BedFailed, NodeGone

NODES = (
    Node("nameserver-1", "nameserver", "10.0.0.1"),
    *(Node(f"controller-{n}", "controller", f"10.0.1.{n}") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker", f"10.0.2.{n}") for n in (1, 2, 3)),
    *(Node(f"client-{n}", "client", f"10.0.3.{n}") for n in (1, 2)),
)
STANDING = Standing(
    masters={"set-1": "broker-1"},
    slaves=("broker-2", "broker-3"),
    in_set=("broker-1", "broker-2"),
    out_of_set=("broker-3",),
    controller_leader="controller-2",
    epochs={"set-1": 1},
    redundant=True,
)


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
        self.process = "running"
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

    async def state(self, _name: str) -> ProcessState:
        await self._do("state")
        if self.process == "exited":
            return ProcessState("exited", self.pid, -9)
        return ProcessState("stopped" if self.process == "stopped" else "running", self.pid)

    async def signal(self, _name: str, number: int) -> None:
        await self._do("signal")
        self.process = {SIGKILL: "exited", SIGSTOP: "stopped", SIGCONT: "running"}[number]

    async def run(self, _argv: Sequence[str], *_: Any) -> Completed:
        await self._do("run")
        letter = "T" if self.process == "stopped" else "S"
        return Completed(0, f"{self.pid} (python3) {letter} 1 {self.pid} {self.pid} 0\n", "")

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

    async def standing(self, _bed: Bed) -> Standing:
        await asyncio.sleep(0.001)
        return self.world.standing

    async def start_node(self, _bed: Bed, node: str) -> None:
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
        self.standing = STANDING
        self.acknowledged = 0
        self.agents = {n.name: MemoryAgent(self, n, 10 + i) for i, n in enumerate(NODES)}
        can = frozenset({"links", "loss", "signal", "restart"})
        self.bed = Bed(
            nodes=NODES,
            agents=self.agents,  # type: ignore[arg-type]
            hosts=type("Hosts", (), {"can": can, "shares_files": True})(),
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
        return all(a.process == "running" and not a.rules for a in self.agents.values())


@pytest.fixture
def world() -> World:
    return World()
