"""Selectors: whom a fault hits, resolved at its moment.

    master  slave  in-set  out-of-set  controller-leader     a part somebody plays right now
    broker  controller  nameserver  client ...               a role: every node that has it
    server                                                   brokers, controllers: no nameserver
    cluster                                                  every node but the clients
    broker-2                                                 a node's name
    zone-a                                                   all nodes of the zone but clients
    one zone                                                 the same, of a zone drawn by lot
    fault-0                                                  whom that fault of the plan hit
    teller                                                   who told the event that the fault
                                                             waited for

One of `one`, `minority`, `minority-third`, `majority`, `all`, `random` before it takes that many of
them by lot: `minority broker`, `one slave`; so does a number, `2 broker`, or as many as there are
when fewer play the part. Alone it counts among the servers. `controller but controller-leader`
are those who are the one and not the other; `broker in zone-a` and `client in zone-a` stand there.
A comma joins selectors: `slave, controller`. A minority of one or two is still one, since a fault
must hit somebody. Jepsen's `primaries` are the masters.
"""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from types import MappingProxyType

from harness.contracts import CLIENT, Node, Standing
from harness.errors import BadRequest, UnknownName
from harness.text.parsing import whole

COUNTS = ("one", "minority", "minority-third", "majority", "all", "random")
LEADER = "controller-leader"
PARTS = ("master", "slave", "in-set", "out-of-set", LEADER)
GROUPS = ("server", "cluster")
TELLER, FAULT = "teller", "fault-"
BUT, IN = " but ", " in "
ZONE = "zone"
SYNONYMS = {"primary": "master", "primaries": "master", "secondaries": "slave"}
BROKER, CONTROLLER = "broker", "controller"
NAMESERVER = "nameserver"  # it holds no replica, so `minority` does not count it


Met = Mapping[str, Collection[str]]
NOBODY: Met = MappingProxyType({})


def resolve(
    selector: str,
    nodes: Sequence[Node],
    standing: Standing,
    rng: Random,
    spare: Collection[str] = (),
    met: Met = NOBODY,
) -> tuple[Node, ...]:
    """The nodes a selector means now, in the order of `nodes`; empty when nobody plays the part.

    The lot does not fall on nodes to spare: `one broker` is one that is left, and `minority` is
    as many as ever, if so many are left. `met`: the names that the plan has words for: `teller`,
    `fault-0`.
    """
    chosen: set[str] = set()
    for term in _terms(selector):
        count, who = _split(term)
        if who == ZONE:
            zones = sorted(_zones(nodes))
            count, who = "all", ", ".join(map(_zone, _some(count, len(zones), zones, rng)))
        candidates = [node.name for node in nodes if _is_any(node, who, standing, met)]
        free = [name for name in candidates if name not in spare]
        chosen.update(_some(count, len(candidates), free, rng))
    return tuple(node for node in nodes if node.name in chosen)


def check(selector: str, nodes: Sequence[Node], words: Collection[str] = ()) -> None:
    """UnknownName or BadRequest when the selector can never mean anybody. `words`: more of them,
    which mean somebody at this place of the plan."""
    if not all(term.strip() for term in selector.split(",")):
        what = (
            f"{selector!r} names no node before or after a comma"
            if _terms(selector)
            else ("a selector is empty")
        )
        raise BadRequest(f"{what}; name a target such as 'master' or 'one broker'")
    for term in _terms(selector):
        for who in _words(term):
            if who not in known(nodes) and who not in words:
                raise UnknownName("target", who, (*known(nodes), *words, *COUNTS))
        for place in _split(term)[1].split(IN)[1:]:
            if (zone := place.split(BUT)[0]) not in map(_zone, _zones(nodes)):
                raise BadRequest(f"{term!r}: {zone!r} is not a zone; write 'broker in zone-a'")
        if not possible(term, nodes):
            raise BadRequest(f"{term!r} matches no node; name nodes that exist")
        _check_number(term, nodes)
        if ZONE in _words(term) and (_split(term)[1] != ZONE or term == ZONE):
            raise BadRequest(f"{term!r} must read like 'one zone', 'minority zone' or 'zone-a'")


def _check_number(term: str, nodes: Sequence[Node]) -> None:
    """BadRequest when so many are never there. Who plays a part is not known beforehand."""
    count, who = _split(term)
    if not count.isdecimal():
        return
    if whole(count) < 1:
        raise BadRequest(f"{term!r} hits no node; write 1 or more")
    if who != ZONE and not lasts(who, nodes):
        return
    there = len(_zones(nodes) if who == ZONE else always(who, nodes))
    if int(count) > there:
        raise BadRequest(f"{term!r} asks for {count}, and there are {there}; write a lower number")


def lasts(selector: str, nodes: Sequence[Node]) -> bool:
    """Whether it means the same nodes at every moment: neither lot nor part nor words of a plan."""
    return all(
        set(_words(term)) <= {*known(nodes)} - {*PARTS, ZONE}
        and _least(term, nodes) == len(possible(term, nodes))
        for term in _terms(selector)
    )


def always(selector: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Whom a selector that lasts means."""
    return resolve(selector, nodes, Standing(), Random(0))


def possible(selector: str, nodes: Sequence[Node]) -> set[str]:
    """Names of all that it may mean at some moment. Who leads is a controller, and any other part
    is a broker's; where there are none, anybody may play it but a client."""
    whom = [_split(term)[1] for term in _terms(selector)]
    there = {node.role for node in nodes} - {CLIENT}
    return {node.name for node in nodes if any(_may_be(node, who, there) for who in whom)}


def _players(part: str, there: Collection[str]) -> Collection[str]:
    """Of the roles that there are those that may play it."""
    usual = CONTROLLER if part == LEADER else BROKER
    return (usual,) if usual in there else there


def most(selector: str, nodes: Sequence[Node]) -> int:
    """How many it may mean at most."""
    there = possible(selector, nodes)
    return min(len(there), sum(_most(term, nodes) for term in _terms(selector)))


def least(selector: str, nodes: Sequence[Node]) -> int:
    """How many it means at least, while nobody is spared; of a part somebody plays it."""
    each = (_least(term, nodes) for term in _terms(selector))
    return max(len(sure(selector, nodes)), *each)


def sure(selector: str, nodes: Sequence[Node]) -> set[str]:
    """Names of those that it means at every moment; nobody where that depends on it."""
    return {node.name for node in always(selector, nodes)} if lasts(selector, nodes) else set()


def same(one: str, other: str) -> bool:
    """Whether both mean the same at any one moment: in the same words, and without a lot."""
    terms = {*_terms(one)}
    return terms == {*_terms(other)} and all(_split(term)[0] == "all" for term in terms)


def is_among(node: Node, selector: str, met: Met) -> bool:
    """Whether a node is meant by a selector that knows neither lots nor parts."""
    return any(_is(node, _split(term)[1], Standing(), met) for term in _terms(selector))


def check_lasting(selector: str, nodes: Sequence[Node], words: Collection[str]) -> None:
    """BadRequest when whom the selector means depends on the moment, or on luck."""
    check(selector, nodes, words)
    for term in _terms(selector):
        if _counts(term.partition(" ")[0]) or not set(_words(term)).isdisjoint(PARTS):
            raise BadRequest(
                f"'by {selector}' asks who plays which part, or for a lot; name a role, a node or"
                " fault-0"
            )


def reaches_clients(selector: str, nodes: Sequence[Node]) -> bool:
    """Whether the selector names clients."""
    clients = {node.name for node in nodes if node.role == CLIENT} | {CLIENT}
    return any(_words(term)[0] in clients for term in _terms(selector))


def known(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Every word that may stand in a selector, but for the counts."""
    roles = tuple(dict.fromkeys(node.role for node in nodes))
    zones = tuple(map(_zone, sorted(_zones(nodes))))
    places = (*zones, ZONE) if zones else ()
    return PARTS + GROUPS + roles + tuple(node.name for node in nodes) + places


def part(node: Node, standing: Standing) -> str:
    """The part a node plays now, else its role."""
    for name in ("master", "slave", "controller-leader"):
        if _is(node, name, standing, NOBODY):
            return name
    return node.role


def _terms(selector: str) -> tuple[str, ...]:
    return tuple(
        " ".join(SYNONYMS.get(word, word) for word in term.split())
        for term in selector.split(",")
        if term.strip()
    )


def _words(term: str) -> list[str]:
    """Whom it names, without the count: `broker in zone-a but master` names three."""
    return [who for each in _split(term)[1].split(BUT) for who in each.split(IN)]


def _zones(nodes: Sequence[Node]) -> set[str]:
    return {node.zone for node in nodes if node.zone}


def _zone(name: str) -> str:
    return f"{ZONE}-{name}"


def _split(term: str) -> tuple[str, str]:
    """Count and whom: `minority broker`; a bare name means all of it, a bare count servers."""
    first, _, rest = term.partition(" ")
    if _counts(first):
        return first, rest or "server"
    return "all", term


def _counts(word: str) -> bool:
    return word in COUNTS or word.isdecimal()


def _is_any(node: Node, terms: str, standing: Standing, met: Met) -> bool:
    return any(_is(node, who, standing, met) for who in terms.split(", "))


def _is(node: Node, who: str, standing: Standing, met: Met) -> bool:
    wanted, *others = who.split(BUT)
    return _stands(node, wanted, standing, met) and not any(
        _stands(node, other, standing, met) for other in others
    )


def _stands(node: Node, who: str, standing: Standing, met: Met) -> bool:
    """Plays the part, in the zone if one is named."""
    part, *zones = who.split(IN)
    return _plays(node, part, standing, met) and all(zone == _zone(node.zone) for zone in zones)


def _plays(node: Node, who: str, standing: Standing, met: Met) -> bool:
    match who:
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
            if node.role != CLIENT and node.zone and who == _zone(node.zone):
                return True
            return who in (node.role, node.name) or node.name in met.get(who, ())


def _may_be(node: Node, who: str, there: Collection[str]) -> bool:
    """Whether some moment makes the node one of them. What is certain takes it away."""
    wanted, *others = who.split(BUT)
    part, *zones = wanted.split(IN)
    if wanted in others or any(_stands(node, other, Standing(), NOBODY) for other in others):
        return False
    if any(zone != _zone(node.zone) for zone in zones):
        return False
    if part == ZONE:
        return node.role != CLIENT and bool(node.zone)
    if part in PARTS:
        return node.role in _players(part, there)
    return part == TELLER or part.startswith(FAULT) or _plays(node, part, Standing(), NOBODY)


def _most(term: str, nodes: Sequence[Node]) -> int:
    count, who = _split(term)
    there = len(possible(term, nodes))
    if count.isdecimal() and who != ZONE:
        return min(int(count), there)
    if who == ZONE or count == "random":
        return there
    return len(_some(count, there, [who] * there, Random(0)))


def _least(term: str, nodes: Sequence[Node]) -> int:
    count, _ = _split(term)
    if count == "random" or not set(_words(term)).isdisjoint({*PARTS, ZONE}):
        return 1
    return _most(term, nodes)


def _some(count: str, of: int, free: Sequence[str], rng: Random) -> Sequence[str]:
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
