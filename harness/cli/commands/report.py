"""`seatrial report`: show a stored verdict again."""

import click

from harness.cli.options import Words
from harness.errors import BadRequest


@click.command("report", short_help="Write the reports of a checked run.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@click.option("--format", "formats", type=Words(), default="page", help="`seatrial list reports`.")
def command(folder: str, formats: tuple[str, ...]) -> int:
    """Write the reports of the run in DIR from its verdict.json, which does not change."""
    if not formats:
        raise BadRequest("--format names no report; name some, or leave it out for the page")
    from harness.cli.session import report
    from harness.history.run_files import limit_memory, stored_run

    limit_memory()
    with stored_run(folder, whole=True) as run:
        return report(run, formats)
