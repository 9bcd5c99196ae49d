"""All recorded histories, judged: `histories.py [DIR] [--here]`.

    DIR/porcupine/expected.tsv     file, operations, "linearizable" or "not linearizable"
    DIR/jepsen/NAME.edn.gz         and beside it NAME.edn.truth.json: what was injected

DIR is SEATRIAL_HISTORIES if nobody names it. Every file goes through its importer and the checkers
of its kind, on Spark, or with `--here` by the same kernels without it; the registers once more as
keys of one table. A verdict has to be as published. Of what was injected each must be found once,
at its key and value, and nothing else may be found. Where this does not know which findings tell
what was injected, only the verdict is compared, and the line says so. Ends with 1 when a file
deviates, and 254 when there is no history.
"""

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers._linear.judge import judge as judge_batch
from checkers._linear.registers import COLUMNS, Values, judge_registers, key_groups, select_rows
from harness import registry
from harness.errors import EXIT_BAD_REQUEST
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.importers import _run_folder as _folder
from harness.judge.judge import judge, judge_small
from harness.judge.verdict import Verdict

EXPECTED = {"linearizable": "valid", "not linearizable": "invalid"}
PARTS = ("porcupine", "jepsen")
FORMATS = ("kafka", "register", "append", "wr", "queue", "set", "counter")
APART = 1 << 20  # numbers of operations, and of processes, of different files in one table

Judge = Callable[[RunDir], Verdict]


@dataclass(frozen=True)
class Line:
    """One file. `wrong`: in what it deviates; nothing if it does not. `unread`: of what was
    injected, what is not compared with the findings."""

    name: str
    expected: str
    found: str
    judge_us: float = 0.0
    theirs_us: float = 0.0
    core: float = 0.0
    wrong: str = ""
    unread: str = ""

    def __str__(self) -> str:
        numbers = (f"{n:10,.1f}" if n else f"{'':10}" for n in self)
        mark = f"  DEVIATES: {self.wrong}" if self.wrong else ""
        mark += f"  only the verdict is compared: {self.unread}" if self.unread else ""
        return f"{self.name:28} {self.expected:9} {self.found:9}{''.join(numbers)}{mark}"

    def __iter__(self) -> Iterator[float]:
        return iter((self.judge_us, self.theirs_us, self.core))


HEAD = f"{'file':28} {'expected':9} {'found':9}{'judge us':>10}{'theirs us':>10}{'core':>10}"


def imported(path: Path, format_: str, out: Path) -> RunDir:
    return _folder.write(registry.load("importer", format_)(path), path, format_, out)


# ------------------------------------------------------------------------ published with Porcupine


def published(folder: Path, runs: Path, asked: Judge) -> Iterator[Line]:
    """Each file, and the registers among them as keys of one table."""
    times = {line[0]: line[-1] for line in _cells(folder / "porcupine_times.tsv")}
    registers: list[tuple[RunDir, bool]] = []
    for name, _, words in _cells(folder / "expected.tsv"):
        strings = name.endswith(".txt")
        run = imported(folder / name, "porcupine-kv" if strings else "porcupine", runs / name)
        verdict = asked(run)
        found = str(verdict.verdict)
        yield Line(
            name,
            EXPECTED[words],
            found,
            _judge_us(run),
            float(times[name].removeprefix("check_us=")) if name in times else 0.0,
            _core(verdict),
            "" if found == EXPECTED[words] else verdict.sentence,
        )
        if not strings:
            registers.append((run, EXPECTED[words] == "invalid"))
    if registers:
        yield _as_one_table(registers, runs / "together", asked)


def _cells(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()] if path.is_file() else []


def _core(verdict: Verdict) -> float:
    """Operations of a counterexample, on average."""
    sizes = [len(row["ops"].split()) for row in _evidence(verdict, "NOT_LINEARIZABLE")]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _judge_us(run: RunDir, times: int = 5) -> float:
    """The processor's time for judging what has been encoded, the best of some."""
    ops = History.open(run).read("ops").combine_chunks().to_batches()
    rows = select_rows(ops[0].select(COLUMNS[:-1]), 0)
    total = 0.0
    for part in key_groups(rows, Values.of(run)):

        def once(part: Any = part) -> float:
            began = time.process_time()
            judge_batch(part.batch, part.kind, texts=part.texts)
            return time.process_time() - began

        total += min(once() for _ in range(times))
    return 1e6 * total


def together(runs: Sequence[RunDir], out: Path) -> RunDir:
    """Histories of one register each, as keys of one."""
    tables = []
    for number, run in enumerate(runs):
        table = History.open(run).read("ops")
        table = _set(table, "op", pc.add(table.column("op"), number * APART))
        table = _set(table, "process", pc.add(table.column("process"), number * 1_000))
        tables.append(_set(table, "key", pa.array([number] * table.num_rows)))
    made = RunDir(out)
    made.history.mkdir(parents=True)
    path = made.history / "ops-import-000.parquet"
    pq.write_table(pa.concat_tables(tables).sort_by("t"), path)
    made.trial_file.write_text(runs[0].trial_file.read_text())
    made.write_names({"keys": [run.path.name for run in runs]})
    made.update_state(ended=True, interrupted=False, imported={"file": "all of them"})
    return made


def _set(table: pa.Table, name: str, column: Any) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(
        at, table.schema.field(name), column.cast(table.schema.field(name).type)
    )


def _as_one_table(registers: Sequence[tuple[RunDir, bool]], out: Path, asked: Judge) -> Line:
    run = together([run for run, _ in registers], out)
    verdict = asked(run)
    illegal = set(judge_registers(History.open(run), None).illegal)
    odd = [
        each.path.name
        for key, (each, expected) in enumerate(registers)
        if expected != (key in illegal)
    ]
    told = sum(f.count for r in verdict.checkers for f in r.findings)
    wrong = ", ".join(odd) or ("" if told == len(illegal) else f"{told} told, not {len(illegal)}")
    expected = "invalid" if any(bad for _, bad in registers) else "valid"
    name = f"{len(registers)} registers, one table"
    return Line(name, expected, str(verdict.verdict), _judge_us(run), 0.0, _core(verdict), wrong)


# ------------------------------------------------------------------------- in the shapes of Jepsen


def injected(folder: Path, runs: Path, asked: Judge) -> Iterator[Line]:
    """Each history with a list of what was injected into it."""
    for path in sorted(folder.glob("*.edn.gz")):
        name = path.name.removesuffix(".edn.gz")
        truth = json.loads((folder / f"{name}.edn.truth.json").read_text())
        kind = next(kind for kind in FORMATS if name.startswith(kind))
        verdict = asked(imported(path, f"jepsen-{kind}", runs / name))
        wrongs = {k: v for k, v in truth.items() if isinstance(v, list)}
        expected, found = "invalid" if any(wrongs.values()) else "valid", str(verdict.verdict)
        wrong = verdict.sentence if found != expected else ""
        wrong = wrong or "; ".join(_deviations(kind, wrongs, verdict))
        yield Line(name, expected, found, wrong=wrong, unread=_unread(kind, wrongs))


def _unread(kind: str, truth: Mapping[str, Sequence[Any]]) -> str:
    """What was injected and no line of SOUGHT tells."""
    return ", ".join(
        name for name, some in truth.items() if some and name not in SOUGHT.get(kind, ())
    )


def _deviations(kind: str, truth: Mapping[str, Sequence[Any]], verdict: Verdict) -> Iterator[str]:
    """What was found and not injected, or injected and not found; and codes nobody expects."""
    sought = SOUGHT.get(kind)
    if sought is None:
        return
    counts: Counter[str] = Counter()
    for finding in (f for r in verdict.checkers for f in r.findings if f.demand):
        counts[finding.code] += finding.count
    for name, (codes, same) in sought.items():
        rows = [row for code in counts if _among(code, codes) for row in _evidence(verdict, code)]
        told = sum(count for code, count in counts.items() if _among(code, codes))
        yield from _compared(name, truth.get(name, ()), rows, told, same)
    known = [code for codes, _ in sought.values() for code in counts if _among(code, codes)]
    yield from (f"{code} was not injected" for code in sorted(set(counts) - set(known)))


def _among(code: str, codes: str) -> bool:
    return re.fullmatch(codes, code) is not None


def _compared(
    name: str,
    truth: Sequence[Any],
    rows: Sequence[Mapping[str, Any]],
    told: int,
    same: Callable[[Any, Mapping[str, Any]], bool],
) -> Iterator[str]:
    """One root cause each: as many as were injected, and every row shown is one of them."""
    if told != len(truth):
        yield f"{name}: {told} found, {len(truth)} injected"
    shown = [next((i for i, each in enumerate(truth) if same(each, row)), None) for row in rows]
    if None in shown:
        yield f"{name}: {dict(rows[shown.index(None)])} was not injected"
    twice = [i for i, n in Counter(shown).items() if n > 1 and i is not None]
    if twice:
        yield f"{name}: {truth[twice[0]]} was found twice"


def _evidence(verdict: Verdict, code: str) -> list[Mapping[str, Any]]:
    return [
        row for r in verdict.checkers for f in r.findings if f.code == code for row in f.evidence
    ]


def _by_value(injected: Any, row: Mapping[str, Any]) -> bool:
    return str(injected) == str(row.get("original", row["value"]))


def _by_key_and_value(injected: Any, row: Mapping[str, Any]) -> bool:
    key = row.get("key", row.get("queue"))
    return [str(cell) for cell in injected] == [str(key), str(row.get("original", row["value"]))]


def _either(injected: Any, row: Mapping[str, Any]) -> bool:
    """One of two values of one key, or one of what a transaction wrote."""
    if isinstance(injected[0], list):
        return any(_by_key_and_value(each, row) for each in injected)
    return any(_by_key_and_value((injected[0], value), row) for value in injected[1:])


def _missed(injected: Any, row: Mapping[str, Any]) -> bool:
    """An append that others read on without, named by itself or at the end of a cycle."""
    if "value" in row:
        return _by_key_and_value(injected, row)
    words = str(row.get("by_time") or row["explanation"])
    seen = re.findall(r"read (\S+) up to \S+ and did not see (\S+),", words)
    return tuple(str(cell) for cell in injected) in seen


def _stale(injected: Any, row: Mapping[str, Any]) -> bool:
    """A read of an old version of a list: it missed something in it."""
    return f" read {injected[0]} up to " in str(row["explanation"])


def _position(injected: Any, row: Mapping[str, Any]) -> bool:
    """Where a process jumped from: it, the key, and the index that should have come next."""
    here = row["process"], row["queue"], row["after"] + 1
    return [str(cell) for cell in injected] == [str(cell) for cell in here]


# what was injected: the codes that tell it, and whether a row of evidence is about it
SOUGHT: Mapping[str, Mapping[str, tuple[str, Callable[[Any, Mapping[str, Any]], bool]]]] = {
    "queue": {
        "lost": ("ELEMENT_LOST", _by_value),
        "duplicate": ("DUPLICATE_ELEMENT", _by_value),
        "unexpected": ("PHANTOM_ELEMENT", _by_value),
    },
    "set": {"lost": ("ELEMENT_LOST", _by_value), "stale": ("STALE_READ", _by_value)},
    "append": {
        "lost": ("LOST_APPEND", _missed),
        "aborted": ("G1A", _either),
        "stale": ("G_SINGLE.*|G_NONADJACENT.*|G2_ITEM.*", _stale),
    },
    "kafka": {
        "lost": ("LOST_ACKED", _by_key_and_value),
        "duplicate": ("DUPLICATED", _by_key_and_value),
        "inconsistent": ("OFFSET_CONFLICT", _either),
        "aborted": ("PHANTOM_REFUSED", _by_key_and_value),
        "skip": ("CONSUMER_SKIPPED", _position),
        "nonmono": ("CONSUMER_WENT_BACK", _position),
    },
}


# ---------------------------------------------------------------------------------------- the table


def lines(folder: Path, runs: Path, asked: Judge) -> Iterator[Line]:
    if (folder / "porcupine").is_dir():
        yield from published(folder / "porcupine", runs, asked)
    if (folder / "jepsen").is_dir():
        yield from injected(folder / "jepsen", runs, asked)


def table(folder: Path, runs: Path, asked: Judge) -> int:
    """Print a line for each file; 1 if any deviates, or if there is none."""
    print(HEAD)
    found = []
    for line in lines(folder, runs, asked):
        print(line, flush=True)
        found.append(line)
    wrong = sum(bool(line.wrong) for line in found)
    cores = [line.core for line in found if line.core and line.name.endswith(".log")]
    unread = sum(bool(line.unread) for line in found)
    rest = f", of {unread} only the verdict is compared" if unread else ""
    print(f"{len(found)} histories, {wrong} deviate{rest}")
    if cores:
        print(f"counterexamples of registers: {sum(cores) / len(cores):.1f} operations on average")
    return 1 if wrong or not found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--here", action="store_true", help="without Spark")
    given = parser.parse_args()
    folder = given.folder or Path(os.environ.get("SEATRIAL_HISTORIES") or "histories")
    if not any((folder / name).is_dir() for name in PARTS):
        print(
            f"{folder} has no recorded histories: neither {' nor '.join(PARTS)} is a folder in it;"
            " name another, or set SEATRIAL_HISTORIES",
            file=sys.stderr,
        )
        return EXIT_BAD_REQUEST
    from harness.spark.session import session

    with TemporaryDirectory() as runs, nullcontext() if given.here else session() as spark:

        def asked(run: RunDir) -> Verdict:
            return judge(run, spark) if spark else judge_small(History.open(run))

        return table(folder, Path(runs), asked)


if __name__ == "__main__":
    sys.exit(main())
