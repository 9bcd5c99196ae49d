"""Agents of nodes whose data has a file system of its own, of which the power can be cut
(`own_disk`)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from harness.contracts import Agent, Hosts, Node, PythonRuntime, UnsyncedReport
from harness.errors import BedFailed
from harness.run.tasks import run_all

SCRIPT = "clusters/hosts/_faults/own_disk.py"  # below the folder of our packages
DONE_WITHIN_S = 60.0
COPIED_WITHIN_S = 300.0


@asynccontextmanager
async def own_disks(
    hosts: Hosts, nodes: Sequence[Node], agents: Mapping[str, Agent], data: str
) -> AsyncIterator[Mapping[str, Agent]]:
    """Yield all agents, those of these nodes with a file system of their own for the folder `data`
    in the node's own; at the end, the folder holds its files without it."""
    own = {
        node.name: OwnDisk(
            node.name,
            agents[node.name],
            hosts.python(node.name),
            f"{hosts.folder(node.name)}/{data}",
        )
        for node in nodes
    }
    try:
        await run_all(*(disk.make() for disk in own.values()))
        yield {**agents, **{name: cast(Agent, disk) for name, disk in own.items()}}
    finally:
        await asyncio.gather(*(disk.release() for disk in own.values()))


class OwnDisk:
    """An agent that can also cut the power of its node's disk."""

    def __init__(self, node: str, agent: Agent, python: PythonRuntime, folder: str) -> None:
        self._node, self._agent, self._folder = node, agent, folder
        self._program = [python.executable, "-I", "-S", f"{python.packages}/{SCRIPT}"]

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self._agent, verb)
        return call

    async def make(self) -> None:
        await self._do("make")

    async def cut_disk(self, process: str) -> None:
        await self._do("cut", (await self._agent.state(process)).pid)

    async def restore_disk(self) -> UnsyncedReport:
        return UnsyncedReport(**await self._do("restore"))

    async def why_disk_fails(self) -> str:
        return str((await self._do("check"))["why"])

    async def keep_unsynced(self) -> None:
        await self._do("sync")

    async def release(self) -> None:
        with suppress(BedFailed):  # what it wrote is still in the image beside its folder
            await self._do("release", within_s=COPIED_WITHIN_S)

    async def _do(self, action: str, *words: object, within_s: float = DONE_WITHIN_S) -> Any:
        argv = [*self._program, action, self._folder, *map(str, words)]
        ran = await self._agent.run(argv, timeout_s=within_s)
        if ran.code:
            lines = ran.err.strip().splitlines() or [f"exit code {ran.code}"]
            raise BedFailed(f"{self._node}: its disk: {lines[-1]}")
        return ran.json_output(self._node)
