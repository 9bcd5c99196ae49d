"""The effect of entries of the controllers' log, in both modes ("Controllers" in
docs/flotilla-design.md)."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.controllers.controller_requests import DECISIONS
from clusters.flotilla.controllers.controller_state import encode
from clusters.flotilla.controllers.elect import BrokerStatus
from clusters.flotilla.controllers.liveness import Heartbeat
from clusters.flotilla.controllers.state_machine import (
    ApplyResult,
    JraftCommand,
    LeaderSettings,
    ReplicatedState,
    apply_entry,
    context_at,
    decide,
)
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.rules import RULES

TERMS = LeaderSettings(unclean=False, policy="water-level", grace_s=10)
TIMEOUT_S = 10.0


def beat(broker_id: int, number: int = 1, *, life: int = 1, max_offset: int = 0) -> Json:
    return asdict(Heartbeat(("b", broker_id), "ip:1", TIMEOUT_S, 1, max_offset, 0, 9, life, number))


def applied(
    state: ReplicatedState, kind: str, at: float, content: Any = None, why: str = ""
) -> ApplyResult:
    return apply_entry(state, JraftCommand(kind, at, TERMS, content, why).pack(), RULES)


def requested(state: ReplicatedState, at: float, op: Op, **fields: Any) -> ApplyResult:
    return applied(state, "request", at, [int(op), fields])


def status(state: ReplicatedState, broker_id: int, at: float) -> BrokerStatus:
    return context_at(state, at, TERMS, RULES).status("b", broker_id)


def fleet(count: int = 3) -> ReplicatedState:
    """A leader since 0, brokers heard at 0, broker 1 the master of a full set."""
    state = applied(ReplicatedState(), "lead", 0).state
    state = applied(state, "hear", 0, [beat(i, max_offset=i) for i in range(1, count + 1)]).state
    for i in range(1, count + 1):
        fields = identity(i)
        state = requested(state, 0, Op.APPLY_BROKER_ID, **fields, checkCode=f"c{i}").state
    state = requested(state, 0, Op.ELECT_MASTER, brokerName="b", brokerId=1).state
    change = {"masterId": 1, "masterEpoch": 1, "setEpoch": 1, "set": list(range(1, count + 1))}
    return requested(state, 0, Op.ALTER_SYNC_STATE_SET, brokerName="b", **change).state


def identity(broker_id: int) -> Json:
    return {
        "cluster": "f",
        "brokerName": "b",
        "brokerId": broker_id,
        "addr": f"ip:{broker_id}",
        "haAddr": "ha",
    }


def test_a_request_is_decided_where_it_is_applied() -> None:
    """jraft: the entry is the request; its answer and its effect result from applying it."""
    state = fleet()
    row = state.sets["b"]
    assert (row.master_id, row.sync_set, row.set_epoch) == (1, (1, 2, 3), 2)
    state = applied(state, "gone", 1, [["b", 1]], "closed").state
    result = applied(state, "replace", 1, "b", "closed")
    assert result.state.sets["b"].master_id == 3
    assert [event.trigger for event in result.events] == ["closed"]  # type: ignore[union-attr]


def test_silence_is_measured_by_the_leader_who_asks() -> None:
    """jraft: a broker is late after its timeout and not before (apache/rocketmq#9717, #8380);
    others are left alone."""
    state = applied(fleet(2), "hear", 9, [beat(2, 2)]).state
    both = [["b", 1], ["b", 2]]
    assert applied(state, "check", 10, both).gone == []
    result = applied(state, "check", 10.1, both, "expired")
    assert (result.gone, result.why) == ([("b", 1)], "expired")
    assert status(result.state, 1, 10.1) is BrokerStatus.DEAD
    assert status(result.state, 2, 10.1) is BrokerStatus.ALIVE
    assert applied(result.state, "hear", 11, [beat(1, 2)]).returned == [("b", 1)]


def test_clocks_of_two_leaders_have_nothing_to_do_with_each_other() -> None:
    """jraft: in RocketMQ a skew between machines expires living brokers, or none."""
    for clock in (1e6, -1e6):
        state = applied(fleet(2), "lead", clock).state
        suspects = [["b", 1], ["b", 2]]
        assert applied(state, "check", clock + 9, suspects).gone == []
        assert len(applied(state, "check", clock + 11, suspects).gone) == 2
        assert status(state, 7, clock + 9) is BrokerStatus.UNKNOWN
        assert status(state, 7, clock + 11) is BrokerStatus.DEAD


def test_a_heartbeat_that_comes_late_changes_nothing() -> None:
    """The newest heartbeat counts, also when an older one is logged after it."""
    state = applied(fleet(1), "hear", 1, [beat(1, 5, max_offset=50)]).state
    assert applied(state, "hear", 2, [beat(1, 4, max_offset=90)]).state == state


def test_what_makes_no_sense_is_refused_by_everybody() -> None:
    """The log may hold malformed requests; they must stop no controller."""
    result = requested(fleet(), 1, Op.ALTER_SYNC_STATE_SET, brokerName="b")
    assert result.reply["code"] == Status.INVALID_REQUEST
    assert result.state == fleet()


REQUESTS = st.builds(
    lambda op, at, i, members: JraftCommand("request", at, TERMS, [int(op), fields(i, members)]),
    st.sampled_from(
        [
            Op.APPLY_BROKER_ID,
            Op.REGISTER_TO_CONTROLLER,
            Op.ELECT_MASTER,
            Op.ALTER_SYNC_STATE_SET,
            Op.CLEAN_BROKER_DATA,
            Op.KV_PUT,
            Op.KV_CAS,
        ]
    ),
    st.integers(0, 50),
    st.integers(1, 3),
    st.lists(st.integers(1, 3), max_size=3),
)
COMMANDS = st.one_of(
    st.builds(
        lambda at: JraftCommand("lead", at, TERMS),
        st.integers(-50, 50),
    ),
    st.builds(
        lambda at, beats: JraftCommand("hear", at, TERMS, [beat(*b) for b in beats]),
        st.integers(0, 50),
        st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=3),
    ),
    st.builds(
        lambda kind, at, i: JraftCommand(kind, at, TERMS, [["b", i]], "x"),
        st.sampled_from(["gone", "check"]),
        st.integers(0, 50),
        st.integers(1, 3),
    ),
    st.builds(
        lambda at, unclean: JraftCommand(
            "replace", at, replace(TERMS, unclean=unclean), "b", "scan"
        ),
        st.integers(0, 50),
        st.booleans(),
    ),
    REQUESTS,
)


def fields(i: int, members: list[int]) -> Json:
    at = {"masterId": i, "masterEpoch": 1, "setEpoch": 1, "set": members, "brokerIds": members}
    registers = {"namespace": "n", "key": f"k{i}", "expected": None, "value": str(members)}
    return {**identity(i), "checkCode": f"c{i}", **at, **registers}


@given(st.lists(COMMANDS, max_size=25), st.integers(0, 25))
def test_every_controller_comes_to_the_same(commands: list[JraftCommand], cut: int) -> None:
    """Controllers that applied the same entries have the same state and give the same answers; a
    snapshot between two entries replaces the entries before it (Raft 7)."""
    here = there = fleet()
    for number, command in enumerate(commands):
        if number == cut:
            there = ReplicatedState.unpack(there.pack())
        entry = command.pack()
        ours, theirs = apply_entry(here, entry, RULES), apply_entry(there, entry, RULES)
        assert ours == theirs
        here, there = ours.state, theirs.state
    assert ReplicatedState.unpack(here.pack()) == here


@given(st.lists(REQUESTS, max_size=15))
def test_both_flavours_agree(commands: list[JraftCommand]) -> None:
    """What a dledger leader computes and logs is what every jraft controller would compute."""
    jraft = dledger = fleet()
    for command in commands:
        op, request = command.content
        decision = decide(op, request, context_at(dledger, command.at, command.terms, RULES))
        if decision.events:
            dledger = apply_entry(dledger, encode(decision.events), RULES).state
        result = apply_entry(jraft, command.pack(), RULES)
        jraft = result.state
        assert (result.reply, jraft) == (decision.reply, dledger)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(sorted(fields(1, [1])))


@given(
    st.sampled_from(sorted(DECISIONS)),
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.booleans(),
)
def test_no_request_stops_a_controller(op: Op, nonsense: Json, whole: bool) -> None:
    """An entry that could not be applied would stop every controller, again after each start."""
    request = (fields(1, [1, 2]) if whole else {}) | nonsense
    result = requested(fleet(), 1, op, **request)
    assert apply_entry(fleet(), encode(result.events), RULES).state == result.state
    assert ReplicatedState.unpack(result.state.pack()) == result.state


# registers


def cas(state: ReplicatedState, expected: str | None, value: str | None) -> ApplyResult:
    return requested(state, 0, Op.KV_CAS, namespace="n", key="k", expected=expected, value=value)


def value(state: ReplicatedState) -> str | None:
    at = context_at(state, 0, TERMS, RULES)
    reply: Mapping[str, Any] = decide(Op.KV_GET, {"namespace": "n", "key": "k"}, at).reply
    found: str | None = reply["value"]
    return found


def test_a_register_changes_only_from_what_was_expected() -> None:
    """Compare and set: absent is null; a refusal returns the present value and changes nothing."""
    first = cas(ReplicatedState(), None, "a")
    assert (first.reply["value"], value(first.state)) == ("a", "a")
    refused = cas(first.state, None, "b")
    assert (refused.reply["code"], refused.reply["value"]) == (Status.KV_VALUE_DIFFERS, "a")
    assert refused.state == first.state
    assert value(cas(first.state, "a", "c").state) == "c"
    assert cas(first.state, "a", None).state == ReplicatedState()


def test_a_put_register_holds_its_value() -> None:
    """A value is put, and removed."""
    put = requested(ReplicatedState(), 0, Op.KV_PUT, namespace="n", key="k", value="x")
    assert value(put.state) == "x"
    again = requested(put.state, 0, Op.KV_PUT, namespace="n", key="k", value=None)
    assert value(again.state) is None
    wrong = requested(put.state, 0, Op.KV_PUT, namespace="n", key="k", value=3)
    assert (wrong.reply["code"], wrong.state) == (Status.INVALID_REQUEST, put.state)
