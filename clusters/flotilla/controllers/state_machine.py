"""The state that controllers agree on, and the effect of an entry of their Raft log. Pure.

There are two kinds of entries, by which controller computes (`controllerType`):

    dledger   the leader: the entry is the list of events that it computed
    jraft     every controller: the entry is a `JraftCommand`, the request and its time

Each controller applies both kinds, whatever its own type, with the same result. So a command
contains all that its decision may depend on besides the state: the leader's clock and the leader's
settings. A clock reading means nothing on another machine; RocketMQ, whose entries carry the times
of several machines, declares living brokers dead when clocks differ. Here all times in the log are
the leader's, and the first command of a new leader is `lead`: from then on the table of heartbeats
is read by its clock, and no broker counts as silent before that.

A snapshot holds the state as one JSON object: `sets` has a row for each broker set, `registers` one
for each namespace, and `living` is the table of heartbeats of jraft controllers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..net.connection import refusal
from ..net.schemas import schema_error
from ..net.wire import DECODE_ERRORS, Json, Op, Status
from ..rules import Rules
from .controller_requests import DECISIONS, Decision, DecisionContext, replace_master
from .controller_state import (
    BrokerSets,
    BrokerSetState,
    Event,
    SetMember,
    apply_all,
    decode_rows,
    set_in_snapshot,
)
from .liveness import Heartbeat, HeartbeatTable, Key
from .registers import PutValue, Registers, put
from .zones import registers_in_snapshot


@dataclass(frozen=True)
class ReplicatedState:
    """`heartbeats` stays empty where no controller was ever of the type jraft."""

    sets: BrokerSets = field(default_factory=dict)
    registers: Registers = field(default_factory=dict)
    heartbeats: HeartbeatTable = field(default_factory=HeartbeatTable)

    def after(self, events: Sequence[Event]) -> "ReplicatedState":
        registers = self.registers
        for event in events:
            if isinstance(event, PutValue):
                registers = put(registers, event)
        return replace(self, sets=apply_all(self.sets, events), registers=registers)

    def pack(
        self,
        in_snapshot: Callable[[BrokerSetState], BrokerSetState] = set_in_snapshot,
        registers: Callable[[Registers], Registers] = registers_in_snapshot,
    ) -> bytes:
        content = {
            "sets": {name: _fields_of(in_snapshot(row)) for name, row in self.sets.items()},
            "registers": registers(self.registers),
            "living": self.heartbeats.fields(),
        }
        return json.dumps(content, separators=(",", ":"), default=vars).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "ReplicatedState":
        """Raises KeyError, TypeError or ValueError if another edition wrote these bytes."""
        content = json.loads(data)
        sets = {name: _broker_set(row) for name, row in content["sets"].items()}
        return cls(sets, content["registers"], HeartbeatTable.from_fields(content["living"]))


def _fields_of(row: BrokerSetState) -> dict[str, Any]:
    """Return the fields of a snapshot; earlier editions do not know those of converted sets."""
    never_converted = row.elects and not row.attempt
    left_out = ("mode", "generation", "attempt", "pinned") if never_converted else ()
    return {key: value for key, value in vars(row).items() if key not in left_out}


def _broker_set(row: dict[str, Any]) -> BrokerSetState:
    members = {int(i): SetMember(**member) for i, member in row["members"].items()}
    joined = {int(i): epoch for i, epoch in row["joined"].items()}
    sync_set = tuple(row["sync_set"])
    return BrokerSetState(**row | {"members": members, "sync_set": sync_set, "joined": joined})


@dataclass(frozen=True)
class LeaderSettings:
    """The leader's settings that decisions depend on. Their names are those of the log."""

    unclean: bool
    policy: str
    grace_s: float


@dataclass(frozen=True)
class JraftCommand:
    """`kind`: `lead`, `hear` (heartbeats), `gone` or `check` (brokers), `replace`, or `request`.

    The fields' names are those of the log.
    """

    kind: str
    at: float
    terms: LeaderSettings
    content: Any = None
    why: str = ""

    def pack(self) -> bytes:
        fields = {**vars(self), "terms": vars(self.terms)}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_fields(cls, fields: Json) -> "JraftCommand":
        return cls(**{**fields, "terms": LeaderSettings(**fields["terms"])})


@dataclass(frozen=True)
class ApplyResult:
    """The effect of an entry. `returned`: brokers that are heard again; `gone`: brokers that are
    not, and `why`."""

    state: ReplicatedState
    reply: Json = field(default_factory=dict)
    events: Sequence[Event] = ()
    returned: Sequence[Key] = ()
    gone: Sequence[Key] = ()
    why: str = ""


def apply_entry(state: ReplicatedState, entry: bytes, rules: Rules) -> ApplyResult:
    """Return the effect of an entry of the log."""
    content = json.loads(entry)
    if isinstance(content, dict):
        return _COMMANDS[content["kind"]](state, JraftCommand.from_fields(content), rules)
    events = decode_rows(content)
    return ApplyResult(state.after(events), events=events)


def context_at(
    state: ReplicatedState, at: float, settings: LeaderSettings, rules: Rules
) -> DecisionContext:
    """Return what a decision sees at a time of the leader's clock, where liveness is agreed on."""
    return DecisionContext(
        state.sets,
        lambda name, i: state.heartbeats.candidate(name, i, at, settings.grace_s),
        rules,
        settings.unclean,
        settings.policy,
        state.registers,
    )


def decide(op: int, fields: Json, context: DecisionContext) -> Decision:
    """Return the decision on a request.

    Every controller refuses a malformed request alike: a leader that did not check it may have put
    it into the log.
    """
    try:
        return DECISIONS[Op(op)](context, fields)
    except DECODE_ERRORS as e:
        if not schema_error(op, fields):
            raise  # the request is well-formed, so the fault is ours
        remark = f"a malformed request: {type(e).__name__}: {e}"
        return Decision(refusal(Status.INVALID_REQUEST, remark))


def _lead(state: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    return ApplyResult(replace(state, heartbeats=state.heartbeats.restarted_at(command.at)))


def _hear(state: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    heartbeats = [Heartbeat(**{**row, "key": tuple(row["key"])}) for row in command.content]
    table, returned = state.heartbeats.with_heartbeats(heartbeats, command.at)
    return ApplyResult(replace(state, heartbeats=table), returned=returned)


def _gone(state: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    table, lost = state.heartbeats.without((name, i) for name, i in command.content)
    return ApplyResult(replace(state, heartbeats=table), gone=lost, why=command.why)


def _check(state: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    """Mark those of the leader's suspects as gone that are late by the log, too."""
    late = state.heartbeats.late(command.at, rules.heartbeat_expired)
    suspects = [(name, i) for name, i in command.content]
    return _gone(state, replace(command, content=[s for s in suspects if s in late]), rules)


def _replace(state: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    context = context_at(state, command.at, command.terms, rules)
    return _decided(state, replace_master(context, command.content, command.why))


def _request(state: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    op, fields = command.content
    context = context_at(state, command.at, command.terms, rules)
    return _decided(state, decide(op, fields, context))


def _decided(state: ReplicatedState, decision: Decision) -> ApplyResult:
    return ApplyResult(state.after(decision.events), decision.reply, decision.events)


_COMMANDS: Mapping[str, Callable[[ReplicatedState, JraftCommand, Rules], ApplyResult]] = {
    "lead": _lead,
    "hear": _hear,
    "gone": _gone,
    "check": _check,
    "replace": _replace,
    "request": _request,
}
