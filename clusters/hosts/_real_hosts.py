"""What hosts with real kernels have in common: local namespaces, containers and machines by SSH."""

import asyncio
import platform
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusters.hosts._faults.traced_agent import trace_agents
from harness.contracts import Agent, Hosts, Node

ABILITIES = frozenset(
    {
        *("links", "loss", "delay", "bandwidth", "signal", "restart"),
        *("files", "disk", "unsynced", "limits", "commands"),
    }
)
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


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
