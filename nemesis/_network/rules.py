"""The network rules of all faults in force, merged.

Each fault lays its own effects and lifts them again; a node's rules are the merge of what all of
them want, where two meet on a link the worse one wins, and a node is touched only when its merge
changes. So overlapping faults compose, and healing one leaves the other in place.

A node's rules are replaced as a whole, which resets their counters; `version` tells an observer
that this happened under its eyes, or had been begun and was not done when it began to look.

What is between zones for the whole trial is in every merge, and no fault's: `effect` does not tell
of it, a delay comes on top of it, and when all is healed it is all that is left.
"""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from functools import reduce
from types import MappingProxyType

from harness.contracts import NOTHING, Agent, Distance, Effect, Link, LinkRule, Node
from nemesis._runner.waiting import each


class Fabric:
    def __init__(
        self,
        nodes: Sequence[Node],
        agents: Mapping[str, Agent],
        distances: Mapping[Link, Distance] = MappingProxyType({}),
    ) -> None:
        self._address = {node.name: node.address for node in nodes}
        self._agents = agents
        self.ways_s: MutableMapping[Link, float] = {}
        self._distances = distances
        self._laid: dict[object, Mapping[Link, Effect]] = {}
        self._touched: dict[object, set[str]] = {}  # nodes that may have rules of a fault
        # None: a change was begun and not confirmed, so nobody knows
        self._in_force: dict[str, tuple[LinkRule, ...] | None] = {
            node.name: self._merged(node.name) for node in nodes
        }
        self._version = {node.name: 0 for node in nodes}
        self._turn = {node.name: asyncio.Lock() for node in nodes}

    async def lay(self, owner: object, effects: Mapping[Link, Effect]) -> None:
        """Put a fault's effects in force, on all nodes at once."""
        self._laid[owner] = dict(effects)
        self._touched.setdefault(owner, set()).update(sink for _, sink in effects)
        await self._renew(owner)

    async def lift(self, owner: object) -> None:
        """Take a fault's effects away; what others laid stays. May be repeated when it failed."""
        self._laid.pop(owner, None)
        await self._renew(owner)
        self._touched.pop(owner, None)

    def effect(self, link: Link) -> Effect:
        """What is wrong with the link, as all faults together want it."""
        laid = [effects[link] for effects in self._laid.values() if link in effects]
        return reduce(Effect.worse, laid) if laid else NOTHING

    def distance(self, link: Link) -> Distance:
        """How far its ends are apart by rules that were there before any fault, and stay."""
        return self._distances.get(link, Distance())

    def version(self, node: str) -> int:
        """Rises when the node's rules begin to be replaced, and when that is over."""
        return self._version[node]

    async def _renew(self, owner: object) -> None:
        """The nodes that it ever touched: an attempt before this one may have been broken off. No
        others, of which one that can not be reached would be in the way of every fault."""
        await each(*map(self._renew_one, sorted(self._touched.get(owner, ()))))

    async def _renew_one(self, sink: str) -> None:
        """One at a time on each node, so that the last merge computed is the last installed."""
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
        """A delay comes on top of the way."""
        effect, far = self.effect(link), self.distance(link)
        late = effect._replace(
            delay_s=effect.delay_s + far.delay_s, jitter_s=effect.jitter_s + far.jitter_s
        )
        return LinkRule(self._address[link[0]], *late)
