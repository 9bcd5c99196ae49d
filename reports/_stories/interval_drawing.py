"""The operations of a contradiction, drawn as intervals, one line a client.

Time is to scale. An operation is a bar from its call to its answer; one of unknown outcome fades
out to the right, because it may happen at any later time. The operation without an explanation is
marked, with the values that the object can have held by then.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from markupsafe import Markup

from harness.history.reader import History
from harness.judge.verdict import Verdict
from harness.operation import F, Type, producer_of, sequence_of
from reports._format import clip
from reports._stories.moments import HistoryNames
from reports._stories.rows import Row, RowQuery, select_rows
from reports._stories.witness import choose_witness, witness_operations

WIDTH, GUTTER, RIGHT = 940, 190, 30
PLOT = WIDTH - GUTTER - RIGHT
LETTER = 6.6  # width of a letter
LABEL, BAR, GAP, AXIS = 15, 16, 12, 26
MIN_BAR = 5.0  # width of a bar
MAX_OPERATIONS = 24
MAX_LETTERS = 46  # letters
TICKS = 5
MESSAGES = (F.SEND, F.POLL, F.READ)


@dataclass(frozen=True)
class DrawnOperation:
    """An operation in a drawing. `end` is None if the outcome is unknown."""

    op: int
    client: str
    begin: int
    end: int | None
    words: str
    failing: bool = False
    refused: bool = False


@dataclass(frozen=True)
class IntervalDrawing:
    """The operations of one witness."""

    operations: tuple[DrawnOperation, ...]
    held: str = ""
    left_out: int = 0

    @property
    def times(self) -> tuple[int, ...]:
        return tuple(operation.begin for operation in self.operations)


def interval_drawing(history: History, verdict: Verdict, name: str) -> IntervalDrawing | None:
    """Return the operations of the witness `CODE:NUMBER`; None if it names none."""
    about = choose_witness(verdict, name)
    if about is None:
        return None
    row = about.row
    listed = tuple(int(n) for n in str(row.get("ops", "")).split() if n.isdecimal())
    ops = tuple(dict.fromkeys((*listed, *witness_operations(about, history))))
    if not ops:
        return None
    rows = select_rows(history, RowQuery(ops=ops[:MAX_OPERATIONS]))
    failing = row.get("op") if listed else None
    operations = tuple(_operations(rows, HistoryNames(history), failing))
    if not operations:
        return None
    return IntervalDrawing(
        operations, clip(row.get("held", ""), 120), max(0, len(ops) - MAX_OPERATIONS)
    )


def _operations(rows: Sequence[Row], names: HistoryNames, failing: Any) -> Iterator[DrawnOperation]:
    by_op: dict[int, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    for op, some in by_op.items():
        ended = [row for row in some if row["type"] in (Type.OK, Type.FAIL)]
        yield DrawnOperation(
            op=op,
            client=clip(names.process(some[0]["process"]), 26),
            begin=min(row["t"] for row in some),
            end=max((row["t"] for row in ended), default=None),
            words=clip(_words(op, some, names), MAX_LETTERS),
            failing=op == failing,
            refused=any(row["type"] == Type.FAIL for row in ended),
        )


def _words(op: int, rows: Sequence[Row], names: HistoryNames) -> str:
    """Return `put 7`, `get gives 3`, `T12: append 3 to x; list y`."""
    micro = [row for row in rows if row["mop"] is not None]
    if micro:
        numbers = sorted({row["mop"] for row in micro})
        parts = [_call([row for row in micro if row["mop"] == n], names) for n in numbers]
        return f"T{op}: {'; '.join(parts)}"
    return f"{_call(rows, names)} (op {op})"


def _call(rows: Sequence[Row], names: HistoryNames) -> str:
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


def interval_svg(example: IntervalDrawing, zero: int = 0) -> Markup:
    """Return the picture, with an alternative text. Times count from `zero`."""
    example = replace(example, operations=tuple(_since(zero, o) for o in example.operations))
    scale = _TimeScale.of(example.operations)
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
        words=_alternative_text(example),
        axis=Markup("").join(scale.axis(y)),
        shapes=Markup("").join(shapes),
    )


def _since(zero: int, operation: DrawnOperation) -> DrawnOperation:
    end = None if operation.end is None else operation.end - zero
    return replace(operation, begin=operation.begin - zero, end=end)


def _alternative_text(example: IntervalDrawing) -> str:
    lines = [
        f"{o.client}: {o.words}, from {o.begin / 1e9:.6f} s "
        + ("on, of unknown outcome" if o.end is None else f"to {o.end / 1e9:.6f} s")
        + (", which nothing explains" if o.failing else "")
        for o in example.operations
    ]
    return "Operations that contradict each other. " + "; ".join(lines)


def _client(
    operations: Sequence[DrawnOperation], scale: "_TimeScale", y: float
) -> tuple[list[Markup], float]:
    """Return one client's line: its bars, and above them as many rows of labels as they need."""
    taken: list[float] = []
    levels: list[tuple[DrawnOperation, int, float]] = []
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
    operation: DrawnOperation, scale: "_TimeScale", y: float, label_x: float, label_y: float
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
    ).format(begin, y, max(MIN_BAR, end - begin), BAR, style, words)
    yield Markup('<text x="{:.1f}" y="{:.1f}" class="word {}">{}</text>').format(
        label_x, label_y, style, operation.words
    )
    if operation.failing:
        yield Markup('<path d="M{:.1f} {:.1f}l8 8m0 -8l-8 8" class="cross"/>').format(
            max(begin + MIN_BAR, end) + 5, y + 4
        )


@dataclass(frozen=True)
class _TimeScale:
    begin: int
    length: int

    @classmethod
    def of(cls, operations: Sequence[DrawnOperation]) -> "_TimeScale":
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
