"""Crash clients: the process is killed, and a new one replaces it.

Requests that it had sent may still arrive and take effect, so the outcome of its open operations
stays unknown, and the processes of its successor get new numbers. The cluster sees connections
close without a farewell. Only the journal is written to its end, because operations that are not
recorded could not be checked.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from harness.contracts import (
    CLIENT,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Observation,
    PlannedFault,
)
from harness.errors import BadRequest
from nemesis._process.victims import ProcessFault, draw
from nemesis._runner.waiting import NS, gather_all, wait_until

TARGET = "one client"
BACK_WITHIN_S = 20.0


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if target is empty or means other nodes than clients."""
    if not _means_clients(planned.target):
        raise BadRequest(
            "crash hits clients; target 'client', 'one client' or one by its name", "target"
        )


def can_hit(target: str, _nodes: Sequence[Node]) -> bool:
    """Return whether the target means only clients."""
    return _means_clients(target)


def campaign_targets(targets: Sequence[str]) -> Sequence[str]:
    """Return those of a swarm's targets that mean clients."""
    return [target for target in targets if _means_clients(target)]


def _means_clients(target: str) -> bool:
    terms = [term.split() for term in target.split(",")]
    return all(any(word.startswith(CLIENT) for word in words) for words in terms)


def fault(planned: PlannedFault, scene: FaultContext) -> "Crash":
    victims = scene.resolve(planned.target, spare=scene.claimed)
    return Crash(scene, [node for node in victims if node.role == CLIENT])


PLUGIN = FaultPlugin(
    fault=fault,
    # only clients are hit, so acknowledged data is not affected
    effects=FaultEffects(may_break=frozenset()),
    needs=frozenset({"restart"}),
    verify_examples=((TARGET, {}),),
    hits_clients=True,
    draw=partial(draw, usual=(TARGET,)),
    check=check,
    can_hit=can_hit,
    campaign_targets=campaign_targets,
)


class Crash(ProcessFault):
    """Killed client processes."""

    def __init__(self, scene: FaultContext, victims: Sequence[Node]) -> None:
        super().__init__(scene, victims)
        self._was: dict[str, int] = {}

    async def __aenter__(self) -> "Crash":
        self._hold.take()
        await gather_all(*map(self._crash, self._victims))
        return self

    async def _crash(self, node: str) -> None:
        self._was[node] = await self._bed.clients().crash(node)

    async def __aexit__(self, *exc: object) -> None:
        await gather_all(*map(self._bed.clients().restart, self._victims))

    async def observe(self) -> Observation:
        seen = {node: await self._bed.clients().pid(node) for node in self._victims}
        good = sum(not pid and self._was.get(node, 0) > 0 for node, pid in seen.items())
        words = f"{good} of {len(seen)} client processes gone"
        return self._observation(good, seen, words)

    async def observe_healed(self) -> Observation:
        seen: dict[str, int] = {}

        async def all_back() -> bool:
            for node in self._victims:
                seen[node] = await self._bed.clients().pid(node)
            return all(self._back(node, pid) for node, pid in seen.items())

        try:
            await wait_until(self._bed, all_back, self._bed.now_ns() + BACK_WITHIN_S * NS)
            good = sum(self._back(node, pid) for node, pid in seen.items())
            return self._observation(good, seen, "")
        finally:
            self._hold.release()

    def _back(self, node: str, pid: int) -> bool:
        return pid not in (0, self._was.get(node))

    def _observation(self, good: int, seen: Mapping[str, int], words: str) -> Observation:
        pids = {node: {"was": self._was.get(node, 0), "pid": pid} for node, pid in seen.items()}
        return Observation.graded(good == len(seen), good, {"clients": pids}, words)
