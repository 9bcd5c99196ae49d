"""All that controllers agree on, and what an entry of their Raft log makes of it: pure (spec 4).

An entry is one of two things, after who was to compute (`controllerType`):

    dledger   the leader did: the entry is the list of events that it computed (4.2)
    jraft     everybody does: the entry is a `JraftCommand`, what was asked and when (4.3)

Both are taken by every controller, whatever its own type, and lead to the same state on each. So a
command says all that its decision may depend on besides the state: the leader's clock, and the
leader's settings. A clock means nothing to another machine, which is why the original, whose
entries carry the times of many machines, declares living brokers dead when clocks differ. Here all
times in the log come from the leader, and the first command of a new one is `lead`: from then on
the table of the living is read by the new leader's clock, and nobody has been silent before.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..net.connection import refusal
from ..net.schemas import misshapen
from ..net.wire import NONSENSE, Json, Op, Status
from ..rules import Rules
from .controller_requests import DECISIONS, Decision, DecisionContext, replace_master
from .controller_state import BrokerSets, Event, apply_all, decode_rows
from .liveness import Heartbeat, HeartbeatTable, Key
from .registers import PutValue, Registers, put


@dataclass(frozen=True)
class ReplicatedState:
    """`living` stays empty where no controller ever was of the type jraft."""

    sets: BrokerSets = field(default_factory=dict)
    registers: Registers = field(default_factory=dict)
    living: HeartbeatTable = field(default_factory=HeartbeatTable)

    def after(self, events: Sequence[Event]) -> "ReplicatedState":
        registers = self.registers
        for event in events:
            if isinstance(event, PutValue):
                registers = put(registers, event)
        return replace(self, sets=apply_all(self.sets, events), registers=registers)


@dataclass(frozen=True)
class LeaderSettings:
    """The leader's settings, as far as decisions depend on them."""

    unclean: bool
    policy: str
    grace_s: float


@dataclass(frozen=True)
class JraftCommand:
    """One of `lead`, `hear` (heartbeats), `gone` and `check` (brokers), `replace`, `request`."""

    kind: str
    at: float
    terms: LeaderSettings
    content: Any = None
    why: str = ""

    def pack(self) -> bytes:
        fields = {**vars(self), "terms": vars(self.terms)}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def of(cls, fields: Json) -> "JraftCommand":
        return cls(**{**fields, "terms": LeaderSettings(**fields["terms"])})


@dataclass(frozen=True)
class ApplyResult:
    """What an entry came to. `fresh`: who is heard again; `gone`: who is not, and why."""

    agreed: ReplicatedState
    reply: Json = field(default_factory=dict)
    events: Sequence[Event] = ()
    fresh: Sequence[Key] = ()
    gone: Sequence[Key] = ()
    why: str = ""


def apply_entry(agreed: ReplicatedState, entry: bytes, rules: Rules) -> ApplyResult:
    """The state after an entry of the log."""
    content = json.loads(entry)
    if isinstance(content, dict):
        return _TAKEN[content["kind"]](agreed, JraftCommand.of(content), rules)
    events = decode_rows(content)
    return ApplyResult(agreed.after(events), events=events)


def context_at(
    agreed: ReplicatedState, at: float, terms: LeaderSettings, rules: Rules
) -> DecisionContext:
    """What a decision sees at a time of the leader's clock, where liveness is agreed on."""
    return DecisionContext(
        agreed.sets,
        lambda name, i: agreed.living.candidate(name, i, at, terms.grace_s),
        rules,
        terms.unclean,
        terms.policy,
        agreed.registers,
    )


def decide(op: int, fields: Json, at: DecisionContext) -> Decision:
    """The decision on a request. One that makes no sense is refused by everybody alike: a log may
    hold one, of a leader that did not look."""
    try:
        return DECISIONS[Op(op)](at, fields)
    except NONSENSE as e:
        if not misshapen(op, fields):
            raise  # the request is sound, and we are not
        remark = f"a malformed request: {type(e).__name__}: {e}"
        return Decision(refusal(Status.INVALID_REQUEST, remark))


def _lead(agreed: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    return ApplyResult(replace(agreed, living=agreed.living.led(command.at)))


def _hear(agreed: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    heartbeats = [Heartbeat(**{**row, "key": tuple(row["key"])}) for row in command.content]
    living, fresh = agreed.living.heard(heartbeats, command.at)
    return ApplyResult(replace(agreed, living=living), fresh=fresh)


def _gone(agreed: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    living, lost = agreed.living.without((name, i) for name, i in command.content)
    return ApplyResult(replace(agreed, living=living), gone=lost, why=command.why)


def _check(agreed: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    """Of these the leader thought that they are late; are they?"""
    late = agreed.living.late(command.at, rules.heartbeat_expired)
    suspects = [(name, i) for name, i in command.content]
    return _gone(agreed, replace(command, content=[s for s in suspects if s in late]), rules)


def _replace(agreed: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    at = context_at(agreed, command.at, command.terms, rules)
    return _decided(agreed, replace_master(at, command.content, command.why))


def _request(agreed: ReplicatedState, command: JraftCommand, rules: Rules) -> ApplyResult:
    op, fields = command.content
    return _decided(
        agreed, decide(op, fields, context_at(agreed, command.at, command.terms, rules))
    )


def _decided(agreed: ReplicatedState, decision: Decision) -> ApplyResult:
    return ApplyResult(agreed.after(decision.events), decision.reply, decision.events)


_TAKEN: Mapping[str, Callable[[ReplicatedState, JraftCommand, Rules], ApplyResult]] = {
    "lead": _lead,
    "hear": _hear,
    "gone": _gone,
    "check": _check,
    "replace": _replace,
    "request": _request,
}
