"""`seatrial replay`: the same trial with the same plan, once more."""

from pathlib import Path
from typing import Any

import click

from harness.cli.options import merged, runs_option, trusting


@click.command("replay", short_help="Run a stored run's trial and plan again.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@trusting
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the verdict, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
def command(
    folder: str,
    bed: tuple[dict[str, Any], ...],
    trust_run: bool,
    runs: Path,
    as_json: bool,
    no_report: bool,
) -> int:
    """Run the trial of the run in DIR again, with the plan that it saved.

    Times, kinds and selectors are the saved ones; `master` is the master at that time. On
    simulated hosts it is the same run, event by event.

    A run that another person sent is not trusted to choose hosts: its inventory and other
    options of docker and SSH hosts are refused, unless you name them with --bed or add
    --trust-run. An inventory decides which machines are reached with your keys, and what
    runs there as root.
    """
    from harness.cli.session import Shown, Trusted, replay
    from harness.history.run_files import stored_run

    with stored_run(folder) as run:
        trusted = Trusted(merged(bed), trust_run)
        return replay(run, runs, Shown(as_json=as_json, page=not no_report), trusted)
