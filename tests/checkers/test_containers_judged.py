"""Histories of containers, nodes that are master of one broker set and slave of another."""

from typing import Any

import pytest

from checkers import invariants
from checkers._messages.excused_rows import _views
from checkers._run.leader_terms import set_of_node
from checkers.replicas import _epochs_differ
from clusters.systems.flotilla.event_laws import InnerBrokers
from clusters.systems.flotilla.law_state import Law
from harness.history.faults_and_events import ClusterEvent
from harness.history.roles import role_spans
from harness.run.broker_sets import broker_sets_of_nodes, data_role

S = 1_000_000_000
ONE, TWO = "container-1", "container-2"
NAMES = {
    "roles": {"nameserver-1": "nameserver", "controller-1": "controller", ONE: "container"},
    "sets": {name: {"nodes": [ONE, TWO], "full": 2, "keys": []} for name in ("set-1", "set-2")},
}


def event(at: float, node: str, kind: str, **fields: Any) -> ClusterEvent:
    return ClusterEvent(int(at * S), node, kind, fields)


def role(at: float, node: str, inner: str, role: str, epoch: int) -> ClusterEvent:
    number = 1 if role == "master" else 2
    fields = {"brokerName": inner, "brokerId": number, "masterId": 1}
    return event(at, node, "role", inner=inner, role=role, epoch=epoch, **fields)


CROSS = [
    role(1, ONE, "set-1", "master", 1),
    role(1, ONE, "set-2", "slave", 1),
    role(1, TWO, "set-1", "slave", 1),
    role(1, TWO, "set-2", "master", 1),
]


def test_masters_of_two_sets_share_no_epoch() -> None:
    """Each set numbers its epochs; without elections only the roles name the sets."""
    assert not invariants.judge(CROSS, ()).findings
    alone = [event for event in CROSS if event.fields["inner"] == "set-1"]
    second = role(2, TWO, "set-1", "master", 1)
    assert [f.code for f in invariants.judge([*alone, second], ()).findings] == ["ONE_MASTER"]


@pytest.mark.parametrize(("other", "count"), [("set-1", 1), ("set-2", 0)])
def test_epochs_are_compared_inside_a_set(other: str, count: int) -> None:
    starts = [
        event(2, ONE, "epoch", inner="set-1", epoch=2, start=100),
        event(3, TWO, "epoch", inner=other, epoch=2, start=200),
    ]
    assert len(list(_epochs_differ([*CROSS, *starts]))) == count


def test_a_container_belongs_to_no_single_set() -> None:
    """Nor do its views of SyncStateSets mix; of its data it is a holder in each set."""
    assert set_of_node(CROSS) == {}
    assert broker_sets_of_nodes(NAMES)[ONE] == {"set-1", "set-2"}
    assert data_role(NAMES["roles"]) == "container"
    nodes = {("set-1", 1): ONE, ("set-1", 2): TWO, ("set-2", 1): TWO, ("set-2", 2): ONE}
    views = _views(
        [
            event(2, ONE, "set", inner="set-1", set=[1], setEpoch=2),
            event(3, ONE, "set", inner="set-2", set=[1, 2], setEpoch=3),
        ],
        nodes,
        {"set-1": {ONE, TWO}, "set-2": {ONE, TWO}},
    )
    assert views == {
        (ONE, "set-1"): [(2 * S, frozenset({ONE}))],
        (ONE, "set-2"): [(3 * S, frozenset({ONE, TWO}))],
    }


def test_each_broker_of_a_container_has_roles_of_its_own() -> None:
    """They end with the process."""
    told = [event(0, ONE, "start"), *CROSS[:2], event(5, ONE, "stop")]
    spans = [(s.node, s.role, s.begin, s.end) for s in role_spans(told, (), 9 * S)]
    assert spans == [(ONE, "master", S, 5 * S), (ONE, "slave", S, 5 * S)]


# ------------------------------------------------------------------- what containers may not do

STARTED = [{"action": "starting", "brokerName": "a"}, {"action": "started", "brokerName": "a"}]
REFUSED = {
    "action": "refused",
    "brokerName": "a",
    "why": "flotilla:a:0 is in this container already",
}
ADDED, REMOVED = {"action": "added", "brokerName": "a"}, {"action": "removed", "brokerName": "a"}


def restored(*brokers: str, gone: tuple[str, ...] = (), remembers: bool = True) -> dict[str, Any]:
    lists = {"brokers": list(brokers), "gone": list(gone)}
    return {"action": "restored", "remembers": remembers, **lists}


@pytest.mark.parametrize(
    ("events", "laws"),
    [
        ([*STARTED, REFUSED], []),
        ([*STARTED, REMOVED, REFUSED], [Law.GHOST_BROKER]),
        ([*STARTED, ADDED, restored("a")], []),
        ([*STARTED, ADDED, restored()], [Law.INNER_FORGOTTEN]),
        ([*STARTED, ADDED, restored(remembers=False)], []),
        ([*STARTED, ADDED, {"action": "removing", "brokerName": "a"}, restored()], []),
        ([*STARTED, REMOVED, restored()], [Law.INNER_FORGOTTEN]),
        ([*STARTED, REMOVED, restored(gone=("a",))], []),
        ([*STARTED, REMOVED, *STARTED, restored()], []),  # adding it was not answered yet
    ],
)
def test_a_container_remembers_what_it_answered(
    events: list[dict[str, Any]], laws: list[Law]
) -> None:
    inside = InnerBrokers()
    found = [law for fields in events for law, _ in inside.read({"storePath": "/a", **fields}, 0)]
    assert found == laws


def test_damage_to_the_disk_excuses_a_container() -> None:
    inside = InnerBrokers()
    for fields in (*STARTED, ADDED):
        assert not list(inside.read({"storePath": "/a", **fields}, 0))
    assert not list(inside.read(restored(), 1))


@pytest.mark.parametrize(("path", "laws"), [("/a", [Law.STORE_SHARED]), ("/b", [])])
def test_two_brokers_with_one_store(path: str, laws: list[Law]) -> None:
    inside = InnerBrokers()
    for fields in STARTED:
        assert not list(inside.read({"storePath": "/a", **fields}, 0))
    other = {"action": "started", "brokerName": "b", "storePath": path}
    assert [law for law, _ in inside.read(other, 0)] == laws
