"""Wait for a condition with a deadline, or for several tasks.

Time is the test bed's own clock, which may be virtual.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from harness.contracts import TestBed
from harness.errors import NodeGone

NS = 1_000_000_000


async def wait_until(
    bed: TestBed,
    condition: Callable[[], Awaitable[bool]],
    deadline_ns: float,
    every_s: float = 0.005,
) -> bool:
    """Poll the condition, at least once; return whether it held before the deadline."""
    while not await condition():
        left_s = (deadline_ns - bed.now_ns()) / NS
        if left_s <= 0:
            return False
        await bed.sleep(min(every_s, left_s))
    return True


async def sleep_until(bed: TestBed, at_ns: float) -> None:
    while (left_s := (at_ns - bed.now_ns()) / NS) > 0:
        await bed.sleep(left_s)


async def gather_all(*work: Awaitable[Any]) -> None:
    """Wait for the end of every awaitable, then raise the first failure.

    NodeGone is raised only if it is the only kind of failure: the others may be temporary.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise min(failures, key=lambda failure: isinstance(failure, NodeGone))
