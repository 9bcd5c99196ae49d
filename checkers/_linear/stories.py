"""Illegal keys in words: a second pass over the files, which reads nothing but their operations."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._linear.batch import ILLEGAL
from checkers._linear.buckets import Line, Rows, by_bucket
from checkers._linear.explain import EMPTY, WORDS, Counterexample, explain
from checkers._linear.judge import Budget, judge
from checkers._linear.models import NOTHING, Operation
from checkers._linear.registers import (
    COLUMNS,
    FAILURES,
    SECONDS,
    Part,
    Values,
    parts_of,
    selected,
    spread_out,
)
from checkers._run.evidence import seconds
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUDGET = Budget(FAILURES, SECONDS / 2, exhaustive=True)
EFFORT = 10_000_000  # operations and steps, for all keys that are explained
MOST_TOLD = 12  # operations; a reader does not follow more
MOST_STATES = 6
LONGEST = 48  # letters of a text


@dataclass(frozen=True)
class Story:
    """A contradiction in words. `op`: the operation whose answer nothing explains; `ops`: all that
    take part, which are `told` in the order of their calls; `held`: what the key can have held;
    `span`: from the first call of them to the last return, if known."""

    key: int
    kind: str
    op: int
    ops: tuple[int, ...]
    told: tuple[str, ...]
    held: tuple[str, ...]
    span: tuple[int, ...]


def stories(history: History, spark: "SparkSession | None", keys: Sequence[int]) -> list[Story]:
    """The contradictions in a few illegal keys, in the order of keys."""
    run, wanted, spread = history.run, np.array(sorted(keys)), spread_out(history)

    def select(batch: pa.RecordBatch, place: int) -> Rows:
        rows = selected(batch, place)
        mine = np.isin(rows["key"], wanted)
        return {name: column[mine] for name, column in rows.items()}

    lines = by_bucket(
        history, spark, COLUMNS, select, lambda: Explaining(run, len(wanted), spread).told
    )
    found = [Story(**fields) for line in lines for fields in line["stories"]]
    return sorted(found, key=lambda story: story.key)


class Explaining:
    """What one task knows while it explains one bucket after the other."""

    def __init__(self, run: RunDir, count: int, spread: bool) -> None:
        self._spread = spread
        self._values = Values.of(run)
        self._began = run.load_began()
        self._effort = EFFORT // max(1, count)

    def told(self, rows: Rows) -> Line:
        return {
            "stories": [
                asdict(story)
                for part in parts_of(rows, self._values, self._spread)
                for story in self._stories(part, rows)
            ]
        }

    def _stories(self, part: Part, rows: Rows) -> Iterator[Story]:
        """Of a key that turns out too hard to explain, nothing is told."""
        found = judge(part.batch, part.kind, BUDGET, part.texts)
        for k in np.flatnonzero(found.verdicts == ILLEGAL).tolist():
            witness = found.witnesses.get(k, ())
            passed = int(found.passed[k])
            example = explain(part.batch, k, part.kind, part.texts, witness, passed, self._effort)
            if example is not None:
                yield _story(example, part, rows, self._began)


def _story(example: Counterexample, part: Part, rows: Rows, began: int) -> Story:
    """`began`: when the load did, from which the words count."""
    core = sorted(example.core, key=lambda o: (o.call, o.op))
    shown = core if len(core) <= MOST_TOLD else _last(core, example.failing)
    spans = _spans(rows, [o.op for o in shown])
    words = [f"{_words(o)} ({_when(spans, o.op, began)})" for o in shown]
    if len(shown) < len(core):
        words.insert(0, f"{len(core) - len(shown):,} earlier operations")
    if len(core) == 1 and not (example.whatever or core[0].refused):
        words.append("no operation called before it returned can have written that value")
    if example.whatever:
        words.insert(0, "whatever it held before, and whatever the operations open since then did")
    return Story(
        key=example.key,
        kind=part.kind,
        op=example.failing.op,
        ops=tuple(o.op for o in shown),
        told=tuple(words),
        held=tuple(_held(dead.state, part) for dead in example.frontier[:MOST_STATES]),
        span=_span(_spans(rows, [o.op for o in core])),
    )


def _held(state: str, part: Part) -> str:
    return _shown(state) if part.texts and state not in (NOTHING, EMPTY) else state


def _last(core: Sequence[Operation], failing: Operation) -> list[Operation]:
    """The operations of a core that were called last, the failing one among them."""
    others = [o for o in core if o.op != failing.op]
    return sorted([*others[1 - MOST_TOLD :], failing], key=lambda o: (o.call, o.op))


def _spans(rows: Rows, ops: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """By operation: its process, when it was called, and when it returned or -1."""
    mine = np.flatnonzero(np.isin(rows["op"], ops))
    spans: dict[int, tuple[int, int, int]] = {}
    columns = (rows[name][mine].tolist() for name in ("op", "process", "t", "type"))
    for op, process, t, kind in zip(*columns, strict=True):
        _, first, last = spans.get(op, (process, t, -1))
        ended = t if kind in (Type.OK, Type.FAIL) else -1
        spans[op] = (process, min(first, t), max(last, ended))
    return spans


def _span(spans: dict[int, tuple[int, int, int]]) -> tuple[int, ...]:
    times = [t for _, *both in spans.values() for t in both if t >= 0]
    return (min(times), max(times)) if times else ()


def _when(spans: dict[int, tuple[int, int, int]], op: int, began: int) -> str:
    process, begin, end = spans[op]
    until = f"to {seconds(end - began):.6f} s" if end >= 0 else "on, outcome unknown"
    return f"process {process}, op {op}, from {seconds(begin - began):.6f} s {until}"


def _words(operation: Operation) -> str:
    value, arg = (_shown(part) for part in (operation.value, operation.arg))
    words = WORDS[operation.f].format(value=value, arg=arg)
    return f"{words}, refused" if operation.refused else words


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return json.dumps(_short(value), ensure_ascii=False) if isinstance(value, str) else str(value)


def _short(text: str) -> str:
    """A long text's beginning and end."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} ... {text[-half:]}"
