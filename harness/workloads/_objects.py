"""Small objects that clients use one operation at a time, by plain calls: sets, counters, queues.

Each client uses an object that is drawn from the seed; at the end *readers* finish every object,
until there is an answer or the time is over.
"""

from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from harness.contracts import WorkloadContext
from harness.operation import NONE, F, Type
from harness.run.schedule import share, values
from harness.trial import Trial
from harness.workloads._clients import FinalReadsWorkload, ObjectClient, check_load, checkers_of

CHECKERS = ("objects", "recovery", "coverage")
READERS = 2
RANGES = {"clients": (1, 1000), "objects": (1, 1000)}


@dataclass(frozen=True, kw_only=True)
class ObjectOptions:
    """The `load` options of these workloads."""

    clients: int = 6  # each with one operation at a time
    objects: int = 4  # sets, counters or queues
    rate: float = 90.0  # operations a second, of all clients together


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "clients": random.choice((2, 4, 8)),
        "objects": random.choice((1, 2, 4)),
        "rate": float(random.choice((15, 30, 60))),
    }


class PlainObjectClient(ObjectClient):
    """A client of objects; subclasses say what it does."""

    NOUN: ClassVar[str]

    def __init__(self, keys: Sequence[str], context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self.keys, self.fresh = keys, values(self.first)
        self.calls: Any = self.plain_calls()

    @abstractmethod
    async def operate(self, key: int) -> None:
        """Do one operation of the load."""

    @abstractmethod
    async def finish(self, key: int) -> bool:
        """Read what is left of an object at the end; return whether that was all."""

    async def change(self, f: F, key: int, value: int, call: str) -> None:
        op = self.invoke(f, key, value)
        done, _ = await self.outcome(getattr(self.calls, call)(self.keys[key], value))
        self.complete(op, f, key, value, done)

    async def look(self, f: F, key: int, call: str, *, read: bool) -> tuple[Type, int | None]:
        """Do an operation that answers with a value, or None."""
        op = self.invoke(f, key)
        done, value = await self.outcome(getattr(self.calls, call)(self.keys[key]), read=read)
        self.complete(op, f, key, NONE if value is None else int(value), done)
        return done.type, value


class ObjectWorkload(FinalReadsWorkload):
    """The workload; the same value in every client process."""

    def __init__(self, trial: Trial, client: type[PlainObjectClient]) -> None:
        load = check_load(ObjectOptions, RANGES, trial.load, trial.workload)
        self.options, self._client = ObjectOptions(**load), client
        self._within_s = trial.recover_within_s
        self.keys: Sequence[str] = [f"{client.NOUN}-{n}" for n in range(self.options.objects)]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self.operating = self.options.clients
        self.processes = self.operating + READERS

    def check_options(self) -> None:
        """Do nothing: the constructor checked them."""

    def client_settings(self) -> Mapping[str, Any]:
        return {"objects": list(self.keys)}

    def operate(self, context: WorkloadContext, process: int) -> Coroutine[Any, Any, None]:
        return self._operate(self._client(self.keys, context, process))

    async def _operate(self, client: PlainObjectClient) -> None:
        while await client.due(self.options.rate / self.options.clients):
            await client.operate(client.random.randrange(self.options.objects))

    def read(
        self, context: WorkloadContext, process: int, reader: int
    ) -> Coroutine[Any, Any, None]:
        keys = share(range(len(self.keys)), reader, READERS)
        client = self._client(self.keys, context, process)
        return client.read_each_at_least_once(keys, client.finish, self._within_s)
