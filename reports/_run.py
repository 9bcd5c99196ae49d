"""A judged run as reports see it: the verdict, the trial, and the small tables.

Reports only read. The verdict is that of `verdict.json`. A part of the run that is missing, damaged
or of another version leaves a part of the report out, with a note (`doubts`); it never changes the
verdict and never ends in a traceback.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from harness import registry
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.reader import ClientErrors, History
from harness.history.rundir import RunDir
from harness.judge.stored_verdict import BROKEN, load_verdict
from harness.judge.verdict import Finding, Result, Verdict
from harness.text.own_words import OwnWords, words_of
from harness.text.parsing import MAX_TOML_BYTES, read_bytes
from harness.text.sanitize import map_text, sanitize_all
from harness.trial import Trial
from reports._cells import Cells, count_cells

LEAD_NS = 1_000_000_000  # of the time axis, before the load
IMPORTED = "imported"  # instead of a system: the history is imported
LOGS = (".log", ".jsonl")  # suffixes of nodes' logs
MAX_DOUBTS = 20  # doubts in a report
WHEN = ("acked_s", "acked_at_s", "at_s", "sent_s", "seen_s", "there_by_s", "only_invoked_at_s")
MOMENTS = frozenset((*WHEN, "came_at_s", "lost_from_s", "lost_to_s"))  # s since the run's start
TRIAL_UNKNOWN = "trial.toml could not be read"

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class RunView:
    """All data of a report. Times are ns since the load began, except in `verdict` and `history`,
    where they count from the run's start, which is `zero` before that."""

    run: RunDir
    trial: Trial
    verdict: Verdict
    state: Mapping[str, Any]
    names: Mapping[str, Any]
    phases: Mapping[str, int]
    faults: tuple[FaultInterval, ...]
    events: tuple[ClusterEvent, ...]
    plan: str
    zero: int = 0  # begin of the load, since the run's start; 0 for a history without a load
    doubts: list[str] = field(default_factory=list)  # what could not be read, and why

    @cached_property
    def history(self) -> History:
        return History(self.run, self.names, self.state)

    @cached_property
    def counted(self) -> Cells:
        """All operations by time, outcome and latency; computed in one pass when first used."""
        return self.part("the operations", lambda: self._cells(), Cells())

    def _cells(self) -> Cells:
        counted = count_cells(self.history, self.names)
        return replace(counted, begin=counted.begin - self.zero)

    @cached_property
    def words(self) -> OwnWords:
        """The system's own words."""
        return words_of(self.state)

    @cached_property
    def errors(self) -> Mapping[str, ClientErrors]:
        """The calls of clients that ended in an exception, by its name; the most frequent first."""
        empty: dict[str, ClientErrors] = {}
        return self.part("the errors of clients", lambda: self.history.client_errors, empty)

    @cached_property
    def end(self) -> int:
        """The last time in the small tables."""
        times = [*self.phases.values(), *(event.t for event in self.events)]
        times += [t for f in self.faults for t in (f.begin, f.heal, f.healed) if t is not None]
        return max([*times, 1])

    @cached_property
    def begin(self) -> int:
        """The begin of the time axis: the long start before the load is cut off."""
        return max(-self.zero, self.phases.get("load", 0) - LEAD_NS)

    @property
    def axis(self) -> str:
        """The origin of times, as text."""
        return f"seconds since the {'load' if self.zero else 'history'} began"

    def on_axis(self, finding: Finding) -> Finding:
        """Return the finding with the times of its evidence on the axis."""
        return replace(finding, evidence=tuple(map(self._row, finding.evidence)))

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: round(value - self.zero / 1e9, 6)
            if name in MOMENTS and isinstance(value, int | float) and value >= 0
            else value
            for name, value in row.items()
        }

    @property
    def trial_unknown(self) -> str:
        """Why the trial is not known; empty if it is known."""
        return next((why for why in self.doubts if why.startswith(TRIAL_UNKNOWN)), "")

    @property
    def shown_doubts(self) -> list[str]:
        """The first few distinct doubts."""
        return list(dict.fromkeys(self.doubts))[:MAX_DOUBTS]

    @property
    def sentence(self) -> str:
        """The verdict's sentence without its first word, which is shown separately."""
        sentence = self.verdict.sentence
        sentence = sentence.removeprefix(f"{self.verdict.verdict.value.capitalize()}: ")
        return sentence[:1].upper() + sentence[1:]

    def stats(self, checker: str) -> Mapping[str, Any]:
        """Return a checker's numbers; empty if it did not run."""
        return next((r.stats for r in self.verdict.checkers if r.checker == checker), {})

    def findings(self) -> Iterator[tuple[Result, Finding]]:
        """Yield all findings: those that convict, then those permitted or excused, then those that
        inform."""
        rows = [(result, f) for result in self.verdict.checkers for f in result.findings]
        yield from sorted(rows, key=lambda row: rank(row[1]))

    def named(self, what: str) -> Mapping[str, Any]:
        """Return a dictionary of names.json; empty if there is none."""
        names = self.names.get(what)
        return names if isinstance(names, Mapping) else {}

    def listed(self, what: str) -> Sequence[str]:
        """Return a list of names.json; empty if there is none."""
        names = self.names.get(what)
        return [str(name) for name in names] if isinstance(names, list) else []

    def part(self, what: str, make: Callable[[], T], otherwise: T) -> T:
        """Return a part of a report, or `otherwise` and a doubt if it cannot be made."""
        return _attempt(self.doubts, what, make, otherwise)


def rank(finding: Finding) -> int:
    """Return 0 if a finding convicts, 1 if it is permitted or excused, 2 if it only informs."""
    if not finding.demand:
        return 2
    return 0 if finding.convicts else 1


def read_run(run: RunDir) -> RunView:
    """Return the view of a run. Raises BadRequest if it has no verdict yet."""
    verdict = load_verdict(run)
    doubts: list[str] = []
    names = _attempt(doubts, "names.json", run.names, NOTHING)
    state = _attempt(doubts, "run.json", run.state, NOTHING)
    history = History(run, names, state)
    unmarked: dict[str, int] = {}
    phases = _attempt(doubts, "the notes", lambda: dict(history.phases), unmarked)
    unbroken: tuple[FaultInterval, ...] = ()
    faults = _attempt(doubts, "the faults", lambda: history.faults, unbroken)
    none: tuple[ClusterEvent, ...] = ()
    view = _attempt(doubts, "the events", lambda: history.events, none)
    doubts += map(str, history.cut)
    began = state.get("load_began_ns")
    zero = began if isinstance(began, int) else phases.get("load", 0)
    return RunView(
        run=run,
        trial=_attempt(doubts, "trial.toml", run.trial, Trial(name=run.path.name)),
        verdict=in_own_words(verdict, words_of(state)),
        state=state,
        names=names,
        phases={name: t - zero for name, t in phases.items()},
        faults=tuple(_shifted(fault, zero) for fault in faults),
        events=tuple(replace(event, t=event.t - zero) for event in view),
        plan=_attempt(doubts, "plan.toml", lambda: _text(run), ""),
        zero=zero,
        doubts=doubts,
    )


def in_own_words(verdict: Verdict, words: OwnWords) -> Verdict:
    """Return the verdict with its sentences in the system's own words; codes, numbers and names are
    unchanged."""
    if not words:
        return verdict
    return replace(
        verdict,
        sentence=words(verdict.sentence),
        reasons=tuple(replace(r, message=words(r.message)) for r in verdict.reasons),
        checkers=tuple(_result_in(result, words) for result in verdict.checkers),
    )


def finding_in(finding: Finding, words: OwnWords) -> Finding:
    """Return a finding with its sentence and its evidence in the system's own words."""
    if not words:
        return finding
    rows = ({name: map_text(cell, words) for name, cell in row.items()} for row in finding.evidence)
    return replace(finding, message=words(finding.message), evidence=tuple(rows))


def _result_in(result: Result, words: OwnWords) -> Result:
    proved = {"proved": words(str(result.stats["proved"]))} if "proved" in result.stats else {}
    return replace(
        result,
        findings=tuple(finding_in(finding, words) for finding in result.findings),
        reasons=tuple(replace(reason, message=words(reason.message)) for reason in result.reasons),
        stats={**result.stats, **proved},
    )


def _shifted(fault: FaultInterval, zero: int) -> FaultInterval:
    """Return the fault with its times since the load began."""
    moments = ("begin", "applied", "observed", "heal", "healed")
    shifted = {name: t for name in moments if (t := getattr(fault, name)) is not None}
    return replace(fault, **{name: t - zero for name, t in shifted.items()})


def write_report(path: Path, text: str | bytes) -> Path:
    """Write a report atomically; a symbolic link at its path is replaced, not followed."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with temporary.open("xb") as file:
        file.write(text.encode("utf-8", "replace") if isinstance(text, str) else text)
    os.replace(temporary, path)
    return path


def rerun_command(view: RunView, seatrial: str = "seatrial") -> str:
    """Return the command that runs the same plan again; for an imported history, the one that
    checks it."""
    verb = "check" if view.trial.system == IMPORTED else "replay"
    # neither is taken from a stored run
    named = " --client COMMAND" if view.trial.client else ""
    named += " --attach FILE" if _attached(view.trial) else ""
    return f"{seatrial} {verb} {run_argument(view.run)}{named}"


def _attached(trial: Trial) -> bool:
    """Return whether the cluster existed before the run."""
    return trial.hosts in registry.names("hosts") and bool(registry.hosts(trial.hosts).attach)


def explain_command(view: RunView, finding: str = "", seatrial: str = "seatrial") -> str:
    """Return the command that explains a finding, by default the first."""
    return " ".join(filter(None, (seatrial, "explain", run_argument(view.run), finding)))


def run_argument(run: RunDir) -> str:
    """Return a run as an argument of a command, relative to the current folder if below it. Readers
    of the report elsewhere can still tell which run it was."""
    return sanitize_all(shlex.quote(from_here(run, run.path)))


def from_here(run: RunDir, path: Path) -> str:
    """Return the shortest path of a part of a run: relative if below the current folder, unless the
    run is in object storage."""
    here, whole = Path.cwd(), path.absolute()
    if (called := run.display_path(path)) != str(path):
        return called
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def _text(run: RunDir) -> str:
    if not run.plan_file.is_file():
        return ""
    return read_bytes(run.plan_file, MAX_TOML_BYTES).decode(errors="replace")


def _attempt(doubts: list[str], what: str, make: Callable[[], T], otherwise: T) -> T:
    try:
        return make()
    except BROKEN as e:
        why = " ".join(str(e).split())[:200] or type(e).__name__
        doubts.append(f"{what} could not be read: {why}")
        return otherwise
