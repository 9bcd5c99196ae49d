"""Suites as matrices: a line for each trial, a column for each night, and the trends of its
numbers.

The results of a suite, night by night, are in a file that suites write (`harness.suite.store`):
whether each trial ended as expected, and the medians of some numbers. All runs whose folders exist
make one more matrix, by day and by verdict. A trend is drawn from zero, on a scale of its own, with
its last value beside it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from markupsafe import Markup

from harness.suite.store import FOLDER, NIGHTS, Night, nights
from reports._format import clip, seconds
from reports._site.run_index import RunIndex, trouble
from reports._site.run_list import FOREIGN, STATES, RunRow, number

MAX_NIGHTS = 21
MAX_LINES = 300
MAX_BYTES = 64_000_000  # of the file of nights
ALL = "All runs, by day"
EXPECTED = {  # result of a suite's trial: style and word
    0: ("valid", "as expected"),
    1: ("invalid", "not as expected"),
    2: ("unknown", "undecided"),
}
WIDTH, HEIGHT, EDGE = 120, 26, 3


@dataclass(frozen=True)
class MatrixCell:
    """The result of a trial in a night: style, word, details, and a run."""

    look: str
    word: str
    about: str = ""
    run: str = ""


@dataclass(frozen=True)
class Trend:
    """A number over the nights, as a small picture with its last value."""

    drawing: Markup
    last: str


@dataclass(frozen=True)
class MatrixLine:
    """A trial, its cells by night, and its trends."""

    trial: str
    variant: str
    cells: tuple[MatrixCell | None, ...]
    trends: tuple[Trend, ...]


@dataclass(frozen=True)
class Matrix:
    """A suite, or all runs."""

    name: str
    nights: tuple[str, ...]
    lines: tuple[MatrixLine, ...]


@dataclass(frozen=True)
class Figure:
    """A number that is followed over nights. `name`: its name in the file of nights."""

    heading: str
    name: str
    of_row: Callable[[RunRow], float | None]
    words: Callable[[float], str]


FIGURES = (
    Figure("fault to ack", "to_ack_s_p50", lambda row: row.rto_s, seconds),
    Figure("acknowledged a second", "per_s", lambda row: row.rate, "{:,.0f}".format),
)


def matrices(shelf: RunIndex, rows: Iterable[RunRow]) -> list[Matrix]:
    """Return the suites by name, then all runs; empty ones are left out."""
    file = shelf.path / FOLDER / NIGHTS
    readable = not file.parent.is_symlink() and not trouble(file, MAX_BYTES)
    past = nights(shelf.path) if readable else []
    names = sorted({night.suite for night in past})
    suites = [_of_suite(name, [n for n in past if n.suite == name]) for name in names]
    return [matrix for matrix in (*suites, _of_runs(rows)) if matrix.lines]


# --------------------------------------------------------------------------------------- suites


def _of_suite(suite: str, past: Sequence[Night]) -> Matrix:
    last = past[-MAX_NIGHTS:]
    trials = list(dict.fromkeys(name for night in reversed(last) for name in night.came))
    lines = (_told(name, last) for name in trials[:MAX_LINES])
    return Matrix(clip(suite, 80), tuple(_day(night) for night in last), tuple(lines))


def _told(name: str, past: Sequence[Night]) -> MatrixLine:
    each = [night.came.get(name) for night in past]
    cells = tuple(None if came is None else _came(came.was, came.words) for came in each)
    trends = tuple(
        trend([number(came.figures, f.name) if came else None for came in each], f.words)
        for f in FIGURES
    )
    return MatrixLine(name, "", cells, trends)


def _came(was: Any, words: Sequence[Any]) -> MatrixCell:
    look, word = EXPECTED.get(was, EXPECTED[2]) if isinstance(was, int) else EXPECTED[2]
    return MatrixCell(look, word, clip("; ".join(map(str, words)), 300))


def _day(night: Night) -> str:
    return clip(night.when, 40)[5:10]


# --------------------------------------------------------------------------------------- runs


def _of_runs(rows: Iterable[RunRow]) -> Matrix:
    dated = [row for row in rows if row.trial and row.day and row.state != FOREIGN]
    days = sorted({row.day for row in dated})[-MAX_NIGHTS:]
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in dated:
        if row.day in days:
            groups.setdefault((row.subject, _variant(row)), []).append(row)
    some = sorted(groups.items())[:MAX_LINES]
    lines = (_ran(trial, variant, group, days) for (trial, variant), group in some)
    return Matrix(ALL, tuple(day[5:] for day in days), tuple(lines))


def _variant(row: RunRow) -> str:
    """Return what distinguishes trials of one name."""
    words = (row.trial.profile, row.trial.hosts) if row.trial else ()
    return ", ".join(filter(None, words))


def _ran(trial: str, variant: str, rows: Sequence[RunRow], days: Sequence[str]) -> MatrixLine:
    by_day = {day: [row for row in rows if row.day == day] for day in days}
    cells = tuple(_worst(some) for some in by_day.values())
    trends = tuple(trend(_medians(by_day, f.of_row), f.words) for f in FIGURES)
    return MatrixLine(trial, variant, cells, trends)


def _worst(rows: Sequence[RunRow]) -> MatrixCell | None:
    """Return the worst verdict of a day, the number of its runs, and the newest of those."""
    if not rows:
        return None
    worst = min(rows, key=lambda row: STATES.index(row.state)).state
    same = [row for row in rows if row.state == worst]
    share = f" {len(same)}/{len(rows)}" if len(rows) > 1 else ""
    about = f"{len(same)} of {len(rows)}"
    return MatrixCell(
        worst.replace(" ", "-"), f"{worst}{share}", about, max(row.name for row in same)
    )


def _medians(
    by_day: Mapping[str, Sequence[RunRow]], of: Callable[[RunRow], float | None]
) -> list[float | None]:
    medians: list[float | None] = []
    for rows in by_day.values():
        values = [value for row in rows if (value := of(row)) is not None]
        medians.append(median(values) if values else None)
    return medians


# --------------------------------------------------------------------------------------- trends


def trend(values: Sequence[float | None], words: Callable[[float], str]) -> Trend:
    """Return a line through the nights that have a value, with a dot at the last."""
    known = [(at, max(0.0, value)) for at, value in enumerate(values) if value is not None]
    if not known:
        return Trend(Markup(""), "")
    top = max(value for _, value in known) or 1.0
    step = (WIDTH - 2 * EDGE) / max(1, len(values) - 1)
    points = [
        (EDGE + at * step, HEIGHT - EDGE - value / top * (HEIGHT - 2 * EDGE)) for at, value in known
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    drawing = (
        f'<svg class="trend" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">'
        f'<polyline points="{path}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'
    )
    return Trend(Markup(drawing), words(known[-1][1]))  # our own numbers only
