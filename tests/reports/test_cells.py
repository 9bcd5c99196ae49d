"""Cells: whatever the files and chunks, they add up to what counting row by row gives."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.history.journal import TableJournal
from harness.history.reader import History, batches
from harness.history.rundir import RunDir
from harness.operation import NONE, F, Type
from reports import _cells
from reports._cells import BUCKETS, Cells, count_cells

Written = Callable[..., RunDir]
NAMES = {
    "keys": ["a-0", "a-1"],
    "processes": {"0": "producer 0 on c", "7": "consumer 0 of billing on c"},
}


def rows_of(run: RunDir) -> Iterator[dict[str, Any]]:
    for path in History.open(run).files["ops"]:
        for batch in batches(path):
            yield from batch.to_pylist()


def counted(found: Cells) -> Counter[tuple[str, str, int, int]]:
    """Cells as a multiset of what each operation was."""
    return Counter(
        {
            (layer.f, layer.outcome, int(at) // BUCKETS, int(at) % BUCKETS): int(n)
            for layer in found.layers
            for at, n in zip(layer.at, layer.n, strict=True)
        }
    )


def naively(run: RunDir, found: Cells) -> Counter[tuple[str, str, int, int]]:
    """The same by a loop over rows."""
    invoked: dict[int, int] = {}
    told: Counter[tuple[str, str, int, int]] = Counter()
    for row in rows_of(run):
        if row["pos"] is not None:
            continue
        if row["type"] == Type.INVOKE:
            invoked[row["op"]] = row["t"]
            continue
        took = row["t"] - invoked[row["op"]]
        bucket = min(BUCKETS - 1, math.floor(math.log2(max(took, 1000) / 1000) * 8 + 1e-12))
        slot = (row["t"] - found.begin) // found.bin_ns
        told[F(row["f"]).name.lower(), Type(row["type"]).name.lower(), slot, bucket] += 1
    return told


def test_cells_are_what_happened(written: Written) -> None:
    """Every operation is in one cell, by its kind, outcome, moment and latency."""
    run = written()
    found = count_cells(History.open(run), run.names())
    assert counted(found) == naively(run, found)
    sends = sum(1 for row in rows_of(run) if row["f"] == F.SEND and row["type"] != Type.INVOKE)
    assert sum(n for (f, *_), n in counted(found).items() if f == "send") == sends == 3800
    assert int(found.delivered["poll"].sum()) == sum(
        1 for row in rows_of(run) if row["f"] == F.POLL and row["pos"] is not None
    )


def test_chunks_do_not_matter(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that begins in one chunk and ends in the next is one operation."""
    run = written()
    once = count_cells(History.open(run), run.names()).plain()
    monkeypatch.setattr(_cells, "CHUNK_ROWS", 1)
    monkeypatch.setattr(_cells, "batches", _in_pieces)
    assert count_cells(History.open(run), run.names()).plain() == once


def _in_pieces(path: Path, columns: Any) -> Iterator[Any]:
    for batch in batches(path, columns):
        for at in range(0, batch.num_rows, 777):
            yield batch.slice(at, 777)


def test_wider_bins_hold_the_same(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many cells, bins become wider until there are not; nothing is lost."""
    run = written()
    fine = count_cells(History.open(run), run.names())
    monkeypatch.setattr(_cells, "MAX_CELLS", fine.cells // 3)
    wide = count_cells(History.open(run), run.names())
    assert wide.cells <= fine.cells // 3
    assert wide.bin_ns > fine.bin_ns
    assert sum(counted(wide).values()) == sum(counted(fine).values())
    assert {f: n.sum() for f, n in wide.delivered.items()} == {
        f: n.sum() for f, n in fine.delivered.items()
    }


def test_nothing_recorded_is_no_cells(tmp_path: Path) -> None:
    """An empty folder, and one with an empty journal."""
    run = RunDir(tmp_path)
    run.journal.mkdir()
    assert count_cells(History.open(run), {}) == Cells()
    TableJournal(run.journal, "ops", "client-1").close()
    assert count_cells(History.open(run), {}) == Cells()


def test_lag_is_by_offsets(tmp_path: Path) -> None:
    """Of each queue what was acknowledged less what was given, at the end of each bin."""
    run = RunDir(tmp_path)
    run.journal.mkdir()
    dice = random.Random(3)
    rows: list[tuple[int, ...]] = []
    high = {0: -1, 1: -1}
    given = {0: -1, 1: -1}
    expected: list[tuple[int, int]] = []
    for n in range(2000):
        t, key = n * 1_000_000, dice.randrange(2)
        if dice.random() < 0.6:
            high[key] += 1
            rows.append((t, 0, n, 0, F.SEND, key, n, NONE, NONE, NONE, NONE, NONE, NONE, NONE))
            rows.append((t, 0, n, 1, F.SEND, key, n, NONE, high[key], NONE, NONE, NONE, NONE, NONE))
        elif given[key] < high[key]:
            given[key] = dice.randint(given[key] + 1, high[key])
            rows.append((t, 7, n, 1, F.POLL, key, n, NONE, given[key], 0, NONE, NONE, NONE, NONE))
        expected.append((t, sum(high[k] - given[k] for k in high)))
    table = TableJournal(run.journal, "ops", "client-1")
    for row in rows:
        table.append(row)
    table.close()
    found = count_cells(History.open(run), NAMES)
    ends = {(t - found.begin) // found.bin_ns: lag for t, lag in expected}
    lag = found.lag["billing"]
    assert max(ends.values()) > 3
    assert all(int(lag[slot]) == known for slot, known in ends.items() if slot < len(lag))
    assert found.open == 0


@pytest.mark.parametrize("imported", [False, True])
def test_a_client_that_came_again_is_of_its_group(tmp_path: Path, imported: bool) -> None:
    """Its crew died: of two processes number 1 is 3 in the next life, and 5 in the one after. In an
    imported history numbers mean nothing of the kind."""
    run = RunDir(tmp_path)
    run.update_state(**({"imported": "kafka"} if imported else {}))
    table = TableJournal(run.journal, "ops", "client-1")
    for n in range(9):
        t, rest = n * 1_000_000, [NONE] * 4
        table.append((t, 0, n, 1, F.SEND, 0, n, NONE, n, NONE, *rest))
        process = 1 + 2 * (n // 3)
        table.append((t, process, 100 + n, 1, F.POLL, 0, n, NONE, n, 0, *rest))
    table.close()
    names = {"keys": ["q"], "processes": {"0": "producer 0 on c", "1": "consumer 0 of g on c"}}
    found = count_cells(History.open(run), names)
    assert found.lag["g"][-1] == (6 if imported else 0)


def test_the_error_of_a_clock_is_no_latency(tmp_path: Path) -> None:
    """Where a node's clock may be off, its crew stamps early and late by so much."""
    run = RunDir(tmp_path)
    run.update_state(clocks={"client-1": {"offset_ns": 7, "error_ns": 5_000_000}})
    table = TableJournal(run.journal, "ops", "client-1")
    table.append((0, 0, 1, 0, F.SEND, 0, *[NONE] * 8))
    table.append((12_000_000, 0, 1, 1, F.SEND, 0, *[NONE] * 8))
    table.close()
    (layer,) = count_cells(History.open(run), NAMES).layers
    assert int(layer.at[0]) % BUCKETS == _cells.bucket_of(np.array([2_000_000]))[0]


def test_what_a_newer_version_calls_something_is_left_out(tmp_path: Path) -> None:
    """Unknown kinds of operations, keys and processes break nothing."""
    run = RunDir(tmp_path)
    run.journal.mkdir()
    table = TableJournal(run.journal, "ops", "client-1")
    for op, f in enumerate((F.PUT, 99, F.SEND, F.POLL)):
        table.append((op, 9, op, 0, f, 77, 1, NONE, NONE, NONE, NONE, NONE, NONE, NONE))
        table.append((op + 50, 9, op, 1, f, 77, 1, NONE, 5, NONE, NONE, NONE, NONE, NONE))
    table.append((99, 9, 50, 0, F.PUT, 77, 1, *[NONE] * 7))
    table.close()
    found = count_cells(History.open(run), {"keys": "none", "processes": ["x"]})
    assert {layer.f for layer in found.layers} == {"put", "send", "poll"}
    assert found.open == 1


def test_a_bucket_is_within_five_per_cent() -> None:
    """The page's latencies are close to the true ones, from microseconds to an hour."""
    times = np.unique(np.geomspace(1_000, 3.6e12, 5000).astype(np.int64))
    middle = 1_000 * 2 ** ((_cells.bucket_of(times) + 0.5) / 8)
    assert np.abs(middle / times - 1).max() < 0.05
