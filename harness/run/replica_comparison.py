"""Compare replicas under load: between two faults, when the cluster has full redundancy.

At the end of every run replicas are compared message by message. Two that diverged in the middle,
and were reconciled by truncating one of them, agree by then. So a trial with `compare_replicas`
also asks the system, once in every period without a fault, for a digest of each replica's log up to
where all of them must hold the same. Each answer is the event `compared`; a run that has none is
*unknown* (checkers/replicas.py).

The nemesis records the state of each fault; `QuietPeriodRecorder` listens, and knows when none is
active.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from harness.contracts import Recorder, TestBed
from harness.errors import BedFailed
from harness.history.notes import NOT_COMPARED

LOOK_EVERY_S = 0.25


@runtime_checkable
class ReplicaComparingSystem(Protocol):
    """A system whose replicas can be compared while it serves."""

    async def compare_replicas(self, bed: TestBed) -> Mapping[str, Any] | None:
        """Return by broker set: {"bytes": n, "digests": {node: digest}}; None if there is nothing
        to compare yet."""
        ...


class QuietPeriodRecorder:
    """A recorder that passes everything on, and tracks which faults are active.

    `quiet_period` is the number of the current period without any fault; None while one is active.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._open: set[int] = set()
        self._number = 0

    @property
    def quiet_period(self) -> int | None:
        return None if self._open else self._number

    def fault(self, row: Mapping[str, Any]) -> None:
        number, was_open = int(row["id"]), bool(self._open)
        never = row["state"] == "failed" and row["applied"] is None
        if row["begin"] is None or row["heal"] is not None or never:
            self._open.discard(number)
        else:
            self._open.add(number)
        if was_open and not self._open:
            self._number += 1
        self._record.fault(row)

    def note(self, text: str) -> None:
        self._record.note(text)

    def alarm(self, text: str) -> None:
        self._record.alarm(text)

    def event(self, t: int, node: str, kind: str, fields: Mapping[str, Any]) -> None:
        self._record.event(t, node, kind, fields)

    def replicas(self, node: str, rows: Sequence[tuple[str, int, int, int, int]]) -> None:
        self._record.replicas(node, rows)


async def compare_in_quiet_periods(bed: TestBed, calm: QuietPeriodRecorder) -> None:
    """Compare once in every quiet period, as soon as the cluster has full redundancy in it; until
    cancelled."""
    looked = -1
    while True:
        number = calm.quiet_period
        if number is not None and number != looked:
            try:
                looked = number if await _compare_once(bed, calm, number) else looked
            except BedFailed as e:
                bed.record.note(f"{NOT_COMPARED} stretch {number}: {e}")
                looked = number
        await bed.sleep(LOOK_EVERY_S)


async def _compare_once(bed: TestBed, calm: QuietPeriodRecorder, number: int) -> bool:
    """Compare now if possible; return whether it was done."""
    if (
        not isinstance(bed.system, ReplicaComparingSystem)
        or not (await bed.cluster_state()).redundant
    ):
        return False
    comparison = await bed.system.compare_replicas(bed)
    if comparison is None:
        return False
    bed.record.event(bed.now_ns(), "", "compared", {"stretch": number, "sets": dict(comparison)})
    return True
