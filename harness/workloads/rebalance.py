"""Consumers join and leave their groups while the cluster breaks, and share the queues each time.

A member that belongs to its group takes the locks of the queues that are allocated to it, reads
each from the group's offset on and commits; when a queue goes to another member, or it leaves, it
gives the lock back. Producers send all the while, as those of the workload `messages` do. In the
final phase every member joins, waits until it knows all others and holds the locks of its own
queues, and reads them to the end: so each queue must have found exactly one owner, and the group
must have been given every message.

    seatrial run rebalance --set lockInStrictMode=true --faults kill,pause,partition
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from harness.contracts import Crew, GroupClient, WorkloadPlugin
from harness.history.notes import MEMBER, UNSETTLED
from harness.operation import NONE, Completion, F, Type
from harness.trial import Trial
from harness.workloads import messages
from harness.workloads._clients import checked
from harness.workloads.messages import Messages, Queue, Reader

CHECKERS = (
    "loss",
    "phantom",
    "duplicates",
    "order",
    "offsets",
    "linearizable",
    "replicas",
    "masters",
    "assignment",
    "invariants",
    "recovery",
    "availability",
    "coverage",
)
STEP_S = 0.1  # between two looks of a member at what is allocated to it


def workload(trial: Trial) -> "Rebalance":
    return Rebalance(Options.of(trial.load), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """The load of one seed of a campaign."""
    return {
        "queues": random.choice((2, 4, 8)),
        "groups": random.choice((1, 1, 2)),
        "members": random.choice((2, 3, 4)),
        "rate": float(random.choice((8, 15, 25))),
        "stay_ms": random.choice((1000, 3000)),
        "away_ms": random.choice((200, 1000)),
    }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `load` may say in a trial of this workload."""

    queues: int = 8  # of the topic
    producers: int = 2  # of its messages
    groups: int = 1  # of consumers; each reads everything
    members: int = 4  # of each group
    rate: float = 100.0  # sends a second
    stay_ms: int = 6000  # for which a member belongs to its group, on average
    away_ms: int = 2000  # until it joins again, on average

    @classmethod
    def of(cls, load: Mapping[str, Any]) -> "Options":
        """From a trial. Raises BadRequest with the key's name."""
        ranges = {
            **dict.fromkeys(("queues", "producers", "groups", "members"), (1, 1000)),
            **dict.fromkeys(("stay_ms", "away_ms"), (1, 3_600_000)),
        }
        return cls(**checked(cls, ranges, load, "rebalance"))

    @property
    def sends(self) -> dict[str, Any]:
        """The load of the messages beside."""
        names = ("queues", "producers", "rate")
        return {"groups": 0, **{name: getattr(self, name) for name in names}}


PLUGIN = WorkloadPlugin(
    workload=workload,
    options=Options,
    swarm=swarm,
    client_faults=frozenset({"pause"}),  # a consumer sleeps over the leases of its queues
)


class Rebalance:
    """The workload; the same value in every client process."""

    def __init__(self, options: Options, trial: Trial) -> None:
        self._options = options
        self._within_s = trial.recover_within_s
        self._beside = Messages(messages.Options.of(options.sends), trial)
        self._first = self._beside.processes
        self._groups = [f"group-{number}" for number in range(options.groups)]
        self.processes = self._first + options.groups * options.members
        queues = self._beside.queues
        self.keys: Sequence[str] = [
            *self._beside.keys,
            *(f"{group} on {queue}" for group in self._groups for queue in queues),
            *self._groups,
        ]
        self.checkers: Sequence[str] = trial.checkers or CHECKERS

    def check_options(self) -> None:
        self._beside.check_options()

    def client_settings(self) -> Mapping[str, Any]:
        return {**self._beside.client_settings(), "strict": ("locks",)}

    def who(self, process: int) -> str:
        if process < self._first:
            return self._beside.who(process)
        group, number = divmod(process - self._first, self._options.members)
        return f"consumer {number} of {self._groups[group]}"

    async def load(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beside.load(messages.part(crew, self._is_beside)))
            for member in self._members(crew):
                tasks.create_task(member.run())

    async def drain(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beside.drain(messages.part(crew, self._is_beside)))
            for member in self._members(crew):
                tasks.create_task(member.drain(self._within_s))

    def _is_beside(self, process: int) -> bool:
        return process < self._first

    def _members(self, crew: Crew) -> list["Member"]:
        mine = [process for process in crew.processes if not self._is_beside(process)]
        return [Member(crew, process, self._place(process), self._options) for process in mine]

    def _place(self, process: int) -> "Place":
        group = (process - self._first) // self._options.members
        queues = self._beside.queues
        first_lock = len(queues) * (1 + group)
        return Place(
            name=self._groups[group],
            key=len(queues) * (1 + len(self._groups)) + group,
            queues={(queue.topic, queue.number): queue for queue in queues},
            locks={queue.key: first_lock + at for at, queue in enumerate(queues)},
        )


@dataclass(frozen=True)
class Place:
    """A group: its key, all queues by topic and number, and the key of each queue's lock."""

    name: str
    key: int
    queues: Mapping[tuple[str, int], Queue]
    locks: Mapping[int, int]


@dataclass
class Holding:
    """A queue that a member owns until `until_s`, by the loop's time, if it does not renew it."""

    queue: Queue
    until_s: float
    renew_s: float
    over: bool = False
    reading: "asyncio.Task[None] | None" = None


@dataclass(frozen=True)
class _Owned:
    """The client process as a reader sees it that stops when its queue is owned no longer."""

    crew: Crew
    holding: Holding

    @property
    def stopping(self) -> bool:
        return self.crew.stopping or self.holding.over

    def __getattr__(self, name: str) -> Any:
        return getattr(self.crew, name)


@dataclass
class Member:
    """One consumer, which belongs to its group for a while, again and again."""

    crew: Crew
    process: int
    place: Place
    options: Options
    _held: dict[int, Holding] = field(default_factory=dict)  # by the queue's key

    def __post_init__(self) -> None:
        self._number = self.crew.number(self.process)
        self._client = cast(GroupClient, self.crew.client)
        self._random: Random = self.crew.random(f"member-{self._number}")
        self._loop = asyncio.get_running_loop()
        self._stays = 0
        topics: dict[str, int] = {}
        for topic, number in self.place.queues:
            topics[topic] = max(topics.get(topic, 0), number + 1)
        self._topics = topics

    async def run(self) -> None:
        """Join, stay, leave, until the load ends."""
        self.crew.note(f"{MEMBER} {json.dumps({'group': self.place.name})}", self._number)
        while not self.crew.stopping:
            await self._join()
            async for _ in self._steps(self.options.stay_ms):
                await self._own_what_is_ours(reading=True)
            await self._leave()
            async for _ in self._steps(self.options.away_ms):
                pass

    async def drain(self, within_s: float) -> None:
        """Join for good, own what is ours, and read it to its end; a note says if that failed."""
        await self._join()
        deadline_s = self._loop.time() + within_s
        while not self._settled() and self._loop.time() < deadline_s:
            await self._own_what_is_ours(reading=False)
            await asyncio.sleep(STEP_S)
        if not self._settled():
            lacking = sorted(
                str(queue) for queue in self._allocated() if queue.key not in self._held
            )
            about = {"group": self.place.name, "members": len(self._member.members)}
            self.crew.note(f"{UNSETTLED} {json.dumps({**about, 'lacks': lacking})}", self._number)
        renewing = asyncio.create_task(self._keep())
        try:
            async with asyncio.TaskGroup() as tasks:
                for holding in tuple(self._held.values()):
                    reader = self._reader(self.crew, holding.queue)
                    tasks.create_task(reader.drain(within_s))
        finally:
            renewing.cancel()

    def _settled(self) -> bool:
        """Whether this member knows all others, and owns what is allocated to it."""
        known = len(self._member.members) == self.options.members
        return known and all(queue.key in self._held for queue in self._allocated())

    async def _keep(self) -> None:
        while True:
            await self._own_what_is_ours(reading=False)
            await asyncio.sleep(STEP_S)

    async def _join(self) -> None:
        """Under a name of its own each time, as a process that is started again has."""
        op = self.crew.invoke(self._number, F.JOIN, self.place.key)
        self._me = f"member-{self._number}-{self._stays}"
        self._stays += 1
        self._member = self._client.member(self.place.name, self._me, self._topics)
        self._member.start()
        self._done(op, F.JOIN, self.place.key, Completion(Type.OK))

    async def _leave(self) -> None:
        for holding in self._held.values():
            holding.over = True
        async with asyncio.TaskGroup() as tasks:
            for holding in tuple(self._held.values()):
                tasks.create_task(self._give_back(holding))
        op = self.crew.invoke(self._number, F.LEAVE, self.place.key)
        await self._member.leave()
        self._done(op, F.LEAVE, self.place.key, Completion(Type.OK))

    def _allocated(self) -> list[Queue]:
        return [self.place.queues[place] for place in self._member.queues]

    async def _own_what_is_ours(self, reading: bool) -> None:
        """Take what is allocated and not owned, renew what is due, give back what is another's."""
        mine = {queue.key: queue for queue in self._allocated()}
        now_s = self._loop.time()
        async with asyncio.TaskGroup() as tasks:
            for key, holding in tuple(self._held.items()):
                if key not in mine:
                    tasks.create_task(self._give_back(holding))
                elif now_s >= holding.until_s:
                    tasks.create_task(self._stop(holding))
            for key, queue in mine.items():
                held = self._held.get(key)
                if held is None or held.renew_s <= now_s < held.until_s:
                    tasks.create_task(self._take(queue, reading))

    async def _take(self, queue: Queue, reading: bool) -> None:
        lock, began_s = self.place.locks[queue.key], self._loop.time()
        op = self.crew.invoke(self._number, F.LOCK, lock)
        taken = await self._client.lock(self.place.name, self._me, queue.topic, queue.number)
        self._done(op, F.LOCK, lock, taken)
        if taken.type is not Type.OK:
            return
        lease_s = taken.offset / 1000
        until_s, renew_s = began_s + lease_s, began_s + lease_s / 2
        if holding := self._held.get(queue.key):
            holding.until_s, holding.renew_s = until_s, renew_s
            return
        holding = self._held[queue.key] = Holding(queue, until_s, renew_s)
        if reading:
            reader = self._reader(cast(Crew, _Owned(self.crew, holding)), queue)
            holding.reading = asyncio.create_task(reader.follow())

    async def _give_back(self, holding: Holding) -> None:
        queue = holding.queue
        lock = self.place.locks[queue.key]
        await self._stop(holding)
        op = self.crew.invoke(self._number, F.UNLOCK, lock)
        gone = await self._client.unlock(self.place.name, self._me, queue.topic, queue.number)
        self._done(op, F.UNLOCK, lock, gone)

    async def _stop(self, holding: Holding) -> None:
        """Read the queue no further."""
        self._held.pop(holding.queue.key, None)
        holding.over = True
        if holding.reading:
            await holding.reading

    def _reader(self, crew: Crew, queue: Queue) -> Reader:
        return Reader(
            crew, self.process, F.POLL, queue, self.place.name, messages.Options.poll_limit
        )

    def _done(self, op: int, f: F, key: int, completion: Completion) -> None:
        self.crew.complete(self._number, op, f, key, NONE, completion)

    async def _steps(self, mean_ms: int) -> AsyncIterator[None]:
        """Moments of a stretch of time that is drawn, or until the load ends."""
        until_s = self._loop.time() + self._random.expovariate(1000 / mean_ms)
        while not self.crew.stopping and self._loop.time() < until_s:
            yield
            await asyncio.sleep(min(STEP_S, max(0.0, until_s - self._loop.time())))
