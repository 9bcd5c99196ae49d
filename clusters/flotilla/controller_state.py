"""What the controllers agree on (spec 4.1): each broker set's members, master and SyncStateSet.

Events in, state out. An event in the Raft log is a JSON object with its `kind`; a Raft entry holds
a list of them, applied together. Everything is a value: `apply` returns a new state.

    masterEpoch   0: never elected; +1 for every change of master, "no master" included
    setEpoch      +1 for every new SyncStateSet, the one of an election included

An election makes the set exactly {new master}; members come back one by one. When nobody can be
elected the set is kept, so that a former member that returns may still be.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .wire import Json


@dataclass(frozen=True)
class Member:
    """A broker with a place in the set, for ever or until it is cleaned away."""

    addr: str
    ha_addr: str
    check_code: str


@dataclass(frozen=True)
class BrokerSet:
    cluster: str
    next_id: int = 1
    members: Mapping[int, Member] = field(default_factory=dict)
    master_id: int | None = None
    master_epoch: int = 0
    sync_set: tuple[int, ...] = ()
    set_epoch: int = 0


State = Mapping[str, BrokerSet]


@dataclass(frozen=True)
class AlterSyncStateSet:
    name: str
    new_set: tuple[int, ...]


@dataclass(frozen=True)
class ApplyBrokerId:
    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str
    check_code: str


@dataclass(frozen=True)
class ElectMaster:
    """`winner` null: the master is gone and nobody can follow it. `trigger` is for the record."""

    name: str
    winner: int | None
    trigger: str


@dataclass(frozen=True)
class UpdateBrokerAddress:
    name: str
    broker_id: int
    addr: str
    ha_addr: str


@dataclass(frozen=True)
class CleanBrokerData:
    """No ids: the whole broker set."""

    name: str
    broker_ids: tuple[int, ...]


Event = AlterSyncStateSet | ApplyBrokerId | ElectMaster | UpdateBrokerAddress | CleanBrokerData
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        AlterSyncStateSet,
        ApplyBrokerId,
        ElectMaster,
        UpdateBrokerAddress,
        CleanBrokerData,
    )
}


def encode(events: Sequence[Event]) -> bytes:
    rows = [{"kind": type(event).__name__, **asdict(event)} for event in events]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode(data: bytes) -> list[Event]:
    return [_KINDS[row.pop("kind")](**_tuples(row)) for row in json.loads(data)]


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}


def apply(state: State, event: Event) -> State:
    """The state after an event. Events about an unknown broker set or member change nothing."""
    match event:
        case ApplyBrokerId():
            return {**state, event.name: _with_member(state.get(event.name), event)}
        case _ if event.name not in state:
            return state
        case CleanBrokerData(broker_ids=()):
            return {name: row for name, row in state.items() if name != event.name}
        case CleanBrokerData():
            return _cleaned(state, event)
        case _:
            return {**state, event.name: _changed(state[event.name], event)}


def apply_all(state: State, events: Sequence[Event]) -> State:
    for event in events:
        state = apply(state, event)
    return state


def _changed(row: BrokerSet, event: Event) -> BrokerSet:
    match event:
        case AlterSyncStateSet(new_set=new_set):
            return replace(row, sync_set=tuple(sorted(new_set)), set_epoch=row.set_epoch + 1)
        case ElectMaster(winner=None):
            return replace(row, master_id=None, master_epoch=row.master_epoch + 1)
        case ElectMaster(winner=int(winner)):
            return replace(
                row,
                master_id=winner,
                master_epoch=row.master_epoch + 1,
                sync_set=(winner,),
                set_epoch=row.set_epoch + 1,
            )
        case UpdateBrokerAddress(broker_id=broker_id) if broker_id in row.members:
            member = replace(row.members[broker_id], addr=event.addr, ha_addr=event.ha_addr)
            return replace(row, members={**row.members, broker_id: member})
    return row


def _with_member(row: BrokerSet | None, event: ApplyBrokerId) -> BrokerSet:
    row = row or BrokerSet(event.cluster)
    if event.broker_id in row.members:
        return row
    member = Member(event.addr, event.ha_addr, event.check_code)
    return replace(
        row,
        members=dict(sorted({**row.members, event.broker_id: member}.items())),
        next_id=max(row.next_id, event.broker_id) + 1,
    )


def _cleaned(state: State, event: CleanBrokerData) -> State:
    row = state[event.name]
    members = {i: m for i, m in row.members.items() if i not in event.broker_ids}
    if not members:
        return {name: other for name, other in state.items() if name != event.name}
    row = replace(row, members=members)
    sync_set = tuple(i for i in row.sync_set if i in members)
    if sync_set != row.sync_set:
        row = replace(row, sync_set=sync_set, set_epoch=row.set_epoch + 1)
    if row.master_id is not None and row.master_id not in members:
        row = replace(row, master_id=None, master_epoch=row.master_epoch + 1)
    return {**state, event.name: row}


def replica_info(name: str, row: BrokerSet, alive: Mapping[int, bool]) -> Json:
    """What brokers and operators are told about a set."""
    master = row.members.get(row.master_id) if row.master_id is not None else None
    return {
        "brokerName": name,
        "masterId": row.master_id,
        "masterAddr": master.addr if master else None,
        "masterHaAddr": master.ha_addr if master else None,
        "masterEpoch": row.master_epoch,
        "set": list(row.sync_set),
        "setEpoch": row.set_epoch,
        "members": {
            str(i): {"addr": m.addr, "haAddr": m.ha_addr, "alive": alive[i]}
            for i, m in row.members.items()
        },
    }
