"""The controllers' state as bytes: what a snapshot of their Raft log holds (Raft 7, spec 4.1).

One JSON object: `sets` has a row for each broker set, `registers` one for each namespace, `living`
the table of the living where it is agreed on.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .controller_state import BrokerSet, Member, set_in_snapshot
from .liveness import Living
from .state_machine import Agreed


def pack(agreed: Agreed, in_snapshot: Callable[[BrokerSet], BrokerSet] = set_in_snapshot) -> bytes:
    content = {
        "sets": {name: asdict(in_snapshot(row)) for name, row in agreed.sets.items()},
        "registers": agreed.registers,
        "living": agreed.living.fields(),
    }
    return json.dumps(content, separators=(",", ":")).encode()


def unpack(data: bytes) -> Agreed:
    """KeyError, TypeError, ValueError: these bytes are of another edition."""
    content = json.loads(data)
    sets = {name: _broker_set(row) for name, row in content["sets"].items()}
    return Agreed(sets, content["registers"], Living.of(content["living"]))


def _broker_set(row: dict[str, Any]) -> BrokerSet:
    members = {int(i): Member(**member) for i, member in row["members"].items()}
    joined = {int(i): epoch for i, epoch in row["joined"].items()}
    sync_set = tuple(row["sync_set"])
    return BrokerSet(**row | {"members": members, "sync_set": sync_set, "joined": joined})
