"""Clients change a cluster's metadata under faults: topics are made and deleted, group offsets
committed and reset, queues locked.

Messages are sent all the while, as the workload `messages` sends them, and read at the end. Beside
the producers and readers there are

    makers   make topics, delete them, look which exist
    keepers  each with a group of its own on a queue: commit offsets, reset and query them
    owners   two to a lock: take it, keep it for a while, release it; some sleep until their lease
             is over, and some release what another holds

Every topic that is made has a name of its own, so that no later change hides its loss. One process
at a time changes a topic or a group's offset, so its answers determine what must exist; in the
final phase makers look for all of their topics and keepers query once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any, cast

from harness.contracts import MetadataClient, WorkloadContext, WorkloadPlugin
from harness.errors import BadRequest
from harness.operation import (
    NONE,
    Completion,
    F,
    Type,
    producer_of,
    sequence_of,
    value_of,
)
from harness.trial import Trial
from harness.workloads import messages
from harness.workloads.messages import RETRY_S, MessageWorkload, WorkloadQueue

CHECKERS = (
    "loss",
    "phantom",
    "duplicates",
    "order",
    "offsets",
    "linearizable",
    "replicas",
    "masters",
    "metadata",
    "groups",
    "invariants",
    "recovery",
    "availability",
    "coverage",
)
OWNERS_OF_ONE = 2
LATE_ONE_IN = 4  # commits that would be below an earlier one
QUEUES_MADE = 2  # of a maker's topic
MAX_THERE = 10  # topics of a maker at a time: brokers list all of them in every registration
LOOKED_AT = 8  # topics in one query during the load
SLEEPS = 0.1  # of all holds: longer than the lease
MEDDLES = 0.25  # of all refused locks: unlocked nevertheless


def workload(trial: Trial) -> "TopicsWorkload":
    return TopicsWorkload(TopicsOptions.of(trial.load), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "makers": random.choice((1, 2, 4)),
        "keepers": random.choice((1, 2, 4)),
        "locks": random.choice((0, 1, 2)),
        "rate": float(random.choice((8, 15, 25))),
        "every_ms": random.choice((20, 50, 200)),
    }


@dataclass(frozen=True, kw_only=True)
class TopicsOptions:
    """The `load` options of this workload."""

    queues: int = 4  # queues of the additional topic of messages
    producers: int = 2  # producers of its messages
    makers: int = 4  # processes that create and delete topics
    keepers: int = 4  # processes that commit and reset offsets of groups
    locks: int = 2  # locks; two owners take each of them in turn
    rate: float = 50.0  # sends a second
    every_ms: int = 50  # time between two changes by one process, on average

    @classmethod
    def of(cls, load: Mapping[str, Any]) -> "TopicsOptions":
        """Return the options of a trial. Raises BadRequest with the key."""
        known = {f.name for f in fields(cls)}
        for key, raw in load.items():
            if key not in known:
                names = ", ".join(sorted(known))
                raise BadRequest(
                    f"load.{key} is not an option of the workload topics; it has: {names}"
                )
            least = 0 if key in ("makers", "keepers", "locks") else 1
            number = int | float if key == "rate" else int
            if isinstance(raw, bool) or not isinstance(raw, number) or not least <= raw <= 1000:
                raise BadRequest(f"load.{key} must be a number from {least} to 1000, not {raw!r}")
        return cls(**load)

    @property
    def sends(self) -> dict[str, Any]:
        """The load of the messages sent beside."""
        names = ("queues", "producers", "rate")
        return {"groups": 0, **{name: getattr(self, name) for name in names}}


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset(
        {
            *("send", "poll", "range", "commit", "committed"),
            *("create_topic", "delete_topic", "topics", "reset", "lock", "unlock"),
        }
    ),
    calls=(frozenset({"create_topic"}),),
    options=TopicsOptions,
    swarm=swarm,
    client_faults=frozenset({"pause"}),  # a paused holder outlasts its lease
)


class TopicsWorkload:
    """The workload; the same value in every client process."""

    def __init__(self, options: TopicsOptions, trial: Trial) -> None:
        self._options = options
        self._within_s = trial.recover_within_s
        self._beside = MessageWorkload(messages.MessageOptions.of(options.sends), trial)
        self._first = self._beside.processes
        self._roles = [
            *(("maker", n, n) for n in range(options.makers)),
            *(("keeper", n, options.makers + n) for n in range(options.keepers)),
            *(
                ("owner", n, options.makers + options.keepers + n // OWNERS_OF_ONE)
                for n in range(options.locks * OWNERS_OF_ONE)
            ),
        ]
        self.processes = self._first + len(self._roles)
        self.keys: Sequence[str] = [*self._beside.keys, *self._objects()]
        self.checkers: Sequence[str] = trial.checkers or CHECKERS
        self._aboard: list[TopicsProcess] = []  # from the load to the final phase

    def _objects(self) -> list[str]:
        options, queues = self._options, self._beside.queues
        return [
            *(_topic(n) for n in range(options.makers)),
            *(f"keep-{n} on {queues[n % len(queues)]}" for n in range(options.keepers)),
            *(f"lock-{n} on {queues[n % len(queues)]}" for n in range(options.locks)),
        ]

    def check_options(self) -> None:
        self._beside.check_options()

    def client_settings(self) -> Mapping[str, Any]:
        return {**self._beside.client_settings(), "strict": ("locks", "metadata")}

    def process_name(self, process: int) -> str:
        if process < self._first:
            return self._beside.process_name(process)
        role, number, _ = self._roles[process - self._first]
        return f"{role} {number}"

    async def load(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beside.load(self._senders(context)))
            for actor in self._actors(context):
                tasks.create_task(actor.run())

    async def drain(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beside.drain(self._senders(context)))
            for actor in self._actors(context):
                tasks.create_task(actor.final_look(self._within_s))

    def _senders(self, context: WorkloadContext) -> WorkloadContext:
        return messages.partial_context(context, lambda process: process < self._first)

    def _actors(self, context: WorkloadContext) -> list["TopicsProcess"]:
        """Return the processes here, which remember in the final phase what they did."""
        self._aboard = self._aboard or self._new_actors(context)
        return self._aboard

    def _new_actors(self, context: WorkloadContext) -> list["TopicsProcess"]:
        kinds: Mapping[str, type[TopicsProcess]] = {
            "maker": TopicMaker,
            "keeper": OffsetKeeper,
            "owner": LockOwner,
        }
        queues, every_s = self._beside.queues, self._options.every_ms / 1000
        actors = []
        for process in context.processes:
            if process < self._first:
                continue
            role, number, thing = self._roles[process - self._first]
            of_lock = number // OWNERS_OF_ONE if role == "owner" else number
            queue = queues[of_lock % len(queues)]
            key = len(queues) + thing
            actors.append(kinds[role](context, process, key, of_lock, queue, every_s))
        return actors


def _topic(number: int, value: int | None = None) -> str:
    """Return the key of a maker, or the name of one of its topics."""
    name = f"made-{number}"
    return name if value is None else f"{name}-{producer_of(value)}-{sequence_of(value)}"


class TopicsProcess:
    """One process that changes one thing, an operation at a time."""

    def __init__(
        self,
        context: WorkloadContext,
        process: int,
        key: int,
        number: int,
        queue: WorkloadQueue,
        every_s: float,
    ) -> None:
        self.context, self.key, self.number = context, key, number
        self.process = context.process_id(process)
        self.client = cast(MetadataClient, context.client)
        self.random: Random = context.random(f"actor-{self.process}")
        self.queue, self.every_s = queue, every_s
        self.loop = asyncio.get_running_loop()

    async def run(self) -> None:
        while not self.context.stopping:
            await self.step()
            await asyncio.sleep(self.random.expovariate(1 / self.every_s))

    async def step(self) -> None:
        raise NotImplementedError

    async def final_look(self, within_s: float) -> None:
        """Query the state in the final phase, until there is an answer."""
        deadline_s = self.loop.time() + within_s
        seen = await self.query()
        while seen is not Type.OK and self.loop.time() < deadline_s:
            await asyncio.sleep(RETRY_S)
            seen = await self.query()

    async def query(self) -> Type:
        return Type.OK

    async def do(
        self, f: F, offset: int, order: Awaitable[Completion], value: int = NONE
    ) -> Completion:
        """Do one operation, and journal it."""
        op = self.context.invoke(self.process, f, self.key, value, offset)
        done = await order
        self.context.complete(self.process, op, f, self.key, value, done)
        return done

    async def query_offset(self, f: F, question: Callable[[], Awaitable[int]]) -> Type:
        """Do one query, whose answer is journalled as the offset."""
        return (await self.do(f, NONE, _answer(question))).type


async def _answer(question: Callable[[], Awaitable[int]]) -> Completion:
    try:
        return Completion(Type.OK, await question())
    except ConnectionError as e:
        return Completion(Type.FAIL, error=str(e))


class TopicMaker(TopicsProcess):
    """Makes topics and deletes them."""

    made = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._there: list[int] = []  # topics that were made and not deleted

    async def step(self) -> None:
        f = self.random.choice((F.CREATE, F.CREATE, F.DELETE, F.SEE))
        if f is F.CREATE and len(self._there) >= MAX_THERE:
            f = F.DELETE
        if f is F.CREATE:
            await self._create()
        elif f is F.DELETE and self._there:
            await self._delete()
        elif self.made:
            recent = range(max(0, self.made - 2 * MAX_THERE), self.made)
            some = self.random.sample(recent, min(LOOKED_AT, len(recent)))
            await self._look_for(self._own(some))

    async def query(self) -> Type:
        """Look for all topics; of crashed client processes, for as many as they can have made."""
        total = self.context.total_processes
        at_most = round(self.context.now_s() / self.every_s)
        crashed = range(self.process % total, self.process, total)
        earlier = (value_of(process, n) for process in crashed for n in range(at_most))
        return await self._look_for([*earlier, *self._own(range(self.made))])

    def _own(self, numbers: Iterable[int]) -> list[int]:
        return [value_of(self.process, number) for number in numbers]

    async def _create(self) -> None:
        topic = value_of(self.process, self.made)
        self.made += 1
        order = self.client.create_topic(_topic(self.number, topic), QUEUES_MADE)
        if (await self.do(F.CREATE, QUEUES_MADE, order, topic)).type is Type.OK:
            self._there.append(topic)

    async def _delete(self) -> None:
        topic = self._there.pop(self.random.randrange(len(self._there)))
        order = self.client.delete_topic(_topic(self.number, topic))
        if (await self.do(F.DELETE, NONE, order, topic)).type is Type.FAIL:
            self._there.append(topic)

    async def _look_for(self, topics: Sequence[int]) -> Type:
        """List the topics once, which is one operation for each of these."""
        ops = [self.context.invoke(self.process, F.SEE, self.key, topic) for topic in topics]
        done = Completion(Type.OK)
        known: Mapping[str, int] = {}
        try:
            known = await self.client.topics()
        except ConnectionError as e:
            done = Completion(Type.FAIL, error=str(e))
        for topic, op in zip(topics, ops, strict=True):
            if done.type is Type.OK:
                done = Completion(Type.OK, known.get(_topic(self.number, topic), 0))
            self.context.complete(self.process, op, F.SEE, self.key, topic, done)
        return done.type


class OffsetKeeper(TopicsProcess):
    """Keeps a group's offset: forwards with the queue, and back by a reset.

    Now and then it commits a lower offset, as a consumer does whose commit was late.
    """

    at = 0

    async def step(self) -> None:
        match self.random.choice((F.COMMIT,) * 6 + (F.RESET, F.QUERY)):
            case F.COMMIT:
                await self._commit()
            case F.RESET:
                self.at = self.random.randint(0, self.at)
                await self._change(F.RESET, self.at, self.client.reset)
            case _:
                await self.query()

    async def _commit(self) -> None:
        try:
            _, high = await self.client.range(self.queue.topic, self.queue.number)
        except ConnectionError:
            return
        chosen = self.random.randint(0, high)
        late = chosen < self.at and self.random.randrange(LATE_ONE_IN) == 0
        self.at = max(self.at, chosen)
        await self._change(F.COMMIT, chosen if late else self.at, self.client.commit)

    async def _change(
        self, f: F, offset: int, order: Callable[[str, str, int, int], Awaitable[Completion]]
    ) -> None:
        place = (f"keep-{self.number}", self.queue.topic, self.queue.number)
        await self.do(f, offset, order(*place, offset))

    async def query(self) -> Type:
        return await self.query_offset(F.QUERY, self._committed)

    async def _committed(self) -> int:
        topic, number = self.queue.topic, self.queue.number
        return await self.client.committed(f"keep-{self.number}", topic, number)


class LockOwner(TopicsProcess):
    """Takes a lock, keeps it for some of its leases, releases it."""

    names = 0  # abandoned ones: a request of unknown outcome may be executed later

    async def step(self) -> None:
        keep_until_s = 0.0
        while not self.context.stopping:
            taken = await self._ask(F.LOCK)
            if taken is None:
                return
            if taken.type is not Type.OK:
                if self.random.random() < MEDDLES:
                    await self._ask(F.UNLOCK)
                return
            lease_s = taken.offset / 1000
            if self.random.random() < SLEEPS:
                await asyncio.sleep(self.random.uniform(1, 2) * lease_s)
                break
            keep_until_s = keep_until_s or self.loop.time() + self.random.uniform(0, 2) * lease_s
            if self.loop.time() >= keep_until_s:
                break
            await asyncio.sleep(min(lease_s / 2, keep_until_s - self.loop.time()))
        await self._ask(F.UNLOCK)

    async def _ask(self, f: F) -> Completion | None:
        """Take or release the lock. Return None if the outcome is unknown: the owner continues
        under another name."""
        order = self.client.lock if f is F.LOCK else self.client.unlock
        group, me = f"lock-{self.number}", f"owner-{self.process}-{self.names}"
        done = await self.do(f, NONE, order(group, me, self.queue.topic, self.queue.number))
        self.names += done.type is Type.INFO
        return None if done.type is Type.INFO else done
