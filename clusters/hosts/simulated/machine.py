"""A node of a trial in the simulated world: its host, its disk, and the programs and commands it
knows.

Nothing is executed. A program is recognised by its command line, and the same code runs on a
simulated loop, or, if it only reads, at once on the node's virtual disk. Anything else is refused
with an error.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

from clusters.flotilla import node as flotilla
from clusters.flotilla.rules import RULES, Rules
from clusters.flotilla.world.ports import Ports
from clusters.flotilla_mutants import MUTANTS
from clusters.hosts._faults import damage
from clusters.hosts._world.content import Content
from clusters.hosts._world.disk import Disk, Folder, SyncTimes
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import VirtualFiles, WorldChoices, disk_of, ports_of
from clusters.hosts._world.process import Main, SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World
from clusters.systems.flotilla import log_dump
from harness.contracts import CommandResult, Node, UnsyncedReport
from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.run import client_process as crew

AGENT = "agent"  # the process that connects on the agent's behalf
PORTION_BYTES = 1 << 20


class SimNode:
    """A node. Its agent can read `files` even when the node has no power."""

    def __init__(
        self,
        world: World,
        network: SimNetwork,
        node: Node,
        folder: str,
        pace: SyncTimes,
        choices: WorldChoices,
    ) -> None:
        self.node, self.folder, self._choices = node, folder, choices
        self.host = SimHost(world, network, node.name, node.address)
        self.disk = disk_of(self.host, pace)
        self.agent = self.host.start(AGENT, _idle)
        self.files: VirtualFiles = _AgentFiles(self.agent, self.disk)
        self.rules: Callable[[int, Rules], Rules] = lambda boot, rules: rules  # adds checks of laws
        self.on_damage: list[Callable[[], None]] = []
        self.on_failing_syncs: list[Callable[[], None]] = []

    def ports_of(self, process: SimProcess) -> Callable[[int | None], Ports]:
        """Return what makes the ports of a process of Flotilla from a seed."""
        return partial(ports_of, process, self.disk, choices=self._choices)

    def power(self, on: bool) -> UnsyncedReport:
        """Switch the power; return what the disk lost."""
        if not on and self.host.up:
            at_stake = self.disk.waiting(self.folder)
            self.host.power_cut()
            return UnsyncedReport(*at_stake, *self.disk.lost)
        if on and not self.host.up:
            self.host.power_on()
            self.agent = self.host.start(AGENT, _idle)
        return UnsyncedReport()

    def files_damaged(self) -> None:
        """Report that files of the stopped node were changed."""
        for listener in self.on_damage:
            listener()

    def drop_unsynced(self, everything: bool = False) -> UnsyncedReport:
        """Lose unsynced data, as in a power cut, on a machine whose processes have ended: a random
        part of it, or everything."""
        self.disk.loses_everything = everything
        at_stake = self.disk.waiting(self.folder)
        self.host.world.record(f"{self.node.name} forgets what was not synced")
        for listener in self.host.on_power_cut:
            listener()
        return UnsyncedReport(*at_stake, *self.disk.lost)

    def kill_processes(self) -> None:
        """Kill every process."""
        for process in list(self.host.processes.values()):
            process.kill()


class _AgentFiles(VirtualFiles):
    """The files of a disk as the agent sees them, whatever the state of the node's processes."""

    def disk(self) -> Disk:
        return self._disk


async def _idle(process: SimProcess) -> int:
    """Never end: other code uses this process's loop."""
    await process.loop.create_future()
    return 0


# ------------------------------------------------------------------------------------ programs


def program(machine: SimNode, argv: Sequence[str]) -> Main:
    """Return the main coroutine of `python -m MODULE ARGUMENTS`. Raises BedFailed if it is not
    ours."""
    at = list(argv).index("-m") + 1 if "-m" in argv else 0
    make = PROGRAMS.get(argv[at]) if at else None
    if make is None:
        raise BedFailed(f"{machine.node.name} is simulated and cannot run {' '.join(argv)}")
    return make(machine, argv[at + 1 :])


def _flotilla(machine: SimNode, arguments: Sequence[str]) -> Main:
    async def main(process: SimProcess) -> int:
        rules = machine.rules(process.boot, RULES)
        return await flotilla.serve(list(arguments), machine.ports_of(process), rules)

    return main


def _mutant(machine: SimNode, arguments: Sequence[str]) -> Main:
    name, *rest = arguments

    async def main(process: SimProcess) -> int:
        mutant = MUTANTS[name]
        watched = replace(mutant, rules=machine.rules(process.boot, mutant.rules))
        return await watched.serve(rest, machine.ports_of(process))

    return main


def _clients(machine: SimNode, arguments: Sequence[str]) -> Main:
    folder, name, *more = arguments
    logs, life = partial(crew.local_journals, patient=True), crew.Incarnation.of(more)

    async def main(process: SimProcess) -> int:
        run, die = RunDir(Path(folder)), partial(process.exit, -SIGKILL)
        return await crew.serve(run, name, logs, machine.host.clock.monotonic_ns, die, life)

    return main


PROGRAMS: dict[str, Callable[[SimNode, Sequence[str]], Main]] = {
    "clusters.flotilla": _flotilla,
    "clusters.flotilla_mutants": _mutant,
    "harness.run.client_process": _clients,
}


# ------------------------------------------------------------------------------------ commands


def command(machine: SimNode, argv: Sequence[str]) -> CommandResult:
    """Return the result of a command that only reads or removes. Raises BedFailed for any other."""
    try:
        match list(argv):
            case ["df", "-Pk", _]:
                return CommandResult(0, _free(machine.disk), "")
            case ["rm", "-f", path]:
                return _removed(machine, path)
            case ["sh", "-c", text] if "/proc/[0-9]*/task/*/stat" in text:
                return CommandResult(0, _threads(machine.host), "")
            case [_, "-S", "-s", script, verb, group, *words] if _is(script, "wall_clock"):
                return _clock(machine.host, verb, int(group), words)
            case [*_, script, store, out] if script.endswith("/log_dump.py"):
                return _dump_log(machine, store, out)
            case [*_, script, order] if script.endswith("/damage.py"):
                return _damage_files(machine, json.loads(order))
    except OSError as e:
        return CommandResult(1, "", str(e))
    raise BedFailed(f"{machine.node.name} is simulated and cannot run {' '.join(argv)}")


def _free(disk: Disk) -> str:
    room = disk.room_left_bytes >> 10  # a fault that fills the disk must not end the run
    return f"Filesystem 1024-blocks Used Available Capacity Mounted on\ndisk 0 0 {room}"


def _removed(machine: SimNode, path: str) -> CommandResult:
    if machine.files.exists(path):
        machine.disk.remove(path)
    return CommandResult(0, "", "")


def _threads(host: SimHost) -> str:
    """Return a stat line for each process: pid, state, parent and group are what callers read."""
    return "".join(
        f"{process.pid} ({process.name}) {'T' if process.paused else 'S'} 1 {process.pid}\n"
        for process in host.processes.values()
    )


def _is(script: str, name: str) -> bool:
    return script.endswith(f"/{name}.py")


def _clock(host: SimHost, verb: str, group: int, words: Sequence[str]) -> CommandResult:
    """Do what wall_clock.py does; here all processes of a host have one clock."""
    if group not in (process.pid for process in host.processes.values()):
        return CommandResult(1, "", f"no process of group {group} lives")
    if verb != "read":
        ahead_ns, rate = (int(words[0]), float(words[1])) if verb == "set" else (0, 1.0)
        host.clock.set_error(ahead_ns, rate)
        host.world.record(f"{host.name} is ahead by {ahead_ns} ns, at {rate:g} s a second")
    shown = {"ahead_s": host.clock.ahead_ns() / SECOND, "rate": host.clock.wall_rate}
    return CommandResult(0, json.dumps({str(group): shown}), "")


def _dump_log(machine: SimNode, store: str, out: str) -> CommandResult:
    queues: dict[tuple[str, int], int] = {}
    rows = b"".join(log_dump.rows(store, queues, machine.files))
    machine.disk.put(out, rows)
    count = len(rows) // log_dump.ROW.size
    return CommandResult(0, json.dumps({"queues": list(queues), "rows": count}), "")


class _DiskFileTree:
    """The files of a stopped machine, for `damage`."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk, self._folder = disk, folder

    def sizes(self) -> dict[str, int]:
        try:
            return {path: file.size for path, file in self._disk.files(self._folder)}
        except FileNotFoundError:
            return {}

    def read(self, path: str, size: int, offset: int) -> bytes:
        return self._disk.file(f"{self._folder}/{path}").read(size, offset)

    def flip(self, path: str, bit: int) -> None:
        self._disk.flip_bit(f"{self._folder}/{path}", bit)

    def cut(self, path: str, size: int) -> None:
        self._disk.cut_end(f"{self._folder}/{path}", size)

    def empty(self) -> None:
        self._disk.empty(self._folder)


def _damage_files(machine: SimNode, order: dict[str, Any]) -> CommandResult:
    folder = order.pop("folder")
    machine.host.world.record(f"{machine.node.name} is damaged: {order['do']}")
    answer = damage.apply(_DiskFileTree(machine.disk, folder), order)
    machine.files_damaged()
    return CommandResult(0, json.dumps(answer), "")


# -------------------------------------------------------------------------------------- coming home


def download(disk: Disk, folder: str, into: Path) -> None:
    """Copy every file of a folder into a real one; long runs of zeros become holes."""
    for name, node in sorted(disk.folder(folder).entries.items()):
        if isinstance(node, Folder):
            download(disk, f"{folder}/{name}", into / name)
        else:
            into.mkdir(parents=True, exist_ok=True)
            _write(into / name, node)


def _write(path: Path, content: Content) -> None:
    with path.open("wb") as file:
        for offset in range(0, content.held, PORTION_BYTES):
            file.write(content.read(PORTION_BYTES, offset))
        file.truncate(content.size)
