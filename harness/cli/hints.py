"""Commands for a stored run, to show in messages."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from harness.cli.prog_name import seatrial
from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.run.interrupts import stop_signals_interrupt


def check_command(run: RunDir) -> str:
    """Return the command that judges a run, quoted for a shell."""
    return f"{seatrial()} check {shlex.quote(run.name)}"


def report_command(run: RunDir) -> str:
    """Return the command that renders a stored verdict."""
    return f"{seatrial()} report {shlex.quote(run.name)}"


def recorded_run_hint(run: RunDir) -> str:
    """Say where a run without a verdict is, and which command judges it."""
    return f"the recorded run is in {run.name}; to judge it: {check_command(run)}"


@contextmanager
def naming_run(run: RunDir) -> Iterator[None]:
    """Add the run and `seatrial check` to an error that interrupts its judging."""
    try:
        with stop_signals_interrupt():
            yield
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(f"{e}; {recorded_run_hint(run)}") from e
    except BedFailed as e:
        raise type(e)(f"{e}; {recorded_run_hint(run)}") from e
    except OSError as e:
        raise BedFailed(f"this machine refused: {e}; {recorded_run_hint(run)}") from e
