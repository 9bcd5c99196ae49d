"""Operations per second that one client process records.

    python benchmarks/client_process.py [seconds]

Against a null client, which completes every send in the next turn of the event loop, so that the
harness is measured: schedule, workload, client process and journal. Each operation is two journal
rows, an invocation and a completion. The second line is of a client process on a remote node, which
streams its rows; the third, of the runner that receives them.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.contracts import PollResult
from harness.history.journal import TableJournal, count_rows
from harness.history.row_stream import RowStream, pack_integers, pack_texts
from harness.operation import Completion, Type
from harness.run.client_pool import RowReceiver
from harness.run.client_process import ClientProcess, RowSink
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

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        await asyncio.sleep(wait_s)
        return PollResult(Completion(Type.OK), (), offset)

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, 0

    async def committed(self, group: str, topic: str, queue: int) -> int:
        return -1

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        return Completion(Type.OK)


async def measure(ops: RowSink, notes: RowSink, seconds: float) -> float:
    """Operations per second."""
    task = workload(Trial(load={"rate": 0}))
    process = ClientProcess(
        client=NullClient(),
        ops=ops,
        notes=notes,
        index=0,
        client_processes=1,
        total_processes=task.processes,
        seed=1,
        clock_ns=time.monotonic_ns,
    )
    process.begin(time.monotonic_ns())
    began = time.perf_counter()
    load = asyncio.ensure_future(task.load(process))
    await asyncio.sleep(seconds)
    process.stopping = True
    await load
    took_s = time.perf_counter() - began
    process.close()
    return process.counts.ended[Type.OK] / took_s


async def written(folder: Path, seconds: float) -> float:
    cpu = time.process_time()
    logs = TableJournal(folder, "ops", "client-1"), TableJournal(folder, "notes", "client-1")
    per_s = await measure(*logs, seconds)
    busy, rows = (
        (time.process_time() - cpu) / seconds,
        count_rows(sorted(folder.glob("ops-*.arrows"))),
    )
    print(f"{per_s:,.0f} operations/s recorded ({rows:,} rows, {busy:.0%} of a core)")
    return per_s


async def streamed(folder: Path, seconds: float) -> None:
    lines: list[str] = []

    def say(portion: Mapping[str, Any]) -> None:
        lines.append(json.dumps(portion))

    cpu = time.process_time()
    logs = RowStream("ops", pack_integers, say), RowStream("notes", pack_texts, say)
    per_s = await measure(*logs, seconds)
    busy = (time.process_time() - cpu) / seconds
    began, intake, rows = time.process_time(), RowReceiver(folder, "client-1", 0), 0
    for line in lines:
        portion = json.loads(line)
        intake.receive(portion)
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
