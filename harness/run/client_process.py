"""The crew: one process of clients, `python -m harness.run.client_process RUN CLIENT_NODE
[--stream]`.

It carries the logical processes that fall to its client node (process p lives on crew p modulo
the number of client nodes), and journals what they invoke and how it completes. The runner speaks
to it in JSON lines:

    {"do": "load", "epoch_ns": N, "error_ns": E, "ago_ns": A}
                                    begin; N is the run's start on our CLOCK_MONOTONIC, give or
                                    take E; the load began so long ago
    {"do": "stop"}                  begin nothing new; answered when nothing is open any more
    {"do": "drain"}                 the final phase; answered when it is over
    {"do": "crash"}                 die at once; what was done is in the journal, nobody else hears
    {"do": "quit"}                  close and go, whatever was asked for before

    {"is": "ready" | "loading" | "stopped" | "drained"}    {"is": "failed", "why": sentence}
    {"is": "crashing", "first": F}  the last word; no process of this crew had the number F or more
    {"stats": {...}}                every quarter of a second, counts since the load began

The end of standard input means that the runner is gone: the crew goes too. Time and randomness
enter in `main` alone; everything else is given a clock and the trial's seed.

*On a node of its own* that shares no files with the runner, RUN is a small copy (`trial.toml`,
`names.json`) and `--stream` sends the journal's rows home as more such lines, before any word that
comes after them (`harness.history.row_stream`). Such a node has the standard library, our packages
and `tomli_w`, so nothing that is imported here may ask for more.

*A clock that may be off* by E must not decide a verdict: an invocation is stamped E earlier and a
completion E later than the clock says. The true interval then lies within the recorded one. A
wider interval overlaps more others, so a checker may miss an order that there was, and never
convicts by one that there was not.

*A crew that was crashed* is begun anew with `--life=N,F`: it is its Nth life, from 0, and its
logical processes are called by numbers from F on, since nobody knows what became of the operations
that the life before had left open.
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
from harness.contracts import CLIENT, MessageClient, Node, Received, System, Workload
from harness.errors import EXIT_BAD_REQUEST, EXIT_BED_FAILED, SeatrialError
from harness.history.notes import DRAINED
from harness.history.row_stream import RowStream, integers, texts
from harness.history.rundir import RunDir
from harness.operation import NONE, Completion, F, Type
from harness.run.broker_sets import numbers_of_keys
from harness.trial import Trial

STATS_EVERY_S = 0.25
STREAM = "--stream"
LIFE = "--life="
OP_BITS = 40  # an operation's number is crew << OP_BITS | count, unique in the run
_SEND, _POLL, _GET = F.SEND, F.POLL, F.GET
_INVOKE, _OK = Type.INVOKE, Type.OK


class Tally:
    """What the live view shows: outcomes of sends, and of whatever is done with objects; messages
    polled; recent latencies."""

    def __init__(self, sets: int = 1) -> None:
        self.ended = [0, 0, 0, 0]  # by Type
        self.polled = 0
        self.answered_ns = [-1] * sets  # of each broker set: invocation of its newest acknowledged
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


class Log(Protocol):
    """Where one table's rows go: a journal of ours, or a stream to the runner's."""

    def append(self, row: tuple[Any, ...], /) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Life:
    """How often a crew died before, and the first number that none of its processes had."""

    number: int = 0
    first: int = 0

    @classmethod
    def of(cls, words: Sequence[str]) -> "Life":
        """From a command line."""
        said = [word.removeprefix(LIFE) for word in words if word.startswith(LIFE)]
        return cls(*map(int, said[-1].split(","))) if said else cls()

    def words(self) -> list[str]:
        return [f"{LIFE}{self.number},{self.first}"] if self.number else []


class Crew:
    """Journals operations for a workload (`harness.contracts.Crew`)."""

    def __init__(
        self,
        *,
        client: MessageClient,
        ops: Log,
        notes: Log,
        index: int,
        crews: int,
        total: int,
        seed: int,
        clock_ns: Callable[[], int],
        life: Life = Life(),
        set_of_key: Sequence[int] = (),
    ) -> None:
        self.client = client
        self.processes: Sequence[int] = range(index, total, crews)
        self.total = total
        self.stopping = False
        self._set_of_key = set_of_key
        self.tally = Tally(max(set_of_key, default=0) + 1)
        self._seed, self._clock_ns = seed, clock_ns
        self._earliest_ns = self._latest_ns = 0  # when the run may have begun, on our clock
        self._began_ns = self._spread_ns = 0
        self._first = self._highest = life.first
        self._next_op = (life.number * crews + index) << OP_BITS
        self._begun: dict[int, int] = {}  # open operations: number -> time of invocation
        self._ops, self._notes, self._closed = ops, notes, False
        self._append = ops.append

    def begin(self, epoch_ns: int, error_ns: int = 0, ago_ns: int = 0) -> None:
        """The load begins, or began so long ago; the run began at `epoch_ns`, give or take
        `error_ns`."""
        self._earliest_ns, self._latest_ns = epoch_ns - error_ns, epoch_ns + error_ns
        self._began_ns, self._spread_ns = self._clock_ns() - ago_ns, 2 * error_ns

    def random(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def number(self, process: int) -> int:
        return self._first + process

    def next_first(self) -> int:
        """The first number that no process had, and that leaves no rest."""
        return (self._highest // self.total + 1) * self.total

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
        self._append((t, process, op, _INVOKE, f, key, value, arg, offset, -1, -1, -1, -1, -1))
        return op

    def complete(
        self, process: int, op: int, f: int, key: int, value: int, completion: Completion
    ) -> None:
        t = self._clock_ns() - self._earliest_ns
        c, kind = completion, completion.type
        told = (c.arg, c.offset, c.pos, -1, c.epoch, c.node, c.attempts)
        self._append((t, process, op, kind, f, key, value, *told))
        begun = self._begun.pop(op)
        if f == _SEND or f >= _GET:
            self.tally.ended[kind] += 1
            self.tally.latencies_ns.append(t - begun - self._spread_ns)
            if kind == _OK:
                at = self._set_of_key[key] if self._set_of_key else 0
                self.tally.answered_ns[at] = max(self.tally.answered_ns[at], begun)
        if c.error:
            self._notes.append((t, process, op, c.error))

    def received(
        self, process: int, op: int, f: int, key: int, pos: int, value: int, message: Received
    ) -> None:
        t = self._clock_ns() - self._earliest_ns
        offset, epoch = message.offset, message.epoch
        stored = message.stored_ms
        self._append((t, process, op, _OK, f, key, value, stored, offset, pos, -1, epoch, -1, -1))
        if f == _POLL:
            self.tally.polled += 1

    def note(self, text: str, process: int = NONE, op: int = NONE) -> None:
        """That all was read is written after what was read: a kill between the two costs the note,
        never the rows it speaks of."""
        if text.startswith(DRAINED):
            self._ops.flush()
        self._notes.append((self._clock_ns() - self._earliest_ns, process, op, text))

    def flush(self) -> None:
        self._ops.flush()
        self._notes.flush()

    def close(self) -> None:
        """May be called twice."""
        if not self._closed:
            self._closed = True
            self._ops.close()
            self._notes.close()


class Session(asyncio.Protocol):
    """A crew's life: does what the lines on standard input say, one thing after the other, but
    for `quit`, which waits for nothing."""

    def __init__(
        self,
        crew: Crew,
        workload: Workload,
        tell: Callable[[Mapping[str, Any]], None],
        die: Callable[[], object],
    ) -> None:
        self._crew, self._workload, self._tell, self._die = crew, workload, tell, die
        self._loop = asyncio.get_running_loop()
        self._inbox = b""
        self._orders: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._load: asyncio.Task[None] | None = None
        self._stats: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self.failed: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Until `quit`, the end of the input, or the first failure, which is raised."""
        self._loop.set_exception_handler(self._unhandled)
        orders = self._loop.create_task(self._obey())
        try:
            ends = (orders, self._over, self.failed)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._stats:
                self._stats.cancel()
            await self._leave_off(orders)
        if self.failed.done():
            self.failed.result()

    async def _leave_off(self, orders: "asyncio.Task[None]") -> None:
        """No task writes to the journal any more when this returns."""
        tasks = [task for task in (orders, self._load) if task]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not orders.cancelled() and (error := orders.exception()):
            self._fail(error)

    async def _obey(self) -> None:
        await self._crew.client.open()
        self._tell({"is": "ready"})
        while True:
            order = await self._orders.get()
            await getattr(self, f"_do_{order['do']}")(order)

    async def _do_load(self, order: Mapping[str, Any]) -> None:
        self._crew.begin(order["epoch_ns"], order["error_ns"], order.get("ago_ns", 0))
        self._load = self._loop.create_task(self._workload.load(self._crew))
        self._load.add_done_callback(self._loaded)
        self._tell({"is": "loading"})
        self._tell_stats()

    async def _do_stop(self, order: Mapping[str, Any]) -> None:
        self._crew.stopping = True
        if self._load:
            await asyncio.shield(self._load)
        self._crew.flush()
        self._tell({"is": "stopped"})

    async def _do_drain(self, order: Mapping[str, Any]) -> None:
        await self._workload.drain(self._crew)
        self._crew.flush()
        self._tell({"is": "drained"})

    async def _do_crash(self, order: Mapping[str, Any]) -> None:
        """Nothing else runs between these: what was done is written, and nothing more is done."""
        self._crew.close()
        self._tell({"is": "crashing", "first": self._crew.next_first()})
        self._die()

    def _loaded(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    def _tell_stats(self) -> None:
        self._tell({"stats": self._crew.tally.stats()})
        self._stats = self._loop.call_later(STATS_EVERY_S, self._tell_stats)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """A callback failed: the journal could not be written, or the harness is wrong."""
        self._fail(context.get("exception") or RuntimeError(context["message"]))

    def _fail(self, error: BaseException) -> None:
        self._crew.stopping = True
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
        self._crew.stopping = True
        if not self._over.done():
            self._over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crew.stopping = True
        if not self.failed.done():
            self.failed.set_exception(EOFError("the runner is gone"))


def sentence(error: BaseException) -> str:
    """A failure for the runner, with the line of the plug-in that it happened in."""
    return registry.blamed(error)


Logs = Callable[[RunDir, str], tuple[Log, Log]]  # of ops and of notes, for a client node


def written(run: RunDir, name: str, *, patient: bool = False) -> tuple[Log, Log]:
    """Journals of our own, in the run's folder."""
    from harness.history.journal import Journal  # Arrow, which a node elsewhere does not have

    ops, notes = (Journal(run.journal, of, name, patient=patient) for of in ("ops", "notes"))
    return ops, notes


def streamed(run: RunDir, name: str) -> tuple[Log, Log]:
    """Rows that go home among the words that we say."""
    return RowStream("ops", integers, _print), RowStream("notes", texts, _print)


def enlist(
    run: RunDir, name: str, logs: tuple[Log, Log], clock_ns: Callable[[], int], life: Life
) -> tuple[Crew, Workload]:
    """The crew of a client node in a run, with the workload and client of its trial."""
    trial: Trial = run.trial()
    names = run.names()
    nodes = [Node(n, names["roles"][n], names["addresses"][n]) for n in names["nodes"]]
    clients = [node.name for node in nodes if node.role == CLIENT]
    workload: Workload = registry.load("workload", trial.workload)(trial)
    system: System = registry.load("system", trial.system)(trial)
    crew = Crew(
        client=system.client(system.client_settings(nodes)),
        ops=logs[0],
        notes=logs[1],
        index=clients.index(name),
        crews=len(clients),
        total=workload.processes,
        seed=trial.seed,
        clock_ns=clock_ns,
        life=life,
        set_of_key=numbers_of_keys(names),
    )
    return crew, workload


async def serve(
    run: RunDir,
    name: str,
    logs: Logs,
    clock_ns: Callable[[], int],
    die: Callable[[], object],
    life: Life,
    aboard: Callable[[], object] = lambda: None,
) -> int:
    """Carry a crew from the first line of standard input to the last; the exit code. `die` ends
    the process at once; `aboard` is called when everything is in place."""
    try:
        crew, workload = enlist(run, name, logs(run, name), clock_ns, life)
        try:
            await _session(crew, workload, die, aboard)
        finally:
            await crew.client.close()
            crew.close()
    except EOFError:
        return EXIT_BED_FAILED
    except Exception as e:
        _print({"is": "failed", "why": f"{name}: {sentence(e)}"})
        return EXIT_BED_FAILED
    return 0


async def _session(
    crew: Crew, workload: Workload, die: Callable[[], object], aboard: Callable[[], object]
) -> None:
    session = Session(crew, workload, _print, die)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: session, sys.stdin.buffer)
    aboard()
    await session.run()


def _quiet_collector() -> None:
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # acyclic by design: full collections would show as jitter


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
        logs = streamed if STREAM in sys.argv else written
        life = Life.of(sys.argv[1:])
        aboard = _quiet_collector
        return asyncio.run(serve(run, name, logs, time.monotonic_ns, _die, life, aboard))
    except SeatrialError as e:
        print(e, file=sys.stderr)
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
