"""What a simulated run came to, as a campaign counts it."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from harness.campaign.simulation import count_events
from harness.history.schema import EVENTS

Told = tuple[str, str, Mapping[str, Any]]


def events_of(*told: Told) -> pa.Table:
    rows = [
        {"t": t, "node": node, "kind": kind, "fields": json.dumps(fields)}
        for t, (node, kind, fields) in enumerate(told)
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def test_what_several_nodes_tell_of_is_counted_once() -> None:
    """Elections and changes of a SyncStateSet; each log that is cut is cut by itself."""
    elected = {"brokerName": "a", "epoch": 1, "masterId": 1, "set": [1]}
    changed = {"brokerName": "a", "set": [1, 2], "setEpoch": 2}
    told = events_of(
        ("controller-1", "election", elected),
        ("controller-2", "election", elected),
        ("controller-1", "election", {**elected, "epoch": 2, "masterId": None}),
        ("controller-1", "set", changed),
        ("broker-1", "set", {"set": [1, 2], "setEpoch": 2, "why": "agreed"}),
        ("broker-1", "truncate", {"point": 1}),
        ("broker-2", "truncate", {"point": 1}),
    )
    assert count_events(told) == {"election": 1, "set": 1, "truncate": 2}


def test_nobody_elected_is_no_election() -> None:
    assert (
        count_events(events_of(("controller-1", "election", {"epoch": 2, "masterId": None}))) == {}
    )
