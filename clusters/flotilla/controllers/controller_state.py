"""The state of each broker set: its members, master and SyncStateSet (RIP-44).

Events in, state out. An event in the Raft log is a JSON object with its `kind`, and a Raft entry
holds a list of events that are applied together. Everything is a value: `apply` returns a new
state.

    masterEpoch   0: never elected; +1 for every change of master, "no master" included
    setEpoch      +1 for every new SyncStateSet, the one of an election included

An election makes the set exactly {new master}, and members return one by one. If no broker can be
elected, the set is kept, so that a former member may still be elected when it returns.

A set without members was cleaned away by an operator. Its ids and epochs stay used: a removed
broker may come back with its disk, and must not meet another broker of its id or its epoch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..net.wire import Json
from .registers import PutValue

OWN_MODE = "controller"  # the haMode in which controllers elect


@dataclass(frozen=True)
class SetMember:
    """A broker that belongs to the set until it is cleaned away."""

    addr: str
    ha_addr: str
    check_code: str


@dataclass(frozen=True)
class BrokerSetState:
    """`joined`: the set epoch with which each member of the SyncStateSet entered. `founded_epoch`:
    the master epoch in which the set began; 0 unless an earlier set of its name was cleaned away.
    `mode`, `generation`: the haMode of a set that was converted; only in theirs the controllers
    elect. `attempt`: the last attempt to convert it. `pinned`: the broker that must be elected
    first in this generation, None from then on.

    The fields' names are those of snapshots, which leave out the last four of sets that were never
    converted.
    """

    cluster: str
    next_id: int = 1
    members: Mapping[int, SetMember] = field(default_factory=dict)
    master_id: int | None = None
    master_epoch: int = 0
    sync_set: tuple[int, ...] = ()
    set_epoch: int = 0
    joined: Mapping[int, int] = field(default_factory=dict)
    founded_epoch: int = 0
    mode: str = OWN_MODE
    generation: int = 0
    attempt: int = 0
    pinned: int | None = None

    @property
    def elects(self) -> bool:
        """Whether the controllers elect the set's masters as usual."""
        return self.mode == OWN_MODE and self.pinned is None

    @property
    def master_changes(self) -> int:
        """The number of changes of the master since the set began."""
        return self.master_epoch - self.founded_epoch


BrokerSets = Mapping[str, BrokerSetState]


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
    """`winner` None: the master is gone and no broker can replace it. `trigger` is for the event
    log."""

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
    """Without ids the whole broker set is removed."""

    name: str
    broker_ids: tuple[int, ...]


@dataclass(frozen=True)
class ConvertSet:
    """The set is, or is about to be, in another mode. `epoch`: the last one before."""

    name: str
    cluster: str
    mode: str
    generation: int
    attempt: int
    master: int
    epoch: int


SetEvent = (
    AlterSyncStateSet
    | ApplyBrokerId
    | ElectMaster
    | UpdateBrokerAddress
    | CleanBrokerData
    | ConvertSet
)
Event = SetEvent | PutValue
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        AlterSyncStateSet,
        ApplyBrokerId,
        ElectMaster,
        UpdateBrokerAddress,
        CleanBrokerData,
        ConvertSet,
        PutValue,
    )
}


def encode(events: Sequence[Event]) -> bytes:
    rows = [{"kind": type(event).__name__, **asdict(event)} for event in events]
    return json.dumps(rows, separators=(",", ":")).encode()


def decode(data: bytes) -> list[Event]:
    return decode_rows(json.loads(data))


def decode_rows(rows: Sequence[dict[str, Any]]) -> list[Event]:
    return [_KINDS[row.pop("kind")](**_tuples(row)) for row in rows]


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}


def apply(state: BrokerSets, event: Event) -> BrokerSets:
    """Return the state after an event. An event about an unknown set or member changes nothing."""
    match event:
        case PutValue():
            return state
        case ApplyBrokerId():
            return {**state, event.name: _with_member(state.get(event.name), event)}
        case ConvertSet():
            return {**state, event.name: _converted(state.get(event.name), event)}
        case _ if event.name not in state:
            return state
        case _:
            return {**state, event.name: _changed(state[event.name], event)}


def apply_all(state: BrokerSets, events: Sequence[Event]) -> BrokerSets:
    for event in events:
        state = apply(state, event)
    return state


def _changed(row: BrokerSetState, event: SetEvent) -> BrokerSetState:
    match event:
        case AlterSyncStateSet(new_set=new_set):
            return _with_set(row, new_set)
        case ElectMaster(winner=None):
            return replace(row, master_id=None, master_epoch=row.master_epoch + 1)
        case ElectMaster(winner=int(winner)):
            epoch = row.master_epoch + 1
            row = replace(row, master_id=winner, master_epoch=epoch, pinned=None)
            return _with_set(row, (winner,))
        case UpdateBrokerAddress(broker_id=broker_id) if broker_id in row.members:
            member = replace(row.members[broker_id], addr=event.addr, ha_addr=event.ha_addr)
            return replace(row, members={**row.members, broker_id: member})
        case CleanBrokerData(broker_ids=broker_ids):
            return _without(row, broker_ids or tuple(row.members))
    return row


def _with_set(row: BrokerSetState, members: Sequence[int]) -> BrokerSetState:
    """Return the row with a new SyncStateSet. Members that stay keep their epoch of entry."""
    epoch = row.set_epoch + 1
    joined = {i: row.joined.get(i, epoch) for i in sorted(members)}
    return replace(row, sync_set=tuple(joined), set_epoch=epoch, joined=joined)


def _with_member(row: BrokerSetState | None, event: ApplyBrokerId) -> BrokerSetState:
    row = row or BrokerSetState(event.cluster)
    if event.broker_id in row.members:
        return row
    member = SetMember(event.addr, event.ha_addr, event.check_code)
    return replace(
        row,
        members=dict(sorted({**row.members, event.broker_id: member}.items())),
        next_id=max(row.next_id, event.broker_id) + 1,
    )


def _converted(row: BrokerSetState | None, event: ConvertSet) -> BrokerSetState:
    """Return the row of a set in its next generation: without a master and, from the last epoch
    on that any mode has given."""
    row = row or BrokerSetState(event.cluster)
    if (row.generation, row.mode) == (event.generation, event.mode):
        return replace(row, attempt=event.attempt)
    return replace(
        row,
        master_id=None,
        master_epoch=event.epoch,
        sync_set=(),
        joined={},
        mode=event.mode,
        generation=event.generation,
        attempt=event.attempt,
        pinned=event.master if event.mode == OWN_MODE else None,
    )


def _without(row: BrokerSetState, broker_ids: Sequence[int]) -> BrokerSetState:
    members = {i: m for i, m in row.members.items() if i not in broker_ids}
    row = replace(row, members=members)
    sync_set = tuple(i for i in row.sync_set if i in members)
    if sync_set != row.sync_set:
        row = _with_set(row, sync_set)
    if row.master_id is not None and row.master_id not in members:
        row = replace(row, master_id=None, master_epoch=row.master_epoch + 1)
    return row if members else replace(row, founded_epoch=row.master_epoch)


def set_in_snapshot(row: BrokerSetState) -> BrokerSetState:
    """Return what a snapshot keeps of a broker set: all of it. The identity is a rule of its own,
    so that a variant can replace it."""
    return row


def replica_info(name: str, row: BrokerSetState, alive: Mapping[int, bool]) -> Json:
    """Return a set as brokers and operators see it."""
    converted = {"mode": row.mode, "generation": row.generation, "pinned": row.pinned}
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
        **(converted if row.mode != OWN_MODE or row.generation else {}),
    }
