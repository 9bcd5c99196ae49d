"""The same trial with several versions of a system: in which of them it fails.

Versions are run in the order in which they are named, each so often as asked. A version whose
program is not to be had, or whose cluster does not start, is a line of the table like the others.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.table import Table

from harness.cli.console import announce, folded_table, format_duration, standard_output
from harness.cli.options import Request
from harness.cli.session import (
    Engines,
    HostTrust,
    ReportOptions,
    RunEnd,
    likely_s,
    needs_java,
    render,
    replay_request,
    run_one,
    say,
    worst,
)
from harness.errors import EXIT_BED_FAILED, BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.run.preflight import refuse_unrunnable
from harness.text.sanitize import sanitize


@dataclass
class VersionResult:
    """What the runs of one version ended with."""

    version: str
    ends: list[RunEnd] = field(default_factory=list)
    error: str = ""  # why none could be run

    @property
    def words(self) -> str:
        """Return the verdicts with their numbers: `invalid 2 of 3`."""
        if self.error:
            return "not run"
        counts = Counter(end.word for end in self.ends)
        total = len(self.ends)
        return ", ".join(f"{word} {count} of {total}" for word, count in counts.most_common())

    @property
    def found(self) -> str:
        if self.error:
            return self.error
        codes = Counter(code for end in self.ends for code in end.codes)
        why = [end.why for end in self.ends if end.why]
        return ", ".join(codes) or (why[0] if why else "nothing")

    @property
    def exit_code(self) -> int:
        return worst(end.exit_code for end in self.ends) if self.ends else EXIT_BED_FAILED


def bisect(run: RunDir, versions: str, repeat: int, runs: Path, trusted: HostTrust) -> int:
    """Run the trial of a stored run with each version; print a table; return the worst exit
    code."""
    wanted = list(dict.fromkeys(word.strip() for word in versions.split(",") if word.strip()))
    if not wanted:
        raise BadRequest("--versions names no version; write --versions 2.10.25,2.12.1")
    request = replay_request(run, trusted)
    each_s, number = likely_s(request.trial), len(wanted) * repeat
    announce(number * each_s, f"{number} runs of about {format_duration(each_s)}")
    results: list[VersionResult] = []
    with closing(Engines(at_once=needs_java(request.trial))) as engines:
        for version in wanted:
            result = VersionResult(version)
            results.append(result)
            trial = replace(request.trial, version=version, name=f"{request.trial.name}-{version}")
            try:
                _run_version(replace(request, trial=trial), repeat, runs, engines, result)
            except KeyboardInterrupt:
                say(f"stopped in version {version}")
                break
    standard_output().print(_table(request.trial.system, results))
    return worst(result.exit_code for result in results)


def _run_version(
    request: Request, repeat: int, runs: Path, engines: Engines, result: VersionResult
) -> None:
    try:
        refuse_unrunnable(request, runs)
    except BedFailed as e:
        result.error = str(e)
        say(f"{request.trial.system} {result.version}: {e}")
        return
    for _ in range(repeat):
        end = run_one(request, runs, engines.ready())
        result.ends.append(end)
        render(end, ReportOptions())
        say(f"{request.trial.system} {result.version}: {end.word}")


def _table(system: str, results: Sequence[VersionResult]) -> Table:
    table = folded_table(system, "verdict", "found", "run")
    for result in results:
        folders = [end.run.path.name for end in result.ends if end.run]
        table.add_row(
            result.version, result.words, sanitize(result.found), folders[-1] if folders else ""
        )
    return table
