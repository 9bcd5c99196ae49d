"""Writers change keys, and watchers follow each change of a key: no event is missed, repeated, out
of order, or older than what the watcher has seen.

A *writer* gives a key, drawn from the seed, a value that was never written before, and receives
its version: 1, 2, 3 ... of each key. A *watcher* follows one key. It asks for the changes after the
last version that it received, again and again, so it resumes after a lost connection where it was.
Now and then it reads the key, too; sometimes it goes on from what it read ("list and watch"), so
that the events up to there are left out on purpose.

At the end each watcher reads its key until there is an answer, and follows it until it has received
that version and nothing came in three calls after it, or the time is over.

Systems promise one of two things, which each answer says: every event, or that the newest value is
learned (ZooKeeper's watches fire once, so values between two looks are left out).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from harness.contracts import ReceivedMessage, WorkloadContext, WorkloadPlugin
from harness.contracts.calls import Changes
from harness.operation import NONE, F, Type
from harness.run.schedule import values
from harness.trial import Trial
from harness.workloads._clients import RETRY_S, ObjectClient, check_load, checkers_of

CHECKERS = ("watches", "recovery", "coverage")
TOPIC = "watched"
READS = 0.1  # of a watcher's calls: it also reads the key
RESTARTS = 0.3  # of these reads: it continues from what it read
SILENT_CALLS = 3  # after the last event
RANGES = {"keys": (1, 1000), "writers": (1, 1000), "watchers": (1, 1000)}


def workload(trial: Trial) -> "WatchWorkload":
    return WatchWorkload(
        WatchOptions(**check_load(WatchOptions, RANGES, trial.load, "watch")), trial
    )


def swarm(random: Random) -> Mapping[str, Any]:
    """Return the load of one seed of a campaign."""
    return {
        "keys": random.choice((1, 2, 4)),
        "writers": random.choice((2, 4)),
        "watchers": random.choice((2, 4, 8)),
        "rate": float(random.choice((10, 20, 40))),
    }


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """The `load` options of this workload."""

    keys: int = 2  # keys that are changed
    writers: int = 4  # clients that change them
    watchers: int = 6  # clients that follow one key each
    rate: float = 40.0  # changes a second, by all writers together


PLUGIN = WorkloadPlugin(
    workload=workload,
    client=frozenset({"calls"}),
    calls=(frozenset({"change", "current", "watch"}),),
    options=WatchOptions,
    swarm=swarm,
)


class WatchWorkload:
    """The workload; the same value in every client process."""

    def __init__(self, options: WatchOptions, trial: Trial) -> None:
        self.options = options
        self.keys: Sequence[str] = [f"{TOPIC}-{n}" for n in range(options.keys)]
        self.checkers: Sequence[str] = checkers_of(trial, CHECKERS)
        self.processes = options.writers + options.watchers
        self._within_s = trial.recover_within_s
        self._watchers: dict[int, WatchingClient] = {}

    def check_options(self) -> None:
        """Do nothing: the constructor checked them."""

    def client_settings(self) -> Mapping[str, Any]:
        return {"topics": {TOPIC: self.options.keys}}

    def process_name(self, process: int) -> str:
        watcher = process - self.options.writers
        return f"writer {process}" if watcher < 0 else f"watcher {watcher}"

    async def load(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                if process < self.options.writers:
                    tasks.create_task(self._write(WritingClient(self, context, process)))
                else:
                    watcher = self._watchers[process] = WatchingClient(self, context, process)
                    tasks.create_task(watcher.follow())

    async def drain(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for watcher in self._watchers.values():
                tasks.create_task(watcher.catch_up(self._within_s))

    async def _write(self, writer: "WritingClient") -> None:
        while await writer.due(self.options.rate / self.options.writers):
            await writer.change(writer.random.randrange(self.options.keys))


class WritingClient(ObjectClient):
    """A client that changes keys."""

    def __init__(self, workload: WatchWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self._keys, self._fresh = workload.keys, values(self.first)
        self._calls = self.plain_calls()

    async def change(self, key: int) -> None:
        value = next(self._fresh)
        op = self.invoke(F.PUT, key, value)
        done, version = await self.outcome(self._calls.change(self._keys[key], value))
        self.complete(op, F.PUT, key, value, replace(done, offset=_or_none(version)))


class WatchingClient(ObjectClient):
    """A client that follows one key."""

    def __init__(self, workload: WatchWorkload, context: WorkloadContext, process: int) -> None:
        super().__init__(context, process)
        self._key = (process - workload.options.writers) % workload.options.keys
        self._name = workload.keys[self._key]
        self._calls = self.plain_calls()
        self._after = 0

    async def follow(self) -> None:
        """Follow the key until the load is over."""
        while not self.context.stopping:
            if self.random.random() < READS:
                version = await self._read()
                if version > self._after and self.random.random() < RESTARTS:
                    self._after = version
            await self._watch()

    async def catch_up(self, within_s: float) -> None:
        """Follow the key until its newest version was received, and nothing comes any more."""
        deadline_s = self.loop.time() + within_s
        newest, silent = NONE, 0
        while silent < SILENT_CALLS and self.loop.time() < deadline_s:
            if newest == NONE:
                newest = await self._read()
            changes = await self._watch()
            caught_up = newest != NONE and self._after >= newest
            silent = silent + 1 if changes and not changes.events and caught_up else 0

    async def _read(self) -> int:
        """Return the version of the key's value, 0 if it has none; NONE: there was no answer."""
        op = self.invoke(F.GET, self._key)
        done, found = await self.outcome(self._calls.current(self._name), read=True)
        version, value = found or (0 if done.type is Type.OK else NONE, NONE)
        self.complete(op, F.GET, self._key, value, replace(done, offset=version))
        return int(version)

    async def _watch(self) -> Changes | None:
        """Ask for changes once; return them, None if there was no answer."""
        op = self.context.invoke(self.process, F.WATCH, self._key, offset=self._after)
        asked = self._calls.watch(self._name, self._after)
        done, changes = await self.outcome(asked, read=True)
        for pos, (version, value) in enumerate(changes.events if changes else ()):
            event = ReceivedMessage(version, NONE, b"")
            self.context.received(self.process, op, F.WATCH, self._key, pos, value, event)
            self._after = version if changes.newest else max(version, self._after)
        arg = changes.promise if changes else NONE
        self.complete(op, F.WATCH, self._key, NONE, replace(done, arg=arg))
        if not changes:
            await asyncio.sleep(RETRY_S)
        return changes  # type: ignore[no-any-return]  # it is checked


def _or_none(version: int | None) -> int:
    return NONE if version is None else version
