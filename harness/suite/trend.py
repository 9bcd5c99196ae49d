"""Tonight against earlier nights: what a suite came to each time, and what has changed since.

`runs/suites/nights.jsonl` has a line for each suite that came to its end: what became of each name,
with the median of a few numbers over its runs. A machine has its moods, so a number is compared
with the median of the last nights, and only what is far from it is told; a verdict is compared
with that of the night before.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from harness.suite import figures as numbers
from harness.suite.alone import alone
from harness.suite.expected import AS_EXPECTED, WORDS, verdict_of
from harness.suite.names import FOLDER
from harness.suite.row import Row
from harness.text.parsing import json_of

FILE = "nights.jsonl"
COMPARED_WITH = 10  # nights
KEPT = 100  # nights, of all suites together
# what is told of: a figure, in words, how much larger is worse (negative: smaller is), from when on
FIGURES = (
    ("to_ack_s_p50", "half of the faults were recovered from within {:.2f} s", 1.5, 0.5),
    ("per_s", "{:.0f} messages a second were acknowledged", -1.25, 10.0),
    ("anomalies", "{:.0f} anomalies", 2.0, 1.0),
)
NEVER_BACK = "half of the faults, or more, were not recovered from"


@dataclass(frozen=True)
class Came:
    """What became of all runs of one name. `was`: the worst outcome; `words`: how they came."""

    was: int
    words: tuple[str, ...]
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "Came":
        figures = numbers.read(plain.get("figures", {}))
        came = cls(**{**plain, "words": tuple(plain["words"]), "figures": figures})
        if came.was not in WORDS or not all(isinstance(word, str) for word in came.words):
            raise ValueError("no run came to that")
        return came


@dataclass(frozen=True)
class Night:
    """One suite at its end. `id`: of its carrying out; `code`: what it was carried out with."""

    id: str
    when: str
    suite: str
    code: str
    came: Mapping[str, Came]

    def plain(self) -> dict[str, Any]:
        came = {
            name: asdict(one) | {"figures": numbers.written(one.figures)}
            for name, one in self.came.items()
        }
        return {**vars(self), "came": came}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> "Night":
        """From `plain`. ValueError, TypeError, KeyError or AttributeError when it is none."""
        came = {name: Came.read(one) for name, one in line["came"].items()}
        night = cls(**{**line, "came": came})
        if not all(isinstance(it, str) for it in (night.id, night.when, night.suite, night.code)):
            raise ValueError("the names of a night are words")
        return night


def came(rows: Sequence[Row]) -> dict[str, Came]:
    """By name."""
    names = dict.fromkeys(row.name for row in rows)
    return {name: _came([row for row in rows if row.name == name]) for name in names}


def _came(rows: Sequence[Row]) -> Came:
    figures = {}
    for name, *_ in FIGURES:
        values = [row.figures[name] for row in rows if name in row.figures]
        if values:
            figures[name] = median(values)
    words = tuple(dict.fromkeys(row.verdict for row in rows))  # an error names folders of its own
    return Came(verdict_of([row.outcome for row in rows]), words, figures)


def changes(tonight: Mapping[str, Came], earlier: Sequence[Night]) -> Iterator[str]:
    """A sentence for each thing that is not as it was. `earlier`: nights of the suite, in order."""
    for name, now in tonight.items():
        before = [night.came[name] for night in earlier if name in night.came][-COMPARED_WITH:]
        if not before:
            continue
        last = before[-1]
        other = set(now.words) != set(last.words)  # whichever of its seeds it was
        if now.was != last.was or (now.was != AS_EXPECTED and other):
            yield f"{name}: {_outcome(now)}; the night before {_outcome(last)}"
        yield from _numbers(name, now, before)


def _outcome(one: Came) -> str:
    return f"{WORDS[one.was]} ({'; '.join(one.words)})"


def _numbers(name: str, now: Came, before: Sequence[Came]) -> Iterator[str]:
    for figure, words, factor, least in FIGURES:
        past = [one.figures[figure] for one in before if figure in one.figures]
        if figure not in now.figures or not past:
            continue
        value, usual = now.figures[figure], median(past)
        high, low = (value, usual) if factor > 0 else (usual, value)
        if high >= low * abs(factor) and high - low >= least:
            told = NEVER_BACK if value == inf else words.format(value)
            yield f"{name}: {told}, usually {usual:.4g}"


# ------------------------------------------------------------------------------------- the file


def nights(runs: Path, suite: str = "", say: Callable[[str], None] | None = None) -> list[Night]:
    """Those of one suite, or all, in their order; not a line that was cut short or is foreign,
    which is said."""
    file, found = runs / FOLDER / FILE, []
    with suppress(FileNotFoundError):
        text = file.read_bytes().decode(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                found.append(Night.read(json_of(line)))
            except (ValueError, KeyError, TypeError, AttributeError):
                if say:
                    say(f"{file} line {number} is not a night of a suite and is left out")
    return [night for night in found if suite in ("", night.suite)]


def remember(night: Night, runs: Path) -> None:
    """Add a night, once, to the last ones: all of it or nothing, and nobody else's is lost."""
    file = runs / FOLDER / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone(file.parent):
        before = [other for other in nights(runs) if other.id != night.id]
        text = "".join(f"{json.dumps(one.plain())}\n" for one in [*before, night][-KEPT:])
        temporary = file.with_name(f".{FILE}-{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, file)
