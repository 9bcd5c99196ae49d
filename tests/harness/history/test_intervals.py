"""Fault windows, quiet stretches and roles: what the small tables mean."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from harness.history.faults_and_events import (
    ClusterEvent,
    FaultInterval,
    TimeWindow,
    events,
    fault_intervals,
    faults_at,
    in_force,
    quiet_windows,
)
from harness.history.reader import EVENTS, FAULTS
from harness.history.roles import (
    RoleSpan,
    SetChange,
    catch_up_times,
    election_count,
    hold_times,
    role_spans,
    set_change_count,
    set_changes_of,
)


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    absent = dict.fromkeys(FAULTS.names)
    return pa.Table.from_pylist([absent | row for row in rows], schema=FAULTS)


def test_the_last_row_of_a_fault_counts() -> None:
    """A fault is recorded stage by stage; broken JSON is kept, not fatal."""
    table = rows_of(
        {"id": 1, "kind": "kill", "state": "planned"},
        {"id": 0, "kind": "pause", "targets": json.dumps({"slave": ["b", "a"], "x": ["a"]})},
        {"id": 1, "kind": "kill", "state": "installed", "applied": 7, "params": "no json"},
    )
    pause, kill = fault_intervals(table)
    assert pause.names == ("b", "a")
    assert pause.label == "pause on b, a"
    assert (kill.state, kill.applied, kill.params) == ("installed", 7, {"value": "no json"})


def test_events_come_in_one_order() -> None:
    """Equal times of several nodes have an order too, whatever the files' order was."""
    rows = [
        {"t": 2, "node": "a", "kind": "x", "fields": "{}"},
        {"t": 1, "node": "c", "kind": "w", "fields": '{"n": 2}'},
        {"t": 1, "node": "b", "kind": "x", "fields": '{"n": 1}'},
    ]
    there = events(pa.Table.from_pylist(rows, schema=EVENTS))
    back = events(pa.Table.from_pylist(rows[::-1], schema=EVENTS))
    assert there == back
    assert [e.fields.get("n") for e in there] == [1, 2, None]


def test_what_a_node_tells_at_one_instant_stays_as_it_was_told() -> None:
    """A nameserver that was paused reads two registrations at once: the newer master, whose address
    comes first in the alphabet, is the one that it shows from then on."""
    routes = [
        {"masterAddr": addr, "stateVersion": e} for addr, e in (("10.0.0.7", 6), ("10.0.0.5", 7))
    ]
    kinds = [("route", routes[0]), ("min-broker-id", {}), ("route", routes[1])]
    rows = [
        {"t": 5, "node": "nameserver-1", "kind": kind, "fields": json.dumps(fields)}
        for kind, fields in kinds
    ]
    told = events(pa.Table.from_pylist(rows, schema=EVENTS))
    assert [(e.kind, e.fields) for e in told] == kinds


def test_in_force_from_applied_to_heal() -> None:
    """What never healed lasts to the end; what never applied has no window."""
    assert in_force(FaultInterval(0, "kill", applied=3, heal=9, healed=11), 50) == TimeWindow(3, 9)
    assert in_force(FaultInterval(0, "kill", applied=3), 50) == TimeWindow(3, 50)
    assert in_force(FaultInterval(0, "kill", begin=3), 50) is None


def test_faults_at_a_moment() -> None:
    """From begin to seen healed, both included."""
    fault = FaultInterval(4, "kill", begin=3, applied=4, heal=9, healed=11)
    assert [t for t in range(15) if faults_at([fault], t)] == list(range(3, 12))
    assert faults_at([FaultInterval(5, "kill")], 3) == ()


fault_times = st.tuples(st.integers(0, 100), st.integers(0, 30))


@given(st.lists(fault_times, max_size=6))
def test_quiet_and_faults_share_the_load(times: list[tuple[int, int]]) -> None:
    """Every moment of the load is quiet or touched by a fault, never both."""
    faults = [
        FaultInterval(n, "pause", begin=begin, applied=begin, heal=begin + length)
        for n, (begin, length) in enumerate(times)
    ]
    load = TimeWindow(0, 150)
    stretches = quiet_windows(faults, load)
    for t in range(load.begin, load.end):
        touched = any(f.begin <= t < f.heal for f in faults if f.begin is not None and f.heal)
        assert any(s.begin <= t < s.end for s in stretches) != touched


def role(t: int, node: str, kind: str = "role", **fields: Any) -> ClusterEvent:
    return ClusterEvent(t, node, kind, fields)


def test_two_masters_at_once_are_shown() -> None:
    """A deposed master that does not know it yet keeps its span."""
    told = [
        role(1, "a", role="master", epoch=1),
        role(5, "b", role="master", epoch=2),
        role(9, "a", role="slave", epoch=2),
    ]
    assert role_spans(told, (), 20) == (
        RoleSpan("a", "master", 1, 1, 9),
        RoleSpan("a", "slave", 2, 9, 20),
        RoleSpan("b", "master", 2, 5, 20),
    )


def test_a_killed_node_has_no_role() -> None:
    """It says nothing when it dies; the fault tells when, or the runner's `exit`."""
    told = [
        role(1, "a", role="master", epoch=1),
        role(9, "a", "start"),
        role(10, "a", role="slave", epoch=2),
        role(14, "a", "exit", code=-9),
    ]
    kill = FaultInterval(0, "kill", targets={"master": ("a",)}, applied=4)
    assert role_spans(told, (kill,), 20) == (
        RoleSpan("a", "master", 1, 1, 4),
        RoleSpan("a", "slave", 2, 10, 14),
    )


def test_sizes_as_controllers_decided() -> None:
    """A broker's own word counts only where no controller's log could be read."""
    broker = role(3, "b", "set", set=[1, 2], setEpoch=2)
    told = [
        role(1, "c", "election", brokerName="s", epoch=1, set=[1]),
        role(2, "c", "set", brokerName="s", set=[2, 1], setEpoch=2),
        broker,
        role(4, "c", "set", brokerName="s", set=[1, 2], setEpoch=3),
    ]
    assert [(s.t, s.set, s.members) for s in set_changes_of(told)] == [
        (1, "s", (1,)),
        (2, "s", (1, 2)),
    ]
    assert set_changes_of([broker]) == (SetChange(3, "", (1, 2), 2),)


def test_an_election_counts_once_however_many_tell_of_it() -> None:
    """Each controller tells; one that made nobody master is none."""
    told = [
        ClusterEvent(t, node, "election", {"brokerName": "a", "epoch": epoch, "masterId": master})
        for t, node, epoch, master in (
            (1, "controller-1", 1, 1),
            (2, "controller-2", 1, 1),
            (3, "controller-1", 2, None),
            (4, "controller-1", 3, 2),
        )
    ]
    assert election_count(told) == 2


def test_a_change_of_a_set_counts_once_however_many_tell_of_it() -> None:
    """Controllers and the master tell of one change; two broker sets count their own."""
    told = [
        ClusterEvent(t, node, "set", {"set": [1, 2], "setEpoch": epoch, **of})
        for t, node, epoch, of in (
            (1, "controller-1", 2, {"brokerName": "a"}),
            (2, "broker-1", 2, {"why": "agreed"}),
            (3, "controller-2", 2, {"brokerName": "a"}),
            (4, "controller-1", 2, {"brokerName": "b"}),
            (5, "controller-1", 3, {"brokerName": "a"}),
        )
    ]
    assert set_change_count(told) == 3


def test_where_only_brokers_tell_of_their_set_what_an_election_brought_is_no_change() -> None:
    """It is counted as an election already."""
    told = [
        ClusterEvent(t, node, "set", {"set": [1, 2], "setEpoch": epoch, "why": why})
        for t, node, epoch, why in (
            (1, "broker-1", 2, "election"),
            (2, "broker-1", 3, "agreed"),
            (3, "broker-1", 3, "read back"),
        )
    ]
    assert set_change_count(told) == 1


def test_changes_of_a_set_without_numbers_each_count() -> None:
    """Only the master tells of them; a broker's log has no number of the set."""
    told = [
        ClusterEvent(t, "broker-1", "set", {"set": members, "brokerName": "a"})
        for t, members in ((1, [1]), (2, [1, 2]), (3, [1]))
    ]
    assert set_change_count(told) == 3


def machine(t: int, state: str, pair: str = "set-1") -> ClusterEvent:
    return ClusterEvent(t, "hacontroller-1", "machine", {"brokerName": pair, "state": state})


def test_the_time_until_a_pair_is_in_step_begins_when_its_slave_copies() -> None:
    """A hold that failed ends nothing; a lost slave does, and counts for nothing; a pair that is
    not in step at the end never was."""
    steps = ["SINGLE", "ASYNC", "SEMI", "ASYNC", "SEMI", "SYNC", "SINGLE", "ASYNC", "SINGLE"]
    told = [machine(10 * t, state) for t, state in enumerate(steps)]
    assert catch_up_times(told) == [40]
    other = [machine(5, "ASYNC", "set-2"), machine(7, "SYNC", "set-2")]
    assert sorted(catch_up_times([*told, *other])) == [2, 40]
    assert catch_up_times([*told, machine(90, "ASYNC"), machine(95, "SEMI")]) == [40, float("inf")]
    assert catch_up_times([]) == []


def test_a_hold_is_measured_where_it_began_and_ended() -> None:
    """One that ended with its process has no length."""
    rows = [
        (1, "b-1", "held"),
        (3, "b-2", "held"),
        (4, "b-1", "released"),
        (5, "b-2", "start"),
        (6, "b-2", "released"),
        (7, "b-2", "held"),
        (9, "b-2", "released"),
    ]
    assert hold_times([ClusterEvent(t, node, kind) for t, node, kind in rows]) == [3, 2]
