"""Attached nodes on machines: processes that are reached by SSH and signalled by pid.

The agent is copied to each machine and removed at the end, as on SSH hosts. If it hears no driver
for the length of its lease, it heals its links, resumes what it stopped, and starts what it killed.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import cast

from clusters.hosts._agent.driver import ExistingState, PipeAgent
from clusters.hosts.attached.attached_agent import AttachedAgent, refuse_stopped, start_again
from clusters.hosts.attached.inventory import AttachInventory, ExistingMachineProcess, pair
from clusters.hosts.ssh.config import ssh_config, with_resolved_addresses
from clusters.hosts.ssh.hosts import SshHosts
from clusters.hosts.ssh.inventory import Inventory, InventoryHost
from harness.contracts import CLIENT, Agent, LinkRule, Node, ProcessState
from harness.errors import BadRequest, BedFailed
from harness.trial import Trial

ABILITIES = frozenset({"links", "loss", "delay", "bandwidth", "signal"})
START_WITHIN_S = 60.0
# a command that stays in the foreground must not be waited for, nor end with our run
IN_BACKGROUND = 'umask 022; env -u SEATRIAL_RUN sh -c "$1" </dev/null >/dev/null 2>&1 &'


class MachineProcess:
    """The process of a node on its machine."""

    network_ends_with_process = False

    def __init__(self, node: str, agent: PipeAgent, target: ExistingMachineProcess) -> None:
        self.node, self.agent, self._target = node, agent, target
        self._last = ExistingState(0, 0, "")
        self._code = 0

    async def state(self) -> ProcessState:
        found = await self._look()
        if not found.pid:
            return ProcessState("exited", self._last.pid, self._code)
        if found.pid != self._last.pid:
            self._code = 0
        self._last = found
        stopped = found.threads[:1] in ("T", "t")
        word = "stopped" if stopped else "running"
        return ProcessState(word, found.pid, threads=found.threads)  # type: ignore[arg-type]

    async def _look(self) -> ExistingState:
        last = self._last
        if not self._target.unit:
            return await self.agent.look(last.pid, last.started, self._target.process)
        if last.pid and (found := await self.agent.look(last.pid, last.started, "")).pid:
            return found
        argv = ["systemctl", "show", "--property=MainPID", "--value", self._target.unit]
        pid = (await self.agent.run(argv)).out.strip()
        return await self.agent.look(int(pid) if pid.isdecimal() else 0, 0, "")

    async def signal(self, number: int) -> None:
        if (await self.state()).state == "exited":
            return
        if number in (SIGKILL, SIGTERM):
            self._code = -number
            await self.agent.at_leave(self._start_argv())
        await self.agent.hit(self._last.pid, self._last.started, number)

    async def start(self) -> None:
        ran = await self.agent.run(self._start_argv(), timeout_s=START_WITHIN_S)
        if ran.code:
            why = ran.err.strip() or f"exit code {ran.code}"
            raise BedFailed(f"{self.node}: the {self._target} did not start again: {why}")

    def _start_argv(self) -> list[str]:
        if self._target.start:
            return ["sh", "-c", IN_BACKGROUND, "sh", self._target.start]
        return ["systemctl", "start", self._target.unit] if self._target.unit else []

    async def links(self, rules: Sequence[LinkRule]) -> None:
        await self.agent.links(rules)


class AttachedMachines(SshHosts):
    """The machines of an inventory."""

    def __init__(self, trial: Trial, folder: Path, listed: AttachInventory) -> None:
        self._attached = listed
        every = (*(each.host for each in listed.machines), *listed.clients)
        resolved = with_resolved_addresses(Inventory(listed.source, every), ssh_config())
        super().__init__(trial, folder, resolved)
        startable = all(each.startable for each in listed.machines)
        self.can = ABILITIES | ({"restart"} if startable else set())
        self._processes: dict[str, MachineProcess] = {}

    def _place(self, nodes: Sequence[Node]) -> Mapping[str, InventoryHost]:
        """Return the host of each node: the nodes of a role take its machines in order."""
        servers = pair(nodes, self._attached.machines, self._attached.source)
        hosts = dict(zip(self._attached.machines, self._inventory.hosts, strict=False))
        clients = [node.name for node in nodes if node.role == CLIENT]
        loads = self._inventory.hosts[len(self._attached.machines) :]
        if len(clients) != len(loads):
            raise BadRequest(f"{self._attached.source} names {len(loads)} clients; leave out nodes")
        placed = {name: hosts[target] for name, target in servers.items()}
        return placed | dict(zip(clients, loads, strict=True))

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        async with super().start_nodes(nodes) as (nodes, agents):
            targets = pair(nodes, self._attached.machines, self._attached.source)
            self._processes = {
                name: MachineProcess(name, cast(PipeAgent, agents[name]), target)
                for name, target in targets.items()
            }
            await refuse_stopped(list(self._processes.values()))
            wrapped = {name: AttachedAgent(each) for name, each in self._processes.items()}
            yield nodes, {**agents, **cast(dict[str, Agent], wrapped)}

    async def start_process(self, node: str) -> None:
        process = self._processes[node]
        await start_again(process)
        await process.agent.at_leave(())
