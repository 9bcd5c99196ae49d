"""The shared pass over operations, held against a count in plain Python."""

from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkers._run.timeline import (
    CellKind,
    TimelineQuery,
    bucket_of,
    cells,
    latency_ms,
    measure,
    merge,
)
from checkers._run.timeline_query import Timeline
from harness.history.faults_and_events import TimeWindow
from harness.history.journal import TableJournal
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import OPS
from harness.operation import NONE, SENDS, F, Type

Row = dict[str, Any]
MS = 1_000_000
ASK = TimelineQuery(
    bin_ns=100 * MS,
    fine_ns=10 * MS,
    windows=((0, 400 * MS), (300 * MS, 900 * MS)),
    marks=(100 * MS, 500 * MS),
)

operation = st.tuples(
    st.sampled_from([F.SEND, F.POLL]),
    st.integers(0, 1000),  # invoked, ms
    st.one_of(st.none(), st.integers(0, 300)),  # took, ms; None: it never completed
    st.sampled_from([Type.OK, Type.FAIL, Type.INFO]),
)
histories = st.lists(operation, max_size=40)


def rows_of(history: list[tuple[F, int, int | None, Type]]) -> list[Row]:
    rows: list[Row] = []
    for number, (f, at, took, kind) in enumerate(history):
        row = dict.fromkeys(OPS.names) | {"op": number, "f": int(f), "process": 0, "key": 0}
        rows.append({**row, "t": at * MS, "type": int(Type.INVOKE)})
        if took is not None:
            done = (at + took) * MS
            if f is F.POLL and kind is Type.OK:
                rows.append({**row, "t": done, "type": int(kind), "pos": 0, "value": number})
            rows.append({**row, "t": done, "type": int(kind)})
    return sorted(rows, key=lambda row: row["t"])


def measured(rows: list[Row], ask: TimelineQuery = ASK) -> Timeline:
    return Timeline(cells(pa.Table.from_pylist(rows, schema=OPS).to_batches(), ask), ask)


@given(histories)
def test_counts_are_exact(history: list[tuple[F, int, int | None, Type]]) -> None:
    """Totals, windows and lanes count every row of every type once."""
    answers = measured(rows_of(history))
    for f in (F.SEND, F.POLL):
        for kind in (Type.OK, Type.FAIL, Type.INFO):
            ended = [(a + t) for g, a, t, k in history if g is f and k is kind and t is not None]
            assert answers.total(f, kind) == len(ended)
            assert sum(answers.lane(CellKind.OPS, (f,), kind)) == len(ended)
            for number, (begin, end) in enumerate(ASK.windows):
                inside = [t for t in ended if begin <= t * MS < end]
                assert answers.in_window(number, (f,), kind) == len(inside)
        assert answers.total(f, Type.INVOKE) == sum(g is f for g, *_ in history)


@given(histories)
def test_first_success_after_a_mark(history: list[tuple[F, int, int | None, Type]]) -> None:
    """Only operations invoked at or after the mark can answer it."""
    answers = measured(rows_of(history))
    for number, mark in enumerate(ASK.marks):
        for f in (F.SEND, F.POLL):
            done = [
                (a + t) * MS
                for g, a, t, k in history
                if g is f and t is not None and k is Type.OK and a * MS >= mark
            ]
            assert answers.answer(number, (f,)) == min(done, default=None)


@given(histories)
def test_outage_from_first_failure_to_next_success(
    history: list[tuple[F, int, int | None, Type]],
) -> None:
    """The outage begins with the invocation of the first send that failed after the mark."""
    answers = measured(rows_of(history))
    sends = [(a, a + t, k) for f, a, t, k in history if f is F.SEND and t is not None]
    for number, mark in enumerate(ASK.marks):
        failures = [
            (end, begin) for begin, end, k in sends if k is not Type.OK and end * MS >= mark
        ]
        outage = answers.outage(number)
        if not failures:
            assert outage is None
            continue
        seen = min(failures)[0]
        later = [end * MS for _, end, k in sends if k is Type.OK and end > seen]
        assert outage is not None
        assert outage.seen == seen * MS
        assert outage.begin in {begin * MS for end, begin in failures if end == seen}
        assert (outage.end is None) == (not later)
        assert outage.end is None or 0 <= outage.end - min(later) <= ASK.fine_ns


@given(histories)
def test_silences_are_exact_beyond_a_fine_bin(
    history: list[tuple[F, int, int | None, Type]],
) -> None:
    """The longest stretch without acknowledgement is found to the nanosecond."""
    answers = measured(rows_of(history))
    window = TimeWindow(200 * MS, 800 * MS)
    acked = [
        (a + t) * MS for f, a, t, k in history if f is F.SEND and t is not None and k is Type.OK
    ]
    edges = sorted(
        [window.begin, window.end, *(t for t in acked if window.begin <= t < window.end)]
    )
    longest = max(b - a for a, b in pairwise(edges))
    found = max(s.end - s.begin for s in answers.silences(window))
    assert found == longest or max(found, longest) <= ASK.fine_ns


@given(histories, st.integers(0, 80))
def test_files_merge_in_any_order(history: list[tuple[F, int, int | None, Type]], cut: int) -> None:
    """CellKind is merged from two writers' files equals what one pass would count."""
    rows = rows_of(history)
    parts = [[r for r in rows if r["op"] % 2 == side] for side in (0, 1)]
    tables = [cells(pa.Table.from_pylist(p, schema=OPS).to_batches(), ASK) for p in parts]
    assert merge(tables).equals(merge(reversed(tables)))
    whole = Timeline(merge(tables), ASK)
    once = measured(rows)
    assert whole.latency_lane(0.99) == once.latency_lane(0.99)
    lanes = [each.lane(CellKind.OPS, SENDS, Type.OK) for each in (whole, once)]
    assert lanes[0] == lanes[1]
    assert whole.quantiles_ms([0.5, 0.99]) == once.quantiles_ms([0.5, 0.99])


def test_pairs_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that is open at a chunk's end finds its invocation in the next chunk."""
    rows = rows_of([(F.SEND, i, 50, Type.OK) for i in range(100)])
    whole = measured(rows).quantiles_ms([0.0, 0.5, 1.0])
    monkeypatch.setattr("checkers._run.timeline.CHUNK_ROWS", 7)
    batches = pa.Table.from_pylist(rows, schema=OPS).to_batches(max_chunksize=3)
    chunked = Timeline(cells(batches, ASK), ASK)
    assert chunked.quantiles_ms([0.0, 0.5, 1.0]) == whole
    assert chunked.worst_ms() == 50.0


def test_the_error_of_a_clock_is_no_latency(tmp_path: Path) -> None:
    """A crew whose clock may be off stamps early and late by the error, which run.json has."""
    run = RunDir(tmp_path)
    run.write_names({"keys": ["q"]})
    run.update_state(ended=True, clocks={"client-1": {"offset_ns": 7, "error_ns": 5 * MS}})
    for writer, error in (("client-1", 5 * MS), ("client-2", 0)):
        table = TableJournal(run.journal, "ops", writer)
        for n in range(10):
            op = int(writer[-1]) * 100 + n
            at, row = n * 100 * MS + 5 * MS, (0, op)
            table.append((at - error, *row, Type.INVOKE, F.SEND, 0, *[NONE] * 8))
            table.append((at + error + 2 * MS, *row, Type.OK, F.SEND, 0, *[NONE] * 8))
        table.close()
    answers = Timeline(measure(History.open(run), ASK, None), ASK)
    assert answers.worst_ms() == 2.0
    assert answers.quantiles_ms([0.01, 0.99]) == pytest.approx([2, 2], rel=0.05)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(history=histories)
def test_what_is_open_is_known_across_chunks(
    monkeypatch: pytest.MonkeyPatch, history: list[tuple[F, int, int | None, Type]]
) -> None:
    """A poll's messages may be in one chunk and its end in another."""
    rows = rows_of(history)
    monkeypatch.setattr("checkers._run.timeline.CHUNK_ROWS", 1 << 18)
    whole = measured(rows)
    monkeypatch.setattr("checkers._run.timeline.CHUNK_ROWS", 1)
    batches = pa.Table.from_pylist(rows, schema=OPS).to_batches(max_chunksize=1)
    chunked = Timeline(cells(batches, ASK), ASK)
    for number, (_, end) in enumerate(ASK.windows):
        assert chunked.in_flight[number] == whole.in_flight[number]
        for f in (F.SEND, F.POLL):
            mine = [(at, took) for g, at, took, _ in history if g is f]
            left = sum(a * MS < end and (t is None or (a + t) * MS >= end) for a, t in mine)
            assert chunked.left_open(number, f) == whole.left_open(number, f) == left


@given(st.integers(1_000, 10**12))
def test_a_bucket_is_within_five_percent(latency_ns: int) -> None:
    """Latency buckets keep quantiles within 4.5 % of the truth."""
    middle = latency_ms(int(bucket_of(np.array([latency_ns]))[0]))
    assert abs(middle * 1e6 / latency_ns - 1) < 0.045


@given(histories, st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_what_so_many_did_not_exceed(
    history: list[tuple[F, int, int | None, Type]], quantile: float
) -> None:
    """Of the acknowledged sends, as near as a bucket is."""
    sends = [t for f, _, t, kind in history if (f, kind) == (F.SEND, Type.OK)]
    took = sorted(t for t in sends if t is not None)
    (found,) = measured(rows_of(history)).quantiles_ms([quantile])
    if took:
        at = max(0, ceil(quantile * len(took)) - 1)
        assert found == pytest.approx(took[at], rel=0.045, abs=0.002)
    else:
        assert found is None


def test_an_empty_history_answers_never() -> None:
    """Nothing recorded is None and zero, not an error."""
    answers = measured([])
    assert answers.answer(0, (F.SEND,)) is None
    assert answers.outage(0) is None
    assert answers.worst_ms() is None
    assert answers.total(F.SEND, Type.OK) == 0
    assert list(answers.bins) == []
    assert [s.length_s for s in answers.silences(TimeWindow(0, 10**9))] == [1.0]


@settings(max_examples=50)
@given(histories)
def test_latencies_in_a_span_of_windows(history: list[tuple[F, int, int | None, Type]]) -> None:
    """Those acknowledged in any of a span's windows count, and no quantile is above the worst."""
    ask = replace(ASK, spans=(range(2), range(1, 2), range(0)))
    answers = measured(rows_of(history), ask)
    sends = [(at, t) for f, at, t, kind in history if (f, kind) == (F.SEND, Type.OK)]
    took = [(at + t, t) for at, t in sends if t is not None]
    for number, (begin, end) in enumerate([(0, 900), (300, 900), (0, 0)]):
        worst = max((t for done, t in took if begin <= done < end), default=None)
        (found,) = answers.quantiles_ms([1.0], number)
        assert (found is None) == (worst is None)
        if worst is not None:
            assert found == min(worst, latency_ms(int(bucket_of(np.array([worst * MS]))[0])))


def test_an_operation_that_was_refused_by_what_it_found_is_answered() -> None:
    """A compare-and-set that found another value: a row with a position, and yet a completion."""
    rows = [
        {"t": 10, "op": 1, "type": Type.INVOKE, "f": F.CAS, "key": 0},
        {"t": 20, "op": 1, "type": Type.FAIL, "f": F.CAS, "key": 0, "pos": 0},
    ]
    absent = dict.fromkeys(OPS.names)
    table = pa.Table.from_pylist([absent | {"process": 0} | row for row in rows], schema=OPS)
    ask = TimelineQuery(bin_ns=100, fine_ns=10, windows=((0, 50),), marks=(5,))
    answers = Timeline(cells(table.to_batches(), ask), ask)
    assert answers.total(F.CAS, Type.FAIL) == 1
    assert answers.answer(0, (F.CAS,)) == 20
    assert answers.left_open(0, F.CAS) == 0
