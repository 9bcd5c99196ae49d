"""Consumers join and leave their groups under faults, and share the queues each time.

A member that belongs to its group takes the locks of the queues that are allocated to it, reads
each from the group's offset on and commits; when a queue goes to another member, or it leaves, it
releases the lock. Producers send all the while, as those of the workload `messages` do. In the
final phase every member joins, waits until it knows all others and holds the locks of its own
queues, and reads them to the end: so each queue must have exactly one owner, and the group must
have received every message.

    seatrial run rebalance --set lockInStrictMode=true --faults kill,pause,partition
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from harness.contracts import GroupClient, WorkloadContext, WorkloadPlugin
from harness.history.notes import MEMBER, UNSETTLED
from harness.operation import NONE, Completion, F, Type
from harness.trial import Trial
from harness.workloads import messages
from harness.workloads._clients import check_load
from harness.workloads.messages import MessageWorkload, QueueReader, WorkloadQueue

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
STEP_S = 0.1  # between a member's checks of its allocation


def workload(trial: Trial) -> "RebalanceWorkload":
    return RebalanceWorkload(RebalanceOptions.of(trial.load), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "queues": random.choice((2, 4, 8)),
        "groups": random.choice((1, 1, 2)),
        "members": random.choice((2, 3, 4)),
        "rate": float(random.choice((8, 15, 25))),
        "stay_ms": random.choice((1000, 3000)),
        "away_ms": random.choice((200, 1000)),
    }


@dataclass(frozen=True, kw_only=True)
class RebalanceOptions:
    """The `load` options of this workload."""

    queues: int = 8  # queues of the topic
    producers: int = 2  # producers of the topic
    groups: int = 1  # consumer groups; each reads all messages
    members: int = 4  # members of each group
    rate: float = 100.0  # sends a second
    stay_ms: int = 6000  # how long a member stays in its group, on average
    away_ms: int = 2000  # how long it stays away before it joins again, on average

    @classmethod
    def of(cls, load: Mapping[str, Any]) -> "RebalanceOptions":
        """Return the options of a trial. Raises BadRequest with the key."""
        ranges = {
            **dict.fromkeys(("queues", "producers", "groups", "members"), (1, 1000)),
            **dict.fromkeys(("stay_ms", "away_ms"), (1, 3_600_000)),
        }
        return cls(**check_load(cls, ranges, load, "rebalance"))

    @property
    def sends(self) -> dict[str, Any]:
        """The load of the messages sent beside."""
        names = ("queues", "producers", "rate")
        return {"groups": 0, **{name: getattr(self, name) for name in names}}


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"member", "lock", "unlock"}),
    calls=(frozenset({"member"}),),
    options=RebalanceOptions,
    swarm=swarm,
    client_faults=frozenset({"pause"}),  # a paused consumer outlasts the leases of its queues
)


class RebalanceWorkload:
    """The workload; the same value in every client process."""

    def __init__(self, options: RebalanceOptions, trial: Trial) -> None:
        self._options = options
        self._within_s = trial.recover_within_s
        self._beside = MessageWorkload(messages.MessageOptions.of(options.sends), trial)
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

    def process_name(self, process: int) -> str:
        if process < self._first:
            return self._beside.process_name(process)
        group, number = divmod(process - self._first, self._options.members)
        return f"consumer {number} of {self._groups[group]}"

    async def load(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beside.load(messages.partial_context(context, self._is_beside)))
            for member in self._members(context):
                tasks.create_task(member.run())

    async def drain(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                self._beside.drain(messages.partial_context(context, self._is_beside))
            )
            for member in self._members(context):
                tasks.create_task(member.drain(self._within_s))

    def _is_beside(self, process: int) -> bool:
        return process < self._first

    def _members(self, context: WorkloadContext) -> list["RebalanceMember"]:
        mine = [process for process in context.processes if not self._is_beside(process)]
        return [
            RebalanceMember(context, process, self._place(process), self._options)
            for process in mine
        ]

    def _place(self, process: int) -> "GroupLayout":
        group = (process - self._first) // self._options.members
        queues = self._beside.queues
        first_lock = len(queues) * (1 + group)
        return GroupLayout(
            name=self._groups[group],
            key=len(queues) * (1 + len(self._groups)) + group,
            queues={(queue.topic, queue.number): queue for queue in queues},
            locks={queue.key: first_lock + at for at, queue in enumerate(queues)},
        )


@dataclass(frozen=True)
class GroupLayout:
    """A group: its key, all queues by topic and number, and the key of each queue's lock."""

    name: str
    key: int
    queues: Mapping[tuple[str, int], WorkloadQueue]
    locks: Mapping[int, int]


@dataclass
class OwnedQueue:
    """A queue that a member owns until `until_s`, by the loop's time, unless it renews the lock."""

    queue: WorkloadQueue
    until_s: float
    renew_s: float
    over: bool = False
    reading: "asyncio.Task[None] | None" = None


@dataclass(frozen=True)
class _OwnedQueueContext:
    """The client process for a reader that stops when its queue is no longer owned."""

    context: WorkloadContext
    holding: OwnedQueue

    @property
    def stopping(self) -> bool:
        return self.context.stopping or self.holding.over

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)


@dataclass
class RebalanceMember:
    """One consumer, which joins and leaves its group again and again."""

    context: WorkloadContext
    process: int
    place: GroupLayout
    options: RebalanceOptions
    _held: dict[int, OwnedQueue] = field(default_factory=dict)  # by the queue's key

    def __post_init__(self) -> None:
        self._number = self.context.process_id(self.process)
        self._client = cast(GroupClient, self.context.client)
        self._random: Random = self.context.random(f"member-{self._number}")
        self._loop = asyncio.get_running_loop()
        self._stays = 0
        topics: dict[str, int] = {}
        for topic, number in self.place.queues:
            topics[topic] = max(topics.get(topic, 0), number + 1)
        self._topics = topics

    async def run(self) -> None:
        """Join, stay, leave, until the load ends."""
        self.context.note(f"{MEMBER} {json.dumps({'group': self.place.name})}", self._number)
        while not self.context.stopping:
            await self._join()
            async for _ in self._steps(self.options.stay_ms):
                await self._own_what_is_ours(reading=True)
            await self._leave()
            async for _ in self._steps(self.options.away_ms):
                pass

    async def drain(self, within_s: float) -> None:
        """Join for good, own the allocated queues, and read them to the end; a note says if that
        failed."""
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
            self.context.note(
                f"{UNSETTLED} {json.dumps({**about, 'lacks': lacking})}", self._number
            )
        renewing = asyncio.create_task(self._keep())
        try:
            async with asyncio.TaskGroup() as tasks:
                for holding in tuple(self._held.values()):
                    reader = self._reader(self.context, holding.queue)
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
        """Join under a new name each time, as a restarted process does."""
        op = self.context.invoke(self._number, F.JOIN, self.place.key)
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
        op = self.context.invoke(self._number, F.LEAVE, self.place.key)
        await self._member.leave()
        self._done(op, F.LEAVE, self.place.key, Completion(Type.OK))

    def _allocated(self) -> list[WorkloadQueue]:
        return [self.place.queues[place] for place in self._member.queues]

    async def _own_what_is_ours(self, reading: bool) -> None:
        """Take what is allocated and not owned, renew what is due, release what is another's."""
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

    async def _take(self, queue: WorkloadQueue, reading: bool) -> None:
        lock, began_s = self.place.locks[queue.key], self._loop.time()
        op = self.context.invoke(self._number, F.LOCK, lock)
        taken = await self._client.lock(self.place.name, self._me, queue.topic, queue.number)
        self._done(op, F.LOCK, lock, taken)
        if taken.type is not Type.OK:
            return
        lease_s = taken.offset / 1000
        until_s, renew_s = began_s + lease_s, began_s + lease_s / 2
        if holding := self._held.get(queue.key):
            holding.until_s, holding.renew_s = until_s, renew_s
            return
        holding = self._held[queue.key] = OwnedQueue(queue, until_s, renew_s)
        if reading:
            reader = self._reader(
                cast(WorkloadContext, _OwnedQueueContext(self.context, holding)), queue
            )
            holding.reading = asyncio.create_task(reader.follow())

    async def _give_back(self, holding: OwnedQueue) -> None:
        queue = holding.queue
        lock = self.place.locks[queue.key]
        await self._stop(holding)
        op = self.context.invoke(self._number, F.UNLOCK, lock)
        gone = await self._client.unlock(self.place.name, self._me, queue.topic, queue.number)
        self._done(op, F.UNLOCK, lock, gone)

    async def _stop(self, holding: OwnedQueue) -> None:
        """Stop reading the queue."""
        self._held.pop(holding.queue.key, None)
        holding.over = True
        if holding.reading:
            await holding.reading

    def _reader(self, context: WorkloadContext, queue: WorkloadQueue) -> QueueReader:
        return QueueReader(
            context,
            self.process,
            F.POLL,
            queue,
            self.place.name,
            messages.MessageOptions.poll_limit,
        )

    def _done(self, op: int, f: F, key: int, completion: Completion) -> None:
        self.context.complete(self._number, op, f, key, NONE, completion)

    async def _steps(self, mean_ms: int) -> AsyncIterator[None]:
        """Yield regularly for a random stretch of time, or until the load ends."""
        until_s = self._loop.time() + self._random.expovariate(1000 / mean_ms)
        while not self.context.stopping and self._loop.time() < until_s:
            yield
            await asyncio.sleep(min(STEP_S, max(0.0, until_s - self._loop.time())))
