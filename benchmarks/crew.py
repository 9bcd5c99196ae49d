"""Recorded operations per second of one crew process: `python benchmarks/crew.py [seconds]`.

Against a null client, which completes every send in the next turn of the event loop, so that what
is measured is the harness: schedule, workload, crew and journal. Each operation is two journal
rows, an invocation and a completion.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness.contracts import Batch
from harness.crew import Crew
from harness.journal import Journal, rows_of
from harness.operation import Completion, Type
from harness.trial import Trial
from harness.workloads.messages import workload

WANTED_PER_S = 20_000


class NullClient:
    """Says ok to everything, one turn of the event loop later."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._offset = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        self._offset += 1
        self._loop.call_soon(done, Completion(Type.OK, self._offset, 1, 0))

    async def poll(self, topic: str, queue: int, offset: int, limit: int, wait_s: float) -> Batch:
        await asyncio.sleep(wait_s)
        return Batch(Completion(Type.OK), (), offset)

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, 0

    async def committed(self, group: str, topic: str, queue: int) -> int:
        return -1

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        return Completion(Type.OK)


async def measure(folder: Path, seconds: float) -> tuple[float, int]:
    """Operations per second of this process's own time and of the wall's, and rows on disk."""
    task = workload(Trial(load={"rate": 0}))
    crew = Crew(
        client=NullClient(),
        ops=Journal(folder, "ops", "client-1"),
        notes=Journal(folder, "notes", "client-1"),
        index=0,
        crews=1,
        total=task.processes,
        seed=1,
        clock_ns=time.monotonic_ns,
    )
    crew.begin(time.monotonic_ns())
    began = time.perf_counter()
    load = asyncio.ensure_future(task.load(crew))
    await asyncio.sleep(seconds)
    crew.stopping = True
    await load
    took_s = time.perf_counter() - began
    crew.close()
    return crew.tally.ended[Type.OK] / took_s, rows_of(sorted(folder.glob("ops-*.arrows")))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with tempfile.TemporaryDirectory() as folder:
        cpu = time.process_time()
        per_s, rows = asyncio.run(measure(Path(folder), seconds))
        busy = (time.process_time() - cpu) / seconds
    print(f"{per_s:,.0f} operations/s recorded ({rows:,} rows, {busy:.0%} of a core)")
    return 0 if per_s >= WANTED_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
