"""Texts for illegal keys: a second pass over the files that reads their operations only."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._linear.batch import ILLEGAL
from checkers._linear.buckets import BucketResult, Rows, map_buckets
from checkers._linear.counterexample import EMPTY, WORDS, Counterexample, find_counterexample
from checkers._linear.judge import SearchBudget, judge
from checkers._linear.models import NOTHING, ModelOperation
from checkers._linear.registers import (
    COLUMNS,
    FAILURES,
    SECONDS,
    KeyGroup,
    Values,
    has_clock_spread,
    key_groups,
    select_rows,
)
from checkers._run.evidence import seconds
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import Type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUDGET = SearchBudget(FAILURES, SECONDS / 2, exhaustive=True)
EFFORT = 10_000_000  # operations and steps, of all keys together
MAX_STEPS = 12  # operations in one explanation
MAX_STATES = 6
MAX_TEXT = 48  # letters of a value


@dataclass(frozen=True)
class Explanation:
    """A contradiction as text. `op`: the operation whose answer has no explanation. `ops`: all
    operations of the contradiction; `steps`: their texts in the order of their calls. `held`: the
    values that the key can have held. `span`: from their first call to their last return, if known.
    """

    key: int
    kind: str
    op: int
    ops: tuple[int, ...]
    steps: tuple[str, ...]
    held: tuple[str, ...]
    span: tuple[int, ...]


def explain_keys(
    history: History, spark: "SparkSession | None", keys: Sequence[int]
) -> list[Explanation]:
    """Return the contradictions in a few illegal keys, in the order of keys."""
    run, wanted, spread = history.run, np.array(sorted(keys)), has_clock_spread(history)

    def select(batch: pa.RecordBatch, place: int) -> Rows:
        rows = select_rows(batch, place)
        mine = np.isin(rows["key"], wanted)
        return {name: column[mine] for name, column in rows.items()}

    lines = map_buckets(
        history,
        spark,
        COLUMNS,
        select,
        lambda: BucketExplainer(run, len(wanted), spread).explain_bucket,
    )
    found = [Explanation(**fields) for line in lines for fields in line["stories"]]
    return sorted(found, key=lambda story: story.key)


class BucketExplainer:
    """State of one task that explains one bucket after another."""

    def __init__(self, run: RunDir, count: int, spread: bool) -> None:
        self._spread = spread
        self._values = Values.of(run)
        self._began = run.load_began()
        self._effort = EFFORT // max(1, count)

    def explain_bucket(self, rows: Rows) -> BucketResult:
        return {
            "stories": [
                asdict(story)
                for part in key_groups(rows, self._values, self._spread)
                for story in self._stories(part, rows)
            ]
        }

    def _stories(self, part: KeyGroup, rows: Rows) -> Iterator[Explanation]:
        """Yield the explanations of the illegal keys of one kind; none of a key that is too hard to
        explain."""
        found = judge(part.batch, part.kind, BUDGET, part.texts)
        for k in np.flatnonzero(found.verdicts == ILLEGAL).tolist():
            witness = found.witnesses.get(k, ())
            passed = int(found.passed[k])
            example = find_counterexample(
                part.batch, k, part.kind, part.texts, witness, passed, self._effort
            )
            if example is not None:
                yield _story(example, part, rows, self._began)


def _story(example: Counterexample, part: KeyGroup, rows: Rows, began: int) -> Explanation:
    """Return the text of a counterexample. `began`: the start of the load, from which times
    count."""
    core = sorted(example.core, key=lambda o: (o.call, o.op))
    shown = core if len(core) <= MAX_STEPS else _last(core, example.failing)
    spans = _spans(rows, [o.op for o in shown])
    words = [f"{_words(o)} ({_when(spans, o.op, began)})" for o in shown]
    if len(shown) < len(core):
        words.insert(0, f"{len(core) - len(shown):,} earlier operations")
    if len(core) == 1 and not (example.from_any_state or core[0].refused):
        words.append("no operation called before it returned can have written that value")
    if example.from_any_state:
        words.insert(0, "whatever it held before, and whatever the operations open since then did")
    return Explanation(
        key=example.key,
        kind=part.kind,
        op=example.failing.op,
        ops=tuple(o.op for o in shown),
        steps=tuple(words),
        held=tuple(_held(dead.state, part) for dead in example.frontier[:MAX_STATES]),
        span=_span(_spans(rows, [o.op for o in core])),
    )


def _held(state: str, part: KeyGroup) -> str:
    return _shown(state) if part.texts and state not in (NOTHING, EMPTY) else state


def _last(core: Sequence[ModelOperation], failing: ModelOperation) -> list[ModelOperation]:
    """Return the operations of a core that were called last, with the failing one."""
    others = [o for o in core if o.op != failing.op]
    return sorted([*others[1 - MAX_STEPS :], failing], key=lambda o: (o.call, o.op))


def _spans(rows: Rows, ops: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Return by operation: its process, its call, and its return or -1."""
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


def _words(operation: ModelOperation) -> str:
    value, arg = (_shown(part) for part in (operation.value, operation.arg))
    words = WORDS[operation.f].format(value=value, arg=arg)
    return f"{words}, refused" if operation.refused else words


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return json.dumps(_short(value), ensure_ascii=False) if isinstance(value, str) else str(value)


def _short(text: str) -> str:
    """Return the begin and the end of a long text."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} ... {text[-half:]}"
