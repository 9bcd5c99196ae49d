"""Nodes whose processes run behind a gate to their disk, so that faults can spoil it, and take
away what was not synced (`syscall_tracer`).

The gate's warden is one more process of the node's agent, and every other process is started
through the gate; the agent itself knows nothing of it. So it works wherever an agent runs. When the
agent leaves, it ends the warden with all the rest.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any, cast
from zlib import crc32

from clusters.hosts._faults.disk_faults import merged
from harness.contracts import Agent, DiskFault, DiskSeen, Forgotten, Hosts, Node, Python
from harness.errors import BedFailed
from harness.run.tasks import together

SCRIPT = "clusters/hosts/_faults/syscall_tracer.py"  # below the folder of our packages
PROCESS = "disk-gate"
LOG = "gate.log"  # in the node's folder
READY_WITHIN_S = 20.0
OBEYS_WITHIN_S = 5.0
LOSES_WITHIN_S = 20.0
TRIED_WITHIN_S = 15.0  # beside the patience of whoever tries


async def behind_gates(
    hosts: Hosts, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str
) -> Mapping[str, Agent]:
    """All agents, those of these nodes with gates, which keep a ledger of that folder's changes."""
    gated = {
        node.name: GatedAgent(
            node.name,
            agents[node.name],
            hosts.python(node.name),
            hosts.folder(node.name),
            unsynced,
        )
        for node in nodes
    }
    await together(*(agent.put_up() for agent in gated.values()))
    return {**agents, **{name: cast(Agent, agent) for name, agent in gated.items()}}


class GatedAgent:
    """An agent, but that its processes are started behind a gate, to which it gives orders."""

    def __init__(
        self, node: str, agent: Agent, python: Python, folder: str, unsynced: str = ""
    ) -> None:
        self._unsynced = unsynced  # the folder whose changes are kept in mind until a sync
        self._started: set[str] = set()  # names of processes behind the gate
        self._number = 0  # of the last order; an answer to an earlier one is nobody's any more
        self._node, self._agent, self._folder = node, agent, folder
        self._name = f"seatrial-gate-{crc32(folder.encode()):08x}"
        self._gate = [python.executable, "-I", "-S", f"{python.packages}/{SCRIPT}"]
        self._spoilt: dict[str, DiskFault] = {}  # what each fault wants of the disk
        self._turn = asyncio.Lock()  # the last order given is the one that stays
        self._said: asyncio.Future[str] | None = None  # the answer to it

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self._agent, verb)
        return call

    async def put_up(self) -> None:
        """The warden listens when this returns."""
        log = f"{self._folder}/{LOG}"
        watching = [*self._gate, "watch", self._name]
        watching += [f"{self._folder}/{self._unsynced}"] if self._unsynced else []
        listening = self._said = asyncio.get_running_loop().create_future()
        await self._agent.start(PROCESS, watching, log=log, on_line=self._heard)
        ended = asyncio.ensure_future(self._agent.exited(PROCESS))
        both = (listening, ended)
        await asyncio.wait(both, timeout=READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        listens = listening.done()
        for waiting in both:
            waiting.cancel()
        if not listens:
            raise BedFailed(f"{self._node} has no gate to its disk: {await self._last_words()}")

    async def start(self, name: str, argv: Sequence[str], **given: Any) -> int:
        self._started.add(name)
        through = [*self._gate, "enter", self._name, "--", *argv]
        return await self._agent.start(name, through, **given)

    async def disk(self, owner: str, fault: DiskFault | None) -> None:
        self._spoilt.pop(owner, None)
        if fault is not None:
            self._spoilt[owner] = fault
        await self._ordered(lambda: _order(merged(self._spoilt.values())))

    async def _ordered(
        self, order: Callable[[], Mapping[str, Any]], within_s: float = OBEYS_WITHIN_S
    ) -> str:
        """What the warden answers to an order, which is made when its turn has come."""
        async with self._turn:
            self._number += 1
            said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._said = said
            await self._agent.tell(PROCESS, json.dumps({"order": self._number, **order()}))
            try:
                async with asyncio.timeout(within_s):
                    return await said
            except TimeoutError:
                why = f"the gate to its disk did not obey within {within_s:g} s"
                raise BedFailed(f"{self._node}: {why}") from None

    async def forget_unsynced(self, seed: int) -> Forgotten:
        for name in sorted(self._started):
            if (await self._agent.state(name)).state in ("running", "stopped"):
                raise BedFailed(f"{self._node}: {name} runs, and would remember")
        if not self._unsynced:
            raise BedFailed(f"{self._node}: its gate does not know what was not synced")
        told = json.loads(await self._ordered(lambda: {"lose": seed}, LOSES_WITHIN_S))
        return Forgotten(**{**told, "unseen": tuple(told["unseen"])})

    async def keep_unsynced(self) -> None:
        if self._unsynced:
            await self._ordered(lambda: {"settle": True})

    async def disk_wanted(self) -> DiskFault | None:
        return merged(self._spoilt.values())

    async def disk_seen(self, below: str, patience_s: float) -> DiskSeen:
        trying = [*self._gate, "try", self._name, below, str(patience_s)]
        ran = await self._agent.run(trying, timeout_s=patience_s + TRIED_WITHIN_S)
        if ran.code:
            said = ran.err.strip().splitlines() or [f"exit code {ran.code}"]
            raise BedFailed(f"{self._node}: its disk could not be tried: {said[-1]}")
        told = ran.answer(self._node)
        return DiskSeen(told["write"], told["sync"], told["sync_s"] if told["sync_s"] >= 0 else inf)

    def _heard(self, line: str) -> None:
        """It listens, or it has obeyed the order of that number, for which nobody may wait now."""
        number, _, said = line.partition(" ")
        if number == str(self._number) and self._said and not self._said.done():
            self._said.set_result(said)

    async def _last_words(self) -> str:
        try:
            said = (await self._agent.get(f"{self._folder}/{LOG}")).decode(errors="replace").split()
        except BedFailed:
            said = []
        return " ".join(said[-40:]) or f"it did not listen within {READY_WITHIN_S:g} s"


def _order(wanted: DiskFault | None) -> dict[str, Any]:
    """As the warden takes it: JSON has no infinity."""
    order = asdict(wanted) if wanted else {}
    return {**order, "sync_s": None} if order.get("sync_s") == inf else order
