"""A judged run as reports see it: the verdict, the trial, and the small tables.

Reports only read. The verdict is what `verdict.json` says; a part of the run that is missing or
damaged makes a report poorer, never different in its verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.errors import BadRequest
from harness.history import History
from harness.intervals import Event, FaultInterval, events, fault_intervals
from harness.rundir import RunDir
from harness.trial import Trial
from harness.verdict import Finding, Result, Verdict

LEAD_NS = 1_000_000_000  # of the picture, before the load
IMPORTED = "imported"  # in place of a system: the history is another tool's
LANES = ("ok", "fail", "info", "delivered", "read", "p50_ms", "p99_ms")


@dataclass(frozen=True)
class Told:
    """Everything a report may show. Times are ns since the run's start."""

    run: RunDir
    trial: Trial
    verdict: Verdict
    state: Mapping[str, Any]
    names: Mapping[str, Any]
    phases: Mapping[str, int]
    faults: tuple[FaultInterval, ...]
    events: tuple[Event, ...]
    plan: str

    @cached_property
    def end(self) -> int:
        """Nothing that is drawn is later."""
        times = [*self.phases.values(), *(event.t for event in self.events)]
        times += [t for f in self.faults for t in (f.begin, f.heal, f.healed) if t is not None]
        lanes = self.lanes
        drawn = int((lanes.from_s + lanes.bin_s * lanes.count) * 1e9)
        return max([*times, drawn, 1])

    @cached_property
    def begin(self) -> int:
        """Where the picture begins: what is before the load has little to show, for a long time."""
        return max(0, self.phases.get("load", 0) - LEAD_NS)

    @property
    def sentence(self) -> str:
        """The verdict's sentence without its first word, which stands beside it anyway."""
        said = self.verdict.sentence
        said = said.removeprefix(f"{self.verdict.verdict.value.capitalize()}: ")
        return said[:1].upper() + said[1:]

    @cached_property
    def lanes(self) -> "Lanes":
        return Lanes.of(self.stats("availability").get("lanes", {}))

    def stats(self, checker: str) -> Mapping[str, Any]:
        """A checker's numbers; nothing when it did not run."""
        return next((r.stats for r in self.verdict.checkers if r.checker == checker), {})

    def findings(self) -> Iterator[tuple[Result, Finding]]:
        """Convictions first, then what the contract permits, then what only informs."""
        rows = [(result, f) for result in self.verdict.checkers for f in result.findings]
        yield from sorted(rows, key=lambda row: rank(row[1]))


@dataclass(frozen=True)
class Lanes:
    """Series over bins of time, as the checkers left them."""

    from_s: float
    bin_s: float
    series: Mapping[str, Sequence[float | None]]

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> "Lanes":
        series = {name: _numbers(str(stats.get(name, ""))) for name in LANES}
        return cls(float(stats.get("from_s", 0.0)), float(stats.get("bin_s", 1.0)), series)

    @property
    def count(self) -> int:
        return max((len(values) for values in self.series.values()), default=0)

    def per_second(self, name: str) -> list[float]:
        return [(value or 0) / self.bin_s for value in self.series[name]]


def rank(finding: Finding) -> int:
    """0 convicts, 1 is permitted, 2 only informs."""
    if not finding.demand:
        return 2
    return 1 if finding.permitted else 0


def read(run: RunDir) -> Told:
    """What a run tells. BadRequest when nobody has judged it yet."""
    if not run.verdict_file.is_file():
        raise BadRequest(f"{run.path} has no verdict yet: seatrial check {run.path} makes one")
    history = History.open(run)
    return Told(
        run=run,
        trial=run.trial(),
        verdict=Verdict.read(run.verdict_file),
        state=run.state(),
        names=run.names(),
        phases=dict(history.phases()),
        faults=fault_intervals(history.read("faults")),
        events=events(history.read("events")),
        plan=run.plan_file.read_text() if run.plan_file.is_file() else "",
    )


def rerun_command(told: Told, path: str, seatrial: str = "seatrial") -> str:
    """The command that carries out the same plan again; an imported history is judged again."""
    verb = "check" if told.trial.system == IMPORTED else "replay"
    return f"{seatrial} {verb} {path}"


def _numbers(words: str) -> list[float | None]:
    return [None if word == "-" else float(word) for word in words.split()]
