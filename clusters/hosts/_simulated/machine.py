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

from clusters.flotilla import node as flotilla
from clusters.flotilla.rules import RULES, Rules
from clusters.flotilla_mutants import MUTANTS
from clusters.systems import _flotilla_dump
from harness import crew
from harness.contracts import Completed, Node
from harness.errors import BedFailed
from harness.rundir import RunDir

from .content import Content
from .disk import Disk, Folder, Pace
from .network import Network
from .ports import VirtualFiles, disk_of, ports_of
from .process import Host, Main, Process
from .world import World

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

    def power(self, on: bool) -> None:
        """Cut it, or give it back."""
        if not on:
            self.host.power_cut()
        elif not self.host.up:
            self.host.power_on()
            self.agent = self.host.start(AGENT, _idle)

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
    folder, name = arguments
    logs = partial(crew.written, patient=True)

    async def main(process: Process) -> int:
        return await crew.serve(RunDir(Path(folder)), name, logs, machine.host.clock.monotonic_ns)

    return main


PROGRAMS: dict[str, Callable[[Machine, Sequence[str]], Main]] = {
    "clusters.flotilla": _flotilla,
    "clusters.flotilla_mutants": _mutant,
    "harness.crew": _crew,
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
            case [*_, script, store, out] if script.endswith("/_flotilla_dump.py"):
                return _dumped(machine, store, out)
    except OSError as e:
        return Completed(1, "", str(e))
    raise BedFailed(f"{machine.node.name} is simulated, and {' '.join(argv)} is not")


def _free(disk: Disk) -> str:
    room = disk.free_bytes >> 10
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


def _dumped(machine: Machine, store: str, out: str) -> Completed:
    queues: dict[tuple[str, int], int] = {}
    rows = b"".join(_flotilla_dump.rows(store, queues, machine.files))
    machine.disk.put(out, rows)
    count = len(rows) // _flotilla_dump.ROW.size
    return Completed(0, json.dumps({"queues": list(queues), "rows": count}), "")


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
