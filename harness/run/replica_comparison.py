"""Replicas compared while the load goes on: between two faults, whenever the cluster is whole.

What replicas hold is compared at the end of every run, message by message. Two that had parted in
the middle, and were brought together again by cutting one of them, agree by then. So a trial with
`compare_replicas` also asks the system, once in every stretch without a fault, for a digest of each
replica's log up to where all of them must hold the same. Each answer is the event `compared`; a run
that has none is *unknown* (checkers/replicas.py).

The nemesis records what becomes of each fault; `Calm` listens, and knows when nothing is broken.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from harness.contracts import Bed, Recorder
from harness.errors import BedFailed
from harness.history.notes import NOT_COMPARED

LOOK_EVERY_S = 0.25


@runtime_checkable
class Comparing(Protocol):
    """A system whose replicas can be compared while it serves."""

    async def compared(self, bed: Bed) -> Mapping[str, Any] | None:
        """By broker set: {"bytes": n, "digests": {node: digest}}; None when there is nothing to
        compare yet."""
        ...


class Calm:
    """A recorder that passes everything on, and listens to what becomes of faults.

    `stretch` is the number of the stretch without any fault that lasts now; None while one is in
    the world.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._open: set[int] = set()
        self._number = 0

    @property
    def stretch(self) -> int | None:
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


async def comparing(bed: Bed, calm: Calm) -> None:
    """For ever: compare once in every calm stretch, as soon as the cluster is whole in it."""
    looked = -1
    while True:
        number = calm.stretch
        if number is not None and number != looked:
            try:
                looked = number if await _compared(bed, calm, number) else looked
            except BedFailed as e:
                bed.record.note(f"{NOT_COMPARED} stretch {number}: {e}")
                looked = number
        await bed.sleep(LOOK_EVERY_S)


async def _compared(bed: Bed, calm: Calm, number: int) -> bool:
    """Whether it was done."""
    if not isinstance(bed.system, Comparing) or not (await bed.standing()).redundant:
        return False
    found = await bed.system.compared(bed)
    if found is None:
        return False
    bed.record.event(bed.now_ns(), "", "compared", {"stretch": number, "sets": dict(found)})
    return True
