"""Elements that are put into an object one by one, and read whole at the end: sets and logs.

An object is a queue of messages; an element is a message. *Writers* put elements in, one at a time
each; at the end *readers* that have never read before read every object from its first message to
its last, each in one operation: a read that fails on its way begins anew as another operation.

A client that tries again may put an element in twice. In a set nobody can tell; in a log it shows,
so nothing is tried again there.

Objects are read in the final phase alone. Brokers show what is confirmed, and a master that was
deposed may still serve pulls: while faults last, what a queue shows may be older than what was
acknowledged, which is no promise broken (the workload `messages` judges such reads by offsets).
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from harness.contracts import Crew, Received
from harness.history.notes import CORRUPTED
from harness.operation import NONE, Completion, F, Type
from harness.run.schedule import values
from harness.trial import Trial
from harness.workloads._body import body_of, damaged_part, key_of, value_in
from harness.workloads._clients import RETRY_S, Client, checked

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
    """The load of one seed of a campaign."""
    return {
        "objects": random.choice((1, 2, 4)),
        "writers": random.choice((2, 8, 32)),
        "rate": float(random.choice((8, 15, 25, 50))),
        "body_bytes": random.choice((16, 64, 300, 3000)),
    }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `load` may say in a trial of these workloads."""

    objects: int = 4  # sets or logs
    writers: int = 16  # of all of them
    rate: float = 200.0  # elements a second, of all writers together
    body_bytes: int = 64  # of an element


class Elements:
    """The workload; the same value in every crew. `put`: how an element goes in, F.ADD to a set and
    F.APPEND to a log."""

    def __init__(self, trial: Trial, topic: str, put: F) -> None:
        self.options = Options(**checked(Options, RANGES, trial.load, trial.workload))
        self.topic, self.put = topic, put
        self.within_s = trial.recover_within_s
        self.keys: Sequence[str] = [f"{topic}-{n}" for n in range(self.options.objects)]
        self.checkers: Sequence[str] = trial.checkers or CHECKERS
        self.processes = self.options.writers + READERS

    def check_options(self) -> None:
        """They were checked when this was made."""

    def client_settings(self) -> Mapping[str, Any]:
        return {
            "topics": {self.topic: self.options.objects},
            "body_bytes": self.options.body_bytes,
            "once": self.put is F.APPEND,
        }

    def who(self, process: int) -> str:
        reader = process - self.options.writers
        return f"reader {reader}" if reader >= 0 else f"writer {process}"

    async def load(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in crew.processes:
                if process < self.options.writers:
                    tasks.create_task(Writer(self, crew, process).run())

    async def drain(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in crew.processes:
                if process >= self.options.writers:
                    tasks.create_task(Reader(self, crew, process).run())


class Writer(Client):
    """Puts elements in that nobody else ever does."""

    def __init__(self, workload: Elements, crew: Crew, process: int) -> None:
        super().__init__(crew, process)
        self.workload = workload

    async def run(self) -> None:
        options, fresh = self.workload.options, values(self.first)
        while await self.due(options.rate / options.writers):
            await self._put(self.random.randrange(options.objects), next(fresh))

    async def _put(self, key: int, value: int) -> None:
        """The offset is told of logs: a set has no places."""
        f, body = self.workload.put, body_of(value, self.workload.options.body_bytes)
        ended: asyncio.Future[Completion] = self.loop.create_future()
        op = self.invoke(f, key, value)
        self.crew.client.send(self.workload.topic, key, key_of(body), body, ended.set_result)
        done = await ended
        self.complete(op, f, key, value, done if f is F.APPEND else replace(done, offset=NONE))


class Reader(Client):
    """Reads every object whole."""

    def __init__(self, workload: Elements, crew: Crew, process: int) -> None:
        super().__init__(crew, process)
        self.workload = workload

    async def run(self) -> None:
        deadline_s = self.loop.time() + self.workload.within_s
        for key in range(self.workload.options.objects):
            read = await self._read(key)
            while not read and self.loop.time() < deadline_s:
                await asyncio.sleep(RETRY_S)
                read = await self._read(key)

    async def _read(self, key: int) -> bool:
        """One operation: all elements, or none."""
        op = self.invoke(F.LIST, key)
        try:
            found = await self._found(key)
        except ConnectionError as e:
            self.complete(op, F.LIST, key, NONE, Completion(Type.FAIL, error=str(e)))
            return False
        for pos, value in self._placed([(m.offset, self._value(m, op)) for m in found]):
            self.crew.received(self.process, op, F.LIST, key, pos, value, _BARE)
        self.complete(op, F.LIST, key, NONE, Completion(Type.OK))
        return True

    def _value(self, message: Received, op: int) -> int:
        """What a message carries; of a damaged one, what nobody ever put in."""
        damaged = damaged_part(message.body, message.key)
        if damaged:
            said = json.dumps({"offset": message.offset, "damaged": damaged})
            self.crew.note(f"{CORRUPTED} {said}", self.process, op)
        return -2 - message.offset if damaged else value_in(message.body)

    def _placed(self, found: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
        """In a log an element is where it is; in a set it has no place, and is there but once."""
        if self.workload.put is F.APPEND:
            return found
        return enumerate(dict.fromkeys(value for _, value in found))

    async def _found(self, key: int) -> Sequence[Received]:
        """ConnectionError: not all of it could be read."""
        client, topic = self.crew.client, self.workload.topic
        at, end = await client.range(topic, key)
        found: list[Received] = []
        while at < end:
            batch = await client.poll(topic, key, at, READ_LIMIT, READ_WAIT_S)
            if batch.completion.type is not Type.OK:
                raise ConnectionError(batch.completion.error)
            if batch.next_offset <= at:
                raise ConnectionError(f"{topic}-{key} gives nothing from {at} on, of {end}")
            found += batch.messages
            at = batch.next_offset
            if at >= end:  # a put that nobody waited for may have landed meanwhile
                end = (await client.range(topic, key))[1]
        return found


_BARE = Received(NONE, NONE, b"")
