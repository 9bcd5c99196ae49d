"""`seatrial serve`: a web interface to the runs."""

from pathlib import Path

import click

from harness.cli.options import RUNS_VARIABLE, NameList


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
    type=NameList(),
    default="",
    show_default="none",
    help="Additional host names to accept.",
)
@click.option("--token", is_flag=True, help="Require a token, which is part of the address.")
def command(runs: Path, host: str, port: int, names: tuple[str, ...], token: bool) -> int:
    """List, filter, compare and watch the runs in the folder RUNS in a web browser.

    The default of RUNS is SEATRIAL_RUNS, else runs. The server is read-only. It listens on
    this machine only, unless --host gives another address; --allow adds host names that browsers
    may use. Every user of this machine can read the runs, unless --token is given.
    """
    from harness import registry
    from harness.history.run_files import limit_memory

    limit_memory()
    code: int = registry.site().serve(runs, host, port, names, token)
    return code
