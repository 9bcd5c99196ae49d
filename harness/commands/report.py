"""`seatrial report`: show a stored verdict again."""

from pathlib import Path

import click

from harness.errors import BadRequest
from harness.options import Words


@click.command("report", short_help="Write the reports of a judged run.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--format", "formats", type=Words(), default="page", help="`seatrial list reports`.")
def command(folder: Path, formats: tuple[str, ...]) -> int:
    """Write the reports of the run in DIR from its verdict.json, which stays as it is."""
    if not formats:
        raise BadRequest("--format names no report; name some, or leave it out for the page")
    from harness.openable import stored_run
    from harness.session import report

    return report(stored_run(folder), formats)
