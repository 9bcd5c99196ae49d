"""The runner: `python -m harness.run.runner RUN` carries out the trial in a run's folder.

The command `seatrial run` starts it (`harness.run.launch`) and only watches. First of all, while it
has one thread, it enters the hosts: for local ones that means namespaces of its own, in which it is
process 1. Nothing that might start a thread is imported before that.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness import registry
from harness.contracts import Hosts
from harness.errors import EXIT_BAD_REQUEST, SeatrialError
from harness.history.rundir import RunDir
from harness.run import story as trial_story
from harness.run.disk_needs import prepare_own_disks
from harness.run.parent_pipe import ParentPipe, open_parent_pipe

if TYPE_CHECKING:
    from harness.run.trial_run import TrialRun


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m harness.run.runner RUN", file=sys.stderr)
        return EXIT_BAD_REQUEST
    return run_in_hosts(RunDir.open(Path(sys.argv[1])), trial_story.run)


def run_in_hosts(
    run: RunDir,
    story: "Callable[[TrialRun], Awaitable[None]]",
    open_pipe: "Callable[[], Awaitable[ParentPipe]]" = open_parent_pipe,
) -> int:
    """Enter the hosts of the run and carry out the story there; return this process's exit code."""
    try:
        trial = run.trial()
        hosts: Hosts = registry.load("hosts", trial.hosts)(trial, run.path)
        prepare_own_disks(run.plan_text(), hosts)
        hosts.enter()
    except SeatrialError as e:
        run.update_state(error=str(e))
        return e.exit_code
    from harness.history.journal import skip_pandas  # it starts threads
    from harness.run.trial_run import keep_world_events, run_story  # it does, too

    if open_pipe is open_parent_pipe:  # this process is the run's own
        skip_pandas()
    try:
        return hosts.run(run_story(run, hosts, story, open_pipe))
    finally:
        keep_world_events(run, hosts)


if __name__ == "__main__":
    sys.exit(main())
