"""A fault of the network, laid in the fabric and seen by probes.

Besides its own links it watches the other links between the nodes it touches: what no fault cuts
must stay open, or the fault is only `partial`. Where another fault does more of the same the probes
would fare alike without it: it is seen on its other links, and has `failed` if there are none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.contracts import CLIENT, NOTHING, Effect, Link, Node, Observation, PlannedFault, Scene
from nemesis._network import shapes as _links
from nemesis._network.drop_probe import Sighting, sight
from nemesis._plan import targets as _targets

DIRECTIONS = ("in", "out", "both")


class LinkFault:
    """An injection of effects on links."""

    told = "cut"  # what the evidence calls the links

    def __init__(
        self, scene: Scene, targets: Sequence[Node], effects: Mapping[Link, Effect]
    ) -> None:
        self.effects = {link: effect for link, effect in effects.items() if link[0] != link[1]}
        self.targets = scene.parts(targets) if self.effects else {}
        self._scene = scene

    async def __aenter__(self) -> "LinkFault":
        await self._scene.links.lay(self, self.effects)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._scene.links.lift(self)

    async def observe(self) -> Observation:
        return await self.sighted()

    async def observe_healed(self) -> Observation:
        return observed(await sight(self._scene, self.effects), [], {})

    async def sighted(self) -> Observation:
        """Its own links are as laid, and the others among its nodes are open."""
        sightings = await sight(self._scene, self._watched())
        own = [sighting for sighting in sightings if sighting.link in self.effects]
        others = [s for s in sightings if s.link not in self.effects and s.open]
        hidden = [s for s in own if outdone(self.effects[s.link], Effect(s.drop))]
        return observed(own, others, {self.told: self._by_sink()}, hidden)

    def _watched(self) -> set[Link]:
        touched = {name for link in self.effects for name in link}
        return {(a, b) for a in touched for b in touched if a != b}

    def _by_sink(self) -> Mapping[str, Sequence[str]]:
        """Whom each node loses: what the shape came to, so that it can be done again."""
        losing: dict[str, list[str]] = {}
        for source, sink in sorted(self.effects):
            losing.setdefault(sink, []).append(source)
        return losing


def hopeless(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Why there can be no such link at any moment, where the words alone say it; else nothing."""
    target, others = planned.target, planned.params["from"] or "cluster"
    clients = planned.params["clients"]
    if _links.may_meet(_targets.possible(target, nodes), reached_from(others, clients, nodes)):
        return ""
    return no_link(target, others)


def reached_from(selector: str, clients: bool, nodes: Sequence[Node]) -> set[str]:
    """All whom the other side of a link may mean."""
    more = {node.name for node in nodes if clients and node.role == CLIENT}
    return _targets.possible(selector, nodes) | more


def no_link(one: str, other: str) -> str:
    return f"hits nothing: there is no link between {one!r} and {other!r}; name nodes that differ"


def chosen(planned: PlannedFault, scene: Scene) -> tuple[Sequence[Node], Sequence[Link]]:
    """The target, and the links between it and `from` in its `direction`."""
    victims = scene.aim(planned.target)
    others = list(scene.aim(planned.params["from"] or "cluster"))
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


def outdone(own: Effect, wanted: Effect) -> bool:
    """Whether of all that a fault does to a link, others do more: nobody can see that one there."""
    if own == NOTHING:
        return False
    harms = zip(own._fields, own, wanted, strict=True)
    return all(_more(name, theirs, ours) for name, ours, theirs in harms if ours)


def _more(name: str, theirs: float, ours: float) -> bool:
    """More of this harm: of a rate, less."""
    return theirs < ours if name.endswith("bytes_per_s") else theirs > ours


def observed(
    own: Sequence[Sighting],
    others: Sequence[Sighting],
    more: Mapping[str, Any],
    hidden: Sequence[Sighting] = (),
) -> Observation:
    """Installed when every link does what its rules say and some do because of the fault: those
    that no worse one hides. Failed when none of these does."""
    lossy = sum(0 < sighting.drop < 1 for sighting in own)
    as_laid = [sighting for sighting in own if sighting.as_laid(max(1, lossy))]
    passing = [sighting for sighting in others if sighting.as_laid()]
    odd = [s for s in (*own, *others) if s not in as_laid and s not in passing]
    good = [sighting for sighting in as_laid if sighting not in hidden]
    evidence = {
        "links": len(own),
        "links_as_laid": len(good),
        "links_hidden_by_others": len(hidden),
        "probes": sum(sighting.sent for sighting in own),
        "arrived": sum(sighting.arrived for sighting in own),
        "dropped": sum(sighting.counted for sighting in own),
        "open_links": len(others),
        "open_links_passing": len(passing),
        "odd": [
            {"link": " to ".join(s.link), "drop": s.drop, "sent": s.sent, "arrived": s.arrived}
            for s in odd[:5]
        ],
        **more,
    }
    if good and not odd:
        return Observation("installed", evidence)
    return Observation("partial" if good else "failed", evidence)


def counted(links: int) -> str:
    return f"{links} link{'' if links == 1 else 's'}"
