"""Compares the results of a suite with those of earlier nights.

`runs/suites/nights.jsonl` has a line for each suite that ended: the result of each name, with the
median of a few figures over its runs. The speed of a machine varies, so a figure is compared with
the median of the last nights, and only a large difference is reported; a verdict is compared with
that of the previous night.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from harness.suite import figures as numbers
from harness.suite.expected import AS_EXPECTED, WORDS, verdict_of
from harness.suite.row import SuiteRow
from harness.suite.store import FOLDER, locked, replace_file
from harness.text.parsing import parse_json

FILE = "nights.jsonl"
COMPARED_WITH = 10  # nights
KEPT = 100  # nights, of all suites together
# a figure, its text, the factor that counts as worse (negative: smaller is worse), and the least
# difference to report
FIGURES = (
    ("to_ack_s_p50", "half of the faults were recovered from within {:.2f} s", 1.5, 0.5),
    ("per_s", "{:.0f} messages a second were acknowledged", -1.25, 10.0),
    ("anomalies", "{:.0f} anomalies", 2.0, 1.0),
)
NEVER_RECOVERED = "at least half of the faults were not recovered from"


@dataclass(frozen=True)
class NameResult:
    """The results of all runs of one name. `was`: the worst outcome; `words`: their verdicts."""

    was: int
    words: tuple[str, ...]
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "NameResult":
        figures = numbers.read(plain.get("figures", {}))
        came = cls(**{**plain, "words": tuple(plain["words"]), "figures": figures})
        if came.was not in WORDS or not all(isinstance(word, str) for word in came.words):
            raise ValueError("not a result of runs")
        return came


@dataclass(frozen=True)
class Night:
    """One execution of a suite. `id`: of the execution; `code`: the hash of the code it ran."""

    id: str
    when: str
    suite: str
    code: str
    came: Mapping[str, NameResult]

    def plain(self) -> dict[str, Any]:
        came = {
            name: asdict(one) | {"figures": numbers.written(one.figures)}
            for name, one in self.came.items()
        }
        return {**vars(self), "came": came}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> "Night":
        """Read what `plain` returns. Raises ValueError, TypeError, KeyError or AttributeError."""
        came = {name: NameResult.read(one) for name, one in line["came"].items()}
        night = cls(**{**line, "came": came})
        if not all(isinstance(it, str) for it in (night.id, night.when, night.suite, night.code)):
            raise ValueError("a field of a night is not text")
        return night


def came(rows: Sequence[SuiteRow]) -> dict[str, NameResult]:
    """Return the results of runs by name."""
    names = dict.fromkeys(row.name for row in rows)
    return {name: _came([row for row in rows if row.name == name]) for name in names}


def _came(rows: Sequence[SuiteRow]) -> NameResult:
    figures = {}
    for name, *_ in FIGURES:
        values = [row.figures[name] for row in rows if name in row.figures]
        if values:
            figures[name] = median(values)
    words = tuple(dict.fromkeys(row.verdict for row in rows))  # without errors, which name folders
    return NameResult(verdict_of([row.outcome for row in rows]), words, figures)


def changes(tonight: Mapping[str, NameResult], earlier: Sequence[Night]) -> Iterator[str]:
    """Yield a sentence for each change. `earlier`: nights of the suite, in order."""
    for name, now in tonight.items():
        before = [night.came[name] for night in earlier if name in night.came][-COMPARED_WITH:]
        if not before:
            continue
        last = before[-1]
        other = set(now.words) != set(last.words)
        if now.was != last.was or (now.was != AS_EXPECTED and other):
            yield f"{name}: {_outcome(now)}; the previous night {_outcome(last)}"
        yield from _numbers(name, now, before)


def _outcome(one: NameResult) -> str:
    return f"{WORDS[one.was]} ({'; '.join(one.words)})"


def _numbers(name: str, now: NameResult, before: Sequence[NameResult]) -> Iterator[str]:
    for figure, words, factor, least in FIGURES:
        past = [one.figures[figure] for one in before if figure in one.figures]
        if figure not in now.figures or not past:
            continue
        value, usual = now.figures[figure], median(past)
        high, low = (value, usual) if factor > 0 else (usual, value)
        if high >= low * abs(factor) and high - low >= least:
            text = NEVER_RECOVERED if value == inf else words.format(value)
            yield f"{name}: {text}, usually {usual:.4g}"


# ------------------------------------------------------------------------------------- the file


def nights(runs: Path, suite: str = "", say: Callable[[str], None] | None = None) -> list[Night]:
    """Return the nights of one suite, or all, in order. `say` reports lines that are skipped."""
    file, found = runs / FOLDER / FILE, []
    with suppress(FileNotFoundError):
        text = file.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                found.append(Night.read(parse_json(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                if say:
                    say(f"{file} line {number} is not a night of a suite and is left out")
    return [night for night in found if suite in ("", night.suite)]


def store_night(night: Night, runs: Path) -> None:
    """Add a night to the file once, and keep the last ones; several processes may do so."""
    file = runs / FOLDER / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.parent):
        before = [other for other in nights(runs) if other.id != night.id]
        text = "".join(f"{json.dumps(one.plain())}\n" for one in [*before, night][-KEPT:])
        replace_file(file, text)
