"""Faults on real nodes, played in a process of its own: `python bed_scene.py FOLDER`.

Seven nodes with a beacon each. Every fault is carried out by the nemesis on its own; when it has
been observed the beacons are asked what they hear, the run is stopped, and they are asked again.
All that was seen is printed as JSON; the tests say what must have been seen.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fault_stage import LOOK_EVERY_S, PATIENCE_S, Witnesses, played, staged, under

from clusters.hosts.local import hosts as local
from harness.contracts import ClusterState, Node, PlannedFault, TestBed
from harness.contracts.agent import Agent

BEACON = Path(__file__).with_name("beacon.py")
PORT = 7000
LONG = ("loss", "light loss", "flapping", "late")  # listened to for longer
NODES = (
    *(Node(f"controller-{n}", "controller") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker") for n in (1, 2, 3)),
    Node("client-1", "client"),
)
FAULTS: Mapping[str, PlannedFault] = {
    name: PlannedFault(kind, 0.0, 60.0, target, params)
    for name, kind, target, params in (
        ("isolate", "partition", "master", {"shape": "isolate"}),
        ("isolate from slaves", "partition", "master", {"shape": "isolate", "from": "slave"}),
        ("isolate with clients", "partition", "master", {"shape": "isolate", "clients": True}),
        ("one-way out", "partition", "broker-2", {"shape": "one-way", "direction": "out"}),
        ("one-way in", "partition", "broker-2", {"shape": "one-way", "direction": "in"}),
        ("roles", "partition", "", {"shape": "between", "a": "broker", "b": "controller"}),
        ("halves", "partition", "", {"shape": "halves"}),
        ("ring", "partition", "", {"shape": "ring"}),
        ("bridge", "partition", "all broker", {"shape": "bridge"}),
        ("loss", "loss", "broker-3", {"probability": 0.8, "clients": True}),
        ("light loss", "loss", "all controller", {"probability": 0.2, "direction": "both"}),
        ("late", "delay", "broker-2", {"delay_s": 0.3, "clients": True}),
        ("overtaken", "delay", "broker-2", {"delay_s": 0.1, "reorder": 0.3, "direction": "out"}),
        ("narrow", "bandwidth", "broker-3", {"bytes_per_s": 10_000.0, "from": "controller"}),
        ("narrow door", "bandwidth", "broker-3", {"bytes_per_s": 30_000.0, "per": "node"}),
        ("flapping", "partition", "broker-1", {"on_s": 0.05, "off_s": 0.05}),
        ("answers", "partition", "broker-1", {"shape": "answers"}),
        ("one link", "partition", "", {"shape": "link", "a": "broker-1", "b": "broker-2"}),
        ("clients", "partition", "", {"shape": "clients"}),
        ("pause", "pause", "majority broker", {}),
        ("kill", "kill", "controller-leader", {}),
        ("restart", "restart", "broker-2", {}),
        ("rolling restart", "restart", "all broker", {"order": "rolling"}),
        ("clock", "clock", "broker-2", {"skew_s": -1000.0, "rate": 2.0}),
        ("starved of cpu", "starve-cpu", "broker-3", {}),
        ("starved of files", "starve-descriptors", "broker-2", {"room": 4.0}),
        ("starved of memory", "starve-memory", "broker-2", {"room_mb": 8.0}),
    )
}


class Beacons(Witnesses):
    """A beacon on each node, which shouts at all the others and counts what it hears."""

    name, port, answer_within_s = "beacon", PORT, 3.0

    def __init__(self, nodes: Sequence[Node], agents: Mapping[str, Agent], folder: Path) -> None:
        super().__init__(nodes, agents)
        self.folder = folder
        self.node_at = {node.address: node.name for node in nodes}

    async def cluster_state(self, _bed: TestBed) -> ClusterState:
        return ClusterState(
            masters={"set-1": "broker-1"},
            slaves=("broker-2", "broker-3"),
            controller_leader="controller-2",
            redundant=all((await self.told()).values()),
        )

    async def start_node(self, _bed: Any, node: str) -> None:
        own = next(n.address for n in self.nodes if n.name == node)
        peers = [n.address for n in self.nodes if n.name != node]
        argv = [sys.executable, "-I", "-S", str(BEACON), own, *peers]
        await self.agents[node].start(self.name, argv, log=str(self.folder / f"{node}.log"))

    async def themselves(self) -> dict[str, Any]:
        """By how much each node's clock is ahead of ours, and what it may still take."""
        told = await self.told()
        now_s = time.time()
        return {
            node: {"ahead_s": own["wall"] - now_s, "files": own["files"], "memory": own["memory"]}
            for node, own in told.items()
            if own
        }

    async def pids(self) -> dict[str, int]:
        return {name: (await agent.state(self.name)).pid for name, agent in self.agents.items()}

    async def hearing(self, rounds: int) -> dict[str, Any]:
        """Return the share that arrived on each link while running nodes sent so many rounds."""
        before = await self.told()
        awake = [name for name, told in before.items() if told]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            after = await self.told()
            done = all(
                after[name] and after[name]["rounds"] >= before[name]["rounds"] + rounds
                for name in awake
            )
            if done or time.monotonic() > deadline:
                return self._shares(before, after)
            await asyncio.sleep(LOOK_EVERY_S)

    def _shares(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
        sent = {
            name: after[name]["rounds"] - told["rounds"]
            for name, told in before.items()
            if told and after[name]
        }
        links = {}
        for sink in sent:
            for address, count in after[sink]["heard"].items():
                source = self.node_at[address]
                arrived = count - before[sink]["heard"].get(address, 0)
                links[f"{source}>{sink}"] = [arrived, sent.get(source, 0)]
        late = {
            f"{self.node_at[address]}>{sink}": late_s
            for sink in sent
            for address, late_s in after[sink]["late"].items()
        }
        return {"silent": sorted(before.keys() - sent.keys()), "links": links, "late": late}


async def shown(name: str, bed: TestBed, beacons: Beacons, folder: Path) -> dict[str, Any]:
    """One fault from beginning to end, and what the beacons say of it."""
    pids = await beacons.pids()
    async with under(FAULTS[name], bed, folder, name) as rows:
        seen: dict[str, Any] = {"during": await beacons.hearing(100 if name in LONG else 25)}
        seen["themselves"] = await beacons.themselves()
    await beacons.awake()
    seen["themselves after"] = await beacons.themselves()
    seen["after"] = await beacons.hearing(25)
    seen["row"] = rows.row
    seen["new_pids"] = [n for n, pid in (await beacons.pids()).items() if pid != pids[n]]
    return seen


async def play(hosts: local.LocalHosts, folder: Path) -> dict[str, Any]:
    async with hosts.start_nodes(NODES) as (nodes, agents):
        beacons = Beacons(nodes, agents, folder)
        bed = await staged(hosts, beacons)
        seen = {"before": await beacons.hearing(25)}
        return seen | {name: await shown(name, bed, beacons, folder) for name in FAULTS}


if __name__ == "__main__":
    played(play)
