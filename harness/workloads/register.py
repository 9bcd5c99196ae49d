"""Clients read, write and compare-and-set small registers; all must see the same value.

Each *client* does one operation at a time, on a register drawn from the seed: it reads it, writes a
value that was never written before (or, with `distinct`, one of few), or changes it from the value
that it saw last. *Watchers* only read: nothing ever shows them that another node leads now. A
change that the comparison itself refused reveals the register's value and is journalled as such; a
read has no effect, so one that returned nothing simply failed.

After some operations a register is replaced by a new one, since the search for an order of its
operations takes longer the more there are. That happens by the clock, so that client processes
agree. At the end *readers* that have read nothing before read every register that was ever used.
"""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Any, cast

from harness.contracts import RegisterClient, WorkloadContext, WorkloadPlugin
from harness.errors import BadRequest
from harness.operation import NONE, Completion, F, Type
from harness.run.schedule import share, values
from harness.trial import Trial
from harness.workloads._clients import FinalReadsWorkload, ObjectClient, check_load, checkers_of

CHECKERS = ("registers", "invariants", "recovery", "coverage")
READERS = 2
MAX_REGISTERS = 100_000  # in a run
OPERATION_MIX = (F.GET,) * 4 + (F.PUT,) * 3 + (F.CAS,) * 3
RANGES = {
    "clients": (1, 1000),
    "watchers": (0, 1000),
    "registers": (1, 1000),
    "operations": (1, 1_000_000),
    "distinct": (0, 1_000_000),
}


def workload(trial: Trial) -> "RegisterWorkload":
    options = RegisterOptions(**check_load(RegisterOptions, RANGES, trial.load, "register"))
    return RegisterWorkload(options, trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "clients": random.choice((2, 4, 8)),
        "watchers": random.choice((1, 3)),
        "registers": random.choice((1, 2, 4)),
        "rate": float(random.choice((15, 30, 60))),
        "distinct": random.choice((0, 0, 0, 3)),
    }


@dataclass(frozen=True, kw_only=True)
class RegisterOptions:
    """The `load` options of this workload."""

    clients: int = 6  # clients that put, compare-and-set and get
    watchers: int = 3  # clients that only get
    registers: int = 4  # registers in use at the same time
    rate: float = 90.0  # operations a second, by all clients and watchers together
    operations: int = 150  # operations on a register, about, before a new one replaces it
    distinct: int = 0  # number of different values; 0: each value is written once


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"registers"}),
    calls=(frozenset({"read", "write", "cas"}),),
    options=RegisterOptions,
    swarm=swarm,
)


class RegisterWorkload(FinalReadsWorkload):
    """The workload; the same value in every client process."""

    def __init__(self, options: RegisterOptions, trial: Trial) -> None:
        self.options = options
        self.within_s = trial.recover_within_s
        self._turn_s = options.registers * options.operations / options.rate
        longest_s = trial.duration_s + trial.recover_within_s
        self._turns = ceil(longest_s / self._turn_s) + 1
        count = self._turns * options.registers
        self.keys: Sequence[str] = [f"register-{n}" for n in range(min(count, MAX_REGISTERS + 1))]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self.operating = options.clients + options.watchers
        self.processes = self.operating + READERS

    def check_options(self) -> None:
        if len(self.keys) > MAX_REGISTERS:
            raise BadRequest(
                f"more than {MAX_REGISTERS:,} registers would be used; raise load.operations "
                "or lower load.rate"
            )

    def client_settings(self) -> Mapping[str, Any]:
        return {}

    def process_name(self, process: int) -> str:
        watcher = process - self.options.clients
        watches = 0 <= watcher < self.options.watchers
        return f"watcher {watcher}" if watches else super().process_name(process)

    def operate(self, context: WorkloadContext, process: int) -> Coroutine[Any, Any, None]:
        return RegisterOperator(self, context, process).run()

    def read(
        self, context: WorkloadContext, process: int, reader: int
    ) -> Coroutine[Any, Any, None]:
        client = RegisterReader(self, context, process)
        mine = share(range(self.used(context)), reader, READERS)
        return client.read_each(mine, client.answered, self.within_s)

    def turn(self, context: WorkloadContext) -> int:
        """Return how often the registers were replaced by now."""
        return min(int(context.now_s() / self._turn_s), self._turns - 1)

    def used(self, context: WorkloadContext) -> int:
        return (self.turn(context) + 1) * self.options.registers


class RegisterReader(ObjectClient):
    """A client that reads."""

    def __init__(self, workload: RegisterWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self.workload = workload
        self.real = cast(RegisterClient, context.client).registers(self.first)

    async def get(self, key: int) -> tuple[Completion, int]:
        op = self.invoke(F.GET, key)
        done, value = await self.real.get(self.workload.keys[key])
        self.complete(op, F.GET, key, value, done)
        return done, value

    async def answered(self, key: int) -> bool:
        """Read a register; return whether there was an answer."""
        return (await self.get(key))[0].type is Type.OK


class RegisterOperator(RegisterReader):
    """A client of the load, or a watcher. It remembers what it saw last."""

    def __init__(self, workload: RegisterWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(workload, context, process)
        self._wishes = OPERATION_MIX if process < workload.options.clients else (F.GET,)
        self._fresh = values(self.first)
        self._seen: dict[int, int] = {}

    async def run(self) -> None:
        options = self.workload.options
        while await self.due(options.rate / self.workload.operating):
            turn = self.workload.turn(self.context)
            key = turn * options.registers + self.random.randrange(options.registers)
            match self.random.choice(self._wishes):
                case F.GET:
                    done, value = await self.get(key)
                    if done.type is Type.OK:
                        self._seen[key] = value
                case F.PUT:
                    await self._put(key)
                case _:
                    await self._cas(key)

    async def _put(self, key: int) -> None:
        value = self._value()
        op = self.invoke(F.PUT, key, value)
        done = await self.real.put(self.workload.keys[key], value)
        self.complete(op, F.PUT, key, value, done)
        if done.type is Type.OK:
            self._seen[key] = value

    async def _cas(self, key: int) -> None:
        expected, value = self._seen.get(key, NONE), self._value()
        op = self.invoke(F.CAS, key, expected, value)
        done = await self.real.cas(self.workload.keys[key], expected, value)
        self.complete(op, F.CAS, key, expected, replace(done, arg=value))
        if done.type is Type.OK:
            self._seen[key] = value

    def _value(self) -> int:
        distinct = self.workload.options.distinct
        return self.random.randrange(distinct) if distinct else next(self._fresh)
