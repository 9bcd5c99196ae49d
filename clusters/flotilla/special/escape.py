"""An acting master serves special messages: what they put out *escapes* to other broker sets.

A slave that serves for its absent master (broker/acting.py, RIP-32) scans special messages as the
master does, but its log is the master's, and it appends nothing. What its scans would put is sent
to a master of another set: to one in the same process (a container) if there is one, else, with
`enableRemoteEscape`, to one that the nameservers know, by an ordinary send (RocketMQ's
EscapeBridge). It may land in any queue of its topic there, so order within a queue is not kept.

**Nothing is lost.** A record counts as escaped once the other set has answered SUCCESS, by its own
rules of acknowledgement. Escaped records are noted one by one (`EscapedRecords`), not as a time up
to which everything was put: the absent master may have messages that this slave lacks. The notes
are a part of the slave's metadata. A master that starts takes them back from each slave before it
serves (`steering.static_role`), and its scans leave those records out.

**What may come twice:** a message whose send to the other set ended without an answer; one that the
master had put, if the slave does not know that yet; one that was escaped by a slave that is gone
when the master returns, or lost power before its notes were on its disk; and everything, while a
slave acts beside a master from which only nameservers are cut off.

**What waits for the master:** messages that the slave does not have, or does not know as confirmed,
and all while no other set can take them. RocketMQ drops a delayed message that three sends could
not escape, unless `timerEnableRetryUntilSuccess` is set, and a half message after ten.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol
from zlib import crc32

from ..broker.catalog import Catalog
from ..broker.handler import HandlerContext
from ..net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from ..net.wire import Json, Op, SendReply, SendRequest, Status
from ..rules import Rules
from ..store.consume_queue import Key
from ..store.record import Payload
from ..world.timers import WakeEvent
from .delay import QUEUE as DELAYS
from .envelope import (
    DELAY_TOPIC,
    HALF_TOPIC,
    RETRY_TOPIC,
    REVIVE_TOPIC,
    Envelope,
    HalfDecision,
    op_record,
)
from .halves import HALVES, OPS
from .pop import REVIVES
from .pop_records import PopLedger, RetriedMessage, escaped_number
from .progress import REVIVE_SCAN, DelayProgress, EscapedRecords, half_progress

_READ = 256  # records that are read at once
_MAX_ESCAPES = 64  # sends at a time
_SEND_S = 3.0  # time limit of a send, as in RocketMQ; scaled
_RETRY_S = 0.5  # between two sends of a message; scaled
_MASTER = "0"  # the id of a master at the nameservers


class Neighbour(Protocol):
    """A broker of the same process."""

    def admits(self) -> bool:
        """Return whether it is a master that would append a send."""
        ...

    def queues_of(self, topic: str) -> int:
        """Return the number of its queues of a topic."""
        ...

    def take(self, send: SendRequest) -> "asyncio.Future[SendReply]":
        """Serve a send as one of a client; return a future of its answer."""
        ...


class Escape(NamedTuple):
    """A message to be escaped, and the record of the system topic from which it comes.

    `topic`: the one for whose queues it is; `message`: a send, with a queue of the own set;
    `by_hash`: whether it goes to the set that topic and own set choose, as all of its kind.
    """

    epoch: int
    offset: int
    topic: str
    message: SendRequest
    by_hash: bool = False


class EscapeAnswer(NamedTuple):
    """The set to which a message was sent, "" if there was none, and its answer."""

    to: str
    status: Status


class EscapeBridge:
    """Sends messages to masters of other sets. `neighbours`: the brokers of this process."""

    def __init__(self, context: HandlerContext, neighbours: Mapping[str, Neighbour]) -> None:
        self._context, self._config = context, context.config
        self._neighbours = neighbours
        self._pool = Pool(self._config.controller_rpc_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._routes: dict[str, tuple[float, Json]] = {}  # topic -> valid until, route
        self._turn = 0
        self._last = EscapeAnswer("", Status.SUCCESS)

    def close(self) -> None:
        self._pool.close()

    async def escape(self, topic: str, escapes: Sequence[Escape]) -> list[Status]:
        """Send messages; return their answers. `topic`: the system topic of the records."""
        answers = await asyncio.gather(*(self._send(each) for each in escapes))
        self._turn += any(answer.status is not Status.SUCCESS for answer in answers)
        for answer in dict.fromkeys(answers):
            done = answer.status is Status.SUCCESS
            if done or answer != self._last:
                rows = [
                    [each.epoch, each.offset]
                    for each, got in zip(escapes, answers, strict=True)
                    if got == answer
                ]
                self._context.events.write(
                    "escaped", topic=topic, to=answer.to, status=int(answer.status), records=rows
                )
            self._last = answer
        return [answer.status for answer in answers]

    async def _send(self, escape: Escape) -> EscapeAnswer:
        timeout_s = _SEND_S * self._config.time_scale
        here = {name: each.admits() for name, each in self._neighbours.items()}
        for name in self._context.rules.sets_to_escape_to(self._config.broker_name, here):
            neighbour = self._neighbours[name]
            if queues := neighbour.queues_of(escape.topic):
                taken = neighbour.take(_for_queue(escape.message, queues))
                try:
                    async with asyncio.timeout(timeout_s):
                        return EscapeAnswer(name, (await taken).status)
                except TimeoutError:
                    return EscapeAnswer(name, Status.FLUSH_SLAVE_TIMEOUT)
        if not self._config.remote_escape:
            return EscapeAnswer("", Status.SERVICE_NOT_AVAILABLE)
        return await self._send_away(escape, timeout_s)

    async def _send_away(self, escape: Escape, timeout_s: float) -> EscapeAnswer:
        """Send a message to a master in another process."""
        topic, message = escape.topic, escape.message
        route = await self._route(topic)
        brokers = route.get("brokers", {})
        queues = {
            row["brokerName"]: row["queues"] for row in route.get("topics", {}).get(topic, ())
        }
        takes = {
            name: not brokers[name].get("readOnly", False)
            for name in queues
            if _MASTER in brokers.get(name, {"addrs": {}})["addrs"]
        }
        sets = self._context.rules.sets_to_escape_to(self._config.broker_name, takes)
        if not sets:
            return EscapeAnswer("", Status.SERVICE_NOT_AVAILABLE)
        place = f"{topic} of {self._config.broker_name}".encode()
        name = sets[(crc32(place) if escape.by_hash else self._turn + message.queue) % len(sets)]
        address = str(brokers[name]["addrs"][_MASTER])
        try:
            connection = await self._pool.get(address)
            body = _for_queue(message, int(queues[name])).pack()
            reply = SendReply.unpack(await connection.call(Op.SEND, body, timeout_s))
        except (Unreachable, ConnectionLost, CallTimeout):
            self._pool.drop(address)
            self._routes.clear()
            return EscapeAnswer(name, Status.SYSTEM_ERROR)
        if reply.status is not Status.SUCCESS:
            self._routes.clear()
        return EscapeAnswer(name, reply.status)

    async def _route(self, topic: str) -> Json:
        """Return the route of a topic as the first nameserver that answers has it."""
        until, route = self._routes.get(topic, (0.0, {}))
        if self._loop.time() < until:
            return route
        for address in self._config.nameservers:
            try:
                route = await self._pool.ask(
                    address, Op.ROUTE, {"topic": topic}, self._config.heartbeat_rpc_timeout_s
                )
            except (Unreachable, ConnectionLost, CallTimeout):
                self._pool.drop(address)
                continue
            until = self._loop.time() + self._config.sync_broker_member_group_s
            self._routes[topic] = until, route
            return route
        return {}


def _for_queue(message: SendRequest, queues: int) -> SendRequest:
    return SendRequest(message.topic, message.queue % queues, message.key, message.body)


class ActingScan(Protocol):
    """Finds what has to be escaped of one kind of special message."""

    topic: str

    def begin(self) -> None:
        """Begin where the master's progress ends."""
        ...

    def due(self, now: float) -> list[Escape]:
        """Take what is due. `now`: of the event loop."""
        ...

    def settle(self, escape: Escape, escaped: bool, now: float) -> None:
        """Note a message as escaped, or keep it for the next attempt."""
        ...


class ActingScans:
    """Runs the scans while this broker acts as master."""

    def __init__(self, context: HandlerContext, bridge: EscapeBridge) -> None:
        self._context, self._bridge = context, bridge
        self._scans: Sequence[ActingScan] = (
            DelayEscapes(context),
            HalfEscapes(context),
            RetryEscapes(context),
        )
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()

    def start(self) -> None:
        for scan in self._scans:
            scan.begin()
            self._tasks.start(self._run(scan))

    def stop(self) -> None:
        self._tasks.cancel()

    async def _run(self, scan: ActingScan) -> None:
        wake, rules = WakeEvent(), self._context.rules
        while True:
            escapes = scan.due(self._loop.time())
            answers = await self._bridge.escape(scan.topic, escapes) if escapes else []
            for each, status in zip(escapes, answers, strict=True):
                scan.settle(each, rules.is_escaped(status), self._loop.time())
            more = len(escapes) == _MAX_ESCAPES
            await wake.wait(0.0 if more else self._context.config.delay_scan_s)


class DueRecords:
    """Records that wait until they are due, by the clock, and those that are to be tried again, by
    the event loop. A record is a tuple of numbers."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._waiting: list[tuple[int, tuple[int, ...]]] = []  # heaps of times and records
        self._again: list[tuple[float, tuple[int, ...]]] = []

    def add(self, due_ms: int, *record: int) -> None:
        heappush(self._waiting, (due_ms, record))

    def again(self, at_s: float, *record: int) -> None:
        """Try a record again; one that would be tried at that time is not added twice."""
        if (at_s, record) not in self._again:
            heappush(self._again, (at_s, record))

    def take(self, now_s: float, now_ms: int) -> tuple[int, ...] | None:
        """Take the next record; None if nothing is due."""
        if self._again and self._again[0][0] <= now_s:
            return heappop(self._again)[1]
        if self._waiting and self._rules.is_due(self._waiting[0][0], now_ms):
            return heappop(self._waiting)[1]
        return None


class NotedEscapes:
    """What a scan has escaped, and how often it failed to escape each record."""

    def __init__(self, topic: str, catalog: Catalog) -> None:
        self._catalog, self._escaped = catalog, EscapedRecords(topic, catalog.progress)
        self._failed: dict[tuple[int, int], int] = {}  # epoch, queue offset -> failures

    def has(self, epoch: int, offset: int) -> bool:
        return self._escaped.has(epoch, offset)

    def fail(self, epoch: int, offset: int) -> int:
        """Count a failure; return how many there are."""
        failures = self._failed[epoch, offset] = self._failed.get((epoch, offset), 0) + 1
        return failures

    def add(self, epoch: int, offset: int) -> None:
        """Note a record as escaped."""
        self._failed.pop((epoch, offset), None)
        self._catalog.act(self._escaped.add(epoch, offset))


class EscapeSource:
    """The data of this broker that the scans read."""

    def __init__(self, context: HandlerContext) -> None:
        self._context, self._config, self._rules = context, context.config, context.rules
        self._store, self._catalog = context.replica.store, context.replica.catalog

    def _readable(self, key: Key, at: int) -> Iterator[Payload]:
        """Yield the records of a queue that can be read from an offset on; those before the queue's
        first one were deleted."""
        queue = self._store.queues().get(key)
        if queue is None:
            return
        at = max(at, queue.base)
        while at < queue.visible_end and (found := self._store.fetch(key, at, _READ, 1 << 20)):
            yield from found
            at = found[-1].queue_offset + 1


class DelayEscapes(EscapeSource):
    """Escapes delayed messages that are due."""

    topic = DELAY_TOPIC

    def begin(self) -> None:
        progress = DelayProgress.of(self._catalog)
        self._put_ms, self._at = progress.due_ms, progress.floor
        self._escaped = NotedEscapes(DELAY_TOPIC, self._catalog)
        self._records = DueRecords(self._rules)  # epoch, queue offset

    def due(self, now: float) -> list[Escape]:
        self._read_new()
        now_ms, found = self._context.ports.clock.wall_ms(), list[Escape]()
        while len(found) < _MAX_ESCAPES and (place := self._records.take(now, now_ms)):
            epoch, offset = place
            payload = next(iter(self._store.fetch(DELAYS, offset, 1, 1)), None)
            if payload is None or (payload.epoch, payload.queue_offset) != (epoch, offset):
                self._context.events.write("delay-dropped", offset=offset, why="it was deleted")
                continue
            final = Envelope.unpack(payload.body)
            message = SendRequest(final.topic, final.queue, final.key, final.body)
            found.append(Escape(epoch, offset, final.topic, message))
        return found

    def settle(self, escape: Escape, escaped: bool, now: float) -> None:
        place = escape.epoch, escape.offset
        if not escaped:
            failures = self._escaped.fail(*place)
            if not self._rules.escape_drops(failures, self._config.timer_retry_until_success):
                self._records.again(now + _RETRY_S * self._config.time_scale, *place)
                return
            why = "it could not be escaped"
            self._context.events.write("delay-dropped", offset=escape.offset, why=why)
        self._escaped.add(*place)

    def _read_new(self) -> None:
        """Read records that have become readable."""
        for payload in self._readable(DELAYS, self._at):
            due_ms = Envelope.unpack(payload.body).due_ms
            place = payload.epoch, payload.queue_offset
            if due_ms > self._put_ms and not self._escaped.has(*place):
                self._records.add(due_ms, *place)
            self._at = payload.queue_offset + 1


class HalfEscapes(EscapeSource):
    """Escapes half messages that are open for `transactionTimeOut`: as new half messages, about
    which another set asks. The master that returns takes the old ones as rolled back."""

    topic = HALF_TOPIC

    def begin(self) -> None:
        self._at = half_progress(self._catalog)
        self._escaped = NotedEscapes(HALF_TOPIC, self._catalog)
        self._open: dict[tuple[int, int], float] = {}  # epoch, queue offset -> when it is due
        self._decided: set[int] = set()

    def due(self, now: float) -> list[Escape]:
        self._read_new(now)
        found = list[Escape]()
        for (epoch, offset), due in list(self._open.items()):
            if offset in self._decided:
                del self._open[epoch, offset]
            elif due <= now and len(found) < _MAX_ESCAPES:
                del self._open[epoch, offset]
                payload = next(iter(self._store.fetch(HALVES, offset, 1, 1)), None)
                if payload is None or payload.epoch != epoch or payload.queue_offset != offset:
                    continue  # it was deleted
                half = Envelope.unpack(payload.body)
                message = SendRequest(HALF_TOPIC, half.queue, half.key, half.body)
                found.append(Escape(epoch, offset, half.topic, message))
        return found

    def settle(self, escape: Escape, escaped: bool, now: float) -> None:
        place = escape.epoch, escape.offset
        if not escaped:
            failures = self._escaped.fail(*place)
            if not self._rules.half_escape_drops(failures, self._config.strict_special):
                self._open[place] = now + _RETRY_S * self._config.time_scale
                return
            self._context.events.write("half-dropped", offset=escape.offset)
        self._escaped.add(*place)

    def _read_new(self, now: float) -> None:
        """Read records that have become readable: decisions first."""
        half_at, op_at = self._at
        for payload in self._readable(OPS, op_at):
            record, op_at = op_record(payload.body), payload.queue_offset + 1
            if isinstance(record, HalfDecision):
                self._decided.add(record.half)
        for payload in self._readable(HALVES, half_at):
            place, half_at = (payload.epoch, payload.queue_offset), payload.queue_offset + 1
            if not self._escaped.has(*place):
                self._open[place] = now + self._config.transaction_timeout_s
        self._at = half_at, op_at


class RetryEscapes(EscapeSource):
    """Escapes messages that a group was given and did not acknowledge in time: another set gives
    them again. All of a topic go to one set, which a hash chooses."""

    topic = REVIVE_TOPIC

    def begin(self) -> None:
        self._at = self._catalog.progress.get((REVIVE_SCAN, REVIVE_TOPIC, 0), 0)
        self._escaped = NotedEscapes(REVIVE_TOPIC, self._catalog)
        self._ledger = PopLedger()
        self._checkpoints = DueRecords(self._rules)

    def due(self, now: float) -> list[Escape]:
        self._read_new()
        now_ms, found = self._context.ports.clock.wall_ms(), list[Escape]()
        while len(found) < _MAX_ESCAPES and (offset := self._checkpoints.take(now, now_ms)):
            found += self._left_of(*offset)
        return found

    def settle(self, escape: Escape, escaped: bool, now: float) -> None:
        if escaped:
            self._escaped.add(escape.epoch, escape.offset)
            return
        again_at = now + _RETRY_S * self._config.time_scale
        self._checkpoints.again(again_at, escape.offset // escaped_number(1, 0))

    def _left_of(self, offset: int) -> list[Escape]:
        """Return what is left of a checkpoint."""
        found, escapes = self._ledger.open.get(offset), list[Escape]()
        if found is None:
            return []
        group, topic, queue = found.place
        key = REVIVES if found.is_retry else (topic.encode(), queue)
        for number in sorted(found.left):
            name, source = escaped_number(offset, number), found.sources[number]
            payload = next(iter(self._store.fetch(key, source, 1, 1)), None)
            gone = payload is None or payload.queue_offset != source
            if gone or payload is None or self._escaped.has(found.epoch, name):
                continue
            message = payload.key, payload.body
            if found.is_retry:
                last = RetriedMessage.read(Envelope.unpack(payload.body))
                source, message = last.offset, (last.key, last.body)
            again = offset, number, found.place, source, found.tries + 1
            copy = RetriedMessage(*again, *message).pack()
            if self._rules.retries_are_escaped:
                send = SendRequest(RETRY_TOPIC, queue, group.encode(), copy)
                escapes.append(Escape(found.epoch, name, topic, send, by_hash=True))
            else:
                self._store.append(REVIVES, b"", copy, found.epoch)
        return escapes

    def _read_new(self) -> None:
        """Read records that have become readable."""
        for payload in self._readable(REVIVES, self._at):
            self._ledger.apply(payload.body, payload.queue_offset, payload.epoch)
            if (given := self._ledger.open.get(payload.queue_offset)) is not None:
                self._checkpoints.add(given.due_ms, payload.queue_offset)
            self._at = payload.queue_offset + 1
