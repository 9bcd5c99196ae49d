"""The stored results of suites: their types, and the files below the folder `suites` of the runs.

    NAME-KEY.jsonl           a suite that is under way: its runs so far (`log`)
    NAME.json, .xml, .md     the last summary of a suite (`view`)
    nights.jsonl             the result of each suite, night by night (`nights`)

`SuiteRow` is the result of one run: enough for summaries, for comparing nights, and for resuming
without the run's folder. `Night` is a suite that ended: the result of each name, with the median of
a few figures over its runs. A figure may be infinite; JSON has no such number, so it is written as
`inf`.

Several processes may use the folder at once. A line that was cut short or is foreign is skipped.
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from harness.text.parsing import is_number, parse_json

FOLDER = "suites"  # below that of the runs
NIGHTS = "nights.jsonl"
MAX_NIGHTS = 100  # of all suites together
AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED = 0, 1, 2
WORDS = {AS_EXPECTED: "as expected", NOT_AS_EXPECTED: "NOT as expected", UNDECIDED: "undecided"}
NEVER = "inf"


def verdict_of(codes: Sequence[int]) -> int:
    """Return the outcome of several; a wrong verdict outweighs a missing one."""
    for worst in (NOT_AS_EXPECTED, UNDECIDED):
        if worst in codes:
            return worst
    return AS_EXPECTED


def figures_for_json(figures: Mapping[str, float]) -> dict[str, float | str]:
    """Return figures for JSON."""
    return {name: NEVER if value == math.inf else value for name, value in figures.items()}


def read_figures(plain: Mapping[str, Any]) -> dict[str, float]:
    """Read what `figures_for_json` returns. Raises TypeError or AttributeError."""
    figures = {name: math.inf if value == NEVER else value for name, value in plain.items()}
    if not all(is_number(value) or value == math.inf for value in figures.values()):
        raise TypeError("a figure is a number")
    return figures


@dataclass(frozen=True)
class SuiteRow:
    """The result of one run.

    turn      its repetition, from 1
    around_s  of `took_s`, the time to start and stop the cluster; `checked_s`: to judge;
              `page_s`: for its page
    figures   by name, those that are known
    beside    what contradicts the expectation besides the verdict
    """

    name: str
    seed: int
    turn: int
    wanted: str
    outcome: int
    word: str
    codes: tuple[str, ...] = ()
    error: str = ""
    run: str = ""  # the name of its folder
    when: str = ""  # it was begun
    took_s: float = 0.0
    around_s: float = 0.0
    checked_s: float = 0.0
    page_s: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    known: bool = False  # read from a record
    beside: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return ", ".join((self.word, *self.codes))

    @property
    def came(self) -> str:
        """The result with the error of the test bed, if it failed."""
        if self.error and not self.codes:
            return self.error
        result = ", ".join((self.verdict, *self.beside))
        return f"{result}; {self.error}" if self.error else result

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"figures": figures_for_json(self.figures)}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `plain` returns. Raises TypeError or AttributeError."""
        lists = {name: tuple(plain.get(name, ())) for name in ("codes", "beside")}
        row = cls(**{**plain, **lists, "figures": read_figures(plain.get("figures", {}))})
        if row.outcome not in WORDS:
            raise TypeError("unknown outcome")
        return row


@dataclass(frozen=True)
class NameResult:
    """The results of all runs of one name. `was`: the worst outcome; `words`: their verdicts."""

    was: int
    words: tuple[str, ...]
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> "NameResult":
        figures = read_figures(plain.get("figures", {}))
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
            name: asdict(one) | {"figures": figures_for_json(one.figures)}
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


# --------------------------------------------------------------------------------------- the files


def nights(runs: Path, suite: str = "", say: Callable[[str], None] | None = None) -> list[Night]:
    """Return the nights of one suite, or all, in order. `say` reports lines that are skipped."""
    file, results = runs / FOLDER / NIGHTS, []
    with suppress(FileNotFoundError):
        for number, line in enumerate(objects_in(file.read_bytes()), start=1):
            try:
                results.append(Night.read(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                if say:
                    say(f"{file} line {number} is not a night of a suite and is left out")
    return [night for night in results if suite in ("", night.suite)]


def store_night(night: Night, runs: Path) -> None:
    """Add a night to the file once, and keep the last ones; several processes may do so."""
    file = runs / FOLDER / NIGHTS
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file.parent):
        before = [other for other in nights(runs) if other.id != night.id]
        text = "".join(f"{json.dumps(one.plain())}\n" for one in [*before, night][-MAX_NIGHTS:])
        replace_file(file, text)


def failing(runs: Path) -> set[str]:
    """Return the names of runs that did not end as expected, to be kept for inspection: those of
    suites under way, and of the last summary of each suite."""
    rows = _rows(runs / FOLDER)
    return {str(row["run"]) for row in rows if row.get("run") and row.get("outcome")}


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in folder.glob("*.json"):
        with suppress(OSError):
            rows = _object(path.read_bytes().decode(errors="replace")).get("rows")
            if isinstance(rows, list):
                yield from (row for row in rows if isinstance(row, dict))
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):
            rows = [line.get("row") for line in objects_in(path.read_bytes())]
            yield from (row for row in rows if isinstance(row, dict))


def objects_in(lines: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON object of each line, empty if the line is something else."""
    return map(_object, lines.decode(errors="replace").splitlines())


def _object(text: str) -> Mapping[str, Any]:
    with suppress(ValueError):
        read = parse_json(text)
        if isinstance(read, dict):
            return read
    return {}


def replace_file(path: Path, content: str) -> None:
    """Write a file completely or not at all."""
    temporary = temporary_beside(path)
    temporary.write_text(content)
    os.replace(temporary, path)


def temporary_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{os.getpid()}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, for reading a file and replacing it. Raises OSError if the folder
    cannot be opened."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
