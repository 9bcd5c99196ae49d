"""The keeper: `python -m harness.cli.cluster_process RUN` raises a cluster and leaves it running.

It is a runner without a load: hosts and system come up as for a trial, then it answers at its desk
until somebody asks for the end. When its standard input ends it goes at once, like a runner; one
that shall outlive the command that started it is given a standard input that it holds itself.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import EXIT_BAD_REQUEST
from harness.history.rundir import RunDir
from harness.history.runs import held
from harness.run.runner import carry_out

if TYPE_CHECKING:
    from harness.run.trial_run import Voyage


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m harness.cli.cluster_process RUN", file=sys.stderr)
        return EXIT_BAD_REQUEST
    run = RunDir.open(Path(sys.argv[1]))
    with held(run):
        return carry_out(run, kept)


async def kept(voyage: "Voyage") -> None:
    """The story of a cluster that is kept: up, and down again when somebody asks for it."""
    from harness.cli.cluster_server import desk

    async with voyage.raised() as bed, desk(voyage.run.path, bed, voyage.stop):
        await voyage.started(bed)
        await voyage.stop.wait()
    voyage.mark("ended")


if __name__ == "__main__":
    sys.exit(main())
