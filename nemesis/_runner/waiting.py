"""Wait for a condition, with a deadline: on the bed's own clock, so that it may be virtual. Or for
several things, to the end of each."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from harness.contracts import Bed
from harness.errors import NodeGone

NS = 1_000_000_000


async def reached(
    bed: Bed,
    condition: Callable[[], Awaitable[bool]],
    deadline_ns: float,
    every_s: float = 0.005,
) -> bool:
    """Whether the condition held before the deadline; it is asked at least once."""
    while not await condition():
        left_s = (deadline_ns - bed.now_ns()) / NS
        if left_s <= 0:
            return False
        await bed.sleep(min(every_s, left_s))
    return True


async def sleep_until(bed: Bed, at_ns: float) -> None:
    while (left_s := (at_ns - bed.now_ns()) / NS) > 0:
        await bed.sleep(left_s)


async def each(*work: Awaitable[Any]) -> None:
    """All of it, to the end of each, whatever becomes of the others; then the first failure. That a
    node is gone comes last: of all else one can hope that it gets better."""
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise min(failures, key=lambda failure: isinstance(failure, NodeGone))
