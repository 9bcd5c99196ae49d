"""A node of a trial in the simulated world: its host, its disk, and what can be run on it.

Nothing is executed here. A program is recognised by what it is called with, and the same code runs
on a simulated loop, or, if it only reads, at once on the node's virtual disk. What is not
recognised is refused by name.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters.flotilla import node as flotilla
from clusters.systems import _flotilla_dump
from harness import crew
from harness.contracts import Completed, Node
from harness.errors import BedFailed
from harness.rundir import RunDir
from harness.trial import Trial

from .content import Content
from .disk import Disk, Folder
from .network import Network
from .ports import VirtualFiles, disk_of, ports_of
from .process import Host, Main, Process
from .world import World

AGENT = "agent"  # the process that asks on the node's behalf
PLENTY_BYTES = 1 << 40
PORTION_BYTES = 1 << 20


class Machine:
    """One node. Its agent sits beside it, and reads `files` even when it has no power."""

    def __init__(self, world: World, network: Network, node: Node) -> None:
        self.node = node
        self.host = Host(world, network, node.name, node.address)
        self.disk = disk_of(self.host)
        self.agent = self.host.start(AGENT, _idle)
        self.files: VirtualFiles = _Seen(self.agent, self.disk)

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
        return await flotilla.serve(list(arguments), lambda _: ports_of(process, machine.disk))

    return main


def _crew(machine: Machine, arguments: Sequence[str]) -> Main:
    folder, name, *_ = arguments

    async def main(process: Process) -> int:
        run = _Copy(Path(folder), machine.files)
        return await crew.serve(run, name, True, machine.host.clock.monotonic_ns)

    return main


PROGRAMS: dict[str, Callable[[Machine, Sequence[str]], Main]] = {
    "clusters.flotilla": _flotilla,
    "harness.crew": _crew,
}


@dataclass(frozen=True)
class _Copy(RunDir):
    """The small copy of a run's folder that a crew is given, on a virtual disk."""

    files: VirtualFiles

    def trial(self) -> Trial:
        return Trial.from_toml(self._read(self.trial_file), str(self.trial_file))

    def names(self) -> dict[str, Any]:
        names: dict[str, Any] = json.loads(self._read(self.path / "names.json"))
        return names

    def _read(self, path: Path) -> str:
        return self.files.read(str(path)).decode()


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
    room_bytes = PLENTY_BYTES if disk.room_bytes is None else disk.room_bytes
    return f"Filesystem 1024-blocks Used Available Capacity Mounted on\ndisk 0 0 {room_bytes >> 10}"


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
