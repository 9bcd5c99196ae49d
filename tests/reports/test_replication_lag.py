"""The lag of slaves: from the reports of masters to a value in each second."""

from harness.history.faults_and_events import ClusterEvent
from reports import _replication_lag

S = 1_000_000_000


def role(t: float, node: str, broker: int, role: str = "slave") -> ClusterEvent:
    fields = {"brokerName": "a", "brokerId": broker, "role": role}
    return ClusterEvent(round(t * S), node, "role", fields)


def told(t: float, end: int, **acks: int | None) -> ClusterEvent:
    fields = {"end": end, "acks": {name.strip("_"): ack for name, ack in acks.items()}}
    return ClusterEvent(round(t * S), "broker-1", "replication", fields)


def curves(*events: ClusterEvent, seconds: int = 5) -> dict[str, tuple[object, object]]:
    made = _replication_lag.lag_curves(events, 0, seconds * S)
    return {one["name"]: (one["behind"], one["speed"]) for one in made["slaves"]}


ROLES = (role(0, "broker-1", 1, "master"), role(0, "broker-2", 2), role(0, "broker-3", 3))


def test_each_slave_has_its_gap_and_speed() -> None:
    """The worst of each second; where nothing moves, what was known stays true."""
    seen = curves(
        *ROLES,
        told(1.0, 1000, _2=1000, _3=400),
        told(1.5, 2000, _2=2000, _3=900),
        told(3.0, 2000, _2=2000, _3=2000),
    )
    assert seen == {
        "broker-2": ((None, 0, 0, 0, 0), (None, 1000, 0, 0, 0)),
        "broker-3": ((None, 1100, 1100, 0, 0), (None, 500, 0, 733, 0)),
    }


def test_who_is_cut_off_falls_behind() -> None:
    """It acknowledges nothing more, but its master goes on."""
    seen = curves(*ROLES, told(0.2, 100, _2=100), told(1.2, 900), told(2.2, 5000, _2=None))
    assert seen["broker-2"][0] == (0, 800, 4900, 4900, 4900)


def test_a_master_is_behind_nobody() -> None:
    """From the moment on at which it became one."""
    now = role(2.1, "broker-2", 2, "master")
    seen = curves(*ROLES, told(0.2, 100, _2=40), now)
    assert seen["broker-2"][0] == (60, 60, None, None, None)
    assert "broker-1" not in seen


def test_an_old_master_that_does_not_know_yet_is_not_asked() -> None:
    """A master that was cut off still reports on the new master and all others."""
    now = role(1.0, "broker-2", 2, "master")
    seen = curves(*ROLES, told(0.2, 100, _2=40, _3=100), now, told(2.2, 900, _2=40, _3=100))
    assert seen["broker-2"][0] == (60, None, None, None, None)
    assert seen["broker-3"][0] == (0, 0, 0, 0, 0)


def test_a_new_master_knows_nothing_of_old_acks() -> None:
    """What it held as seen in an earlier reign is not counted on."""
    again = role(2, "broker-1", 1, "master")
    seen = curves(*ROLES, told(0.2, 100, _2=100), again, told(2.5, 9000))
    assert seen["broker-2"][0] == (0, 0, 0, 0, 0)


def test_a_long_run_has_no_more_bins_than_a_picture_can_show() -> None:
    made = _replication_lag.lag_curves((*ROLES, told(1, 10, _2=5)), 0, 7200 * S)
    assert len(made["times"]) == _replication_lag.MAX_BINS
    assert made["times"][1] == 6000.0


def test_a_history_without_masters_has_no_curves() -> None:
    assert _replication_lag.lag_curves((), 0, 10 * S) == {"times": [], "slaves": []}


def test_brokers_of_a_container_are_measured_in_their_own_sets() -> None:
    """Each process is master of one set and slave of the other."""

    def inner(t: float, kind: str, node: str, name: str, **fields: object) -> ClusterEvent:
        of = {"inner": name, "brokerName": name} if kind == "role" else {"inner": name}
        return ClusterEvent(round(t * S), node, kind, {**of, **fields})

    one, two = "container-1", "container-2"
    roles = [
        inner(0, "role", one, "a", brokerId=1, role="master"),
        inner(0, "role", two, "a", brokerId=2, role="slave"),
        inner(0, "role", two, "b", brokerId=1, role="master"),
        inner(0, "role", one, "b", brokerId=2, role="slave"),
    ]
    seen = curves(
        *roles,
        inner(1.2, "replication", one, "a", end=1000, acks={"2": 900}),
        inner(1.4, "replication", two, "b", end=70, acks={"2": 40}),
        inner(2.2, "replication", one, "a", end=1000, acks={"2": 1000}),
        inner(2.4, "replication", two, "b", end=70, acks={"2": 70}),
    )
    assert seen == {
        two: ((None, 100, 0, 0, 0), (None, 0, 100, 0, 0)),
        one: ((None, 30, 0, 0, 0), (None, 0, 30, 0, 0)),
    }
