"""Rows that come over a stream are the same journal: all of them, in the order of their times."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import BedFailed
from harness.history.journal import announced_rows, read_stream
from harness.history.row_stream import RowStream, pack_integers, pack_texts
from harness.operation import NONE, Type
from harness.run.client_pool import RowReceiver

ERROR_NS = 20
Row = tuple[int, ...]
# how much later each event is on the node's clock, and whether it is an invocation
EVENTS = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60)


def op(t: int, number: int, kind: Type) -> Row:
    return (t, 1, number, kind, 1, 3, number, NONE, NONE, NONE, NONE, NONE, NONE, NONE)


def portions(table: str, parts: Sequence[Sequence[Any]]) -> list[Mapping[str, Any]]:
    """What a crew says of these rows, portion by portion, after a journey as text."""
    said: list[Mapping[str, Any]] = []
    stream = RowStream(table, pack_integers if table == "ops" else pack_texts, said.append)
    for part in parts:
        stream._rows.extend(part)
        stream.flush()
    return [json.loads(json.dumps(portion)) for portion in said]


def taken(folder: Path, said: Sequence[Mapping[str, Any]], error_ns: int) -> list[Any]:
    """The journal's rows of ops, and what its counter says."""
    intake = RowReceiver(folder, "client-1", error_ns)
    for portion in said:
        intake.receive(portion)
    intake.close()
    path = folder / "ops-client-1-000.arrows"
    rows = [tuple(row.values()) for batch in read_stream(path) for row in batch.to_pylist()]
    assert announced_rows(path) == len(rows)
    return rows


@settings(max_examples=60)
@given(events=EVENTS, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_no_row_is_lost_and_time_does_not_go_back(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, bool]], cuts: list[int]
) -> None:
    """Stamped early and late by the error, in any portions: sorted, complete, ties as they came."""
    clock, rows = 100, []
    for number, (later, begins) in enumerate(events):
        clock += later
        stamp = clock - ERROR_NS if begins else clock + ERROR_NS
        rows.append(op(stamp, number, Type.INVOKE if begins else Type.OK))
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    said = portions("ops", [rows[a:b] for a, b in pairwise(edges)])
    found = taken(tmp_path_factory.mktemp("journal"), said, ERROR_NS)
    wanted = sorted(rows, key=lambda row: row[0])
    assert found == [tuple(None if x == NONE else x for x in row) for row in wanted]


def test_what_can_still_be_overtaken_is_held_back(tmp_path: Path) -> None:
    """A row is written when nothing earlier can come: twice the error behind the newest."""
    intake = RowReceiver(tmp_path, "client-1", ERROR_NS)
    (portion,) = portions("ops", [[op(t, t, Type.OK) for t in (100, 140, 141)]])
    intake.receive(portion)
    assert announced_rows(tmp_path / "ops-client-1-000.arrows") == 1
    intake.close()
    assert announced_rows(tmp_path / "ops-client-1-000.arrows") == 3


def test_on_the_same_clock_rows_are_written_at_once(tmp_path: Path) -> None:
    """No error, nothing to wait for."""
    intake = RowReceiver(tmp_path, "client-1", 0)
    (portion,) = portions("ops", [[op(t, t, Type.OK) for t in (100, 140, 141)]])
    intake.receive(portion)
    assert announced_rows(tmp_path / "ops-client-1-000.arrows") == 3
    intake.close()


def test_a_portion_that_is_missing_is_said(tmp_path: Path) -> None:
    """A gap in the history is a failure of the bed, with the rows in it."""
    first, second, third = portions("ops", [[op(t, t, Type.OK)] for t in (1, 2, 3)])
    intake = RowReceiver(tmp_path, "client-1", 0)
    intake.receive(first)
    with pytest.raises(BedFailed, match="rows 1 to 2 of ops did not arrive from client-1"):
        intake.receive(third)
    intake.receive(second)
    intake.close()


def test_notes_come_as_they_were_written(tmp_path: Path) -> None:
    """Text in any script; NONE is nobody."""
    (portion,) = portions("notes", [[(5, 1, 7, "no answer"), (6, NONE, NONE, "Größe \u2028")]])
    intake = RowReceiver(tmp_path, "client-1", 0)
    intake.receive(portion)
    intake.close()
    (batch,) = read_stream(tmp_path / "notes-client-1-000.arrows")
    assert batch.to_pylist() == [
        {"t": 5, "process": 1, "op": 7, "text": "no answer"},
        {"t": 6, "process": None, "op": None, "text": "Größe \u2028"},
    ]
