"""Clients take locks, hold them for a while and release them; each has one holder at a time.

A lock is that of a queue for ordered consumption, in a group of its own. It is a *lease*: its
holder believes in it for so long after he asked, and no longer, which is journalled with the
answer (`arg`). A hold is certain from the answer until it is given back, or the belief ends,
whichever comes first; two certain holds of a lock at one time convict. The brokers give no fencing
token, so there is none to be judged.

Not every client behaves. Some holders *forget* their lock: the next one has to wait until the
brokers' lease has run out. Some *sleep* until their lease is over, and give back what may be
another's by then. Some *meddle*: they give back a lock that they were refused. Such a release must
change nothing, so it is journalled as one that failed.

A client that can not be sure of what became of its order asks for nothing any more under its name:
another one comes in its place.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from harness.contracts import Crew, MetadataClient, WorkloadPlugin
from harness.operation import NONE, Completion, F, Type
from harness.trial import Trial
from harness.workloads._clients import Client, checked

CHECKERS = ("objects", "invariants", "recovery", "coverage")
TOPIC = "locks"
FORGETS = 0.05  # of all holds
SLEEPS = 0.1  # of all holds: longer than the lease
MEDDLES = 0.2  # of all refusals: followed by a release
SURELY = 0.9  # of a lease: whoever holds longer gives it back too late
RANGES = {
    "locks": (1, 1000),
    "clients": (1, 1000),
    "hold_ms": (1, 1_000_000),
}


def workload(trial: Trial) -> "Lock":
    return Lock(Options(**checked(Options, RANGES, trial.load, "lock")), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """The load of one seed of a campaign."""
    return {
        "locks": random.choice((1, 2, 4)),
        "clients": random.choice((2, 3, 5)),
        "rate": float(random.choice((8, 15, 25))),
        "hold_ms": random.choice((50, 200, 2000)),
    }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `load` may say in a trial of this workload."""

    locks: int = 4  # how many
    clients: int = 3  # of each lock
    rate: float = 40.0  # tries to take a lock, a second, of all clients together
    hold_ms: int = 200  # how long one is held, on average


PLUGIN = WorkloadPlugin(
    workload=workload,
    options=Options,
    swarm=swarm,
    client_faults=frozenset({"pause"}),  # one that holds a lock sleeps over its lease
)


class Lock:
    """The workload; the same value in every crew."""

    def __init__(self, options: Options, trial: Trial) -> None:
        self.options = options
        self.keys: Sequence[str] = [f"{TOPIC}-{n}" for n in range(options.locks)]
        self.checkers: Sequence[str] = trial.checkers or CHECKERS
        self.processes = options.locks * options.clients

    def check_options(self) -> None:
        """They were checked when this was made."""

    def client_settings(self) -> Mapping[str, Any]:
        return {"topics": {TOPIC: self.options.locks}, "body_bytes": 0, "strict": ("locks",)}

    def who(self, process: int) -> str:
        return f"client {process // self.options.locks} of {TOPIC}-{process % self.options.locks}"

    async def load(self, crew: Crew) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in crew.processes:
                tasks.create_task(Holder(self, crew, process).run())

    async def drain(self, crew: Crew) -> None:
        """What is held is given back with the load."""


class Holder(Client):
    """One client of one lock."""

    def __init__(self, workload: Lock, crew: Crew, process: int) -> None:
        super().__init__(crew, process)
        self._options = workload.options
        self._client = cast(MetadataClient, crew.client)
        self._key = process % workload.options.locks

    async def run(self) -> None:
        while await self.due(self._options.rate / (self._options.locks * self._options.clients)):
            acquired = await self._acquire()
            if acquired.type is Type.FAIL and self.random.random() < MEDDLES:
                await self._meddle()
            if acquired.type is not Type.OK:
                continue
            if self.random.random() < FORGETS:
                self.die()
                continue
            await self.sleep_until(self.loop.time() + self._hold_s(acquired.offset / 1000))
            await self._release()

    def _hold_s(self, lease_s: float) -> float:
        if self.random.random() < SLEEPS:
            return lease_s * float(self.random.uniform(1, 2))
        hold_s = float(self.random.expovariate(1000 / self._options.hold_ms))
        return min(hold_s, SURELY * lease_s)

    async def _acquire(self) -> Completion:
        """Ok with the milliseconds that the lease lasts as `offset`; fail: it is another's."""
        op = self.invoke(F.ACQUIRE, self._key)
        done = await self._client.lock(*self._place)
        lease_ms = done.offset if done.type is Type.OK else NONE
        self.complete(op, F.ACQUIRE, self._key, NONE, replace(done, offset=NONE, arg=lease_ms))
        return done

    async def _meddle(self) -> None:
        """Give back what is not ours: whatever is answered, it must not happen."""
        op = self.invoke(F.RELEASE, self._key)
        done = await self._client.unlock(*self._place)
        if done.type is Type.OK:
            done = Completion(Type.FAIL, error="it was another's, and was given back all the same")
        self.complete(op, F.RELEASE, self._key, NONE, done)

    async def _release(self) -> None:
        op = self.invoke(F.RELEASE, self._key)
        done = await self._client.unlock(*self._place)
        self.complete(op, F.RELEASE, self._key, NONE, done)
        if done.type is Type.FAIL:
            self.die()  # the brokers may think that it is this client's for long

    @property
    def _place(self) -> tuple[str, str, str, int]:
        return f"group-{self._key}", f"client-{self.process}", TOPIC, self._key
