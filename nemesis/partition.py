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
from random import Random
from typing import Any

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    CLIENT,
    CUT,
    Effects,
    FaultPlugin,
    Node,
    Param,
    PlannedFault,
    Scene,
)
from harness.errors import BadRequest, UnknownName
from nemesis._network import shapes as _links
from nemesis._network.link_fault import FlappingFault, LinkFault, no_link_reason, reachable_names
from nemesis._plan import targets as _targets

DIVIDING: Mapping[str, Callable[[Sequence[str], Random], _links.Links]] = {
    "halves": _links.halves,
    "majority": _links.majority,
    "one": _links.one,
    "bridge": _links.bridge,
    "ring": _links.ring,
}
Resolve = Callable[[str], Sequence[Node]]  # from a selector to its nodes

MIN_NODES = {"bridge": 3, "majority": 3, "ring": 4}  # other shapes: 2
SHAPES = (*DIVIDING, "isolate", "one-way", "answers", "between", "link", "clients", "links")
DEFAULT_FROM = {"answers": CLIENT}  # other shapes: the cluster
REQUIRED = {"between": ("a", "b"), "link": ("a", "b"), "links": ("cut",)}


def check(planned: PlannedFault) -> None:
    """Raise BadRequest if the shape lacks a parameter or target."""
    shape = planned.params["shape"]
    for name in REQUIRED.get(shape, ()):
        if not planned.params[name]:
            raise BadRequest(
                f"partition of shape {shape!r} needs the parameter {name!r}", f"params.{name}"
            )
    if shape == "links" and not _is_valid_list(planned.params["cut"]):
        raise BadRequest(
            "partition of shape 'links' needs a list in `cut`, as in {broker-1 = [\"broker-2\"]};"
            " a node has no link to itself",
            "params.cut",
        )
    if shape in ("isolate", "one-way", "answers") and not planned.target:
        raise BadRequest(f"partition of shape {shape!r} needs a target, such as 'master'", "target")


def check_nodes(planned: PlannedFault, nodes: Sequence[Node]) -> None:
    """Raise UnknownName if `cut` lists a node that does not exist."""
    if planned.params["shape"] == "links":
        names = [node.name for node in nodes]
        for name in sorted({name for link in _listed(planned.params["cut"]) for name in link}):
            if name not in names:
                raise UnknownName("node", name, names, "params.cut")


def hopeless(planned: PlannedFault, nodes: Sequence[Node]) -> str:
    """Return why it can never cut a link, as far as the words tell, or ''."""
    shape, params = planned.params["shape"], planned.params
    if shape in DIVIDING:
        return _too_few(shape, planned, nodes)
    if shape == "links":
        return ""
    if shape in ("between", "link"):
        one, other = params["a"], params["b"]
        lost = _targets.possible_names(other, nodes)
    elif shape == "clients":
        one, other = planned.target or "broker", CLIENT
        lost = _targets.possible_names(other, nodes)
    else:
        one, other = planned.target, params["from"] or DEFAULT_FROM.get(shape, "cluster")
        lost = reachable_names(other, params["clients"], nodes)
        lost -= _targets.certain_names(one, nodes)  # the victims keep their links to each other
        if _targets.same_nodes(one, other) and not params["clients"]:
            lost = set()
    if _links.have_link(_targets.possible_names(one, nodes), lost):
        return ""
    return no_link_reason(one, other)


def _too_few(shape: str, planned: PlannedFault, nodes: Sequence[Node]) -> str:
    selector = planned.target or "server"
    needed, available = MIN_NODES.get(shape, 2), _targets.max_count(selector, nodes)
    if planned.params["clients"]:
        available += sum(node.role == CLIENT for node in nodes)
    if available >= needed:
        return ""
    return (
        f"hits nothing: shape {shape!r} divides at least {needed} nodes, and {selector!r} means"
        f" {available} at most; name more, or choose another shape"
    )


def surely_cut(planned: PlannedFault, nodes: Sequence[Node]) -> _links.Links:
    """Return the links that it always cuts; none if that depends on chance or the moment."""
    named = (planned.target, *(planned.params[name] for name in ("from", "a", "b")))
    if planned.params["shape"] in DIVIDING:
        return frozenset()
    if not all(_targets.is_fixed(selector, nodes) for selector in named if selector):
        return frozenset()
    _, links = _select(
        planned, nodes, lambda selector: _targets.fixed_nodes(selector, nodes), Random(0)
    )
    return links


def takes_s(planned: PlannedFault, _nodes: Sequence[Node]) -> float:
    """Return the time of two cuts and the pause between them, if it flaps."""
    params = planned.params
    return 2 * params["on_s"] + params["off_s"] if params["off_s"] else 0.0


def drawn(random: Random, targets: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
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


def fault(planned: PlannedFault, scene: Scene) -> LinkFault:
    nodes, links = _select(planned, scene.bed.nodes, scene.aim, scene.random)
    effects = dict.fromkeys(sorted(links), CUT)
    on_s, off_s = planned.params["on_s"], planned.params["off_s"]
    if off_s:
        return FlappingFault(scene, nodes, effects, on_s, off_s)
    return LinkFault(scene, nodes, effects)


PLUGIN = FaultPlugin(
    fault=fault,
    # two nodes may serve at the same time, and what one of them acknowledged may be dropped
    effects=Effects(may_break=ANY_BUT_INTEGRITY),
    needs=frozenset({"links"}),
    params={
        "shape": Param("isolate", "what is cut from what", among=SHAPES),
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
    shown=(
        ("one server", {"shape": "isolate"}),
        ("one server", {"shape": "one-way"}),
        ("server", {"shape": "halves"}),
        ("one broker", {"shape": "answers"}),
        ("one server", {"shape": "isolate", "on_s": 0.2, "off_s": 0.2}),
    ),
    drawn=drawn,
    check=check,
    check_nodes=check_nodes,
    takes_s=takes_s,
    hopeless=hopeless,
    surely_cut=surely_cut,
)


def _select(
    planned: PlannedFault, nodes: Sequence[Node], aim: Resolve, random: Random
) -> tuple[Sequence[Node], _links.Links]:
    """Return the nodes that it hits, and the links that it cuts."""
    shape, clients = planned.params["shape"], [node for node in nodes if node.role == CLIENT]
    if shape in DIVIDING:
        divided = _with_clients(aim(planned.target or "server"), planned, clients)
        if len(divided) < MIN_NODES.get(shape, 2):
            return divided, frozenset()
        return divided, DIVIDING[shape](_names(divided), random)
    if shape in ("between", "link"):
        a, b = aim(planned.params["a"]), aim(planned.params["b"])
        cut = _links.between if shape == "between" else _links.one_way
        return (*a, *b), cut(_names(a), _names(b))
    if shape == "links":
        links = _listed(planned.params["cut"])
        return [node for node in nodes if any(node.name in link for link in links)], links
    victims = aim(planned.target or "broker")
    if shape == "clients":
        return victims, _links.between(_names(victims), _names(clients))
    whose = planned.params["from"] or DEFAULT_FROM.get(shape, "cluster")
    return victims, _from_victims(victims, _with_clients(aim(whose), planned, clients), planned)


def _from_victims(
    victims: Sequence[Node], others: Sequence[Node], planned: PlannedFault
) -> _links.Links:
    """Return the links between victims and others that are cut. The victims keep each other."""
    shape = planned.params["shape"]
    inner = _names(victims)
    outer = [name for name in _names(others) if name not in inner]
    if shape == "isolate":
        return _links.between(inner, outer)
    if shape == "answers" or planned.params["direction"] == "out":
        return _links.one_way(inner, outer)
    return _links.one_way(outer, inner)


def _with_clients(
    nodes: Sequence[Node], planned: PlannedFault, clients: Sequence[Node]
) -> tuple[Node, ...]:
    more = clients if planned.params["clients"] else ()
    return (*nodes, *(node for node in more if node not in nodes))


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
