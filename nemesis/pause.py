"""Stop processes with SIGSTOP, and continue them with SIGCONT.

A paused process keeps its connections, answers nothing, and wakes up believing that no time has
passed: it is the classic maker of a deposed master who does not know it. The kernel still accepts
connections for it. One that ends when it goes on is not paused any more.

Clients can be paused as well (`client`, `one client`): one that holds a lock sleeps over its lease.
"""

from collections.abc import Sequence
from signal import SIGCONT, SIGSTOP

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    Effects,
    FaultPlugin,
    Node,
    Observation,
    PlannedFault,
    Scene,
)
from nemesis._process.victims import Hold, among, check, drawn, process_of
from nemesis._runner.waiting import NS, each, reached

WITHIN_S = 2.0
GONE = "gone"  # in the place of threads
# every thread on the machine: process id, then its stat line, whose fields the kernel documents
THREADS = ("sh", "-c", "cat /proc/[0-9]*/task/*/stat 2>/dev/null; true")


def fault(planned: PlannedFault, scene: Scene) -> "Pause":
    return Pause(scene, scene.aim(planned.target, spare=scene.held))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that was replaced meanwhile may go on as before
    effects=Effects(may_break=ANY_BUT_INTEGRITY, silences=True),
    needs=frozenset({"signal"}),
    hits_clients=True,
    drawn=drawn,
    check=check,
)


def thread_states(text: str, group: int) -> str:
    """The state letters of all threads in a process group, from their /proc stat lines."""
    fields = (line.rpartition(")")[2].split() for line in text.splitlines())
    return "".join(field[0] for field in fields if len(field) > 2 and field[2] == str(group))


class Pause:
    """Processes stopped, until it is left."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        self.targets = scene.parts(victims)
        self._bed = scene.bed
        self._victims = [node.name for node in victims]
        self._hold = Hold(scene.held, self._victims)
        self._paused: Sequence[str] = ()

    async def __aenter__(self) -> "Pause":
        self._paused = await self._hold.take_who_runs(self._bed)
        self.targets = among(self.targets, self._paused)
        await self._signal(SIGSTOP)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._signal(SIGCONT)

    async def _signal(self, number: int) -> None:
        await each(
            *(
                self._bed.agents[node].signal(process_of(self._bed, node), number)
                for node in self._paused
            )
        )

    async def observe(self) -> Observation:
        return await self._observed("T", len(self._victims))

    async def observe_healed(self) -> Observation:
        try:
            return await self._observed("", len(self._paused))
        finally:
            self._hold.let_go()

    async def _observed(self, stopped: str, of: int) -> Observation:
        """Every thread of every victim is stopped, or none is. `of`: how many there should be."""
        seen: dict[str, str] = {}

        async def all_so() -> bool:
            for node in self._paused:
                seen[node] = await self._threads(node)
            return all(_so(states, stopped) for states in seen.values())

        await reached(self._bed, all_so, self._bed.now_ns() + WITHIN_S * NS, every_s=0.02)
        good = sum(_so(states, stopped) for states in seen.values())
        evidence = {"threads": seen}
        if good == of:
            return Observation("installed", evidence)
        return Observation("partial" if good else "failed", evidence)

    async def _threads(self, node: str) -> str:
        """State letters of the victim's threads."""
        agent = self._bed.agents[node]
        state = await agent.state(process_of(self._bed, node))
        if state.state in ("exited", "absent"):
            return GONE
        return thread_states((await agent.run(THREADS)).out, state.pid)


def _so(states: str, stopped: str) -> bool:
    """Whether threads are all stopped (`T`), or (nothing) all gone or none stopped."""
    if stopped:
        return bool(states) and set(states) == {stopped}
    return bool(states) and "T" not in states
