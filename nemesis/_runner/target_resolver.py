"""Resolve the targets of faults at their moment, and keep the names of the nodes that each hit."""

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence

from harness import registry
from harness.contracts import CLIENT, ClusterState, FaultContext, Injection, Node, TestBed
from nemesis._network.link_rules import LinkRules
from nemesis._plan import targets as _targets
from nemesis._plan.kinds import hits_clients
from nemesis._plan.overlaps import hold_processes
from nemesis._runner.interval import Interval, as_json
from nemesis._runner.waiting import NS

RETRY_S = 0.05  # while no node plays the targeted role


class TargetResolver:
    """Makes the injections of a plan's faults. `intervals` are all faults of the plan."""

    def __init__(self, bed: TestBed, intervals: Sequence[Interval]) -> None:
        self._bed = bed
        self._link_rules = LinkRules(bed.nodes, bed.agents, bed.distances)
        self._held: set[str] = set()
        self._hit: dict[str, Collection[str]] = {_word(each): () for each in intervals}

    async def resolve(self, interval: Interval) -> Injection:
        """Return the fault with its selectors resolved.

        Retries while no node plays the role, for as long as the fault was to last. Then the
        injection has no targets.
        """
        planned = interval.planned
        give_up_ns = self._bed.now_ns() + planned.for_s * NS
        fault = registry.load("fault", planned.kind)
        while True:
            interval.standing = await self._bed.cluster_state()
            injection: Injection = fault(planned, self._scene(interval, interval.standing))
            if injection.targets or self._bed.now_ns() >= give_up_ns:
                return injection
            await self._bed.sleep(RETRY_S)

    def record_hit(self, interval: Interval, targets: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Note the targets of a fault, later the nodes that it really hit; return their names."""
        interval.row["targets"] = as_json(targets)
        names = [name for names in targets.values() for name in names]
        self._hit[_word(interval)] = names
        return names

    def names_by_word(self, interval: Interval) -> _targets.NamesByWord:
        """Return the nodes meant by words that only this plan defines: `teller`, `fault-0`."""
        return ChainMap({_targets.TELLER: (interval.event_node,)}, self._hit)

    def why_none(self, interval: Interval, begun: Sequence[Interval]) -> str:
        """Explain why a fault has no targets: other faults hold them, or there are none."""
        aim = self._scene(interval, interval.standing or ClusterState()).resolve
        meant = [n.name for n in aim(interval.planned.target)] if interval.planned.target else []
        holders = [
            other.description
            for other in begun
            if other.injection and hold_processes(other.planned, interval.planned)
            if not self._held.isdisjoint(meant) and set(meant) & set(self._hit[_word(other)])
        ]
        if holders:
            return f"{', '.join(meant)} had no process to spare: {' and '.join(holders)} held it"
        if meant and not hold_processes(interval.planned):
            return "there is no link between its targets"
        return "no node had the role that it targets"

    def _scene(self, interval: Interval, standing: ClusterState) -> FaultContext:
        names = self.names_by_word(interval)
        # `fault-0` does not mean the clients that it hit, unless this fault can hit clients, too
        clients = hits_clients(registry.fault(interval.planned.kind))
        nodes = [node for node in self._bed.nodes if clients or node.role != CLIENT]

        def aim(selector: str, spare: Collection[str] = ()) -> tuple[Node, ...]:
            return _targets.resolve(selector, nodes, standing, interval.random, spare, names)

        def part(node: Node) -> str:
            return _targets.part(node, standing)

        return FaultContext(self._bed, self._link_rules, aim, part, self._held, interval.random)


def _word(interval: Interval) -> str:
    """Return the selector that means the nodes which the fault hit."""
    return f"{_targets.FAULT}{interval.number}"
