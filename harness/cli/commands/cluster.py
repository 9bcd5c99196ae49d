"""`seatrial cluster`: start a system, inspect it, stop it."""

from pathlib import Path
from typing import Any

import click

from harness.cli.commands.run import default_fields, given_fields, trial_flags
from harness.cli.options import request, runs_option

RUNS = runs_option("The folder of the clusters.")
DIR = click.option(
    "--cluster",
    "folder",
    type=click.Path(path_type=Path),
    show_default="the newest running one",
    help="The folder of the cluster.",
)


@click.group("cluster", short_help="Start a cluster and leave it running.")
def command() -> None:
    """Start a cluster on any hosts and leave it running.

    On local hosts `up` stays in the foreground, since their nodes end with the command.
    """


@command.command("up", short_help="Start the cluster.")
@click.argument("what", default="", metavar="[TRIAL.toml | WORKLOAD]")
@trial_flags
@RUNS
def up(what: str, runs: Path, **flags: Any) -> int:
    """Start the system of a trial, without load or faults, and wait until it is healthy."""
    from harness.cli import cluster

    return cluster.up(request(what, given_fields(flags), defaults=default_fields(flags)), runs)


@command.command("status", short_help="Show the nodes and the current masters.")
@DIR
@RUNS
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status(folder: Path | None, runs: Path, as_json: bool) -> int:
    """Show every node with its address and current role."""
    from harness.cli import cluster

    return cluster.show_status(cluster.select_cluster(folder, runs), as_json)


@command.command("logs", short_help="Print the end of a node's log.")
@click.argument("node")
@click.argument("file", default="")
@click.option("--lines", type=click.IntRange(min=1), default=50, help="Number of lines.")
@click.option("--follow", "-f", is_flag=True, help="Print new lines until Ctrl-C.")
@DIR
@RUNS
def logs(node: str, file: str, lines: int, follow: bool, folder: Path | None, runs: Path) -> int:
    """Print the end of a node's log, or of another FILE of its folder."""
    from harness.cli import cluster

    return cluster.show_log(cluster.select_cluster(folder, runs), node, file, lines, follow)


@command.command(
    "shell", short_help="Open a shell on a node.", context_settings={"ignore_unknown_options": True}
)
@click.argument("node")
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
@DIR
@RUNS
def shell(node: str, words: tuple[str, ...], folder: Path | None, runs: Path) -> int:
    """Open a shell on a node, or run a command there."""
    from harness.cli import cluster

    return cluster.shell(cluster.select_cluster(folder, runs), node, words)


@command.command("down", short_help="Stop and remove the cluster.")
@DIR
@RUNS
def down(folder: Path | None, runs: Path) -> int:
    """Stop the cluster, and remove its processes, containers, rules and folders from its hosts."""
    from harness.cli import cluster

    return cluster.down(cluster.select_cluster(folder, runs))
