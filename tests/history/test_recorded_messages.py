"""The messages of a failed simulated run: stored whole, and read from any folder without harm."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import BadRequest
from harness.history.messages import (
    MAX_MESSAGES,
    NOTE,
    MessageRecording,
    RecordedMessage,
    RecordingWindow,
    choose_messages,
    read_messages,
    write_messages,
)
from harness.history.rundir import RunDir
from harness.history.schema import MESSAGES

WINDOW = RecordingWindow(0, 6_000_000_000, 5_000_000_000, "d1")
ONE = RecordedMessage(10, 20, False, "a", "b", "send", 100, False)
ROW: dict[str, Any] = dict(
    zip(MESSAGES.names, (10, 20, False, "a", "b", "send", 100, False), strict=True)
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    made.update_state(digest="d1")
    return made


def stored(
    run: RunDir, rows: list[dict[str, Any]], schema: pa.Schema = MESSAGES, **note: Any
) -> None:
    fields = {"begin": 0, "end": 6, "moment": 5, "digest": "d1", "left_out": 0, **note}
    noted = schema.with_metadata({NOTE: json.dumps(fields).encode()})
    pq.write_table(pa.Table.from_pylist(rows, noted), run.messages_file, compression="zstd")


def test_what_is_written_is_read(run: RunDir) -> None:
    """In order of time, with what was left out."""
    lost = replace(ONE, sent=5, received=None, lost=True, routine=True)
    write_messages(run, MessageRecording(WINDOW, [ONE, lost], 7))
    assert read_messages(run) == MessageRecording(WINDOW, [lost, ONE], 7)


def test_nothing_recorded_is_nothing(run: RunDir) -> None:
    """A run without the file has none; a recording of no message is one."""
    assert read_messages(run) is None
    write_messages(run, MessageRecording(WINDOW, []))
    assert read_messages(run) == MessageRecording(WINDOW, [])


def test_routine_and_distant_messages_are_left_out_first() -> None:
    """Of more than fit."""
    routine = [replace(ONE, sent=WINDOW.moment, received=None, routine=True)] * 10
    far = replace(ONE, sent=0)
    near = [replace(ONE, sent=WINDOW.moment + n, received=None) for n in range(MAX_MESSAGES - 1)]
    kept = choose_messages(WINDOW, [*routine, far, *near])
    assert kept.messages == [far, *near]
    assert kept.left_out == 10
    fewer = choose_messages(WINDOW, [far, *near, replace(ONE, sent=1)])
    assert far not in fewer.messages
    assert fewer.left_out == 1


def torn(run: RunDir) -> None:
    stored(run, [ROW] * 100)
    run.messages_file.write_bytes(run.messages_file.read_bytes()[:-30])


def foreign(run: RunDir) -> None:
    run.messages_file.write_text("<script>alert(1)</script>")


def flipped(run: RunDir) -> None:
    stored(run, [ROW] * 100)
    data = bytearray(run.messages_file.read_bytes())
    data[20:60] = bytes(40)
    run.messages_file.write_bytes(data)


def huge(run: RunDir) -> None:
    with run.messages_file.open("wb") as file:
        file.truncate(1 << 40)


def bomb(run: RunDir) -> None:
    stored(run, [{**ROW, "kind": "x" * (40 << 20)}])


def nulls(run: RunDir) -> None:
    loose = pa.schema([field.with_nullable(True) for field in MESSAGES])
    stored(run, [{**ROW, "sent": None}], loose)


def columns(run: RunDir) -> None:
    pq.write_table(pa.table({"a": [1]}), run.messages_file)


def notes(run: RunDir) -> None:
    broken = MESSAGES.with_metadata({NOTE: b"[1, 2"})
    pq.write_table(pa.Table.from_pylist([ROW], broken), run.messages_file)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (torn, "torn or foreign data"),
        (foreign, "torn or foreign data"),
        (flipped, "torn or foreign data"),
        (notes, "torn or foreign data"),
        (huge, "more than 2 MB"),
        (bomb, "more than 5,000 messages can take"),
        (nulls, "columns"),
        (columns, "columns"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(
    run: RunDir, write: Callable[[RunDir], object], why: str
) -> None:
    """In one sentence, whatever is wrong with it."""
    write(run)
    with pytest.raises(BadRequest, match=why) as e:
        read_messages(run)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("note", "why"),
    [
        ({"digest": "d2"}, "another run"),
        ({"digest": ["d1"]}, "another run"),
        ({"moment": 7}, "times"),
        ({"end": 1 << 62}, "times"),
        ({"begin": True}, "times"),
    ],
)
def test_a_note_that_is_wrong_is_refused(run: RunDir, note: dict[str, Any], why: str) -> None:
    """It says of which run the messages are, and of which part."""
    stored(run, [ROW], **note)
    with pytest.raises(BadRequest, match=why):
        read_messages(run)


@pytest.mark.parametrize(
    ("row", "count", "why"),
    [
        ({}, MAX_MESSAGES + 1, "more than 5,000 messages"),
        ({"received": 9}, 1, "times"),
        ({"sent": -1}, 1, "times"),
        ({"sent": 1 << 62, "received": None}, 1, "times"),
        ({"kind": "x" * 81}, 1, "more than 80 letters"),
        ({"source": "x" * 81}, 1, "more than 80 letters"),
    ],
)
def test_absurd_messages_are_refused(
    run: RunDir, row: dict[str, Any], count: int, why: str
) -> None:
    """Too many, too long, or received before they were sent."""
    stored(run, [{**ROW, **row}] * count)
    with pytest.raises(BadRequest, match=why):
        read_messages(run)


@pytest.mark.parametrize("left_out", [-1, 1 << 62, "many", None, True])
def test_an_absurd_number_of_others_is_none(run: RunDir, left_out: Any) -> None:
    """The messages themselves are sound."""
    stored(run, [ROW], left_out=left_out)
    read = read_messages(run)
    assert read is not None
    assert read.left_out == 0
