"""Suites as matrices: a line for each trial, a column for each night, and how its numbers went.

A run belongs to the suite that its run.json names, and to the night on which it began. The worst
verdict of a cell is the cell's; the trend is drawn from the median of each night, on a scale of its
own, with its last value beside it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from reports._site.rows import FOREIGN, STATES, Row

MOST_NIGHTS = 21
MOST_LINES = 300
ALONE = "runs of no suite"
WIDTH, HEIGHT, EDGE = 120, 26, 3


@dataclass(frozen=True)
class Cell:
    """What a trial came to in a night: the worst word, how many of how many, the newest of those."""

    state: str
    count: int
    of: int
    name: str


@dataclass(frozen=True)
class Trend:
    """A number over the nights, as a small picture with its last value."""

    drawing: Markup
    last: float | None


@dataclass(frozen=True)
class Line:
    """A trial, its cells by night, and its trends."""

    trial: str
    variant: str
    cells: tuple[Cell | None, ...]
    rto: Trend
    rate: Trend


@dataclass(frozen=True)
class Matrix:
    """A suite."""

    name: str
    nights: tuple[str, ...]
    lines: tuple[Line, ...]


def matrices(rows: Iterable[Row]) -> list[Matrix]:
    """One for each suite, those of no suite last."""
    dated = [row for row in rows if row.trial and row.day and row.state != FOREIGN]
    suites = sorted({row.suite for row in dated}, key=lambda name: (not name, name))
    return [_matrix(name, [row for row in dated if row.suite == name]) for name in suites]


def _matrix(name: str, rows: Sequence[Row]) -> Matrix:
    nights = tuple(sorted({row.day for row in rows})[-MOST_NIGHTS:])
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.day in nights:
            groups.setdefault((row.subject, _variant(row)), []).append(row)
    some = sorted(groups.items())[:MOST_LINES]
    lines = (_line(trial, variant, group, nights) for (trial, variant), group in some)
    return Matrix(name or ALONE, nights, tuple(lines))


def _variant(row: Row) -> str:
    """What else tells trials of one name apart."""
    words = (row.trial.profile, row.trial.hosts) if row.trial else ()
    return ", ".join(filter(None, words))


def _line(trial: str, variant: str, rows: Sequence[Row], nights: Sequence[str]) -> Line:
    by_night = {night: [row for row in rows if row.day == night] for night in nights}
    return Line(
        trial,
        variant,
        tuple(_cell(some) for some in by_night.values()),
        trend(_medians(by_night, lambda row: row.rto_s)),
        trend(_medians(by_night, lambda row: row.rate)),
    )


def _cell(rows: Sequence[Row]) -> Cell | None:
    if not rows:
        return None
    worst = min(rows, key=lambda row: STATES.index(row.state)).state
    same = [row for row in rows if row.state == worst]
    return Cell(worst, len(same), len(rows), max(row.name for row in same))


def _medians(
    by_night: Mapping[str, Sequence[Row]], of: Callable[[Row], float | None]
) -> list[float | None]:
    found = []
    for rows in by_night.values():
        known = [value for row in rows if (value := of(row)) is not None]
        found.append(median(known) if known else None)
    return found


def trend(values: Sequence[float | None]) -> Trend:
    """A line through the nights that have a value; a dot at the last."""
    known = [(number, value) for number, value in enumerate(values) if value is not None]
    if not known:
        return Trend(Markup(""), None)
    top = max(value for _, value in known) or 1.0
    step = (WIDTH - 2 * EDGE) / max(1, len(values) - 1)
    points = [
        (EDGE + number * step, HEIGHT - EDGE - value / top * (HEIGHT - 2 * EDGE))
        for number, value in known
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    drawing = (
        f'<svg class="trend" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">'
        f'<polyline points="{path}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'
    )
    return Trend(Markup(drawing), known[-1][1])  # numbers of ours alone
