"""Faults of disks on real nodes, played in a process of its own: `python disk_scene.py FOLDER`.

Three nodes with a diary each, behind gates. Every fault is carried out by the nemesis on its own;
when it has been observed the diarists are asked, the run is stopped, and they are asked again. All
that was seen is printed as JSON; the tests say what must have been seen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diary import PORT
from fault_stage import Writers, played, staged, under

from clusters.hosts.local import hosts as local
from harness.contracts import Node, PlannedFault, TestBed

DIARY = Path(__file__).with_name("diary.py")
NODES = tuple(Node(f"broker-{n}", "broker") for n in (1, 2, 3))
FAULTS: Mapping[str, PlannedFault] = {
    name: PlannedFault(kind, 0.0, 60.0, "broker-1", params)
    for name, kind, params in (
        ("full", "disk-full", {}),
        ("read-only", "read-only", {}),
        ("slow", "fsync", {"how": "slow", "delay_s": 0.2}),
        ("failing", "fsync", {"how": "fail"}),
        ("hanging", "fsync", {"how": "hang"}),
        ("cut", "corrupt", {"how": "truncate", "bytes": 100.0}),
        ("flipped", "corrupt", {"how": "flip", "bits": 5.0}),
        ("wiped", "wipe", {}),
        ("unsynced", "unsynced", {}),
    )
}


class Diarists(Writers):
    """A process on each node that writes to its disk on request."""

    name, port, answer_within_s = "diary", PORT, 20.0

    async def start_node(self, _bed: Any, node: str) -> None:
        await self.start_program(node, str(DIARY))


async def shown(name: str, bed: TestBed, diarists: Diarists, folder: Path) -> dict[str, Any]:
    """One fault from beginning to end, and what the diarists say of it."""
    async with under(FAULTS[name], bed, folder, name) as rows:
        during = await diarists.told()
    await diarists.awake()
    return {"during": during, "after": await diarists.told(), "row": rows.row}


async def play(hosts: local.LocalHosts, folder: Path) -> dict[str, Any]:
    async with hosts.start_nodes(NODES) as (nodes, plain):
        agents = await hosts.intercept_syscalls(nodes, plain, Diarists.data)
        diarists = Diarists(nodes, agents, hosts.folder)
        bed = await staged(hosts, diarists)
        return {name: await shown(name, bed, diarists, folder) for name in FAULTS}


if __name__ == "__main__":
    played(play)
