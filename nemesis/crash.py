"""Crash clients: the process is killed, and a new one replaces it.

What it had sent may still arrive and take effect, so its open operations are of unknown outcome for
ever, and its successor's processes go by new numbers. The cluster sees connections close on which
nobody said goodbye. Only its journal is still written: what we do not know of, nobody could judge.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from harness.contracts import CLIENT, Effects, FaultPlugin, Node, Observation, PlannedFault, Scene
from harness.errors import BadRequest
from nemesis._process.victims import Hold
from nemesis._runner.waiting import NS, each, reached

TARGET = "one client"
BACK_WITHIN_S = 20.0


def check(planned: PlannedFault) -> None:
    """BadRequest when it is aimed at nobody, or not at clients."""
    if not _means_clients(planned.target):
        raise BadRequest(
            "crash hits clients; target 'client', 'one client' or one by its name", "target"
        )


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """One client, unless `targets` name others."""
    return random.choice(targets or (TARGET,)), {}


def suits(target: str, _nodes: Sequence[Node]) -> bool:
    """Whether all that it means are clients."""
    return _means_clients(target)


def usual(targets: Sequence[str]) -> Sequence[str]:
    """Those of a swarm's own targets that are for it."""
    return [target for target in targets if _means_clients(target)]


def _means_clients(target: str) -> bool:
    terms = [term.split() for term in target.split(",")]
    return all(any(word.startswith(CLIENT) for word in words) for words in terms)


def fault(planned: PlannedFault, scene: Scene) -> "Crash":
    victims = scene.aim(planned.target, spare=scene.held)
    return Crash(scene, [node for node in victims if node.role == CLIENT])


PLUGIN = FaultPlugin(
    fault=fault,
    # it hits clients: what the system has acknowledged is as safe as before
    effects=Effects(may_break=frozenset()),
    needs=frozenset({"restart"}),
    shown=((TARGET, {}),),
    hits_clients=True,
    drawn=drawn,
    check=check,
    suits=suits,
    usual=usual,
)


class Crash:
    """Client processes gone, until it is left."""

    def __init__(self, scene: Scene, victims: Sequence[Node]) -> None:
        self.targets = scene.parts(victims)
        self._bed = scene.bed
        self._victims = [node.name for node in victims]
        self._hold = Hold(scene.held, self._victims)
        self._was: dict[str, int] = {}

    async def __aenter__(self) -> "Crash":
        self._hold.take()
        await each(*map(self._crash, self._victims))
        return self

    async def _crash(self, node: str) -> None:
        self._was[node] = await self._bed.clients().crash(node)

    async def __aexit__(self, *exc: object) -> None:
        await each(*map(self._bed.clients().begin_again, self._victims))

    async def observe(self) -> Observation:
        seen = {node: await self._bed.clients().running(node) for node in self._victims}
        good = sum(not pid and self._was.get(node, 0) > 0 for node, pid in seen.items())
        words = f"{good} of {len(seen)} client processes gone"
        return self._observation(good, seen, words)

    async def observe_healed(self) -> Observation:
        seen: dict[str, int] = {}

        async def all_back() -> bool:
            for node in self._victims:
                seen[node] = await self._bed.clients().running(node)
            return all(self._back(node, pid) for node, pid in seen.items())

        try:
            await reached(self._bed, all_back, self._bed.now_ns() + BACK_WITHIN_S * NS)
            good = sum(self._back(node, pid) for node, pid in seen.items())
            return self._observation(good, seen, "")
        finally:
            self._hold.let_go()

    def _back(self, node: str, pid: int) -> bool:
        return pid not in (0, self._was.get(node))

    def _observation(self, good: int, seen: Mapping[str, int], words: str) -> Observation:
        told = {node: {"was": self._was.get(node, 0), "pid": pid} for node, pid in seen.items()}
        if good == len(seen):
            return Observation("installed", {"clients": told}, words)
        return Observation("partial" if good else "failed", {"clients": told}, words)
