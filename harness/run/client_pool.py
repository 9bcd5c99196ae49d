"""The crews of a trial, seen from the runner: one client process on each client node.

Orders go to all of them at once and each answers with a word; what they count is added up. A crew
that fails, or ends before it was told to, ends the trial: operations that nobody records would
make every verdict doubtful.

A crew that sees the run's folder writes its journal itself. One on a node apart is given a small
copy of the folder and streams its rows, which are written here (`harness.history.row_receiver`).
One whose node is gone is asked nothing more: what it had streamed is kept, what it had open stays
open. One that did not close its journal by itself in the end has left gaps, and run.json says so.
"""

import asyncio
import json
import os
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from harness.contracts import CLIENT, Bed, Node
from harness.errors import BedFailed, NodeGone
from harness.history.row_receiver import RowIntake
from harness.history.rundir import RunDir
from harness.run.client_process import STREAM, Life
from harness.run.tasks import together

NAME = "crew"  # the agent's name for the process
COMMAND = ("-P", "-X", "frozen_modules=on", "-m", "harness.run.client_process")
BARE = ("-S", "-s")  # the standard library and PYTHONPATH, whatever else is installed there
COUNTS = ("ok", "fail", "info", "polled")
QUANTILES = ("p50_ms", "p99_ms")
QUIT_WITHIN_S = 5.0
TELL_EVERY_S = 0.25
MALFORMED = (  # what reading what a hostile, or broken, client says may raise
    *(ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError),
    *(zlib.error, pa.ArrowException),
)


class Crew:
    """One client process and the last it said."""

    def __init__(self, bed: Bed, node: Node, run: RunDir, failed: asyncio.Future[None]) -> None:
        self.node = node
        self.stats: Mapping[str, Any] = {}
        self._bed, self._run, self._failed = bed, run, failed
        self._agent = bed.agents[node.name]
        self._clock = bed.hosts.clock(node.name)
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self.unclosed = ""  # why its last rows may be missing
        self._quitting = False
        self._gone = ""
        self._watching: asyncio.Task[None] | None = None
        self._intake: RowIntake | None = None
        self._life, self._next_first, self._epoch_ns = Life(), 0, 0
        self._began_s = 0.0
        self._down = False  # crashed, and not begun again
        self._crashed_life = -1  # the last that was told to die
        self._crash: asyncio.Future[int] | None = None
        self._before: Mapping[str, Any] = {}  # what earlier lives counted

    async def start(self) -> None:
        """Start the process and wait until its client is open."""
        beside_us = self._bed.hosts.shares_files and not self._clock.error_ns
        await (self._start_beside_us() if beside_us else self._start_apart())
        self._watching = asyncio.create_task(self._watch(self._life.number))
        await self._answer("ready")

    async def _start_beside_us(self) -> None:
        """With this interpreter, and all that it can import."""
        await self._agent.start(
            NAME,
            [
                *(sys.executable, *COMMAND),
                *(str(self._run.path), self.node.name, *self._life.words()),
            ],
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            log=str(self._run.node(self.node.name) / "crew.log"),
            on_line=self._heard,
        )

    async def _start_apart(self) -> None:
        """With the node's own interpreter, on a copy of what it has to know."""
        folder, python = (
            self._bed.hosts.folder(self.node.name),
            self._bed.hosts.python(self.node.name),
        )
        await self._agent.put(f"{folder}/trial.toml", self._run.trial_file.read_bytes())
        await self._agent.put(f"{folder}/names.json", json.dumps(self._run.names()).encode())
        self._intake = RowIntake(self._run.journal, self.node.name, self._clock.error_ns)
        await self._agent.start(
            NAME,
            [
                *(python.executable, *BARE, *COMMAND),
                *(folder, self.node.name, STREAM, *self._life.words()),
            ],
            env={"PYTHONPATH": python.packages},
            log=f"{folder}/crew.log",
            on_line=self._heard,
        )

    async def load(self, epoch_ns: int) -> None:
        """Begin; the run began at `epoch_ns` on our clock."""
        now_s = asyncio.get_running_loop().time()
        if not self._life.number:
            self._epoch_ns, self._began_s = epoch_ns, now_s
        theirs_ns = epoch_ns + self._clock.offset_ns
        error_ns, ago_ns = self._clock.error_ns, round((now_s - self._began_s) * 1e9)
        when = {"epoch_ns": theirs_ns, "error_ns": error_ns, "ago_ns": ago_ns}
        await self.order("load", "loading", **when)

    async def order(self, what: str, answer: str, **fields: Any) -> None:
        """Returns when it is done, or the node is gone."""
        if self._gone or self._down:
            return
        with suppress(NodeGone):
            await self._agent.tell(NAME, json.dumps({"do": what, **fields}))
            await self._answer(answer)

    async def crash(self) -> int:
        """It dies on the spot, after its last row; the process id that it had."""
        if self._gone or self._down:
            return 0
        self._down, self._crashed_life = True, self._life.number
        self._crash = asyncio.ensure_future(self._crashed())
        return await asyncio.shield(self._crash)  # once asked for, it is not half done

    async def _crashed(self) -> int:
        pid = (await self._agent.state(NAME)).pid
        await self._agent.tell(NAME, json.dumps({"do": "crash"}))
        await self._answer("crashing")
        await self._agent.exited(NAME)
        self._close_intake()
        self._before, self.stats = self.counted(), {}
        return pid

    async def begin_again(self) -> None:
        """A new life, that goes on with the load."""
        if not self._down or self._crash is None:
            return
        await self._crash
        self._life = Life(self._life.number + 1, self._next_first)
        self._said = asyncio.Queue()
        await self.start()
        self._down = False
        await self.load(self._epoch_ns)

    async def running(self) -> int:
        state = await self._agent.state(NAME)
        return state.pid if state.state == "running" else 0

    def counted(self) -> Mapping[str, Any]:
        """What it counted, in all its lives."""
        return _added(self._before, self.stats)

    async def _watch(self, life: int) -> None:
        """Until the process of this life ends, which nobody but us may ask of it."""
        try:
            code = await self._agent.exited(NAME)
            if self._quitting or life <= self._crashed_life:
                return
            await self._agent.state(NAME)  # an agent that leaves ends us first, and is then gone
            self._fail(
                f"the crew on {self.node.name} ended by itself (exit code {code}); its last words "
                f"are in nodes/{self.node.name}/crew.log"
            )
        except NodeGone as e:
            self._gone = str(e)
            self._said.put_nowait("gone")
        except BedFailed as e:
            self._fail(str(e))

    async def quit(self) -> None:
        """The process ends: by itself, or by force when it is busy."""
        self._quitting = True
        try:
            if self._watching is not None:
                await self._end()
        finally:
            self._close_intake()

    def _close_intake(self) -> None:
        intake, self._intake = self._intake, None
        if intake:
            intake.close()

    async def _end(self) -> None:
        with suppress(BedFailed):  # it has ended, or its node is gone: that is heard below
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
        """One that was crashed has closed its journal; one that failed has ended the trial."""
        failed = self._failed.done() and not self._failed.cancelled()
        if not self._down and not failed:
            self.unclosed = self.unclosed or why

    async def _answer(self, word: str) -> None:
        while (said := await self._said.get()) != word:
            if said == "failed":
                await self._failed
            if said == "gone":
                raise NodeGone(self._gone)

    def _heard(self, line: str) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # a library that prints
        if not isinstance(message, dict):
            return
        try:
            self._take(message)
        except BedFailed as e:
            self._fail(str(e))
        except MALFORMED:
            self._fail(f"what the crew on {self.node.name} says makes no sense: {line[:100]}")

    def _take(self, message: Mapping[str, Any]) -> None:
        """One of MALFORMED if it is none of a crew's."""
        if "rows" in message and self._intake:
            self._intake.take(message)
        if "stats" in message:
            stats = dict(message["stats"])
            stats |= {name: int(stats.get(name, 0)) for name in COUNTS}
            stats |= {name: float(stats.get(name, 0.0)) for name in QUANTILES}
            stats["answered_ns"] = [int(ns) for ns in stats.get("answered_ns", ())]
            self.stats = stats
        self._next_first = int(message.get("first", self._next_first))
        if "is" in message:
            if message["is"] == "failed":
                self._fail(str(message["why"]))
            self._said.put_nowait(message["is"])

    def _fail(self, why: str) -> None:
        if self._quitting:
            self._not_closed(why)
        elif not self._failed.done():
            self._failed.set_exception(BedFailed(why))
        self._said.put_nowait("failed")


class Crews:
    """All of them. `failed` breaks when one of them does."""

    process = NAME

    def __init__(self, bed: Bed, run: RunDir) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run = run
        self._all = [Crew(bed, node, run, self.failed) for node in bed.of_role(CLIENT)]

    @asynccontextmanager
    async def aboard(self) -> AsyncIterator[None]:
        """At the end of the block every process is gone."""
        try:
            yield
        finally:
            await asyncio.gather(*(crew.quit() for crew in self._all))
            self.failed.cancel()
            self._tell_gaps()

    def _tell_gaps(self) -> None:
        """In run.json: who may have recorded more than is there."""
        reasons = [
            {
                "code": "JOURNAL_DAMAGED",
                "message": f"the crew on {crew.node.name} did not close its journal "
                f"({crew.unclosed}), so its last rows may be missing from every check",
            }
            for crew in self._all
            if crew.unclosed
        ]
        if reasons:
            self._run.update_state(gaps=True, reasons=reasons)

    async def open(self) -> None:
        """Start the processes; every client is open."""
        await together(*(crew.start() for crew in self._all))

    async def load(self, epoch_ns: int) -> None:
        """The run began at `epoch_ns`."""
        await together(*(crew.load(epoch_ns) for crew in self._all))

    async def stop(self) -> None:
        """Begin nothing new; when this returns, no operation is open."""
        await together(*(crew.order("stop", "stopped") for crew in self._all))

    async def drain(self) -> None:
        """The final phase."""
        await together(*(crew.order("drain", "drained") for crew in self._all))

    async def crash(self, node: str) -> int:
        return await self._on(node).crash()

    async def begin_again(self, node: str) -> None:
        await self._on(node).begin_again()

    async def running(self, node: str) -> int:
        return await self._on(node).running()

    def _on(self, node: str) -> Crew:
        return next(crew for crew in self._all if crew.node.name == node)

    async def tell(self, say: Callable[[Mapping[str, Any]], None]) -> None:
        """For ever: what the crews count."""
        while True:
            say({"stats": self.stats()})
            await asyncio.sleep(TELL_EVERY_S)

    def acknowledged(self) -> int:
        return int(self.stats()["ok"])

    def answered_ns(self) -> int:
        """When the newest acknowledged operation of each broker set was invoked, of that set whose
        is oldest; -1 before its first."""
        told = [crew.counted().get("answered_ns", ()) for crew in self._all]
        return min((max(of_set) for of_set in zip_longest(*told, fillvalue=-1)), default=-1)

    def stats(self) -> dict[str, float]:
        """Counts added up, quantiles of the slowest."""
        told = [crew.counted() for crew in self._all]
        counts = {name: sum(stats.get(name, 0) for stats in told) for name in COUNTS}
        slowest = {name: max((s.get(name, 0.0) for s in told), default=0.0) for name in QUANTILES}
        return counts | slowest


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """What two lives of a crew counted; of all but counts what is newer."""
    counts = {name: one.get(name, 0) + other.get(name, 0) for name in COUNTS}
    return {**one, **other, **counts}
