"""What the faults of limits share: processes that may take little more than they have.

One that cannot live with that and ends is a fault that was seen. It is started again when the limit
is taken away, as an operator would start it.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from harness.contracts import Node, Observation, Scene
from harness.errors import BedFailed
from nemesis._process.remote_program import there
from nemesis._process.victims import Hold, among
from nemesis._runner.waiting import NS, each, reached

ALIVE = ("running", "stopped")
BACK_WITHIN_S = 10.0

Told = Mapping[str, Mapping[str, int]]  # by process: limit, used, room


class Limited:
    """Processes with a limit, until it is left. `kind`: of `rlimits`."""

    def __init__(self, scene: Scene, victims: Sequence[Node], kind: str, room: int) -> None:
        self.targets = scene.parts(victims)
        self._bed = scene.bed
        self._victims = [node.name for node in victims]
        self._hold = Hold(scene.held, self._victims)
        self._kind, self._room = kind, room
        self._pid: dict[str, int] = {}  # of whom a limit was, or is to be, set
        self._taken: dict[str, Told] = {}

    async def __aenter__(self) -> "Limited":
        self._hold.take()
        try:
            await each(*map(self._take, self._victims))
        finally:
            self.targets = among(self.targets, self._pid)
        self._hold.keep([node for node in self._victims if node in self._pid])
        return self

    async def _take(self, node: str) -> None:
        state = await self._bed.agents[node].state(self._bed.system.process(node))
        if state.state in ALIVE:
            self._pid[node] = state.pid
            was = await self._do(node, "look")
            self._taken[node] = was  # in case that the next is broken off
            self._taken[node] = {**was, **await self._do(node, "take", self._room)}

    async def __aexit__(self, *exc: object) -> None:
        await each(*map(self._give, tuple(self._pid)))

    async def _give(self, node: str) -> None:
        if await self._lives(node):
            if taken := self._taken.get(node):
                await self._do(node, "give", taken[str(self._pid[node])]["was"])
        elif await self._ended(node):
            await self._bed.system.start_node(self._bed, node)

    async def observe(self) -> Observation:
        seen: dict[str, Any] = {}
        for node in self._victims:
            seen[node] = await self._do(node, "look") or "ended"
        good = sum(self._holds(node, seen[node]) for node in self._victims)
        rooms = [
            told["room"] for each in seen.values() if each != "ended" for told in each.values()
        ]
        words = f"room for {self._worded(min(rooms))}" if rooms else "it ended"
        evidence = {self._kind: seen}
        if good == len(self._victims):
            return Observation("installed", evidence, words)
        return Observation("partial" if good else "failed", evidence, words)

    def _holds(self, node: str, seen: Any) -> bool:
        """Every process has the limit that it was given, or could not live with it; and it is less
        than what it had."""
        taken = self._taken.get(node, {})
        if not taken or not all(map(_lower, taken.values())):
            return False
        return seen == "ended" or all(
            told["limit"] == taken.get(pid, told)["limit"] for pid, told in seen.items()
        )

    def _worded(self, room: int) -> str:
        return f"{room / 1e6:.1f} MB more" if self._kind == "memory" else f"{room} more files"

    async def observe_healed(self) -> Observation:
        async def all_back() -> bool:
            return all([await self._free(node) for node in self._victims])

        try:
            deadline_ns = self._bed.now_ns() + BACK_WITHIN_S * NS
            healed = await reached(self._bed, all_back, deadline_ns, every_s=0.05)
            return Observation("installed" if healed else "failed")
        finally:
            self._hold.let_go()

    async def _free(self, node: str) -> bool:
        """Running without our limit, or as another process that never had it. One that ends after
        all, of what it had lacked, is started."""
        if node not in self._taken:
            return True
        if await self._ended(node):
            await self._bed.system.start_node(self._bed, node)
            return False
        if not await self._lives(node):
            return True
        was, now = self._taken[node][str(self._pid[node])]["was"], await self._do(node, "look")
        return bool(now) and all(told["limit"] == was for told in now.values())

    async def _lives(self, node: str) -> bool:
        """Whether it is still the process that was given a limit."""
        state = await self._bed.agents[node].state(self._bed.system.process(node))
        return state.state in ALIVE and state.pid == self._pid.get(node)

    async def _ended(self, node: str) -> bool:
        state = await self._bed.agents[node].state(self._bed.system.process(node))
        return state.state in ("exited", "absent")

    async def _do(self, node: str, verb: str, *words: int) -> Told:
        """What is told of the victim's processes; nothing when they are gone."""
        try:
            told: Told = await there(
                self._bed, node, "limits", verb, self._pid.get(node, 0), self._kind, *words
            )
        except BedFailed:
            if await self._lives(node):
                raise
            return {}
        return told


def _lower(told: Mapping[str, int]) -> bool:
    """Whether the limit is below the one before; a negative one is none."""
    limit, was = (inf if told[word] < 0 else told[word] for word in ("limit", "was"))
    return limit < was
