"""Kill processes with SIGKILL, and start them again.

What the process had not passed to the kernel is gone; what it wrote stays, synced or not, because
only a power cut removes that. Healing starts the node again on the same data. If another program,
such as a supervisor, has started it by then, it was not down for as long as intended, and the fault
is `partial`.
"""

from collections.abc import Awaitable, Callable, Sequence
from signal import SIGKILL
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    PlannedFault,
    ProcessEnd,
)
from harness.errors import BedFailed
from nemesis._process.victims import ProcessFault, check, draw, hit_targets
from nemesis._runner.waiting import NS, gather_all, wait_until

GONE_WITHIN_S = 2.0
BACK_WITHIN_S = 10.0

Check = Callable[[str], Awaitable[bool]]  # from a node's name


def fault(planned: PlannedFault, scene: FaultContext) -> "Kill":
    return Kill(scene, scene.resolve(planned.target, spare=scene.claimed))


PLUGIN = FaultPlugin(
    fault=fault,
    # a node may be elected that lacks what this one acknowledged
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, ends=ProcessEnd.KILLED, silences=True),
    needs=frozenset({"signal", "restart"}),
    draw=draw,
    check=check,
)


class Kill(ProcessFault):
    """Killed processes."""

    gone_within_s = GONE_WITHIN_S

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._ran: list[str] = []
        self._killed: dict[str, int] = {}  # node -> the process id it had
        self._signalled: set[str] = set()  # nodes whose process was sent a signal
        self._restarted: set[str] = set()  # nodes that this fault started again
        self.broke_off = ""

    async def __aenter__(self) -> "Kill":
        self._hold.take()
        try:
            await gather_all(*map(self._kill, self._victims))
        finally:
            self.targets = hit_targets(self.targets, self._killed)
        self._hold.keep(self._ran)
        return self

    async def _kill(self, node: str) -> None:
        state = await self._state(node)
        if state.state in ("running", "stopped"):
            self._ran.append(node)
            self._killed[node] = state.pid
            await self._end(node)
            self._signalled.add(node)

    async def _end(self, node: str) -> None:
        await self._signal(node, SIGKILL)

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*map(self._start, tuple(self._killed)))

    async def _start(self, node: str) -> None:
        """Start a node again. A process that ignored the signal is killed first."""
        await self._wait(self._gone, node, self.gone_within_s)
        if node in self._signalled and not await self._gone(node):
            await self._signal(node, SIGKILL)
            await self._wait(self._gone, node, self.gone_within_s)
        state = await self._state(node)
        if state.state in ("exited", "absent"):
            self._restarted.add(node)
            await self._begin_again(node)
        elif state.pid == self._killed[node] and node in self._signalled:
            raise BedFailed(f"{node} did not stop after the signal to do so")
        elif state.pid == self._killed[node]:
            del self._killed[node]  # no signal was sent, because applying was interrupted
        elif node not in self._restarted:
            self.broke_off = f"something else had started {node} by then"

    async def _begin_again(self, node: str) -> None:
        await self._bed.system.start_node(self._bed, node)

    async def observe(self) -> Observation:
        return await self._observed(self._gone, self.gone_within_s, self._victims)

    async def observe_healed(self) -> Observation:
        try:
            return await self._observed(self._back, BACK_WITHIN_S, self._ran)
        finally:
            self._hold.release()

    async def _observed(self, holds: Check, within_s: float, whom: Sequence[str]) -> Observation:
        """Return installed if the check comes to hold for all nodes, failed if for none."""
        await gather_all(*(self._wait(holds, node, within_s) for node in self._ran))
        nodes: dict[str, dict[str, Any]] = {}
        good = 0
        for node in whom:
            state = await self._state(node)
            nodes[node] = {"was": self._killed.get(node, 0), "pid": state.pid, "is": state.state}
            if state.state == "exited":
                nodes[node]["code"] = state.code
            good += await holds(node)
        return Observation.graded(good == len(whom), good, {"processes": nodes})

    async def _gone(self, node: str) -> bool:
        """Return whether this fault ended the process; False if it had exited before."""
        state = await self._state(node)
        ended = state.state in ("exited", "absent") or state.pid != self._killed.get(node)
        return ended and node in self._killed

    async def _back(self, node: str) -> bool:
        """Return whether the node runs again, or still if it was not killed."""
        state = await self._state(node)
        return state.state == "running" and state.pid != self._killed.get(node)

    async def _wait(self, holds: Check, node: str, within_s: float) -> None:
        deadline_ns = self._bed.now_ns() + within_s * NS
        await wait_until(self._bed, lambda: holds(node), deadline_ns)
