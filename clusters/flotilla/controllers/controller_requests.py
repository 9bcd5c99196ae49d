"""The answers of the controllers: a request and the state in, a decision out (RIP-44). Pure.

A decision is a reply, together with the events that must take effect before the reply may be given.
The reply describes the state after those events. Nothing here waits, and no decision is made
between another decision and the effect of its events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..net.connection import refusal
from ..net.wire import Json, Op, ProtocolError, Status
from ..rules import Rules
from .alter import Alteration, is_repeated
from .controller_state import (
    OWN_MODE,
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerSets,
    BrokerSetState,
    CleanBrokerData,
    ConvertSet,
    ElectMaster,
    Event,
    UpdateBrokerAddress,
    apply_all,
    replica_info,
)
from .elect import Ballot, BrokerStatus, Candidate, any_unknown
from .registers import PutValue, Registers, value_of
from .zones import closed_zones, put_zone


@dataclass(frozen=True)
class DecisionContext:
    """What a decision may read."""

    state: BrokerSets
    candidate: Callable[[str, int], Candidate]
    rules: Rules
    unclean: bool
    policy: str = "water-level"
    registers: Registers = field(default_factory=dict)

    def may_lead(self, name: str, broker_id: int) -> bool:
        """Return whether no operator has closed the broker's zone for masters."""
        zone = self.candidate(name, broker_id).zone
        return self.rules.may_lead_in(zone, closed_zones(self.registers))

    def status(self, name: str, broker_id: int) -> BrokerStatus:
        return self.candidate(name, broker_id).status

    def broker_set(self, name: str) -> BrokerSetState | None:
        """Return the broker set; None if there is none, or it was cleaned away."""
        row = self.state.get(name)
        return row if row and row.members else None

    def info(self, name: str, state: BrokerSets | None = None) -> Json:
        row = (state or self.state)[name]
        alive = {i: self.status(name, i) is BrokerStatus.ALIVE for i in row.members}
        return replica_info(name, row, alive)


@dataclass(frozen=True)
class Decision:
    reply: Json
    events: tuple[Event, ...] = ()


def next_broker_id(context: DecisionContext, fields: Json) -> Decision:
    row = context.state.get(str(fields["brokerName"]))
    return Decision({"brokerId": row.next_id if row else 1})


def apply_broker_id(context: DecisionContext, fields: Json) -> Decision:
    event = ApplyBrokerId(
        str(fields["cluster"]),
        str(fields["brokerName"]),
        int(fields["brokerId"]),
        str(fields["addr"]),
        str(fields["haAddr"]),
        str(fields["checkCode"]),
    )
    row = context.state.get(event.name)
    known = row.members.get(event.broker_id) if row else None
    if known and known.check_code == event.check_code:
        return Decision({})  # repeated after a lost answer
    if known or event.broker_id < 1 or (row is None and event.broker_id != 1):
        return _refuse(Status.BROKER_ID_INVALID, f"the id {event.broker_id} is not available")
    return Decision({}, (event,))


def register(context: DecisionContext, fields: Json) -> Decision:
    """Register a broker that has started. A master that registers is a new process.

    If it went on as the master in the same epoch, bytes that its former process lost and bytes that
    it writes now could have the same epoch and offset, and no replica could tell them apart. So the
    set gets another master, or none until this broker asks, and a new epoch in both cases. No
    broker from outside the set is elected, even where that is allowed: the best candidate has just
    returned.

    A broker with the id of a member but another check code has the disk of a broker that was
    cleaned away. A broker of the first edition sends no check code, and is accepted as it was then.
    """
    name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
    row = context.broker_set(name)
    if row is None or broker_id not in row.members:
        return _unregistered(name, broker_id)
    if why := _of_another_generation(context, row, fields):
        return _refuse(Status.INVALID_REQUEST, why)
    own = row.members[broker_id].check_code
    if own != str(fields.get("checkCode", own)):
        return _refuse(Status.BROKER_ID_INVALID, f"the id {broker_id} belongs to another broker")
    events: list[Event] = []
    addr, ha_addr = str(fields["addr"]), str(fields["haAddr"])
    if (row.members[broker_id].addr, row.members[broker_id].ha_addr) != (addr, ha_addr):
        events.append(UpdateBrokerAddress(name, broker_id, addr, ha_addr))
    if row.master_id == broker_id:
        events.append(ElectMaster(name, successor(context, name, row), "restarted"))
    after = apply_all(context.state, events)
    info = context.info(name, after)
    master_id = after[name].master_id
    if master_id is not None and context.status(name, master_id) is BrokerStatus.DEAD:
        info |= {"masterId": None, "masterAddr": None, "masterHaAddr": None}
    return Decision(info, tuple(events))


def alter_sync_state_set(context: DecisionContext, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    new_set = tuple(sorted({int(i) for i in fields["set"]}))
    wanted = Alteration(
        int(fields["masterId"]), int(fields["masterEpoch"]), new_set, int(fields["setEpoch"])
    )
    row = context.broker_set(name)
    if row is None:
        return _refuse(Status.ALTER_SYNC_STATE_SET_FAILED, f"there is no broker set {name}")
    if is_repeated(row, wanted):
        return Decision({"set": list(row.sync_set), "setEpoch": row.set_epoch})
    code, remark = context.rules.check_alter(row, wanted, lambda i: context.status(name, i))
    if code is not Status.SUCCESS:
        return _refuse(code, remark)
    reply = {"set": list(new_set), "setEpoch": row.set_epoch + 1}
    return Decision(reply, (AlterSyncStateSet(name, new_set),))


def elect_master(context: DecisionContext, fields: Json) -> Decision:
    """Elect a master at the request of a broker, for itself, or of an operator who designates one.

    With `masterEpoch` (a planned handover) only the master of this epoch is replaced, and only by a
    member of the SyncStateSet, even where others are allowed, since that master lives.
    """
    name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
    designate, replaced = bool(fields.get("designate", False)), fields.get("masterEpoch")
    row = context.broker_set(name)
    if row is None or broker_id not in row.members:
        return _unregistered(name, broker_id)
    if replaced is not None and int(replaced) != row.master_epoch:
        return _refuse(Status.FENCED_MASTER_EPOCH, f"the master's epoch is {row.master_epoch}")
    if why := _of_another_generation(context, row, fields):
        return _refuse(Status.ELECT_MASTER_FAILED, why)
    if row.pinned is not None:
        if broker_id != row.pinned:
            remark = f"broker {row.pinned} is to lead {name} first after its conversion"
            return _refuse(Status.ELECT_MASTER_FAILED, remark)
        return _elected(context, ElectMaster(name, row.pinned, "converted"))
    planned = "preferred" if fields.get("preferred", False) else "drill"
    trigger = planned if replaced is not None else "operator" if designate else "broker"
    if row.master_changes == 0:
        may_lead = context.may_lead(name, broker_id)
        winner = _first_master(context.candidate(name, broker_id)) if may_lead else None
    else:
        ballot = _ballot(context, name, row, broker_id if designate else None)
        unclean = context.unclean and replaced is None
        winner = context.rules.elect(replace(ballot, unclean=unclean))
    if winner is None:
        shut = ", ".join(sorted(closed_zones(context.registers)))
        why = f"; closed for masters until returnZone: {shut}" if shut else ""
        return _refuse(Status.ELECT_MASTER_FAILED, f"no broker can be elected now{why}")
    if winner == row.master_id:
        kept = {"code": Status.MASTER_STILL_EXIST, "remark": "the master is unchanged"}
        return Decision(context.info(name) | kept)
    return _elected(context, ElectMaster(name, winner, trigger))


def replace_master(context: DecisionContext, name: str, trigger: str) -> Decision:
    """Elect a master for a set whose master is gone. Without events there is nothing to do."""
    row = context.broker_set(name)
    if row is None:
        return _refuse(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    if not row.elects:
        return Decision({})
    master = None if row.master_id is None else context.status(name, row.master_id)
    if not context.rules.needs_election(row.master_changes, master):
        return Decision({})
    winner = successor(context, name, row, unclean=context.unclean)
    waits = winner is None and any_unknown(_candidates(context, name, row, row.sync_set))
    if winner == row.master_id or waits:
        return Decision(
            {"code": Status.MASTER_NOT_AVAILABLE, "remark": "no broker can be elected yet"}
        )
    return _elected(context, ElectMaster(name, winner, trigger))


def convert_set(context: DecisionContext, fields: Json) -> Decision:
    """Note the mode of a set that an operator converts, before its brokers change it.

    From then on the controllers elect no master in another mode, and in theirs, as the first one,
    only the broker that was master before. Attempts to convert a set are numbered, and a request of
    an earlier one, which arrives late, changes nothing.
    """
    name = str(fields["brokerName"])
    row = context.state.get(name) or BrokerSetState(str(fields["cluster"]))
    wanted = ConvertSet(
        name,
        str(fields["cluster"]),
        str(fields["mode"]),
        int(fields["generation"]),
        int(fields["attempt"]),
        int(fields["master"]),
        context.rules.last_epoch(row.master_epoch, int(fields["epoch"])),
    )
    if wanted.attempt < row.attempt:
        remark = f"attempt {row.attempt} to convert {name} is later"
        return _refuse(Status.INVALID_REQUEST, remark)
    known = (row.generation, row.mode, row.attempt)
    if known == (wanted.generation, wanted.mode, wanted.attempt):
        return Decision({"masterEpoch": row.master_epoch})  # repeated after a lost answer
    return Decision({"masterEpoch": wanted.epoch}, (wanted,))


def _of_another_generation(context: DecisionContext, row: BrokerSetState, fields: Json) -> str:
    """Return why a broker's request is not for the set's present generation, or an empty string."""
    if row.mode != OWN_MODE:
        return f"the set is converted to {row.mode}; the controllers elect no master"
    theirs = int(fields.get("generation", row.generation))
    if context.rules.is_of_generation(row.generation, theirs):
        return ""
    return f"the broker is in generation {theirs}, and its set in {row.generation}"


def _first_master(requester: Candidate) -> int | None:
    """Return the first master of a set: the first requester, unless it is a learner
    (apache/rocketmq#10013). Heartbeats say so; a broker that has sent none here must ask again."""
    eligible = requester.status is BrokerStatus.ALIVE and not requester.learner
    return requester.broker_id if eligible else None


def get_replica_info(context: DecisionContext, fields: Json) -> Decision:
    name = str(fields["brokerName"])
    if context.broker_set(name) is None:
        return _refuse(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    return Decision(context.info(name))


def sync_state_data(context: DecisionContext, fields: Json) -> Decision:
    wanted = fields.get("brokerNames") or sorted(context.state)
    sets = {
        str(name): _admin_info(context, str(name))
        for name in wanted
        if context.broker_set(str(name))
    }
    return Decision({"sets": sets})


def _admin_info(context: DecisionContext, name: str) -> Json:
    """Return, for operators, the ReplicaInfo and what is known of each member's log."""
    info = context.info(name)
    for i, row in ((int(i), row) for i, row in info["members"].items()):
        member = context.candidate(name, i)
        row["inSync"] = i in context.state[name].sync_set
        row["epoch"], row["maxOffset"], row["zone"] = member.epoch, member.max_offset, member.zone
    return info


def clean_broker_data(context: DecisionContext, fields: Json) -> Decision:
    """Remove brokers from a set at an operator's request; without ids, the whole set.

    The last living broker is never removed, unlike in RocketMQ: its set would start again with the
    first broker that asks, and what others have acknowledged would be lost.
    """
    name = str(fields["brokerName"])
    broker_ids = tuple(sorted({int(i) for i in fields.get("brokerIds") or ()}))
    row = context.broker_set(name)
    if row is None:
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, f"there is no broker set {name}")
    if unknown := sorted(set(broker_ids) - set(row.members)):
        remark = f"the broker set {name} has no broker {unknown[0]}"
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, remark)
    whole_set = not broker_ids or set(row.members) <= set(broker_ids)
    removed = tuple(row.members) if whole_set else broker_ids
    if not fields.get("cleanLiving", False) and not broker_ids and row.master_id is not None:
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, "the set has a master")
    living = [i for i in removed if context.status(name, i) is not BrokerStatus.DEAD]
    if living and (whole_set or not fields.get("cleanLiving", False)):
        known = context.status(name, living[0]) is BrokerStatus.ALIVE
        remark = f"broker {living[0]} {'is' if known else 'may be'} alive"
        return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, remark)
    return Decision({}, (CleanBrokerData(name, broker_ids),))


def guard_last_member(context: DecisionContext, decision: Decision) -> Decision:
    """Return the decision, or a refusal if it removes the last member of a SyncStateSet from a set
    that has other brokers: then no broker could ever be elected.

    A leader calls this before it logs anything. It is not part of the decisions, since jraft
    controllers compute those from their logs again, and must reach the results that were reached
    then.
    """
    for event in decision.events:
        if isinstance(event, CleanBrokerData) and not context.unclean:
            before, after = context.state[event.name], apply_all(context.state, [event])[event.name]
            if before.sync_set and after.members and not after.sync_set:
                return _refuse(Status.INVALID_CLEAN_BROKER_METADATA, _last(before))
    return decision


def _last(row: BrokerSetState) -> str:
    last = ", ".join(map(str, row.sync_set))
    return (
        f"the SyncStateSet has no other member than {last}: bring it back with its disk, or give "
        "up what only it has, and start the controllers with enableElectUncleanMaster = true until "
        "there is another master"
    )


def drill_zone(context: DecisionContext, fields: Json) -> Decision:
    """Close a zone for masters. A zone that is closed already is a success."""
    zone = str(fields["zone"])
    brokers = ((name, i) for name, row in context.state.items() for i in row.members)
    if not zone or all(context.candidate(*broker).zone != zone for broker in brokers):
        return _refuse(Status.INVALID_REQUEST, f"no broker has been heard from a zone {zone!r}")
    return Decision({}, (put_zone(zone, closed=True),))


def return_zone(context: DecisionContext, fields: Json) -> Decision:
    """Open a zone for masters again. None is moved there by that."""
    zone = str(fields["zone"])
    if zone not in closed_zones(context.registers):
        return Decision({})
    return Decision({}, (put_zone(zone, closed=False),))


def kv_get(context: DecisionContext, fields: Json) -> Decision:
    namespace, key = str(fields["namespace"]), str(fields["key"])
    return Decision({"value": value_of(context.registers, namespace, key)})


def kv_put(context: DecisionContext, fields: Json) -> Decision:
    return Decision({}, (_put(fields),))


def kv_cas(context: DecisionContext, fields: Json) -> Decision:
    """Put the value if the present one is `expected`; null means absent."""
    wanted = _put(fields)
    present = value_of(context.registers, wanted.namespace, wanted.key)
    if present != _text(fields["expected"]):
        differs = refusal(Status.KV_VALUE_DIFFERS, "the present value is not the expected one")
        return Decision(differs | {"value": present})
    return Decision({"value": wanted.value}, (wanted,))


def _put(fields: Json) -> PutValue:
    return PutValue(str(fields["namespace"]), str(fields["key"]), _text(fields["value"]))


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ProtocolError(f"a value is a string or null, not {value!r}")
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
    Op.DRILL_ZONE: drill_zone,
    Op.RETURN_ZONE: return_zone,
    Op.CONVERT_SET: convert_set,
    Op.KV_GET: kv_get,
    Op.KV_PUT: kv_put,
    Op.KV_CAS: kv_cas,
}
READS = frozenset({Op.NEXT_BROKER_ID, Op.REPLICA_INFO, Op.SYNC_STATE_DATA, Op.KV_GET})


def _elected(context: DecisionContext, event: ElectMaster) -> Decision:
    info = context.info(event.name, apply_all(context.state, [event]))
    if event.winner is None:
        info |= refusal(Status.MASTER_NOT_AVAILABLE, "no member of the SyncStateSet is alive")
    return Decision(info, (event,))


def successor(
    context: DecisionContext,
    name: str,
    row: BrokerSetState,
    prefer: int | None = None,
    *,
    unclean: bool = False,
) -> int | None:
    """Return the broker to elect in the master's place; None if there is none.

    `unclean`: brokers outside the SyncStateSet are candidates, too.
    """
    in_set = tuple(i for i in row.sync_set if i != row.master_id)
    ballot = _ballot(context, name, row, prefer, in_set)
    return context.rules.elect(replace(ballot, old_master=None, unclean=unclean))


def _ballot(
    context: DecisionContext,
    name: str,
    row: BrokerSetState,
    prefer: int | None,
    in_set: tuple[int, ...] | None = None,
) -> Ballot:
    """Return the ballot of a set's election. `in_set` is the SyncStateSet by default. In a zone
    that is closed for masters there is no candidate but the present master, which may stay."""
    others = tuple(i for i in row.members if i not in row.sync_set)
    old = row.master_id
    replaced = None if old is None else context.candidate(name, old)

    def eligible(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for i in ids if i == old or context.may_lead(name, i))

    return Ballot(
        _candidates(context, name, row, eligible(row.sync_set if in_set is None else in_set)),
        _candidates(context, name, row, eligible(others)),
        old_master=old,
        prefer=prefer,
        unclean=context.unclean,
        policy=context.policy,
        zone=replaced.zone if replaced else "",
        rack=replaced.rack if replaced else "",
    )


def _candidates(
    context: DecisionContext, name: str, row: BrokerSetState, ids: tuple[int, ...]
) -> list[Candidate]:
    return [replace(context.candidate(name, i), joined=row.joined.get(i, 0)) for i in ids]


def _refuse(code: Status, remark: str) -> Decision:
    return Decision(refusal(code, remark))


def _unregistered(name: str, broker_id: int) -> Decision:
    remark = f"the broker set {name} has no broker {broker_id}"
    return _refuse(Status.BROKER_NEED_TO_BE_REGISTERED, remark)


@dataclass(frozen=True)
class HandoverPlan:
    """A planned handover: the master of `epoch`, at `address`, hands over to the broker `to`."""

    name: str
    epoch: int
    address: str
    to: int


def plan_handover(context: DecisionContext, fields: Json) -> HandoverPlan | Json:
    """Return the plan for an operator's request, or the refusal."""
    name, to = str(fields["brokerName"]), fields.get("to")
    row = context.state.get(name)
    if row is None:
        return refusal(Status.BROKER_METADATA_NOT_EXIST, f"there is no broker set {name}")
    master = row.master_id
    if master is None or context.status(name, master) is not BrokerStatus.ALIVE:
        return refusal(Status.MASTER_NOT_AVAILABLE, "the set has no master that could hand over")
    if to == master:
        return context.info(name) | refusal(Status.MASTER_STILL_EXIST, f"broker {to} is the master")
    chosen = successor(context, name, row, None if to is None else int(to))
    if chosen is None:
        subject = "no other broker is" if to is None else f"broker {to} is not"
        shut = ", ".join(sorted(closed_zones(context.registers)))
        where = f" outside the closed zones ({shut})" if shut else ""
        why = f"{subject} in the SyncStateSet and alive{where}"
        return refusal(Status.ELECT_MASTER_FAILED, why)
    return HandoverPlan(name, row.master_epoch, row.members[master].addr, chosen)
