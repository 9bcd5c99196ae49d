"""`seatrial serve`: runs in a browser."""

from pathlib import Path

import click

from harness.options import Words


@click.command("serve", short_help="Look at runs in a browser.")
@click.argument("runs", type=click.Path(path_type=Path), default=Path("runs"), metavar="[RUNS]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8321, show_default=True)
@click.option("--allow", "names", type=Words(), default="", help="Names it answers to, as well.")
def command(runs: Path, host: str, port: int, names: tuple[str, ...]) -> int:
    """List, filter, compare and watch the runs in the folder RUNS, on a page of this machine.

    Nothing is written, and nothing but runs is shown. Others can only look when --host says so; a
    browser that comes by a name, and not by an address in numbers, has to be allowed that name.
    """
    from harness import registry

    code: int = registry.site().serve(runs, host, port, names)
    return code
