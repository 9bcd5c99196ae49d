"""The few operations that contradict each other, drawn as intervals on their clients' lines.

Time runs to the right, true to scale. An operation is a bar from its call to its answer; one of
unknown outcome fades out to the right, for it may happen at any later time. The one whose answer
nothing explains is marked, with what the object can have held by then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from markupsafe import Markup

from harness.explain.rows import Row, Wanted, rows_about
from harness.explain.subject import asked, operations_of
from harness.explain.words import Names
from harness.history.reader import History
from harness.judge.verdict import Verdict
from harness.operation import F, Type, producer_of, sequence_of
from reports._words import clip

WIDTH, GUTTER, RIGHT = 940, 190, 30
PLOT = WIDTH - GUTTER - RIGHT
LETTER = 6.6  # a letter's width
LABEL, BAR, GAP, AXIS = 15, 16, 12, 26
LEAST = 5.0  # a bar's width
MOST_OPS = 24
MOST_WORDS = 46  # letters
TICKS = 5
MESSAGES = (F.SEND, F.POLL, F.READ)


@dataclass(frozen=True)
class Operation:
    """An operation in a drawing. `end` is None when nobody knows whether it happened."""

    op: int
    client: str
    begin: int
    end: int | None
    words: str
    failing: bool = False
    refused: bool = False


@dataclass(frozen=True)
class Counterexample:
    """What is drawn of one witness."""

    operations: tuple[Operation, ...]
    held: str = ""
    left_out: int = 0

    @property
    def times(self) -> tuple[int, ...]:
        return tuple(operation.begin for operation in self.operations)


def counterexample(history: History, verdict: Verdict, name: str) -> Counterexample | None:
    """Of the witness `CODE:NUMBER`; None when it names no operations."""
    about = asked(verdict, name)
    if about is None:
        return None
    row = about.row
    listed = tuple(int(n) for n in str(row.get("ops", "")).split() if n.isdecimal())
    ops = tuple(dict.fromkeys((*listed, *operations_of(about, history))))
    if not ops:
        return None
    rows = rows_about(history, Wanted(ops=ops[:MOST_OPS]))
    failing = row.get("op") if listed else None
    operations = tuple(_operations(rows, Names(history), failing))
    if not operations:
        return None
    return Counterexample(operations, clip(row.get("held", ""), 120), max(0, len(ops) - MOST_OPS))


def _operations(rows: Sequence[Row], names: Names, failing: Any) -> Iterator[Operation]:
    by_op: dict[int, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    for op, some in by_op.items():
        ended = [row for row in some if row["type"] in (Type.OK, Type.FAIL)]
        yield Operation(
            op=op,
            client=clip(names.process(some[0]["process"]), 26),
            begin=min(row["t"] for row in some),
            end=max((row["t"] for row in ended), default=None),
            words=clip(_words(op, some, names), MOST_WORDS),
            failing=op == failing,
            refused=any(row["type"] == Type.FAIL for row in ended),
        )


def _words(op: int, rows: Sequence[Row], names: Names) -> str:
    """`put 7`, `get gives 3`, `T12: append 3 to x; list y`."""
    micro = [row for row in rows if row["mop"] is not None]
    if micro:
        numbers = sorted({row["mop"] for row in micro})
        parts = [_call([row for row in micro if row["mop"] == n], names) for n in numbers]
        return f"T{op}: {'; '.join(parts)}"
    return f"{_call(rows, names)} (op {op})"


def _call(rows: Sequence[Row], names: Names) -> str:
    called = rows[0]
    f = F(called["f"])
    verb = f.name.lower()
    where = f" {names.key(called['key'])}" if called["mop"] is not None else ""
    if f in MESSAGES:
        value = called["value"]
        number = "" if value is None else f" {sequence_of(value)} of {producer_of(value)}"
        return f"{verb}{number}"
    answers = [row for row in rows if row["type"] == Type.OK]
    asked_for = "" if called["value"] is None else f" {names.value(called['value'])}"
    if f is F.CAS and called["arg"] is not None:
        asked_for += f" to {names.value(called['arg'])}"
    if f in (F.GET, F.COUNT, F.DEQUEUE) and answers:
        return f"{verb}{where} gives {names.value(answers[-1]['value'])}"
    if f is F.LIST and answers:
        elements = [row for row in answers if row["pos"] is not None]
        return f"{verb}{where} gives {len(elements)} elements"
    return f"{verb}{asked_for}{where}"


# --------------------------------------------------------------------------------------- drawing


def drawn(example: Counterexample, zero: int = 0) -> Markup:
    """The picture, with a sentence for those who can not see it. Times count from `zero`."""
    example = replace(example, operations=tuple(_since(zero, o) for o in example.operations))
    scale = _Scale.of(example.operations)
    shapes: list[Markup] = []
    y = 6.0
    ordered = sorted(example.operations, key=lambda o: (o.client, o.begin, o.op))
    for number, (client, some) in enumerate(groupby(ordered, key=lambda o: o.client)):
        made, height = _client(list(some), scale, y)
        shade = Markup('<rect x="0" y="{:.1f}" width="{}" height="{:.1f}" class="stripe"/>')
        shapes += [shade.format(y - 3, WIDTH, height)] if number % 2 == 0 else []
        shapes.append(
            Markup('<text x="8" y="{:.1f}" class="client">{}</text>').format(y + LABEL + 12, client)
        )
        shapes += made
        y += height
    return Markup(
        '<svg class="intervals" viewBox="0 0 {w} {h:.0f}" width="{w}" height="{h:.0f}" role="img" '
        'aria-label="{words}">{axis}{shapes}</svg>'
    ).format(
        w=WIDTH,
        h=y + AXIS,
        words=_told(example),
        axis=Markup("").join(scale.axis(y)),
        shapes=Markup("").join(shapes),
    )


def _since(zero: int, operation: Operation) -> Operation:
    end = None if operation.end is None else operation.end - zero
    return replace(operation, begin=operation.begin - zero, end=end)


def _told(example: Counterexample) -> str:
    said = [
        f"{o.client}: {o.words}, from {o.begin / 1e9:.6f} s "
        + ("on, of unknown outcome" if o.end is None else f"to {o.end / 1e9:.6f} s")
        + (", which nothing explains" if o.failing else "")
        for o in example.operations
    ]
    return "Operations that contradict each other. " + "; ".join(said)


def _client(
    operations: Sequence[Operation], scale: "_Scale", y: float
) -> tuple[list[Markup], float]:
    """One client's line: bars on it, and above them as many rows of labels as they need."""
    taken: list[float] = []
    levels: list[tuple[Operation, int, float]] = []
    for operation in operations:
        wide = len(operation.words) * LETTER + 10
        x = min(scale.x(operation.begin), WIDTH - 4 - wide)
        level = next((n for n, until in enumerate(taken) if until <= x), len(taken))
        taken[level : level + 1] = [x + wide]
        levels.append((operation, level, x))
    bar = y + len(taken) * LABEL
    made: list[Markup] = []
    for operation, level, x in levels:
        made += _bar(operation, scale, bar, x, y + (len(taken) - level) * LABEL - 4)
    return made, len(taken) * LABEL + BAR + GAP


def _bar(
    operation: Operation, scale: "_Scale", y: float, label_x: float, label_y: float
) -> Iterator[Markup]:
    begin = scale.x(operation.begin)
    end = WIDTH - RIGHT / 2 if operation.end is None else scale.x(operation.end)
    style = "failing" if operation.failing else "unknown" if operation.end is None else "sound"
    style += " refused" if operation.refused else ""
    words = f"{operation.words}, {operation.begin / 1e9:.6f} s to "
    words += "unknown" if operation.end is None else f"{operation.end / 1e9:.6f} s"
    yield Markup('<path d="M{:.1f} {:.1f}V{:.1f}" class="lead"/>').format(begin, label_y + 2, y)
    yield Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="3" class="op {}">'
        "<title>{}</title></rect>"
    ).format(begin, y, max(LEAST, end - begin), BAR, style, words)
    yield Markup('<text x="{:.1f}" y="{:.1f}" class="word {}">{}</text>').format(
        label_x, label_y, style, operation.words
    )
    if operation.failing:
        yield Markup('<path d="M{:.1f} {:.1f}l8 8m0 -8l-8 8" class="cross"/>').format(
            max(begin + LEAST, end) + 5, y + 4
        )


@dataclass(frozen=True)
class _Scale:
    begin: int
    length: int

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> "_Scale":
        begin = min(operation.begin for operation in operations)
        ends = [o.begin if o.end is None else o.end for o in operations]
        return cls(begin, max(1, max(ends) - begin))

    def x(self, t: int) -> float:
        return GUTTER + (t - self.begin) / self.length * PLOT * 0.94

    def axis(self, y: float) -> Iterator[Markup]:
        digits = 3 if self.length >= 10**9 else 6
        for number in range(TICKS):
            t = self.begin + self.length * number // (TICKS - 1)
            yield Markup('<path d="M{:.1f} 0V{:.1f}" class="grid"/>').format(self.x(t), y)
            yield Markup('<text x="{:.1f}" y="{:.1f}" class="tick">{}</text>').format(
                self.x(t), y + 17, f"{t / 1e9:.{digits}f} s"
            )
