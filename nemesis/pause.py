"""Stop processes with SIGSTOP, and continue them with SIGCONT.

A paused process keeps its connections, answers nothing, and resumes as if no time had passed: the
classic way to get a stale leader. The kernel still accepts connections for it. A process that exits
on resume counts as healed.

Clients can be paused as well (`client`, `one client`), for example while they hold a lock and its
lease expires.
"""

from collections.abc import Sequence
from signal import SIGCONT, SIGSTOP

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    PlannedFault,
)
from nemesis._process.victims import ProcessFault, check, draw
from nemesis._runner.waiting import NS, gather_all, wait_until

WITHIN_S = 2.0
GONE = "gone"  # instead of thread states, if the process has exited
# the stat line of every thread on the machine, see proc(5)
THREADS = ("sh", "-c", "cat /proc/[0-9]*/task/*/stat 2>/dev/null; true")


def fault(planned: PlannedFault, scene: FaultContext) -> "Pause":
    return Pause(scene, scene.resolve(planned.target, spare=scene.claimed))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node that was replaced meanwhile may continue as before
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, silences=True),
    needs=frozenset({"signal"}),
    hits_clients=True,
    draw=draw,
    check=check,
)


def thread_states(text: str, group: int) -> str:
    """Return the state letters of all threads in a process group, from their /proc stat lines."""
    fields = (line.rpartition(")")[2].split() for line in text.splitlines())
    return "".join(field[0] for field in fields if len(field) > 2 and field[2] == str(group))


class Pause(ProcessFault):
    """Stopped processes."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._paused: Sequence[str] = ()

    async def __aenter__(self) -> "Pause":
        self._paused = await self._take_running()
        await gather_all(*(self._signal(node, SIGSTOP) for node in self._paused))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*(self._signal(node, SIGCONT) for node in self._paused))

    async def observe(self) -> Observation:
        return await self._observed("T", len(self._victims))

    async def observe_healed(self) -> Observation:
        try:
            return await self._observed("", len(self._paused))
        finally:
            self._hold.release()

    async def _observed(self, stopped: str, of: int) -> Observation:
        """Observe that every thread of all `of` victims is stopped (`T`), or that none is ('')."""
        seen: dict[str, str] = {}

        async def all_are() -> bool:
            for node in self._paused:
                seen[node] = await self._threads(node)
            return all(_are(states, stopped) for states in seen.values())

        await wait_until(self._bed, all_are, self._bed.now_ns() + WITHIN_S * NS, every_s=0.02)
        good = sum(_are(states, stopped) for states in seen.values())
        return Observation.graded(good == of, good, {"threads": seen})

    async def _threads(self, node: str) -> str:
        """Return the state letters of the victim's threads."""
        state = await self._state(node)
        if state.state in ("exited", "absent"):
            return GONE
        if state.threads:
            return state.threads
        return thread_states((await self._bed.agents[node].run(THREADS)).out, state.pid)


def _are(states: str, stopped: str) -> bool:
    """Return whether all threads are stopped (`T`), or none is, or all are gone ('')."""
    if stopped:
        return bool(states) and set(states) == {stopped}
    return bool(states) and "T" not in states
