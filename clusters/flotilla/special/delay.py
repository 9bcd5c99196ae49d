"""Delayed messages: accepted now, put into their queue when they are due.

A delayed message lies in the system topic `%delay`, in one queue, and is acknowledged as any send
is. The master keeps (due, queue offset) of all of them in a heap in memory, reads those that are
due back from the log, and puts the final messages through its own store, in the order of their due
times. RocketMQ has a queue for each of its 18 levels (ScheduleMessageService), and files of a timer
wheel for other delays (TimerMessageStore); the heap serves both, and is rebuilt from the log.

**Progress** says what has been put: every message due up to `due_ms`, and every one whose place in
`%delay` is before `floor`. It is metadata, which slaves copy (catalog.py), so a new master goes on
from there. What was put but not noted is put again: twice, never lost. To note too much would lose
messages, so three things hold:

* A message is due after everything that was put before it was accepted, or progress would pass it.
* With `strictSpecialMessages`, progress waits until the set has the final messages. Otherwise, as
  in RocketMQ, it is noted with the put, and may be ahead of a log that is cut.
* Progress names the end of the last final message, and its epoch. A new master whose log does not
  have that takes `floor` only (apache/rocketmq#4771 is the same mistake, with group offsets).

A scan lasts as long as a reign. It starts once everything of earlier epochs is confirmed, since
only then is all of `%delay` readable. A final message that cannot be put (too few replicas, a full
disk) is tried again, for as long as it takes; RocketMQ drops it after three times half a second,
unless `timerEnableRetryUntilSuccess` is set.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from ..broker.handler import HandlerContext
from ..net.connection import Tasks
from ..net.wire import SendReply, SendRequest, Status
from ..world.timers import MAX_WAIT_S, WakeEvent
from .envelope import DELAY_TOPIC, DELAYED, DelayRequest, Envelope, EnvelopeError
from .progress import DelayProgress, EscapedRecords, log_has, pause_s

QUEUE = (DELAY_TOPIC.encode(), 0)
_READ = 256  # messages that are read at once
_MOST_PUTS = 256  # in one turn of the event loop
_RETRY_S = 0.5  # as in RocketMQ; scaled


async def earlier_is_readable(context: HandlerContext, wake: WakeEvent) -> None:
    """Wait until a new master can read all that was accepted in earlier epochs."""
    promoted_at = context.replica.epochs.last_start
    while context.replica.store.confirm_offset < promoted_at:
        await wake.wait(context.config.delay_scan_s)


class Put(NamedTuple):
    """A final message that is in the log: its due time and place in `%delay`, and where it ends."""

    due_ms: int
    offset: int
    end: int
    epoch: int


class DelayScan:
    """Accepts delayed messages, and delivers them while this broker is master."""

    def __init__(
        self,
        context: HandlerContext,
        epoch: Callable[[], int],
        admits: Callable[[], bool],
    ) -> None:
        """`epoch`: of the present reign; `admits`: whether a message may be appended now."""
        self._context, self._config, self._rules = context, context.config, context.rules
        self._store, self._catalog = context.replica.store, context.replica.catalog
        self._epoch, self._admits = epoch, admits
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._wake = WakeEvent()
        self._begin(DelayProgress())

    def _begin(self, progress: DelayProgress) -> None:
        self._noted = progress
        self._escaped = EscapedRecords(DELAY_TOPIC, {})  # while another broker acted as master
        self._put_ms = progress.due_ms
        self._waiting: list[tuple[int, int]] = []  # a heap of due, queue offset
        self._open: list[int] = []  # a heap of queue offsets; those in _done are left out
        self._done: set[int] = set()
        self._seen_end = progress.floor
        self._unconfirmed: deque[Put] = deque()
        self._confirmed = self._last = Put(progress.due_ms, -1, progress.end, progress.epoch)
        self._failures, self._retry_at, self._note_at = 0, 0.0, 0.0
        self._noting: asyncio.Task[None] | None = None
        self._scan: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return how many messages wait for their time."""
        return len(self._waiting)

    # the reign

    def start(self) -> None:
        """Begin a reign, or continue one in a new epoch."""
        self._put_ms = max(self._put_ms, DelayProgress.of(self._catalog).due_ms)
        queue = self._store.queues().get(QUEUE)
        if self._scan is None and queue is not None:
            self._scan = self._tasks.start(self._run(queue.base, queue.end))

    def stop(self) -> None:
        """End the reign; the next master goes on from the progress that it has."""
        self._tasks.cancel()
        self._begin(DelayProgress())

    # accepting

    def accept(self, send: SendRequest) -> SendRequest | SendReply:
        """Return the message to store for a SEND to `%delay`, or the answer that refuses it."""
        try:
            wanted = DelayRequest.unpack(send.body)
        except EnvelopeError as e:
            return SendReply(Status.MESSAGE_ILLEGAL, remark=str(e))
        queues = self._catalog.topics.get(wanted.topic)
        if queues is None:
            return SendReply(Status.TOPIC_NOT_EXIST, remark=wanted.topic)
        if send.queue >= queues:
            why = f"{wanted.topic} has {queues} queues"
            return SendReply(Status.MESSAGE_ILLEGAL, remark=why)
        if not 0 <= wanted.delay_ms <= self._config.timer_max_delay_s * 1000:
            why = f"a delay is from 0 to {self._config.timer_max_delay_s} s (timerMaxDelaySec)"
            return SendReply(Status.MESSAGE_ILLEGAL, remark=why)
        if not self._store.fits(wanted.topic.encode(), send.key, wanted.body):
            return SendReply(Status.MESSAGE_ILLEGAL, remark="the message is too large")
        now_ms = self._context.ports.clock.wall_ms()
        due_ms = self._rules.due_of(now_ms, wanted.delay_ms, self._put_ms)
        final = (wanted.topic, send.queue, send.key, wanted.body)
        stored = Envelope(DELAYED, *final, due_ms, born_ms=now_ms)
        return SendRequest(DELAY_TOPIC, 0, b"", stored.pack())

    def appended(self, body: bytes, offset: int) -> None:
        """Take a message that was appended to `%delay`, at this queue offset."""
        self._keep(Envelope.unpack(body).due_ms, offset)
        if self._scan is None:
            self._scan = self._tasks.start(self._run(0, 0))
        self._wake.set()

    def _keep(self, due_ms: int, offset: int) -> None:
        heappush(self._waiting, (due_ms, offset))
        heappush(self._open, offset)
        self._seen_end = max(self._seen_end, offset + 1)

    # delivering

    async def _run(self, base: int, end: int) -> None:
        """Deliver for one reign. `base`, `end`: of `%delay` at its begin."""
        await earlier_is_readable(self._context, self._wake)
        await self._load(base, end)
        while True:
            more = self._put_due()
            self._note()
            await self._wake.wait(0.0 if more else self._pause_s())

    async def _load(self, base: int, end: int) -> None:
        """Read what earlier masters accepted and did not deliver."""
        progress = DelayProgress.of(self._catalog)
        log, epochs = self._store.log, self._context.replica.epochs
        has = log_has(progress.end, progress.epoch, epochs, log.min_offset, log.max_offset)
        progress = self._rules.resumed(progress, has)
        if not has:
            self._context.events.write("delay-resumed", floor=progress.floor, end=progress.end)
        self._escaped = EscapedRecords(DELAY_TOPIC, self._catalog.progress)
        self._noted, self._put_ms = progress, max(self._put_ms, progress.due_ms)
        self._confirmed = self._last = Put(progress.due_ms, -1, progress.end, progress.epoch)
        at = max(base, progress.floor)
        self._seen_end = max(self._seen_end, at)
        while at < end and (found := self._store.fetch(QUEUE, at, min(_READ, end - at), 1 << 20)):
            for payload in found:
                due_ms = Envelope.unpack(payload.body).due_ms
                escaped = self._escaped.has(payload.epoch, payload.queue_offset)
                if due_ms > progress.due_ms and not escaped:
                    self._keep(due_ms, payload.queue_offset)
            at = found[-1].queue_offset + 1
            await asyncio.sleep(0)

    def _pause_s(self) -> float:
        """Return for how long there is nothing to do."""
        scan_s = self._config.delay_scan_s
        if self._unconfirmed or self._noted.due_ms < self._last.due_ms:
            return scan_s
        if not self._waiting:
            return MAX_WAIT_S
        return pause_s(self._waiting[0][0], self._context.ports.clock.wall_ms(), scan_s)

    def _put_due(self) -> bool:
        """Put what is due; return whether there is more to put at once."""
        now_ms = self._context.ports.clock.wall_ms()
        for _ in range(_MOST_PUTS):
            if not self._waiting or not self._rules.is_due(self._waiting[0][0], now_ms):
                return False
            queue = self._store.queues()[QUEUE]
            if self._waiting[0][1] >= queue.visible_end or not self._put_next(queue.base):
                return False
        return True

    def _put_next(self, base: int) -> bool:
        """Put the next message; return whether that is settled."""
        due_ms, offset = self._waiting[0]
        found = self._store.fetch(QUEUE, offset, 1, 1) if offset >= base else []
        end, epoch = self._last.end, self._last.epoch
        if not found:
            self._context.events.write("delay-dropped", offset=offset, why="it was deleted")
        else:
            final = Envelope.unpack(found[0].body)
            if self._catalog.topics.get(final.topic, 0) <= final.queue:
                why = f"there is no queue {final.topic}-{final.queue}"
                self._context.events.write("delay-dropped", offset=offset, why=why)
            elif self._may_put(final):
                queue, epoch = (final.topic.encode(), final.queue), self._epoch()
                end = self._store.append(queue, final.key, final.body, epoch).end
            elif not self._gives_up(offset):
                return False
        heappop(self._waiting)
        self._failures, self._put_ms = 0, max(self._put_ms, due_ms)
        self._last = Put(due_ms, offset, end, epoch)
        self._unconfirmed.append(self._last)
        return True

    def _may_put(self, final: Envelope) -> bool:
        return (
            self._context.may_change.is_set()  # no handover is under way
            and self._loop.time() >= self._retry_at
            and self._admits()
            and self._store.has_room(final.topic.encode(), final.key, final.body)
        )

    def _gives_up(self, offset: int) -> bool:
        """Count a failed put; return whether the message is dropped."""
        now = self._loop.time()
        if now < self._retry_at or not self._context.may_change.is_set():
            return False
        self._failures += 1
        self._retry_at = now + _RETRY_S * self._config.time_scale
        if not self._rules.drops(self._failures, self._config.timer_retry_until_success):
            return False
        self._context.events.write("delay-dropped", offset=offset, why="it could not be put")
        return True

    # progress

    def _note(self) -> None:
        """Note what was put, if that is due."""
        confirm = self._store.confirm_offset
        while self._unconfirmed and self._unconfirmed[0].end <= confirm:
            self._confirmed = self._unconfirmed.popleft()
            self._done.add(self._confirmed.offset)
        now, strict = self._loop.time(), self._config.strict_special
        busy = self._noting is not None and not self._noting.done()
        if now < self._note_at or busy:
            return
        next_ms = self._next_ms(strict)
        until = self._rules.noted_until(self._last.due_ms, self._confirmed.due_ms, next_ms, strict)
        of = self._confirmed if strict else self._last
        progress = DelayProgress(self._floor(), until, of.end, of.epoch)
        if until <= self._noted.due_ms:
            return
        self._note_at = now + self._config.flush_delay_offset_s
        self._noting = self._tasks.start(self._save(progress))

    def _next_ms(self, strict: bool) -> int:
        """Return the due time of the first message that does not count as put."""
        if strict and self._unconfirmed:
            return self._unconfirmed[0].due_ms
        return self._waiting[0][0] if self._waiting else self._last.due_ms + 1

    def _floor(self) -> int:
        while self._open and self._open[0] in self._done:
            self._done.discard(heappop(self._open))
        return self._open[0] if self._open else self._seen_end

    async def _save(self, progress: DelayProgress) -> None:
        changes = (*progress.changes(), *self._escaped.forget_before(progress.floor))
        answer = await self._context.make(*changes)
        if answer.get("code", Status.SUCCESS) == Status.SUCCESS:
            self._noted = progress
