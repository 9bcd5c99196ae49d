"""Linearizability of registers and strings: `python benchmarks/linearizable.py [--histories DIR]`.

Three tables. Recorded histories as published with Porcupine, with its own times on a machine of
this kind (`porcupine_times.tsv` beside them); left out where there are none: DIR, or
SEATRIAL_HISTORIES. Then a million and ten million
operations over a thousand keys. Then single keys on which searches drown: many clients, many
operations of unknown outcome, many values.

Times are the best of several, of this process alone, after the kernels are compiled; `--small` runs
everything at a hundredth of its size.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from _registers import Shape, columns

from checkers._linear import search
from checkers._linear.batch import ILLEGAL, LEGAL, OperationBatch
from checkers._linear.counterexample import find_counterexample
from checkers._linear.encoding import columns_of, encode
from checkers._linear.judge import FIRST_ROUND, REGISTER, STRING, SearchBudget, judge
from checkers._linear.pairing import OperationColumns
from checkers._linear.search_state import allocate, extent
from harness.importers._recording import Slips
from harness.importers._rows import rows_of
from harness.importers.porcupine import PLUGINS

WORDS = {LEGAL: "linearizable", ILLEGAL: "not linearizable"}
LONGEST = 2  # files on which Porcupine's search goes astray
APART = 1 << 20  # operations and processes of different files
HARD = {
    "10k, 20 clients, 50 % info": Shape(10_000, clients=20, info=0.5),
    "100k, 20 clients, 50 % info": Shape(100_000, clients=20, info=0.5),
    "10k, 5 clients": Shape(10_000),
    "10k, 20 clients": Shape(10_000, clients=20),
    "10k, 5 clients, corrupted": Shape(10_000, corrupt=0.01),
    "10k, 10 clients, corrupted": Shape(10_000, clients=10, corrupt=0.01),
    "10k, 20 clients, corrupted": Shape(10_000, clients=20, corrupt=0.01),
    "10k, 10 clients, 1 % info, corrupted": Shape(10_000, clients=10, info=0.01, corrupt=0.05),
    "1k, 50 clients, 20 % info, 50 values": Shape(1_000, clients=50, info=0.2, values=50),
    "10k, 20 clients, 5 % info": Shape(10_000, clients=20, info=0.05),
    "10k, 20 clients, 50 % info, 50 values": Shape(10_000, clients=20, info=0.5, values=50),
}
LARGE = {
    "1 M, 1,000 keys, 5 clients, 1 % info": Shape(1_000_000, keys=1_000, info=0.01),
    "1 M, the same, 20 clients, 2 % info, writes that differ": Shape(
        1_000_000, keys=1_000, clients=20, info=0.02, values=0
    ),
    "10 M, 1,000 keys, 5 clients, 1 % info": Shape(10_000_000, keys=1_000, info=0.01),
    "10 M, the same, writes that differ": Shape(10_000_000, keys=1_000, info=0.01, values=0),
}


@dataclass(frozen=True)
class File:
    """One recorded history. `texts`: of strings; none for a register."""

    name: str
    columns: OperationColumns
    texts: tuple[str, ...]

    @property
    def kind(self) -> str:
        return STRING if self.texts else REGISTER


def folder(given: Path | None) -> Path | None:
    """Where recorded histories are, if anywhere."""
    place = given or Path(os.environ.get("SEATRIAL_HISTORIES") or "histories")
    return place / "porcupine" if (place / "porcupine" / "expected.tsv").is_file() else None


def load(path: Path) -> File:
    strings = path.suffix != ".log"
    rows = rows_of(PLUGINS["porcupine-kv" if strings else "porcupine"].read(path), Slips())
    texts = tuple(rows.values or ()) if strings else ()
    return File(path.name, columns_of(rows.ops), texts)


def joined(files: list[File]) -> OperationColumns:
    """Histories of one register each, as keys of one table, one after the other."""
    parts = [
        file.columns._replace(
            t=file.columns.t + k * APART * 1_000,
            op=file.columns.op + k * APART,
            process=file.columns.process + np.int32(k * 1_000),
            key=np.full_like(file.columns.key, k),
        )
        for k, file in enumerate(files)
    ]
    return OperationColumns(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def best_s(work: Callable[[], object], times: int = 20) -> float:
    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(once() for _ in range(times))


def recorded(place: Path) -> None:
    """Verdicts, times and counterexamples of the histories that Porcupine publishes."""
    told = dict(line.split("\t")[::2] for line in _lines(place / "expected.tsv"))
    times = stored(place)
    files = [load(place / name) for name in sorted(told)]
    registers = [file for file in files if file.kind == REGISTER]
    print(f"{'file':14} {'found':18} {'kernel':>7} {'judge':>7} {'Porcupine':>10} {'core':>5}")
    wrong, cores, longest_us = 0, [], 0.0
    for file in files:
        found, kernel_us, us, core = _one(file)
        wrong += WORDS.get(found) != told[file.name]
        cores += [core] if core and file.kind == REGISTER else []
        longest_us = max(longest_us, kernel_us)
        theirs = f"{times[file.name]:,.0f}" if file.name in times else ""
        ours = f"{kernel_us:7.1f} {us:7.0f}"
        words = WORDS.get(found, "unknown")
        print(f"{file.name:14} {words:18} {ours} {theirs:>10} {core or '':>5}")
    print(f"{len(files)} files, {wrong} verdicts other than published")
    print(f"microseconds; registers one by one: at most {longest_us:.1f} us in the kernel")
    by_time = sorted(registers, key=lambda file: times.get(file.name, 0.0))
    beside("all", by_time, times)
    beside(f"without the {LONGEST} that took it longest,", by_time[:-LONGEST], times)
    print(f"counterexamples of registers: {np.mean(cores):.1f} operations, at most {max(cores)}")


def stored(place: Path) -> dict[str, float]:
    """Porcupine's own times, in microseconds; none where they are not beside the histories."""
    path = place / "porcupine_times.tsv"
    if not path.is_file():
        print(f"no times of Porcupine's: there is no {path}")
        return {}
    return {
        line.split("\t")[0]: float(line.rsplit("check_us=", 1)[1])
        for line in path.read_text().splitlines()
    }


def beside(which: str, files: list[File], times: Mapping[str, float]) -> None:
    """These registers as one batch, and the sum of Porcupine's times, one by one."""
    table = joined(files)
    batch = encode(table).batch
    encoding_s = best_s(lambda: encode(table))
    judging_s = best_s(lambda: judge(batch, budget=SearchBudget(exhaustive=True)))
    ours = f"encoding {1e3 * encoding_s:.2f} ms, judging {1e3 * judging_s:.2f} ms"
    theirs_s = sum(times.get(file.name, 0.0) for file in files) / 1e6
    ratio = theirs_s / (encoding_s + judging_s)
    theirs = f"; Porcupine {1e3 * theirs_s:.1f} ms in all, {ratio:.0f} times as long"
    print(f"{which} {len(files)} registers as one batch: {ours}{theirs if times else ''}")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _one(file: File) -> tuple[int, float, float, int]:
    """The worst verdict of a file's keys, us in the kernel (of a register) and in all, and how many
    operations the smallest core has."""
    batch = encode(file.columns).batch
    judged = judge(batch, file.kind, texts=file.texts)
    us = 1e6 * best_s(lambda: judge(batch, file.kind, texts=file.texts))
    cores = [
        len(found.core)
        for k in np.flatnonzero(judged.verdicts == ILLEGAL).tolist()
        if (found := find_counterexample(batch, k, file.kind, file.texts)) is not None
    ]
    kernel_us = _kernel_us(batch) if file.kind == REGISTER else 0.0
    return judged.worst, kernel_us, us, min(cores, default=0)


def _kernel_us(batch: OperationBatch) -> float:
    """The search alone, in room that is there already."""
    which, stop = np.arange(1), np.zeros(1, np.int8)
    n, values, ranks = extent(batch, which)
    state = allocate(n, values, ranks, FIRST_ROUND, 4 * n + 2 * values + 1024, seed=1)
    out = np.zeros((1, 4), np.int64)
    return 1e6 * best_s(lambda: search.search(state, batch, which, FIRST_ROUND, stop, out))


def large(scale: int) -> None:
    print(f"\n{'history':58} {'encode':>8} {'judge':>8} {'Mops/s':>7} {'peak':>8}")
    for name, shape in LARGE.items():
        rows = columns(replace(shape, operations=shape.operations // scale))
        times = 3 if shape.operations < 5_000_000 else 1
        encoding_s = best_s(lambda rows=rows: encode(rows), times)
        batch: OperationBatch = encode(rows).batch
        judging_s = best_s(lambda batch=batch: judge(batch), times)
        verdict = WORDS.get(judge(batch).worst, "unknown")
        rate = shape.operations / scale / (encoding_s + judging_s) / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        seconds = f"{encoding_s:6.2f} s {judging_s:6.2f} s"
        print(f"{name:58} {seconds} {rate:7.2f} {peak:5.1f} GB  {verdict}")
        del rows, batch


def hard(scale: int, seconds: float) -> None:
    print(f"\n{'one key':40} {'judge':>11} {'steps':>12}")
    for name, shape in HARD.items():
        batch = encode(columns(replace(shape, operations=shape.operations // scale))).batch
        began = time.perf_counter()
        judged = judge(batch, budget=SearchBudget(failures=1 << 23, seconds=seconds))
        took_ms = 1e3 * (time.perf_counter() - began)
        verdict = WORDS.get(judged.worst, "unknown")
        print(f"{name:40} {took_ms:8,.1f} ms {judged.stats['steps']:12,}  {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=Path, help="folder with recorded histories")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each hard key")
    parser.add_argument("--small", action="store_true", help="a hundredth of the operations")
    given = parser.parse_args()
    place = folder(given.histories)
    if place is None:
        print("no recorded histories here; --histories names their folder")
    else:
        recorded(place)
    scale = 100 if given.small else 1
    large(scale)
    hard(scale, given.seconds)


if __name__ == "__main__":
    main()
