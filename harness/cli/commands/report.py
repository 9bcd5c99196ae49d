"""`seatrial report`: renders a stored verdict."""

import click

from harness.cli.options import NameList
from harness.errors import BadRequest


@click.command("report", short_help="Write the reports of a checked run.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@click.option(
    "--format", "formats", type=NameList(), default="page", help="`seatrial list reports`."
)
def command(folder: str, formats: tuple[str, ...]) -> int:
    """Write the reports of the run in DIR from its verdict.json, which does not change."""
    if not formats:
        raise BadRequest("--format names no report; name some, or omit it for the page")
    from harness.cli.session import report
    from harness.history.run_files import limit_memory, open_run

    limit_memory()
    with open_run(folder, whole=True) as run:
        return report(run, formats)
