"""Each client writes a key of its own, and reads it back after each write."""

import asyncio
from dataclasses import dataclass
from itertools import count

from harness.contracts import F, ObjectClient, Type, WorkloadPlugin, check_load

CHECKERS = ("read-your-writes", "recovery", "coverage")
RETRY_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """The `load` options of this workload."""

    clients: int = 4
    rate: float = 25.0  # writes a second, of each client


def workload(trial):
    load = check_load(Options, {"clients": (1, 100)}, trial.load, "own-keys")
    return OwnKeys(Options(**load), trial)


PLUGIN = WorkloadPlugin(workload=workload, client=frozenset({"registers"}), options=Options)


class OwnKeys:
    def __init__(self, options, trial):
        self.options = options
        self.processes = 2 * options.clients  # those of the load, and those that read at the end
        self.keys = [f"key-{n}" for n in range(options.clients)]
        self.checkers = trial.checkers or CHECKERS

    def process_name(self, process):
        kind, number = divmod(process, self.options.clients)
        return f"{('client', 'reader')[kind]} {number}"

    def check_options(self):
        """`check_load` did it."""

    def client_settings(self):
        return {}

    async def load(self, context):
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                if process < self.options.clients:
                    tasks.create_task(KeyOwner(self, context, process).write())

    async def drain(self, context):
        for process in context.processes:
            if process >= self.options.clients:
                await KeyOwner(self, context, process).read_at_last()


class KeyOwner(ObjectClient):
    def __init__(self, workload, context, process):
        super().__init__(context, process)
        self.key, self.rate = process % workload.options.clients, workload.options.rate
        self.name = workload.keys[self.key]
        self.registers = context.client.registers(self.first)

    async def write(self):
        for value in count(self.first << 32):
            if not await self.due(self.rate):
                return
            op = self.invoke(F.PUT, self.key, value)
            done = await self.registers.put(self.name, value)
            self.complete(op, F.PUT, self.key, value, done)
            await self.read()

    async def read_at_last(self):
        while True:
            if await self.read():
                return
            await asyncio.sleep(RETRY_S)

    async def read(self):
        op = self.invoke(F.GET, self.key)
        done, value = await self.registers.get(self.name)
        self.complete(op, F.GET, self.key, value, done)
        return done.type is Type.OK
