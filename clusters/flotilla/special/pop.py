"""POP: the broker gives each message of a queue to one consumer of a group, for a limited time.

A POP takes up to 32 messages of a queue for `invisible` milliseconds and writes a *checkpoint* of
them into the system topic `%revive` (pop_records.py). The answer has the messages and waits, as
that of a send does, until the set has the checkpoint; only then does the group's offset move on. A
consumer acknowledges each message (SEND to `%ack`), or changes its time (SEND to `%hide`: a new
checkpoint, then the old one is acknowledged). What is neither when it is due is *revived*: a copy
of it is written as a RETRY record, and is given before other messages of its queue. So a message is
given until it is acknowledged, however often consumers or masters die (RocketMQ's
PopMessageProcessor, AckMessageProcessor, PopReviveService).

What is invisible is known in memory. A new master rebuilds that from `%revive`, from the offset on
that was noted as progress. That note and the offsets of the groups are changes of metadata that are
made together: a checkpoint that is not read again is one whose messages the group has behind it.

With `strictSpecialMessages = false` it is as in RocketMQ: the offset moves on with the POP, and an
answer waits for no copies. A failover may then lose a checkpoint of which the next master has the
offset: its messages are never given again. An acknowledgement that cannot be written is answered
with success all the same. RocketMQ writes a checkpoint again, due in 10 s, 20 s ..., if the message
cannot be revived; here the checkpoint stays, and the scan tries again until it can.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from ..broker import catalog, topic_limits
from ..broker.catalog import MetadataChange
from ..broker.handler import HandlerContext
from ..broker.sends import Replier
from ..net.connection import FrameConnection, Tasks
from ..net.wire import Message, Op, PullReply, PullRequest, SendReply, SendRequest, Status
from ..store.message_store import AppendResult
from ..world.timers import MAX_WAIT_S, WakeEvent
from .delay import earlier_is_readable
from .envelope import GROUP_FOLLOWS, HIDE_TOPIC, POP_TOPIC, REVIVE_TOPIC, Envelope, EnvelopeError
from .pop_records import (
    MAX_POPPED,
    Checkpoint,
    HandleRequest,
    Place,
    PopLedger,
    RetriedMessage,
    acked_record,
    escaped_number,
)
from .progress import REVIVE_SCAN, EscapedRecords, pause_s

REVIVES = (REVIVE_TOPIC.encode(), 0)
_READ = 256  # records that are read at once
_MAX_BYTES = 1 << 20  # of the messages of one POP
_MAX_REVIVED = 256  # in one turn of the event loop
_MAX_GROUP_BYTES = 120  # so that group and topic fit into the name of a request's topic


@dataclass(eq=False)
class _Popper:
    """A POP that waits for a message."""

    pull: PullRequest
    place: Place
    connection: FrameConnection
    request: int
    timer: asyncio.TimerHandle | None = None

    def answer(self, reply: PullReply) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.connection.reply(Op.PULL, self.request, reply.pack())


@dataclass(frozen=True)
class _HeldAnswer:
    """Answers a POP when its checkpoint is stored, or could not be."""

    popper: _Popper
    given: PullReply

    def reply(self, op: int, request: int, body: bytes) -> None:
        status = SendReply.unpack(body).status
        self.popper.answer(self.given if status is Status.SUCCESS else nothing(status))


def nothing(status: Status) -> PullReply:
    return PullReply(status, 0, 0, 0)


class PopMessages:
    """Gives messages to groups, and gives them again, while this broker is master."""

    def __init__(
        self,
        context: HandlerContext,
        epoch: Callable[[], int],
        no_room: Callable[[SendRequest], SendReply | None],
        append: Callable[[bytes, Replier | None, int], AppendResult],
    ) -> None:
        """`epoch`: of the present reign; `no_room`: the answer to a message that cannot be appended
        now; `append`: appends a record to `%revive`, and answers when the set has it."""
        self._context, self._config, self._rules = context, context.config, context.rules
        self._store, self._catalog = context.replica.store, context.replica.catalog
        self._epoch, self._no_room, self._append = epoch, no_room, append
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._wake = WakeEvent()
        self._poppers: dict[_Popper, None] = {}
        self._again: asyncio.Handle | None = None
        self._begin()

    def _begin(self) -> None:
        self._ledger = PopLedger()
        self._escaped = EscapedRecords(REVIVE_TOPIC, {})  # while another broker acted as master
        self._due: list[tuple[int, int]] = []  # a heap of due times and checkpoints
        self._written: deque[tuple[int, Place, int]] = deque()  # not in the set yet
        self._confirmed: dict[Place, int] = {}  # behind what checkpoints of the set have
        self._hidden: deque[tuple[Checkpoint, int]] = deque()  # a new checkpoint, and its source
        self._answer_with = -1
        self._note_at, self._began_ms = 0.0, 0
        self._behind = False  # whether progress is to be noted
        self._noting: asyncio.Task[None] | None = None
        self._ready = self._store.queues().get(REVIVES) is None
        self._scan: asyncio.Task[None] | None = None

    # the reign

    def start(self) -> None:
        """Begin a reign, or continue one in a new epoch."""
        if self._scan is not None:
            return
        queue = self._store.queues().get(REVIVES)
        self._ready = queue is None
        self._began_ms = self._context.ports.clock.wall_ms()
        if queue is not None:
            self._scan = self._tasks.start(self._run(queue.end))

    def stop(self) -> None:
        """End the reign. Consumers that wait ask the next master."""
        self._tasks.cancel()
        poppers, self._poppers = self._poppers, {}
        for popper in poppers:
            popper.answer(nothing(Status.SERVICE_NOT_AVAILABLE))
        self._begin()

    # giving

    def serve(self, pull: PullRequest, connection: FrameConnection, request: int) -> None:
        """Answer a PULL of `%pop:`, topic and group: its offset is the invisible time in ms."""
        topic, _, group = pull.topic.removeprefix(POP_TOPIC).partition(GROUP_FOLLOWS)
        popper = _Popper(pull, (group, topic, pull.queue), connection, request)
        status = self._refusal(popper)
        if status is not None:
            popper.answer(nothing(status))
        elif not self._give(popper):
            wait_s = min(pull.wait_ms / 1000, MAX_WAIT_S)
            popper.timer = self._loop.call_later(wait_s, self._expire, popper)
            self._poppers[popper] = None

    def closed(self, connection: FrameConnection) -> None:
        for popper in [each for each in self._poppers if each.connection is connection]:
            del self._poppers[popper]
            if popper.timer is not None:
                popper.timer.cancel()

    def wake(self) -> None:
        """Messages can be read that could not: look for those that consumers wait for."""
        if self._poppers and self._again is None:
            self._again = self._loop.call_soon(self._give_again)
        if self._written:
            self._wake.set()

    def _give_again(self) -> None:
        self._again = None
        for popper in list(self._poppers):
            if popper in self._poppers and self._give(popper):
                del self._poppers[popper]

    def _expire(self, popper: _Popper) -> None:
        if self._poppers.pop(popper, popper) is None:
            popper.answer(nothing(Status.PULL_NOT_FOUND))

    def _refusal(self, popper: _Popper) -> Status | None:
        """Return the status of the answer to an impossible POP, None if it is possible."""
        group, topic, queue = popper.place
        queues = self._catalog.topics.get(topic)
        if queues is None:
            return Status.TOPIC_NOT_EXIST
        longest_ms = self._config.timer_max_delay_s * 1000
        sane = 0 < popper.pull.offset <= longest_ms and popper.pull.max_count > 0
        if queue >= queues or not sane or topic_limits.check_group(group):
            return Status.MESSAGE_ILLEGAL
        return Status.MESSAGE_ILLEGAL if len(group.encode()) > _MAX_GROUP_BYTES else None

    def _give(self, popper: _Popper) -> bool:
        """Answer a POP; return False if there is no message for it."""
        if not self._ready or not self._context.may_change.is_set():
            popper.answer(nothing(Status.SYSTEM_BUSY))
            return True
        place, pull = popper.place, popper.pull
        count = min(pull.max_count, MAX_POPPED)
        tries, messages, sources = self._come_again(place, count)
        is_retry = bool(messages)
        if not messages:
            messages, sources = self._next_ones(place, count)
        if not messages:
            return False
        now_ms, epoch = self._context.ports.clock.wall_ms(), self._epoch()
        given = Checkpoint(place, sources, now_ms + pull.offset, epoch, tries, is_retry)
        record = given.record(sources, now_ms)
        if refused := self._no_room(SendRequest(REVIVE_TOPIC, 0, b"", record)):
            popper.answer(nothing(refused.status))
            return True
        end = self._store.queues()[REVIVES].end if REVIVES in self._store.queues() else 0
        reply = PullReply(Status.SUCCESS, end, epoch, tries, tuple(messages))
        held = _HeldAnswer(popper, reply) if self._config.strict_special else None
        self._apply(record, self._append(record, held, popper.request).queue_offset)
        if held is None:
            popper.answer(reply)
        return True

    def _come_again(self, place: Place, count: int) -> tuple[int, list[Message], tuple[int, ...]]:
        """Return messages that this group is given again, all given so often before, and where
        they are in `%revive`."""
        queue = self._store.queues().get(REVIVES)
        waiting = self._ledger.waiting.get(place, {})
        tries, found, sources, room = 0, list[Message](), list[int](), _MAX_BYTES
        for offset in list(waiting)[:count]:
            if queue is None or not queue.base <= offset < queue.visible_end:
                break
            [payload] = self._store.fetch(REVIVES, offset, 1, 1)
            again = RetriedMessage.read(Envelope.unpack(payload.body))
            room -= len(again.body)
            if found and (again.tries != tries or room < 0):
                break
            tries = again.tries
            found.append(Message(again.offset, payload.epoch, 0, again.key, again.body))
            sources.append(offset)
        return tries, found, tuple(sources)

    def _next_ones(self, place: Place, count: int) -> tuple[list[Message], tuple[int, ...]]:
        """Return the next messages of a queue, and their offsets."""
        key = place[1].encode(), place[2]
        low, high = self._store.range(key)
        at = max(self._catalog.offset(place), self._ledger.positions.get(place, 0), low)
        if at >= high:
            return [], ()
        found = self._store.fetch(key, at, count, _MAX_BYTES)
        messages = [Message(*payload[:-1]) for payload in found]
        return messages, tuple(payload.queue_offset for payload in found)

    # acknowledging, and hiding for longer

    def settle(self, send: SendRequest) -> SendRequest | SendReply:
        """Carry out a SEND to `%ack` or `%hide`; return the record to store for it, or its
        answer."""
        try:
            asked, group = HandleRequest.unpack(send.body), send.key.decode()
        except (EnvelopeError, UnicodeDecodeError) as e:
            return SendReply(Status.MESSAGE_ILLEGAL, remark=str(e))
        if not self._ready:
            return SendReply(Status.SYSTEM_BUSY, remark="the master has just been elected")
        handle, strict = asked.handle, self._config.strict_special
        found = self._ledger.find(handle, group)
        if found is None:
            why = f"the message {handle} is not invisible: acknowledged, or its time is over"
            return SendReply(Status.MESSAGE_ILLEGAL, remark=why)
        is_ack = send.topic != HIDE_TOPIC
        longest_ms = self._config.timer_max_delay_s * 1000
        if not is_ack and not 0 < asked.invisible_ms <= longest_ms:
            why = f"a message is invisible for 1 ms to {self._config.timer_max_delay_s} s"
            return SendReply(Status.MESSAGE_ILLEGAL, remark=why)
        acked = acked_record(handle.checkpoint, self._rules.acked_number(handle.number))
        now_ms, source = self._context.ports.clock.wall_ms(), found.sources[handle.number]
        new = Checkpoint(
            found.place,
            (source,),
            now_ms + asked.invisible_ms,
            self._epoch(),
            found.tries,
            found.is_retry,
        )
        record = new.record((source,), now_ms)
        if refused := self._no_room(SendRequest(REVIVE_TOPIC, 0, b"", acked + record)):
            lost = is_ack and not strict
            return SendReply(Status.SUCCESS, handle.checkpoint) if lost else refused
        if is_ack and not self._rules.ack_is_stored:
            self._ledger.settle(handle.checkpoint, handle.number, handle.checkpoint)
            return SendReply(Status.SUCCESS, handle.checkpoint, epoch=self._epoch())
        if not is_ack and self._rules.hides_first:
            self._answer_with = self._append(record, None, 0).queue_offset
            self._apply(record, self._answer_with)
        elif not is_ack:
            self._hidden.append((new, self._store.queues()[REVIVES].end))
        if strict:
            return SendRequest(REVIVE_TOPIC, 0, b"", acked)
        place = self._append(acked, None, 0)
        answer = self.appended(acked, place)
        return SendReply(Status.SUCCESS, answer.queue_offset, epoch=self._epoch())

    def adopt(self, send: SendRequest) -> SendRequest | SendReply:
        """Return the record to store for a SEND to `%retry`, or the answer that refuses it."""
        try:
            retried = RetriedMessage.unpack(send.body)
        except EnvelopeError as e:
            return SendReply(Status.MESSAGE_ILLEGAL, remark=str(e))
        if not self._ready:
            return SendReply(Status.SYSTEM_BUSY, remark="the master has just been elected")
        group, topic, _ = retried.place
        if send.queue >= self._catalog.topics.get(topic, 0):
            return SendReply(Status.TOPIC_NOT_EXIST, remark=f"{topic}-{send.queue}")
        # its checkpoint is of another set
        again = retried._replace(checkpoint=-1, number=0, place=(group, topic, send.queue))
        record = again.pack()
        if not self._store.fits_into_segment(REVIVES[0], b"", record):
            return SendReply(Status.MESSAGE_ILLEGAL, remark="the message is too large")
        return SendRequest(REVIVE_TOPIC, 0, b"", record)

    def appended(self, record: bytes, appended: AppendResult) -> AppendResult:
        """Take a record that was appended to `%revive`; return what its answer says of it."""
        self._apply(record, appended.queue_offset)
        of, self._answer_with = self._answer_with, -1
        return appended if of < 0 else appended._replace(queue_offset=of)

    def _apply(self, record: bytes, offset: int) -> None:
        """Take a record of this reign at this place of `%revive`."""
        self._ledger.apply(record, offset, self._epoch())
        self._watch(offset)
        if self._scan is None:
            self._scan = self._tasks.start(self._run(0))
        self._wake.set()

    def _watch(self, offset: int) -> None:
        """Keep a checkpoint in mind until it is due, and until the set has it."""
        found = self._ledger.open.get(offset)
        if found is None:
            return
        heappush(self._due, (found.due_ms, offset))
        if not found.is_retry:
            self._written.append((offset, found.place, self._ledger.positions[found.place]))

    # the scan

    async def _run(self, end: int) -> None:
        """Rebuild what is invisible, then revive what is due, and note. `end`: of `%revive`."""
        await earlier_is_readable(self._context, self._wake)
        await self._load(end)
        self._ready = True
        self.wake()
        while True:
            more = self._revive_due()
            self._put_hidden()
            self._note()
            await self._wake.wait(0.0 if more else self._pause_s())

    async def _load(self, end: int) -> None:
        self._escaped = EscapedRecords(REVIVE_TOPIC, self._catalog.progress)
        queue = self._store.queues().get(REVIVES)
        at = max(self._floor(), queue.base if queue else 0)
        while at < end and (found := self._store.fetch(REVIVES, at, _READ, 1 << 20)):
            for payload in found:
                offset = payload.queue_offset
                if offset < end:
                    self._ledger.apply(payload.body, offset, payload.epoch)
                    self._watch(offset)
            at = found[-1].queue_offset + 1
            await asyncio.sleep(0)

    def _pause_s(self) -> float:
        """Return for how long there is nothing to do."""
        scan_s = self._config.delay_scan_s
        if self._written or self._hidden or self._behind or self._moves():
            return scan_s
        if not self._due:
            return MAX_WAIT_S
        return pause_s(self._due[0][0], self._context.ports.clock.wall_ms(), scan_s)

    def _revive_due(self) -> bool:
        """Revive what is due; return whether there is more to do at once."""
        now_ms, queue = self._context.ports.clock.wall_ms(), self._store.queues().get(REVIVES)
        for _ in range(_MAX_REVIVED):
            if not self._due or not self._rules.is_due(self._due[0][0], now_ms) or queue is None:
                return False
            due_ms, offset = self._due[0]
            found = self._ledger.open.get(offset)
            is_due = found is not None and self._rules.revives(due_ms, self._began_ms)
            if is_due and (offset >= queue.visible_end or not self._revive(offset)):
                return False
            heappop(self._due)
        return True

    def _revive(self, offset: int) -> bool:
        """Give again what is left of a checkpoint; return False if that cannot be done now."""
        found = self._ledger.open[offset]
        group, topic, queue = found.place
        key = REVIVES if found.is_retry else (topic.encode(), queue)
        for number in sorted(found.left):
            source = self._rules.revived_source(found.sources, number)
            base = self._store.queues()[key].base if key in self._store.queues() else source + 1
            payloads = self._store.fetch(key, source, 1, 1) if source >= base else []
            record = acked_record(offset, number)
            escaped = self._escaped.has(found.epoch, escaped_number(offset, number))
            why = "" if payloads or escaped else "it was deleted"
            if escaped:
                pass  # another set gives it
            elif queue >= self._catalog.topics.get(topic, 0):
                why = f"there is no queue {topic}-{queue}"
            elif payloads:
                message = payloads[0].key, payloads[0].body
                if found.is_retry:
                    last = RetriedMessage.read(Envelope.unpack(payloads[0].body))
                    source, message = last.offset, (last.key, last.body)
                again = offset, number, found.place, source, found.tries + 1
                copy = RetriedMessage(*again, *message).pack()
                if self._store.fits_into_segment(REVIVES[0], b"", copy):
                    record = copy
                else:
                    why = "it is too large"
            cannot = self._no_room(SendRequest(REVIVE_TOPIC, 0, b"", record))
            if cannot or not self._context.may_change.is_set():
                return False
            if why:
                self._context.events.write("revive-dropped", group=group, topic=topic, why=why)
            self._apply(record, self._append(record, None, 0).queue_offset)
        return True

    def _put_hidden(self) -> None:
        """Write checkpoints whose old ones were acknowledged first."""
        queue = self._store.queues().get(REVIVES)
        while self._hidden and queue is not None and self._hidden[0][1] < queue.visible_end:
            new, _ = self._hidden.popleft()
            record = new.record(new.sources, self._context.ports.clock.wall_ms())
            self._apply(record, self._append(record, None, 0).queue_offset)

    # progress

    def _floor(self) -> int:
        return self._catalog.progress.get((REVIVE_SCAN, REVIVE_TOPIC, 0), 0)

    def _moves(self) -> list[MetadataChange]:
        """Return the changes of groups' offsets that are due."""
        found, strict = [], self._config.strict_special
        for place, appended in self._ledger.positions.items():
            confirmed = self._confirmed.get(place, -1)
            offset = self._rules.group_moves_to(appended, confirmed, strict)
            if place[1] in self._catalog.topics and offset > self._catalog.offset(place):
                found.append(catalog.commit(place, offset))
        return found

    def _note(self) -> None:
        """Move groups on, and note from where a new master has to read."""
        queue, now = self._store.queues().get(REVIVES), self._loop.time()
        if queue is None:
            return
        while self._written and self._written[0][0] < queue.visible_end:
            _, place, after = self._written.popleft()
            self._confirmed[place] = max(self._confirmed.get(place, 0), after)
        if self._noting is not None and not self._noting.done():
            return
        changes = self._moves()
        floor = self._ledger.floor(queue.visible_end)
        self._behind = floor != self._floor()
        if self._behind and now >= self._note_at:
            self._note_at = now + self._config.flush_delay_offset_s
            changes.append(MetadataChange("progress", [REVIVE_SCAN, REVIVE_TOPIC, 0], floor))
            changes += self._escaped.forget_before(escaped_number(floor, 0))
        if changes:
            self._noting = self._tasks.start(self._save(changes))

    async def _save(self, changes: list[MetadataChange]) -> None:
        await self._context.make(*changes)
