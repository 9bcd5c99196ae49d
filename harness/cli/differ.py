"""Two systems beside each other: the same trials with the same seeds on both.

Runs of the same trial differ by chance, so a figure counts as apart only if the two systems' values
do not overlap: all of one are below all of the other. Of `n` and `m` runs that differ by chance
alone, this happens with a probability of 2 n! m! / (n + m)!: 10 % of three and three, 0.8 % of five
and five. With fewer than three runs of a system no figure is
called apart.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from math import factorial, isinf
from pathlib import Path
from statistics import median_low
from typing import Any

import click
from rich.table import Table

from harness.cli.console import (
    announce,
    folded_table,
    format_duration,
    message,
    standard_output,
)
from harness.cli.options import Request, looks_like_file
from harness.cli.session import (
    Engines,
    ReportOptions,
    RunEnd,
    likely_s,
    needs_java,
    render,
    run_one,
    say,
    worst,
)
from harness.errors import (
    EXIT_BED_FAILED,
    EXIT_INVALID,
    EXIT_UNKNOWN,
    EXIT_VALID,
    BadRequest,
    SeatrialError,
)
from harness.history.reader import History
from harness.run.preflight import compares_replicas, refuse_any_unrunnable, refuse_impossible
from harness.suite import bundled
from harness.suite.figures import measured
from harness.suite.suite_file import read_suite, select_runs
from harness.text.parsing import parse_toml, read_text

FEWEST = 3  # runs of each system
WORDS = {  # name of a figure -> what it is
    "acknowledged": "acknowledged",
    "lost": "lost",
    "duplicated": "stored twice",
    "failed_sends": "sends not acknowledged",
    "unknown_sends": "sends of unknown outcome",
    "elections": "elections",
    "last_epoch": "last epoch",
    "set_changes": "changes of who is in sync",
    "truncations": "cuts of a replica's log",
    "success_quiet": "share of sends acknowledged, without a fault",
    "success_in_faults": "share of sends acknowledged, in faults",
    "per_s": "acknowledged per second",
    "to_ack_s_p50": "fault to next acknowledgement, median (s)",
    "to_ack_s_p99": "fault to next acknowledgement, p99 (s)",
    "failure_to_success_s_p50": "failure to next success, median (s)",
    "failure_to_success_s_p99": "failure to next success, p99 (s)",
}


@dataclass(frozen=True)
class ComparedSystem:
    """One of the two: a system, its profile and its version; empty: its own defaults."""

    system: str
    profile: str = ""
    version: str = ""

    @classmethod
    def parse(cls, text: str) -> "ComparedSystem":
        """Read `system:profile@version`, of which the last two may be left out."""
        words, _, version = text.strip().partition("@")
        system, _, profile = words.partition(":")
        return cls(system, profile, version)

    def __str__(self) -> str:
        profile = f":{self.profile}" if self.profile else ""
        return f"{self.system}{profile}" + (f"@{self.version}" if self.version else "")

    @property
    def fields(self) -> dict[str, str]:
        """Return it as fields of a trial."""
        return {"system": self.system, "profile": self.profile, "version": self.version}


@dataclass
class SystemResult:
    """What the runs of one of them ended with."""

    of: ComparedSystem
    ends: list[RunEnd] = field(default_factory=list)
    figures: list[Mapping[str, float]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)  # exceptions that calls ended in

    def add(self, end: RunEnd) -> None:
        errors = History.open(end.run).client_errors if end.run else {}
        self.figures.append(measured(end.run, end.verdict))
        self.ends.append(end)
        self.errors.update({name: error.calls for name, error in errors.items()})

    def values(self, name: str) -> list[float]:
        return [figures[name] for figures in self.figures if name in figures]

    @property
    def verdicts(self) -> Mapping[str, int]:
        return Counter(end.word for end in self.ends)

    @property
    def judged(self) -> list[RunEnd]:
        return [end for end in self.ends if end.verdict]

    @property
    def codes(self) -> Mapping[str, int]:
        """Return in how many runs each convicting code was found."""
        return Counter(code for end in self.ends for code in end.codes)


@dataclass(frozen=True)
class Difference:
    """A figure of both. `apart`: their values do not overlap; None: too few runs to say."""

    name: str
    first: Sequence[float]
    second: Sequence[float]

    @property
    def apart(self) -> bool | None:
        if min(len(self.first), len(self.second)) < FEWEST:
            return None
        return max(self.first) < min(self.second) or max(self.second) < min(self.first)

    @property
    def equal(self) -> bool:
        """Whether all values of both are the same."""
        return len({*self.first, *self.second}) == 1


@dataclass(frozen=True)
class ComparedTrial:
    """One trial on both: a request for each of them, and what its runs ended with. `name`: of the
    suite's run; empty for a single trial."""

    requests: tuple[Request, Request]
    first: SystemResult
    second: SystemResult
    name: str = ""

    @classmethod
    def of(
        cls, systems: Sequence[ComparedSystem], requests: Sequence[Request], name: str = ""
    ) -> "ComparedTrial":
        first, second = requests
        one, other = map(SystemResult, systems)
        return cls((first, second), one, other, name)

    @property
    def sides(self) -> tuple[tuple[SystemResult, Request], ...]:
        return ((self.first, self.requests[0]), (self.second, self.requests[1]))

    @property
    def ends(self) -> tuple[RunEnd, ...]:
        return (*self.first.ends, *self.second.ends)

    @property
    def fewest(self) -> int:
        """The number of runs with a verdict, of the system that has fewer of them."""
        return min(len(self.first.judged), len(self.second.judged))

    @property
    def verdicts_apart(self) -> bool:
        """Whether no verdict of the one is a verdict of the other."""
        one, other = ({end.word for end in side.judged} for side, _ in self.sides)
        return self.fewest >= FEWEST and not one & other

    @property
    def apart(self) -> list[str]:
        """What sets the two apart, in words."""
        figures = [WORDS[found.name] for found in self.differences if found.apart]
        return [*figures, *(["verdicts"] if self.verdicts_apart else [])]

    @property
    def differences(self) -> list[Difference]:
        """The figures that both have."""
        found = ((name, self.first.values(name), self.second.values(name)) for name in WORDS)
        return [Difference(name, one, other) for name, one, other in found if one and other]


def suite_of(what: str) -> Path | None:
    """Return the suite file that is meant, or None if `what` is a trial or a workload."""
    if looks_like_file(what):
        path = Path(what)
    elif what in bundled.names("suite") and what not in bundled.names("trial"):
        path = bundled.path_of("suite", what)
    else:
        return None
    table = parse_toml(read_text(path, "the trial or suite file"), str(path))
    return path if isinstance(table.get("trial"), list) else None


def comparisons_of_suite(
    systems: Sequence[ComparedSystem],
    suite: Path,
    only: Sequence[str],
    scale: float | None,
    share: float | None,
) -> list[ComparedTrial]:
    """Return the trials of a suite. Their system, profile and version are replaced by those that
    are compared, and their seeds by others; of trials that are the same then, the first stays. They
    have no `compare_replicas` if one of the systems cannot."""
    found: list[ComparedTrial] = []
    seen: list[Any] = []
    names: Counter[str] = Counter()
    cells = select_runs(read_suite(suite, scale, share), only)
    for cell in cells:
        requests = [_moved(cell.request, of) for of in systems]
        same = [(replace(each.trial, seed=0, name=""), each.plan_text) for each in requests]
        if same not in seen:
            seen.append(same)
            names[cell.title] += 1
            again = f" #{names[cell.title]}" if names[cell.title] > 1 else ""
            found.append(ComparedTrial.of(systems, _alike(requests), f"{cell.title}{again}"))
    if len(found) < len(cells):
        say(
            f"{len(found)} of {len(cells)} trials are compared; the others differ from them only "
            "in seed, system, profile or version"
        )
    asked = any(cell.request.trial.compare_replicas for cell in cells)
    if asked and not all(r.trial.compare_replicas for each in found for r in each.requests):
        say("replicas are compared only at the end, since one of the systems cannot do it before")
    return found


def _moved(request: Request, of: ComparedSystem) -> Request:
    return replace(request, trial=request.trial.with_(of.fields))


def _alike(requests: list[Request]) -> list[Request]:
    """Return them without `compare_replicas` if one of the systems cannot."""
    with suppress(SeatrialError):  # of a trial that is refused later, with its name
        if any(r.trial.compare_replicas and not compares_replicas(r.trial) for r in requests):
            return [replace(r, trial=replace(r.trial, compare_replicas=False)) for r in requests]
    return requests


def parse_systems(text: str) -> tuple[ComparedSystem, ComparedSystem]:
    """Return the two systems of `flotilla:allack-min1,rocketmq:published`. Raises BadRequest."""
    named = [ComparedSystem.parse(part) for part in text.split(",")]
    if len(named) != 2 or not all(each.system for each in named):
        raise BadRequest(
            "--systems takes two systems, each with a profile and a version if need be: "
            f"flotilla:allack-min1,rocketmq:published@5.3.3; not {text!r}"
        )
    if named[0] == named[1]:
        raise BadRequest(
            f"--systems names {named[0]} twice; name two systems, profiles or versions"
        )
    return named[0], named[1]


def chance(first: int, second: int) -> float:
    """Return the probability that so many and so many values that differ by chance alone do not
    overlap."""
    return min(1.0, 2 * factorial(first) * factorial(second) / factorial(first + second))


def differ(
    comparisons: Sequence[ComparedTrial],
    seeds: Sequence[int],
    runs: Path,
    shown: ReportOptions,
    spark: str,
) -> int:
    """Run each trial on both systems with each seed, in turn, and print where they are apart.
    Return 0 if nowhere, 1 if somewhere, 2 if that cannot be said, and 255 if a cluster failed."""
    _refuse(comparisons, seeds, runs, spark)
    requests = [request for each in comparisons for request in each.requests]
    number = len(seeds) * len(requests)
    each_s = sum(likely_s(request.trial) for request in requests) / len(requests)
    at_once = any(needs_java(request.trial, spark) for request in requests)
    complete = False
    with suppress(KeyboardInterrupt):
        announce(number * each_s, f"{number} runs of about {format_duration(each_s)}")
        with closing(Engines(spark, at_once=at_once)) as engines:
            complete = all(_run_both(each, seeds, runs, shown, engines) for each in comparisons)
    if not complete:
        say("stopped; what was run to its end is compared")
    done = [each for each in comparisons if each.ends]
    if shown.as_json:
        click.echo(json.dumps({**_plain(comparisons, done), "complete": complete}, indent=2))
    else:
        for each in done:
            standard_output().print(_table(each))
        for line in conclusion(done):
            click.echo(message(line))
    return exit_code(done, complete)


def _refuse(
    comparisons: Sequence[ComparedTrial], seeds: Sequence[int], runs: Path, spark: str
) -> None:
    """Raise what is wrong with a trial on one of the systems, with the name of the trial. The
    machine is examined once for each system and kind of hosts."""
    examined: list[Any] = []
    for comparison in comparisons:
        for result, request in comparison.sides:
            trial = request.trial
            of_seeds = [replace(request, trial=replace(trial, seed=seed)) for seed in seeds]
            needs = (result.of, trial.supply, trial.hosts, trial.bed)
            try:
                if needs in examined:
                    for one in of_seeds:
                        refuse_impossible(one)
                else:
                    refuse_any_unrunnable(of_seeds, runs, spark)
                    examined.append(needs)
            except SeatrialError as e:
                if comparison.name:
                    e.args = (f"{comparison.name} on {result.of}: {e}",)
                raise


def _run_both(
    comparison: ComparedTrial,
    seeds: Sequence[int],
    runs: Path,
    shown: ReportOptions,
    engines: Engines,
) -> bool:
    """Run a trial on both systems with each seed. Return False if the user stopped it; the run that
    was under way is not compared."""
    for seed in seeds:
        for result, request in comparison.sides:
            name = f"{request.trial.name}-{result.of.system}"
            trial = replace(request.trial, seed=seed, name=name)
            end = run_one(replace(request, trial=trial), runs, engines.ready())
            if end.interrupted:
                return False
            result.add(end)
            if shown.page:
                render(end, ReportOptions())
            what = f"{comparison.name} on {result.of}" if comparison.name else result.of
            why = f" ({end.why})" if end.why else ""
            say(f"{what} seed {seed}: {', '.join((end.word, *end.codes))}{why}")
    return True


def exit_code(comparisons: Sequence[ComparedTrial], complete: bool = True) -> int:
    found = [difference for each in comparisons for difference in each.differences]
    undecided = not complete or not found or any(each.apart is None for each in found)
    codes = [EXIT_UNKNOWN if undecided else EXIT_VALID]
    if any(end.exit_code == EXIT_BED_FAILED for each in comparisons for end in each.ends):
        codes.append(EXIT_BED_FAILED)
    if any(each.apart for each in comparisons):
        codes.append(EXIT_INVALID)
    return worst(codes)


def conclusion(comparisons: Sequence[ComparedTrial]) -> Iterator[str]:
    """Yield what is to be said below the tables."""
    for each in comparisons:
        of = f"{each.name}: " if each.name else ""
        if each.fewest < FEWEST:
            yield (
                f"{of}{each.fewest} runs of each are too few to tell a difference from chance; "
                f"name at least {FEWEST} seeds: --seeds 1..{FEWEST}"
            )
        else:
            yield f"{of}apart: {'; '.join(each.apart) or 'nothing'}"
    figures = [difference for each in comparisons for difference in each.differences]
    found = [each for each in figures if each.apart is not None]
    if found:
        equal = sum(each.equal for each in found)
        by_chance = sum(
            chance(len(each.first), len(each.second)) for each in found if not each.equal
        )
        few = len(figures) - len(found)
        yield (
            f"apart means that values do not overlap; of {len(found)} figures, {equal} of them "
            f"equal in all runs, chance alone would set {by_chance:.2g} apart"
            + (f"; {few} more have too few values to tell" if few else "")
        )


def _plain(comparisons: Sequence[ComparedTrial], done: Sequence[ComparedTrial]) -> dict[str, Any]:
    """Return the comparisons as JSON has them: those of a suite are a list."""
    if any(each.name for each in comparisons):
        return {"trials": [as_json(each) for each in done]}
    return as_json(comparisons[0])


def as_json(comparison: ComparedTrial) -> dict[str, Any]:
    """Return a comparison as JSON has it; a time without an end is null."""
    return {
        **({"name": comparison.name} if comparison.name else {}),
        "systems": [_json_of(result) for result, _ in comparison.sides],
        "verdicts_apart": comparison.verdicts_apart,
        "figures": [
            {
                "name": each.name,
                "values": [
                    [None if isinf(value) else value for value in values]
                    for values in (each.first, each.second)
                ],
                "apart": each.apart,
            }
            for each in comparison.differences
        ],
    }


def _json_of(result: SystemResult) -> dict[str, Any]:
    return {
        "system": result.of.system,
        "profile": result.of.profile,
        "version": result.of.version,
        "verdicts": result.verdicts,
        "codes": result.codes,
        "errors": result.errors,
        "runs": [end.run.path.name for end in result.ends if end.run],
    }


def _table(comparison: ComparedTrial) -> Table:
    first, second = comparison.first, comparison.second
    table = folded_table(comparison.name, str(first.of), str(second.of), "")
    counted = (("verdict", "verdicts"), ("found", "codes"), ("calls that failed by", "errors"))
    for word, name in counted:
        mark = "apart" if name == "verdicts" and comparison.verdicts_apart else ""
        table.add_row(word, *(_counts(getattr(each, name)) for each in (first, second)), mark)
    marks = {True: "apart", False: "", None: "too few"}
    for each in comparison.differences:
        values = (_spread(each.first), _spread(each.second))
        table.add_row(WORDS[each.name], *values, marks[each.apart])
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{word} {n}" for word, n in counts.items()) or "nothing"


def _spread(values: Sequence[float]) -> str:
    """Return the median and the range: `3.1 (2.9 to 4.4)`."""
    low, middle, high = min(values), median_low(values), max(values)
    return _number(middle) + (f" ({_number(low)} to {_number(high)})" if low != high else "")


def _number(value: float) -> str:
    if isinf(value):
        return "never"
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:.3g}"
