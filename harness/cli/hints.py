"""The command that judges a run, and the sentence that names it when there is no verdict."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from harness.cli.prog_name import seatrial
from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.run.interrupts import interrupted_by_all


def check_command(run: RunDir) -> str:
    """Ready to be typed, whatever letters the run's path has."""
    return f"{seatrial()} check {shlex.quote(run.name)}"


def report_command(run: RunDir) -> str:
    """The command that renders a stored verdict."""
    return f"{seatrial()} report {shlex.quote(run.name)}"


def recorded(run: RunDir) -> str:
    """Say where a run without a verdict is, and what judges it."""
    return f"the recorded run is in {run.name}; to judge it: {check_command(run)}"


@contextmanager
def naming(run: RunDir) -> Iterator[None]:
    """Name the run and `seatrial check` in the error that ends its judging early."""
    try:
        with interrupted_by_all():
            yield
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(f"{e}; {recorded(run)}") from e
    except BedFailed as e:
        raise type(e)(f"{e}; {recorded(run)}") from e
    except OSError as e:
        raise BedFailed(f"this machine refused: {e}; {recorded(run)}") from e
