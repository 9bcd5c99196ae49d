"""What the faults of resource limits share: processes may take little more than they have.

A process that exits because of the limit is a fault that was observed. It is started again when the
limit is removed, as an operator would do.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from harness.contracts import FaultContext, Node, Observation
from harness.errors import BedFailed
from nemesis._process.remote_program import run_program
from nemesis._process.victims import ProcessFault, hit_targets
from nemesis._runner.waiting import NS, gather_all, wait_until

ALIVE = ("running", "stopped")
BACK_WITHIN_S = 10.0

Limits = Mapping[str, Mapping[str, int]]  # by process: limit, was, used, room


class ResourceLimit(ProcessFault):
    """Processes with a lowered limit. `kind` is an argument of `rlimits.py`."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node], kind: str, room: int) -> None:
        super().__init__(scene, victims)
        self._kind, self._room = kind, room
        self._pid: dict[str, int] = {}  # of processes whose limit was, or is to be, lowered
        self._lowered: dict[str, Limits] = {}

    async def __aenter__(self) -> "ResourceLimit":
        self._hold.take()
        try:
            await gather_all(*map(self._take, self._victims))
        finally:
            self.targets = hit_targets(self.targets, self._pid)
        self._hold.keep([node for node in self._victims if node in self._pid])
        return self

    async def _take(self, node: str) -> None:
        state = await self._state(node)
        if state.state in ALIVE:
            self._pid[node] = state.pid
            was = await self._do(node, "look")
            self._lowered[node] = was  # in case the next call is interrupted
            self._lowered[node] = {**was, **await self._do(node, "take", self._room)}

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*map(self._give, tuple(self._pid)))

    async def _give(self, node: str) -> None:
        if await self._lives(node):
            if lowered := self._lowered.get(node):
                await self._do(node, "give", lowered[str(self._pid[node])]["was"])
        elif await self._ended(node):
            await self._bed.system.start_node(self._bed, node)

    async def observe(self) -> Observation:
        seen: dict[str, Any] = {}
        for node in self._victims:
            seen[node] = await self._do(node, "look") or "ended"
        good = sum(self._holds(node, seen[node]) for node in self._victims)
        rooms = [
            limits["room"] for each in seen.values() if each != "ended" for limits in each.values()
        ]
        words = f"room for {self._room_text(min(rooms))}" if rooms else "it ended"
        evidence = {self._kind: seen}
        return Observation.graded(good == len(self._victims), good, evidence, words)

    def _holds(self, node: str, seen: Any) -> bool:
        """Return whether every process has its lowered limit, or exited because of it."""
        lowered = self._lowered.get(node, {})
        if not lowered or not all(map(_is_lower, lowered.values())):
            return False
        return seen == "ended" or all(
            limits["limit"] == lowered.get(pid, limits)["limit"] for pid, limits in seen.items()
        )

    def _room_text(self, room: int) -> str:
        return f"{room / 1e6:.1f} MB more" if self._kind == "memory" else f"{room} more files"

    async def observe_healed(self) -> Observation:
        async def all_back() -> bool:
            return all([await self._free(node) for node in self._victims])

        try:
            deadline_ns = self._bed.now_ns() + BACK_WITHIN_S * NS
            healed = await wait_until(self._bed, all_back, deadline_ns, every_s=0.05)
            return Observation("installed" if healed else "failed")
        finally:
            self._hold.release()

    async def _free(self, node: str) -> bool:
        """Return whether the node runs without the limit; start it if it exited."""
        if node not in self._lowered:
            return True
        if await self._ended(node):
            await self._bed.system.start_node(self._bed, node)
            return False
        if not await self._lives(node):
            return True  # another process, which never had the limit
        was, now = self._lowered[node][str(self._pid[node])]["was"], await self._do(node, "look")
        return bool(now) and all(limits["limit"] == was for limits in now.values())

    async def _lives(self, node: str) -> bool:
        """Return whether it is still the process whose limit was lowered."""
        state = await self._state(node)
        return state.state in ALIVE and state.pid == self._pid.get(node)

    async def _ended(self, node: str) -> bool:
        return (await self._state(node)).state in ("exited", "absent")

    async def _do(self, node: str, verb: str, *words: int) -> Limits:
        """Run `rlimits.py` for the node's processes; return {} if they are gone."""
        try:
            limits: Limits = await run_program(
                self._bed, node, "rlimits", verb, self._pid.get(node, 0), self._kind, *words
            )
        except BedFailed:
            if await self._lives(node):
                raise
            return {}
        return limits


def _is_lower(limits: Mapping[str, int]) -> bool:
    """Return whether the limit is lower than before; a negative one means no limit."""
    limit, was = (inf if limits[word] < 0 else limits[word] for word in ("limit", "was"))
    return limit < was
