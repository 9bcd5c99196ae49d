"""Nodes as machines that are reached by SSH: one node a machine, chosen from an inventory.

A host needs Python 3.11, sh and iptables; whatever else the trial needs is brought in one archive
and taken away again. Connections are kept open, and may break: the agent on each host is a daemon
that outlives them, so a break costs time and nothing else. If no driver is heard of for the lease,
the agent heals its links, resumes and kills what it started, and leaves. So every fault on a real
machine ends by itself, whatever became of us.

Links are cut by IPv4 address, and systems are given IPv4 addresses only; IPv6 is left as it is.

What a run that was killed leaves, idle, is its folder; `seatrial heal` or the next run of this
machine on that host removes it.
"""

import asyncio
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusters.hosts._agent import clock_sync as _clocks
from clusters.hosts._agent.threads import aside
from clusters.hosts._faults.traced_agent import behind_gates
from clusters.hosts.ssh import claims as _ssh_taken
from clusters.hosts.ssh.claims import Taken
from clusters.hosts.ssh.config import route, ssh_config
from clusters.hosts.ssh.connections import Fleet
from clusters.hosts.ssh.diagnosis import ssh_command
from clusters.hosts.ssh.host import Berth, Stuck, healed, words
from clusters.hosts.ssh.inventory import Host, assign
from clusters.hosts.ssh.problems import accepts_new_host_keys, inventory, problems
from harness.contracts import Agent, Clock, HostsPlugin, Node, Python
from harness.errors import BadRequest, BedFailed
from harness.history.rundir import RunDir
from harness.run.tasks import together
from harness.trial import Trial

__all__ = ["NEEDS", "SshHosts", "heal", "hosts", "problems", "shell"]

LEASE_S = 20.0
RAISE_WITHIN_S = 60.0
CLOSE_WITHIN_S = 3.0
HEALED_AT_ONCE = 16
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


def heal(run: RunDir, entries: Sequence[Any]) -> list[str]:
    """Undo what a run that is over left on its hosts; what that was, in words. The hosts are those
    of this user's registry: a folder may come from another person, and so name any host."""
    taken = _ssh_taken.read(run.path)
    if entries and not taken:
        raise BadRequest(
            f"the hosts of {run.path} are not in the registry of this user, so its faults are not "
            "undone; heal it as the user and on the machine that started it"
        )
    with Fleet() as fleet, ThreadPoolExecutor(HEALED_AT_ONCE) as pool:
        tried = list(pool.map(lambda each: _healed(fleet, each), taken))
    left = [each for each, done in zip(taken, tried, strict=True) if isinstance(done, Stuck)]
    if taken:
        _ssh_taken.write(run.path, left)
    if stuck := [str(done) for done in tried if isinstance(done, Stuck)]:
        raise BedFailed("\n".join(stuck))
    return words([done for done in tried if not isinstance(done, Stuck)])


def shell(run: RunDir, node: str, command: Sequence[str]) -> list[str]:
    """How a terminal is joined to a command on a node."""
    taken = next((each for each in _ssh_taken.read(run.path) if each.node == node), None)
    if taken is None:
        raise BadRequest(f"no host is known for {node}; is {run.path} a run that goes on?")
    terminal = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    *ssh, _true = shlex.split(ssh_command(route(taken.host, ssh_config()), *terminal))
    there = ["sh", "-c", IN_FOLDER, "sh", f"{taken.folder}/{node}", *command]
    return [*ssh, shlex.join(["sh", "-c", AS_ROOT, "sh", *there])]


PLUGIN = HostsPlugin(
    hosts=hosts,
    problems=problems,
    needs=NEEDS,
    shell=shell,
    heal=heal,
    must_name=("inventory",),
)


class SshHosts:
    """The hosts of one run, whose files are brought to `folder` at its end."""

    can = frozenset(
        {
            "links",
            "loss",
            "delay",
            "bandwidth",
            "signal",
            "restart",
            "files",
            "disk",
            "unsynced",
            "limits",
            "clock",
        }
    )
    shares_files = False

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._inventory = inventory(trial.bed)
        self._accept = accepts_new_host_keys(trial.bed)
        self._run = folder
        self._mark = secrets.token_hex(4)  # no other user of a host can foresee our folder
        self._berths: dict[str, Berth] = {}
        self._whole_s = _clocks.whole_s(trial)

    def enter(self) -> None:
        """Nothing to prepare, and no death signal either: a driver ends with its standard input,
        and one that keeps a cluster must outlive the command that started it."""

    def check(self, nodes: Sequence[Node]) -> None:
        assign(self._inventory, nodes)

    def run(self, main: Coroutine[Any, Any, int]) -> int:
        return asyncio.run(main)

    @asynccontextmanager
    async def raised(
        self, nodes: Sequence[Node]
    ) -> AsyncIterator[tuple[Sequence[Node], Mapping[str, Agent]]]:
        placed = assign(self._inventory, nodes)
        addressed = [_addressed(node, placed[node.name]) for node in nodes]
        fleet = Fleet(accept_new_host_keys=self._accept)
        try:
            await self._raised(fleet, addressed, placed)
            yield addressed, {name: berth.agent for name, berth in self._berths.items()}
        finally:
            stuck = await self._left()
            await _closed(fleet)
        if stuck:
            raise BedFailed(stuck)

    async def gated(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], unsynced: str = ""
    ) -> Mapping[str, Agent]:
        return await behind_gates(self, nodes, agents, unsynced)

    def folder(self, node: str) -> str:
        return f"{self._berths[node].folder}/{node}"

    def python(self, node: str) -> Python:
        return self._berths[node].python

    def clock(self, node: str) -> Clock:
        return self._berths[node].clock

    async def clocks_again(self) -> Mapping[str, Clock]:
        agents = {name: berth.agent for name, berth in self._berths.items()}
        return await _clocks.again(agents, {name: self.clock(name) for name in agents})

    async def _raised(
        self, fleet: Fleet, nodes: Sequence[Node], placed: Mapping[str, Host]
    ) -> None:
        try:
            async with asyncio.timeout(RAISE_WITHIN_S):
                listed = [placed[node.name] for node in nodes]
                machines = await aside(lambda: fleet.connect_all(listed))
                self._berths = {
                    node.name: Berth(
                        fleet, machine, node, self._run, self._folder(machine.host), LEASE_S
                    )
                    for node, machine in zip(nodes, machines, strict=True)
                }
                self._note(self._berths)
                berths = self._berths.values()
                await together(*(berth.manned(self._whole_s) for berth in berths))
        except TimeoutError:
            raise BedFailed(
                f"raising {len(nodes)} hosts took longer than {RAISE_WITHIN_S:g} s; is one of them "
                "overloaded, or the network slow?"
            ) from None

    async def _left(self) -> str:
        """Bring home what the nodes wrote, and leave nothing there; what is left, if anything."""
        berths = list(self._berths.values())
        run = RunDir(self._run)
        said = await asyncio.gather(*(berth.left(run.node(berth.node.name)) for berth in berths))
        left = {berth.node.name: why for berth, why in zip(berths, said, strict=True) if why}
        with suppress(OSError):  # a full disk: all stay noted, and healing what is well is harmless
            self._note(left)
        for why in left.values():
            print(why, file=sys.stderr, flush=True)
        by_hand = f"when it is well again, clean up with: seatrial heal {self._run}"
        return "\n".join(f"{why}; {by_hand}" for why in left.values())

    def _note(self, nodes: Mapping[str, Any]) -> None:
        """Write down which hosts hold something of the run."""
        berths = [self._berths[name] for name in nodes]
        _ssh_taken.write(self._run, [berth.taken for berth in berths])

    def _folder(self, host: Host) -> str:
        return f"{host.folder.rstrip('/')}/seatrial-{self._run.name}-{self._mark}"


def _addressed(node: Node, host: Host) -> Node:
    return replace(node, address=host.address, zone=host.zone or node.zone)


def _healed(fleet: Fleet, taken: Taken) -> dict[str, Any] | Stuck:
    try:
        return healed(fleet, taken)
    except Stuck as e:
        return e


async def _closed(fleet: Fleet) -> None:
    """Hang up; a connection to a host that hangs may take its time, without us."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_WITHIN_S):
            await aside(fleet.close)
