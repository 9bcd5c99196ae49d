"""Elements that are added to an object one by one, and read whole at the end: sets and logs.

An object is a queue of messages; an element is a message. *Writers* add elements, one at a time
each; at the end *readers* that have never read before read every object from its first message to
its last, each in one operation: a read that fails midway is repeated as another operation.

A client that retries may add an element twice. In a set that is invisible; in a log it shows, so
nothing is retried there.

Objects are read in the final phase alone. Brokers show what is confirmed, and a deposed master may
still serve pulls: while faults last, a queue may look older than what was acknowledged, which
violates nothing (the workload `messages` judges such reads by offsets).
"""

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from harness.contracts import ReceivedMessage, WorkloadContext
from harness.history.notes import CORRUPTED
from harness.operation import NONE, Completion, F, Type
from harness.run.schedule import values
from harness.trial import Trial
from harness.workloads._body import body_of, damaged_part, key_of, value_in
from harness.workloads._clients import FinalReadsWorkload, ObjectClient, check_load, checkers_of

CHECKERS = ("objects", "replicas", "invariants", "recovery", "coverage")
READERS = 2  # of every object, on client nodes of their own if there are two
READ_LIMIT = 256  # messages in one answer
READ_WAIT_S = 0.5
RANGES = {
    "objects": (1, 1000),
    "writers": (1, 1000),
    "body_bytes": (16, 1 << 20),
}


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "objects": random.choice((1, 2, 4)),
        "writers": random.choice((2, 8, 32)),
        "rate": float(random.choice((8, 15, 25, 50))),
        "body_bytes": random.choice((16, 64, 300, 3000)),
    }


@dataclass(frozen=True, kw_only=True)
class ElementOptions:
    """The `load` options of these workloads."""

    objects: int = 4  # number of sets or logs
    writers: int = 16  # clients that add elements, to all of them together
    rate: float = 200.0  # elements a second, by all writers together
    body_bytes: int = 64  # size of an element


class ElementWorkload(FinalReadsWorkload):
    """The workload; the same value in every client process. `put`: how an element is added, F.ADD
    to a set and F.APPEND to a log."""

    noun = "writer"

    def __init__(self, trial: Trial, topic: str, put: F) -> None:
        self.options = ElementOptions(
            **check_load(ElementOptions, RANGES, trial.load, trial.workload)
        )
        self.topic, self.put = topic, put
        self.within_s = trial.recover_within_s
        self.keys: Sequence[str] = [f"{topic}-{n}" for n in range(self.options.objects)]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self.operating = self.options.writers
        self.processes = self.operating + READERS

    def check_options(self) -> None:
        """Do nothing: the constructor checked them."""

    def client_settings(self) -> Mapping[str, Any]:
        return {
            "topics": {self.topic: self.options.objects},
            "body_bytes": self.options.body_bytes,
            "once": self.put is F.APPEND,
        }

    def operate(self, context: WorkloadContext, process: int) -> Coroutine[Any, Any, None]:
        return ElementWriter(self, context, process).run()

    def read(
        self, context: WorkloadContext, process: int, reader: int
    ) -> Coroutine[Any, Any, None]:
        return ElementReader(self, context, process).run()


class ElementWriter(ObjectClient):
    """Adds elements that no other client adds."""

    def __init__(self, workload: ElementWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self.workload = workload

    async def run(self) -> None:
        options, fresh = self.workload.options, values(self.first)
        while await self.due(options.rate / options.writers):
            await self._put(self.random.randrange(options.objects), next(fresh))

    async def _put(self, key: int, value: int) -> None:
        """Add an element. Its offset is recorded for logs only: a set has no order."""
        f, body = self.workload.put, body_of(value, self.workload.options.body_bytes)
        ended: asyncio.Future[Completion] = self.loop.create_future()
        op = self.invoke(f, key, value)
        self.context.client.send(self.workload.topic, key, key_of(body), body, ended.set_result)
        done = await ended
        self.complete(op, f, key, value, done if f is F.APPEND else replace(done, offset=NONE))


class ElementReader(ObjectClient):
    """Reads every object whole."""

    def __init__(self, workload: ElementWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self.workload = workload

    async def run(self) -> None:
        keys = range(self.workload.options.objects)
        await self.read_each_at_least_once(keys, self._read, self.workload.within_s)

    async def _read(self, key: int) -> bool:
        """Read all elements, or none, in one operation."""
        op = self.invoke(F.LIST, key)
        try:
            messages = await self._found(key)
        except ConnectionError as e:
            self.complete(op, F.LIST, key, NONE, Completion(Type.FAIL, error=str(e)))
            return False
        for pos, value in self._placed([(m.offset, self._value(m, op)) for m in messages]):
            self.context.received(self.process, op, F.LIST, key, pos, value, _BARE)
        self.complete(op, F.LIST, key, NONE, Completion(Type.OK))
        return True

    def _value(self, message: ReceivedMessage, op: int) -> int:
        """Return the value that a message carries; for a damaged one, a value that was never
        added."""
        damaged = damaged_part(message.body, message.key)
        if damaged:
            damage = json.dumps({"offset": message.offset, "damaged": damaged})
            self.context.note(f"{CORRUPTED} {damage}", self.process, op)
        return -2 - message.offset if damaged else value_in(message.body)

    def _placed(self, elements: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """Return the elements with their positions: of a log their offsets; of a set, where each
        counts once, their order."""
        if self.workload.put is F.APPEND:
            return elements
        return enumerate(dict.fromkeys(value for _, value in elements))

    async def _found(self, key: int) -> Sequence[ReceivedMessage]:
        """Return the messages. Raises ConnectionError if not all could be read."""
        client, topic = self.context.client, self.workload.topic
        at, end = await client.range(topic, key)
        messages: list[ReceivedMessage] = []
        while at < end:
            batch = await client.poll(topic, key, at, READ_LIMIT, READ_WAIT_S)
            if batch.completion.type is not Type.OK:
                raise ConnectionError(batch.completion.error)
            if batch.next_offset <= at:
                raise ConnectionError(f"{topic}-{key} gives nothing from {at} on, of {end}")
            messages += batch.messages
            at = batch.next_offset
            if at >= end:  # an abandoned put may have taken effect meanwhile
                end = (await client.range(topic, key))[1]
        return messages


_BARE = ReceivedMessage(NONE, NONE, b"")
