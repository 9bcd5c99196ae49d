"""The client processes of a trial, seen from the runner: one on each client node.

A request goes to all of them at once, and each answers with one word; their counts are added up. A
client process that fails, or exits unasked, ends the trial: operations that are not recorded would
make every verdict doubtful.

A client process that sees the run's folder writes its journal itself. One on a remote node is given
a small copy of the folder and streams its rows (`harness.history.row_stream`), which are written
here. One whose node is gone gets no more requests: what it had streamed is kept, and its open
operations stay open. One that did not close its journal by itself at the end has left gaps, which
run.json records.

Files of streamed rows are those that a local client process would write itself: the same names,
batches, counters. A portion that is missing between two others ends the run, since nothing can be
judged without it. Where the node's clock may be off, invocations are stamped early and completions
late (`harness.run.client_process`), so rows do not come in the order of their times. A row is held
back until no earlier one can come any more: for twice the error.
"""

import asyncio
import base64
import json
import os
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.contracts import CLIENT, Node, TestBed
from harness.errors import BedFailed, NodeGone
from harness.history.journal import TableJournal
from harness.history.row_stream import BATCH_ROWS
from harness.history.rundir import RunDir
from harness.history.schema import NOTES, OPS
from harness.run.client_process import STREAM, Incarnation
from harness.run.tasks import run_all

NAME = "clients"  # the agent's name for the process
COMMAND = ("-P", "-X", "frozen_modules=on", "-m", "harness.run.client_process")
BARE = ("-S", "-s")  # import from the standard library and PYTHONPATH only
COUNTS = ("ok", "fail", "info", "polled")
QUANTILES = ("p50_ms", "p99_ms")
QUIT_WITHIN_S = 5.0
REPORT_EVERY_S = 0.25
MALFORMED = (  # raised by parsing a message of a hostile, or broken, client
    *(ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError),
    *(zlib.error, pa.ArrowException),
)


class ClientProcessHandle:
    """One client process, and what it last reported."""

    def __init__(self, bed: TestBed, node: Node, run: RunDir, failed: asyncio.Future[None]) -> None:
        self.node = node
        self.stats: Mapping[str, Any] = {}
        self._bed, self._run, self._failed = bed, run, failed
        self._agent = bed.agents[node.name]
        self._clock = bed.hosts.clock(node.name)
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self.unclosed_reason = ""  # why its last rows may be missing
        self._quitting = False
        self._gone_reason = ""
        self._watching: asyncio.Task[None] | None = None
        self._receiver: RowReceiver | None = None
        self._incarnation, self._next_first_process, self._epoch_ns = Incarnation(), 0, 0
        self._began_s = 0.0
        self._down = False  # crashed, and not restarted
        self._last_crashed = -1  # the newest incarnation that was crashed
        self._crash: asyncio.Future[int] | None = None
        self._earlier_counts: Mapping[str, Any] = {}  # of earlier incarnations

    async def start(self) -> None:
        """Start the process and wait until its client is open."""
        beside_us = self._bed.hosts.shares_files and not self._clock.error_ns
        await (self._start_local() if beside_us else self._start_remote())
        self._watching = asyncio.create_task(self._watch(self._incarnation.number))
        await self._wait_for("ready")

    async def _start_local(self) -> None:
        """Start it with this interpreter, and everything that it can import."""
        await self._agent.start(
            NAME,
            [
                *(sys.executable, *COMMAND),
                *(str(self._run.path), self.node.name, *self._incarnation.arguments()),
            ],
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            log=str(self._run.node(self.node.name) / "clients.log"),
            on_line=self._on_line,
        )

    async def _start_remote(self) -> None:
        """Start it with the node's own interpreter, on a copy of the files that it needs."""
        folder, python = (
            self._bed.hosts.folder(self.node.name),
            self._bed.hosts.python(self.node.name),
        )
        await self._agent.put(f"{folder}/trial.toml", await self._trial_there(folder))
        await self._agent.put(f"{folder}/names.json", json.dumps(self._run.names()).encode())
        self._receiver = RowReceiver(self._run.journal, self.node.name, self._clock.error_ns)
        await self._agent.start(
            NAME,
            [
                *(python.executable, *BARE, *COMMAND),
                *(folder, self.node.name, STREAM, *self._incarnation.arguments()),
            ],
            env={"PYTHONPATH": python.packages},
            log=f"{folder}/clients.log",
            on_line=self._on_line,
        )

    async def _trial_there(self, folder: str) -> bytes:
        """Return the trial file for the node. A client program that is a file of this machine is
        put there, and named by its path there, unless nodes see our files."""
        trial = self._run.trial()
        here = Path(trial.client[0]) if trial.client else Path()
        if self._bed.hosts.shares_files or not (here.is_absolute() and here.is_file()):
            return self._run.trial_file.read_bytes()
        there = f"{folder}/client/{here.name}"
        await self._agent.put(there, await asyncio.to_thread(here.read_bytes))
        await self._agent.run(["chmod", "755", there])
        return replace(trial, client=(there, *trial.client[1:])).to_toml().encode()

    async def load(self, epoch_ns: int) -> None:
        """Begin the load; the run began at `epoch_ns` on the driver's clock."""
        now_s = asyncio.get_running_loop().time()
        if not self._incarnation.number:
            self._epoch_ns, self._began_s = epoch_ns, now_s
        theirs_ns = epoch_ns + self._clock.offset_ns
        error_ns, ago_ns = self._clock.error_ns, round((now_s - self._began_s) * 1e9)
        when = {"epoch_ns": theirs_ns, "error_ns": error_ns, "ago_ns": ago_ns}
        await self.request("load", "loading", **when)

    async def request(self, what: str, answer: str, **fields: Any) -> None:
        """Send a request; return when it is done, or the node is gone."""
        if self._gone_reason or self._down:
            return
        with suppress(NodeGone):
            await self._agent.tell(NAME, json.dumps({"do": what, **fields}))
            await self._wait_for(answer)

    async def crash(self) -> int:
        """Kill the process after its last row; return its pid."""
        if self._gone_reason or self._down:
            return 0
        self._down, self._last_crashed = True, self._incarnation.number
        self._crash = asyncio.ensure_future(self._finish_crash())
        return await asyncio.shield(self._crash)  # a crash that was begun is completed

    async def _finish_crash(self) -> int:
        pid = (await self._agent.state(NAME)).pid
        await self._agent.tell(NAME, json.dumps({"do": "crash"}))
        await self._wait_for("crashing")
        await self._agent.exited(NAME)
        await self._kill_rest()
        self._close_receiver()
        self._earlier_counts, self.stats = self.total_counts(), {}
        return pid

    async def restart(self) -> None:
        """Start a new incarnation, which continues the load."""
        if not self._down or self._crash is None:
            return
        await self._crash
        self._incarnation = Incarnation(self._incarnation.number + 1, self._next_first_process)
        self._answers = asyncio.Queue()
        await self.start()
        self._down = False
        await self.load(self._epoch_ns)

    async def pid(self) -> int:
        """Return the pid of the running process; 0 if there is none."""
        state = await self._agent.state(NAME)
        return state.pid if state.state == "running" else 0

    def total_counts(self) -> Mapping[str, Any]:
        """Return the counts of all incarnations."""
        return _sum_counts(self._earlier_counts, self.stats)

    async def _watch(self, life: int) -> None:
        """Wait until the process of this incarnation exits, which is a failure unless it was
        requested."""
        try:
            code = await self._agent.exited(NAME)
            if self._quitting or life <= self._last_crashed:
                return
            await self._agent.state(NAME)  # if the agent is gone too, this raises NodeGone
            self._fail(
                f"the client process on {self.node.name} exited by itself (exit code {code}); its "
                f"output is in nodes/{self.node.name}/clients.log"
            )
        except NodeGone as e:
            self._gone_reason = str(e)
            self._answers.put_nowait("gone")
        except BedFailed as e:
            self._fail(str(e))

    async def quit(self) -> None:
        """End the process: by itself, or by force if it is busy."""
        self._quitting = True
        try:
            if self._watching is not None:
                await self._end()
                await self._kill_rest()
        finally:
            self._close_receiver()

    async def _kill_rest(self) -> None:
        """Kill what a client program left of the process group of the process that has ended."""
        if self._run.trial().client:
            with suppress(BedFailed):
                await self._agent.signal(NAME, signal.SIGKILL)

    def _close_receiver(self) -> None:
        intake, self._receiver = self._receiver, None
        if intake:
            intake.close()

    async def _end(self) -> None:
        with suppress(BedFailed):  # it has exited, or its node is gone: see below
            await self._agent.tell(NAME, json.dumps({"do": "quit"}))
        with suppress(BedFailed):
            try:
                async with asyncio.timeout(QUIT_WITHIN_S):
                    code = await self._agent.exited(NAME)
            except TimeoutError:
                await self._agent.signal(NAME, signal.SIGKILL)
                await self._agent.exited(NAME)
                self._not_closed(f"it was busy {QUIT_WITHIN_S:g} s after the request to stop")
            else:
                if code:
                    self._not_closed(f"it ended with exit code {code}")

    def _not_closed(self, why: str) -> None:
        """Note that rows may be missing. A process that was crashed has closed its journal; one
        that failed has ended the trial."""
        failed = self._failed.done() and not self._failed.cancelled()
        if not self._down and not failed:
            self.unclosed_reason = self.unclosed_reason or why

    async def _wait_for(self, word: str) -> None:
        while (answer := await self._answers.get()) != word:
            if answer == "failed":
                await self._failed
            if answer == "gone":
                raise NodeGone(self._gone_reason)

    def _on_line(self, line: str) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # a library that prints
        if not isinstance(message, dict):
            return
        try:
            self._on_message(message)
        except BedFailed as e:
            self._fail(str(e))
        except MALFORMED:
            self._fail(f"malformed output of the client process on {self.node.name}: {line[:100]}")

    def _on_message(self, message: Mapping[str, Any]) -> None:
        """Handle a message. Raises one of MALFORMED if it is not one of a client process."""
        if "rows" in message and self._receiver:
            self._receiver.receive(message)
        if "stats" in message:
            stats = dict(message["stats"])
            stats |= {name: int(stats.get(name, 0)) for name in COUNTS}
            stats |= {name: float(stats.get(name, 0.0)) for name in QUANTILES}
            stats["answered_ns"] = [int(ns) for ns in stats.get("answered_ns", ())]
            self.stats = stats
        self._next_first_process = int(message.get("first", self._next_first_process))
        if "is" in message:
            if message["is"] == "failed":
                self._fail(str(message["why"]))
            self._answers.put_nowait(message["is"])

    def _fail(self, why: str) -> None:
        if self._quitting:
            self._not_closed(why)
        elif not self._failed.done():
            self._failed.set_exception(BedFailed(why))
        self._answers.put_nowait("failed")


class ClientPool:
    """All client processes. `failed` fails when one of them does."""

    process = NAME

    def __init__(self, bed: TestBed, run: RunDir) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run = run
        self._handles = [
            ClientProcessHandle(bed, node, run, self.failed) for node in bed.of_role(CLIENT)
        ]

    @asynccontextmanager
    async def managed(self) -> AsyncIterator[None]:
        """End every process when the block ends."""
        try:
            yield
        finally:
            await asyncio.gather(*(handle.quit() for handle in self._handles))
            self.failed.cancel()
            self._record_gaps()

    def _record_gaps(self) -> None:
        """Record in run.json which processes may have recorded more rows than are there."""
        reasons = [
            {
                "code": "JOURNAL_DAMAGED",
                "message": f"the client process on {handle.node.name} did not close its journal "
                f"({handle.unclosed_reason}), so its last rows may be missing from every check",
            }
            for handle in self._handles
            if handle.unclosed_reason
        ]
        if reasons:
            self._run.update_state(gaps=True, reasons=reasons)

    async def open(self) -> None:
        """Start the processes; return when every client is open."""
        await run_all(*(handle.start() for handle in self._handles))

    async def load(self, epoch_ns: int) -> None:
        """Begin the load; the run began at `epoch_ns`."""
        await run_all(*(handle.load(epoch_ns) for handle in self._handles))

    async def stop(self) -> None:
        """Begin no new operations; return when none is open."""
        await run_all(*(handle.request("stop", "stopped") for handle in self._handles))

    async def drain(self) -> None:
        """Carry out the final phase."""
        await run_all(*(handle.request("drain", "drained") for handle in self._handles))

    async def crash(self, node: str) -> int:
        return await self._on(node).crash()

    async def restart(self, node: str) -> None:
        await self._on(node).restart()

    async def pid(self, node: str) -> int:
        return await self._on(node).pid()

    def _on(self, node: str) -> ClientProcessHandle:
        return next(handle for handle in self._handles if handle.node.name == node)

    async def report_counts(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        """Report the counts again and again, until cancelled."""
        while True:
            send({"stats": self.counts()})
            await asyncio.sleep(REPORT_EVERY_S)

    def acknowledged(self) -> int:
        return int(self.counts()["ok"])

    def answered_ns(self) -> int:
        """Return, for the broker set where it is earliest, when the newest acknowledged operation
        was invoked; -1 before the first."""
        of_each = [handle.total_counts().get("answered_ns", ()) for handle in self._handles]
        return min((max(of_set) for of_set in zip_longest(*of_each, fillvalue=-1)), default=-1)

    def counts(self) -> dict[str, float]:
        """Return the sums of the counts, and the quantiles of the slowest process."""
        of_each = [handle.total_counts() for handle in self._handles]
        counts = {name: sum(stats.get(name, 0) for stats in of_each) for name in COUNTS}
        slowest = {
            name: max((s.get(name, 0.0) for s in of_each), default=0.0) for name in QUANTILES
        }
        return counts | slowest


def _sum_counts(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the counts of two incarnations added up; everything else of the later one."""
    counts = {name: one.get(name, 0) + other.get(name, 0) for name in COUNTS}
    return {**one, **other, **counts}


# ------------------------------------------------------------------------ rows of remote processes


Ints = npt.NDArray[np.int64]


class RowReceiver:
    """The journals of one client process; `receive` its portions, `close` at the end."""

    def __init__(self, folder: Path, writer: str, error_ns: int) -> None:
        self._writer, self._spread_ns = writer, 2 * error_ns
        self._ops = TableJournal(folder, "ops", writer)
        self._notes = TableJournal(folder, "notes", writer)
        self._taken = {"ops": 0, "notes": 0}
        self._held: Ints = np.empty((len(OPS), 0), np.int64)  # in the order of their times

    def receive(self, portion: Mapping[str, Any]) -> None:
        """Write a portion. Raises BedFailed if rows before it are missing, or the disk refuses it;
        ValueError, or another error of malformed data, before any of it is written."""
        table, before, count = portion["rows"], portion["from"], portion["count"]
        if not 0 < count <= BATCH_ROWS:
            raise ValueError("a portion cannot have so many rows")
        if before != self._taken[table]:
            raise BedFailed(
                f"rows {self._taken[table]} to {before} of {table} did not arrive from "
                f"{self._writer}, so the history has a gap; run it again"
            )
        if table == "ops":
            self._take_ops(unpack_ops(portion["columns"], count))
        else:
            notes = dict(zip(NOTES.names, portion["columns"], strict=True))
            if any(len(column) != count for column in notes.values()):
                raise ValueError("its columns are not equally long")
            self._notes.append_columns(notes)
        self._taken[table] += count

    def close(self) -> None:
        self._write(self._held)
        self._ops.close()
        self._notes.close()

    def _take_ops(self, rows: Ints) -> None:
        if not self._spread_ns:
            self._write(rows)
            return
        rows = np.concatenate([self._held, rows], axis=1)
        rows = rows[:, np.argsort(rows[0], kind="stable")]
        ready = np.searchsorted(rows[0], rows[0, -1] - self._spread_ns, side="right")
        self._write(rows[:, :ready])
        self._held = rows[:, ready:]

    def _write(self, rows: Ints) -> None:
        if rows.shape[1]:
            self._ops.append_columns(dict(zip(OPS.names, rows, strict=True)))


def unpack_ops(columns: str, count: int) -> Ints:
    """Return the columns of a portion of ops, as rows of an array. Raises ValueError if it is
    malformed."""
    inflate = zlib.decompressobj()
    size = len(OPS) * count * np.dtype("<i8").itemsize
    packed = inflate.decompress(base64.b64decode(columns), size)
    if inflate.unconsumed_tail:
        raise ValueError("it holds more rows than its count")
    return np.frombuffer(packed, "<i8").reshape(len(OPS), count)
