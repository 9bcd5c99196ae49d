"""`seatrial serve`: runs in a browser."""

from pathlib import Path

import click

from harness.cli.options import RUNS_VARIABLE, Words


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
    help="More host names to accept.",
)
@click.option("--token", is_flag=True, help="Serve only those who have the address with its token.")
def command(runs: Path, host: str, port: int, names: tuple[str, ...], token: bool) -> int:
    """List, filter, compare and watch the runs in the folder RUNS in a web browser.

    The default of RUNS is SEATRIAL_RUNS, else runs. The server writes nothing and serves only runs.
    It listens on this machine only, unless --host names another address; --allow names the host
    names under which browsers may reach it. Every user of this machine can read the runs, unless
    --token is given.
    """
    from harness import registry
    from harness.history.run_files import limit_memory

    limit_memory()
    code: int = registry.site().serve(runs, host, port, names, token)
    return code
