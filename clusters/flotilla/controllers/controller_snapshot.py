"""The controllers' state as bytes: what a snapshot of their Raft log holds (Raft 7, spec 4.1).

One JSON object: `sets` has a row for each broker set, `registers` one for each namespace, `living`
the table of the living where it is agreed on.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .controller_state import BrokerSetState, SetMember, set_in_snapshot
from .liveness import HeartbeatTable
from .state_machine import ReplicatedState


def pack(
    agreed: ReplicatedState,
    in_snapshot: Callable[[BrokerSetState], BrokerSetState] = set_in_snapshot,
) -> bytes:
    content = {
        "sets": {name: asdict(in_snapshot(row)) for name, row in agreed.sets.items()},
        "registers": agreed.registers,
        "living": agreed.living.fields(),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def unpack(data: bytes) -> ReplicatedState:
    """KeyError, TypeError, ValueError: these bytes are of another edition."""
    content = json.loads(data)
    sets = {name: _broker_set(row) for name, row in content["sets"].items()}
    return ReplicatedState(sets, content["registers"], HeartbeatTable.of(content["living"]))


def _broker_set(row: dict[str, Any]) -> BrokerSetState:
    members = {int(i): SetMember(**member) for i, member in row["members"].items()}
    joined = {int(i): epoch for i, epoch in row["joined"].items()}
    sync_set = tuple(row["sync_set"])
    return BrokerSetState(**row | {"members": members, "sync_set": sync_set, "joined": joined})
