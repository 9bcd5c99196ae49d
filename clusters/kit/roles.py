"""Which node has which role, by what all nodes say."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from clusters.kit.service import View
from harness.contracts import ClusterState, Node


def cluster_state(
    name: str, everything: Mapping[str, View | None], arbiters: Collection[str] = ()
) -> ClusterState:
    """Return the roles of all nodes. Of several that call themselves leader, or that arbiters name,
    the one of the highest term leads."""
    views = {node: view for node, view in everything.items() if node not in arbiters}
    there = {node: view for node, view in views.items() if view is not None}
    named = [view for node in arbiters if (view := everything[node])]
    leads = [(v.term, node, v.own) for node, v in there.items() if v.leader and v.leader == v.own]
    claims = [(v.term, v.leader, v.leader) for v in named if v.leader in views]
    silent = named and all(view.defers for view in named)  # none of them names a leader
    if not (found := claims if arbiters and not silent else leads):
        return ClusterState(
            slaves=tuple(views),
            controller_leader=_arbiters_leader(everything),
            serving=_serving(everything),
        )
    term, leader, own = max(found, key=lambda claim: claim[0])
    agree = [view for view in named if (view.leader == own or view.defers) and view.ready]
    known = [v.members for v in named if (v.term, v.leader) == (term, leader) and v.members]
    members = known[0] if known else views
    stale = [node for _, node, _ in leads if node != leader]
    masters, epochs, old = {name: leader}, {name: term}, set()
    if groups := {group for view in there.values() for group in view.leads}:
        masters, epochs = _leaders_of(groups, there)
        old = {n for n, v in there.items() if any(v.leads[g] < epochs[g] for g in v.leads)}
        stale = sorted(old)
    in_step = (node for node, v in there.items() if v.leader == own and v.ready)
    follow = tuple(node for node in in_step if node in members and node not in old)
    return ClusterState(
        masters=masters,
        slaves=_followers(tuple(views), masters),
        in_set=follow,
        out_of_set=tuple(node for node in views if node not in follow),
        controller_leader=_arbiters_leader(everything),
        epochs={group: term for group, term in epochs.items() if term >= 0},
        redundant=len(follow) + len(agree) == len(everything),
        serving=_serving(everything),
        detail={"stale_leaders": stale} if stale else {},
    )


def with_quorum(
    name: str, everything: Mapping[str, View | None], voters: Collection[str]
) -> ClusterState:
    """Return the roles of all nodes where `voters` elect a leader of their own, and the other nodes
    lead parts of the data."""
    quorum = cluster_state(name, {node: everything[node] for node in voters})
    views = {node: view for node, view in everything.items() if node not in voters}
    there = {node: view for node, view in views.items() if view is not None}
    masters, epochs = _leaders_of({group for v in there.values() for group in v.leads}, there)
    stale = sorted(n for n, v in there.items() if any(v.leads[g] < epochs[g] for g in v.leads))
    follow = tuple(node for node, v in there.items() if v.ready and node not in stale)
    return ClusterState(
        masters=masters,
        slaves=_followers(tuple(views), masters),
        in_set=follow,
        out_of_set=tuple(node for node in views if node not in follow),
        controller_leader=quorum.masters.get(name, ""),
        epochs=epochs,
        redundant=quorum.redundant and len(follow) == len(views),
        serving=_serving(everything),
        detail={"stale_leaders": stale} if stale else {},
    )


def _leaders_of(
    groups: Collection[str], views: Mapping[str, View]
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the leader of each group, and its term."""
    masters, epochs = {}, {}
    for group in sorted(groups):
        claims = {node: view.leads[group] for node, view in views.items() if group in view.leads}
        masters[group] = max(claims, key=lambda node: claims[node])
        epochs[group] = claims[masters[group]]
    return masters, epochs


def _followers(nodes: Sequence[str], masters: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes that lead nothing; if each leads a part of the data, those that lead the
    fewest parts, since each of them follows in the others."""
    leads = Counter(masters.values())
    fewest = min(leads[node] for node in nodes) if len(masters) > 1 else 0
    return tuple(node for node in nodes if leads[node] <= fewest)


def _arbiters_leader(views: Mapping[str, View | None]) -> str:
    """Return the node that leads the arbiters; of several that say so, the one of the highest
    term."""
    found = [(view.term, node) for node, view in views.items() if view and view.leads_arbiters]
    return max(found)[1] if found else ""


def _serving(views: Mapping[str, View | None]) -> tuple[str, ...]:
    return tuple(node for node, v in views.items() if v and v.ready and (v.leader or v.defers))


def lacking(state: ClusterState, nodes: Sequence[Node], views: Mapping[str, View | None]) -> str:
    """Say why a cluster does not serve: nodes that do not, or no leader."""
    waiting = [node.name for node in nodes if node.name not in state.serving]
    named = {view.leader for view in views.values() if view and view.leader}
    owns = [view.own for view in views.values() if view]
    if named and named.isdisjoint(owns):
        return (
            f"its nodes name {', '.join(sorted(map(repr, named)))} as the leader, and none of them "
            f"calls itself that (View.own: {', '.join(map(repr, owns))})"
        )
    if waiting:
        return f"{', '.join(waiting)} did not answer as a member that serves"
    return "its nodes do not agree on a leader" if state.masters else "it has no leader"
