"""`seatrial bisect`: runs a stored run's trial and plan with several versions of the system."""

from pathlib import Path
from typing import Any

import click

from harness.cli.options import merge_tables, runs_option, trust_options


@click.command("bisect", short_help="Run a stored run's trial with several versions.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@click.option("--versions", required=True, help="The versions: 2.10.25,2.11.0,2.12.1.")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How often to run each version.",
)
@trust_options
@runs_option()
def command(
    folder: str,
    versions: str,
    repeat: int,
    bed: tuple[dict[str, Any], ...],
    client: tuple[str, ...] | None,
    trust_run: bool,
    runs: Path,
) -> int:
    """Run the trial of the run in DIR, with its stored plan, once for each version of the system's
    program, and print in which versions what was found.

    A version that cannot be had, or does not start, gets a line that says why; the others are run.
    The exit code is that of the worst run.
    """
    from harness.cli.bisect_versions import bisect
    from harness.cli.session import HostTrust
    from harness.history.run_files import open_run

    with open_run(folder) as run:
        return bisect(run, versions, repeat, runs, HostTrust(merge_tables(bed), trust_run, client))
