"""The network rules of all faults in force, merged.

Each fault lays its own effects and lifts them again. A node's rules are the merge of the effects of
all faults; where two meet on a link the worse one wins, and a node is changed only if its merge
changes. So overlapping faults compose, and healing one leaves the other in place.

A node's rules are replaced as a whole, which resets their counters. `version` tells an observer
that this happened during its observation, or was under way when that began.

The distances between zones, which last for the whole trial, are in every merge and belong to no
fault: `effect` omits them, a delay is added to them, and they remain when all faults are healed.
"""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from functools import reduce
from types import MappingProxyType

from harness.contracts import NO_EFFECT, Agent, Distance, Link, LinkEffect, LinkRule, Node
from nemesis._runner.waiting import gather_all

NO_DISTANCE = Distance()


class LinkRules:
    """The link rules of all nodes."""

    def __init__(
        self,
        nodes: Sequence[Node],
        agents: Mapping[str, Agent],
        distances: Mapping[Link, Distance] = MappingProxyType({}),
    ) -> None:
        self._address = {node.name: node.address for node in nodes}
        self._agents = agents
        self.min_latency_s: MutableMapping[Link, float] = {}
        self._distances = distances
        self._laid: dict[object, Mapping[Link, LinkEffect]] = {}
        self._touched: dict[object, set[str]] = {}  # nodes that may have rules of a fault
        # None: a change was begun and not confirmed, so the rules in force are unknown
        self._in_force: dict[str, tuple[LinkRule, ...] | None] = {
            node.name: self._merged(node.name) for node in nodes
        }
        self._version = {node.name: 0 for node in nodes}
        self._turn = {node.name: asyncio.Lock() for node in nodes}

    async def apply(self, owner: object, effects: Mapping[Link, LinkEffect]) -> None:
        """Put a fault's effects in force, on all nodes at the same time."""
        self._laid[owner] = dict(effects)
        self._touched.setdefault(owner, set()).update(sink for _, sink in effects)
        await self._renew(owner)

    async def remove(self, owner: object) -> None:
        """Remove a fault's effects; those of others stay. May be repeated after a failure."""
        self._laid.pop(owner, None)
        await self._renew(owner)
        self._touched.pop(owner, None)

    def effect(self, link: Link) -> LinkEffect:
        """Return the effect of all faults together on a link."""
        laid = [effects[link] for effects in self._laid.values() if link in effects]
        return reduce(LinkEffect.worse, laid) if laid else NO_EFFECT

    def distance(self, link: Link) -> Distance:
        """Return the distance of the link's ends, which is there before and after all faults."""
        return self._distances.get(link, NO_DISTANCE)

    def version(self, node: str) -> int:
        """Return a number that rises when replacing the node's rules begins, and when it ends."""
        return self._version[node]

    async def _renew(self, owner: object) -> None:
        """Renew the rules of all nodes that the fault ever changed.

        An earlier attempt may have been interrupted, so these include nodes that it no longer
        affects. Other nodes are left alone: one of them that cannot be reached would fail every
        fault.
        """
        await gather_all(*map(self._renew_one, sorted(self._touched.get(owner, ()))))

    async def _renew_one(self, sink: str) -> None:
        """Renew a node's rules, one renewal at a time, so that the last merge is in force last."""
        async with self._turn[sink]:
            rules = self._merged(sink)
            if rules == self._in_force[sink]:
                return
            self._version[sink] += 1
            self._in_force[sink] = None
            try:
                await self._agents[sink].links(rules)
            finally:
                self._version[sink] += 1
            self._in_force[sink] = rules

    def _merged(self, sink: str) -> tuple[LinkRule, ...]:
        laid = {link for effects in self._laid.values() for link in effects if link[1] == sink}
        far = (link for link in self._distances if link[1] == sink)
        return tuple(self._rule(link) for link in sorted(laid.union(far)))

    def _rule(self, link: Link) -> LinkRule:
        """Merge the effect with the distance, to which a delay is added."""
        effect, far = self.effect(link), self.distance(link)
        late = effect._replace(
            delay_s=effect.delay_s + far.delay_s, jitter_s=effect.jitter_s + far.jitter_s
        )
        return LinkRule(self._address[link[0]], *late)
