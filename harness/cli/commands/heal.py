"""`seatrial heal`: undo what a crashed run left behind."""

from pathlib import Path

import click

from harness.cli.options import runs_option
from harness.errors import BadRequest


@click.command("heal", short_help="Clean up after a crashed run.")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--all", "every", is_flag=True, help="Every run below --runs.")
@runs_option("The folder of the runs.")
def command(folder: Path | None, every: bool, runs: Path) -> int:
    """Undo the faults that the run in DIR (default: the newest) injected and did not undo, and
    remove what it left on its hosts.

    The SSH hosts come from a registry of yours, never from DIR, which another person may have
    sent: heal a run as the user and on the machine that started it.
    """
    from harness.cli.healing import heal

    if folder and every:
        raise BadRequest("name a run or --all, not both")
    return heal(folder, runs, every)
