"""Healing: what a fault did is undone, and that is looked for in the world.

Undoing may fail: an agent that has much to do, a host that does not answer just now. Then it is
tried again after 0.1, 0.5 and 2 s, and nobody waits for that who can be healed at once: of several
faults all are undone, in their order, before the first is tried again, and all before the first is
looked for. A node that is gone is not waited for.

A fault that comes and goes, and broke off before it was undone, was never more than `partial`.

Looking decides. A fault that nobody saw healed is told aloud, for from then on the world is not the
one that is tried: `NOT HEALED: fault 3 (partition on broker-1): its agent ...`. Its entry in the
ledger stays open, so that `seatrial heal` can see to it; except where nodes die with the run, which
is where they share its files, and the node is gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from harness import registry
from harness.contracts import Bed, Injection, Observation, Recurring
from harness.errors import BedFailed, NodeGone
from nemesis._runner.interval import Interval
from nemesis._runner.ledger import Ledger
from nemesis._runner.timing import timing

AGAIN_S = (0.1, 0.5, 2.0)  # before each further attempt
NOT_HEALED = "NOT HEALED"
UNSEEN = "it was undone, but not seen healed"


class Healer:
    """Heals faults and records it. May be asked again for those for which it was cancelled."""

    def __init__(self, bed: Bed, ledger: Ledger) -> None:
        self._bed, self._ledger = bed, ledger
        self._broken: list[Exception] = []  # what nobody could foresee

    async def heal(self, intervals: Sequence[Interval], looks_s: float | None = None) -> None:
        """In this order, each whatever becomes of the others. `looks_s`: how long to look for all.

        Raises at the end if it could not be recorded, or for a mistake of ours.
        """
        await self._undo(intervals)
        with suppress(TimeoutError):
            async with asyncio.timeout(looks_s):
                await asyncio.gather(*map(self._look, intervals))
        for interval in intervals:
            if interval.injection:
                self._give_up(interval, f"it could not be checked within {looks_s:g} s")
        if self._broken:
            raise self._broken[0]

    async def _undo(self, intervals: Sequence[Interval]) -> None:
        why: dict[int, Exception | None] = {}
        left = [interval for interval in intervals if interval.injection]
        for pause_s in (0.0, *AGAIN_S):
            if left and pause_s:
                await self._bed.sleep(pause_s)
            for interval in left:
                why[interval.number] = await self._undone(interval)
            left = [i for i in left if why[i.number] and not isinstance(why[i.number], NodeGone)]
        self._broken += [e for e in why.values() if e and not isinstance(e, BedFailed)]

    async def _undone(self, interval: Interval) -> Exception | None:
        """What went wrong, if anything."""
        if interval.row["heal"] is None:
            self._mark(interval, heal=self._bed.now_ns())
        try:
            assert interval.injection
            with timing(interval.evidence.setdefault("healed_ms", {})):
                await interval.injection.__aexit__(None, None, None)
        except asyncio.CancelledError:
            self._failed(interval, "its undoing was broken off")
            raise
        except Exception as e:
            interval.gone = isinstance(e, NodeGone)
            self._failed(interval, registry.blamed(e))
            return e
        interval.evidence.pop("healing", None)
        return None

    def _failed(self, interval: Interval, why: str) -> None:
        """Recorded at once: there may be no time to look."""
        interval.evidence["healing"] = {"state": "failed", "error": why}
        self._mark(interval)

    async def _look(self, interval: Interval) -> None:
        if interval.injection is None:
            return
        injection = interval.injection
        seen = await self._seen(interval, injection)
        if isinstance(injection, Recurring) and injection.broke_off:
            interval.broke_off(injection.broke_off)
        failed = interval.evidence.get("healing", {})
        interval.evidence["healing"] = {"state": seen.state, **seen.evidence}
        if seen.state != "installed":
            interval.evidence["healing"] |= failed
            told = interval.evidence["healing"]
            self._give_up(interval, told.get("error") or told.get("not_seen") or UNSEEN)
            return
        interval.injection = None
        self._mark(interval, healed=self._bed.now_ns())
        self._close(interval)

    async def _seen(self, interval: Interval, injection: Injection) -> Observation:
        try:
            return await injection.observe_healed()
        except Exception as e:
            if not isinstance(e, BedFailed):
                self._broken.append(e)
            interval.gone |= isinstance(e, NodeGone)
            return Observation("failed", {"not_seen": registry.blamed(e)})

    def _give_up(self, interval: Interval, why: str) -> None:
        words, interval.injection = f"{interval.words}: {why}", None
        if interval.gone and self._bed.hosts.shares_files:
            self._close(interval)
            self._told(self._bed.record.note, f"not seen healed: {words}")
        else:
            self._told(self._bed.record.alarm, f"{NOT_HEALED}: {words}")
        self._mark(interval)

    # ------------------------------------------------------- records, which may be impossible

    def _mark(self, interval: Interval, **changes: Any) -> None:
        row = interval.changed(**changes)
        self._told(self._bed.record.fault, row)

    def _close(self, interval: Interval) -> None:
        self._told(self._ledger.close_entry, interval.number)

    def _told(self, tell: Callable[[Any], None], what: Any) -> None:
        """A journal that its disk refuses is `BedFailed`, and a ledger an OSError: nothing of that
        keeps anybody broken."""
        try:
            tell(what)
        except (BedFailed, OSError) as e:
            self._broken.append(e)
