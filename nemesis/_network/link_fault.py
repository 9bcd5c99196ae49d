"""Faults of links: laid in the merged link rules, and observed with probes.

Besides its own links a fault observes the other links between its nodes: those that no fault cuts
must stay open, or the fault is only `partial`. Where another fault does more of the same, the
probes would have the same result without this one: it is observed on its other links, and has
`failed` if there are none.

A *flapping* fault is removed and applied again until it is healed, each time on the same links. The
first time it lasts until it was observed like any other. Every later time is observed while it
lasts, and the healing records how many times it came and was seen. If it broke off, or fewer than
half were seen, the fault was not kept up.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.contracts import (
    CLIENT,
    NO_EFFECT,
    FaultContext,
    Link,
    LinkEffect,
    Node,
    Observation,
    PlannedFault,
)
from harness.errors import error_text
from nemesis._network import shapes as _links
from nemesis._network.drop_probe import ProbeResult, probe_links
from nemesis._plan import targets as _targets

DIRECTIONS = ("in", "out", "both")
TARGETS = ("master", "one slave", "minority", "minority broker", "all broker", "controller-leader")


class LinkFault:
    """An injection of effects on links."""

    evidence_key = "cut"  # links by receiver, so that the same partition can be repeated

    def __init__(
        self, scene: FaultContext, targets: Sequence[Node], effects: Mapping[Link, LinkEffect]
    ) -> None:
        self.effects = {link: effect for link, effect in effects.items() if link[0] != link[1]}
        self.targets = scene.by_role(targets) if self.effects else {}
        self._scene = scene

    async def __aenter__(self) -> "LinkFault":
        await self._scene.links.apply(self, self.effects)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._scene.links.remove(self)

    async def observe(self) -> Observation:
        """Observe that the fault's links are as laid, and the others among its nodes are open."""
        results = await probe_links(self._scene, self._watched())
        own = [result for result in results if result.link in self.effects]
        others = [r for r in results if r.link not in self.effects and r.open]
        hidden = [r for r in own if is_hidden_by(self.effects[r.link], LinkEffect(r.drop))]
        cut = {self.evidence_key: _links.sources_by_sink(self.effects)}
        return link_observation(own, others, cut, hidden)

    async def observe_healed(self) -> Observation:
        results = await probe_links(self._scene, self.effects)
        if self.effects and not results:
            return Observation("installed", {"links": 0})  # all have ended with their networks
        return link_observation(results, [], {})

    def _watched(self) -> set[Link]:
        touched = {name for link in self.effects for name in link}
        return {(a, b) for a in touched for b in touched if a != b}


class FlappingFault(LinkFault):
    """A fault of links that comes and goes."""

    def __init__(
        self,
        scene: FaultContext,
        targets: Sequence[Node],
        effects: Mapping[Link, LinkEffect],
        on_s: float,
        off_s: float,
    ) -> None:
        super().__init__(scene, targets, effects)
        self._bed, self._links = scene.bed, scene.links
        self._on_s, self._off_s = on_s, off_s
        self._seen_first = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._came, self._observed, self._seen, self._error = 1, 0, 0, ""

    async def __aenter__(self) -> "FlappingFault":
        await super().__aenter__()
        self._work = asyncio.create_task(self._flap())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._work:
            self._work.cancel()
            (ended,) = await asyncio.gather(self._work, return_exceptions=True)
            self._error = error_text(ended) if isinstance(ended, Exception) else ""
        await super().__aexit__(*exc)

    async def observe(self) -> Observation:
        try:
            first = await super().observe()
        finally:
            self._seen_first.set()
        self._observed += 1
        self._seen += first.state == "installed"
        return first

    async def observe_healed(self) -> Observation:
        healed = await super().observe_healed()
        flaps = {"came": self._came, "looked_at": self._observed, "seen": self._seen}
        return replace(healed, evidence={**healed.evidence, **flaps})

    @property
    def broke_off(self) -> str:
        if not self._error and 2 * self._seen < self._observed:
            return f"it was seen {self._seen} of {self._observed} times"
        return self._error

    async def _flap(self) -> None:
        await self._seen_first.wait()
        await self._bed.sleep(self._on_s)
        while True:
            await self._links.remove(self)
            await self._bed.sleep(self._off_s)
            await self._links.apply(self, self.effects)
            self._came += 1
            began_ns = self._bed.now_ns()
            results = await probe_links(self._scene, self.effects)
            self._observed += 1
            self._seen += all(result.matches_rules() for result in results)
            took_s = (self._bed.now_ns() - began_ns) / 1e9
            await self._bed.sleep(max(0.0, self._on_s - took_s))


def impossible_reason(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why there can never be such a link, as far as the words tell, or ''."""
    target, others = planned.target, planned.params["from"] or "cluster"
    clients = planned.params["clients"]
    reachable = reachable_names(others, clients, nodes)
    if _links.have_link(_targets.possible_names(target, nodes), reachable):
        return ""
    return no_link_reason(target, others)


def reachable_names(selector: str, clients: bool, nodes: Sequence[Node]) -> set[str]:
    """Return the names of all nodes that the other side of a link may mean."""
    more = {node.name for node in nodes if clients and node.role == CLIENT}
    return _targets.possible_names(selector, nodes) | more


def no_link_reason(one: str, other: str) -> str:
    return f"hits nothing: there is no link between {one!r} and {other!r}; name nodes that differ"


def select_links(
    planned: PlannedFault, scene: FaultContext
) -> tuple[Sequence[Node], Sequence[Link]]:
    """Return the target, and the links between it and `from` in its `direction`."""
    victims = scene.resolve(planned.target)
    others = list(scene.resolve(planned.params["from"] or "cluster"))
    if planned.params["clients"]:
        others += [node for node in scene.bed.of_role(CLIENT) if node not in others]
    inner, outer = [node.name for node in victims], [node.name for node in others]
    direction = planned.params["direction"]
    links = frozenset[Link]()
    if direction != "out":
        links |= _links.one_way(outer, inner)
    if direction != "in":
        links |= _links.one_way(inner, outer)
    return victims, sorted(links)


def is_hidden_by(own: LinkEffect, wanted: LinkEffect) -> bool:
    """Return whether other faults do more of everything that this one does to a link."""
    if own == NO_EFFECT:
        return False
    harms = zip(own._fields, own, wanted, strict=True)
    return all(
        theirs < ours if name.endswith("bytes_per_s") else theirs > ours  # a lower rate is worse
        for name, ours, theirs in harms
        if ours
    )


def link_observation(
    own: Sequence[ProbeResult],
    others: Sequence[ProbeResult],
    more: Mapping[str, Any],
    hidden: Sequence[ProbeResult] = (),
) -> Observation:
    """Return the observation of a fault from the results of its own links and the others.

    It is installed if every link does what its rules say, and at least one does so because of the
    fault, which no worse one hides. It has failed if there is no such link.
    """
    lossy = sum(0 < result.drop < 1 for result in own)
    as_laid = [result for result in own if result.matches_rules(max(1, lossy))]
    passing = [result for result in others if result.matches_rules()]
    odd = [r for r in (*own, *others) if r not in as_laid and r not in passing]
    good = [result for result in as_laid if result not in hidden]
    evidence = {
        "links": len(own),
        "links_as_laid": len(good),
        "links_hidden_by_others": len(hidden),
        "probes": sum(result.sent for result in own),
        "arrived": sum(result.arrived for result in own),
        "dropped": sum(result.counted for result in own),
        "open_links": len(others),
        "open_links_passing": len(passing),
        "odd": [
            {"link": " to ".join(r.link), "drop": r.drop, "sent": r.sent, "arrived": r.arrived}
            for r in odd[:5]
        ],
        **more,
    }
    return Observation.graded(bool(good) and not odd, good, evidence)


def links_text(links: int) -> str:
    return f"{links} link{'' if links == 1 else 's'}"
