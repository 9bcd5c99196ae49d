"""Power cuts of nodes that write through mapped memory: `python mapped_scene.py FOLDER`.

One node for each way in which the fault can take unsynced data. What the nodes hold before and
after is printed as JSON; the tests say what that must be. `mapped_scene.py FOLDER wait` prints a
line when the first node's disk is in use, and waits.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from fault_stage import Writers, loops, played, staged, under
from mapper import PORT

from clusters.hosts.local import hosts as local
from harness.contracts import Node, PlannedFault

MAPPER = Path(__file__).with_name("mapper.py")
NODES = tuple(Node(f"broker-{n}", "broker") for n in (1, 2))


class Mappers(Writers):
    """A process on each node that maps its files."""

    name, port, answer_within_s = "mapper", PORT, 5.0

    async def start_node(self, _bed: Any, node: str) -> None:
        await self.agents[node].run(["mkdir", "-p", f"{self.folder(node)}/{self.data}"])
        await self.start_program(node, str(MAPPER))


async def play(hosts: local.LocalHosts, folder: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    async with hosts.start_nodes(NODES) as (nodes, plain):
        on_disk, traced = nodes
        async with hosts.own_disks([on_disk], plain, Mappers.data) as agents:
            agents = await hosts.intercept_syscalls([traced], agents, Mappers.data)
            mappers = Mappers(nodes, agents, hosts.folder)
            bed = await staged(hosts, mappers)
            before = await mappers.told()
            for node, by in ((on_disk, "disk"), (traced, "calls")):
                params = {"keeps": "nothing", "by": by}
                fault = PlannedFault("unsynced", 0.0, 60.0, node.name, params)
                async with under(fault, bed, folder, by) as rows:
                    pass
                await mappers.awake()
                after = (await mappers.told())[node.name]
                seen[by] = {"before": before[node.name], "after": after, "row": rows.row}
    data = folder / "nodes" / on_disk.name
    seen["left"] = sorted(each.name for each in data.iterdir())
    seen["files"] = sorted(each.name for each in (data / Mappers.data).iterdir())
    seen["loops"] = loops(folder)
    return seen


async def wait(hosts: local.LocalHosts, _folder: Path) -> dict[str, Any]:
    async with (
        hosts.start_nodes(NODES[:1]) as (nodes, plain),
        hosts.own_disks(nodes, plain, Mappers.data) as agents,
    ):
        await staged(hosts, Mappers(nodes, agents, hosts.folder))
        print("in use", flush=True)
        await asyncio.Event().wait()
    return {}


if __name__ == "__main__":
    played(wait if sys.argv[2:] else play, own_disks=True)
