"""Shared by the workloads of objects: option checks, and clients that do one operation at a time.

An operation whose outcome is unknown may take effect at any later time, so its process must not do
anything else: the client continues under a *new number*, as if it had died and another had taken
its place. Its numbers are congruent modulo the number of processes, so that client processes never
use the same one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from harness import registry
from harness.contracts import KEY_PREFIX, WorkloadContext
from harness.contracts.calls import PlainClient, call_outcome
from harness.errors import BadRequest
from harness.operation import Completion, F, Type
from harness.run.schedule import SkippedArrivals, arrivals
from harness.trial import Trial

MIN_RATE, MAX_RATE = 0.1, 10_000.0
NOTICE_STOP_S = 0.1  # idle clients check so often whether the load is over
REPLICAS = "replicas"  # the checker of copies
RETRY_S = 0.05  # after a read that failed

Ranges = Mapping[str, tuple[int, int]]


def checkers_of(trial: Trial, usual: Sequence[str]) -> Sequence[str]:
    """Return the trial's checkers: those it names, or the workload's usual ones, and `replicas` if
    the system has digests to compare. Without digests there is nothing to compare where a client
    program chooses how it stores entries, or where copies are files of nodes that are attached.

    Client processes ask this, too, and their nodes lack what the modules of hosts need.
    """
    if trial.checkers:
        return trial.checkers
    system = registry.system(trial.system)
    digests = system.digests
    unread = system.copies_stopped and trial.bed.get(KEY_PREFIX)
    if (trial.client or unread) and not digests:
        return tuple(name for name in usual if name != REPLICAS)
    return (*usual, REPLICAS) if digests and REPLICAS not in usual else usual


def check_load(
    options: Any, ranges: Ranges, load: Mapping[str, Any], workload: str
) -> dict[str, Any]:
    """Return the `load` options of a trial. Raises BadRequest with the key. `options`: a dataclass
    of numbers; one without a range is a rate."""
    known = [field.name for field in fields(options)]
    for key, raw in load.items():
        if key not in known:
            names = ", ".join(sorted(known))
            raise BadRequest(
                f"load.{key} is not an option of the workload {workload}; it has: {names}"
            )
        least, most = ranges.get(key, (MIN_RATE, MAX_RATE))
        kind, number = (int, "whole number") if key in ranges else (int | float, "number")
        if isinstance(raw, bool) or not isinstance(raw, kind) or not least <= raw <= most:
            raise BadRequest(
                f"load.{key} must be a {number} from {least:g} to {most:g}, not {raw!r}"
            )
    return dict(load)


class ObjectClient:
    """One client. `process`: its current number in the history."""

    def __init__(self, context: WorkloadContext, process: int) -> None:
        self.context = context
        self.first = self.process = context.process_id(process)
        self.random: Any = context.random(f"client-{self.first}")
        self.loop = asyncio.get_running_loop()
        self._skipped = SkippedArrivals(lambda text: context.note(text, self.first))

    def invoke(self, f: F, key: int, value: int = -1, arg: int = -1) -> int:
        return self.context.invoke(self.process, f, key, value, arg=arg)

    def complete(self, op: int, f: F, key: int, value: int, done: Completion) -> None:
        """Journal a completion; after an unknown outcome, continue under a new number."""
        self.context.complete(self.process, op, f, key, value, done)
        if done.type is Type.INFO:
            self.take_new_id()

    def plain_calls(self) -> Any:
        """Return the client of plain calls of this logical process."""
        return cast(PlainClient, self.context.client).calls(self.first)

    async def outcome(self, asked: Awaitable[Any], *, read: bool = False) -> tuple[Completion, Any]:
        """Return how a plain call ended, and its answer."""
        return await call_outcome(asked, read=read)

    def take_new_id(self) -> None:
        self.process += self.context.total_processes

    async def due(self, rate_per_s: float) -> bool:
        """Wait for the next arrival, as `arrivals` yields it; return False if the load is over."""
        if not hasattr(self, "_arrivals"):
            self._arrivals: Iterator[float] = arrivals(self.random, rate_per_s)
        due_s = next(self._arrivals)
        while due_s < self.context.now_s():  # the client was busy
            self._skipped.add(due_s)
            due_s = next(self._arrivals)
        await self.sleep_until(self.loop.time() + due_s - self.context.now_s())
        if self.context.stopping:
            self._skipped.note()
        return not self.context.stopping

    async def sleep_until(self, until_s: float) -> None:
        """Sleep until this time of the loop; less if the load is over."""
        left_s = until_s - self.loop.time()
        while left_s > 0 and not self.context.stopping:
            await asyncio.sleep(min(left_s, NOTICE_STOP_S))
            left_s = until_s - self.loop.time()

    async def read_each(
        self, keys: Iterable[int], read: Callable[[int], Awaitable[bool]], within_s: float
    ) -> None:
        """Read each key until there is an answer, or the time is over."""
        deadline_s = self.loop.time() + within_s
        for key in keys:
            while not await read(key):
                if self.loop.time() >= deadline_s:
                    return
                await asyncio.sleep(RETRY_S)

    async def read_each_at_least_once(
        self, keys: Iterable[int], read: Callable[[int], Awaitable[bool]], within_s: float
    ) -> None:
        """Read each key until there is an answer; when the time is over, each once."""
        deadline_s = self.loop.time() + within_s
        for key in keys:
            done = await read(key)
            while not done and self.loop.time() < deadline_s:
                await asyncio.sleep(RETRY_S)
                done = await read(key)


class FinalReadsWorkload:
    """A workload whose first processes operate during the load, while the others, its readers, read
    everything at its end. Subclasses set both numbers, and define `operate` and `read`."""

    operating: int
    processes: int
    noun = "client"  # of a process that operates

    def operate(self, context: WorkloadContext, process: int) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def read(
        self, context: WorkloadContext, process: int, reader: int
    ) -> Coroutine[Any, Any, None]:
        """Read the share of one reader. `reader`: its number, from 0."""
        raise NotImplementedError

    def process_name(self, process: int) -> str:
        reader = process - self.operating
        return f"reader {reader}" if reader >= 0 else f"{self.noun} {process}"

    async def load(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                if process < self.operating:
                    tasks.create_task(self.operate(context, process))

    async def drain(self, context: WorkloadContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            for process in context.processes:
                reader = process - self.operating
                if reader >= 0:
                    tasks.create_task(self.read(context, process, reader))
