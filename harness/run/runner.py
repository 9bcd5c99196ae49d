"""The runner: `python -m harness.run.runner RUN` carries out the trial in a run's folder.

The command `seatrial run` starts it (`harness.run.launch`) and only watches. Here, first of all and
with one thread, the hosts are entered: for local ones that means namespaces of our own, in which
this is process 1. Nothing that might start a thread is imported before that.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness import registry
from harness.contracts import Hosts
from harness.errors import EXIT_BAD_REQUEST, SeatrialError
from harness.history.rundir import RunDir
from harness.run import story as phases
from harness.run.parent_pipe import Lifeline, held

if TYPE_CHECKING:
    from harness.run.trial_run import Voyage


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m harness.run.runner RUN", file=sys.stderr)
        return EXIT_BAD_REQUEST
    return carry_out(RunDir.open(Path(sys.argv[1])), phases.run)


def carry_out(
    run: RunDir,
    story: "Callable[[Voyage], Awaitable[None]]",
    hold: "Callable[[], Awaitable[Lifeline]]" = held,
) -> int:
    """Enter the hosts of the run and play the story there; the exit code of this process."""
    try:
        asked = run.trial()
        hosts: Hosts = registry.load("hosts", asked.hosts)(asked, run.path)
        hosts.enter()
    except SeatrialError as e:
        run.update_state(error=str(e))
        return e.exit_code
    from harness.run.trial_run import voyage
    from harness.run.world_events import (
        keep,  # after the hosts are entered, like all that follows from it
    )

    try:
        return hosts.run(voyage(run, hosts, story, hold))
    finally:
        keep(run, hosts)


if __name__ == "__main__":
    sys.exit(main())
