"""A judged run as reports see it: the verdict, the trial, and the small tables.

Reports only read. The verdict is what `verdict.json` says; a part of the run that is missing,
damaged or of another version makes a report poorer and is said in it (`doubts`), but never makes
the verdict another one, and never ends in a trace.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from harness.history.faults_and_events import Event, FaultInterval, events
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.judge.stored_verdict import BROKEN, verdict_of
from harness.judge.verdict import Finding, Result, Verdict
from harness.text.parsing import MAX_TOML_BYTES, bytes_of
from harness.text.sanitize import printable
from harness.trial import Trial
from reports._cells import Cells, cells

LEAD_NS = 1_000_000_000  # of the picture, before the load
IMPORTED = "imported"  # in place of a system: the history is another tool's
LOGS = (".log", ".jsonl")  # how the names of nodes' logs end
MOST_DOUBTS = 20  # that are told
WHEN = ("acked_s", "acked_at_s", "at_s", "sent_s", "seen_s", "there_by_s", "only_invoked_at_s")
MOMENTS = frozenset((*WHEN, "came_at_s", "lost_from_s", "lost_to_s"))  # s since the run's start
UNTOLD = "trial.toml could not be read"

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Told:
    """Everything a report may show. Times are ns since the load began, except in `verdict` and
    `history`, where they count from the run's start, `zero` before that."""

    run: RunDir
    trial: Trial
    verdict: Verdict
    state: Mapping[str, Any]
    names: Mapping[str, Any]
    phases: Mapping[str, int]
    faults: tuple[FaultInterval, ...]
    events: tuple[Event, ...]
    plan: str
    zero: int = 0  # when the load began, since the run's start; 0 for a history without a load
    doubts: list[str] = field(default_factory=list)  # what could not be shown, and why

    @cached_property
    def history(self) -> History:
        return History(self.run, self.names, self.state)

    @cached_property
    def counted(self) -> Cells:
        """All operations by time, outcome and latency: one pass over them, when it is asked for."""
        return self.part("the operations", lambda: self._cells(), Cells())

    def _cells(self) -> Cells:
        counted = cells(self.history, self.names)
        return replace(counted, begin=counted.begin - self.zero)

    @cached_property
    def end(self) -> int:
        """Nothing in the small tables is later."""
        times = [*self.phases.values(), *(event.t for event in self.events)]
        times += [t for f in self.faults for t in (f.begin, f.heal, f.healed) if t is not None]
        return max([*times, 1])

    @cached_property
    def begin(self) -> int:
        """Where the picture begins: what is before the load has little to show, for a long time."""
        return max(-self.zero, self.phases.get("load", 0) - LEAD_NS)

    @property
    def axis(self) -> str:
        """What times count from, in words."""
        return f"seconds since the {'load' if self.zero else 'history'} began"

    def on_axis(self, finding: Finding) -> Finding:
        """The finding with the moments of its evidence on the axis."""
        return replace(finding, evidence=tuple(map(self._row, finding.evidence)))

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: round(value - self.zero / 1e9, 6)
            if name in MOMENTS and isinstance(value, int | float) and value >= 0
            else value
            for name, value in row.items()
        }

    @property
    def untold(self) -> str:
        """Why nobody knows what was tried; empty when it is known."""
        return next((why for why in self.doubts if why.startswith(UNTOLD)), "")

    @property
    def lacking(self) -> list[str]:
        """What could not be shown, each once, the first few."""
        return list(dict.fromkeys(self.doubts))[:MOST_DOUBTS]

    @property
    def sentence(self) -> str:
        """The verdict's sentence without its first word, which stands beside it anyway."""
        said = self.verdict.sentence
        said = said.removeprefix(f"{self.verdict.verdict.value.capitalize()}: ")
        return said[:1].upper() + said[1:]

    def stats(self, checker: str) -> Mapping[str, Any]:
        """A checker's numbers; nothing when it did not run."""
        return next((r.stats for r in self.verdict.checkers if r.checker == checker), {})

    def findings(self) -> Iterator[tuple[Result, Finding]]:
        """Convictions first, then what the contract permits, then what only informs."""
        rows = [(result, f) for result in self.verdict.checkers for f in result.findings]
        yield from sorted(rows, key=lambda row: rank(row[1]))

    def named(self, what: str) -> Mapping[str, Any]:
        """A dictionary of names.json; empty when there is none."""
        names = self.names.get(what)
        return names if isinstance(names, Mapping) else {}

    def listed(self, what: str) -> Sequence[str]:
        """A list of names.json; empty when there is none."""
        names = self.names.get(what)
        return [str(name) for name in names] if isinstance(names, list) else []

    def part(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        """A part of a report; where it can not be made, that is said instead."""
        return _tried(self.doubts, what, make, otherwise)


def rank(finding: Finding) -> int:
    """0 convicts, 1 is permitted or excused, 2 only informs."""
    if not finding.demand:
        return 2
    return 0 if finding.convicts else 1


def read(run: RunDir) -> Told:
    """What a run tells. BadRequest when nobody has judged it yet."""
    verdict = verdict_of(run)
    doubts: list[str] = []
    names = _tried(doubts, "names.json", run.names, NOTHING)
    state = _tried(doubts, "run.json", run.state, NOTHING)
    history = History(run, names, state)
    unmarked: dict[str, int] = {}
    phases = _tried(doubts, "the notes", lambda: dict(history.phases()), unmarked)
    unbroken: tuple[FaultInterval, ...] = ()
    faults = _tried(doubts, "the faults", lambda: history.faults, unbroken)
    none: tuple[Event, ...] = ()
    told = _tried(doubts, "the events", lambda: events(history.read("events")), none)
    doubts += map(str, history.cut)
    began = state.get("load_began_ns")
    zero = began if isinstance(began, int) else phases.get("load", 0)
    return Told(
        run=run,
        trial=_tried(doubts, "trial.toml", run.trial, Trial(name=run.path.name)),
        verdict=verdict,
        state=state,
        names=names,
        phases={name: t - zero for name, t in phases.items()},
        faults=tuple(_shifted(fault, zero) for fault in faults),
        events=tuple(replace(event, t=event.t - zero) for event in told),
        plan=_tried(doubts, "plan.toml", lambda: _text(run), ""),
        zero=zero,
        doubts=doubts,
    )


def _shifted(fault: FaultInterval, zero: int) -> FaultInterval:
    """The fault with its moments since the load began."""
    moments = ("begin", "applied", "observed", "heal", "healed")
    known = {name: t for name in moments if (t := getattr(fault, name)) is not None}
    return replace(fault, **{name: t - zero for name, t in known.items()})


def put(path: Path, text: str | bytes) -> Path:
    """Write a report, all of it or nothing; a link that lies there is replaced, not followed."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        file.write(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    os.replace(temporary, path)
    return path


def rerun_command(told: Told, seatrial: str = "seatrial") -> str:
    """The command that carries out the same plan again; an imported history is judged again."""
    verb = "check" if told.trial.system == IMPORTED else "replay"
    return f"{seatrial} {verb} {typed(told.run)}"


def explain_command(told: Told, finding: str = "", seatrial: str = "seatrial") -> str:
    """The command that tells the story of a finding, else of the first."""
    return " ".join(filter(None, (seatrial, "explain", typed(told.run), finding)))


def typed(run: RunDir) -> str:
    """A run as a command names it: from the folder in which the report is made, where it is below
    it. Who looks at the report elsewhere sees which run it was."""
    return printable(shlex.quote(from_here(run, run.path)))


def from_here(run: RunDir, path: Path) -> str:
    """The shortest way to say where a part of a run is: from where the reader is, unless it is in
    storage."""
    here, whole = Path.cwd(), path.absolute()
    if (called := run.called(path)) != str(path):
        return called
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def _text(run: RunDir) -> str:
    if not run.plan_file.is_file():
        return ""
    return bytes_of(run.plan_file, MAX_TOML_BYTES).decode(errors="replace")


def _tried(doubts: list[str], what: str, make: Callable[[], T], otherwise: T) -> T:
    try:
        return make()
    except BROKEN as e:
        why = " ".join(str(e).split())[:200] or type(e).__name__
        doubts.append(f"{what} could not be read: {why}")
        return otherwise
