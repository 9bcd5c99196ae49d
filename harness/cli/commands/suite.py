"""`seatrial suite`: runs a list of trials with expected verdicts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.commands._names import names_of
from harness.cli.options import (
    ByteSize,
    Duration,
    FiniteNumber,
    NameList,
    merge_tables,
    option_group,
    runs_option,
    table_option,
)
from harness.errors import BadRequest

if TYPE_CHECKING:
    from harness.suite.suite_file import HostsOverride


def _only(
    context: click.Context, option: click.Parameter, words: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Raise BadRequest for an empty --only, which would mean all runs."""
    if words is not None and not words:
        raise BadRequest("--only names no run; give a part of a run's name, or omit it")
    return words or ()


def _place(hosts: str | None, bed: tuple[dict[str, Any], ...]) -> "HostsOverride | None":
    from harness import registry
    from harness.suite.suite_file import HostsOverride

    if hosts is None:
        if bed:
            raise BadRequest("--bed needs --hosts, whose option it is")
        return None
    registry.module("hosts", hosts)  # raises here, not once for each run
    return HostsOverride(hosts, merge_tables(bed))


# what selects runs of a suite, and sets their pace
suite_selection = option_group(
    click.option(
        "--only",
        type=NameList(),
        callback=_only,
        show_default="all runs",
        help="Only runs whose name contains one of these.",
    ),
    click.option(
        "--scale",
        type=FiniteNumber(0, min_open=True),
        show_default="from the suite file",
        help="Multiply all times: 0.1.",
    ),
    click.option(
        "--share",
        type=FiniteNumber(0, 1, min_open=True),
        show_default="from the suite file",
        help="Share of the rounds of repeated faults: 0.1.",
    ),
)


@click.command("suite", short_help="Run a list of trials with expected verdicts.")
@click.argument("file", type=click.Path(path_type=Path), metavar="SUITE")
@suite_selection
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="How often to run each.")
@click.option(
    "--hosts",
    show_default="from the suite file",
    shell_complete=names_of("hosts"),
    help="Where all trials run.",
)
@table_option("--bed", about="An option of the hosts, with --hosts.")
@click.option(
    "--budget-time",
    "time_s",
    type=Duration(),
    show_default="none",
    help="Start no run that would end later than this: 8h.",
)
@click.option(
    "--budget-disk",
    "disk_bytes",
    type=ByteSize(),
    show_default="none",
    help="Disk space for the runs of this suite: 2GB.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    show_default="none",
    help="A table of results; runs it has are skipped, others added.",
)
@runs_option()
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    show_default="none",
    help="Append the summary to this file, as Markdown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
def command(
    file: Path,
    only: tuple[str, ...],
    repeat: int,
    scale: float | None,
    share: float | None,
    hosts: str | None,
    bed: tuple[dict[str, Any], ...],
    time_s: float | None,
    disk_bytes: float | None,
    record: Path | None,
    runs: Path,
    summary: Path | None,
    as_json: bool,
    no_report: bool,
) -> int:
    """Run every trial of SUITE, and compare each verdict with the expected one.

    SUITE is a file, or the name of a bundled one, such as nightly (`seatrial list suites`).

    The same command resumes an interrupted suite. The summary is also written below --runs, as
    suites/SUITE.json, .xml (JUnit) and .md, and compared with earlier nights. Exit code 0 if each
    run ended as expected, 1 if one did not, 2 if none differed but one was undecided.
    """
    from harness.suite.bundled import path_of
    from harness.suite.command import SuiteRequest, run_suite
    from harness.suite.execution import SuiteBudget

    suite_request = SuiteRequest(
        path_of("suite", str(file)),
        *(only, repeat, scale, share, SuiteBudget(time_s, disk_bytes), record, not no_report),
        place=_place(hosts, bed),
    )
    return run_suite(suite_request, runs, summary, as_json)
