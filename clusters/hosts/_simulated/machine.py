"""A node of a trial in the simulated world: its host, its disk, and what can be run on it.

Nothing is executed here. A program is recognised by what it is called with, and the same code runs
on a simulated loop, or, if it only reads, at once on the node's virtual disk. What is not
recognised is refused by name.
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
from clusters.flotilla_mutants import MUTANTS
from clusters.hosts._faults import damage as _damage
from clusters.systems import _flotilla_dump
from harness.contracts import Completed, Forgotten, Node
from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.run import client_process as crew

from .content import Content
from .disk import Disk, Folder, Pace
from .network import Network
from .ports import VirtualFiles, disk_of, ports_of
from .process import Host, Main, Process
from .world import SECOND, World

AGENT = "agent"  # the process that asks on the node's behalf
PORTION_BYTES = 1 << 20


class Machine:
    """One node. Its agent sits beside it, and reads `files` even when it has no power."""

    def __init__(self, world: World, network: Network, node: Node, folder: str, pace: Pace) -> None:
        self.node, self.folder = node, folder
        self.host = Host(world, network, node.name, node.address)
        self.disk = disk_of(self.host, pace)
        self.agent = self.host.start(AGENT, _idle)
        self.files: VirtualFiles = _Seen(self.agent, self.disk)
        self.rules: Callable[[int, Rules], Rules] = lambda boot, rules: rules  # who looks on
        self.on_damage: list[Callable[[], None]] = []
        self.on_failing_syncs: list[Callable[[], None]] = []

    def power(self, on: bool) -> Forgotten:
        """Cut it, or give it back; what the disk lost by that."""
        if not on and self.host.up:
            at_stake = self.disk.waiting(self.folder)
            self.host.power_cut()
            return Forgotten(*at_stake, *self.disk.lost)
        if on and not self.host.up:
            self.host.power_on()
            self.agent = self.host.start(AGENT, _idle)
        return Forgotten()

    def damaged(self) -> None:
        """Tell who has to know that files changed under a stopped node."""
        for tell in self.on_damage:
            tell()

    def forget_unsynced(self) -> Forgotten:
        """As a power cut, to a machine whose processes have ended."""
        at_stake = self.disk.waiting(self.folder)
        self.host.world.record(f"{self.node.name} forgets what was not synced")
        for tell in self.host.on_power_cut:
            tell()
        return Forgotten(*at_stake, *self.disk.lost)

    def sink(self) -> None:
        """Every process ends without a word."""
        for process in list(self.host.processes.values()):
            process.kill()


class _Seen(VirtualFiles):
    """A disk's files as an agent beside the node sees them, whoever lives or is dead there."""

    def disk(self) -> Disk:
        return self._disk


async def _idle(process: Process) -> int:
    """Somebody whose loop others may use."""
    await process.loop.create_future()
    return 0


# ------------------------------------------------------------------------------------ programs


def program(machine: Machine, argv: Sequence[str]) -> Main:
    """The main of `python -m MODULE ARGUMENTS`. BedFailed when it is none of ours."""
    at = list(argv).index("-m") + 1 if "-m" in argv else 0
    make = PROGRAMS.get(argv[at]) if at else None
    if make is None:
        raise BedFailed(f"{machine.node.name} is simulated, and {' '.join(argv)} is not")
    return make(machine, argv[at + 1 :])


def _flotilla(machine: Machine, arguments: Sequence[str]) -> Main:
    async def main(process: Process) -> int:
        rules = machine.rules(process.boot, RULES)
        return await flotilla.serve(
            list(arguments), partial(ports_of, process, machine.disk), rules
        )

    return main


def _mutant(machine: Machine, arguments: Sequence[str]) -> Main:
    name, *rest = arguments

    async def main(process: Process) -> int:
        mutant = MUTANTS[name]
        watched = replace(mutant, rules=machine.rules(process.boot, mutant.rules))
        return await watched.serve(rest, partial(ports_of, process, machine.disk))

    return main


def _crew(machine: Machine, arguments: Sequence[str]) -> Main:
    folder, name, *more = arguments
    logs, life = partial(crew.written, patient=True), crew.Life.of(more)

    async def main(process: Process) -> int:
        run, die = RunDir(Path(folder)), partial(process.exit, -SIGKILL)
        return await crew.serve(run, name, logs, machine.host.clock.monotonic_ns, die, life)

    return main


PROGRAMS: dict[str, Callable[[Machine, Sequence[str]], Main]] = {
    "clusters.flotilla": _flotilla,
    "clusters.flotilla_mutants": _mutant,
    "harness.run.client_process": _crew,
}


# ------------------------------------------------------------------------------------ commands


def command(machine: Machine, argv: Sequence[str]) -> Completed:
    """What a command says that only looks, or removes. BedFailed when it is none of these."""
    try:
        match list(argv):
            case ["df", "-Pk", _]:
                return Completed(0, _free(machine.disk), "")
            case ["rm", "-f", path]:
                return _removed(machine, path)
            case ["sh", "-c", text] if "/proc/[0-9]*/task/*/stat" in text:
                return Completed(0, _threads(machine.host), "")
            case [_, "-S", "-s", script, verb, group, *words] if _is(script, "wall_clock"):
                return _clock(machine.host, verb, int(group), words)
            case [*_, script, store, out] if script.endswith("/_flotilla_dump.py"):
                return _dumped(machine, store, out)
            case [*_, script, order] if script.endswith("/damage.py"):
                return _damaged(machine, json.loads(order))
    except OSError as e:
        return Completed(1, "", str(e))
    raise BedFailed(f"{machine.node.name} is simulated, and {' '.join(argv)} is not")


def _free(disk: Disk) -> str:
    room = disk.given_bytes >> 10  # a disk that we said to be full is no misfortune of ours
    return f"Filesystem 1024-blocks Used Available Capacity Mounted on\ndisk 0 0 {room}"


def _removed(machine: Machine, path: str) -> Completed:
    if machine.files.exists(path):
        machine.disk.remove(path)
    return Completed(0, "", "")


def _threads(host: Host) -> str:
    """A stat line for each process: its number, state, parent and group are what is looked at."""
    return "".join(
        f"{process.pid} ({process.name}) {'T' if process.paused else 'S'} 1 {process.pid}\n"
        for process in host.processes.values()
    )


def _is(script: str, name: str) -> bool:
    return script.endswith(f"/{name}.py")


def _clock(host: Host, verb: str, group: int, words: Sequence[str]) -> Completed:
    """What wall_clock.py does; here all processes of a host have one clock."""
    if group not in (process.pid for process in host.processes.values()):
        return Completed(1, "", f"no process of group {group} lives")
    if verb != "read":
        ahead_ns, rate = (int(words[0]), float(words[1])) if verb == "set" else (0, 1.0)
        host.clock.go_wrong(ahead_ns, rate)
        host.world.record(f"{host.name} is ahead by {ahead_ns} ns, at {rate:g} s a second")
    shown = {"ahead_s": host.clock.ahead_ns() / SECOND, "rate": host.clock.wall_rate}
    return Completed(0, json.dumps({str(group): shown}), "")


def _dumped(machine: Machine, store: str, out: str) -> Completed:
    queues: dict[tuple[str, int], int] = {}
    rows = b"".join(_flotilla_dump.rows(store, queues, machine.files))
    machine.disk.put(out, rows)
    count = len(rows) // _flotilla_dump.ROW.size
    return Completed(0, json.dumps({"queues": list(queues), "rows": count}), "")


class _OnDisk:
    """The files of a machine that does not run, for who damages them."""

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
        self._disk.chop(f"{self._folder}/{path}", size)

    def empty(self) -> None:
        self._disk.empty(self._folder)


def _damaged(machine: Machine, order: dict[str, Any]) -> Completed:
    folder = order.pop("folder")
    machine.host.world.record(f"{machine.node.name} is damaged: {order['do']}")
    answer = _damage.done(_OnDisk(machine.disk, folder), order)
    machine.damaged()
    return Completed(0, json.dumps(answer), "")


# -------------------------------------------------------------------------------------- coming home


def brought_home(disk: Disk, folder: str, into: Path) -> None:
    """Every file of a folder, into a real one; long runs of zeros take no room there."""
    for name, node in sorted(disk.folder(folder).entries.items()):
        if isinstance(node, Folder):
            brought_home(disk, f"{folder}/{name}", into / name)
        else:
            into.mkdir(parents=True, exist_ok=True)
            _write(into / name, node)


def _write(path: Path, content: Content) -> None:
    with path.open("wb") as file:
        for offset in range(0, content.held, PORTION_BYTES):
            file.write(content.read(PORTION_BYTES, offset))
        file.truncate(content.size)
