"""What a running trial last said, as `status.json` in its folder, for whoever looks from outside.

The runner's status lines reach only the command that started it. Folded into one small value they
are written a few times a second, so that `seatrial serve` can show a run of any terminal. It is
gone when the run is over, for then its history tells more; and whatever happens to it changes no
run: a disk that refuses it is not worth a word.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from harness.history.rundir import RunDir
from harness.run.progress import ActiveFault, Progress

FILE = "status.json"
EVERY_S = 0.5
WIDTH = 60  # rates of the last minute
COUNTS = ("ok", "fail", "info", "polled", "p50_ms", "p99_ms")


class Bulletin:
    """`with Bulletin(run) as bulletin: bulletin.take(status)`."""

    def __init__(self, run: RunDir, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = run.path / FILE, now_s
        self._progress = Progress(began_s=now_s())
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

    def take(self, status: Mapping[str, Any]) -> None:
        """One status line; written when the last one is old enough, or when it is news."""
        now = self._now_s()
        news = self._progress.take(status, now)
        self._said = [*self._said, *news][-8:]
        if news or now >= self._next_s:
            self._next_s = now + EVERY_S
            with suppress(OSError):
                self._write(plain(self._progress, now) | {"said": self._said})

    def _write(self, fields: Mapping[str, Any]) -> None:
        temporary = self._path.with_name(f".{FILE}.tmp")
        temporary.write_text(json.dumps(fields, sort_keys=True) + "\n")
        os.replace(temporary, self._path)


def plain(progress: Progress, now_s: float) -> dict[str, Any]:
    """All that a view draws, as JSON takes it."""
    return {
        "phase": progress.phase,
        "phases": progress.phases[-20:],
        "load_s": progress.load_s(now_s),
        "counts": {name: progress.latest(name) for name in COUNTS},
        "rate": progress.rate("ok"),
        "rates": progress.rates("ok", WIDTH),
        "faults": [_fault(fault, now_s) for fault in progress.faults.values()],
        "healed": len(progress.done),
        "last_healed": progress.done[-1].words if progress.done else "",
        "masters": dict(progress.masters),
        "epochs": dict(progress.epochs),
        "in_set": list(progress.in_set),
        "controller_leader": progress.controller_leader,
        "failed": progress.failed,
    }


def _fault(fault: ActiveFault, now_s: float) -> dict[str, Any]:
    return {
        "id": fault.id,
        "words": fault.words,
        "stage": fault.stage,
        "state": fault.state,
        "for_s": now_s - fault.since_s,
    }
