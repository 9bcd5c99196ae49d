"""Faults of disks on real nodes, played in a process of its own: `python disk_scene.py FOLDER`.

Three nodes with a diary each, behind gates. Every fault is carried out by the nemesis on its own;
when it has been observed the diarists are asked, the run is stopped, and they are asked again. All
that was seen is printed as JSON; the tests say what must have been seen.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diary import PORT
from fault_stage import Witnesses, played, staged, under

from clusters.hosts.local import hosts as local
from harness.contracts import ClusterState, Node, PlannedFault, TestBed
from harness.contracts.agent import Agent

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


class Diarists(Witnesses):
    """A process on each node that writes to its disk on request."""

    name, port, answer_within_s = "diary", PORT, 5.0
    data = "data"

    def __init__(
        self, nodes: Sequence[Node], agents: Mapping[str, Agent], folder: Callable[[str], str]
    ) -> None:
        super().__init__(nodes, agents)
        self.folder = folder

    async def cluster_state(self, _bed: TestBed) -> ClusterState:
        return ClusterState(detail=await self.told())

    async def start_node(self, _bed: Any, node: str) -> None:
        address = next(n.address for n in self.nodes if n.name == node)
        folder = self.folder(node)
        argv = [sys.executable, "-I", "-S", str(DIARY), address, f"{folder}/{self.data}"]
        await self.agents[node].start(self.name, argv, log=f"{folder}/log")


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
