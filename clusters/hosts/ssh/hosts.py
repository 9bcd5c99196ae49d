"""Nodes as machines that are reached by SSH: one node per machine, chosen from an inventory.

A host needs Python 3.11, sh and iptables; everything else that the trial needs is copied there in
one archive and removed afterwards. Connections are kept open, and may break: the agent on each host
is a daemon that outlives them, so a break costs time and nothing else. If the agent hears no driver
for the length of its lease, it heals its links, resumes and kills what it started, and exits. So
every fault on a real machine ends by itself, whatever happened to the driver.

Links are cut by IPv4 address, and systems are given IPv4 addresses only; IPv6 is left as it is.

A run that was killed leaves its folder on the host; `seatrial heal` or the next run of this machine
on that host removes it.
"""

import asyncio
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusters.hosts._agent import clock_sync
from clusters.hosts._agent.threads import in_thread
from clusters.hosts._problems import Problem
from clusters.hosts._real_hosts import ABILITIES, RealHosts
from clusters.hosts.ssh import claims
from clusters.hosts.ssh.claims import HostClaim
from clusters.hosts.ssh.config import route, ssh_config, with_resolved_addresses
from clusters.hosts.ssh.connections import HostConnections
from clusters.hosts.ssh.diagnosis import ssh_command
from clusters.hosts.ssh.inventory import Inventory, InventoryHost, assign, load
from clusters.hosts.ssh.node import CleanupFailed, SshNode, heal_host, summary
from harness.contracts import Agent, ClockOffset, HostsPlugin, Node, PythonRuntime
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.run.parent_pipe import log
from harness.run.tasks import run_all
from harness.trial import Trial

__all__ = ["NEEDS", "SshHosts", "heal", "hosts", "problems", "shell"]

INVENTORY = "inventory.toml"
OPTIONS = ("inventory", "accept_new_host_keys")
LEASE_S = 20.0
RAISE_WITHIN_S = 60.0
CLOSE_WITHIN_S = 3.0
MAX_PARALLEL_HEALS = 16
AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec "$@"; else exec sudo -n -- "$@"; fi'
IN_FOLDER = 'cd -- "$1" && shift && exec "$@"'

NEEDS = (  # what `problems` tries, for the doctor's table
    "an inventory of hosts",
    "root on each, or sudo",
    "Python 3.11, iptables and room on each",
    "clocks that agree",
)


def hosts(trial: Trial, folder: Path) -> "SshHosts":
    return SshHosts(trial, Path(folder).resolve())


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    """Return the first problem of each host on which no node can run.

    It is found by doing what a run does first: read the inventory, connect to all hosts, ask what
    they have. Raises BadRequest if the inventory is wrong.
    """
    listed = inventory(bed)
    with HostConnections(accept_new_host_keys=accepts_new_host_keys(bed)) as connections:
        return [each for each in connections.attempt(listed.hosts) if isinstance(each, Problem)]


def inventory(bed: Mapping[str, Any]) -> Inventory:
    """Return the hosts that the options name, each with its address. Raises BadRequest."""
    for key in bed:
        if key not in OPTIONS:
            raise BadRequest(f"ssh hosts have no option bed.{key}; known: {', '.join(OPTIONS)}")
    path = bed.get("inventory", INVENTORY)
    if not isinstance(path, str) or not path:
        raise BadRequest(f"bed.inventory must be the path of a file, not {path!r}")
    return with_resolved_addresses(load(path), ssh_config())


def accepts_new_host_keys(bed: Mapping[str, Any]) -> bool:
    """Return whether unknown host keys may be added to known_hosts; changed ones never are."""
    accept = bed.get("accept_new_host_keys", False)
    if not isinstance(accept, bool):
        raise BadRequest(f"bed.accept_new_host_keys must be true or false, not {accept!r}")
    return accept


def heal(run: RunDir, entries: Sequence[Any]) -> list[str]:
    """Undo what a finished run left on its hosts; return a list of it. The hosts come from this
    user's registry: a run's folder may come from another person, and so name any host."""
    held = claims.read(run.path)
    if entries and not held:
        raise BadRequest(
            f"the hosts of {run.path} are not in the registry of this user, so its faults are not "
            "undone; heal it as the user and on the machine that started it"
        )
    with HostConnections() as connections, ThreadPoolExecutor(MAX_PARALLEL_HEALS) as pool:
        tried = list(pool.map(lambda each: _heal_or_error(connections, each), held))
    left = [each for each, done in zip(held, tried, strict=True) if isinstance(done, CleanupFailed)]
    if held:
        claims.write(run.path, left)
    if stuck := [str(done) for done in tried if isinstance(done, CleanupFailed)]:
        raise BedFailed("\n".join(stuck))
    return summary([done for done in tried if not isinstance(done, CleanupFailed)])


def shell(run: RunDir, node: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command on a node, in a terminal if there is one."""
    claim = next((each for each in claims.read(run.path) if each.node == node), None)
    if claim is None:
        raise BadRequest(f"no host is known for {node}; is {run.path} a run that goes on?")
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    *ssh, _true = shlex.split(ssh_command(route(claim.host, ssh_config()), *terminal))
    there = ["sh", "-c", IN_FOLDER, "sh", f"{claim.folder}/{node}", *command]
    return [*ssh, shlex.join(["sh", "-c", AS_ROOT, "sh", *there])]


PLUGIN = HostsPlugin(
    hosts=hosts,
    problems=problems,
    needs=NEEDS,
    shell=shell,
    heal=heal,
    must_name=("inventory",),
)


class SshHosts(RealHosts):
    """The hosts of one run, whose files are copied to `folder` at its end."""

    can = ABILITIES | {"clock"}
    shares_files = False

    def __init__(self, trial: Trial, folder: Path, listed: Inventory | None = None) -> None:
        self._inventory = listed or inventory(trial.bed)
        self._accept = accepts_new_host_keys(trial.bed)
        self._run = folder
        self._mark = secrets.token_hex(4)  # other users of a host cannot predict our folder
        self._nodes: dict[str, SshNode] = {}
        self._max_run_s = clock_sync.max_run_s(trial)

    def check(self, nodes: Sequence[Node]) -> None:
        self._place(nodes)

    def _place(self, nodes: Sequence[Node]) -> Mapping[str, InventoryHost]:
        """Return the host of each node, by its name."""
        return assign(self._inventory, nodes)

    @asynccontextmanager
    async def start_nodes(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        placed = self._place(nodes)
        addressed = [_addressed(node, placed[node.name]) for node in nodes]
        connections = HostConnections(accept_new_host_keys=self._accept)
        try:
            await self._start_nodes(connections, addressed, placed)
            yield addressed, {name: each.agent for name, each in self._nodes.items()}
        finally:
            stuck = await self._release()
            await _close(connections)
        if stuck:
            raise BedFailed(stuck)

    def folder(self, node: str) -> str:
        return f"{self._nodes[node].folder}/{node}"

    def python(self, node: str) -> PythonRuntime:
        return self._nodes[node].python

    def clock(self, node: str) -> ClockOffset:
        return self._nodes[node].clock

    async def compare_clocks(self) -> Mapping[str, ClockOffset]:
        agents = {name: each.agent for name, each in self._nodes.items()}
        return await clock_sync.compare_again(agents, {name: self.clock(name) for name in agents})

    async def _start_nodes(
        self,
        connections: HostConnections,
        nodes: Sequence[Node],
        placed: Mapping[str, InventoryHost],
    ) -> None:
        try:
            async with asyncio.timeout(RAISE_WITHIN_S):
                listed = [placed[node.name] for node in nodes]
                remotes = await in_thread(lambda: connections.connect_all(listed))
                self._nodes = {
                    node.name: SshNode(
                        connections, remote, node, self._run, self._folder(remote.host), LEASE_S
                    )
                    for node, remote in zip(nodes, remotes, strict=True)
                }
                self._write_claims(self._nodes)
                started = self._nodes.values()
                await run_all(*(each.connect(self._max_run_s) for each in started))
        except TimeoutError:
            raise BedFailed(
                f"preparing {len(nodes)} hosts took longer than {RAISE_WITHIN_S:g} s; is one of"
                " them overloaded, or the network slow?"
            ) from None

    async def _release(self) -> str:
        """Copy the nodes' files and clean up; return a message for each host where something is
        left."""
        started = list(self._nodes.values())
        run = RunDir(self._run)
        reasons = await asyncio.gather(
            *(each.release(run.node(each.node.name)) for each in started)
        )
        left = {each.node.name: why for each, why in zip(started, reasons, strict=True) if why}
        with suppress(
            OSError
        ):  # a full disk: all hosts stay listed, and healing a clean one does no harm
            self._write_claims(left)
        for why in left.values():
            log(why)
        by_hand = f"once the host can be reached again, run: seatrial heal {self._run}"
        return "\n".join(f"{why}; {by_hand}" for why in left.values())

    def _write_claims(self, nodes: Mapping[str, Any]) -> None:
        """Write down which hosts hold something of the run."""
        started = [self._nodes[name] for name in nodes]
        claims.write(self._run, [each.claim for each in started])

    def _folder(self, host: InventoryHost) -> str:
        return f"{host.folder.rstrip('/')}/seatrial-{self._run.name}-{self._mark}"


def _addressed(node: Node, host: InventoryHost) -> Node:
    return replace(node, address=host.address, zone=host.zone or node.zone)


def _heal_or_error(
    connections: HostConnections, claim: HostClaim
) -> dict[str, Any] | CleanupFailed:
    try:
        return heal_host(connections, claim)
    except CleanupFailed as e:
        return e


async def _close(connections: HostConnections) -> None:
    """Close all connections, but do not wait for one to a host that hangs."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_WITHIN_S):
            await in_thread(connections.close)
