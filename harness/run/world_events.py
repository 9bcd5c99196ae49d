"""What was seen of a world that lies open to us is kept in the run's history when it is over.

However it is over: a world that stopped in the middle of a trial was watched until then, and what
was broken in it by then stays broken. So this is not a part of the trial's story, which may never
come to its end, but is done by whoever played it.
"""

import json
from contextlib import suppress

from harness.contracts import Hosts
from harness.contracts.cluster_view import Observed, Overseen
from harness.errors import SeatrialError
from harness.history.journal import Journal
from harness.history.rundir import RunDir

WRITER = "observed"


def keep(run: RunDir, hosts: Hosts) -> None:
    """Into the history, with an error in the run's state if that can not be written."""
    if not isinstance(hosts, Overseen):
        return
    rows = sorted(hosts.observed(), key=lambda seen: seen[0])
    try:
        if rows:
            _write(run, rows)
    except (SeatrialError, OSError) as e:
        with suppress(OSError):
            run.update_state(error=f"what was seen of the world could not be kept: {e}")


def _write(run: RunDir, rows: list[Observed]) -> None:
    run.journal.mkdir(parents=True, exist_ok=True)
    journal = Journal(run.journal, "events", WRITER, patient=True)
    for t, node, kind, fields in rows:
        journal.append((t, node, kind, json.dumps(fields, sort_keys=True)))
    journal.close()
