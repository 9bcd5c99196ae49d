"""Cut the links between nodes: packets are dropped silently, in one direction or both.

Shapes that divide take all of `target` (by default every server) and divide it at random: `halves`,
`majority` (the largest minority cut from a majority), `one` (one node cut from all others),
`bridge` (two sides and one node that reaches both), `ring` (majorities ring: every node reaches a
majority, no two the same). Shapes with a victim: `isolate` cuts `target` from `from` in both
directions; `one-way` drops only what `target` sends (`direction = "out"`) or only what it receives
(`"in"`); `answers` drops what `target` sends to clients, or to `from`: their requests arrive, but
no answer comes back; `between` cuts the links between `a` and `b`, and `link` only packets from `a`
to `b`; `clients` cuts all clients from `target` (by default every broker). `links` cuts the links
listed in `cut`, as a recorded partition does: for each node the nodes that it loses.

With `off_s` a partition of any shape *flaps*: it lasts `on_s`, is removed for `off_s`, and comes
back on the same links, until it is healed. The first time it lasts until it was observed.

`from` is by default every other node of the cluster. Clients run on nodes of their own and reach
every node, unless `clients = true`: then they take part in the shape, or lose the victim too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    CLIENT,
    CUT,
    FaultContext,
    FaultEffects,
    FaultPlugin,
    Node,
    Param,
    PlannedFault,
)
from harness.errors import BadRequest, UnknownName
from nemesis._network import shapes as _links
from nemesis._network.link_fault import FlappingFault, LinkFault, no_link_reason, reachable_names
from nemesis._plan import targets as _targets

Resolve = Callable[[str], Sequence[Node]]  # from a selector to its nodes
Selection = tuple[Sequence[Node], _links.Links]  # nodes that are hit, links that are cut


class _Shape:
    """One value of the parameter `shape`.

    required      parameters that it needs
    needs_target  whether it needs a target
    is_random     whether chance decides which links it cuts
    """

    required: ClassVar[Sequence[str]] = ()
    needs_target: ClassVar[bool] = False
    is_random: ClassVar[bool] = False

    def select(
        self, planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
    ) -> Selection:
        """Return the nodes that it hits, and the links that it cuts."""
        raise NotImplementedError

    def impossible_reason(self, planned: PlannedFault, nodes: Sequence[Node]) -> str:
        """Return why it can never cut a link, as far as the words tell, or ''."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Division(_Shape):
    """Divides all of `target` at random."""

    divide: Callable[[Sequence[str], Random], _links.Links]
    min_nodes: int = 2
    is_random = True

    def select(
        self, planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
    ) -> Selection:
        divided = _with_clients(aim(planned.target or "server"), planned, nodes)
        if len(divided) < self.min_nodes:
            return divided, frozenset()
        return divided, self.divide(_names(divided), random)

    def impossible_reason(self, planned: PlannedFault, nodes: Sequence[Node]) -> str:
        selector = planned.target or "server"
        available = _targets.max_count(selector, nodes)
        if planned.params["clients"]:
            available += len(_clients(nodes))
        if available >= self.min_nodes:
            return ""
        return (
            f"hits nothing: shape {planned.params['shape']!r} divides at least {self.min_nodes}"
            f" nodes, and {selector!r} means {available} at most; name more, or choose another"
            " shape"
        )


@dataclass(frozen=True)
class _TwoSides(_Shape):
    """Cuts links between the selectors `a` and `b`."""

    cut: Callable[[Sequence[str], Sequence[str]], _links.Links]
    required = ("a", "b")

    def select(
        self, planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
    ) -> Selection:
        a, b = aim(planned.params["a"]), aim(planned.params["b"])
        return (*a, *b), self.cut(_names(a), _names(b))

    def impossible_reason(self, planned: PlannedFault, nodes: Sequence[Node]) -> str:
        a, b = planned.params["a"], planned.params["b"]
        return _no_link(a, b, _targets.possible_names(b, nodes), nodes)


@dataclass(frozen=True)
class _Victims(_Shape):
    """Cuts links between `target` and `from`. The victims keep their links to each other.

    cut  from the parameters to a function of the names of victims and others
    """

    cut: Callable[[Mapping[str, Any]], Callable[[Sequence[str], Sequence[str]], _links.Links]]
    default_from: str = "cluster"
    needs_target = True

    def select(
        self, planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
    ) -> Selection:
        victims = aim(planned.target)
        others = _with_clients(aim(planned.params["from"] or self.default_from), planned, nodes)
        inner = _names(victims)
        outer = [name for name in _names(others) if name not in inner]
        return victims, self.cut(planned.params)(inner, outer)

    def impossible_reason(self, planned: PlannedFault, nodes: Sequence[Node]) -> str:
        target, clients = planned.target, planned.params["clients"]
        other = planned.params["from"] or self.default_from
        lost = reachable_names(other, clients, nodes) - _targets.certain_names(target, nodes)
        if _targets.same_nodes(target, other) and not clients:
            lost = set()
        return _no_link(target, other, lost, nodes)


class _Clients(_Shape):
    """Cuts all clients from `target`."""

    def select(
        self, planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
    ) -> Selection:
        victims = aim(planned.target or _targets.data_nodes(nodes))
        return victims, _links.between(_names(victims), _names(_clients(nodes)))

    def impossible_reason(self, planned: PlannedFault, nodes: Sequence[Node]) -> str:
        lost = _targets.possible_names(CLIENT, nodes)
        return _no_link(planned.target or _targets.data_nodes(nodes), CLIENT, lost, nodes)


class _Listed(_Shape):
    """Cuts the links listed in `cut`."""

    required = ("cut",)

    def select(
        self, planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
    ) -> Selection:
        links = _listed(planned.params["cut"])
        return [node for node in nodes if any(node.name in link for link in links)], links

    def impossible_reason(self, planned: PlannedFault, nodes: Sequence[Node]) -> str:
        return ""


def _one_way(params: Mapping[str, Any]) -> Callable[..., _links.Links]:
    """Return the function that cuts what victims send (`out`), or what they receive (`in`)."""
    if params["direction"] == "out":
        return _links.one_way
    return lambda victims, others: _links.one_way(others, victims)


SHAPES: Mapping[str, _Shape] = {
    "halves": _Division(_links.halves),
    "majority": _Division(_links.majority, min_nodes=3),
    "one": _Division(_links.one),
    "bridge": _Division(_links.bridge, min_nodes=3),
    "ring": _Division(_links.ring, min_nodes=4),
    "isolate": _Victims(lambda params: _links.between),
    "one-way": _Victims(_one_way),
    "answers": _Victims(lambda params: _links.one_way, default_from=CLIENT),
    "between": _TwoSides(_links.between),
    "link": _TwoSides(_links.one_way),
    "clients": _Clients(),
    "links": _Listed(),
}


def _shape(planned: PlannedFault) -> _Shape:
    return SHAPES[planned.params["shape"]]


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if the shape lacks a parameter or target."""
    name = planned.params["shape"]
    for param in _shape(planned).required:
        if not planned.params[param]:
            raise BadRequest(
                f"partition of shape {name!r} needs the parameter {param!r}", f"params.{param}"
            )
    if name == "links" and not _is_valid_list(planned.params["cut"]):
        raise BadRequest(
            "partition of shape 'links' needs a list in `cut`, as in {broker-1 = [\"broker-2\"]};"
            " a node has no link to itself",
            "params.cut",
        )
    if _shape(planned).needs_target and not planned.target:
        raise BadRequest(f"partition of shape {name!r} needs a target, such as 'master'", "target")


def check_nodes(planned: PlannedFault, nodes: Sequence[Node]) -> None:
    """Raise UnknownName if `cut` lists a node that does not exist."""
    if planned.params["shape"] == "links":
        names = [node.name for node in nodes]
        for name in sorted({name for link in _listed(planned.params["cut"]) for name in link}):
            if name not in names:
                raise UnknownName("node", name, names, "params.cut")


def impossible_reason(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why it can never cut a link, as far as the words tell, or ''."""
    return _shape(planned).impossible_reason(planned, nodes)


def always_cuts(planned: PlannedFault, nodes: Sequence[Node]) -> _links.Links:
    """Return the links that it always cuts; none if that depends on chance or the moment."""
    named = (planned.target, *(planned.params[name] for name in ("from", "a", "b")))
    fixed = all(_targets.is_fixed(selector, nodes) for selector in named if selector)
    if not fixed or _shape(planned).is_random:
        return frozenset()

    def aim(selector: str) -> Sequence[Node]:
        return _targets.fixed_nodes(selector, nodes)

    _, links = _shape(planned).select(planned, nodes, aim, Random(0))
    return links


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Return the time of two cuts and the pause between them, if it flaps."""
    params = planned.params
    return 2 * params["on_s"] + params["off_s"] if params["off_s"] else 0.0


def draw(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Draw a target, from `targets` if there are any, and a shape."""
    if targets:
        return random.choice(targets), {"shape": random.choice(("isolate", "one-way"))}
    return random.choice(
        (
            ("master", {"shape": "isolate"}),
            ("master", {"shape": "isolate", "from": "slave"}),
            ("master", {"shape": "one-way", "direction": "out"}),
            ("master", {"shape": "one-way", "direction": "in"}),
            ("one server", {"shape": "isolate"}),
            ("one server", {"shape": "isolate", "clients": True}),
            ("controller-leader", {"shape": "isolate"}),
            ("all broker", {"shape": "one"}),
            ("all controller", {"shape": "one"}),
            ("server", {"shape": "halves"}),
            ("server", {"shape": "majority"}),
            ("server", {"shape": "bridge"}),
            ("server", {"shape": "ring"}),
            ("", {"shape": "between", "a": "broker", "b": "controller"}),
        )
    )


def fault(planned: PlannedFault, scene: FaultContext) -> LinkFault:
    nodes, links = _shape(planned).select(planned, scene.bed.nodes, scene.resolve, scene.random)
    effects = dict.fromkeys(sorted(links), CUT)
    on_s, off_s = planned.params["on_s"], planned.params["off_s"]
    if off_s:
        return FlappingFault(scene, nodes, effects, on_s, off_s)
    return LinkFault(scene, nodes, effects)


PLUGIN = FaultPlugin(
    fault=fault,
    # two nodes may serve at the same time, and what one of them acknowledged may be dropped
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links"}),
    params={
        "shape": Param("isolate", "what is cut from what", among=tuple(SHAPES)),
        "from": Param(
            "", "isolate, one-way, answers: the nodes that the target loses", unit="selector"
        ),
        "a": Param("", "between: one side; link: the sender", unit="selector"),
        "b": Param("", "between: the other side; link: the receiver", unit="selector"),
        "direction": Param(
            "out", "one-way: dropped packets, seen from the target", among=("out", "in")
        ),
        "clients": Param(False, "clients are cut off too"),
        "cut": Param({}, "links: the nodes that each node loses"),
        "on_s": Param(1.0, "flapping: how long it lasts each time", unit="s", low=0.01),
        "off_s": Param(0.0, "flapping: pause between two times; 0: it does not flap", unit="s"),
    },
    verify_examples=(
        ("one server", {"shape": "isolate"}),
        ("one server", {"shape": "one-way"}),
        ("server", {"shape": "halves"}),
        ("one broker", {"shape": "answers"}),
        ("one server", {"shape": "isolate", "on_s": 0.2, "off_s": 0.2}),
    ),
    draw=draw,
    check=check,
    check_nodes=check_nodes,
    takes_s=takes_s,
    impossible_reason=impossible_reason,
    always_cuts=always_cuts,
)


def _no_link(one: str, other: str, lost: set[str], nodes: Sequence[Node]) -> str:
    """Return the reason if no link leads from `one` to the lost nodes, or ''."""
    if _links.have_link(_targets.possible_names(one, nodes), lost):
        return ""
    return no_link_reason(one, other)


def _clients(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.role == CLIENT]


def _with_clients(
    chosen: Sequence[Node], planned: PlannedFault, nodes: Sequence[Node]
) -> tuple[Node, ...]:
    more = _clients(nodes) if planned.params["clients"] else ()
    return (*chosen, *(node for node in more if node not in chosen))


def _is_valid_list(cut: Mapping[str, Any]) -> bool:
    return any(cut.values()) and all(
        isinstance(names, list | tuple)
        and all(isinstance(name, str) and name != sink for name in names)
        for sink, names in cut.items()
    )


def _listed(cut: Mapping[str, Sequence[str]]) -> _links.Links:
    return frozenset((source, sink) for sink, sources in cut.items() for source in sources)


def _names(nodes: Sequence[Node]) -> list[str]:
    return [node.name for node in nodes]
