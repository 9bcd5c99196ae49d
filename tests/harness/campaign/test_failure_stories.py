"""The story of a failure: what happened in the cluster, without nodes and numbers."""

import json

from harness.campaign.simulation import event_steps
from harness.campaign.tally import SeedResult
from harness.history.faults_and_events import ClusterEvent


def event(t: int, kind: str, node: str = "broker-1", **fields: object) -> ClusterEvent:
    return ClusterEvent(t, node, kind, fields)


def test_each_change_is_one_step_however_many_nodes_report_it() -> None:
    """An election by its epoch, a set by its size."""
    events = [
        event(1, "raft", "controller-1", state="leader", term=3),
        event(1, "raft", "controller-2", state="follower", term=3),
        event(2, "election", "controller-1", brokerName="set-1", epoch=2, masterId=1),
        event(3, "election", "controller-2", brokerName="set-1", epoch=2, masterId=1),
        event(4, "set", brokerName="set-1", set=[1, 2, 3]),
        event(5, "set", brokerName="set-1", set=[1]),
        event(6, "set", "broker-2", brokerName="set-1", set=[1]),
        event(7, "set", set=[1]),
        event(8, "set", brokerName="set-2", set=[4, 5]),
        event(9, "set", brokerName="set-1", set=[1, 2]),
        event(10, "truncate", before=9, point=4),
        event(11, "fatal", why="a bug"),
        event(12, "election", "controller-2", brokerName="set-2", epoch=2, masterId=4),
        event(13, "role", role="master"),
        event(14, "set", brokerName="set-1", set="torn"),
    ]
    assert list(event_steps(events)) == [
        (1, "controller leader"),
        (2, "election"),
        (5, "set shrinks"),
        (9, "set grows"),
        (10, "log cut"),
        (11, "node stops"),
        (12, "election"),
    ]


def test_a_stored_result_keeps_its_story() -> None:
    """And one of an older version has none."""
    row = SeedResult(3, failure=("A",), in_force=("kill", "pause"), before=("election",))
    assert SeedResult.read(json.loads(json.dumps(row.plain()))) == row
    assert SeedResult.read({"seed": 3}).before == ()
