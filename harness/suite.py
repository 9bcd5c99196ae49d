"""Suites: a list of trials, each with the verdict expected of it. The nightly job runs one.

    [[trial]]
    run = "suites/trials/demo.toml"        # a trial file, relative to the suite's folder or to here
    with = { profile = "unsafe-default" }  # fields laid over it, as flags are
    seeds = "1..3"                         # one run for each; else the trial's own seed
    expect = "invalid"                     # valid, invalid or unknown
    findings = ["LOST_ACKED"]              # must be among the codes that convict

A suite passes (exit 0) when every run ended as expected, fails (1) when one ended otherwise, and is
undecided (2) when the only deviations are runs that proved nothing: unknown, or a failed test bed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from harness.errors import BadRequest
from harness.options import Request, Seeds, request
from harness.preflight import refuse
from harness.session import Ending, Shown, engine, render, run_one, say
from harness.trial import parsed
from harness.verdict import Judgement

AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED = 0, 1, 2
WORDS = {AS_EXPECTED: "as expected", NOT_AS_EXPECTED: "NOT as expected", UNDECIDED: "undecided"}
KEYS = {"run", "with", "seeds", "expect", "findings"}


@dataclass(frozen=True)
class Expected:
    """One run of a suite and what should come of it."""

    asked: Request
    verdict: Judgement
    findings: tuple[str, ...] = ()

    def compare(self, ending: Ending) -> int:
        if ending.verdict is None or ending.error:
            return UNDECIDED
        if ending.verdict.verdict is not self.verdict:
            unproven = ending.verdict.verdict is Judgement.UNKNOWN
            return UNDECIDED if unproven else NOT_AS_EXPECTED
        return AS_EXPECTED if set(self.findings) <= set(ending.codes) else NOT_AS_EXPECTED


def run_suite(path: Path, runs: Path, summary: Path | None = None) -> int:
    """Run every trial of the suite file, show and compare each; the suite's exit code."""
    plan = tuple(read_suite(path))
    for expected in plan:
        refuse(expected.asked, runs)
    rows = []
    with engine() as spark:
        for expected in plan:
            ending = run_one(expected.asked, runs, spark)
            render(ending, Shown())
            rows.append((expected, ending, expected.compare(ending)))
            say(_sentence(*rows[-1]))
    codes = [code for _, _, code in rows]
    conclusion = f"{codes.count(AS_EXPECTED)} of {len(codes)} runs of {path} ended as expected"
    say(conclusion)
    if summary:
        with summary.open("a") as out:
            out.write(markdown(conclusion, rows))
    return verdict_of(codes)


def markdown(conclusion: str, rows: Sequence[tuple[Expected, Ending, int]]) -> str:
    """The suite as a table for a job's page."""
    lines = [f"## {conclusion}", "", "| trial | seed | expected | came | |", "|" + " --- |" * 5]
    for expected, ending, code in rows:
        wanted = ", ".join((expected.verdict, *expected.findings))
        came = ending.error or ", ".join((ending.word, *ending.codes))
        cells = (expected.asked.trial.name, str(ending.seed), wanted, came, WORDS[code])
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join([*lines, "", ""])


def verdict_of(codes: Sequence[int]) -> int:
    """A wrong verdict outweighs a missing one."""
    for worst in (NOT_AS_EXPECTED, UNDECIDED):
        if worst in codes:
            return worst
    return AS_EXPECTED


def _sentence(expected: Expected, ending: Ending, code: int) -> str:
    name = f"{expected.asked.trial.name} seed {ending.seed}"
    found = f" with {', '.join(ending.codes)}" if ending.codes else ""
    where = f" ({ending.run.path})" if ending.run else ""
    outcome = f"{ending.word}{found}{f': {ending.error}' if ending.error else ''}"
    if code == AS_EXPECTED:
        return f"{name}: {outcome}, as expected{where}"
    codes = f" with {', '.join(expected.findings)}" if expected.findings else ""
    return f"{name}: {outcome}, but {expected.verdict}{codes} was expected{where}"


def read_suite(path: Path) -> Iterator[Expected]:
    """The runs of a suite file. BadRequest says which entry is wrong and how."""
    try:
        table = parsed(path.read_text(), str(path))
    except OSError as e:
        raise BadRequest(f"the suite file {path} is unreadable: {e.strerror}") from e
    entries = table.pop("trial", [])
    if table or not isinstance(entries, list) or not entries:
        raise BadRequest(f"{path} must hold [[trial]] tables and nothing else")
    for number, entry in enumerate(entries, start=1):
        yield from _runs(entry, path, f"{path}: trial {number}")


def _runs(entry: Mapping[str, Any], path: Path, where: str) -> Iterator[Expected]:
    for key in entry:
        if key not in KEYS:
            raise BadRequest(f"{where}: unknown key {key!r}; known: {', '.join(sorted(KEYS))}")
    try:
        verdict = Judgement(entry["expect"])
        seeds = Seeds()(str(entry["seeds"])) if "seeds" in entry else ()
    except (KeyError, ValueError) as e:
        raise BadRequest(f"{where}: expect must be valid, invalid or unknown") from e
    except click.BadParameter as e:
        raise BadRequest(f"{where}: seeds: {e.message}") from e
    what = str(entry.get("run", "messages"))
    beside = path.parent / what
    what = str(beside) if beside.is_file() else what
    for seed in seeds or (None,):
        flags = dict(entry.get("with", {})) | ({} if seed is None else {"seed": seed})
        yield Expected(request(what, flags), verdict, tuple(entry.get("findings", ())))
