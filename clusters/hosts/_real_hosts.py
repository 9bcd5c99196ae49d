"""What hosts with real kernels have in common: local namespaces, containers and machines by SSH."""

import asyncio
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from clusters.hosts._faults.traced_agent import trace_agents
from harness.contracts import Agent, Hosts, Node, PythonRuntime, UnsyncedReport
from harness.errors import BedFailed
from harness.run.parent_pipe import log
from harness.run.tasks import run_all

ABILITIES = frozenset(
    {
        *("links", "loss", "delay", "bandwidth", "signal", "restart"),
        *("files", "disk", "unsynced", "limits", "commands"),
    }
)
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
OWN_DISK = "clusters/hosts/_faults/own_disk.py"  # below the folder of our packages
DONE_WITHIN_S = 60.0
COPIED_WITHIN_S = 300.0


def clock_ability(as_root: bool) -> frozenset[str]:
    """Return {"clock"} if nodes on this machine's kernel can have wall clocks of their own.

    A fault changes the clock of a process by machine code in its memory (`wall_clock.py`). A kernel
    with Yama allows that to ancestors of the process and to root only. `as_root`: the agent is root
    in the user namespace of its processes, as on local nodes; in a container it is not.
    """
    has_code = platform.machine() == "x86_64"
    allowed = as_root or not YAMA.exists() or YAMA.read_text().strip() == "0"
    return frozenset({"clock"} if has_code and allowed else ())


class RealHosts(Hosts):
    """Base class of these hosts."""

    def enter(self) -> None:
        """Prepare nothing. The driver needs no death signal either: it ends with its standard
        input, and one that keeps a cluster must outlive the command that started it."""

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        return asyncio.run(main)

    async def intercept_syscalls(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str = ""
    ) -> Mapping[str, Agent]:
        return await trace_agents(self, nodes, agents, unsynced)

    @asynccontextmanager
    async def own_disks(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], data: str
    ) -> AsyncIterator[Mapping[str, Agent]]:
        own = {
            node.name: OwnDisk(
                node.name,
                agents[node.name],
                self.python(node.name),
                f"{self.folder(node.name)}/{data}",
            )
            for node in nodes
        }
        try:
            await run_all(*(disk.make() for disk in own.values()))
            yield {**agents, **{name: cast(Agent, disk) for name, disk in own.items()}}
        finally:
            await asyncio.gather(*(disk.release() for disk in own.values()))


class OwnDisk:
    """An agent of a node whose data has a file system of its own, of which the power can be cut
    (`_faults/own_disk.py`)."""

    def __init__(self, node: str, agent: Agent, python: PythonRuntime, folder: str) -> None:
        self._node, self._agent, self._folder = node, agent, folder
        self._program = [python.executable, "-I", "-S", f"{python.packages}/{OWN_DISK}"]

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
        try:
            await self._do("release", within_s=COPIED_WITHIN_S)
        except BedFailed as e:
            log(f"{e}; what it holds stays in {self._folder}.img")

    async def _do(self, action: str, *words: object, within_s: float = DONE_WITHIN_S) -> Any:
        argv = [*self._program, action, self._folder, *map(str, words)]
        ran = await self._agent.run(argv, timeout_s=within_s)
        if ran.code:
            lines = ran.err.strip().splitlines() or [f"exit code {ran.code}"]
            raise BedFailed(f"{self._node}: its disk: {lines[-1]}")
        return ran.json_output(self._node)
