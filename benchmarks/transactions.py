"""Transactions: `python benchmarks/transactions.py [transactions] [--here]`.

List-append transactions of a sound, strictly serializable run, as Jepsen's generator makes them:
one to four micro-operations on ten keys at a time, each retired after some thirty appends, by
twenty processes. From the sealed files to the verdict, with real time, on Spark (seconds, CPU
seconds of all processes, the sum of their peaks), or with `--here` in this one process. Then the
same with ten stale reads put in, which must be found and counted.

Elle takes about 100 CPU seconds and 8.4 GB for a million, with parsing, which is not counted here.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _used import used

from checkers import transactions
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.schema import OPS
from harness.judge.verdict import Result
from harness.operation import F, Type
from harness.spark.session import JvmLauncher
from harness.trial import Trial

PROCESSES, WRITERS, KEYS, APPENDS_OF_KEY = 20, 4, 10, 32
APART_NS = 1_000
STALE = 10  # reads that are spoilt
SLICE = 250_000  # transactions in one file of a writer
NULLS = {"value": np.iinfo(np.int64).min}

Columns = dict[str, Any]


def moves(count: int) -> Columns:
    """All micro-operations in the order in which they took effect."""
    dice = np.random.default_rng(1)
    lengths = dice.integers(1, 5, count)
    total = int(lengths.sum())
    op = np.repeat(np.arange(count), lengths)
    mop = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    append = dice.random(total) < 0.5
    base = (np.cumsum(append) - append) // APPENDS_OF_KEY
    key = base + dice.integers(0, KEYS, total)
    order = np.argsort(key, kind="stable")
    before = np.cumsum(append[order]) - append[order]
    first = np.searchsorted(key[order], key[order])
    seen = np.empty(total, np.int64)
    seen[order] = before - before[first]
    return {"op": op, "mop": mop, "append": append, "key": key, "seen": seen}


def spoil(m: Columns) -> tuple[Columns, int]:
    """Some reads come short by twelve appends, most of them acknowledged long before."""
    reads = np.flatnonzero(~m["append"] & (m["seen"] > 20) & (m["mop"] == 0))
    chosen = reads[np.linspace(0, len(reads) - 1, STALE).astype(int)]
    seen = m["seen"].copy()
    seen[chosen] -= 12
    return {**m, "seen": seen}, len(chosen)


def rows_of(m: Columns, low: int, high: int, writer: int) -> pa.Table:
    """One writer's rows of some transactions, in time order."""
    dice = np.random.default_rng(low + writer)
    at = slice(*np.searchsorted(m["op"], [low, high]))
    mine = {name: column[at] for name, column in m.items()}
    ours = mine["op"] % PROCESSES % WRITERS == writer
    mine = {name: column[ours] for name, column in mine.items()}
    ops = np.unique(mine["op"])
    begin = (ops + 20) * APART_NS - dice.integers(1, 9 * APART_NS, len(ops))
    end = (ops + 20) * APART_NS + dice.integers(1, 9 * APART_NS, len(ops))
    number = np.searchsorted(ops, mine["op"])
    elements = np.where(mine["append"], 0, mine["seen"])
    owner = np.repeat(np.arange(len(number)), elements)
    pos = np.arange(len(owner)) - np.repeat(np.cumsum(elements) - elements, elements)
    f = np.where(mine["append"], F.APPEND, F.LIST)
    value = np.where(mine["append"], mine["seen"] + 1, NULLS["value"])
    whole = np.full(len(ops), -1)
    parts = [  # rank within a completion: elements, then the end of each move, then the operation
        (begin[number], Type.INVOKE, mine["op"], mine["mop"], f, mine["key"], value, None),
        (begin, Type.INVOKE, ops, whole, whole * 0 + F.APPEND, whole, whole * 0, None),
        (
            end[number][owner],
            Type.OK,
            mine["op"][owner],
            mine["mop"][owner],
            f[owner],
            mine["key"][owner],
            pos + 1,
            pos,
        ),
        (end[number], Type.OK, mine["op"], mine["mop"], f, mine["key"], value, None),
        (end, Type.OK, ops, whole, whole * 0 + F.APPEND, whole, whole * 0, None),
    ]
    return table(parts)


def table(parts: list[tuple[Any, ...]]) -> pa.Table:
    """Parts as one table in time order; what is below zero is absent."""
    names = ("t", "type", "op", "mop", "f", "key", "value", "pos")
    columns: Columns = {name: [] for name in names}
    for part in parts:
        for name, column in zip(names, part, strict=True):
            given = -1 if column is None else column
            columns[name].append(np.broadcast_to(np.asarray(given, np.int64), len(part[0])))
    joined = {name: np.concatenate(pieces) for name, pieces in columns.items()}
    last = np.where(joined["pos"] < 0, np.iinfo(np.int32).max, joined["pos"])
    mop = np.where(joined["mop"] < 0, np.iinfo(np.int32).max, joined["mop"])
    order = np.lexsort((last, mop, joined["op"], joined["t"]))
    joined = {name: column[order] for name, column in joined.items()}
    joined["process"] = joined["op"] % PROCESSES
    arrays = []
    for field in OPS:
        if field.name not in joined:
            arrays.append(pa.nulls(len(order), field.type))
            continue
        column = joined[field.name]
        absent = column < 0
        if field.name == "value":
            absent |= joined["key"] < 0
        arrays.append(pa.array(column, mask=absent).cast(field.type))
    return pa.table(arrays, schema=OPS)


def write(path: Path, count: int, spoilt: bool) -> None:
    """A sealed run of that many transactions."""
    path.mkdir(parents=True)
    run = RunDir(path)
    run.history.mkdir(parents=True, exist_ok=True)
    run.trial_file.write_text(Trial(checkers=("transactions",)).to_toml())
    m = moves(count)
    if spoilt:
        m, _ = spoil(m)
    keys = [f"k{key}" for key in range(int(m["key"].max()) + 1)]
    run.write_names({"keys": keys, "nodes": [], "roles": {}, "processes": {}})
    run.update_state(ended=True, interrupted=False)
    for writer in range(WRITERS):
        for number, low in enumerate(range(0, count, SLICE)):
            file = run.history / f"ops-client-{writer + 1}-{number:06d}.parquet"
            pq.write_table(rows_of(m, low, low + SLICE, writer), file, compression="zstd")


def made(path: Path, count: int, spoilt: bool) -> RunDir:
    """Written by another process, so that its memory is not counted."""
    context = multiprocessing.get_context("spawn")
    writing = context.Process(target=write, args=(path, count, spoilt))
    writing.start()
    writing.join()
    assert writing.exitcode == 0
    return RunDir(path)


# ------------------------------------------------------------------------------------ measuring


def measured(run: RunDir, spark: Any, what: str) -> Result:
    before, _ = used()
    began = time.perf_counter()
    result = transactions.check(History.open(run), Trial(), spark)
    seconds = time.perf_counter() - began
    after, peak = used()
    print(
        f"{what}: {seconds:.1f} s, {after - before:.1f} CPU s, {peak:.1f} GB at most "
        f"({result.stats['transactions']:,} transactions, "
        f"{result.stats['dependencies']:,} dependencies): "
        f"{', '.join(f'{f.code} {f.count}' for f in result.findings) or 'valid'}",
        flush=True,
    )
    return result


def main() -> int:
    numbers = [word for word in sys.argv[1:] if not word.startswith("-")]
    count = int(float(numbers[0])) if numbers else 1_000_000
    here = "--here" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        sound = made(Path(folder) / "sound", count, spoilt=False)
        spoilt = made(Path(folder) / "spoilt", count, spoilt=True)
        rows = sum(pq.read_metadata(f).num_rows for f in sound.history.glob("*.parquet"))
        print(f"{count:,} transactions, {rows:,} rows")
        if here:
            good, bad = judged(sound, spoilt, None)
        else:
            with closing(JvmLauncher()) as engine:
                good, bad = judged(sound, spoilt, engine.session())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"this process: {peak:.1f} GB at most")
    return 0 if not good.findings and sum(f.count for f in bad.findings) == STALE else 1


def judged(sound: RunDir, spoilt: RunDir, spark: Any) -> tuple[Result, Result]:
    return measured(sound, spark, "sound"), measured(spoilt, spark, "spoilt")


if __name__ == "__main__":
    sys.exit(main())
