"""The list of runs: verdict, trial, and a few numbers to sort by.

A row is made from three small files and cached until one of them changes, so that a list of
thousands is fast. A folder that is half-written, from another version or no run at all has a row
with a note.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from harness.history.rundir import RunDir
from harness.history.runs import is_running
from harness.judge.lock import is_being_judged
from harness.judge.stored_verdict import BROKEN, read_verdict
from harness.judge.verdict import SCHEMA_VERSION, Verdict
from harness.suite.figures import per_s
from harness.trial import Trial
from reports._format import clip
from reports._site.run_index import RunIndex, RunNotFound, is_run, trouble
from reports._times import TO_ACK, times_of_faults, usual_and_worst

RUNNING, UNJUDGED, FOREIGN = "running", "not judged", "no run"
STATES = ("invalid", "unknown", "valid", RUNNING, UNJUDGED, FOREIGN)
SMALL = {"trial.toml": 1_000_000, "run.json": 4_000_000, "verdict.json": 64_000_000}
PER_PAGE = 100
MAX_CHIPS = 12  # values of one facet
MAX_WORD = 80  # letters of a name in the list
LONGEST = 300
ONE_AT_A_TIME = threading.Lock()
RUN_NAME = re.compile(r"(\d{4})(\d\d)(\d\d)-\d{6}-")

T = TypeVar("T")
Key = str | float | None


@dataclass(frozen=True)
class RunRow:
    """A row of the list. Numbers that a run does not have are None."""

    name: str
    state: str
    trial: Trial | None = None
    started: str = ""
    sentence: str = ""
    codes: tuple[str, ...] = ()
    acknowledged: float | None = None
    lost: int | None = None
    rto_s: float | None = None
    rate: float | None = None
    load_s: float | None = None  # duration of the load
    notes: tuple[str, ...] = ()
    linked: bool = True  # whether it has a page

    @property
    def day(self) -> str:
        """The day as `2026-11-21`: by run.json, or by its name; empty if unknown."""
        try:
            return datetime.fromisoformat(self.started).date().isoformat()
        except ValueError:
            named = RUN_NAME.match(self.name)
            return "-".join(named.groups()) if named else ""

    @property
    def subject(self) -> str:
        return self.trial.name if self.trial else ""

    @property
    def text(self) -> str:
        """The text that a search matches."""
        tried = self.trial
        words = [tried.workload, tried.system, tried.profile, tried.hosts] if tried else []
        words += [*tried.faults, f"seed {tried.seed}"] if tried else []
        parts = (self.name, self.subject, self.state, self.sentence)
        return " ".join((*parts, *self.codes, *self.notes, *words)).lower()

    def plain(self) -> dict[str, Any]:
        """Return the row for JSON."""
        trial = self.trial
        return {
            "run": self.name,
            "state": self.state,
            "trial": self.subject,
            "system": trial.system if trial else "",
            "profile": trial.profile if trial else "",
            "hosts": trial.hosts if trial else "",
            "workload": trial.workload if trial else "",
            "seed": trial.seed if trial else None,
            "started": self.started,
            "sentence": self.sentence,
            "findings": list(self.codes),
            "acknowledged": self.acknowledged,
            "lost": self.lost,
            "rto_s": self.rto_s,
            "load_s": self.load_s,
            "notes": list(self.notes),
        }


@dataclass
class RunList:
    """The rows of a folder of runs, each made again when its files change."""

    index: RunIndex
    _known: dict[str, tuple[object, RunRow]] = field(default_factory=dict)

    def rows(self) -> list[RunRow]:
        """Return all rows, newest first."""
        names = self.index.names()
        for gone in set(self._known) - set(names):
            self._known.pop(gone, None)
        return [self.row(name) for name in names]

    def row(self, name: str) -> RunRow:
        """Return the row of a name; a name without a run has a row, too."""
        try:
            folder = self.index.find(name)
        except RunNotFound:
            return _unlinked(name, "a symbolic link; its target is not shown")
        if not _is_text(name):
            return _unlinked(name, "its name is not text; rename it to see it")
        mark = (_mark(folder), is_running(folder), is_being_judged(folder))
        cached = self._known.get(name)
        if cached is None or cached[0] != mark:
            cached = self._known[name] = (mark, read_row(folder))
        return cached[1]


def _unlinked(name: str, why: str) -> RunRow:
    return RunRow(name, FOREIGN, notes=(why,), linked=False)


def _is_text(name: str) -> bool:
    """Return whether a folder's name is valid text, which addresses and pages need."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mark(folder: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return a value that changes whenever one of the small files does."""
    return tuple(_stamp(folder / name) for name in SMALL)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.lstat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def read_row(folder: Path) -> RunRow:
    """Return the row of a folder, as far as it can be read; one at a time, because a verdict may
    need much memory."""
    with ONE_AT_A_TIME:
        return _row(folder)


def _row(folder: Path) -> RunRow:
    name, run = folder.name, RunDir(folder)
    notes = [why for file, most in SMALL.items() if (why := trouble(folder / file, most))]
    if not is_run(folder):
        return RunRow(name, FOREIGN, notes=("there is no trial.toml in it",))
    if notes:
        return RunRow(name, UNJUDGED, notes=tuple(notes))
    trial = _tried(notes, "trial.toml", run.trial)
    state = _tried(notes, "run.json", run.state) or {}
    notes += _of_state(state)
    about: dict[str, Any] = {
        "trial": trial,
        "started": clip(state.get("started", ""), MAX_WORD),
        "load_s": _load_s(state),
    }
    if is_running(folder):
        return RunRow(name, RUNNING, **about, notes=tuple(notes))
    if not run.verdict_file.exists():
        return RunRow(name, UNJUDGED, **about, notes=(*notes, _why_unjudged(folder, state)))
    verdict = _tried(notes, "verdict.json", lambda: read_verdict(run))
    if verdict is None:
        return RunRow(name, UNJUDGED, **about, notes=tuple(notes))
    if verdict.schema_version != SCHEMA_VERSION:
        notes.append(f"its verdict is of version {clip(verdict.schema_version, 20)}")
    numbers = _tried(notes, "the numbers", lambda: _numbers(verdict, state)) or {}
    findings = _tried(notes, "the findings", lambda: _findings_columns(verdict)) or {}
    word = str(verdict.verdict.value)
    return RunRow(name, word, **about, **numbers, **findings, notes=tuple(notes))


def _of_state(state: Mapping[str, Any]) -> Iterator[str]:
    version = state.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        yield f"written by another version (its format is {clip(version, 20)})"
    if state.get("interrupted"):
        yield "interrupted"
    if state.get("error"):
        yield clip(state["error"], LONGEST)


def _why_unjudged(folder: Path, state: Mapping[str, Any]) -> str:
    if is_being_judged(folder):
        return "it is being checked"
    if state.get("ended"):
        return "it ended and was not checked: seatrial check"
    if state.get("interrupted") and "load_began_ns" not in state:
        return "it was stopped before the load, so there is nothing to check"
    phase = clip(state.get("phase", "start"), MAX_WORD)
    return f"it ended early, in phase {phase}; to check what was recorded: seatrial check"


def _load_s(state: Mapping[str, Any]) -> float | None:
    began, ended = number(state, "load_began_ns"), number(state, "load_ended_ns")
    return (ended - began) / 1e9 if began is not None and ended is not None else None


def _findings_columns(verdict: Verdict) -> dict[str, Any]:
    codes = tuple(clip(code, MAX_WORD) for code in dict.fromkeys(verdict.convicting))
    reasons = tuple(clip(reason.code, MAX_WORD) for reason in verdict.reasons)
    word, _, rest = verdict.sentence.partition(": ")
    sentence = rest if word.lower() == verdict.verdict.value else verdict.sentence
    sentence = sentence[:1].upper() + sentence[1:]
    return {"sentence": clip(sentence, LONGEST), "codes": (codes or reasons)[:8]}


def _numbers(verdict: Verdict, state: Mapping[str, Any]) -> dict[str, Any]:
    stats = verdict.stats("availability")
    sends: Mapping[str, Any] = stats.get("sends", {})
    usual = usual_and_worst(times_of_faults(stats), TO_ACK)
    return {
        "acknowledged": number(stats, "sends", "ok") if any(sends.values()) else None,
        "lost": _lost(verdict),
        "rto_s": usual[0] if usual else None,
        "rate": per_s(verdict, state),
    }


def _lost(verdict: Verdict) -> int | None:
    """Return the number of lost messages; None if unknown: a checker that did not finish found
    none, either."""
    judged = [result for result in verdict.checkers if result.checker == "loss"]
    lost = sum(f.count for r in verdict.checkers for f in r.findings if f.code == "LOST_ACKED")
    sure = judged and not any(result.reasons for result in judged)
    return lost if sure or (judged and lost) else None


def number(table: Any, *path: str) -> float | None:
    """Return a number deep in a table; None if there is none."""
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
    is_number = isinstance(table, int | float) and not isinstance(table, bool)
    return float(table) if is_number and abs(table) < 1e15 else None


def _tried(notes: list[str], what: str, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except BROKEN as e:
        why = " ".join(str(e).split()) or type(e).__name__
        notes.append(clip(f"{what} could not be read: {why}", LONGEST))
        return None


# --------------------------------------------------------------------------------------- choosing

SORTS: Mapping[str, Callable[[RunRow], Key]] = {
    "name": lambda row: row.name,
    "trial": lambda row: row.subject or None,
    "state": lambda row: STATES.index(row.state),
    "seed": lambda row: row.trial.seed if row.trial else None,
    "acknowledged": lambda row: row.acknowledged,
    "lost": lambda row: row.lost,
    "rto": lambda row: row.rto_s,
    "load": lambda row: row.load_s,
}
DESCENDING = (
    "name",
    "acknowledged",
    "lost",
    "rto",
    "load",
)  # what the first click on a heading gives
FILTERS: Mapping[str, Callable[[RunRow], str]] = {
    "state": lambda row: row.state,
    "system": lambda row: row.trial.system if row.trial else "",
    "hosts": lambda row: row.trial.hosts if row.trial else "",
    "workload": lambda row: row.trial.workload if row.trial else "",
    "trial": lambda row: row.subject,
}


@dataclass(frozen=True)
class ListQuery:
    """The parameters of the list's address. Invalid ones are ignored."""

    words: str = ""
    only: Mapping[str, str] = field(default_factory=dict)
    sort: str = "name"
    descending: bool = True
    page: int = 1

    @classmethod
    def of(cls, params: Mapping[str, str]) -> "ListQuery":
        sort = params.get("sort", "")
        sort = sort if sort in SORTS else "name"
        order, page = params.get("order", ""), params.get("page", "")
        return cls(
            words=params.get("q", "")[:200],
            only={name: params[name][:200] for name in FILTERS if params.get(name)},
            sort=sort,
            descending=order == "desc" if order in ("asc", "desc") else sort in DESCENDING,
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
        )

    def chosen(self, rows: Iterable[RunRow]) -> list[RunRow]:
        """Return the matching rows, in order; rows without the number come last."""
        words = self.words.lower().split()
        wanted = [
            row
            for row in rows
            if all(FILTERS[name](row) == value for name, value in self.only.items())
            and all(word in row.text for word in words)
        ]
        key = SORTS[self.sort]
        with_key = [row for row in wanted if key(row) is not None]
        rest = [row for row in wanted if key(row) is None]
        return sorted(with_key, key=key, reverse=self.descending) + rest  # type: ignore[arg-type]

    def query(self, **changes: str) -> dict[str, str]:
        """Return the parameters for an address, with some changed."""
        own = {"q": self.words, **self.only, "sort": self.sort}
        own["order"] = "desc" if self.descending else "asc"
        return {name: value for name, value in {**own, **changes}.items() if value}


@dataclass(frozen=True)
class Choice:
    """A value of a facet, and the number of runs with it."""

    value: str
    count: int
    chosen: bool


@dataclass(frozen=True)
class Facet:
    """A property to filter the list by, with its values."""

    name: str
    choices: tuple[Choice, ...]
    left_out: int = 0


def facets(rows: Sequence[RunRow], wish: ListQuery) -> list[Facet]:
    """Return the facets that would narrow the list. Each counts the runs that match all other
    filters."""
    facets = [_facet(rows, wish, name) for name in FILTERS if name != "trial"]
    return [facet for facet in facets if len(facet.choices) > 1 or facet.name in wish.only]


def _facet(rows: Sequence[RunRow], wish: ListQuery, name: str) -> Facet:
    others = replace(wish, only={key: v for key, v in wish.only.items() if key != name})
    counts = Counter(value for row in others.chosen(rows) if (value := FILTERS[name](row)))
    order = sorted(counts, key=STATES.index) if name == "state" else sorted(counts)
    own = wish.only.get(name, "")
    shown = [value for at, value in enumerate(order) if at < MAX_CHIPS or value == own]
    if own and own not in counts:
        shown.append(own)
    made = tuple(Choice(value, counts[value], value == own) for value in shown)
    return Facet(name, made, len(set(order) - set(shown)))
