"""The nemesis: carries out a plan, fault by fault, and records what became of each.

Every fault is a task of its own, so faults may overlap, and each passes the same stages: its moment
comes (`begin`), its selectors are resolved, its intent is in the ledger, it is applied (`applied`),
its effect is looked for (`observed`, and whether it was `installed`, `partial` or `failed`), it
lasts, it is healed (`heal`) and the healing is looked for (`healed`, absent when it was not seen).
Each stage is a row in the history as soon as it is passed.

When the run is stopped or cancelled, or can no longer be recorded, what is in the world is healed
in the reverse order of its beginning (`healing`). That the bed itself fails in one fault (an agent
that is gone) is that fault's state, not the end of the others.
"""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from random import Random
from typing import Any

from harness import plans, registry
from harness.contracts import CLIENT, Bed, Injection, Node, Scene, Standing
from harness.errors import BedFailed, NodeGone, in_words
from nemesis._network.rules import Fabric
from nemesis._plan import targets as _targets
from nemesis._plan.kinds import hits_clients
from nemesis._plan.overlaps import hold
from nemesis._plan.plan import Plan
from nemesis._process.victims import NeverInForce
from nemesis._runner import conditions as _conditions
from nemesis._runner.conditions import Acks, Event, Stands, State
from nemesis._runner.event_feed import Hearing
from nemesis._runner.healing import Healer
from nemesis._runner.interval import Interval, as_json, first_row
from nemesis._runner.ledger import Entry, Ledger
from nemesis._runner.timing import timed, timing
from nemesis._runner.waiting import NS, reached, sleep_until

AIM_AGAIN_S = 0.05  # when nobody plays the part aimed at
LOOK_AGAIN_S = 0.05  # at how the cluster stands
LAST_LOOKS_S = 60.0  # for what is healed at the end, all together


class _Missed(Exception):
    """What a fault waits for did not come."""


async def carry_out(
    plan: Plan,
    bed: Bed,
    ledger_path: "PathLike[str]",
    stop: asyncio.Event,
    rng: Random,
    load_began_ns: int,
) -> None:
    """Carry out the plan; returns when every fault has been healed, or soon after `stop`."""
    ledger = Ledger(ledger_path, durable=not bed.hosts.shares_files)
    nemesis = _Nemesis(plan, bed, ledger, rng, load_began_ns)
    faults = [asyncio.create_task(nemesis.live(interval)) for interval in nemesis.intervals]
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
    """Whether somebody cancelled us, and not we our faults."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _cancel_on(stop: asyncio.Event, tasks: Sequence["asyncio.Task[None]"]) -> None:
    await stop.wait()
    for task in tasks:
        task.cancel()


class _Nemesis:
    def __init__(
        self, plan: Plan, bed: Bed, ledger: Ledger, rng: Random, load_began_ns: int
    ) -> None:
        self.bed = replace(bed, agents=timed(bed.agents, bed.now_ns))
        self.ledger, self.load_began_ns = ledger, load_began_ns
        self.fabric = Fabric(bed.nodes, self.bed.agents, bed.distances)
        self.hearing = Hearing(bed, any(_conditions.listens(planned) for planned in plan))
        self.healer = Healer(self.bed, ledger)
        self.held: set[str] = set()
        self.begun: list[Interval] = []
        self.intervals = [
            Interval(number, planned, Random(rng.getrandbits(64)), first_row(number, planned))
            for number, planned in enumerate(plan)
        ]
        self.victims: dict[str, Collection[str]] = {_word(each): () for each in self.intervals}
        for interval in self.intervals:
            bed.record.fault(interval.row)

    # ------------------------------------------------------------------- one fault's life

    async def live(self, interval: Interval) -> None:
        try:
            await self._lived(interval)
        finally:
            interval.over.set()

    async def _lived(self, interval: Interval) -> None:
        try:
            await self._moment(interval)
            self._mark(interval, begin=self.bed.now_ns())
            await self._apply(interval)
            if interval.injection:
                await self._observe(interval, interval.injection)
        except (BedFailed, _Missed) as e:
            self._fail(interval, str(e) or in_words(e))
            if isinstance(e, NeverInForce):
                self._hit_nobody(interval)
            if not interval.injection:
                self._never_was(interval)
        self._settle(interval)
        if interval.injection:
            if interval.row["applied"] is not None:  # else it is undone at once
                with suppress(NodeGone):  # whom its end waits for; the run is ended early anyway
                    await self._last(interval)
            await self.healer.heal([interval])

    async def _moment(self, interval: Interval) -> None:
        """Sleep until the plan's time, then wait for its condition. _Missed: it did not come."""
        planned = interval.planned
        await sleep_until(self.bed, self.load_began_ns + planned.at_s * NS)
        match _conditions.after(planned.after):
            case Acks() as acks:
                await self._acknowledged(interval, acks)
            case Event() as event:
                await self._told(interval, event)
            case State() as state:
                await self._stands(interval, state)

    async def _acknowledged(self, interval: Interval, acks: Acks) -> None:
        since_ns, before = await self._previous(interval)

        async def enough() -> bool:
            return self.bed.acknowledged() >= before + acks.count

        await reached(self.bed, enough, since_ns + acks.within_s * NS)

    async def _told(self, interval: Interval, event: Event) -> None:
        began_ns, count = self.bed.now_ns(), self.hearing.count
        if interval.number:
            settled_ns, _ = await self._previous(interval)
            began_ns = max(began_ns, settled_ns)
            count = max(count, self.intervals[interval.number - 1].heard)
        until_ns = began_ns + event.within_s * NS
        heard = await self.hearing.first(event, count, until_ns, self._by(interval, event))
        if heard is None:
            self._mark(interval, begin=self.bed.now_ns())
            raise _Missed(f"no node reported the event {event} within {event.within_s:g} s")
        interval.teller = heard.told.node
        interval.evidence["told"] = {"by": heard.told.node, "at": heard.at_ns}
        await sleep_until(self.bed, heard.at_ns + event.more_s * NS)

    async def _stands(self, interval: Interval, state: State) -> None:
        """Wait until cluster and plan stand as the condition says."""
        began_ns = self.bed.now_ns()
        settled_ns, _ = await self._previous(interval)
        before = await self._stood(interval, began_ns)
        until_ns = max(began_ns, settled_ns) + state.within_s * NS

        async def holds() -> bool:
            if not all(each.over.is_set() for each in self._waited_for(interval, state)):
                return False
            if state.word == _conditions.WHOLE:  # the nodes know more of it than can be seen
                return state.holds(before, await self.bed.system.standing(self.bed))
            return state.holds(before, await self.bed.standing())

        if not await reached(self.bed, holds, until_ns, LOOK_AGAIN_S):
            self._mark(interval, begin=self.bed.now_ns())
            raise _Missed(f"it waited {state.within_s:g} s in vain for this: {state.word}")
        await sleep_until(self.bed, self.bed.now_ns() + state.more_s * NS)

    async def _stood(self, interval: Interval, began_ns: int) -> Standing:
        """How the cluster stood when the previous fault was aimed, or later at our own time."""
        previous = self.intervals[interval.number - 1] if interval.number else None
        if previous and previous.standing and previous.settled_ns >= began_ns:
            return previous.standing
        return await self.bed.standing()

    def _waited_for(self, interval: Interval, state: State) -> Sequence[Interval]:
        """The faults whose end the condition asks for."""
        earlier = self.intervals[: interval.number]
        asked = {plans.PREVIOUS: earlier[-1:], _conditions.WHOLE: earlier}
        return asked.get(state.word, ())

    def _by(self, interval: Interval, event: Event) -> Callable[[str], bool]:
        """Whether a node is one whose event counts: by its role or name, or whom faults hit."""

        def counts(name: str) -> bool:
            met = self._met(interval)
            node = self.bed.node(name)
            return not event.by or _targets.is_among(node, event.by, met)

        return counts

    def _met(self, interval: Interval) -> _targets.Met:
        """Whom the words mean that only this plan knows."""
        return ChainMap({_targets.TELLER: (interval.teller,)}, self.victims)

    async def _previous(self, interval: Interval) -> tuple[int, int]:
        """When the previous fault was applied, and how many sends were acknowledged then."""
        if interval.number == 0:
            return self.bed.now_ns(), self.bed.acknowledged()
        previous = self.intervals[interval.number - 1]
        await previous.settled.wait()
        return previous.settled_ns, previous.acknowledged

    async def _apply(self, interval: Interval) -> None:
        injection = await self._aimed(interval)
        names = self._hit(interval, injection.targets)
        if not names:
            self._fail(interval, self._why_nobody(interval))
            self._never_was(interval)
            return
        planned = interval.planned
        self.ledger.intend(Entry(interval.number, planned.kind, names, dict(planned.params)))
        interval.injection = injection
        self.begun.append(interval)
        try:
            with timing(interval.evidence.setdefault("applied_ms", {})):
                await injection.__aenter__()
        finally:
            self._hit(interval, injection.targets)
        self._mark(interval, applied=self.bed.now_ns())
        self._settle(interval)

    def _why_nobody(self, interval: Interval) -> str:
        """Why it hit nobody: they are all held by other faults, or nobody is there."""
        aim = self._scene(interval, interval.standing or Standing()).aim
        meant = [n.name for n in aim(interval.planned.target)] if interval.planned.target else []
        holders = [
            other.words
            for other in self.begun
            if other.injection and hold(other.planned, interval.planned)
            if not self.held.isdisjoint(meant) and set(meant) & set(self.victims[_word(other)])
        ]
        if holders:
            return f"{', '.join(meant)} had no process to spare: {' and '.join(holders)} held it"
        if meant and not hold(interval.planned):
            return "there is no link between its targets"
        return "no node had the role that it targets"

    def _hit(self, interval: Interval, targets: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Whom it is aimed at, or, as soon as that is known, whom it hit; their names."""
        interval.row["targets"] = as_json(targets)
        names = [name for names in targets.values() for name in names]
        self.victims[_word(interval)] = names
        return names

    def _hit_nobody(self, interval: Interval) -> None:
        """It was aimed, and changed nothing."""
        interval.injection = None
        self._hit(interval, {})
        self.ledger.close_entry(interval.number)

    def _never_was(self, interval: Interval) -> None:
        """Nothing of it is in the world, so nobody has to wait until it is undone."""
        if interval.row["begin"] is not None:
            now_ns = self.bed.now_ns()
            self._mark(interval, heal=now_ns, healed=now_ns)

    async def _aimed(self, interval: Interval) -> Injection:
        """The fault with its selectors resolved; waits for somebody to play the part."""
        planned = interval.planned
        give_up_ns = self.bed.now_ns() + planned.for_s * NS
        fault = registry.load("fault", planned.kind)
        while True:
            standing = await self.bed.standing()
            interval.standing = standing
            injection: Injection = fault(planned, self._scene(interval, standing))
            if injection.targets or self.bed.now_ns() >= give_up_ns:
                return injection
            await self.bed.sleep(AIM_AGAIN_S)

    def _scene(self, interval: Interval, standing: Standing) -> Scene:
        met = self._met(interval)

        clients = hits_clients(
            registry.fault(interval.planned.kind)
        )  # else `fault-0` does not mean those that it had hit
        nodes = [node for node in self.bed.nodes if clients or node.role != CLIENT]

        def aim(selector: str, spare: Collection[str] = ()) -> tuple[Node, ...]:
            return _targets.resolve(selector, nodes, standing, interval.random, spare, met)

        def part(node: Node) -> str:
            return _targets.part(node, standing)

        return Scene(self.bed, self.fabric, aim, part, self.held, interval.random)

    async def _observe(self, interval: Interval, injection: Injection) -> None:
        observation = await injection.observe()
        interval.evidence["effect"] = observation.evidence
        if observation.measured:
            interval.evidence["measured"] = observation.measured
        self._mark(interval, observed=self.bed.now_ns(), state=observation.state)

    async def _last(self, interval: Interval) -> None:
        """Stay until the fault's time is over, or its condition holds."""
        end_ns = interval.settled_ns + interval.planned.for_s * NS
        until = _conditions.until(interval.planned.until)
        if stands := _conditions.UNTIL.get(until.word):
            await reached(self.bed, lambda: self._changed(interval, stands), end_ns, LOOK_AGAIN_S)
        elif until.word == plans.NEXT:
            await reached(self.bed, lambda: self._next_settled(interval), end_ns)
        elif until.event:
            by = self._by(interval, until.event)
            await self.hearing.first(until.event, interval.heard, end_ns, by)
        else:
            await sleep_until(self.bed, end_ns)
        await sleep_until(self.bed, min(end_ns, self.bed.now_ns() + until.more_s * NS))

    async def _changed(self, interval: Interval, stands: Stands) -> bool:
        """Since it was aimed."""
        return stands(interval.standing or Standing(), await self.bed.standing())

    async def _next_settled(self, interval: Interval) -> bool:
        following = self.intervals[interval.number + 1 : interval.number + 2]
        return all(later.settled.is_set() for later in following)

    # -------------------------------------------------------------------------- healing

    async def heal_all(self) -> None:
        """Heal what is still in the world, newest first, even if nothing can be recorded of it."""
        await self.healer.heal(self.begun[::-1], LAST_LOOKS_S)

    # ------------------------------------------------------------------------ recording

    def _settle(self, interval: Interval) -> None:
        if not interval.settled.is_set():
            interval.settled_ns = self.bed.now_ns()
            interval.acknowledged = self.bed.acknowledged()
            interval.heard = self.hearing.count
            interval.settled.set()

    def _fail(self, interval: Interval, why: str) -> None:
        interval.evidence["error"] = why
        self._mark(interval, state="failed")

    def _mark(self, interval: Interval, **changes: Any) -> None:
        """Record the interval as it stands now."""
        self.bed.record.fault(interval.changed(**changes))


def _word(interval: Interval) -> str:
    """The selector that means whom it hit."""
    return f"{_targets.FAULT}{interval.number}"
