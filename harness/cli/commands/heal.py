"""`seatrial heal`: undo what a crashed run left behind."""

from pathlib import Path

import click

from harness.cli.options import runs_option
from harness.errors import BadRequest


@click.command("heal", short_help="Clean up after a crashed run.")
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--all", "every", is_flag=True, help="Heal every run below --runs.")
@runs_option("The folder of the runs.")
def command(folder: Path | None, every: bool, runs: Path) -> int:
    """Undo the faults that the run in DIR (default: the newest) injected and did not heal, and
    remove what it left on its hosts.

    SSH hosts are read from your own registry, never from DIR, which may come from another person.
    So heal a run on the machine and as the user that started it.
    """
    from harness.cli.healing import heal

    if folder and every:
        raise BadRequest("name a run or --all, not both")
    return heal(folder, runs, every)
