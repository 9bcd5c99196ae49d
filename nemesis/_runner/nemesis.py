"""The nemesis: carries out a plan, fault by fault, and records the result of each.

Every fault is a task of its own, so faults may overlap. Each passes the same stages: its conditions
hold (`begin`), its selectors are resolved, its intent is written to the ledger, it is applied
(`applied`), its effect is observed (`observed`, and whether it was `installed`, `partial` or
`failed`), it lasts, it is healed (`heal`) and the healing is observed (`healed`, absent if it was
not seen). Each stage is a row in the history as soon as it is passed.

When the run is stopped or cancelled, or can no longer be recorded, the faults in the world are
healed, the newest first (`healing`). A failure of the test bed in one fault, such as an agent that
is gone, is that fault's state and does not end the others.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from random import Random
from typing import Any

from harness.contracts import Injection, TestBed
from harness.errors import BedFailed, NodeGone, error_text
from nemesis._plan.conditions import Conditions
from nemesis._plan.plan import Plan
from nemesis._process.victims import NothingToHit
from nemesis._runner.condition_waiter import ConditionNotMet, ConditionWaiter
from nemesis._runner.healing import Healer
from nemesis._runner.interval import Interval, first_row
from nemesis._runner.ledger import FaultLedger, LedgerEntry
from nemesis._runner.target_resolver import TargetResolver
from nemesis._runner.timing import timed_agents, timing

FINAL_CHECK_S = 60.0  # for all that is healed at the end, together


async def carry_out(
    plan: Plan,
    bed: TestBed,
    ledger_path: "PathLike[str]",
    stop: asyncio.Event,
    rng: Random,
    load_began_ns: int,
) -> None:
    """Carry out the plan; return when every fault has been healed, or soon after `stop`."""
    ledger = FaultLedger(ledger_path, durable=not bed.hosts.shares_files)
    nemesis = _Nemesis(plan, bed, ledger, rng, load_began_ns)
    faults = [asyncio.create_task(nemesis.run(interval)) for interval in nemesis.intervals]
    watch = asyncio.create_task(_cancel_on(stop, faults))
    try:
        await asyncio.gather(*faults)
    except asyncio.CancelledError:
        if not stop.is_set() or _cancelled():
            raise
    finally:
        for task in (watch, *faults):
            task.cancel()
        await asyncio.gather(watch, *faults, return_exceptions=True)
        try:
            await nemesis.heal_all()
        finally:
            ledger.close()


def _cancelled() -> bool:
    """Return whether this task was cancelled from outside, and not just its faults by `stop`."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel_on(stop: asyncio.Event, tasks: Sequence["asyncio.Task[None]"]) -> None:
    await stop.wait()
    for task in tasks:
        task.cancel()


class _Nemesis:
    """The faults of one plan, and what they share."""

    def __init__(
        self, plan: Plan, bed: TestBed, ledger: FaultLedger, rng: Random, load_began_ns: int
    ) -> None:
        self.intervals = [
            Interval(
                number,
                planned,
                Conditions.of(planned),
                Random(rng.getrandbits(64)),
                first_row(number, planned),
            )
            for number, planned in enumerate(plan)
        ]
        self._bed = replace(bed, agents=timed_agents(bed.agents, bed.now_ns))
        self._ledger = ledger
        self._resolver = TargetResolver(self._bed, self.intervals)
        self._waiter = ConditionWaiter(self._bed, self.intervals, self._resolver, load_began_ns)
        self._healer = Healer(self._bed, ledger)
        self._begun: list[Interval] = []
        for interval in self.intervals:
            bed.record.fault(interval.row)

    async def run(self, interval: Interval) -> None:
        """Take one fault through all its stages."""
        try:
            await self._inject(interval)
            self._settle(interval)
            if interval.injection:
                if interval.row["applied"] is not None:  # otherwise it is healed at once
                    with suppress(NodeGone):  # in `until`; the run is ended early anyway
                        await self._waiter.wait_to_end(interval)
                await self._healer.heal([interval])
        finally:
            interval.over.set()
            if interval.injection is None and interval in self._begun:
                self._begun.remove(interval)

    async def heal_all(self) -> None:
        """Heal what is still in the world, newest first, even if it cannot be recorded."""
        await self._healer.heal(self._begun[::-1], FINAL_CHECK_S)

    async def _inject(self, interval: Interval) -> None:
        """Wait for the beginning, resolve the target, apply the fault and observe it.

        `interval.injection` is set afterwards if the fault is, or may be, in the world.
        """
        try:
            await self._waiter.wait_to_begin(interval)
            self._mark(interval, begin=self._bed.now_ns())
            injection = await self._resolver.resolve(interval)
            if names := self._resolver.record_hit(interval, injection.targets):
                await self._apply(interval, injection, names)
                await self._observe(interval, injection)
            else:
                self._fail(interval, self._resolver.why_none(interval, self._begun))
        except ConditionNotMet as e:
            self._mark(interval, begin=self._bed.now_ns())
            self._fail(interval, str(e))
        except NothingToHit as e:
            self._fail(interval, str(e))
            interval.injection = None
            self._resolver.record_hit(interval, {})
            self._ledger.close_entry(interval.number)
        except BedFailed as e:
            self._fail(interval, str(e) or error_text(e))
        if not interval.injection and interval.row["begin"] is not None:
            # nothing is in the world, so faults that wait for the end of this one may go on
            now_ns = self._bed.now_ns()
            self._mark(interval, heal=now_ns, healed=now_ns)

    async def _apply(self, interval: Interval, injection: Injection, names: Sequence[str]) -> None:
        planned = interval.planned
        self._ledger.intend(LedgerEntry(interval.number, planned.kind, names, dict(planned.params)))
        interval.injection = injection
        self._begun.append(interval)
        try:
            with timing(interval.evidence.setdefault("applied_ms", {})):
                await injection.__aenter__()
        finally:
            self._resolver.record_hit(interval, injection.targets)
        self._mark(interval, applied=self._bed.now_ns())
        self._settle(interval)

    async def _observe(self, interval: Interval, injection: Injection) -> None:
        observation = await injection.observe()
        interval.evidence["effect"] = observation.evidence
        if observation.measured:
            interval.evidence["measured"] = observation.measured
        self._mark(interval, observed=self._bed.now_ns(), state=observation.state)

    def _settle(self, interval: Interval) -> None:
        """Note that the fault was applied, or never will be."""
        if not interval.settled.is_set():
            interval.settled_ns = self._bed.now_ns()
            interval.acknowledged = self._bed.acknowledged()
            interval.event_count = self._waiter.feed.count
            interval.settled.set()

    def _fail(self, interval: Interval, why: str) -> None:
        interval.evidence["error"] = why
        self._mark(interval, state="failed")

    def _mark(self, interval: Interval, **changes: Any) -> None:
        """Record the interval with these changes."""
        self._bed.record.fault(interval.changed(**changes))
