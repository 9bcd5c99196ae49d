"""The command that judges a run, as everybody says it who misses a verdict."""

import shlex

from harness.rundir import RunDir


def check_command(run: RunDir) -> str:
    """Ready to be typed, whatever letters the run's path has."""
    return f"seatrial check {shlex.quote(run.name)}"
