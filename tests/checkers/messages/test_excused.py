"""Rows are excused singly: against an oracle of every instant, and on whole histories."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkers import loss
from checkers._messages.excused_rows import (
    CaseCount,
    ExcuseCase,
    Holders,
    MissingRequest,
    excuses_by,
    holders_from,
)
from checkers._messages.messages import Members
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.judge.claims import UnclaimedFault
from harness.judge.judge import conclude
from harness.judge.verdict import Judgement
from harness.operation import NONE, F, Type
from harness.trial import Trial

END = 24
BROKERS = ("broker-1", "broker-2", "broker-3")
NAMES: dict[str, Any] = {
    "keys": ["orders-0", "stray"],
    "nodes": list(BROKERS),
    "roles": dict.fromkeys(BROKERS, "broker"),
    "sets": {"set-1": {"nodes": list(BROKERS), "full": 3, "keys": ["orders-0"]}},
}
ROLES = [
    ClusterEvent(0, node, "role", {"brokerName": "set-1", "brokerId": number})
    for number, node in enumerate(BROKERS, 1)
]


def unclaimed(number: int, kind: str, hit: set[str], begin: int, healed: int | None, until: int):
    fault = FaultInterval(
        number, kind, begin=begin, applied=begin, observed=begin, heal=healed, healed=healed
    )
    return UnclaimedFault(fault, frozenset(hit), until, "the system does not claim to survive")


# ------------------------------------------------------------------------------------- an oracle


def held_at(t: int, node: int, key: int, told: list[ClusterEvent]) -> set[str]:
    """Who held at this instant what this node acknowledged."""
    everyone = set(BROKERS) if key == 0 else set()
    decided = [e for e in told if e.kind == "set" and "brokerName" in e.fields and e.t <= t]
    own = [e for e in told if e.kind == "set" and e.node == BROKERS[node] and e.t <= t]
    if key != 0:
        decided = []
    views = [e[-1].fields["set"] for e in (decided, own) if e]
    members = {BROKERS[i - 1] for ids in views for i in ids} if views else everyone
    return members | {BROKERS[node]}


def excuse_of(
    row: tuple[int, int, int, int], told: list[ClusterEvent], faults: list[UnclaimedFault]
) -> tuple[int, ...]:
    key, node, begin, end = row
    holders = set().union(*(held_at(t, node, key, told) for t in range(begin, end + 1)))
    able = [
        u
        for u in faults
        if u.may_break("no-loss") and (u.fault.healed is None or end < u.fault.healed)
    ]
    for one in able:
        if holders <= one.hit:
            return (one.fault.id,)
    for one in able:
        together = [u for u in able if u.begin <= one.begin <= u.until and u.hit & holders]
        if holders <= set().union(*(u.hit for u in together)):
            return tuple(sorted(u.fault.id for u in together))
    return ()


@st.composite
def worlds(draw: Any) -> Any:
    """Events of sets, unclaimed faults and acknowledged sends, at instants of a short time."""
    at, some = st.integers(0, END), st.sets(st.sampled_from((1, 2, 3)), min_size=1).map(sorted)
    told = [
        ClusterEvent(t, "controller-1", "set", {"brokerName": "set-1", "set": ids})
        for t, ids in draw(st.lists(st.tuples(at, some), max_size=4))
    ]
    told += [
        ClusterEvent(t, BROKERS[node], "set", {"set": ids})
        for t, node, ids in draw(st.lists(st.tuples(at, st.integers(0, 2), some), max_size=4))
    ]
    faults = []
    for number in range(draw(st.integers(0, 4))):
        begin, lasts, after = draw(at), draw(st.none() | st.integers(0, 9)), draw(st.integers(0, 5))
        healed = None if lasts is None else begin + lasts
        until = END if healed is None else healed + after
        hit = {BROKERS[i - 1] for i in draw(some)}
        kind = draw(st.sampled_from(("power", "kill", "crash")))  # a crash breaks nothing
        faults.append(unclaimed(number, kind, hit, begin, healed, until))
    sends = draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), at, st.integers(0, 6)), max_size=8)
    )
    rows = [(key, node, begin, min(END, begin + took)) for key, node, begin, took in sends]
    return sorted([*ROLES, *told], key=lambda e: (e.t, e.node)), faults, rows


@settings(max_examples=400)
@given(worlds())
def test_rows_are_excused_as_an_oracle_does_that_looks_at_every_instant(world: Any) -> None:
    """For every message: by the same faults, or not at all."""
    told, faults, sends = world
    who = holders_from(tuple(faults), told, NAMES)
    expected = Counter(
        found for row in sends if (found := excuse_of(row, told, faults)) and row[0] == 0
    )
    sends = [row for row in sends if row[0] == 0]
    pieces = np.array([[who.piece(b), who.piece(e)] for _, _, b, e in sends]).reshape(-1, 2)
    cases = [
        CaseCount(key, node, first, last, 1)
        for (key, node, _, _), (first, last) in zip(sends, pieces.tolist(), strict=True)
    ]
    assert excuses_by(who, cases, []).lost == expected


def test_what_no_group_keeps_is_held_by_whoever_acknowledged_it() -> None:
    """A key that lives in no set that is named: only the node that answered is known."""
    who = holders_from((unclaimed(0, "power", {"broker-2"}, 3, 9, 9),), [], NAMES)
    assert who.excuse("no-loss", ExcuseCase(1, 1, 0, 0)) == (0,)
    assert who.excuse("no-loss", ExcuseCase(1, 0, 0, 0)) == ()
    assert (
        who.excuse("no-loss", ExcuseCase(0, 1, 0, 0)) == ()
    )  # no event names its set: all three held it


# ------------------------------------------------------------------------------------ the kernel


def test_the_kernel_pairs_invocations_with_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of lost messages that no replica holds, whatever batches they are in."""
    rows = [
        (1, Type.INVOKE, F.SEND, 0, 7, NONE, NONE),
        (2, Type.INVOKE, F.SEND, 0, 8, NONE, NONE),
        (2, Type.INVOKE, F.SEND, 0, 9, NONE, NONE),
        (5, Type.OK, F.SEND, 0, 8, 4, 1),
        (6, Type.OK, F.SEND, 0, 7, 5, 2),
        (7, Type.OK, F.SEND, 0, 9, 6, 2),
        (8, Type.OK, F.POLL, 0, 7, 5, NONE),
    ]
    names = ("t", "type", "f", "key", "value", "offset", "node")

    def batches(paths: object, columns: object) -> Any:
        for some in (rows[:4], rows[4:]):
            columns_ = np.array(some, np.int64).T
            yield dict(zip(names, columns_, strict=True))

    monkeypatch.setattr("checkers._messages.excused_rows.arrays", batches)
    lost, kept = Members.of(np.array([7, 8, 9])), Members.of(np.array([9]))
    found = MissingRequest(lost, kept, lost, np.array([3, 6])).acknowledged(("ops", ()))
    assert found[:, :5].tolist() == [[8, 0, 1, 0, 1], [7, 0, 2, 0, 2]]


# ---------------------------------------------------------------------------- a whole history


def power(nodes: tuple[str, ...], begin: int, healed: int, state: str = "installed") -> Any:
    hit = json.dumps({"broker": nodes})
    ms = 1_000_000
    times = (0, 0, begin * ms, begin * ms, begin * ms, healed * ms, healed * ms)
    return (0, "power", "{}", "", hit, *times, state, "{}")


LOST = "send 1 ok@0 [1..2]\nsend 2 ok@1 [30..31]\nsend 3 ok@2 [40..41]\nread 3@2\npoll 3@2\n"
LOST += "stored 3@2\ndrained"


@pytest.mark.parametrize(
    ("fault", "claims", "excused", "verdict"),
    [
        (power(("broker-1", "broker-2"), 5, 20), {}, 1, "invalid"),  # of two lost ones the earlier
        (power(("broker-1", "broker-2"), 5, 36), {}, 2, "unknown"),
        (power(("broker-1",), 5, 36), {}, 0, "invalid"),  # the other one held it, too
        (power(("broker-1", "broker-2"), 5, 36), {"power": "all"}, 0, "invalid"),
        (power(("broker-1", "broker-2"), 5, 36), {"power": "one"}, 2, "unknown"),
        (power(("broker-1", "broker-2"), 5, 36, "failed"), {}, 0, "invalid"),
    ],
)
def test_rows_before_the_healing_are_excused_and_no_others(
    written: Callable[..., History],
    fault: Any,
    claims: dict[str, str],
    excused: int,
    verdict: str,
) -> None:
    """Counted exactly, and the run is what the rest of them makes it."""
    history = written(LOST, faults=[fault])
    trial = Trial(claims={"*": "none", **claims})
    result = loss.check(history, trial, None)
    (finding,) = [f for f in result.findings if f.code == "LOST_ACKED"]
    assert (finding.count, finding.excused) == (2, excused)
    found = conclude([replace(result, reasons=())], history, trial)
    assert found.verdict is Judgement(verdict)
    if verdict == "unknown":
        assert [r.code for r in found.reasons] == ["EXCUSED"]
        assert "LOST_ACKED 2 excused: all 2 were held only by broker-1, broker-2" in found.sentence


def test_what_a_replica_still_holds_was_not_taken_by_damage(
    written: Callable[..., History],
) -> None:
    """The fresh reader did not find it, and it is in one log at the end: that convicts."""
    history = written(LOST, faults=[power(("broker-1", "broker-2"), 5, 36)])
    journal = TableJournal(history.run.journal, "replicas", "runner-2")
    journal.append((0, 0, 0, 1, 1, 0))  # broker-1 holds message 1
    journal.append((1, 2, 0, 9, 1, 0))  # the log of broker-2 was read, too
    journal.close()
    history = History.open(history.run)
    (finding,) = loss.check(history, Trial(claims={"*": "none"}), None).findings[:1]
    assert (finding.code, finding.count, finding.excused) == ("LOST_ACKED", 2, 1)


def test_a_message_in_the_place_of_an_excused_one_is_excused_with_it(
    written: Callable[..., History],
) -> None:
    """The group had been given another at its offset; what it missed elsewhere convicts."""
    text = "send 1 ok@0 [1..2]\npoll 1@0 [3..4]\nsend 2 ok@0 [40..41]\nsend 3 ok@1 [42..43]\n"
    text += "read 2@0 3@1\nstored 2@0 3@1\ndrained"
    history = written(text, faults=[power(("broker-1", "broker-2"), 5, 36)])
    found = loss.check(history, Trial(claims={"*": "none"}), None).findings
    assert {f.code: (f.count, f.excused) for f in found} == {
        "LOST_ACKED": (1, 1),
        "UNREAD_ACKED": (2, 1),
    }


def test_holders_are_sent_to_executors_whole() -> None:
    """What a step holds is pickled."""
    import pickle

    who = holders_from((unclaimed(0, "power", {"broker-2"}, 3, 9, 9),), ROLES, NAMES)
    again: Holders = pickle.loads(pickle.dumps(who))
    assert again == who
