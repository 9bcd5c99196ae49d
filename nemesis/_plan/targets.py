"""Selectors: the nodes that a fault hits, resolved at its moment.

    master  slave  in-set  out-of-set  controller-leader     nodes with this part at the moment
    broker  controller  nameserver  client ...               a role: every node that has it; a
                                                             container of brokers is a broker, too
    server                                                   brokers and controllers
    cluster                                                  every node except the clients
    broker-2                                                 a node's name
    zone-a                                                   all nodes of the zone except clients
    one zone                                                 the same, of a random zone
    fault-0                                                  the nodes that this fault of the plan
                                                             hit
    teller                                                   the node that reported the event that
                                                             the fault waited for

A prefix `one`, `minority`, `minority-third`, `majority`, `all` or `random` takes that many of them
at random: `minority broker`, `one slave`. So does a number, `2 broker`, or all if there are fewer.
A prefix alone counts the servers. `controller but controller-leader` matches the first and not the
second; `broker in zone-a` and `client in zone-a` restrict the zone. A comma joins selectors:
`slave, controller`. A minority of one or two nodes is one, because a fault must hit a node.
`leader` and `follower` are other words for `master` and `slave`, Jepsen's `primaries` for the
masters. Roles are the system's own words: `broker`, `server`, `sentinel`.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from types import MappingProxyType

from harness.contracts import CLIENT, ClusterState, Node
from harness.errors import BadRequest, UnknownName
from harness.run.broker_sets import CONTAINER, data_role
from harness.text.parsing import parse_integer

COUNTS = ("one", "minority", "minority-third", "majority", "all", "random")
LEADER = "controller-leader"
PARTS = ("master", "slave", "in-set", "out-of-set", LEADER)
GROUPS = ("server", "cluster")
TELLER, FAULT = "teller", "fault-"
BUT, IN = " but ", " in "
ZONE = "zone"
SYNONYMS = {
    "leader": "master",
    "primary": "master",
    "primaries": "master",
    "follower": "slave",
    "followers": "slave",
    "secondaries": "slave",
}
BROKER, CONTROLLER = "broker", "controller"
NAMESERVER = "nameserver"  # it has no replica, so `minority` does not count it

NamesByWord = Mapping[str, Collection[str]]  # nodes meant by `teller` and `fault-0`
NO_NAMES: NamesByWord = MappingProxyType({})


def resolve(
    selector: str,
    nodes: Sequence[Node],
    standing: ClusterState,
    rng: Random,
    spare: Collection[str] = (),
    names: NamesByWord = NO_NAMES,
) -> tuple[Node, ...]:
    """Return the nodes that a selector means now, in the order of `nodes`; empty if there are none.

    Nodes to `spare` are not chosen: `one broker` is one of the others, and `minority` is as many as
    otherwise, if so many are left. `names` are those that the plan has words for.
    """
    chosen: set[str] = set()
    for term in _terms(selector):
        count, phrase = _split(term)
        phrases: Sequence[str] = (phrase,)
        if phrase == ZONE:
            zones = sorted(_zones(nodes))
            count, phrases = "all", [_zone(name) for name in _sample(count, len(zones), zones, rng)]
        candidates = [
            node.name
            for node in nodes
            if any(_matches(node, each, standing, names) for each in phrases)
        ]
        free = [name for name in candidates if name not in spare]
        chosen.update(_sample(count, len(candidates), free, rng))
    return tuple(node for node in nodes if node.name in chosen)


def check(selector: str, nodes: Sequence[Node], words: Collection[str] = ()) -> None:
    """Raise UnknownName or BadRequest if the selector can never match a node.

    `words` are further words with a meaning at this position of the plan.
    """
    if not all(term.strip() for term in selector.split(",")):
        what = (
            f"{selector!r} names no node before or after a comma"
            if _terms(selector)
            else ("a selector is empty")
        )
        raise BadRequest(f"{what}; name a target such as 'master' or 'one broker'")
    for term in _terms(selector):
        for who in _words(term):
            if who not in known_words(nodes) and who not in words:
                raise UnknownName("target", who, (*known_words(nodes), *words, *COUNTS))
        for place in _split(term)[1].split(IN)[1:]:
            if (zone := place.split(BUT)[0]) not in map(_zone, _zones(nodes)):
                raise BadRequest(f"{term!r}: {zone!r} is not a zone; write 'broker in zone-a'")
        if not possible_names(term, nodes):
            raise BadRequest(f"{term!r} matches no node; name nodes that exist")
        _check_number(term, nodes)
        if ZONE in _words(term) and (_split(term)[1] != ZONE or term == ZONE):
            raise BadRequest(f"{term!r} must read like 'one zone', 'minority zone' or 'zone-a'")


def _check_number(term: str, nodes: Sequence[Node]) -> None:
    """Raise BadRequest if there are never that many. Parts are not known beforehand."""
    count, who = _split(term)
    if not count.isdecimal():
        return
    if parse_integer(count) < 1:
        raise BadRequest(f"{term!r} hits no node; write 1 or more")
    if who != ZONE and not is_fixed(who, nodes):
        return
    there = len(_zones(nodes) if who == ZONE else fixed_nodes(who, nodes))
    if int(count) > there:
        raise BadRequest(f"{term!r} asks for {count}, and there are {there}; write a lower number")


def is_fixed(selector: str, nodes: Sequence[Node]) -> bool:
    """Return whether it always means the same nodes: no chance, parts or words of a plan."""
    return all(
        set(_words(term)) <= {*known_words(nodes)} - {*PARTS, ZONE}
        and _min_count(term, nodes) == len(possible_names(term, nodes))
        for term in _terms(selector)
    )


def fixed_nodes(selector: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes of a selector that `is_fixed`."""
    return resolve(selector, nodes, ClusterState(), Random(0))


def possible_names(selector: str, nodes: Sequence[Node]) -> set[str]:
    """Return the names of all nodes that it may mean at some moment.

    `controller-leader` is a controller, unless none leads the others, and any other part is a
    broker. In a system without these roles every node except a client may have the part. Where
    only one node may, it is the master and nothing is its slave.
    """
    phrases = [_split(term)[1] for term in _terms(selector)]
    roles = {node.role for node in nodes} - {CLIENT}
    if sum(node.role in _roles_for("slave", roles) for node in nodes) == 1:
        phrases = [each for each in phrases if each.split()[0] != "slave"]
    return {node.name for node in nodes if any(_may_match(node, each, roles) for each in phrases)}


def _roles_for(part: str, roles: Collection[str]) -> Collection[str]:
    """Return those of the existing roles that may have this part."""
    for usual in (CONTROLLER,) if part == LEADER else (BROKER, CONTAINER):
        if usual in roles:
            return (usual,)
    return roles


def max_count(selector: str, nodes: Sequence[Node]) -> int:
    """Return the maximum number of nodes that it may mean."""
    candidates = possible_names(selector, nodes)
    return min(len(candidates), sum(_max_count(term, nodes) for term in _terms(selector)))


def min_count(selector: str, nodes: Sequence[Node]) -> int:
    """Return the minimum number of nodes that it means if none is spared; at least 1 for a part."""
    counts = (_min_count(term, nodes) for term in _terms(selector))
    return max(len(certain_names(selector, nodes)), *counts)


def certain_names(selector: str, nodes: Sequence[Node]) -> set[str]:
    """Return the names that it means at every moment; empty if that depends on the moment."""
    if not is_fixed(selector, nodes):
        return set()
    return {node.name for node in fixed_nodes(selector, nodes)}


def data_nodes(nodes: Sequence[Node]) -> str:
    """Return the selector of all nodes that hold the data."""
    return data_role({node.name: node.role for node in nodes})


def same_nodes(one: str, other: str) -> bool:
    """Return whether both mean the same at any moment: the same words, and no chance."""
    terms = {*_terms(one)}
    return terms == {*_terms(other)} and all(_split(term)[0] == "all" for term in terms)


def includes(node: Node, selector: str, names: NamesByWord) -> bool:
    """Return whether a selector without chance and parts means the node."""
    return any(_matches(node, _split(term)[1], ClusterState(), names) for term in _terms(selector))


def check_fixed(selector: str, nodes: Sequence[Node], words: Collection[str]) -> None:
    """Raise BadRequest if the meaning of the selector depends on the moment or on chance."""
    check(selector, nodes, words)
    for term in _terms(selector):
        if _counts(term.partition(" ")[0]) or not set(_words(term)).isdisjoint(PARTS):
            raise BadRequest(
                f"'by {selector}' depends on current roles or on chance; name a role, a node or"
                " fault-0"
            )


def reaches_clients(selector: str, nodes: Sequence[Node]) -> bool:
    """Return whether the selector names clients."""
    clients = {node.name for node in nodes if node.role == CLIENT} | {CLIENT}
    return any(_words(term)[0] in clients for term in _terms(selector))


def known_words(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return every word that a selector may contain, except the counts."""
    roles = tuple(dict.fromkeys(role for node in nodes for role in _roles_of(node)))
    zones = tuple(map(_zone, sorted(_zones(nodes))))
    places = (*zones, ZONE) if zones else ()
    return PARTS + GROUPS + roles + tuple(node.name for node in nodes) + places


def part(node: Node, standing: ClusterState) -> str:
    """Return the part that a node has now, else its role."""
    for name in ("master", "slave", "controller-leader"):
        if _matches(node, name, standing, NO_NAMES):
            return name
    return node.role


def _terms(selector: str) -> tuple[str, ...]:
    return tuple(
        " ".join(SYNONYMS.get(word, word) for word in term.split())
        for term in selector.split(",")
        if term.strip()
    )


def _words(term: str) -> list[str]:
    """Return the words of a term without the count: `broker in zone-a but master` has three."""
    return [word for phrase in _split(term)[1].split(BUT) for word in phrase.split(IN)]


def _zones(nodes: Sequence[Node]) -> set[str]:
    return {node.zone for node in nodes if node.zone}


def _zone(name: str) -> str:
    return f"{ZONE}-{name}"


def _split(term: str) -> tuple[str, str]:
    """Split `minority broker` into count and phrase.

    A phrase alone means all of it, a count alone means servers.
    """
    first, _, rest = term.partition(" ")
    if _counts(first):
        return first, rest or "server"
    return "all", term


def _counts(word: str) -> bool:
    return word in COUNTS or word.isdecimal()


def _matches(node: Node, phrase: str, standing: ClusterState, names: NamesByWord) -> bool:
    """Return whether `broker in zone-a but master` means the node."""
    wanted, *others = phrase.split(BUT)
    return _is_in(node, wanted, standing, names) and not any(
        _is_in(node, other, standing, names) for other in others
    )


def _is_in(node: Node, phrase: str, standing: ClusterState, names: NamesByWord) -> bool:
    """Return whether `broker in zone-a` means the node; the zone is optional."""
    word, *zones = phrase.split(IN)
    return _is(node, word, standing, names) and all(zone == _zone(node.zone) for zone in zones)


def _is(node: Node, word: str, standing: ClusterState, names: NamesByWord) -> bool:
    match word:
        case "master":
            return node.name in standing.masters.values()
        case "slave":
            return node.name in standing.slaves
        case "in-set":
            return node.name in standing.in_set
        case "out-of-set":
            return node.name in standing.out_of_set
        case "controller-leader":
            return node.name == standing.controller_leader
        case "server":
            return node.role not in (CLIENT, NAMESERVER)
        case "cluster":
            return node.role != CLIENT
        case _:
            if node.role != CLIENT and node.zone and word == _zone(node.zone):
                return True
            return word in (node.name, *_roles_of(node)) or node.name in names.get(word, ())


def _roles_of(node: Node) -> tuple[str, ...]:
    return (node.role, BROKER) if node.role == CONTAINER else (node.role,)


def _may_match(node: Node, phrase: str, roles: Collection[str]) -> bool:
    """Return whether the phrase may mean the node at some moment."""
    wanted, *others = phrase.split(BUT)
    part, *zones = wanted.split(IN)
    if wanted in others or any(_is_in(node, other, ClusterState(), NO_NAMES) for other in others):
        return False
    if any(zone != _zone(node.zone) for zone in zones):
        return False
    if part == ZONE:
        return node.role != CLIENT and bool(node.zone)
    if part in PARTS:
        return node.role in _roles_for(part, roles) and (part != LEADER or node.leads_controllers)
    return part == TELLER or part.startswith(FAULT) or _is(node, part, ClusterState(), NO_NAMES)


def _max_count(term: str, nodes: Sequence[Node]) -> int:
    count, phrase = _split(term)
    available = len(possible_names(term, nodes))
    if count.isdecimal() and phrase != ZONE:
        return min(int(count), available)
    if phrase == ZONE or count == "random":
        return available
    return len(_sample(count, available, [phrase] * available, Random(0)))


def _min_count(term: str, nodes: Sequence[Node]) -> int:
    count, _ = _split(term)
    if count == "random" or not set(_words(term)).isdisjoint({*PARTS, ZONE}):
        return 1
    return _max_count(term, nodes)


def _sample(count: str, of: int, free: Sequence[str], rng: Random) -> Sequence[str]:
    if not free or count == "all":
        return free
    if count.isdecimal():
        return rng.sample(free, min(int(count), len(free)))
    sizes = {
        "one": 1,
        "minority": max(1, (of - 1) // 2),
        "minority-third": max(1, (of - 1) // 3),
        "majority": of // 2 + 1,
        "random": rng.randint(1, of),
    }
    return rng.sample(free, min(sizes[count], len(free)))
