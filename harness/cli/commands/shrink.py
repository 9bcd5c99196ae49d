"""`seatrial shrink`: the shortest plan with which a run still fails."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.options import Duration, merged, runs_option, trusting

if TYPE_CHECKING:
    from harness.history.rundir import RunDir
    from harness.shrink.search import Case
    from harness.shrink.simulated import Patience


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
    help="Tries of each candidate, and of the result, on real hosts.",
)
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, help="Simulated worlds at once.")
@trusting
@runs_option()
def command(
    folder: str,
    within_s: float,
    luck: int,
    jobs: int,
    bed: tuple[dict[str, Any], ...],
    trust_run: bool,
    runs: Path,
) -> int:
    """Remove faults, time, nodes and load from the run in DIR while it still fails the same way.

    Each candidate is tried several times, with different packet timing. The shortest one becomes a
    run of its own; its plan and its timeline are printed. Ctrl-C, SIGTERM and a closed terminal
    keep the best candidate so far.

    On real hosts a run does not fail every time: candidates run one after another, each until it
    fails or has used its tries. The result is then run as often again, while there is time, and the
    share of failures is printed. Give it time: --time 1h. As for `replay`, options of docker and
    SSH hosts that the run has, an inventory above all, are refused unless you name them with --bed
    or add --trust-run.
    """
    from harness.campaign.swarm import HOSTS
    from harness.cli.session import Trusted
    from harness.history.run_files import stored_run
    from harness.history.runs import writable
    from harness.shrink.simulated import Patience, failing

    with stored_run(folder) as run:
        case = failing(run, Trusted(merged(bed), trust_run))
        writable(runs)
        if case.trial.hosts != HOSTS:
            return _for_real(run, case, Patience(within_s, luck), runs)
    return _in_worlds(case, Patience(within_s, luck, jobs), runs)


def _in_worlds(case: "Case", patience: "Patience", runs: Path) -> int:
    """With simulated runs, of which there are many in a minute."""
    from harness.cli.session import Ending, Shown, render
    from harness.run.interrupts import UNHEEDED, stoppable
    from harness.shrink.simulated import kept, searched
    from harness.shrink.view import Watched, show

    with stoppable(lambda: None, UNHEEDED):  # they come in numbers; the best is to be kept
        with Watched() as watch:
            progress = searched(case, patience, watch)
        outcome = kept(progress.tries.best, runs)
        render(Ending(outcome.seed, outcome.run, outcome.verdict), Shown())
        show(progress, outcome)
    return 0


def _for_real(run: "RunDir", case: "Case", patience: "Patience", runs: Path) -> int:
    """The same with real runs, the least of which is there already. BedFailed when there can be
    none here."""
    from harness.cli.options import Request
    from harness.cli.session import Ending, Shown, render
    from harness.run.interrupts import UNHEEDED, stoppable
    from harness.run.preflight import refuse
    from harness.shrink.real import searched
    from harness.shrink.simulated import convicted
    from harness.shrink.view import Watched, show

    wanted = convicted(run)
    refuse(Request(case.trial, case.plan_toml), runs)
    with stoppable(lambda: None, UNHEEDED):  # they come in numbers; the best is to be kept
        with Watched() as watch:
            progress, outcome = searched(case, wanted, patience, watch, runs)
        render(Ending(outcome.seed, outcome.run, outcome.verdict), Shown())
        show(progress, outcome)
    return 0
