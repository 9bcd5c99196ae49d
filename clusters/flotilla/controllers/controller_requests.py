"""What the controllers answer (spec 4.5): a request and the state in, a decision out.

A decision is the reply together with the events that must have taken effect before the reply may be
given. The reply already speaks of the state after those events. Nothing here waits, and no decision
is made between another one and the effect of its events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..net.connection import refusal
from ..net.wire import Json, Op, Senseless, Status
from ..rules import Rules
from .alter import Alteration, is_repeated
from .controller_state import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerSets,
    BrokerSetState,
    CleanBrokerData,
    ElectMaster,
    Event,
    UpdateBrokerAddress,
    apply_all,
    replica_info,
)
from .elect import Ballot, BrokerLiveness, Candidate, any_unknown
from .registers import PutValue, Registers, value_of


@dataclass(frozen=True)
class DecisionContext:
    """What a decision may look at."""

    state: BrokerSets
    candidate: Callable[[str, int], Candidate]
    rules: Rules
    unclean: bool
    policy: str = "water-level"
    registers: Registers = field(default_factory=dict)

    def standing(self, name: str, broker_id: int) -> BrokerLiveness:
        return self.candidate(name, broker_id).standing

    def known(self, name: str) -> BrokerSetState | None:
        """The broker set, unless it was cleaned away."""
        row = self.state.get(name)
        return row if row and row.members else None

    def info(self, name: str, state: BrokerSets | None = None) -> Json:
        row = (state or self.state)[name]
        alive = {i: self.standing(name, i) is BrokerLiveness.ALIVE for i in row.members}
        return replica_info(name, row, alive)


@dataclass(frozen=True)
class Decision:
    reply: Json
    events: tuple[Event, ...] = ()


def next_broker_id(scene: DecisionContext, fields: Json) -> Decision:
    row = scene.state.get(str(fields["brokerName"]))
    return Decision({"brokerId": row.next_id if row else 1})


def apply_broker_id(scene: DecisionContext, fields: Json) -> Decision:
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


def register(scene: DecisionContext, fields: Json) -> Decision:
    """A broker has started. A master that registers is a new process: its old one is gone.

    Were it to go on as master in the same epoch, bytes it lost with its former life and bytes it
    writes now could carry the same epoch and offsets, and no replica could tell them apart. So
    the set gets another master, or none until this one asks, and in each case a new epoch. Nobody
    from outside the set, even where that is allowed: the best candidate has just come back.

    Who has the id but not its check code has the disk of a broker that was cleaned away. A broker
    of the first edition does not say it, and is believed as it was then.
    """
    name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
    row = scene.known(name)
    if row is None or broker_id not in row.members:
        return _unregistered(name, broker_id)
    own = row.members[broker_id].check_code
    if own != str(fields.get("checkCode", own)):
        return _refuse(Status.BROKER_ID_INVALID, f"the id {broker_id} is another broker's")
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
    if master_id is not None and scene.standing(name, master_id) is BrokerLiveness.DEAD:
        info |= {"masterId": None, "masterAddr": None, "masterHaAddr": None}
    return Decision(info, tuple(events))


def alter_sync_state_set(scene: DecisionContext, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    new_set = tuple(sorted({int(i) for i in fields["set"]}))
    wanted = Alteration(
        int(fields["masterId"]), int(fields["masterEpoch"]), new_set, int(fields["setEpoch"])
    )
    row = scene.known(name)
    if row is None:
        return _refuse(Status.ALTER_SYNC_STATE_SET_FAILED, f"there is no broker set {name}")
    if is_repeated(row, wanted):
        return Decision({"set": list(row.sync_set), "setEpoch": row.set_epoch})
    code, remark = scene.rules.check_alter(row, wanted, lambda i: scene.standing(name, i))
    if code is not Status.SUCCESS:
        return _refuse(code, remark)
    reply = {"set": list(new_set), "setEpoch": row.set_epoch + 1}
    return Decision(reply, (AlterSyncStateSet(name, new_set),))


def elect_master(scene: DecisionContext, fields: Json) -> Decision:
    """A broker asks for itself, or an operator designates one.

    `masterEpoch`, if given: only in place of the master of this epoch, by a planned handover, and
    only by one of the SyncStateSet, even where others are allowed: that master lives.
    """
    name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
    designate, replaced = bool(fields.get("designate", False)), fields.get("masterEpoch")
    row = scene.known(name)
    if row is None or broker_id not in row.members:
        return _unregistered(name, broker_id)
    if replaced is not None and int(replaced) != row.master_epoch:
        return _refuse(Status.FENCED_MASTER_EPOCH, f"the master's epoch is {row.master_epoch}")
    trigger = "drill" if replaced is not None else "operator" if designate else "broker"
    if row.reigns == 0:
        winner = _first_master(scene.candidate(name, broker_id))
    else:
        ballot = _ballot(scene, name, row, broker_id if designate else None)
        unclean = scene.unclean and replaced is None
        winner = scene.rules.elect(replace(ballot, unclean=unclean))
    if winner is None:
        return _refuse(Status.ELECT_MASTER_FAILED, "nobody may be elected now")
    if winner == row.master_id:
        kept = {"code": Status.MASTER_STILL_EXIST, "remark": "the master is still there"}
        return Decision(scene.info(name) | kept)
    return _elected(scene, ElectMaster(name, winner, trigger))


def replace_master(scene: DecisionContext, name: str, trigger: str) -> Decision:
    """The controllers' own election: for a set whose master is gone. No events: nothing to do."""
    row = scene.known(name)
    if row is None:
        return _refuse(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    master = None if row.master_id is None else scene.standing(name, row.master_id)
    if not scene.rules.needs_election(row.reigns, master):
        return Decision({})
    winner = _successor(scene, name, row)
    waits = winner is None and any_unknown(_candidates(scene, name, row, row.sync_set))
    if winner == row.master_id or waits:
        return Decision({"code": Status.MASTER_NOT_AVAILABLE, "remark": "nobody to elect yet"})
    return _elected(scene, ElectMaster(name, winner, trigger))


def _first_master(asking: Candidate) -> int | None:
    """Of a set that never had one: who asks first, unless it is a learner (rocketmq#10013), which
    its heartbeats tell: who has sent none here has to ask again."""
    fit = asking.standing is BrokerLiveness.ALIVE and not asking.learner
    return asking.broker_id if fit else None


def get_replica_info(scene: DecisionContext, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    if scene.known(name) is None:
        return _refuse(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    return Decision(scene.info(name))


def sync_state_data(scene: DecisionContext, fields: Json) -> Decision:
    wanted = fields.get("brokerNames") or sorted(scene.state)
    sets = {str(name): _admin_info(scene, str(name)) for name in wanted if scene.known(str(name))}
    return Decision({"sets": sets})


def _admin_info(scene: DecisionContext, name: str) -> Json:
    """For operators: beside the ReplicaInfo, what is known of each member's log."""
    info = scene.info(name)
    for i, row in ((int(i), row) for i, row in info["members"].items()):
        said = scene.candidate(name, i)
        row["inSync"] = i in scene.state[name].sync_set
        row["epoch"], row["maxOffset"], row["zone"] = said.epoch, said.max_offset, said.zone
    return info


def clean_broker_data(scene: DecisionContext, fields: Json) -> Decision:
    """An operator forgets brokers, or, without ids, a broker set.

    The last one that lives is never forgotten, unlike in the original: its set would begin again
    with whoever asks first, and what others have acknowledged would be lost.
    """
    name = str(fields["brokerName"])
    broker_ids = tuple(sorted({int(i) for i in fields.get("brokerIds") or ()}))
    row = scene.known(name)
    if row is None:
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, f"there is no broker set {name}")
    if strangers := sorted(set(broker_ids) - set(row.members)):
        remark = f"the broker set {name} has no broker {strangers[0]}"
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, remark)
    everybody = not broker_ids or set(row.members) <= set(broker_ids)
    forgotten = tuple(row.members) if everybody else broker_ids
    if not fields.get("cleanLiving", False) and not broker_ids and row.master_id is not None:
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, "the set has a master")
    living = [i for i in forgotten if scene.standing(name, i) is not BrokerLiveness.DEAD]
    if living and (everybody or not fields.get("cleanLiving", False)):
        known = scene.standing(name, living[0]) is BrokerLiveness.ALIVE
        remark = f"broker {living[0]} {'is' if known else 'may be'} alive"
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, remark)
    return Decision({}, (CleanBrokerData(name, broker_ids),))


def guard_last_member(scene: DecisionContext, decision: Decision) -> Decision:
    """The decision, unless it would forget the last of a SyncStateSet that others are left of: then
    nobody could be elected for ever.

    For a leader, before anything is logged. It is no part of the decisions: those are computed
    from logs of jraft controllers again, and must come to the same as they did.
    """
    for event in decision.events:
        if isinstance(event, CleanBrokerData) and not scene.unclean:
            before, after = scene.state[event.name], apply_all(scene.state, [event])[event.name]
            if before.sync_set and after.members and not after.sync_set:
                return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, _last(before))
    return decision


def _last(row: BrokerSetState) -> str:
    last = ", ".join(map(str, row.sync_set))
    return (
        f"nobody else is in the SyncStateSet than {last}: bring it back with its disk, or give up "
        "what only it has, and start the controllers with enableElectUncleanMaster = true until "
        "there is another master"
    )


def kv_get(scene: DecisionContext, fields: Json) -> Decision:
    namespace, key = str(fields["namespace"]), str(fields["key"])
    return Decision({"value": value_of(scene.registers, namespace, key)})


def kv_put(scene: DecisionContext, fields: Json) -> Decision:
    return Decision({}, (_put(fields),))


def kv_cas(scene: DecisionContext, fields: Json) -> Decision:
    """Put the value if the present one is `expected`; null is an absent one."""
    wanted = _put(fields)
    present = value_of(scene.registers, wanted.namespace, wanted.key)
    if present != _text(fields["expected"]):
        differs = refusal(Status.KV_VALUE_DIFFERS, "the value is another one")
        return Decision(differs | {"value": present})
    return Decision({"value": wanted.value}, (wanted,))


def _put(fields: Json) -> PutValue:
    return PutValue(str(fields["namespace"]), str(fields["key"]), _text(fields["value"]))


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Senseless(f"a value is a string or null, not {value!r}")
    return value


DECISIONS: Mapping[Op, Callable[[DecisionContext, Json], Decision]] = {
    Op.NEXT_BROKER_ID: next_broker_id,
    Op.APPLY_BROKER_ID: apply_broker_id,
    Op.REGISTER_TO_CONTROLLER: register,
    Op.ALTER_SYNC_STATE_SET: alter_sync_state_set,
    Op.ELECT_MASTER: elect_master,
    Op.REPLICA_INFO: get_replica_info,
    Op.SYNC_STATE_DATA: sync_state_data,
    Op.CLEAN_BROKER_DATA: clean_broker_data,
    Op.KV_GET: kv_get,
    Op.KV_PUT: kv_put,
    Op.KV_CAS: kv_cas,
}
READS = frozenset({Op.NEXT_BROKER_ID, Op.REPLICA_INFO, Op.SYNC_STATE_DATA, Op.KV_GET})


def _elected(scene: DecisionContext, event: ElectMaster) -> Decision:
    info = scene.info(event.name, apply_all(scene.state, [event]))
    if event.winner is None:
        info |= refusal(Status.MASTER_NOT_AVAILABLE, "nobody of the SyncStateSet is alive")
    return Decision(info, (event,))


def _successor(scene: DecisionContext, name: str, row: BrokerSetState) -> int | None:
    """Whom to elect when the master is surely gone."""
    in_set = tuple(i for i in row.sync_set if i != row.master_id)
    return scene.rules.elect(replace(_ballot(scene, name, row, None, in_set), old_master=None))


def successor(
    scene: DecisionContext, name: str, row: BrokerSetState, prefer: int | None
) -> int | None:
    """Whom to elect in a living master's place: of the set, even where others are allowed."""
    in_set = tuple(i for i in row.sync_set if i != row.master_id)
    ballot = _ballot(scene, name, row, prefer, in_set)
    return scene.rules.elect(replace(ballot, old_master=None, unclean=False))


def _ballot(
    scene: DecisionContext,
    name: str,
    row: BrokerSetState,
    prefer: int | None,
    in_set: tuple[int, ...] | None = None,
) -> Ballot:
    """The election of a set. `in_set`: the SyncStateSet, unless it is said."""
    others = tuple(i for i in row.members if i not in row.sync_set)
    old = row.master_id
    return Ballot(
        _candidates(scene, name, row, row.sync_set if in_set is None else in_set),
        _candidates(scene, name, row, others),
        old_master=old,
        prefer=prefer,
        unclean=scene.unclean,
        policy=scene.policy,
        zone="" if old is None else scene.candidate(name, old).zone,
    )


def _candidates(
    scene: DecisionContext, name: str, row: BrokerSetState, ids: tuple[int, ...]
) -> list[Candidate]:
    return [replace(scene.candidate(name, i), joined=row.joined.get(i, 0)) for i in ids]


def _refuse(code: Status, remark: str) -> Decision:
    return Decision(refusal(code, remark))


def _unregistered(name: str, broker_id: int) -> Decision:
    remark = f"the broker set {name} has no broker {broker_id}"
    return _refuse(Status.BROKER_NEED_TO_BE_REGISTERED, remark)
