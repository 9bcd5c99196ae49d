"""`python -m harness.cli.cluster_process RUN` starts a cluster and keeps it running.

It is a runner without load: hosts and system start as for a trial, then it serves requests
(`cluster_server`) until one stops it. Like a runner it ends when its standard input does; to
outlive the command that started it, it gets a standard input that it holds open itself.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import EXIT_BAD_REQUEST
from harness.history.rundir import RunDir
from harness.history.runs import locked
from harness.run.runner import run_in_hosts

if TYPE_CHECKING:
    from harness.run.trial_run import TrialRun


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m harness.cli.cluster_process RUN", file=sys.stderr)
        return EXIT_BAD_REQUEST
    run = RunDir.open(Path(sys.argv[1]))
    with locked(run):
        return run_in_hosts(run, serve)


async def serve(trial_run: "TrialRun") -> None:
    """Start the cluster, serve requests, and stop it on request."""
    from harness.cli.cluster_server import serving

    async with trial_run.nodes_started() as bed, serving(trial_run.run.path, bed, trial_run.stop):
        await trial_run.start_cluster(bed)
        await trial_run.stop.wait()
    trial_run.mark("ended")


if __name__ == "__main__":
    sys.exit(main())
