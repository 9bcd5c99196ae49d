"""What the leading controller answers (spec 4.5): a request and the state in, a decision out.

A decision is the reply together with the events that must be in the Raft log before the reply may
be given. The reply already speaks of the state after those events. Nothing here waits, and the
controller lets one request at a time pass between its decision and the effect of its events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .alter import Alteration, already_altered
from .controller_state import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerSet,
    CleanBrokerData,
    ElectMaster,
    Event,
    State,
    UpdateBrokerAddress,
    apply_all,
    replica_info,
)
from .elect import Ballot, Candidate, Standing, undecided
from .net import refusal
from .rules import Rules
from .wire import Json, Op, Status


@dataclass(frozen=True)
class Scene:
    """What a decision may look at."""

    state: State
    candidate: Callable[[str, int], Candidate]
    rules: Rules
    unclean: bool

    def standing(self, name: str, broker_id: int) -> Standing:
        return self.candidate(name, broker_id).standing

    def info(self, name: str, state: State | None = None) -> Json:
        row = (state or self.state)[name]
        alive = {i: self.standing(name, i) is Standing.ALIVE for i in row.members}
        return replica_info(name, row, alive)


@dataclass(frozen=True)
class Decision:
    reply: Json
    events: tuple[Event, ...] = ()


def next_broker_id(scene: Scene, fields: Json) -> Decision:
    row = scene.state.get(str(fields["brokerName"]))
    return Decision({"brokerId": row.next_id if row else 1})


def apply_broker_id(scene: Scene, fields: Json) -> Decision:
    event = ApplyBrokerId(
        str(fields["cluster"]),
        str(fields["brokerName"]),
        int(fields["brokerId"]),
        str(fields["addr"]),
        str(fields["haAddr"]),
        str(fields["checkCode"]),
    )
    row = scene.state.get(event.name)
    known = row.members.get(event.broker_id) if row else None
    if known and known.check_code == event.check_code:
        return Decision({})  # asked again after a lost answer
    if known or event.broker_id < 1 or (row is None and event.broker_id != 1):
        return _refuse(Status.BROKER_ID_INVALID, f"the id {event.broker_id} is not to be had")
    return Decision({}, (event,))


def register(scene: Scene, fields: Json) -> Decision:
    """A broker has started. A master that registers is a new process: its old one is gone.

    Were it to go on as master in the same epoch, bytes it lost with its former life and bytes it
    writes now could carry the same epoch and offsets, and no replica could tell them apart. So
    the set gets another master, or none until this one asks, and in each case a new epoch. Nobody
    from outside the set, even where that is allowed: the best candidate has just come back.
    """
    name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
    row = scene.state.get(name)
    if row is None or broker_id not in row.members:
        return _unregistered(name, broker_id)
    events: list[Event] = []
    addr, ha_addr = str(fields["addr"]), str(fields["haAddr"])
    if (row.members[broker_id].addr, row.members[broker_id].ha_addr) != (addr, ha_addr):
        events.append(UpdateBrokerAddress(name, broker_id, addr, ha_addr))
    if row.master_id == broker_id:
        successor = _successor(replace(scene, unclean=False), name, row)
        events.append(ElectMaster(name, successor, "restarted"))
    after = apply_all(scene.state, events)
    info = scene.info(name, after)
    master_id = after[name].master_id
    if master_id is not None and scene.standing(name, master_id) is Standing.DEAD:
        info |= {"masterId": None, "masterAddr": None, "masterHaAddr": None}
    return Decision(info, tuple(events))


def alter_sync_state_set(scene: Scene, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    new_set = tuple(sorted({int(i) for i in fields["set"]}))
    wanted = Alteration(
        int(fields["masterId"]), int(fields["masterEpoch"]), new_set, int(fields["setEpoch"])
    )
    row = scene.state.get(name)
    if row is None:
        return _refuse(Status.ALTER_SYNC_STATE_SET_FAILED, f"there is no broker set {name}")
    if already_altered(row, wanted):
        return Decision({"set": list(row.sync_set), "setEpoch": row.set_epoch})
    code, remark = scene.rules.check_alter(row, wanted, lambda i: scene.standing(name, i))
    if code is not Status.SUCCESS:
        return _refuse(code, remark)
    reply = {"set": list(new_set), "setEpoch": row.set_epoch + 1}
    return Decision(reply, (AlterSyncStateSet(name, new_set),))


def elect_master(scene: Scene, fields: Json) -> Decision:
    """A broker asks for itself, or an operator designates one."""
    name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
    designate = bool(fields.get("designate", False))
    row = scene.state.get(name)
    if row is None or broker_id not in row.members:
        return _unregistered(name, broker_id)
    trigger = "operator" if designate else "broker"
    if row.master_epoch == 0:
        alive = scene.standing(name, broker_id) is Standing.ALIVE
        winner = broker_id if alive or not designate else None
    else:
        winner = scene.rules.elect(_ballot(scene, name, row, broker_id if designate else None))
    if winner is None:
        return _refuse(Status.ELECT_MASTER_FAILED, "nobody may be elected now")
    if winner == row.master_id:
        kept = {"code": Status.MASTER_STILL_EXIST, "remark": "the master is still there"}
        return Decision(scene.info(name) | kept)
    return _elected(scene, ElectMaster(name, winner, trigger))


def replace_master(scene: Scene, name: str, trigger: str) -> Decision:
    """The controllers' own election: for a set whose master is gone. No events: nothing to do."""
    row = scene.state.get(name)
    if row is None:
        return _refuse(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    master = None if row.master_id is None else scene.standing(name, row.master_id)
    if not scene.rules.needs_election(row.master_epoch, master):
        return Decision({})
    winner = _successor(scene, name, row)
    waits = winner is None and undecided(_candidates(scene, name, row.sync_set))
    if winner == row.master_id or waits:
        return Decision({"code": Status.MASTER_NOT_AVAILABLE, "remark": "nobody to elect yet"})
    return _elected(scene, ElectMaster(name, winner, trigger))


def get_replica_info(scene: Scene, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    if name not in scene.state:
        return _refuse(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    return Decision(scene.info(name))


def sync_state_data(scene: Scene, fields: Json) -> Decision:
    wanted = fields.get("brokerNames") or sorted(scene.state)
    sets = {str(name): scene.info(str(name)) for name in wanted if str(name) in scene.state}
    return Decision({"sets": sets})


def clean_broker_data(scene: Scene, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    broker_ids = tuple(sorted({int(i) for i in fields.get("brokerIds") or ()}))
    row = scene.state.get(name)
    if row is None:
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, f"there is no broker set {name}")
    if not fields.get("cleanLiving", False):
        if not broker_ids and row.master_id is not None:
            return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, "the set has a master")
        living = [i for i in broker_ids if scene.standing(name, i) is Standing.ALIVE]
        if living:
            return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, f"broker {living[0]} is alive")
    return Decision({}, (CleanBrokerData(name, broker_ids),))


DECISIONS: Mapping[Op, Callable[[Scene, Json], Decision]] = {
    Op.NEXT_BROKER_ID: next_broker_id,
    Op.APPLY_BROKER_ID: apply_broker_id,
    Op.REGISTER_TO_CONTROLLER: register,
    Op.ALTER_SYNC_STATE_SET: alter_sync_state_set,
    Op.ELECT_MASTER: elect_master,
    Op.REPLICA_INFO: get_replica_info,
    Op.SYNC_STATE_DATA: sync_state_data,
    Op.CLEAN_BROKER_DATA: clean_broker_data,
}


def _elected(scene: Scene, event: ElectMaster) -> Decision:
    info = scene.info(event.name, apply_all(scene.state, [event]))
    if event.winner is None:
        info |= refusal(Status.MASTER_NOT_AVAILABLE, "nobody of the SyncStateSet is alive")
    return Decision(info, (event,))


def _successor(scene: Scene, name: str, row: BrokerSet) -> int | None:
    """Whom to elect when the master is surely gone."""
    in_set = [i for i in row.sync_set if i != row.master_id]
    others = [i for i in row.members if i not in row.sync_set]
    ballot = Ballot(
        _candidates(scene, name, in_set),
        _candidates(scene, name, others),
        old_master=None,
        unclean=scene.unclean,
    )
    return scene.rules.elect(ballot)


def _ballot(scene: Scene, name: str, row: BrokerSet, prefer: int | None) -> Ballot:
    others = [i for i in row.members if i not in row.sync_set]
    return Ballot(
        _candidates(scene, name, row.sync_set),
        _candidates(scene, name, others),
        old_master=row.master_id,
        prefer=prefer,
        unclean=scene.unclean,
    )


def _candidates(scene: Scene, name: str, ids: tuple[int, ...] | list[int]) -> list[Candidate]:
    return [scene.candidate(name, i) for i in ids]


def _refuse(code: Status, remark: str) -> Decision:
    return Decision(refusal(code, remark))


def _unregistered(name: str, broker_id: int) -> Decision:
    remark = f"the broker set {name} has no broker {broker_id}"
    return _refuse(Status.BROKER_NEED_TO_BE_REGISTERED, remark)
