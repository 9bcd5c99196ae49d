"""Producers send numbered messages to queues and consumer groups read them all. The final phase
then reads every queue.

A *producer* sends its values, 0, 1, 2 ..., each to a queue drawn from the seed or selected by its
client, with several sends open at once; a *consumer* reads its share of the queues for its group
and commits offsets; at the end, *readers* that have never read before read every queue from its
first message to its last, which shows what the store still has, and each group reads on from its
committed offsets, which shows what was delivered to it.

Processes are numbered producers first, then the consumers of each group, then the readers.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, Protocol, Self, cast

from harness.contracts import PollResult, SelectingClient, WorkloadContext, WorkloadPlugin
from harness.errors import BadRequest
from harness.history.notes import CORRUPTED, DRAINED, NOT_DRAINED, SELECTIONS
from harness.operation import NONE, Completion, F, Type
from harness.run.schedule import SkippedArrivals, arrivals, choices, share, values
from harness.trial import Trial
from harness.workloads._body import (
    MIN_BYTES,
    body_of,
    claimed_value,
    damaged_part,
    key_of,
    value_in,
)
from harness.workloads._clients import checkers_of

CHECKERS = (
    "loss",
    "phantom",
    "duplicates",
    "order",
    "offsets",
    "linearizable",
    "replicas",
    "masters",
    "invariants",
    "recovery",
    "availability",
    "coverage",
)
MAX_READERS = 4
HEAVY_ONE_IN = 8  # seeds of a campaign
SELECTED_ONE_IN = 3
POLL_WAIT_S = 0.5  # how long a broker may hold a poll of an empty queue
COMMIT_EVERY_S = 0.5
RETRY_S = 0.05  # after a read that failed
NOTICE_STOP_S = 0.1  # idle producers check so often whether the load is over


def workload(trial: Trial) -> "MessageWorkload":
    return MessageWorkload(MessageOptions.of(trial.load), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign: mostly light, since faults are its subject.

    One seed in eight has a load whose log writes hold several messages each.
    """
    load: dict[str, Any] = {
        "queues": random.choice((1, 2, 4)),
        "producers": random.choice((1, 2, 4)),
        "consumers": random.choice((1, 2)),
        "rate": float(random.choice((8, 15, 25, 50))),
        "concurrency": random.choice((1, 4, 16)),
        "body_bytes": random.choice((16, 64, 300, 3000)),
        "poll_limit": random.choice((4, 64)),
    }
    if random.randrange(HEAVY_ONE_IN) == 0:
        load |= heavy(random)
    if random.randrange(SELECTED_ONE_IN) == 0:
        load["client_selects"] = True
    return load


def heavy(random: Random) -> Mapping[str, Any]:
    """Return a load of many small messages, in bursts."""
    return {
        "rate": float(random.choice((400, 700, 1000))),
        "burst": random.choice((4, 8, 16)),
        "concurrency": 32,
        "body_bytes": random.choice((16, 64)),
    }


@dataclass(frozen=True, kw_only=True)
class MessageOptions:
    """The `load` options of this workload."""

    topics: int = 1  # number of topics
    queues: int = 4  # queues of each topic
    producers: int = 4  # producers of all queues together
    groups: int = 1  # consumer groups; each reads all messages
    consumers: int = 2  # consumers of each group
    rate: float = 400.0  # sends a second, by all producers together; 0: as fast as slots free up
    burst: int = 1  # sends of one producer that are due at the same instant
    concurrency: int = 8  # sends in flight for each producer
    body_bytes: int = 64  # size of a message's body
    poll_limit: int = 64  # maximum number of messages in a poll's answer
    ordered: bool = False  # each producer has its own queue, and one send in flight
    client_selects: bool = False  # the client, not the load, selects the queue of each send

    @classmethod
    def of(cls, load: Mapping[str, Any], workload: str = "messages") -> Self:
        """Return the options of a trial. Raises BadRequest with the key."""
        defaults = {f.name: f.default for f in fields(cls)}
        for key, raw in load.items():
            if key not in defaults:
                names = ", ".join(sorted(defaults))
                raise BadRequest(
                    f"load.{key} is not an option of the workload {workload}; it has: {names}"
                )
            _check(key, defaults[key], raw)
        options = cls(**load)
        if (queues := options.topics * options.queues) > MAX_QUEUES:
            raise BadRequest(
                f"load.topics times load.queues must not exceed {MAX_QUEUES:,}, not {queues:,}"
            )
        return options

    @property
    def open_sends(self) -> int:
        return 1 if self.ordered else self.concurrency


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"send", "poll", "range", "commit", "committed"}),
    calls=(frozenset({"append", "entries", "end", "read", "write"}),),
    options=MessageOptions,
    swarm=swarm,
)


MAX_QUEUES = 10_000  # of all topics together
MIN_RATE = 0.001  # sends a second; a producer's share of much less would be 0: unlimited
_MIN = {"rate": 0, "body_bytes": MIN_BYTES, "groups": 0}
_MAX = {"topics": 1000, "queues": 1000, "producers": 10000, "body_bytes": 1 << 20, "rate": 1e6}


def _check(key: str, default: Any, raw: Any) -> None:
    if isinstance(default, bool):
        if not isinstance(raw, bool):
            raise BadRequest(f"load.{key} must be true or false, not {raw!r}")
        return
    kind = int | float if isinstance(default, float) else int
    least, most = _MIN.get(key, 1), _MAX.get(key, 10000)
    if isinstance(raw, bool) or not isinstance(raw, kind) or not least <= raw <= most:
        number = "number" if isinstance(default, float) else "whole number"
        raise BadRequest(f"load.{key} must be a {number} from {least} to {most:g}, not {raw!r}")
    if key == "rate" and 0 < raw < MIN_RATE:
        raise BadRequest(
            f"load.rate must be 0 (as fast as it goes) or at least {MIN_RATE:g}, not {raw!r}"
        )


@dataclass(frozen=True)
class WorkloadQueue:
    key: int  # its index in names.json
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class MessageConsumer(Protocol):
    """A part of what a process consumes for its group."""

    async def follow(self) -> None:
        """Consume until the load is over."""
        ...

    async def drain(self, within_s: float) -> None:
        """Consume what is left, and note whether that was all."""
        ...


class MessageWorkload:
    """The workload; the same value in every client process."""

    def __init__(self, options: MessageOptions, trial: Trial) -> None:
        self._options = options
        self._drain_within_s = trial.recover_within_s
        self._topics = ["orders" if t == 0 else f"orders{t + 1}" for t in range(options.topics)]
        places = [(topic, number) for topic in self._topics for number in range(options.queues)]
        self.queues = [WorkloadQueue(key, *place) for key, place in enumerate(places)]
        self.keys: Sequence[str] = [str(queue) for queue in self.queues]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self._readers = min(len(self.queues), MAX_READERS)
        self._first_reader = options.producers + options.groups * options.consumers
        self.processes = self._first_reader + self._readers

    def check_options(self) -> None:
        """Raise BadRequest if the options contradict each other; the constructor checked each
        alone."""
        if self._options.ordered and self._options.client_selects:
            raise BadRequest(
                "load.ordered gives each producer a queue of its own, and load.client_selects lets "
                "clients select it; leave one of them out"
            )
        if self._options.ordered and self._options.producers > len(self.queues):
            raise BadRequest(
                f"load.ordered gives each producer a queue of its own, so load.producers "
                f"({self._options.producers}) must not exceed the {len(self.queues)} queues"
            )

    def client_settings(self) -> Mapping[str, Any]:
        topics = dict.fromkeys(self._topics, self._options.queues)
        return {
            "topics": topics,
            "body_bytes": self._options.body_bytes,
            "selects": self._options.client_selects,
        }

    def process_name(self, process: int) -> str:
        if process < self._options.producers:
            return f"producer {process}"
        if process >= self._first_reader:
            return f"reader {process - self._first_reader}"
        group, consumer = divmod(process - self._options.producers, self._options.consumers)
        return f"consumer {consumer} of {group_name(group)}"

    async def load(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                if process < self._options.producers:
                    tasks.create_task(self.producer(context, process).run())
                for consumer in self.consumers(context, process):
                    tasks.create_task(consumer.follow())
        if self._options.client_selects:
            client = cast(SelectingClient, context.client)
            context.note(f"{SELECTIONS} {json.dumps(client.selections())}")

    async def drain(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                for queue in self._read_by(process):
                    reader = self._reader(context, process, F.READ, queue)
                    tasks.create_task(reader.drain(self._drain_within_s))
                for consumer in self.consumers(context, process):
                    tasks.create_task(consumer.drain(self._drain_within_s))

    def producer(self, context: WorkloadContext, process: int) -> "MessageProducer":
        return MessageProducer(context, process, self._options, self.queues)

    def consumers(self, context: WorkloadContext, process: int) -> Sequence["MessageConsumer"]:
        """Return what a process consumes for its group; nothing, if it is no consumer."""
        if not self._options.producers <= process < self._first_reader:
            return []
        consumers = self._options.consumers
        queues = self._queues((process - self._options.producers) % consumers, consumers)
        return [self._reader(context, process, F.POLL, queue) for queue in queues]

    def _read_by(self, process: int) -> list[WorkloadQueue]:
        if process < self._first_reader:
            return []
        return self._queues(process - self._first_reader, self._readers)

    def _queues(self, index: int, of: int) -> list[WorkloadQueue]:
        return [self.queues[key] for key in share(range(len(self.queues)), index, of)]

    def _reader(
        self, context: WorkloadContext, process: int, f: F, queue: WorkloadQueue
    ) -> "QueueReader":
        group = (process - self._options.producers) // self._options.consumers
        name = group_name(group) if f is F.POLL else ""
        return QueueReader(context, process, f, queue, name, self._options.poll_limit)


class _PartialContext:
    """A client process with only some of its logical processes."""

    def __init__(self, context: WorkloadContext, processes: Sequence[int]) -> None:
        self._context = context
        self.processes = processes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def partial_context(context: WorkloadContext, wanted: Callable[[int], bool]) -> WorkloadContext:
    """Return the client process with only the logical processes that are wanted."""
    return cast(
        WorkloadContext,
        _PartialContext(context, [process for process in context.processes if wanted(process)]),
    )


def group_name(number: int) -> str:
    return f"group-{number}"


class MessageProducer:
    """One producer: keeps its slots busy with the sends that are due.

    It uses callbacks, not a task for each send: a client process handles tens of thousands a
    second.
    """

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        options: MessageOptions,
        queues: Sequence[WorkloadQueue],
    ) -> None:
        number = context.process_id(process)
        random = context.random(f"producer-{number}")
        self._context, self._process, self._queues = context, number, queues
        self._body_bytes = options.body_bytes
        self._selects, self._of_topic = options.client_selects, options.queues
        self._free = options.open_sends
        self._slots = options.open_sends
        self._paced = options.rate > 0
        self._arrivals = arrivals(random, options.rate / options.producers, options.burst)
        self._due_s = next(self._arrivals)
        self._skipped = SkippedArrivals(lambda text: context.note(text, number))
        self._values = values(number)
        self._own = process % len(queues) if options.ordered else None
        self._choices = choices(random, len(queues))
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Send until the load is over and everything open has completed."""
        self._pump()
        await self._finished

    def _pump(self) -> None:
        """Send what is due; schedule the next call."""
        if self._context.stopping:
            self._finish()
            return
        if not self._paced:
            while self._free:
                self._send()
            self._loop.call_later(NOTICE_STOP_S, self._pump)
            return
        now_s = self._context.now_s()
        while self._due_s <= now_s:
            if self._free:
                self._send()
            else:
                self._skipped.add(now_s)
            self._due_s = next(self._arrivals)
        self._loop.call_later(min(self._due_s - now_s, NOTICE_STOP_S), self._pump)

    def _take_slot(self) -> tuple[int, WorkloadQueue]:
        """Begin a send; return its value and its queue."""
        self._free -= 1
        own = next(self._choices) if self._own is None else self._own
        return next(self._values), self._queues[own]

    def _free_slot(self) -> None:
        """End a send."""
        self._free += 1
        if self._context.stopping:
            self._finish()
        elif not self._paced:
            self._send()

    def _send(self) -> None:
        value, queue = self._take_slot()
        context, process = self._context, self._process
        key = NONE if self._selects else queue.key
        op = context.invoke(process, F.SEND, key, value)

        def done(completion: Completion) -> None:
            landed = key
            if self._selects and completion.queue != NONE:
                landed = queue.key - queue.number + completion.queue
            context.complete(process, op, F.SEND, landed, value, completion)
            self._free_slot()

        body = body_of(value, self._body_bytes)
        if self._selects:
            client = cast(SelectingClient, context.client)
            client.send_to_any(queue.topic, self._of_topic, key_of(body), body, done)
        else:
            context.client.send(queue.topic, queue.number, key_of(body), body, done)

    def _finish(self) -> None:
        if self._free == self._slots and not self._finished.done():
            self._skipped.note()
            self._finished.set_result(None)


class QueueReader:
    """One process reading one queue: a member of a group (POLL), or a fresh reader (READ)."""

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        f: F,
        queue: WorkloadQueue,
        group: str,
        limit: int,
    ) -> None:
        self._context, self._process, self._f, self._queue = (
            context,
            context.process_id(process),
            f,
            queue,
        )
        self._group, self._limit = group, limit
        self._loop = asyncio.get_running_loop()

    async def follow(self) -> None:
        """Read on from the group's offset until the load is over, committing now and then."""
        at = await self._until(self._start, lambda: self._context.stopping)
        if at is None:
            return
        committed, commit_at = at, self._loop.time() + COMMIT_EVERY_S
        while not self._context.stopping:
            at = await self._poll_on(at)
            if at != committed and self._loop.time() >= commit_at:
                await self._commit(at)
                committed, commit_at = at, self._loop.time() + COMMIT_EVERY_S
        if at != committed:
            await self._commit(at)

    async def drain(self, within_s: float) -> None:
        """Read everything; a note says from where to where, or why not: for `within_s` no read made
        progress. The total time depends on the amount of data."""
        deadline = self._loop.time() + within_s

        def late() -> bool:
            return self._loop.time() >= deadline

        first = at = await self._until(self._start, late)
        furthest = first or 0
        high = await self._until(self._high, late)
        while at is not None and high is not None and at < high and not late():
            at = await self._poll_on(at)
            if at > furthest:
                furthest, deadline = at, self._loop.time() + within_s
            if at >= high:  # an abandoned send may have taken effect meanwhile
                high = await self._until(self._high, late)
        span = {"from": first, "to": at}
        if at is None or high is None or at < high:
            why = f"no further for {within_s:g} s"
            self._note(NOT_DRAINED, {**span, "high": high, "why": why})
            return
        self._note(DRAINED, span)
        if self._group:
            await self._commit(at)

    async def _start(self) -> int:
        """Return where reading begins: the group's offset, or the queue's first message."""
        topic, number = self._queue.topic, self._queue.number
        if self._group:
            committed = await self._context.client.committed(self._group, topic, number)
            if committed >= 0:
                return committed
        return (await self._context.client.range(topic, number))[0]

    async def _high(self) -> int:
        return (await self._context.client.range(self._queue.topic, self._queue.number))[1]

    async def _until(
        self, ask: Callable[[], Awaitable[int]], over: Callable[[], bool]
    ) -> int | None:
        """Ask until there is an answer; return None when `over` is true."""
        while not over():
            try:
                return await ask()
            except ConnectionError:
                await asyncio.sleep(RETRY_S)
        return None

    async def _poll_on(self, at: int) -> int:
        """Poll once; return the offset to continue at."""
        batch = await self._poll(at)
        if batch.completion.type is Type.OK:
            return batch.next_offset
        await asyncio.sleep(RETRY_S)
        return at

    async def _poll(self, at: int) -> PollResult:
        context, process, f, queue = self._context, self._process, self._f, self._queue
        op = context.invoke(process, f, queue.key, NONE, at)
        batch = await context.client.poll(queue.topic, queue.number, at, self._limit, POLL_WAIT_S)
        for pos, message in enumerate(batch.messages):
            value = value_in(message.body)
            if damaged := damaged_part(message.body, message.key):
                fields = {"offset": message.offset, "claimed": claimed_value(message.body)}
                self._note(CORRUPTED, {**fields, "damaged": damaged}, op)
            context.received(process, op, f, queue.key, pos, value, message)
        next_offset = batch.next_offset if batch.completion.type is Type.OK else NONE
        completion = replace(batch.completion, offset=next_offset)
        context.complete(process, op, f, queue.key, NONE, completion)
        return batch

    async def _commit(self, at: int) -> None:
        context, process, queue = self._context, self._process, self._queue
        op = context.invoke(process, F.COMMIT, queue.key, NONE, at)
        done = await context.client.commit(self._group, queue.topic, queue.number, at)
        context.complete(process, op, F.COMMIT, queue.key, NONE, replace(done, offset=at))

    def _note(self, word: str, fields: Mapping[str, Any], op: int = NONE) -> None:
        who = {"key": self._queue.key, **({"group": self._group} if self._group else {})}
        self._context.note(f"{word} {json.dumps({**who, **fields})}", self._process, op)
