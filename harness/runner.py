"""The runner: `python -m harness.runner RUN` carries out the trial in a run's folder.

The command `seatrial run` starts it (`harness.launch`) and only watches. Here, first of all and
with one thread, the hosts are entered: for local ones that means namespaces of our own, in which
this is process 1. Nothing that might start a thread is imported before that.
"""

import sys
from pathlib import Path

from harness import registry
from harness.contracts import Hosts
from harness.errors import EXIT_BAD_REQUEST, SeatrialError
from harness.rundir import RunDir


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m harness.runner RUN", file=sys.stderr)
        return EXIT_BAD_REQUEST
    run = RunDir.open(Path(sys.argv[1]))
    try:
        trial = run.trial()
        hosts: Hosts = registry.load("hosts", trial.hosts)(trial, run.path)
        hosts.enter()
    except SeatrialError as e:
        run.update_state(error=str(e))
        return e.exit_code
    return _sail(run, hosts)


def _sail(run: RunDir, hosts: Hosts) -> int:
    from harness.voyage import voyage  # after the hosts are entered, like all that follows from it

    return hosts.run(voyage(run, hosts))


if __name__ == "__main__":
    sys.exit(main())
