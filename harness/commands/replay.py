"""`seatrial replay`: the same trial with the same plan, once more."""

from pathlib import Path

import click

from harness.options import runs_option


@click.command("replay", short_help="Run a stored run's trial and plan again.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the verdict, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
def command(folder: str, runs: Path, as_json: bool, no_report: bool) -> int:
    """Run the trial of the run in DIR again, with the plan that it saved.

    Times, kinds and selectors are the saved ones; `master` is the master at that time. On
    simulated hosts it is the same run, event by event.
    """
    from harness.openable import stored_run
    from harness.session import Shown, replay

    with stored_run(folder) as run:
        return replay(run, runs, Shown(as_json=as_json, page=not no_report))
