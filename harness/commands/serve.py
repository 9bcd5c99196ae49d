"""`seatrial serve`: runs in a browser."""

from pathlib import Path

import click

from harness.options import RUNS_VARIABLE, Words


@click.command("serve", short_help="Browse runs in a web browser.")
@click.argument(
    "runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    envvar=RUNS_VARIABLE,
    metavar="[RUNS]",
)
@click.option("--host", default="127.0.0.1", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8321, help="The port to listen on.")
@click.option(
    "--allow",
    "names",
    type=Words(),
    default="",
    show_default="none",
    help="Names it answers to, as well.",
)
def command(runs: Path, host: str, port: int, names: tuple[str, ...]) -> int:
    """List, filter, compare and watch the runs in the folder RUNS, on a page of this machine.

    Without RUNS it is the folder in SEATRIAL_RUNS, else runs. Nothing is written, and nothing but
    runs is shown. Others can only look when --host says so; a browser that comes by a name, and not
    by an address in numbers, has to be allowed that name.
    """
    from harness import registry

    code: int = registry.site().serve(runs, host, port, names)
    return code
