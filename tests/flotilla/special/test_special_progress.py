"""Envelopes, and what a new master concludes from the progress that it has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.special.envelope import (
    DelayRequest,
    Envelope,
    EnvelopeError,
    HalfCheck,
    HalfDecision,
    HalfRequest,
    op_record,
)
from clusters.flotilla.special.progress import (
    DelayProgress,
    EscapedRecords,
    due_of,
    log_has,
    noted_until,
    pause_s,
    resumed,
)

TEXTS, BYTES = st.text("abcä%", min_size=1, max_size=20), st.binary(max_size=40)
WIDE, SMALL = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**16 - 1)


@given(
    st.builds(Envelope, st.integers(0, 255), TEXTS, SMALL, BYTES, BYTES, WIDE, WIDE, WIDE, SMALL)
)
def test_an_envelope_is_read_as_it_was_written(envelope: Envelope) -> None:
    """A part of its head, or of its names, is no envelope."""
    packed = envelope.pack()
    assert Envelope.unpack(packed) == envelope
    names = len(envelope.topic.encode()) + len(envelope.key)
    cut = len(packed) - len(envelope.body) - 1
    assert cut >= names
    with pytest.raises(EnvelopeError):
        Envelope.unpack(packed[:cut])


@given(TEXTS, WIDE, BYTES)
def test_requests_are_read_as_they_were_written(text: str, number: int, body: bytes) -> None:
    requests = (DelayRequest(text, number, body), HalfRequest(text, text, body))
    for request in (*requests, HalfDecision(number, commit=True)):
        assert type(request).unpack(request.pack()) == request
        with pytest.raises(EnvelopeError):
            type(request).unpack(b"\xff")


@given(st.integers(0, 2**63 - 1), st.booleans())
def test_a_record_of_a_question_is_not_taken_for_a_decision(half: int, commit: bool) -> None:
    """An edition that knows decisions only finds one about no half message."""
    decision = HalfDecision(half, commit)
    assert op_record(decision.pack()) == decision
    assert op_record(HalfCheck(half).pack()) == HalfCheck(half)
    assert HalfDecision.unpack(HalfCheck(half).pack()).half < 0


EPOCHS = EpochTable(((1, 0), (2, 100), (4, 300)))  # of a log that ends at 400


@pytest.mark.parametrize(
    ("end", "epoch", "is_there"),
    [
        (0, 0, True),  # nothing was put yet
        (100, 1, True),
        (100, 2, False),
        (300, 2, True),
        (301, 2, False),  # the next master wrote something else there
        (400, 4, True),
        (401, 4, False),  # it was cut
        (50, 3, True),  # deleted by retention since
    ],
)
def test_whether_a_log_has_what_progress_counts(end: int, epoch: int, is_there: bool) -> None:
    assert log_has(end, epoch, EPOCHS, 60 if epoch == 3 else 0, 400) is is_there


def test_progress_that_the_log_lacks_does_not_count() -> None:
    """Messages before the floor were confirmed, so every later log has them."""
    progress = DelayProgress(floor=5, due_ms=1000, end=401, epoch=4)
    assert resumed(progress, is_in_log=True) == progress
    assert resumed(progress, is_in_log=False) == DelayProgress(5, 0, 401, 4)


@pytest.mark.parametrize(
    ("due_ms", "waits_s"),
    [(1300, 0.3), (1001, 0.001), (1000, 0.1), (400, 0.1), (3_600_000, 1.0)],
)
def test_a_scan_waits_until_the_next_message_is_due(due_ms: int, waits_s: float) -> None:
    """It looks at the wall clock every second, and tries again at intervals what is overdue."""
    assert pause_s(due_ms, 1000, 0.1) == waits_s


def test_a_message_is_due_after_everything_that_was_put() -> None:
    """Also on a master whose clock is behind the last one's."""
    assert due_of(1000, 50, 900) == 1050
    assert due_of(1000, 50, 2000) == 2001


@given(st.lists(st.integers(1, 9), min_size=1), st.data(), st.booleans())
def test_what_is_noted_leaves_nothing_out(
    dues: list[int], data: st.DataObject, strict: bool
) -> None:
    """Also of messages that are due at one instant, of which only some are put, or confirmed."""
    dues = sorted(dues)
    put = data.draw(st.integers(1, len(dues)))
    confirmed = data.draw(st.integers(1, put))
    rest = dues[confirmed if strict else put :]
    next_ms = rest[0] if rest else dues[put - 1] + 1
    noted = noted_until(dues[put - 1], dues[confirmed - 1], next_ms, strict)
    assert all(due > noted for due in rest)
    assert rest or noted == dues[-1]


RECORDS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=40)


@given(RECORDS, RECORDS, st.integers(0, 13))
def test_escaped_records_are_known_from_their_rows(
    first: list[tuple[int, int]], second: list[tuple[int, int]], floor: int
) -> None:
    """A set of records, as two brokers noted them, until no scan reads them again."""
    rows: dict[tuple[str, str, int], int] = {}
    for records in (first, second):
        noted, own = EscapedRecords("%delay", {}), dict[tuple[str, str, int], int]()
        for record in records:
            for _, key, end in noted.add(*record):
                own[tuple(key)] = end
        for key, end in own.items():
            rows[key] = max(end, rows.get(key, 0))
    known = EscapedRecords("%delay", {key: end for key, end in rows.items() if end})
    every = [(epoch, offset) for epoch in range(1, 4) for offset in range(13)]
    assert {r for r in every if known.has(*r)} == {*first, *second}
    assert not any(EscapedRecords("%half", rows).has(*record) for record in every)
    gone = [tuple(key) for _, key, end in known.forget_before(floor) if not end]
    left = EscapedRecords("%delay", {k: end for k, end in rows.items() if end and k not in gone})
    assert {r for r in every if left.has(*r)} >= {r for r in (*first, *second) if r[1] >= floor}
