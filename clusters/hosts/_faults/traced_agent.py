"""Agents that start processes under the syscall tracer, so that faults can break the disk and take
away unsynced data (`syscall_tracer`).

The tracer's supervisor is one more process of the node's agent, and every other process is started
through the tracer; the agent itself does not know it. So it works wherever an agent runs. When the
agent exits, it ends the supervisor with all other processes.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any, cast
from zlib import crc32

from clusters.hosts._faults.disk_faults import merge
from harness.contracts import (
    Agent,
    DiskFault,
    DiskProbe,
    Hosts,
    Node,
    PythonRuntime,
    UnsyncedReport,
)
from harness.errors import BedFailed
from harness.run.tasks import run_all

SCRIPT = "clusters/hosts/_faults/syscall_tracer.py"  # below the folder of our packages
PROCESS = "disk-gate"
LOG = "gate.log"  # in the node's folder
READY_WITHIN_S = 20.0
OBEYS_WITHIN_S = 5.0
LOSES_WITHIN_S = 20.0
TRIED_WITHIN_S = 15.0  # in addition to the probe's own timeout


async def trace_agents(
    hosts: Hosts, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str
) -> Mapping[str, Agent]:
    """Return all agents; those of these nodes start processes under a tracer.

    unsynced: the folder, below the node's own, whose unsynced changes are recorded; empty: none
    """
    gated = {
        node.name: TracedAgent(
            node.name,
            agents[node.name],
            hosts.python(node.name),
            hosts.folder(node.name),
            unsynced,
        )
        for node in nodes
    }
    await run_all(*(agent.start_tracer() for agent in gated.values()))
    return {**agents, **{name: cast(Agent, agent) for name, agent in gated.items()}}


class TracedAgent:
    """An agent that starts its processes under a tracer, to which it sends orders."""

    def __init__(
        self, node: str, agent: Agent, python: PythonRuntime, folder: str, unsynced: str = ""
    ) -> None:
        self._unsynced = unsynced  # the folder whose unsynced changes are recorded
        self._started: set[str] = set()  # names of traced processes
        self._number = 0  # of the last order; answers to earlier ones are ignored
        self._node, self._agent, self._folder = node, agent, folder
        self._name = f"seatrial-gate-{crc32(folder.encode()):08x}"
        self._tracer = [python.executable, "-I", "-S", f"{python.packages}/{SCRIPT}"]
        self._disk_faults: dict[str, DiskFault] = {}  # by owner
        self._lock = asyncio.Lock()  # orders are carried out in turn
        self._reply: asyncio.Future[str] | None = None  # the answer to it

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self._agent, verb)
        return call

    async def start_tracer(self) -> None:
        """Start the supervisor and wait until it listens."""
        log = f"{self._folder}/{LOG}"
        watching = [*self._tracer, "watch", self._name]
        watching += [f"{self._folder}/{self._unsynced}"] if self._unsynced else []
        listening = self._reply = asyncio.get_running_loop().create_future()
        await self._agent.start(PROCESS, watching, log=log, on_line=self._on_line)
        ended = asyncio.ensure_future(self._agent.exited(PROCESS))
        both = (listening, ended)
        await asyncio.wait(both, timeout=READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        listens = listening.done()
        for waiting in both:
            waiting.cancel()
        if not listens:
            raise BedFailed(f"{self._node} has no syscall tracer: {await self._log_tail()}")

    async def start(self, name: str, argv: Sequence[str], **given: Any) -> int:
        self._started.add(name)
        through = [*self._tracer, "enter", self._name, "--", *argv]
        return await self._agent.start(name, through, **given)

    async def disk(self, owner: str, fault: DiskFault | None) -> None:
        self._disk_faults.pop(owner, None)
        if fault is not None:
            self._disk_faults[owner] = fault
        await self._send_order(lambda: _as_order(merge(self._disk_faults.values())))

    async def _send_order(
        self, order: Callable[[], Mapping[str, Any]], within_s: float = OBEYS_WITHIN_S
    ) -> str:
        """Send an order, built when the lock is held, and return the supervisor's answer."""
        async with self._lock:
            self._number += 1
            reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._reply = reply
            await self._agent.tell(PROCESS, json.dumps({"order": self._number, **order()}))
            try:
                async with asyncio.timeout(within_s):
                    return await reply
            except TimeoutError:
                why = f"its syscall tracer did not answer within {within_s:g} s"
                raise BedFailed(f"{self._node}: {why}") from None

    async def drop_unsynced(self, seed: int | None) -> UnsyncedReport:
        for name in sorted(self._started):
            if (await self._agent.state(name)).state in ("running", "stopped"):
                raise BedFailed(
                    f"{self._node}: {name} is running, and would keep the data in memory"
                )
        if not self._unsynced:
            raise BedFailed(
                f"{self._node}: its syscall tracer does not know which data is unsynced"
            )
        result = json.loads(await self._send_order(lambda: {"lose": seed}, LOSES_WITHIN_S))
        return UnsyncedReport(**{**result, "unseen": tuple(result["unseen"])})

    async def keep_unsynced(self) -> None:
        if self._unsynced:
            await self._send_order(lambda: {"settle": True})
        if keep := getattr(self._agent, "keep_unsynced", None):
            await keep()

    async def restore_disk(self) -> UnsyncedReport:
        if self._unsynced:  # the tracer holds files open, which keeps the disk in use
            await self._send_order(lambda: {"settle": True})
        report: UnsyncedReport = await self.__getattr__("restore_disk")()
        return report

    async def disk_fault(self) -> DiskFault | None:
        return merge(self._disk_faults.values())

    async def probe_disk(self, below: str, patience_s: float) -> DiskProbe:
        trying = [*self._tracer, "try", self._name, below, str(patience_s)]
        ran = await self._agent.run(trying, timeout_s=patience_s + TRIED_WITHIN_S)
        if ran.code:
            reply = ran.err.strip().splitlines() or [f"exit code {ran.code}"]
            raise BedFailed(f"{self._node}: its disk could not be tried: {reply[-1]}")
        result = ran.json_output(self._node)
        return DiskProbe(
            result["write"], result["sync"], result["sync_s"] if result["sync_s"] >= 0 else inf
        )

    def _on_line(self, line: str) -> None:
        """Take a line of the supervisor: it listens, or it has carried out the order of that
        number."""
        number, _, reply = line.partition(" ")
        if number == str(self._number) and self._reply and not self._reply.done():
            self._reply.set_result(reply)

    async def _log_tail(self) -> str:
        try:
            reply = (
                (await self._agent.get(f"{self._folder}/{LOG}")).decode(errors="replace").split()
            )
        except BedFailed:
            reply = []
        return " ".join(reply[-40:]) or f"it did not listen within {READY_WITHIN_S:g} s"


def _as_order(wanted: DiskFault | None) -> dict[str, Any]:
    """Return the order for the supervisor. JSON has no infinity, so a hanging sync is null."""
    order = asdict(wanted) if wanted else {}
    return {**order, "sync_s": None} if order.get("sync_s") == inf else order
