"""Healing: undo what a fault did, and observe that it is gone.

Undoing may fail, for example while an agent is busy or a host does not answer. It is then retried
after 0.1, 0.5 and 2 s, which delays no other fault: of several faults all are undone, in order,
before the first retry, and all before the first observation. A node that is gone is not retried.

A recurring fault that broke off before it was undone was never more than `partial`.

The observation decides. A fault that was not observed healed is reported as an alarm, because the
world now differs from the one under test: `NOT HEALED: fault 3 (partition on broker-1): its agent
...`. Its ledger entry stays open for `seatrial heal`, unless the node is gone and nodes die with
the run, as they do where they share its files.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from harness import registry
from harness.contracts import Injection, Observation, RecurringInjection, TestBed
from harness.errors import BedFailed, NodeGone
from nemesis._runner.interval import Interval
from nemesis._runner.ledger import FaultLedger
from nemesis._runner.timing import timing

RETRY_S = (0.1, 0.5, 2.0)  # before each further attempt
NOT_HEALED = "NOT HEALED"
UNSEEN = "it was undone, but not seen healed"


class Healer:
    """Heals faults and records it. If it was cancelled, it may be called again for the same."""

    def __init__(self, bed: TestBed, ledger: FaultLedger) -> None:
        self._bed, self._ledger = bed, ledger
        self._errors: list[Exception] = []  # failed records, and bugs in faults

    async def heal(self, intervals: Sequence[Interval], check_s: float | None = None) -> None:
        """Undo the faults in this order, then observe all of them within `check_s`.

        A failure of one does not keep the others from being healed. Raises at the end if a record
        could not be written, or for a bug.
        """
        await self._undo(intervals)
        with suppress(TimeoutError):
            async with asyncio.timeout(check_s):
                await asyncio.gather(*map(self._check, intervals))
        for interval in intervals:
            if interval.injection:
                self._give_up(interval, f"it could not be checked within {check_s:g} s")
        if self._errors:
            raise self._errors[0]

    async def _undo(self, intervals: Sequence[Interval]) -> None:
        why: dict[int, Exception | None] = {}
        left = [interval for interval in intervals if interval.injection]
        for pause_s in (0.0, *RETRY_S):
            if left and pause_s:
                await self._bed.sleep(pause_s)
            for interval in left:
                why[interval.number] = await self._undo_one(interval)
            left = [i for i in left if why[i.number] and not isinstance(why[i.number], NodeGone)]
        self._errors += [e for e in why.values() if e and not isinstance(e, BedFailed)]

    async def _undo_one(self, interval: Interval) -> Exception | None:
        """Undo a fault; return the error, if any."""
        if interval.row["heal"] is None:
            self._mark(interval, heal=self._bed.now_ns())
        try:
            assert interval.injection
            with timing(interval.evidence.setdefault("healed_ms", {})):
                await interval.injection.__aexit__(None, None, None)
        except asyncio.CancelledError:
            self._note_failure(interval, "its undoing was broken off")
            raise
        except Exception as e:
            interval.gone = isinstance(e, NodeGone)
            self._note_failure(interval, registry.blame(e))
            return e
        interval.evidence.pop("healing", None)
        return None

    def _note_failure(self, interval: Interval, why: str) -> None:
        """Record a failure at once: there may be no time to observe the healing."""
        interval.evidence["healing"] = {"state": "failed", "error": why}
        self._mark(interval)

    async def _check(self, interval: Interval) -> None:
        """Observe whether a fault is healed, and record the result."""
        if interval.injection is None:
            return
        injection = interval.injection
        seen = await self._observe(interval, injection)
        if isinstance(injection, RecurringInjection) and injection.broke_off:
            interval.broke_off(injection.broke_off)
        failure = interval.evidence.get("healing", {})
        interval.evidence["healing"] = {"state": seen.state, **seen.evidence}
        if seen.state != "installed":
            interval.evidence["healing"] |= failure
            healing = interval.evidence["healing"]
            self._give_up(interval, healing.get("error") or healing.get("not_seen") or UNSEEN)
            return
        interval.injection = None
        self._mark(interval, healed=self._bed.now_ns())
        self._close(interval)

    async def _observe(self, interval: Interval, injection: Injection) -> Observation:
        try:
            return await injection.observe_healed()
        except Exception as e:
            if not isinstance(e, BedFailed):
                self._errors.append(e)
            interval.gone |= isinstance(e, NodeGone)
            return Observation("failed", {"not_seen": registry.blame(e)})

    def _give_up(self, interval: Interval, why: str) -> None:
        text, interval.injection = f"{interval.description}: {why}", None
        if interval.gone and self._bed.hosts.shares_files:
            self._close(interval)
            self._try(self._bed.record.note, f"not seen healed: {text}")
        else:
            self._try(self._bed.record.alarm, f"{NOT_HEALED}: {text}")
        self._mark(interval)

    # ----------------------------------------------------------------- records, which may fail

    def _mark(self, interval: Interval, **changes: Any) -> None:
        self._try(self._bed.record.fault, interval.changed(**changes))

    def _close(self, interval: Interval) -> None:
        self._try(self._ledger.close_entry, interval.number)

    def _try(self, record: Callable[[Any], None], value: Any) -> None:
        """Write a record. An error does not stop the healing.

        A journal on a full disk raises BedFailed, a ledger OSError.
        """
        try:
            record(value)
        except (BedFailed, OSError) as e:
            self._errors.append(e)
