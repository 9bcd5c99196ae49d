"""The client process: `python -m harness.run.client_process RUN CLIENT_NODE [--stream]`.

It runs the logical processes of its client node (process p runs on client node p modulo the number
of client nodes), and journals what they invoke and how it completes. The runner controls it with
JSON lines:

    {"do": "load", "epoch_ns": N, "error_ns": E, "ago_ns": A}
                                    begin; N is the run's start on our CLOCK_MONOTONIC, within E;
                                    the load began A ago
    {"do": "stop"}                  begin nothing new; answered when no operation is open
    {"do": "drain"}                 the final phase; answered when it is over
    {"do": "crash"}                 die at once; what was done is in the journal, nothing is closed
    {"do": "quit"}                  close and exit, whatever was requested before

    {"is": "ready" | "loading" | "stopped" | "drained"}    {"is": "failed", "why": sentence}
    {"is": "crashing", "first": F}  the last line; no process here had the number F or more
    {"stats": {...}}                every quarter of a second, counts since the load began

The end of standard input means that the runner is gone: this process exits too. Time and randomness
enter in `main` alone; everything else is given a clock and the trial's seed.

*On a remote node* that shares no files with the runner, RUN is a small copy (`trial.toml`,
`names.json`) and `--stream` sends the journal's rows to the runner as further JSON lines, before
any line that must come after them (`harness.history.row_stream`). Such a node has the standard
library, our packages and `tomli_w`, so nothing that is imported here may need more.

*A clock that may be off* by E must not decide a verdict: an invocation is stamped E earlier and a
completion E later than the clock reads. The true interval then lies within the recorded one. A
wider interval overlaps more others, so a checker may miss an order that existed, and never convicts
by one that did not.

*A client process that crashed* is restarted with `--life=N,F`: it is the Nth incarnation, from 0,
and its logical processes are numbered from F on, since the outcome of the operations that the
earlier incarnation left open is unknown.
"""

import asyncio
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness import registry
from harness.contracts import CLIENT, MessageClient, Node, ReceivedMessage, Workload
from harness.contracts.workloads import OperationPart
from harness.errors import EXIT_BAD_REQUEST, EXIT_BED_FAILED, SeatrialError
from harness.history.notes import DRAINED
from harness.history.row_stream import RowStream, pack_integers, pack_texts
from harness.history.rundir import RunDir
from harness.operation import DELIVERIES, NONE, SENDS, Completion, F, Type, ops_row
from harness.run.broker_sets import set_number_by_key
from harness.trial import Trial

STATS_EVERY_S = 0.25
STREAM = "--stream"
LIFE = "--life="
OP_BITS = 40  # an operation's number is index << OP_BITS | count, unique in the run
COUNTED = frozenset(  # in the live view
    (*SENDS, *(f for f in F if f >= F.GET and f not in (F.DECIDE, F.ASKED, F.POP, F.ACK, F.HIDE)))
)
_INVOKE, _OK = Type.INVOKE, Type.OK


class LiveCounts:
    """The counts that the live view shows: outcomes of sends and of operations on objects, messages
    polled, recent latencies."""

    def __init__(self, sets: int = 1) -> None:
        self.ended = [0, 0, 0, 0]  # by Type
        self.polled = 0
        self.answered_ns = [-1] * sets  # by broker set: when its newest acknowledged was invoked
        self.latencies_ns: list[int] = []  # since the last `stats`
        self._quantiles = (0.0, 0.0)

    def stats(self) -> dict[str, Any]:
        recent, self.latencies_ns = sorted(self.latencies_ns), []
        if recent:
            half, most = len(recent) // 2, len(recent) * 99 // 100
            self._quantiles = (recent[half] / 1e6, recent[most] / 1e6)
        p50_ms, p99_ms = (round(q, 3) for q in self._quantiles)
        return {
            "ok": self.ended[Type.OK],
            "fail": self.ended[Type.FAIL],
            "info": self.ended[Type.INFO],
            "polled": self.polled,
            "answered_ns": self.answered_ns,
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
        }


class RowSink(Protocol):
    """Where one table's rows go: a journal here, or a stream to the runner's."""

    def append(self, row: tuple[Any, ...], /) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Incarnation:
    """How often this client process was restarted, and the first number that no logical process of
    it had."""

    number: int = 0
    first_process: int = 0

    @classmethod
    def of(cls, words: Sequence[str]) -> "Incarnation":
        """Read it from a command line."""
        values = [word.removeprefix(LIFE) for word in words if word.startswith(LIFE)]
        return cls(*map(int, values[-1].split(","))) if values else cls()

    def arguments(self) -> list[str]:
        return [f"{LIFE}{self.number},{self.first_process}"] if self.number else []


class ClientProcess:
    """Journals operations for a workload; implements `harness.contracts.WorkloadContext`."""

    def __init__(
        self,
        *,
        client: MessageClient,
        ops: RowSink,
        notes: RowSink,
        index: int,
        client_processes: int,
        total_processes: int,
        seed: int,
        clock_ns: Callable[[], int],
        life: Incarnation = Incarnation(),
        set_of_key: Sequence[int] = (),
    ) -> None:
        self.client = client
        self.processes: Sequence[int] = range(index, total_processes, client_processes)
        self.total_processes = total_processes
        self.stopping = False
        self._set_of_key = set_of_key
        self.counts = LiveCounts(max(set_of_key, default=0) + 1)
        self._seed, self._clock_ns = seed, clock_ns
        self._earliest_ns = self._latest_ns = 0  # bounds of the run's start on our clock
        self._began_ns = self._spread_ns = 0
        self._first = self._highest = life.first_process
        self._next_op = (life.number * client_processes + index) << OP_BITS
        self._begun: dict[int, int] = {}  # open operations: number -> time of invocation
        self._ops, self._notes, self._closed = ops, notes, False
        self._append = ops.append

    def begin(self, epoch_ns: int, error_ns: int = 0, ago_ns: int = 0) -> None:
        """Begin the load, which began `ago_ns` ago; the run began at `epoch_ns`, within
        `error_ns`."""
        self._earliest_ns, self._latest_ns = epoch_ns - error_ns, epoch_ns + error_ns
        self._began_ns, self._spread_ns = self._clock_ns() - ago_ns, 2 * error_ns

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def process_id(self, process: int) -> int:
        return self._first + process

    def next_first_process(self) -> int:
        """Return the first number above all used ones that is a multiple of the number of
        processes."""
        return (self._highest // self.total_processes + 1) * self.total_processes

    def now_s(self) -> float:
        return (self._clock_ns() - self._began_ns) / 1e9

    def invoke(
        self,
        process: int,
        f: int,
        key: int,
        value: int = NONE,
        offset: int = NONE,
        arg: int = NONE,
    ) -> int:
        op = self._next_op
        self._next_op = op + 1
        t = self._clock_ns() - self._latest_ns
        self._begun[op] = t
        if process > self._highest:
            self._highest = process
        self._append(ops_row(t, process, op, _INVOKE, f, key, value=value, arg=arg, offset=offset))
        return op

    def complete(
        self, process: int, op: int, f: int, key: int, value: int, completion: Completion
    ) -> None:
        t = self._clock_ns() - self._earliest_ns
        c, kind = completion, completion.type
        self._append(
            ops_row(
                t,
                process,
                op,
                kind,
                f,
                key,
                value=value,
                arg=c.arg,
                offset=c.offset,
                pos=c.pos,
                epoch=c.epoch,
                node=c.node,
                attempts=c.attempts,
            )
        )
        begun = self._begun.pop(op)
        if f in COUNTED:
            self.counts.ended[kind] += 1
            self.counts.latencies_ns.append(t - begun - self._spread_ns)
            if kind == _OK:
                at = self._set_of_key[key] if self._set_of_key else 0
                self.counts.answered_ns[at] = max(self.counts.answered_ns[at], begun)
        if c.error:
            self._notes.append((t, process, op, c.error))

    def invoke_parts(self, process: int, f: int, parts: Sequence[OperationPart]) -> int:
        op = self.invoke(process, f, NONE)  # the operation itself, which has neither key nor mop
        t = self._begun[op]
        for part in parts:
            self._append(_part_row(t, process, op, _INVOKE, part))
        return op

    def complete_parts(
        self,
        process: int,
        op: int,
        f: int,
        parts: Sequence[OperationPart],
        completion: Completion,
    ) -> None:
        t = self._clock_ns() - self._earliest_ns
        for part in parts:
            self._append(_part_row(t, process, op, completion.type, part))
        self.complete(process, op, f, NONE, NONE, completion)

    def received(
        self,
        process: int,
        op: int,
        f: int,
        key: int,
        pos: int,
        value: int,
        message: ReceivedMessage,
    ) -> None:
        t = self._clock_ns() - self._earliest_ns
        self._append(
            ops_row(
                t,
                process,
                op,
                _OK,
                f,
                key,
                value=value,
                arg=message.stored_ms,
                offset=message.offset,
                pos=pos,
                epoch=message.epoch,
            )
        )
        if f in DELIVERIES:
            self.counts.polled += 1

    def note(self, text: str, process: int = NONE, op: int = NONE) -> None:
        """Journal a note. The note that everything was read is written after what was read: a kill
        between the two loses the note, never the rows it describes."""
        if text.startswith(DRAINED):
            self._ops.flush()
        self._notes.append((self._clock_ns() - self._earliest_ns, process, op, text))

    def flush(self) -> None:
        self._ops.flush()
        self._notes.flush()

    def close(self) -> None:
        """Close the journals. May be called twice."""
        if not self._closed:
            self._closed = True
            self._ops.close()
            self._notes.close()


def _part_row(t: int, process: int, op: int, kind: int, part: OperationPart) -> tuple[int, ...]:
    f, key, value, pos, mop = part
    return ops_row(t, process, op, kind, f, key, value=value, pos=pos, mop=mop)


class ControlSession(asyncio.Protocol):
    """Executes the orders on standard input one after the other; only `quit` waits for nothing."""

    def __init__(
        self,
        process: ClientProcess,
        workload: Workload,
        tell: Callable[[Mapping[str, Any]], None],
        die: Callable[[], object],
    ) -> None:
        self._process, self._workload, self._tell, self._die = process, workload, tell, die
        self._loop = asyncio.get_running_loop()
        self._inbox = b""
        self._orders: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._load: asyncio.Task[None] | None = None
        self._stats: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self.failed: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Run until `quit`, the end of the input, or the first failure, which is raised."""
        self._loop.set_exception_handler(self._unhandled)
        orders = self._loop.create_task(self._serve_orders())
        try:
            ends = (orders, self._over, self.failed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._stats:
                self._stats.cancel()
            await self._cancel_tasks(orders)
        if self.failed.done():
            self.failed.result()

    async def _cancel_tasks(self, orders: "asyncio.Task[None]") -> None:
        """Cancel the tasks; none writes to the journal when this returns."""
        tasks = [task for task in (orders, self._load) if task]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not orders.cancelled() and (error := orders.exception()):
            self._fail(error)

    async def _serve_orders(self) -> None:
        await self._process.client.open()
        self._tell({"is": "ready"})
        while True:
            order = await self._orders.get()
            await getattr(self, f"_do_{order['do']}")(order)

    async def _do_load(self, order: Mapping[str, Any]) -> None:
        self._process.begin(order["epoch_ns"], order["error_ns"], order.get("ago_ns", 0))
        self._load = self._loop.create_task(self._workload.load(self._process))
        self._load.add_done_callback(self._loaded)
        self._tell({"is": "loading"})
        self._tell_stats()

    async def _do_stop(self, order: Mapping[str, Any]) -> None:
        self._process.stopping = True
        if self._load:
            await asyncio.shield(self._load)
        self._process.flush()
        self._tell({"is": "stopped"})

    async def _do_drain(self, order: Mapping[str, Any]) -> None:
        await self._workload.drain(self._process)
        self._process.flush()
        self._tell({"is": "drained"})

    async def _do_crash(self, order: Mapping[str, Any]) -> None:
        """Crash. Nothing else runs between these steps: what was done is written, and nothing more
        is done."""
        self._process.close()
        self._tell({"is": "crashing", "first": self._process.next_first_process()})
        self._die()

    def _loaded(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    def _tell_stats(self) -> None:
        self._tell({"stats": self._process.counts.stats()})
        self._stats = self._loop.call_later(STATS_EVERY_S, self._tell_stats)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Handle the failure of a callback: the journal could not be written, or Seatrial has a
        defect."""
        self._fail(context.get("exception") or RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        self._process.stopping = True
        if not self.failed.done():
            self.failed.set_exception(error)

    # standard input

    def data_received(self, data: bytes) -> None:
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "quit":
                self._quit()
            else:
                self._orders.put_nowait(order)

    def _quit(self) -> None:
        self._process.stopping = True
        if not self._over.done():
            self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._process.stopping = True
        if not self.failed.done():
            self.failed.set_exception(EOFError("the runner is gone"))


OpenSinks = Callable[
    [RunDir, str], tuple[RowSink, RowSink]
]  # of ops and of notes, for a client node


def local_journals(run: RunDir, name: str, *, patient: bool = False) -> tuple[RowSink, RowSink]:
    """Return journals in the run's folder."""
    from harness.history.journal import TableJournal  # needs Arrow, which remote nodes lack

    ops, notes = (TableJournal(run.journal, of, name, patient=patient) for of in ("ops", "notes"))
    return ops, notes


def _only_journals(run: RunDir, name: str) -> tuple[RowSink, RowSink]:
    """Return journals in the run's folder, for a process that does nothing else with Arrow."""
    from harness.history.journal import skip_pandas

    skip_pandas()
    return local_journals(run, name)


def streamed_journals(run: RunDir, name: str) -> tuple[RowSink, RowSink]:
    """Return row streams to the runner, on standard output."""
    return RowStream("ops", pack_integers, _print), RowStream("notes", pack_texts, _print)


def make_client_process(
    run: RunDir,
    name: str,
    logs: tuple[RowSink, RowSink],
    clock_ns: Callable[[], int],
    life: Incarnation,
) -> tuple[ClientProcess, Workload]:
    """Return the client process of a client node, with the workload of the run's trial."""
    trial: Trial = run.trial()
    names = run.names()
    nodes = [Node(n, names["roles"][n], names["addresses"][n]) for n in names["nodes"]]
    clients = [node.name for node in nodes if node.role == CLIENT]
    workload: Workload = registry.load("workload", trial.workload)(trial)
    process = ClientProcess(
        client=registry.client(trial, nodes, name),
        ops=logs[0],
        notes=logs[1],
        index=clients.index(name),
        client_processes=len(clients),
        total_processes=workload.processes,
        seed=trial.seed,
        clock_ns=clock_ns,
        life=life,
        set_of_key=set_number_by_key(names),
    )
    return process, workload


async def serve(
    run: RunDir,
    name: str,
    logs: OpenSinks,
    clock_ns: Callable[[], int],
    die: Callable[[], object],
    life: Incarnation,
    on_ready: Callable[[], object] = lambda: None,
) -> int:
    """Serve from the first line of standard input to the last; return the exit code. `die` ends the
    process at once; `on_ready` is called when everything is in place."""
    try:
        process, workload = make_client_process(run, name, logs(run, name), clock_ns, life)
        try:
            await _run_session(process, workload, die, on_ready)
        finally:
            await process.client.close()
            process.close()
    except EOFError:
        return EXIT_BED_FAILED
    except Exception as e:
        _print({"is": "failed", "why": f"{name}: {registry.blame(e)}"})
        return EXIT_BED_FAILED
    return 0


async def _run_session(
    process: ClientProcess,
    workload: Workload,
    die: Callable[[], object],
    on_ready: Callable[[], object],
) -> None:
    session = ControlSession(process, workload, _print, die)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: session, sys.stdin.buffer)
    on_ready()
    await session.run()


def _quiet_collector() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # acyclic by design: full collections would cause jitter


def _print(fields: Mapping[str, Any]) -> None:
    print(json.dumps(fields), flush=True)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    words = [word for word in sys.argv[1:] if word != STREAM and not word.startswith(LIFE)]
    if len(words) != 2:
        print(
            f"usage: python -m harness.run.client_process RUN CLIENT_NODE [{STREAM}]",
            file=sys.stderr,
        )
        return EXIT_BAD_REQUEST
    folder, name = words
    try:
        run = RunDir.open(Path(folder))
        logs = streamed_journals if STREAM in sys.argv else _only_journals
        life = Incarnation.of(sys.argv[1:])
        on_ready = _quiet_collector
        return asyncio.run(serve(run, name, logs, time.monotonic_ns, _die, life, on_ready))
    except SeatrialError as e:
        print(e, file=sys.stderr)
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
