"""Sends in flight, always as many: what a system acknowledges a second, and how long each took.

One event loop and one coroutine for each send in flight, which awaits one answer and sends again.
"""

import asyncio
import gc
import os
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from _servers import Failed

WARM_UP_S = 0.3  # of each window; not counted


@dataclass(frozen=True)
class Sample:
    """One system at one window in one round. `client_us`, `servers_us`: processor time a send."""

    per_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    client_us: float = 0.0
    servers_us: float = 0.0


@dataclass(frozen=True)
class Running:
    """A system that is up. `send`: one message, acknowledged; `held`: how many it says it has."""

    send: Callable[[], Awaitable[object]]
    pids: Sequence[int]
    held: Callable[[], Awaitable[int]] | None = None
    plain: Callable[[float], Awaitable[float]] | None = None


async def windowed(running: Running, window: int, seconds: float) -> tuple[Sample, int]:
    """So many sends in flight for so long; what was seen, and how many were acknowledged in all."""
    clock, send, times, acknowledged = time.perf_counter, running.send, array("d"), 0
    counted_from = clock() + WARM_UP_S
    until = counted_from + seconds

    async def one() -> None:
        nonlocal acknowledged
        while (began := clock()) < until:
            await send()
            ended = clock()
            acknowledged += 1
            if counted_from <= ended < until:
                times.append(ended - began)

    gc.collect()
    sending = asyncio.gather(*(one() for _ in range(window)))
    await asyncio.sleep(WARM_UP_S)
    own, theirs = time.process_time(), processor_s(running.pids)
    await sending
    own, theirs = time.process_time() - own, processor_s(running.pids) - theirs
    return sample(times, seconds, own, theirs), acknowledged


def sample(times: Sequence[float], seconds: float, own_s: float, theirs_s: float) -> Sample:
    ordered = sorted(times)
    if not ordered:
        raise Failed(f"not one acknowledgement in {seconds:g} s")
    many = len(ordered)
    return Sample(
        many / seconds,
        ordered[many // 2] * 1e3,
        ordered[many * 99 // 100] * 1e3,
        own_s / many * 1e6,
        theirs_s / many * 1e6,
    )


def processor_s(pids: Sequence[int]) -> float:
    """What these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
