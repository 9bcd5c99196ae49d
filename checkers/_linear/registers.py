"""Registers and strings of a history: their rows, and the verdict on each of their keys.

A key with appends is a string, any other key is a register; a key with list reads is a log, which
another checker judges. All keys of a bucket are judged at once, each with its own budget, so that
the verdict on a key does not depend on its neighbours. Only time and memory are shared: a bucket
may use half of its task's remaining time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from checkers._cycles.arrays import Bools, Ints
from checkers._linear.batch import (
    ABSENT,
    APPEND,
    ILLEGAL,
    KIND,
    OK,
    READ,
    STATUS,
    UNKNOWN,
    WRITE,
    Array,
    OperationBatch,
    select_keys,
)
from checkers._linear.buckets import BucketResult, Rows, map_buckets
from checkers._linear.encoding import KINDS, Flaw, Rule, encode
from checkers._linear.judge import REGISTER, STRING, SearchBudget, judge
from checkers._linear.pairing import OperationColumns
from checkers._run.evidence import SAMPLE
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import F, Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (*OperationColumns._fields, "mop", "place")
OURS = np.array([*KINDS, F.LIST])
WRITES = (F.PUT, F.CAS, F.APPEND)
DTYPES = (  # the types for which kernels are compiled
    *(np.int64, np.int32, np.int64, np.int8, np.int8, np.int32),
    *(np.int64, np.int64, np.int32),
)

FAILURES = 1 << 22  # of one key's search: half a gigabyte in the last round
SECONDS = 240.0  # of one task
LETTERS = 1 << 25  # bytes of the strings of one key, and of keys that are judged together

READER = "reader "  # how the name of a final reader's process begins

# reasons why a key was not decided
SPENT, TOO_LONG, MIXED = "spent", "too long", "mixed"


@dataclass(frozen=True)
class FinalReaders:
    """Processes that read at the end. Later incarnations of a process have numbers of the same
    remainder, divided by `every`. Empty where the workload has no final readers."""

    processes: tuple[int, ...] = ()
    every: int = 1

    def among(self, process: Ints) -> Bools:
        mine: Bools = np.isin(process % self.every, self.processes)
        return mine


def final_readers(history: History) -> FinalReaders:
    """Return the final readers of a run of Seatrial; an imported history has none."""
    named = history.names.get("processes", {})
    if "imported" in history.state or not isinstance(named, dict) or not named:
        return FinalReaders()
    mine = (int(p) for p, name in named.items() if p.isdecimal() and str(name).startswith(READER))
    return FinalReaders(tuple(sorted(mine)), len(named))


class UndecidedKey(NamedTuple):
    """A key that was not decided. `passed`: the number of its returns that the longest order
    explains."""

    key: int
    why: str
    operations: int
    passed: int
    returns: int


@dataclass(frozen=True)
class RegisterVerdicts:
    """Verdicts on all keys. `observed`: operations that show what a key held. `unread`: keys with
    an acknowledged write that no final reader read. `flaws`: the first few, with places as rows."""

    keys: dict[str, int]
    operations: int
    observed: int
    searched: int
    steps: int
    illegal: tuple[int, ...]
    unread: tuple[int, ...]
    open: tuple[UndecidedKey, ...]
    flaws: tuple[Flaw, ...]
    flawed: int


@dataclass(frozen=True)
class KeyGroup:
    """The keys of one kind. `texts`: the texts of all values, if values are numbers of texts.
    `silent`: reads that ended ok without their value."""

    kind: str
    batch: OperationBatch
    texts: Sequence[str]
    flaws: tuple[Flaw, ...]
    silent: int = 0


def judge_registers(history: History, spark: "SparkSession | None") -> RegisterVerdicts:
    """Return the verdict on each key."""
    run, spread, final = history.run, has_clock_spread(history), final_readers(history)

    def tell() -> Callable[[Rows], BucketResult]:
        return RegisterJudge(run, spread, final).judge_bucket

    return merge_results(map_buckets(history, spark, COLUMNS, select_rows, tell))


def has_clock_spread(history: History) -> bool:
    """Return whether any writer's times are widened, so that operations of one process seem to
    overlap."""
    return any(history.spread_ns(writer) for writer in history.writers)


def select_rows(batch: pa.RecordBatch, place: int) -> Rows:
    """Return the rows of keyed reads and writes, and rows of unknown kinds; no rows of
    transactions."""
    rows: dict[str, Ints] = {name: _column(batch, name) for name in COLUMNS[:-1]}
    rows["place"] = place + np.arange(batch.num_rows)
    mine = np.isin(rows["f"], OURS) | ~np.isin(rows["f"], [*F])
    mine &= rows["mop"] < 0
    if (rows["mop"] >= 0).any():  # then rows without a key belong to whole transactions
        mine &= rows["key"] >= 0
    return {name: column[mine] for name, column in rows.items()}


def _column(batch: pa.RecordBatch, name: str) -> Ints:
    absent = ABSENT if name in ("value", "arg") else -1
    column = batch.column(name).cast(pa.int64()).fill_null(absent)
    numbers: Ints = column.to_numpy(zero_copy_only=False)
    return numbers


@dataclass(frozen=True)
class Values:
    """Texts of values, if they have any, and the initial value of each register. If registers have
    an initial value, a read of nothing is a read whose value is unknown."""

    texts: Sequence[str] | None = None
    initial: int = ABSENT

    @classmethod
    def of(cls, run: RunDir) -> "Values":
        names = run.names()
        return cls(names.get("values"), names.get("initial", ABSENT))


def key_groups(rows: Rows, values: Values, spread: bool = False) -> Iterator[KeyGroup]:
    """Yield the keys of each kind. `spread`: as returned by `has_clock_spread`."""
    order = np.argsort(rows["place"], kind="stable")
    rows = {name: column[order] for name, column in rows.items()}
    appended, listed = (
        np.isin(rows["key"], rows["key"][rows["f"] == f]) for f in (F.APPEND, F.LIST)
    )
    string = appended & ~listed
    if (~appended & ~listed).any():
        yield _part(REGISTER, rows, ~appended & ~listed, values, spread)
    if string.any():
        yield _part(STRING, rows, string, replace(values, initial=ABSENT), spread)


def _part(kind: str, rows: Rows, mine: Bools, values: Values, spread: bool) -> KeyGroup:
    columns = [
        rows[name][mine].astype(d) for name, d in zip(OperationColumns._fields, DTYPES, strict=True)
    ]
    table, texts, initial = OperationColumns(*columns), list[str](), values.initial
    silent = (table.f == F.GET) & (table.type == Type.OK) & (table.value == ABSENT)
    silent &= initial != ABSENT
    table = table._replace(type=np.where(silent, Type.INFO, table.type).astype(table.type.dtype))
    if values.texts is not None or kind == STRING:
        table, texts, initial = _numbered(table, values.texts or (), initial)
    encoded = encode(table, initial, pipelined=spread)
    places = rows["place"][mine]
    flaws = tuple(replace(flaw, row=int(places[flaw.row])) for flaw in encoded.flaws)
    return KeyGroup(kind, encoded.batch, texts, flaws, int(np.count_nonzero(silent)))


def _numbered(
    table: OperationColumns, names: Sequence[str], initial: int
) -> tuple[OperationColumns, list[str], int]:
    """Keep only the texts that occur here, and replace columns and initial value by their numbers.
    A value without a text is its number in digits."""
    each = np.concatenate([table.value, table.arg, [initial]])
    found, at = np.unique(each[each != ABSENT], return_inverse=True)
    numbers = np.full(len(each), ABSENT)
    numbers[each != ABSENT] = at
    texts = [str(names[v]) if 0 <= v < len(names) else str(v) for v in found.tolist()]
    value, arg = np.split(numbers[:-1], 2)
    return table._replace(value=value, arg=arg), texts, int(numbers[-1])


class RegisterJudge:
    """State of one task that judges one bucket after another."""

    def __init__(self, run: RunDir, spread: bool, final: FinalReaders) -> None:
        self._values = Values.of(run)
        self._spread, self._final = spread, final
        self._until = monotonic() + SECONDS

    def judge_bucket(self, rows: Rows) -> BucketResult:
        """Return the verdicts on a bucket's keys, as numbers."""
        line: BucketResult = {
            "keys": {REGISTER: 0, STRING: 0},
            "illegal": [],
            "open": [],
            "flaws": [],
        }
        line["unread"] = unread_keys(rows, self._final)
        line |= dict.fromkeys(("operations", "observed", "searched", "steps", "flawed"), 0)
        for part in key_groups(rows, self._values, self._spread):
            line["keys"][part.kind] = len(part.batch.keys)
            line["operations"] += len(part.batch.ops)
            line["observed"] += _count_observations(part.batch.ops) + part.silent
            line["flaws"] += [(f.row, f.rule, f.op, f.process) for f in part.flaws[:SAMPLE]]
            line["flawed"] += len(part.flaws)
            for batch, why in _shares(part):
                if why:
                    line["open"] += _undecided(batch, why)
                else:
                    self._judge(part, batch, line)
        return line

    def _judge(self, part: KeyGroup, batch: OperationBatch, line: BucketResult) -> None:
        left = max(1.0, (self._until - monotonic()) / 2)
        budget = SearchBudget(failures=FAILURES, seconds=left, exhaustive=True)
        found = judge(batch, part.kind, budget, part.texts)
        line["searched"] += found.stats["searched"]
        line["steps"] += found.stats["steps"]
        line["illegal"] += batch.keys[found.verdicts == ILLEGAL].tolist()
        undecided = np.flatnonzero(found.verdicts == UNKNOWN)
        line["open"] += _undecided(select_keys(batch, undecided), SPENT, found.passed[undecided])


def unread_keys(rows: Rows, final: FinalReaders) -> list[int]:
    """Return the keys with an acknowledged write that no final reader read."""
    if not final.processes:
        return []
    ok = rows["type"] == Type.OK
    written = ok & np.isin(rows["f"], WRITES)
    read = ok & np.isin(rows["f"], (F.GET, F.LIST)) & final.among(rows["process"])
    unread: list[int] = np.setdiff1d(rows["key"][written], rows["key"][read]).tolist()
    return unread


def _count_observations(ops: Array) -> int:
    """Return the number of operations that show what the key held."""
    observed = (ops[:, STATUS] == OK) & ~np.isin(ops[:, KIND], (WRITE, APPEND))
    return int(np.count_nonzero(observed))


def _undecided(batch: OperationBatch, why: str, passed: Array | None = None) -> list[UndecidedKey]:
    lengths = np.diff(batch.starts)
    happened = np.concatenate([[0], np.cumsum(batch.ops[:, STATUS] == OK)])
    returns = happened[batch.starts[1:]] - happened[batch.starts[:-1]]
    passed = np.zeros(len(lengths), np.int64) if passed is None else passed
    rows = zip(
        batch.keys.tolist(), lengths.tolist(), passed.tolist(), returns.tolist(), strict=True
    )
    return [UndecidedKey(key, why, n, p, r) for key, n, p, r in rows]


def _shares(part: KeyGroup) -> Iterator[tuple[OperationBatch, str]]:
    """Yield the parts to be judged at once; with a reason, the parts not to be judged at all."""
    if part.kind == REGISTER:
        yield part.batch, ""
        return
    batch = part.batch
    mixed, letters = _mixed(batch), _letters(batch, part.texts)
    for which, why in ((mixed, MIXED), (~mixed & (letters > LETTERS), TOO_LONG)):
        if which.any():
            yield select_keys(batch, np.flatnonzero(which)), why
    good = np.flatnonzero(~mixed & (letters <= LETTERS))
    share = (np.cumsum(letters[good]) - 1) // LETTERS
    for number in np.unique(share).tolist():
        yield select_keys(batch, good[share == number]), ""


def _mixed(batch: OperationBatch) -> Bools:
    """Return the keys with a compare-and-set, which strings do not have."""
    strange = ~np.isin(batch.ops[:, KIND], (READ, WRITE, APPEND))
    before = np.concatenate([[0], np.cumsum(strange)])
    mixed: Bools = before[batch.starts[1:]] > before[batch.starts[:-1]]
    return mixed


def _letters(batch: OperationBatch, texts: Sequence[str]) -> Ints:
    """Return the memory that each key's strings take, in bytes."""
    sizes = np.array([len(text.encode()) + 1 for text in texts] + [1])
    values = np.where(batch.values == ABSENT, -1, batch.values)
    before = np.concatenate([[0], np.cumsum(sizes[values])])
    letters: Ints = before[batch.value_starts[1:]] - before[batch.value_starts[:-1]]
    return letters


def merge_results(lines: Sequence[BucketResult]) -> RegisterVerdicts:
    """Merge the results of all buckets, in the order of keys and places."""

    def total(name: str) -> int:
        return sum(line[name] for line in lines)

    flaws = [
        Flaw(row, Rule(rule), op, who) for line in lines for row, rule, op, who in line["flaws"]
    ]
    return RegisterVerdicts(
        keys={kind: sum(line["keys"][kind] for line in lines) for kind in (REGISTER, STRING)},
        operations=total("operations"),
        observed=total("observed"),
        searched=total("searched"),
        steps=total("steps"),
        illegal=tuple(sorted(key for line in lines for key in line["illegal"])),
        unread=tuple(sorted(key for line in lines for key in line["unread"])),
        open=tuple(sorted(UndecidedKey(*row) for line in lines for row in line["open"])),
        flaws=tuple(sorted(flaws)[:SAMPLE]),
        flawed=total("flawed"),
    )
