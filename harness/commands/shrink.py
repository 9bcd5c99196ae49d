"""`seatrial shrink`: the shortest plan with which a simulated run still fails."""

from pathlib import Path

import click

from harness.options import Duration


@click.command("shrink", short_help="Reduce a failing simulated run to what matters.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--within", "within_s", type=Duration(), default="5m", help="End after so long: 5m.")
@click.option("--luck", type=click.IntRange(1, 1000), default=8, help="Chances of a candidate.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, help="Worker processes.")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), help="Where to.")
def command(folder: Path, within_s: float, luck: int, jobs: int, runs: Path) -> int:
    """Leave out faults, time, nodes and load of the run in DIR as long as it fails the same way.

    Each candidate has several chances, with other packet luck. The shortest that was found becomes
    a run of its own; its plan is printed, and its story. Ctrl-C keeps the best so far, as do
    SIGTERM and a terminal that is closed.
    """
    from harness.rundir import RunDir
    from harness.runs import writable
    from harness.session import Ending, Shown, render
    from harness.shrink_view import Watched, show
    from harness.shrinking import Patience, failing, kept, searched
    from harness.stopping import UNHEEDED, stoppable

    case = failing(RunDir.open(folder))
    writable(runs)
    with stoppable(lambda: None, UNHEEDED):  # they come in numbers; the best is to be kept
        with Watched() as watch:
            progress = searched(case, Patience(within_s, luck, jobs), watch)
        outcome = kept(progress.tries.best, runs)
        render(Ending(outcome.seed, outcome.run, outcome.verdict), Shown())
        show(progress, outcome)
    return 0
