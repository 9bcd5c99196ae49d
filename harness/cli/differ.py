"""Two systems beside each other: the same trial with the same seeds on both.

Runs of the same trial differ by chance, so a figure counts as apart only if the two systems' values
do not overlap: all of one are below all of the other. Of `n` and `m` runs that differ by chance
alone, this happens with a probability of 2 n! m! / (n + m)!: 10 % of three and three, 0.8 % of five
and five. With fewer than three runs of a system no figure is
called apart.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
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
from harness.cli.options import Request
from harness.cli.session import (
    Engines,
    ReportOptions,
    RunEnd,
    likely_s,
    needs_java,
    render,
    run_one,
    say,
)
from harness.errors import (
    EXIT_BED_FAILED,
    EXIT_INVALID,
    EXIT_UNKNOWN,
    EXIT_VALID,
    BadRequest,
)
from harness.run.preflight import refuse_unrunnable
from harness.suite.figures import measured

FEWEST = 3  # runs of each system
WORDS = {  # name of a figure -> what it is
    "acknowledged": "acknowledged",
    "lost": "lost",
    "duplicated": "stored twice",
    "failed_sends": "sends that failed, or of unknown outcome",
    "election_count": "elections",
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

    def values(self, name: str) -> list[float]:
        return [figures[name] for figures in self.figures if name in figures]

    @property
    def verdicts(self) -> Mapping[str, int]:
        return Counter(end.word for end in self.ends)

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


def differences(first: SystemResult, second: SystemResult) -> list[Difference]:
    """Return the figures that both have."""
    found = ((name, first.values(name), second.values(name)) for name in WORDS)
    return [Difference(name, one, other) for name, one, other in found if one and other]


def chance(first: int, second: int) -> float:
    """Return the probability that so many and so many values that differ by chance alone do not
    overlap."""
    return min(1.0, 2 * factorial(first) * factorial(second) / factorial(first + second))


def differ(
    requests: Sequence[tuple[ComparedSystem, Request]],
    seeds: Sequence[int],
    runs: Path,
    shown: ReportOptions,
    spark: str,
) -> int:
    """Run the trial of each system with each seed, in turn, and print where they are apart. Return
    0 if nowhere, 1 if somewhere, 2 if that cannot be said, and 255 if a cluster failed."""
    for _, request in requests:
        refuse_unrunnable(request, runs, spark)
    number = len(seeds) * len(requests)
    each_s = sum(likely_s(request.trial) for _, request in requests) / len(requests)
    announce(number * each_s, f"{number} runs of about {format_duration(each_s)}")
    results = [SystemResult(of) for of, _ in requests]
    at_once = any(needs_java(request.trial, spark) for _, request in requests)
    with closing(Engines(spark, at_once=at_once)) as engines:
        try:
            for seed in seeds:
                for result, (of, request) in zip(results, requests, strict=True):
                    name = f"{request.trial.name}-{of.system}"
                    trial = replace(request.trial, seed=seed, name=name)
                    end = run_one(replace(request, trial=trial), runs, engines.ready())
                    result.ends.append(end)
                    result.figures.append(measured(end.run, end.verdict))
                    if shown.page:
                        render(end, ReportOptions())
                    say(f"{of} seed {seed}: {', '.join((end.word, *end.codes))}")
        except KeyboardInterrupt:
            say("stopped; what was run is compared")
    first, second = results
    found = differences(first, second)
    if shown.as_json:
        click.echo(json.dumps(as_json(first, second, found), indent=2))
    else:
        standard_output().print(_table(first, second, found))
        for line in conclusion(first, second, found):
            click.echo(message(line))
    return exit_code(first, second, found)


def exit_code(first: SystemResult, second: SystemResult, found: Sequence[Difference]) -> int:
    ends = (*first.ends, *second.ends)
    if any(end.exit_code == EXIT_BED_FAILED for end in ends) or not (first.ends and second.ends):
        return EXIT_BED_FAILED
    if any(each.apart for each in found) or _verdicts_apart(first, second):
        return EXIT_INVALID
    undecided = any(each.apart is None for each in found) or not found
    return EXIT_UNKNOWN if undecided else EXIT_VALID


def _verdicts_apart(first: SystemResult, second: SystemResult) -> bool:
    """Whether no verdict of the one is a verdict of the other."""
    enough = min(len(first.ends), len(second.ends)) >= FEWEST
    return enough and not set(first.verdicts) & set(second.verdicts)


def conclusion(
    first: SystemResult, second: SystemResult, found: Sequence[Difference]
) -> Iterator[str]:
    """Yield what is to be said below the table."""
    many = min(len(first.ends), len(second.ends))
    if many < FEWEST:
        yield (
            f"{many} runs of each are too few to tell a difference from chance; name at least "
            f"{FEWEST} seeds: --seeds 1..{FEWEST}"
        )
        return
    apart = [WORDS[each.name] for each in found if each.apart]
    share = chance(len(first.ends), len(second.ends))
    yield f"apart: {'; '.join(apart)}" if apart else "apart: nothing"
    yield (
        f"apart means that the values of {many} runs do not overlap; of figures that differ by "
        f"chance alone, {100 * share:.2g} % would"
    )


def as_json(
    first: SystemResult, second: SystemResult, found: Sequence[Difference]
) -> dict[str, Any]:
    """Return the comparison as JSON has it; a time without an end is null."""
    return {
        "systems": [_json_of(result) for result in (first, second)],
        "figures": [
            {
                "name": each.name,
                "values": [
                    [None if isinf(value) else value for value in values]
                    for values in (each.first, each.second)
                ],
                "apart": each.apart,
            }
            for each in found
        ],
    }


def _json_of(result: SystemResult) -> dict[str, Any]:
    return {
        "system": result.of.system,
        "profile": result.of.profile,
        "version": result.of.version,
        "verdicts": result.verdicts,
        "codes": result.codes,
        "runs": [end.run.path.name for end in result.ends if end.run],
    }


def _table(first: SystemResult, second: SystemResult, found: Sequence[Difference]) -> Table:
    table = folded_table("", str(first.of), str(second.of), "")
    counted = (("verdict", "verdicts"), ("found", "codes"))
    for word, name in counted:
        table.add_row(word, *(_counts(getattr(result, name)) for result in (first, second)), "")
    marks = {True: "apart", False: "", None: "too few"}
    for each in found:
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
