"""Transactional messages: consumers get one only if its producer commits it.

A producer *prepares*: its message lies in the system topic `%half`, acknowledged as any send is.
When it has done its own part it *decides*. A commit puts the final message into its queue, and then
a record into `%op` that names the half; a rollback is the record only. The final message comes
first: if the log is cut between the two, the transaction is open and is committed again, never
lost. The answer waits for the copies of the record, which is behind the final message in the log.

A producer may die between the two steps. So the master asks: halves that are older than
`transactionTimeOut` and still open are offered, every `transactionCheckInterval`, to a producer of
the half's group that waits for such questions (a PULL of `%ask:GROUP`). It answers with a decision,
or not, if it does not know. After `transactionCheckMax` questions the half is discarded to `%dead`.
A half whose group has no producer here is not counted, and waits. Each question is a record in
`%op`, which is written before the producer is asked.

Which halves are open, and how often a producer was asked, is known in memory. A new master rebuilds
that from both topics, from the offsets on that were noted as progress: before them everything is
decided, as the set knows. A question does not wait for the copies of its record, so one that was
put just before the master died may be put once more than that. A half that an acting master has
escaped (escape.py) is a new half of another set, so the master that returns takes the old one as
rolled back.

With `strictSpecialMessages = false` decisions are as in RocketMQ (EndTransactionProcessor): SUCCESS
at once, and the records in batches every `transactionOpBatchInterval`. A failover then forgets
decisions, and the producers are asked again: a message may be committed twice.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from ..broker.catalog import MetadataChange
from ..broker.handler import HandlerContext
from ..net.connection import FrameConnection, Tasks
from ..net.wire import Message, Op, PullReply, PullRequest, SendReply, SendRequest, Status
from ..store.record import Payload
from ..world.timers import MAX_WAIT_S, WakeEvent
from .delay import earlier_is_readable
from .envelope import (
    ASK_TOPIC,
    HALF,
    HALF_TOPIC,
    OP_TOPIC,
    Envelope,
    EnvelopeError,
    HalfCheck,
    HalfDecision,
    HalfRequest,
    op_record,
)
from .progress import HALF_SCAN, EscapedRecords, half_progress

HALVES, OPS = (HALF_TOPIC.encode(), 0), (OP_TOPIC.encode(), 0)
_READ = 256  # messages that are read at once
_MOST_ASKED = 32  # halves in one question
_RECORD = 256  # bytes of a record of a decision, and more


@dataclass
class OpenHalf:
    """A half message that is not decided. `since`: when this master learned of it, by its loop.
    `checks`: how often a producer was asked about it."""

    group: str
    since: float
    checks: int = 0
    checked_at: float = 0.0


@dataclass(eq=False)
class _Asker:
    """A producer that waits for a question."""

    connection: FrameConnection
    request: int
    timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class HalfMessages:
    """Prepares, decides and asks back while this broker is master."""

    def __init__(
        self, context: HandlerContext, epoch: Callable[[], int], admits: Callable[[], bool]
    ) -> None:
        """`epoch`: of the present reign; `admits`: whether a message may be appended now."""
        self._context, self._config, self._rules = context, context.config, context.rules
        self._store, self._catalog = context.replica.store, context.replica.catalog
        self._epoch, self._admits = epoch, admits
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._wake = WakeEvent()
        self._askers: dict[str, dict[_Asker, None]] = {}
        self._begin()

    def _begin(self) -> None:
        self._open: dict[int, OpenHalf] = {}
        self._escaped = EscapedRecords(HALF_TOPIC, {})  # while another broker acted as master
        self._decided: dict[int, int] = {}  # half -> queue offset of its record, -1: in _batch
        self._first_check: dict[
            int, int
        ] = {}  # half -> queue offset of its first question's record
        self._batch: list[HalfDecision] = []  # records that are not written yet
        self._batch_at = self._note_at = 0.0
        self._finals: deque[tuple[int, int]] = deque()  # record, half: a final to be put
        self._questions: dict[str, dict[int, None]] = {}
        self._ready = self._store.queues().get(HALVES) is None
        self._scan: asyncio.Task[None] | None = None

    # the reign

    def start(self) -> None:
        """Begin a reign, or continue one in a new epoch."""
        queue, ops = self._store.queues().get(HALVES), self._store.queues().get(OPS)
        if self._scan is None:
            self._ready = queue is None
            if queue is not None:
                self._scan = self._tasks.start(self._run(queue.end, ops.end if ops else 0))

    def stop(self) -> None:
        """End the reign. Producers that wait for a question ask the next master."""
        self._tasks.cancel()
        askers, self._askers = self._askers, {}
        for group in askers.values():
            for asker in group:
                self._answer(asker, Status.SERVICE_NOT_AVAILABLE, [])
        self._begin()

    # preparing and deciding

    def prepare(self, send: SendRequest) -> SendRequest | SendReply:
        """Return the message to store for a SEND to `%half`, or the answer that refuses it."""
        try:
            wanted = HalfRequest.unpack(send.body)
        except EnvelopeError as e:
            return SendReply(Status.MESSAGE_ILLEGAL, remark=str(e))
        queues = self._catalog.topics.get(wanted.topic)
        if queues is None:
            return SendReply(Status.TOPIC_NOT_EXIST, remark=wanted.topic)
        if send.queue >= queues or not wanted.group:
            why = f"{wanted.topic} has {queues} queues" if wanted.group else "there is no group"
            return SendReply(Status.MESSAGE_ILLEGAL, remark=why)
        if not self._store.fits(wanted.topic.encode(), send.key, wanted.body):
            return SendReply(Status.MESSAGE_ILLEGAL, remark="the message is too large")
        now_ms = self._context.ports.clock.wall_ms()
        stored = Envelope(HALF, wanted.topic, send.queue, send.key, send.body, born_ms=now_ms)
        return SendRequest(HALF_TOPIC, 0, b"", stored.pack())

    def decide(self, send: SendRequest) -> SendRequest | SendReply:
        """Carry out a SEND to `%op`; return the record to store for it, or the answer."""
        try:
            decision = HalfDecision.unpack(send.body)
        except EnvelopeError as e:
            return SendReply(Status.MESSAGE_ILLEGAL, remark=str(e))
        half = self._half(decision.half) if self._ready else None
        if not self._ready or not self._admits():
            return SendReply(Status.SYSTEM_BUSY, remark="the master has just been elected")
        if decision.half not in self._open or half is None or half.key != send.key:
            status = self._rules.status_of_closed()
            return SendReply(status, remark=f"the half message {decision.half} is not open")
        if not self._store.has_room(half.topic.encode(), half.key, half.body + bytes(_RECORD)):
            return SendReply(Status.SERVICE_NOT_AVAILABLE, remark=self._store.log.why_full)
        del self._open[decision.half]
        self._decided[decision.half] = -1
        if self._rules.puts_final(decision.commit) and self._rules.final_first:
            self._put(half)
        if self._config.strict_special:
            return SendRequest(OP_TOPIC, 0, b"", decision.pack())
        self._batch.append(decision)
        self._wake.set()
        return SendReply(Status.SUCCESS, decision.half, epoch=self._epoch())

    def appended(self, stored: SendRequest, offset: int) -> None:
        """Take a record of one of the two topics that was appended, at this queue offset."""
        if stored.topic == HALF_TOPIC:
            group = HalfRequest.unpack(Envelope.unpack(stored.body).body).group
            self._open[offset] = OpenHalf(group, self._loop.time())
        else:
            self._recorded(HalfDecision.unpack(stored.body), offset)
        if self._scan is None:
            self._scan = self._tasks.start(self._run(0, 0))
        self._wake.set()

    def _recorded(self, decision: HalfDecision, offset: int) -> None:
        self._decided[decision.half] = offset
        if decision.commit and not self._rules.final_first:
            self._finals.append((offset, decision.half))

    def _payload(self, offset: int) -> Payload | None:
        queue = self._store.queues().get(HALVES)
        if queue is None or not queue.base <= offset < queue.visible_end:
            return None
        return next(iter(self._store.fetch(HALVES, offset, 1, 1)), None)

    def _half(self, offset: int) -> Envelope | None:
        """Return the final message of a half, None if it is not readable."""
        found = self._payload(offset)
        if found is None:
            return None
        half = Envelope.unpack(found.body)
        return half._replace(body=HalfRequest.unpack(half.body).body)

    def _put(self, half: Envelope) -> None:
        queue = (half.topic.encode(), half.queue)
        self._store.append(queue, half.key, half.body, self._epoch())

    # asking producers

    def serve_asker(self, pull: PullRequest, connection: FrameConnection, request: int) -> None:
        """Answer a PULL of `%ask:GROUP` with open halves, as soon as there are any to ask about."""
        group = pull.topic.removeprefix(ASK_TOPIC)
        wait_s = min(pull.wait_ms / 1000, MAX_WAIT_S)
        asker = _Asker(connection, request)
        asker.timer = self._loop.call_later(wait_s, self._expire, group, asker)
        self._askers.setdefault(group, {})[asker] = None
        self._ask(group)

    def closed(self, connection: FrameConnection) -> None:
        for group, askers in list(self._askers.items()):
            for asker in [each for each in askers if each.connection is connection]:
                asker.cancel_timer()
                self._forget(group, asker)

    def _expire(self, group: str, asker: _Asker) -> None:
        self._forget(group, asker)
        self._answer(asker, Status.PULL_NOT_FOUND, [])

    def _forget(self, group: str, asker: _Asker) -> None:
        self._askers[group].pop(asker, None)
        if not self._askers[group]:
            del self._askers[group]

    def _ask(self, group: str) -> None:
        """Put the questions that are due to a producer that waits, if they can be counted."""
        due = self._questions.get(group, {})
        askers = self._askers.get(group)
        if not due or not askers or not self._may_append():
            return
        asker = next(iter(askers))
        self._forget(group, asker)
        asked = list[Payload]()
        for offset in list(due)[:_MOST_ASKED]:
            found = self._payload(offset) if offset in self._open else None
            if found is not None and not self._count(offset):
                break
            del due[offset]
            if found is not None:
                asked.append(found)
        self._answer(asker, Status.SUCCESS if asked else Status.PULL_NOT_FOUND, asked)

    def _count(self, offset: int) -> bool:
        """Record a question about a half; return whether the disk has room for that."""
        body = HalfCheck(offset).pack()
        if not self._store.has_room(OPS[0], b"", body):
            return False
        record = self._store.append(OPS, b"", body, self._epoch()).queue_offset
        self._first_check.setdefault(offset, record)
        self._open[offset].checks += 1
        return True

    def _may_append(self) -> bool:
        return self._admits() and self._context.may_change.is_set()

    def _answer(self, asker: _Asker, status: Status, halves: list[Payload]) -> None:
        asker.cancel_timer()
        messages = []
        for found in halves:
            half = Envelope.unpack(found.body)
            body = HalfRequest.unpack(half.body).body
            messages.append(Message(found.queue_offset, found.epoch, 0, half.key, body))
        reply = PullReply(status, 0, 0, 0, tuple(messages))
        asker.connection.reply(Op.PULL, asker.request, reply.pack())

    def _check(self) -> None:
        """Ask about halves that are open for too long; discard those that were never decided."""
        now, queue = self._loop.time(), self._store.queues().get(HALVES)
        for offset, half in list(self._open.items()):
            since = max(half.since + self._config.transaction_timeout_s, half.checked_at)
            if now < since or queue is None or offset >= queue.visible_end:
                continue
            half.checked_at = now + self._config.transaction_check_s
            if half.checks >= self._config.transaction_check_max:
                self._discard(offset)
            else:
                self._questions.setdefault(half.group, {})[offset] = None
        for group in list(self._questions):
            self._ask(group)

    def _discard(self, offset: int) -> None:
        half = self._half(offset)
        if half is None or not self._may_append():
            return
        del self._open[offset]
        self._decided[offset] = -1
        self._put(half._replace(topic=self._rules.discarded_to(half.topic), queue=0))
        self._batch.append(HalfDecision(offset, commit=False))
        self._context.events.write("half-discarded", offset=offset)

    # the scan

    async def _run(self, half_end: int, op_end: int) -> None:
        """Rebuild what is open, then ask, record and note. Ends of the queues at the begin."""
        await earlier_is_readable(self._context, self._wake)
        await self._load(half_end, op_end)
        self._ready = True
        while True:
            self._check()
            self._write_records()
            self._put_finals()
            await self._note()
            busy = self._open or self._batch or self._finals
            await self._wake.wait(self._config.delay_scan_s if busy else MAX_WAIT_S)

    async def _load(self, half_end: int, op_end: int) -> None:
        half_at, op_at = half_progress(self._catalog)
        checks = Counter[int]()
        for payload in await self._read(OPS, op_at, op_end):
            record = op_record(payload.body)
            if isinstance(record, HalfCheck):
                checks[record.half] += 1
                self._first_check.setdefault(record.half, payload.queue_offset)
            else:
                self._decided[record.half] = payload.queue_offset
        self._escaped = EscapedRecords(HALF_TOPIC, self._catalog.progress)
        for payload in await self._read(HALVES, half_at, half_end):
            if payload.queue_offset in self._decided:
                continue
            if self._escaped.has(payload.epoch, payload.queue_offset):
                self._decided[payload.queue_offset] = -1
                self._batch.append(HalfDecision(payload.queue_offset, commit=False))
            else:
                group = HalfRequest.unpack(Envelope.unpack(payload.body).body).group
                count = checks[payload.queue_offset]
                self._open[payload.queue_offset] = OpenHalf(group, self._loop.time(), count)

    async def _read(self, key: tuple[bytes, int], at: int, end: int) -> list[Payload]:
        queue, found = self._store.queues().get(key), list[Payload]()
        at = max(at, queue.base if queue else 0)
        while at < end and (some := self._store.fetch(key, at, min(_READ, end - at), 1 << 20)):
            found += some
            at = some[-1].queue_offset + 1
            await asyncio.sleep(0)
        return found

    def _write_records(self) -> None:
        """Write the records of decisions that were answered already."""
        now = self._loop.time()
        if not self._batch or now < self._batch_at or not self._may_append():
            return
        self._batch_at = now + self._config.transaction_op_batch_s
        batch, self._batch = self._batch, []
        for decision in batch:
            body = decision.pack()
            if not self._store.has_room(OPS[0], b"", body):
                self._batch.append(decision)
                continue
            self._decided[decision.half] = self._store.append(
                OPS, b"", body, self._epoch()
            ).queue_offset

    def _put_finals(self) -> None:
        """Put final messages whose records came first."""
        while self._finals and self._is_confirmed(OPS, self._finals[0][0]):
            half = self._half(self._finals.popleft()[1])
            if half is not None:
                self._put(half)

    def _is_confirmed(self, key: tuple[bytes, int], offset: int) -> bool:
        queue = self._store.queues().get(key)
        return queue is not None and offset < queue.visible_end

    # progress

    async def _note(self) -> None:
        """Note from where a new master has to read: before that, the set knows all decisions, and
        nothing counts questions about what is open."""
        now = self._loop.time()
        queue, ops = self._store.queues().get(HALVES), self._store.queues().get(OPS)
        if now < self._note_at or queue is None or ops is None:
            return
        self._note_at = now + self._config.flush_delay_offset_s
        unknown = [h for h, op in self._decided.items() if not 0 <= op < ops.visible_end]
        half = self._rules.first_open((*self._open, *unknown), queue.visible_end)
        records = (*self._decided.items(), *self._first_check.items())
        op = min((*(op for h, op in records if h >= half and op >= 0), ops.visible_end))
        if (half, op) == half_progress(self._catalog):
            return
        changes = [
            MetadataChange("progress", [HALF_SCAN, topic, 0], offset)
            for topic, offset in ((HALF_TOPIC, half), (OP_TOPIC, op))
        ]
        answer = await self._context.make(*changes, *self._escaped.forget_before(half))
        if answer.get("code", Status.SUCCESS) == Status.SUCCESS:
            self._decided = {h: op for h, op in self._decided.items() if h >= half}
            self._first_check = {h: op for h, op in self._first_check.items() if h >= half}
