"""`seatrial suite`: many trials, each with the verdict expected of it."""

from pathlib import Path

import click


@click.command("suite", short_help="Run a list of trials with expected verdicts.")
@click.argument("file", type=click.Path(path_type=Path), metavar="SUITE.toml")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), help="Where to.")
@click.option("--summary", type=click.Path(path_type=Path), help="Append a Markdown table to it.")
def command(file: Path, runs: Path, summary: Path | None) -> int:
    """Run every trial of SUITE.toml. Exit code 0 when each ended as expected, 1 when one did not,
    2 when none differed but one was undecided."""
    from harness.suite import run_suite

    return run_suite(file, runs, summary)
