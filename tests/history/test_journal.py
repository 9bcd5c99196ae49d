"""The journal survives its writer: what it has written can be read, whatever happens next."""

import asyncio
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import BedFailed
from harness.history.journal import (
    BATCH_ROWS,
    Damage,
    TableJournal,
    announced_rows,
    read_stream,
    table_of,
    writer_of,
)
from harness.history.schema import NOTES, OPS
from harness.operation import NONE, ops_row

ARRAYS = """
import sys
import pyarrow as pa
from harness.history.journal import skip_pandas
skip_pandas()
made = pa.table({"a": pa.array([1, 2])})
assert "pandas" not in sys.modules
assert list(made.to_pandas()["a"]) == [1, 2]
import pandas  # it is found again
"""
ROW = (5, 1, 7, 1, 1, 3, 99, NONE, 12, NONE, NONE, 2, 0, 1)


def test_a_row_has_the_order_of_the_columns() -> None:
    """Each argument of `ops_row` is in the column of its name; the first six are always given."""
    columns = OPS.names
    row = ops_row(*range(6), **{name: at for at, name in enumerate(columns) if at >= 6})
    assert row == tuple(range(len(columns)))
    assert ops_row(*range(6)) == (*range(6), *[NONE] * (len(columns) - 6))


def read(path: Path, damage: list[Damage] | None = None) -> pa.Table:
    return pa.Table.from_batches(list(read_stream(path, damage)), OPS)


def test_rows_come_back_in_order_with_nulls_for_what_is_absent(tmp_path: Path) -> None:
    """What is appended is read back; NONE, where null is possible, is null."""
    journal = TableJournal(tmp_path, "ops", "client-1")
    journal.append(ROW)
    journal.append((6, *ROW[1:]))
    journal.close()
    first, second = read(tmp_path / "ops-client-1-000.arrows").to_pylist()
    assert tuple(first.values()) == tuple(None if x == NONE else x for x in ROW)
    assert second["t"] == 6


def test_tables_with_text_take_none_too(tmp_path: Path) -> None:
    """Rows of the small tables hold strings and None."""
    journal = TableJournal(tmp_path, "notes", "runner")
    journal.append((1, NONE, None, "raised"))
    journal.close()
    (batch,) = read_stream(tmp_path / "notes-runner-000.arrows")
    assert batch.to_pylist() == [{"t": 1, "process": None, "op": None, "text": "raised"}]


def test_a_row_of_the_wrong_shape_is_refused_at_once(tmp_path: Path) -> None:
    """The mistake is found where it is made, not when the batch is written."""
    import struct

    ops, notes = TableJournal(tmp_path, "ops", "a"), TableJournal(tmp_path, "notes", "a")
    with pytest.raises(struct.error):
        ops.append(ROW[:-1])
    with pytest.raises(ValueError, match="4 columns"):
        notes.append((1, "raised"))


def test_a_full_batch_is_written_by_itself(tmp_path: Path) -> None:
    """8,192 rows are on their way to the disk without anybody asking."""
    journal = TableJournal(tmp_path, "ops", "a")
    path = tmp_path / "ops-a-000.arrows"
    for _ in range(BATCH_ROWS - 1):
        journal.append(ROW)
    assert announced_rows(path) == 0
    journal.append(ROW)
    assert announced_rows(path) == BATCH_ROWS


def test_a_slow_writers_rows_are_flushed_by_the_loops_timer(tmp_path: Path) -> None:
    """Time passes in the event loop; nobody else flushes."""

    async def write_one() -> int | None:
        journal = TableJournal(tmp_path, "ops", "a")
        journal.append(ROW)
        flushed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.2, flushed.set_result, None)
        await flushed
        return announced_rows(tmp_path / "ops-a-000.arrows")

    assert asyncio.run(write_one()) == 1


def test_a_journal_rolls_and_a_writer_that_returns_adds_files(tmp_path: Path) -> None:
    """Files are bounded, and none is ever written over."""
    for _ in range(2):
        journal = TableJournal(tmp_path, "ops", "a", roll_bytes=1)
        journal.append(ROW)
        journal.close()
    files = sorted(path.name for path in tmp_path.glob("*.arrows"))
    assert files == [f"ops-a-{n:03}.arrows" for n in range(4)]
    assert sum(read(tmp_path / name).num_rows for name in files) == 2


def test_columns_can_be_appended_whole(tmp_path: Path) -> None:
    """An importer has arrays, not rows; columns it leaves out are null."""
    journal = TableJournal(tmp_path, "ops", "import")
    n = 3 * BATCH_ROWS + 1
    small = np.ones(n, np.int8)
    columns = {"t": np.arange(n), "process": np.zeros(n, np.int32), "op": np.arange(n)}
    journal.append_columns({**columns, "type": small, "f": small, "value": np.arange(n) - 1})
    journal.close()
    table = read(tmp_path / "ops-import-000.arrows")
    assert (table.num_rows, table["value"].null_count, table["key"].null_count) == (n, 1, n)


@given(cut=st.integers(1, 2000))
def test_a_torn_tail_costs_the_last_batch_at_most(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """Whatever is missing at the end, every complete batch before it is read, and it is said."""
    folder = tmp_path_factory.mktemp("torn")
    journal = TableJournal(folder, "ops", "a")
    for _ in range(5):
        for _ in range(50):
            journal.append(ROW)
        journal.flush()
    path = folder / "ops-a-000.arrows"
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    damage: list[Damage] = []
    rows = sum(batch.num_rows for batch in read_stream(path, damage))
    assert rows % 50 == 0
    assert rows < 250
    assert [d.rows for d in damage] == [rows]


@pytest.mark.parametrize("content", [b"\x00" * 4096, b"hello\n", b"\xff" * 100])
def test_a_foreign_file_is_damage_not_a_crash(tmp_path: Path, content: bytes) -> None:
    """Anything may lie in the folder under a journal's name."""
    path = tmp_path / "ops-a-000.arrows"
    path.write_bytes(content)
    damage: list[Damage] = []
    assert not list(read_stream(path, damage))
    assert len(damage) == 1


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    """What is read before the damage can be looked at; sizes and offsets that lie lead nowhere."""
    journal = TableJournal(tmp_path, "notes", "a")
    for start in (0, 5):
        for t in range(start, start + 5):
            journal.append((t, NONE, t, f"what was said at {t}" * t))
        journal.flush()
    journal.close()
    path = tmp_path / "notes-a-000.arrows"
    data = path.read_bytes()
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        damage: list[Damage] = []
        rows = [row for batch in read_stream(path, damage) for row in batch.to_pylist()]
        assert len(rows) == 10 or len(damage) == 1, at


def test_a_writer_that_was_killed_at_once_left_nothing(tmp_path: Path) -> None:
    """A file that was made and never written to is no damage; nor is one without any rows."""
    (tmp_path / "ops-a-000.arrows").touch()
    TableJournal(tmp_path, "ops", "b")
    damage: list[Damage] = []
    for name in ("ops-a-000.arrows", "ops-b-000.arrows"):
        assert read(tmp_path / name, damage).num_rows == 0
    assert not damage


def test_another_tables_stream_is_foreign(tmp_path: Path) -> None:
    """A stream with other columns is not read as this table."""
    TableJournal(tmp_path, "notes", "a").close()
    (tmp_path / "notes-a-000.arrows").rename(tmp_path / "ops-a-000.arrows")
    damage: list[Damage] = []
    assert not list(read_stream(tmp_path / "ops-a-000.arrows", damage))
    assert "columns" in damage[0].why


KILLED = """
import sys, pathlib
from harness.history.journal import TableJournal
journal = TableJournal(pathlib.Path(sys.argv[1]), "ops", "a")
for n in range(10**9):
    journal.append((n, 1, n, 1, 1, 3, 99, -1, 12, -1, -1, 2, 0, 1))
    if n == 50_000:
        print("go", flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_counted(tmp_path: Path) -> None:
    """kill -9 while it writes: the file is sound, and holds what the counter says."""
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "go\n"
        writer.send_signal(signal.SIGKILL)
    path = tmp_path / "ops-a-000.arrows"
    damage: list[Damage] = []
    rows = sum(batch.num_rows for batch in read_stream(path, damage))
    announced = announced_rows(path)
    assert announced is not None
    assert announced <= rows <= announced + BATCH_ROWS
    assert rows % BATCH_ROWS == 0
    assert not damage or "torn" in damage[0].why


def test_a_counter_above_the_rows_is_damage(tmp_path: Path) -> None:
    """A file that holds less than its writer wrote was cut on a batch's edge."""
    journal = TableJournal(tmp_path, "ops", "a")
    journal.append(ROW)
    journal.flush()
    path = tmp_path / "ops-a-000.arrows"
    empty = TableJournal(tmp_path, "ops", "b")
    path.write_bytes((tmp_path / "ops-b-000.arrows").read_bytes())
    empty.close()
    damage: list[Damage] = []
    assert not list(read_stream(path, damage))
    assert "counted 1 rows" in damage[0].why


def test_a_refused_batch_is_a_sentence_and_leaves_whole_batches(tmp_path: Path) -> None:
    """No room in the middle of a batch: BedFailed says what to do, half a batch is taken back, and
    what is written when there is room again comes right after what was there."""
    journal, path = TableJournal(tmp_path, "ops", "a"), tmp_path / "ops-a-000.arrows"
    journal.append(ROW)
    journal.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        journal.append((6, *ROW[1:]))
        with pytest.raises(BedFailed, match="File too large; free space"):
            journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    damage: list[Damage] = []
    assert read(path, damage)["t"].to_pylist() == [5]
    journal.append((7, *ROW[1:]))
    journal.close()
    assert read(path, damage)["t"].to_pylist() == [5, 7]
    assert not damage


def test_a_file_names_its_table_and_writer() -> None:
    """TABLE-WRITER-NNN, where writers have dashes too."""
    path = Path("ops-client-1-002.arrows")
    assert (table_of(path), writer_of(path)) == ("ops", "client-1")


def test_the_schemas_hold_what_the_design_says() -> None:
    """Small types where there are many rows; text only in the small tables."""
    assert all(pa.types.is_integer(field.type) for field in OPS)
    assert NOTES.field("text").type == pa.string()


def test_a_process_that_writes_arrays_may_do_without_pandas() -> None:
    """Its start takes half the time; whatever asks for pandas later gets it."""
    subprocess.run([sys.executable, "-c", ARRAYS], check=True)
