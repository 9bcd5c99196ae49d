"""Clients read, write and compare-and-set small registers; all must see the same value.

Each *client* does one thing at a time, on a register drawn from the seed: it reads it, writes a
value that nobody ever wrote before (or, with `distinct`, one of few), or changes it from the value
that it saw last. *Watchers* only read: nothing ever tells them that another node leads now. A
change that was refused by the comparison itself tells of the register's value and is journalled as
such; a read has no effect, so one that gave nothing simply failed.

After some operations a register is given up for a new one, since whoever searches for an order of
its operations takes longer the more there are. That happens by the clock, so that crews agree. At
the end *readers* that have asked nothing before read every register that was ever used.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Any, Protocol, cast

from harness.contracts import Crew, MessageClient, WorkloadPlugin
from harness.errors import BadRequest
from harness.operation import NONE, Completion, F, Type
from harness.run.schedule import share, values
from harness.trial import Trial
from harness.workloads._clients import RETRY_S, Client, checked

CHECKERS = ("registers", "invariants", "recovery", "coverage")
READERS = 2
MOST_REGISTERS = 100_000  # in a run
WISHES = (F.GET,) * 4 + (F.PUT,) * 3 + (F.CAS,) * 3
RANGES = {
    "clients": (1, 1000),
    "watchers": (0, 1000),
    "registers": (1, 1000),
    "operations": (1, 1_000_000),
    "distinct": (0, 1_000_000),
}


class Registers(Protocol):
    """One client's way to registers. Calls never raise for what the system did."""

    async def get(self, key: str) -> tuple[Completion, int]:
        """The value, NONE when it has none. Never of unknown outcome."""
        ...

    async def put(self, key: str, value: int) -> Completion: ...

    async def cas(self, key: str, expected: int, value: int) -> Completion:
        """Fail with pos 0: the comparison refused it. Expected NONE: only if it has no value."""
        ...


class RegisterClient(MessageClient, Protocol):
    """A client of a system that has registers."""

    def registers(self, client: int) -> Registers:
        """One for each client, with connections of its own; closed with this client."""
        ...


def workload(trial: Trial) -> "Register":
    options = Options(**checked(Options, RANGES, trial.load, "register"))
    return Register(options, trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """The load of one seed of a campaign."""
    return {
        "clients": random.choice((2, 4, 8)),
        "watchers": random.choice((1, 3)),
        "registers": random.choice((1, 2, 4)),
        "rate": float(random.choice((15, 30, 60))),
        "distinct": random.choice((0, 0, 0, 3)),
    }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `load` may say in a trial of this workload."""

    clients: int = 6  # who put, compare-and-set and get
    watchers: int = 3  # who only get
    registers: int = 4  # at a time
    rate: float = 90.0  # operations a second, of all clients and watchers together
    operations: int = 150  # about so many on a register, then it is given up
    distinct: int = 0  # how many values there are to write; 0: each is written once


PLUGIN = WorkloadPlugin(workload=workload, options=Options, swarm=swarm)


class Register:
    """The workload; the same value in every crew."""

    def __init__(self, options: Options, trial: Trial) -> None:
        self.options = options
        self.within_s = trial.recover_within_s
        self._turn_s = options.registers * options.operations / options.rate
        longest_s = trial.duration_s + trial.recover_within_s
        self._turns = ceil(longest_s / self._turn_s) + 1
        count = self._turns * options.registers
        self.keys: Sequence[str] = [f"register-{n}" for n in range(min(count, MOST_REGISTERS + 1))]
        self.checkers: Sequence[str] = trial.checkers or CHECKERS
        self.operating = options.clients + options.watchers
        self.processes = self.operating + READERS

    def check_options(self) -> None:
        if len(self.keys) > MOST_REGISTERS:
            raise BadRequest(
                f"more than {MOST_REGISTERS:,} registers would be used; raise load.operations "
                "or lower load.rate"
            )

    def client_settings(self) -> Mapping[str, Any]:
        return {}

    def who(self, process: int) -> str:
        if process >= self.operating:
            return f"reader {process - self.operating}"
        watcher = process - self.options.clients
        return f"watcher {watcher}" if watcher >= 0 else f"client {process}"

    async def load(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in crew.processes:
                if process < self.operating:
                    tasks.create_task(Operator(self, crew, process).run())

    async def drain(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in crew.processes:
                if process >= self.operating:
                    reader = Reader(self, crew, process)
                    mine = share(range(self.used(crew)), process - self.operating, READERS)
                    tasks.create_task(reader.read(mine))

    def turn(self, crew: Crew) -> int:
        """How often the registers were given up by now."""
        return min(int(crew.now_s() / self._turn_s), self._turns - 1)

    def used(self, crew: Crew) -> int:
        return (self.turn(crew) + 1) * self.options.registers


class Reader(Client):
    """A client that reads."""

    def __init__(self, workload: Register, crew: Crew, process: int) -> None:
        super().__init__(crew, process)
        self.workload = workload
        self.real = cast(RegisterClient, crew.client).registers(self.first)

    async def get(self, key: int) -> tuple[Completion, int]:
        op = self.invoke(F.GET, key)
        done, value = await self.real.get(self.workload.keys[key])
        self.complete(op, F.GET, key, value, done)
        return done, value

    async def read(self, keys: Sequence[int]) -> None:
        """Each until there is an answer, or no time is left."""
        deadline_s = self.loop.time() + self.workload.within_s
        for key in keys:
            while (await self.get(key))[0].type is not Type.OK:
                if self.loop.time() >= deadline_s:
                    return
                await asyncio.sleep(RETRY_S)


class Operator(Reader):
    """A client of the load, or a watcher. It remembers what it saw last."""

    def __init__(self, workload: Register, crew: Crew, process: int) -> None:
        super().__init__(workload, crew, process)
        self._wishes = WISHES if process < workload.options.clients else (F.GET,)
        self._fresh = values(self.first)
        self._seen: dict[int, int] = {}

    async def run(self) -> None:
        options = self.workload.options
        while await self.due(options.rate / self.workload.operating):
            turn = self.workload.turn(self.crew)
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
