"""Transactions over lists or registers, whose reads tell how they depend on each other (Elle).

Each client carries out one transaction at a time, of reads and writes of a few objects drawn from
the seed. Every written value is unique. Objects are replaced by new ones by the clock, as in the
workload `register`, so that the dependencies of an object stay few. At the end, readers read every
object that was ever used, one transaction each.
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

from harness.contracts import WorkloadContext
from harness.contracts.calls import MicroOperation
from harness.contracts.workloads import OperationPart
from harness.errors import BadRequest
from harness.operation import NONE, F, Type
from harness.run.schedule import share, values
from harness.trial import Trial
from harness.workloads._clients import FinalReadsWorkload, ObjectClient, check_load, checkers_of

CHECKERS = ("transactions", "recovery", "coverage")
READERS = 2
MAX_OBJECTS = 100_000
READ = "read"
RANGES = {
    "clients": (1, 1000),
    "objects": (1, 1000),
    "operations": (1, 1_000_000),
    "most": (1, 100),
}


@dataclass(frozen=True, kw_only=True)
class TransactionOptions:
    """The `load` options of these workloads."""

    clients: int = 6  # each with one transaction at a time
    objects: int = 4  # at a time
    rate: float = 60.0  # transactions a second, of all clients together
    operations: int = 200  # transactions on a group of objects, then it is replaced
    most: int = 4  # reads and writes of a transaction


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "clients": random.choice((2, 4, 8)),
        "objects": random.choice((2, 4, 8)),
        "rate": float(random.choice((15, 30, 60))),
        "most": random.choice((2, 4, 8)),
    }


class TransactionWorkload(FinalReadsWorkload):
    """The workload; the same value in every client process. `write`: the micro-operation that
    changes an object, with its function in the history; `read_f` is that of a read."""

    def __init__(self, trial: Trial, noun: str, write: str, write_f: F, read_f: F) -> None:
        load = check_load(TransactionOptions, RANGES, trial.load, trial.workload)
        self.options = TransactionOptions(**load)
        self.write, self.write_f, self.read_f = write, write_f, read_f
        self.within_s = trial.recover_within_s
        self._turn_s = self.options.operations / self.options.rate
        self._turns = ceil((trial.duration_s + trial.recover_within_s) / self._turn_s) + 1
        count = min(self._turns * self.options.objects, MAX_OBJECTS + 1)
        self.keys: Sequence[str] = [f"{noun}-{n}" for n in range(count)]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self.operating = self.options.clients
        self.processes = self.operating + READERS

    def check_options(self) -> None:
        if len(self.keys) > MAX_OBJECTS:
            raise BadRequest(
                f"more than {MAX_OBJECTS:,} objects would be used; raise load.operations or lower "
                "load.rate"
            )

    def client_settings(self) -> Mapping[str, Any]:
        return {}

    def operate(self, context: WorkloadContext, process: int) -> Coroutine[Any, Any, None]:
        return TransactionClient(self, context, process).run()

    def read(
        self, context: WorkloadContext, process: int, reader: int
    ) -> Coroutine[Any, Any, None]:
        used = range((self.turn(context) + 1) * self.options.objects)
        client = TransactionClient(self, context, process)
        return client.read_each(share(used, reader, READERS), client.read_whole, self.within_s)

    def turn(self, context: WorkloadContext) -> int:
        """Return how often the objects were replaced by now."""
        return min(int(context.now_s() / self._turn_s), self._turns - 1)


class TransactionClient(ObjectClient):
    """A client that carries out transactions."""

    def __init__(
        self, workload: TransactionWorkload, context: WorkloadContext, process: int
    ) -> None:
        super().__init__(context, process)
        self._workload = workload
        self._number = {key: n for n, key in enumerate(workload.keys)}
        self._fresh = values(self.first)
        self._calls: Any = self.plain_calls()

    async def run(self) -> None:
        options = self._workload.options
        while await self.due(options.rate / options.clients):
            first = self._workload.turn(self.context) * options.objects
            keys = [
                self._workload.keys[first + self.random.randrange(options.objects)]
                for _ in range(self.random.randint(1, options.most))
            ]
            await self._transact([self._drawn(key) for key in keys])

    def _drawn(self, key: str) -> MicroOperation:
        if self.random.random() < 0.5:
            return MicroOperation(READ, key)
        return MicroOperation(self._workload.write, key, next(self._fresh))

    async def read_whole(self, key: int) -> bool:
        """Read an object in a transaction of its own; return whether it was committed."""
        return await self._transact([MicroOperation(READ, self._workload.keys[key])])

    async def _transact(self, wanted: Sequence[MicroOperation]) -> bool:
        """Carry out a transaction; return whether it was committed."""
        f = self._workload.write_f
        op = self.context.invoke_parts(self.process, f, self._rows(wanted, answered=False))
        reads = all(each.f == READ for each in wanted)
        done, answer = await self.outcome(self._calls.transact(wanted), read=reads)
        rows = self._rows(answer or wanted, answered=done.type is Type.OK)
        self.context.complete_parts(self.process, op, f, rows, done)
        if done.type is Type.INFO:
            self.take_new_id()
        return done.type is Type.OK

    def _rows(self, operations: Sequence[MicroOperation], *, answered: bool) -> list[OperationPart]:
        """Return the rows of the micro-operations: f, key, value, pos, mop. A list that was read
        has a row for each element, and a last one."""
        rows: list[OperationPart] = []
        for mop, (f, name, value) in enumerate(operations):
            key = self._number[name]
            if f != READ:
                rows.append((self._workload.write_f, key, int(value), NONE, mop))  # type: ignore[arg-type]
                continue
            read = self._workload.read_f
            if read is F.LIST:
                elements = value if answered and isinstance(value, Sequence) else ()
                rows += [(read, key, each, pos, mop) for pos, each in enumerate(elements)]
                value = None
            there = answered and value is not None
            rows.append((read, key, int(value) if there else NONE, NONE, mop))  # type: ignore[arg-type]
        return rows
