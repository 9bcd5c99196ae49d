"""What the workloads of objects share: their options, and clients that do one thing at a time.

An operation whose outcome is unknown may take effect at any later time, so whoever asked for it is
not heard of again: the client goes on under a *new number*, as if it had died and another had come
in its place. Its numbers are all those that leave the same rest when divided by the number of
processes, so that crews never take the same one.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from harness.contracts import Crew
from harness.errors import BadRequest
from harness.operation import Completion, F, Type
from harness.run.schedule import Skipped, arrivals

LEAST_RATE, MOST_RATE = 0.1, 10_000.0
NOTICE_STOP_S = 0.1  # how long a client without anything due may fail to see that it should stop
RETRY_S = 0.05  # after a read that failed

Ranges = Mapping[str, tuple[int, int]]


def checked(options: Any, ranges: Ranges, load: Mapping[str, Any], workload: str) -> dict[str, Any]:
    """What `load` of a trial says. BadRequest names the key. `options`: a dataclass of numbers;
    what has no range is a rate."""
    known = [field.name for field in fields(options)]
    for key, raw in load.items():
        if key not in known:
            names = ", ".join(sorted(known))
            raise BadRequest(
                f"load.{key} is not an option of the workload {workload}; it has: {names}"
            )
        least, most = ranges.get(key, (LEAST_RATE, MOST_RATE))
        kind, number = (int, "whole number") if key in ranges else (int | float, "number")
        if isinstance(raw, bool) or not isinstance(raw, kind) or not least <= raw <= most:
            raise BadRequest(
                f"load.{key} must be a {number} from {least:g} to {most:g}, not {raw!r}"
            )
    return dict(load)


class Client:
    """One client. `process`: the number that it goes by now."""

    def __init__(self, crew: Crew, process: int) -> None:
        self.crew = crew
        self.first = self.process = crew.number(process)
        self.random: Any = crew.random(f"client-{self.first}")
        self.loop = asyncio.get_running_loop()
        self._skipped = Skipped(lambda text: crew.note(text, self.first))

    def invoke(self, f: F, key: int, value: int = -1, arg: int = -1) -> int:
        return self.crew.invoke(self.process, f, key, value, arg=arg)

    def complete(self, op: int, f: F, key: int, value: int, done: Completion) -> None:
        """Journalled; after an unknown outcome another client comes in this one's place."""
        self.crew.complete(self.process, op, f, key, value, done)
        if done.type is Type.INFO:
            self.die()

    def die(self) -> None:
        self.process += self.crew.total

    async def due(self, rate_per_s: float) -> bool:
        """Wait for the next arrival, as `arrivals` says; False: the crew stops."""
        if not hasattr(self, "_arrivals"):
            self._arrivals: Iterator[float] = arrivals(self.random, rate_per_s)
        due_s = next(self._arrivals)
        while due_s < self.crew.now_s():  # the client was busy
            self._skipped.add(due_s)
            due_s = next(self._arrivals)
        await self.sleep_until(self.loop.time() + due_s - self.crew.now_s())
        if self.crew.stopping:
            self._skipped.note()
        return not self.crew.stopping

    async def sleep_until(self, until_s: float) -> None:
        """By the loop's time; less if the crew stops."""
        left_s = until_s - self.loop.time()
        while left_s > 0 and not self.crew.stopping:
            await asyncio.sleep(min(left_s, NOTICE_STOP_S))
            left_s = until_s - self.loop.time()
