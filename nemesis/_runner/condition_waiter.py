"""Wait until a fault of a plan may begin, and until it is to be healed (`_plan/conditions`).

Events are received only from hosts that report them as they are written (`EventSource`). The task
that waits for one continues before anything else happens in the world.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness import plans
from harness.contracts import ClusterState, TestBed
from harness.contracts.cluster_view import EventSource, LoggedEvent
from nemesis._plan import targets as _targets
from nemesis._plan.conditions import (
    UNTIL,
    WHOLE,
    AckCondition,
    EventCondition,
    StateCondition,
)
from nemesis._runner.interval import Interval
from nemesis._runner.target_resolver import TargetResolver
from nemesis._runner.waiting import NS, sleep_until, wait_until

POLL_S = 0.05  # between two queries of the cluster's state


class ConditionNotMet(Exception):
    """What a fault waits for did not come in time."""


class ReceivedEvent(NamedTuple):
    """A line of a node's event log, and when it was received."""

    at_ns: int
    event: LoggedEvent


class EventFeed:
    """All events since the nemesis began, if any fault waits for one."""

    def __init__(self, bed: TestBed, wanted: bool) -> None:
        self._bed = bed
        self._received: list[ReceivedEvent] = []
        self._next: asyncio.Future[None] | None = None
        if wanted and isinstance(bed.hosts, EventSource):
            bed.hosts.subscribe(self._take)

    @property
    def count(self) -> int:
        """The number of events received so far."""
        return len(self._received)

    async def first(
        self, condition: EventCondition, skip: int, until_ns: float, accepts: Callable[[str], bool]
    ) -> ReceivedEvent | None:
        """Wait for a matching event of a node that `accepts`; return it, or None on timeout.

        The first `skip` events are ignored.
        """
        while True:
            for received in self._received[skip:]:
                if condition.matches(received.event) and accepts(received.event.node):
                    return received if received.at_ns <= until_ns else None
            skip = len(self._received)
            if not await self._more(until_ns):
                return None

    async def _more(self, until_ns: float) -> bool:
        """Wait for another event; return whether one came in time."""
        left_s = (until_ns - self._bed.now_ns()) / NS
        if left_s <= 0:
            return False
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(left_s):
                await asyncio.shield(self._next)
        except TimeoutError:
            return False
        return True

    def _take(self, event: LoggedEvent) -> None:
        self._received.append(ReceivedEvent(self._bed.now_ns(), event))
        if self._next is not None:
            future, self._next = self._next, None
            future.set_result(None)


class ConditionWaiter:
    """Waits for the conditions of the faults of one plan."""

    def __init__(
        self,
        bed: TestBed,
        intervals: Sequence[Interval],
        resolver: TargetResolver,
        load_began_ns: int,
    ) -> None:
        self._bed, self._intervals = bed, intervals
        self._resolver, self._load_began_ns = resolver, load_began_ns
        wanted = any(interval.conditions.need_events for interval in intervals)
        self.feed = EventFeed(bed, wanted)

    async def wait_to_begin(self, interval: Interval) -> None:
        """Sleep until the plan's time, then wait for `after`.

        Raises ConditionNotMet if it does not hold in time.
        """
        await sleep_until(self._bed, self._load_began_ns + interval.planned.at_s * NS)
        match interval.conditions.after:
            case AckCondition() as acks:
                await self._wait_for_acks(interval, acks)
            case EventCondition() as event:
                await self._wait_for_event(interval, event)
            case StateCondition() as state:
                await self._wait_for_state(interval, state)

    async def wait_to_end(self, interval: Interval) -> None:
        """Wait until the fault's time is over, or `until` holds."""
        end_ns = interval.settled_ns + interval.planned.for_s * NS
        until = interval.conditions.until
        if changed := UNTIL.get(until.word):
            before = interval.standing or ClusterState()

            async def has_changed() -> bool:
                return changed(before, await self._bed.cluster_state())

            await wait_until(self._bed, has_changed, end_ns, POLL_S)
        elif until.word == plans.NEXT:
            await wait_until(self._bed, lambda: self._next_settled(interval), end_ns)
        elif until.event:
            accepts = self._accepts(interval, until.event)
            await self.feed.first(until.event, interval.event_count, end_ns, accepts)
        else:
            await sleep_until(self._bed, end_ns)
        await sleep_until(self._bed, min(end_ns, self._bed.now_ns() + until.more_s * NS))

    async def _wait_for_acks(self, interval: Interval, acks: AckCondition) -> None:
        since_ns, before = await self._previous(interval)

        async def enough() -> bool:
            return self._bed.acknowledged() >= before + acks.count

        await wait_until(self._bed, enough, since_ns + acks.within_s * NS)

    async def _wait_for_event(self, interval: Interval, event: EventCondition) -> None:
        began_ns, skip = self._bed.now_ns(), self.feed.count
        if interval.number:
            settled_ns, _ = await self._previous(interval)
            began_ns = max(began_ns, settled_ns)
            skip = max(skip, self._intervals[interval.number - 1].event_count)
        until_ns = began_ns + event.within_s * NS
        received = await self.feed.first(event, skip, until_ns, self._accepts(interval, event))
        if received is None:
            raise ConditionNotMet(f"no node reported the event {event} within {event.within_s:g} s")
        interval.event_node = received.event.node
        interval.evidence["told"] = {"by": received.event.node, "at": received.at_ns}
        await sleep_until(self._bed, received.at_ns + event.more_s * NS)

    async def _wait_for_state(self, interval: Interval, state: StateCondition) -> None:
        began_ns = self._bed.now_ns()
        settled_ns, _ = await self._previous(interval)
        before = await self._state_before(interval, began_ns)
        until_ns = max(began_ns, settled_ns) + state.within_s * NS
        earlier = self._intervals[: interval.number]
        awaited = {plans.PREVIOUS: earlier[-1:], WHOLE: earlier}.get(state.word, ())

        async def holds() -> bool:
            if not all(other.over.is_set() for other in awaited):
                return False
            if state.word == WHOLE:  # the nodes know more about it than an observer does
                return state.holds(before, await self._bed.system.cluster_state(self._bed))
            return state.holds(before, await self._bed.cluster_state())

        if not await wait_until(self._bed, holds, until_ns, POLL_S):
            raise ConditionNotMet(f"it waited {state.within_s:g} s in vain for this: {state.word}")
        await sleep_until(self._bed, self._bed.now_ns() + state.more_s * NS)

    async def _state_before(self, interval: Interval, began_ns: int) -> ClusterState:
        """Return the state when the previous fault resolved its target, or now if that is later."""
        previous = self._intervals[interval.number - 1] if interval.number else None
        if previous and previous.standing and previous.settled_ns >= began_ns:
            return previous.standing
        return await self._bed.cluster_state()

    async def _previous(self, interval: Interval) -> tuple[int, int]:
        """Return when the previous fault was applied, and the acknowledged sends at that time."""
        if interval.number == 0:
            return self._bed.now_ns(), self._bed.acknowledged()
        previous = self._intervals[interval.number - 1]
        await previous.settled.wait()
        return previous.settled_ns, previous.acknowledged

    async def _next_settled(self, interval: Interval) -> bool:
        following = self._intervals[interval.number + 1 : interval.number + 2]
        return all(later.settled.is_set() for later in following)

    def _accepts(self, interval: Interval, event: EventCondition) -> Callable[[str], bool]:
        """Return a test of whether a node's events count, by the condition's `by`."""

        def accepts(name: str) -> bool:
            names = self._resolver.names_by_word(interval)
            return not event.by or _targets.includes(self._bed.node(name), event.by, names)

        return accepts
