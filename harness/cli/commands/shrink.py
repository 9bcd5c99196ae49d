"""`seatrial shrink`: searches the shortest plan with which a run still fails."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.options import Duration, merge_tables, runs_option, trust_options

if TYPE_CHECKING:
    from harness.history.rundir import RunDir
    from harness.shrink.search import Case
    from harness.shrink.simulated import SearchLimits


@click.command("shrink", short_help="Minimize a failing run.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@click.option(
    "--within",
    "--time",
    "within_s",
    type=Duration(),
    default="5m",
    help="Stop after this time: 5m.",
)
@click.option(
    "--luck",
    type=click.IntRange(1, 1000),
    default=8,
    help="Tries of each candidate, and of the result on real hosts.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 1024), default=2, help="Simulated worlds in parallel."
)
@trust_options
@runs_option()
def command(
    folder: str,
    within_s: float,
    luck: int,
    jobs: int,
    bed: tuple[dict[str, Any], ...],
    client: tuple[str, ...] | None,
    trust_run: bool,
    runs: Path,
) -> int:
    """Remove faults, time, nodes and load from the run in DIR while it still fails the same way.

    Each candidate is tried several times, with different packet timing. The shortest one becomes a
    run of its own; its plan and its timeline are printed. Ctrl-C, SIGTERM and a closed terminal
    stop the search and keep the best candidate so far.

    On real hosts a run does not fail every time: candidates run one after another, each until it
    fails or has used its tries. While there is time, the result is then run as often again, and the
    share of failures is printed. This takes long: --time 1h. As for `replay`, options of docker and
    SSH hosts, such as an inventory, are refused unless you name them with --bed or add --trust-run.
    """
    from harness.campaign.swarm import HOSTS
    from harness.cli.session import HostTrust
    from harness.history.run_files import open_run
    from harness.history.runs import check_writable
    from harness.shrink.simulated import SearchLimits, failing_case

    with open_run(folder) as run:
        case = failing_case(run, HostTrust(merge_tables(bed), trust_run, client))
        check_writable(runs)
        if case.trial.hosts != HOSTS:
            return _on_real_hosts(run, case, SearchLimits(within_s, luck), runs)
    return _in_worlds(case, SearchLimits(within_s, luck, jobs), runs)


def _in_worlds(case: "Case", patience: "SearchLimits", runs: Path) -> int:
    """Search with simulated runs."""
    from harness.cli.session import ReportOptions, RunEnd, render
    from harness.run.interrupts import UNATTENDED_SIGNALS, on_stop_signal
    from harness.shrink.simulated import keep_as_run, search
    from harness.shrink.view import ShrinkScreen, show

    with on_stop_signal(lambda: None, UNATTENDED_SIGNALS):  # signals may repeat; the best is kept
        with ShrinkScreen() as watch:
            progress = search(case, patience, watch)
        outcome = keep_as_run(progress.tries.best, runs)
        render(RunEnd(outcome.seed, outcome.run, outcome.verdict), ReportOptions())
        show(progress, outcome)
    return 0


def _on_real_hosts(run: "RunDir", case: "Case", patience: "SearchLimits", runs: Path) -> int:
    """Search with real runs. Raises BedFailed if this machine cannot run them."""
    from harness.cli.options import Request
    from harness.cli.session import ReportOptions, RunEnd, render
    from harness.run.interrupts import UNATTENDED_SIGNALS, on_stop_signal
    from harness.run.preflight import refuse_unrunnable
    from harness.shrink.real import search_on_hosts
    from harness.shrink.simulated import convicting_code
    from harness.shrink.view import ShrinkScreen, show

    wanted = convicting_code(run)
    refuse_unrunnable(Request(case.trial, case.plan_toml), runs)
    with on_stop_signal(lambda: None, UNATTENDED_SIGNALS):  # signals may repeat; the best is kept
        with ShrinkScreen() as watch:
            progress, outcome = search_on_hosts(case, wanted, patience, watch, runs)
        render(RunEnd(outcome.seed, outcome.run, outcome.verdict), ReportOptions())
        show(progress, outcome)
    return 0
