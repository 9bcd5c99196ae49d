"""The state of a running trial, as `status.json` in its folder, for other processes.

The runner's status lines reach only the command that started it. That command folds them into one
small value and writes it a few times a second, so that `seatrial serve` can show the runs of any
terminal. The file is removed when the run is over, since its history says more. Errors are ignored:
a disk that refuses it must not change the run.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from harness.history.rundir import RunDir
from harness.run.progress import ActiveFault, TrialProgress
from harness.text.own_words import IN_STATE

FILE = "status.json"
EVERY_S = 0.5
WIDTH = 60  # rates of the last minute
COUNTS = ("ok", "fail", "info", "polled", "p50_ms", "p99_ms")


class StatusFile:
    """`with StatusFile(run) as status_file: status_file.update(status)`."""

    def __init__(self, run: RunDir, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = run.path / FILE, now_s
        self._progress = TrialProgress(began_s=now_s())
        self._said: list[str] = []
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def update(self, status: Mapping[str, Any]) -> None:
        """Take one status line; write the file if the last one is old enough, or something
        happened."""
        now = self._now_s()
        news = self._progress.update(status, now)
        self._said = [*self._said, *news][-8:]
        if news or now >= self._next_s:
            self._next_s = now + EVERY_S
            with suppress(OSError):
                self._write(progress_json(self._progress, now) | {"said": self._said})

    def _write(self, fields: Mapping[str, Any]) -> None:
        temporary = self._path.with_name(f".{FILE}.tmp")
        temporary.write_text(json.dumps(fields, sort_keys=True) + "\n")
        os.replace(temporary, self._path)


def progress_json(progress: TrialProgress, now_s: float) -> dict[str, Any]:
    """Return everything that a view draws, as JSON."""
    own = {IN_STATE: dict(progress.words.table)} if progress.words else {}
    return {
        **own,
        "phase": progress.phase,
        "phases": progress.phases[-20:],
        "load_s": progress.load_s(now_s),
        "counts": {name: progress.latest(name) for name in COUNTS},
        "rate": progress.rate("ok"),
        "rates": progress.rates("ok", WIDTH),
        "faults": [_fault(fault, now_s) for fault in progress.faults.values()],
        "healed": len(progress.done),
        "last_healed": progress.done[-1].label if progress.done else "",
        "masters": dict(progress.masters),
        "epochs": dict(progress.epochs),
        "in_set": list(progress.in_set),
        "controller_leader": progress.controller_leader,
        "failed": progress.failed,
    }


def _fault(fault: ActiveFault, now_s: float) -> dict[str, Any]:
    return {
        "id": fault.id,
        "words": fault.label,
        "stage": fault.stage,
        "state": fault.state,
        "for_s": now_s - fault.since_s,
    }
