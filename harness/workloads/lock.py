"""Clients take locks, hold them for a while and release them; each has one holder at a time.

A lock is that of a queue for ordered consumption, in a group of its own. It is a *lease*: its
holder relies on it for so long after the request, and no longer, which is journalled with the
answer (`arg`). A hold is certain from the answer until the release, or the end of the lease,
whichever comes first; two certain holds of a lock at one time convict. A system's fencing tokens
are judged, too: each holder's is larger than the one before. Flotilla's brokers give none.

Some clients misbehave. Some *forget* their lock: the next holder has to wait until the brokers'
lease has expired. Some *sleep* until their lease is over, and release what may be another client's
by then. Some *meddle*: they release a lock that they were refused. Such a release must change
nothing, so it is journalled as one that failed.

A client that does not know the outcome of a request sends nothing more under its name: it continues
under a new one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from harness.contracts import MetadataClient, WorkloadContext, WorkloadPlugin
from harness.operation import NONE, Completion, F, Type
from harness.trial import Trial
from harness.workloads._clients import ObjectClient, check_load, checkers_of

CHECKERS = ("objects", "invariants", "recovery", "coverage")
TOPIC = "locks"
FORGETS = 0.05  # of all holds
SLEEPS = 0.1  # of all holds: longer than the lease
MEDDLES = 0.2  # of all refusals: followed by a release
SURELY = 0.9  # of a lease: clients that do not sleep release it by then
RANGES = {
    "locks": (1, 1000),
    "clients": (1, 1000),
    "hold_ms": (1, 1_000_000),
}


def workload(trial: Trial) -> "LockWorkload":
    return LockWorkload(LockOptions(**check_load(LockOptions, RANGES, trial.load, "lock")), trial)


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "locks": random.choice((1, 2, 4)),
        "clients": random.choice((2, 3, 5)),
        "rate": float(random.choice((8, 15, 25))),
        "hold_ms": random.choice((50, 200, 2000)),
    }


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """The `load` options of this workload."""

    locks: int = 4  # number of locks
    clients: int = 3  # clients of each lock
    rate: float = 40.0  # attempts to take a lock, a second, by all clients together
    hold_ms: int = 200  # how long a client holds a lock, on average


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"lock", "unlock"}),
    calls=(frozenset({"acquire", "release"}),),
    options=LockOptions,
    swarm=swarm,
    client_faults=frozenset({"pause"}),  # a paused holder outlasts its lease
)


class LockWorkload:
    """The workload; the same value in every client process."""

    def __init__(self, options: LockOptions, trial: Trial) -> None:
        self.options = options
        self.keys: Sequence[str] = [f"{TOPIC}-{n}" for n in range(options.locks)]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self.processes = options.locks * options.clients

    def check_options(self) -> None:
        """Do nothing: the constructor checked them."""

    def client_settings(self) -> Mapping[str, Any]:
        return {"topics": {TOPIC: self.options.locks}, "body_bytes": 0, "strict": ("locks",)}

    def process_name(self, process: int) -> str:
        lock, client = self.place(process)
        return f"client {client} of {TOPIC}-{lock}"

    def place(self, process: int) -> tuple[int, int]:
        """Return the lock of a process, and its number among the clients of that lock. These have
        successive numbers, so they are spread over the client nodes: while one node is paused,
        clients on the others can take its locks."""
        return divmod(process, self.options.clients)

    async def load(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                tasks.create_task(LockHolder(self, context, process).run())

    async def drain(self, context: WorkloadContext) -> None:
        """Do nothing: locks are released with the end of the load."""


class LockHolder(ObjectClient):
    """One client of one lock."""

    def __init__(self, workload: LockWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self._options = workload.options
        self._client = cast(MetadataClient, context.client)
        self._key, _ = workload.place(process)

    async def run(self) -> None:
        while await self.due(self._options.rate / (self._options.locks * self._options.clients)):
            acquired = await self._acquire()
            if acquired.type is Type.FAIL and self.random.random() < MEDDLES:
                await self._release_unheld()
            if acquired.type is not Type.OK:
                continue
            if self.random.random() < FORGETS:
                self.take_new_id()
                continue
            await self.sleep_until(self.loop.time() + self._hold_s(acquired.offset / 1000))
            await self._release()

    def _hold_s(self, lease_s: float) -> float:
        if self.random.random() < SLEEPS:
            return lease_s * float(self.random.uniform(1, 2))
        hold_s = float(self.random.expovariate(1000 / self._options.hold_ms))
        return min(hold_s, SURELY * lease_s)

    async def _acquire(self) -> Completion:
        """Take the lock; if ok, `offset` is the lease in milliseconds; fail: another client has
        it."""
        op = self.invoke(F.ACQUIRE, self._key)
        done = await self._client.lock(*self._place)
        lease_ms, token = (done.offset, done.arg) if done.type is Type.OK else (NONE, NONE)
        self.complete(op, F.ACQUIRE, self._key, NONE, replace(done, offset=token, arg=lease_ms))
        return done

    async def _release_unheld(self) -> None:
        """Release a lock that another client holds: whatever the answer, nothing may change."""
        op = self.invoke(F.RELEASE, self._key)
        done = await self._client.unlock(*self._place)
        if done.type is Type.OK:
            done = Completion(
                Type.FAIL, error="another client held it, and it was released nevertheless"
            )
        self.complete(op, F.RELEASE, self._key, NONE, done)

    async def _release(self) -> None:
        op = self.invoke(F.RELEASE, self._key)
        done = await self._client.unlock(*self._place)
        self.complete(op, F.RELEASE, self._key, NONE, done)
        if done.type is Type.FAIL:
            self.take_new_id()  # the brokers may hold the lock for this client for long

    @property
    def _place(self) -> tuple[str, str, str, int]:
        return f"group-{self._key}", f"client-{self.process}", TOPIC, self._key
