"""Faults of disks on real nodes, played in a process of its own: `python disk_scene.py FOLDER`.

Three nodes with a diary each, behind gates. Every fault is carried out by the nemesis on its own;
when it has been observed the diarists are asked, the run is stopped, and they are asked again. All
that was seen is printed as JSON; the tests say what must have been seen.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bed_scene import Rows
from diary import PORT

from clusters.hosts import local
from harness.contracts import Bed, Node, PlannedFault, Standing
from harness.trial import Trial
from nemesis import _plan, carry_out

DIARY = Path(__file__).with_name("diary.py")
PATIENCE_S = 20.0
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
    )
}


class Diarists:
    """The system under test, as far as the nemesis needs one, and what its nodes tell."""

    detection_s = 1.0
    data = "data"

    def __init__(self, nodes: Sequence[Node], agents: Mapping[str, Any], folder: Any) -> None:
        self.nodes, self.agents, self.folder = nodes, agents, folder

    def process(self, _node: str) -> str:
        return "diary"

    async def standing(self, _bed: Bed) -> Standing:
        return Standing(detail=await self.told())

    async def start_node(self, _bed: Any, node: str) -> None:
        address = next(n.address for n in self.nodes if n.name == node)
        folder = self.folder(node)
        argv = [sys.executable, "-I", "-S", str(DIARY), address, f"{folder}/{self.data}"]
        await self.agents[node].start("diary", argv, log=f"{folder}/log")

    async def told(self) -> dict[str, Any]:
        """What every node tells of its disk; None when it does not answer."""
        answers = await asyncio.gather(*(self._told(node.name) for node in self.nodes))
        return {node.name: told for node, told in zip(self.nodes, answers, strict=True)}

    async def _told(self, node: str) -> Any:
        try:
            return json.loads(await self.agents[node].ask(PORT, b"ask", 5.0))
        except ConnectionError:
            return None

    async def awake(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if all((await self.told()).values()) or time.monotonic() > deadline:
                return
            await asyncio.sleep(0.05)


async def shown(name: str, bed: Bed, diarists: Diarists, folder: Path) -> dict[str, Any]:
    """One fault from beginning to end, and what the diarists say of it."""
    plan = _plan.load(_plan.dump((FAULTS[name],))).faults
    rows, stop = Rows(), asyncio.Event()
    bed = Bed(**{**vars(bed), "record": rows})
    dice = Random(f"{name}")
    work = asyncio.ensure_future(carry_out(plan, bed, folder / "ledger", stop, dice, bed.now_ns()))
    watch = asyncio.ensure_future(rows.observed.wait())
    await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
    seen: dict[str, Any] = {"during": await diarists.told()}
    stop.set()
    await work
    await diarists.awake()
    return {**seen, "after": await diarists.told(), "row": rows.row}


async def play(hosts: local.LocalHosts, folder: Path) -> dict[str, Any]:
    async with hosts.raised(NODES) as (nodes, plain):
        agents = await hosts.gated(nodes, plain)
        diarists = Diarists(nodes, agents, hosts.folder)
        began_ns = time.monotonic_ns()
        bed = Bed(
            nodes=nodes,
            agents=agents,
            hosts=hosts,
            system=diarists,  # type: ignore[arg-type]
            record=Rows(),  # type: ignore[arg-type]
            now_ns=lambda: time.monotonic_ns() - began_ns,
            acknowledged=lambda: 0,
            sleep=asyncio.sleep,
        )
        await asyncio.gather(*(diarists.start_node(bed, node.name) for node in nodes))
        await diarists.awake()
        return {name: await shown(name, bed, diarists, folder) for name in FAULTS}


def main(folder: Path) -> None:
    hosts = local.hosts(Trial(), folder)
    hosts.enter()
    print(json.dumps(asyncio.run(play(hosts, folder))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
