"""`seatrial replay`: runs a stored run's trial and plan again."""

from pathlib import Path
from typing import Any

import click

from harness.cli.options import merge_tables, runs_option, trust_options


@click.command("replay", short_help="Run a stored run's trial and plan again.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@trust_options
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the verdict, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
def command(
    folder: str,
    bed: tuple[dict[str, Any], ...],
    client: tuple[str, ...] | None,
    trust_run: bool,
    runs: Path,
    as_json: bool,
    no_report: bool,
) -> int:
    """Run the trial of the run in DIR again, with its stored plan.

    Times, kinds and selectors are the stored ones; `master` selects the master at the time of the
    fault. On simulated hosts the new run has exactly the same events.

    A run may come from another person, so its inventory and other options of docker and SSH hosts
    are refused unless you name them with --bed or add --trust-run: an inventory decides which
    machines are accessed with your keys, and what runs there as root.
    """
    from harness.cli.session import HostTrust, ReportOptions, replay
    from harness.history.run_files import open_run

    with open_run(folder) as run:
        trusted = HostTrust(merge_tables(bed), trust_run, client)
        return replay(run, runs, ReportOptions(as_json=as_json, page=not no_report), trusted)
