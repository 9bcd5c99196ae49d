"""Recorded operations per second of one crew process: `python benchmarks/crew.py [seconds]`.

Against a null client, which completes every send in the next turn of the event loop, so that what
is measured is the harness: schedule, workload, crew and journal. Each operation is two journal
rows, an invocation and a completion. The second line is of a crew on a node apart, which streams
its rows; the third, of the runner that takes them in.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.contracts import Batch
from harness.history.journal import Journal, rows_of
from harness.history.row_receiver import RowIntake
from harness.history.row_stream import RowStream, integers, texts
from harness.operation import Completion, Type
from harness.run.client_process import Crew, Log
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


async def measure(ops: Log, notes: Log, seconds: float) -> float:
    """Operations per second."""
    task = workload(Trial(load={"rate": 0}))
    crew = Crew(
        client=NullClient(),
        ops=ops,
        notes=notes,
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
    return crew.tally.ended[Type.OK] / took_s


async def written(folder: Path, seconds: float) -> float:
    cpu = time.process_time()
    logs = Journal(folder, "ops", "client-1"), Journal(folder, "notes", "client-1")
    per_s = await measure(*logs, seconds)
    busy, rows = (time.process_time() - cpu) / seconds, rows_of(sorted(folder.glob("ops-*.arrows")))
    print(f"{per_s:,.0f} operations/s recorded ({rows:,} rows, {busy:.0%} of a core)")
    return per_s


async def streamed(folder: Path, seconds: float) -> None:
    lines: list[str] = []

    def say(portion: Mapping[str, Any]) -> None:
        lines.append(json.dumps(portion))

    cpu = time.process_time()
    logs = RowStream("ops", integers, say), RowStream("notes", texts, say)
    per_s = await measure(*logs, seconds)
    busy = (time.process_time() - cpu) / seconds
    began, intake, rows = time.process_time(), RowIntake(folder, "client-1", 0), 0
    for line in lines:
        portion = json.loads(line)
        intake.take(portion)
        rows += portion["count"]
    intake.close()
    per_row_s = (time.process_time() - began) / rows
    size = sum(map(len, lines)) / rows
    print(f"{per_s:,.0f} operations/s streamed ({size:.1f} bytes a row, {busy:.0%} of a core)")
    print(f"{1 / per_row_s:,.0f} rows/s of processor time taken in")


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with tempfile.TemporaryDirectory() as folder:
        per_s = asyncio.run(written(Path(folder) / "written", seconds))
        asyncio.run(streamed(Path(folder) / "streamed", seconds))
    return 0 if per_s >= WANTED_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
