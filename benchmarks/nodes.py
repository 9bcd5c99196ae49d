"""What a node costs: `python benchmarks/nodes.py [--starts 3] [--quick]`, timeScale 1.

Three clusters one after the other: idle, with 20,000 topics, and after a million messages of 100
bytes. Of each, the memory of every kind of node as the kernel counts it (RSS, and PSS, in which a
page that several processes share counts for each only in part); then nodes are killed and started
again, one at a time, and told is how long it takes until a node answers, and until it serves: a
nameserver knows the master, a controller follows a leader, a slave is in the SyncStateSet.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _cluster import Cluster, alone, poured, raised, until
from _figures import table

from clusters.systems.flotilla.modes import BROKER, CONTROLLER, NAMESERVER
from harness.contracts import ClusterState
from harness.trial import Trial

TOPICS, MESSAGES, QUEUES = 20_000, 1_000_000, 4
QUICK_TOPICS, QUICK_MESSAGES = 100, 5_000
TRIAL = Trial(name="nodes", profile="allack-min2", settings={"timeScale": 1.0})
KINDS = ("nameserver", "leading controller", "other controller", "master", "slave")
RESTARTED = ("nameserver", "other controller", "slave")


def of_kind(cluster: Cluster, standing: ClusterState) -> Mapping[str, str]:
    """A node of each kind."""
    (master,) = standing.masters.values()
    leader = standing.controller_leader
    controllers = [node.name for node in cluster.bed.of_role(CONTROLLER)]
    slaves = [node.name for node in cluster.bed.of_role(BROKER) if node.name != master]
    names = (
        cluster.bed.of_role(NAMESERVER)[0].name,
        leader,
        next(name for name in controllers if name != leader),
        master,
        slaves[0],
    )
    return dict(zip(KINDS, names, strict=True))


async def memory_mb(cluster: Cluster, node: str) -> tuple[float, float]:
    """RSS and PSS of the node's process."""
    rollup = Path(f"/proc/{await cluster.pid(node)}/smaps_rollup").read_text()
    kb = {words[0]: int(words[1]) for line in rollup.splitlines()[1:] if (words := line.split())}
    return kb["Rss:"] / 1000, kb["Pss:"] / 1000


async def restarted(cluster: Cluster, kind: str, node: str) -> tuple[float, float]:
    """Seconds from the order to start until it answers, and until it serves."""
    said: list[Mapping[str, Any]] = []

    async def answers() -> bool:
        now = await cluster.described(node)
        said[:] = [now] if now else []
        return bool(said)

    async def serves() -> bool:
        return await answers() and await _serves(cluster, kind, said[0])

    await cluster.kill(node)
    began_s = time.monotonic()
    await cluster.start(node)
    await until(answers, f"{node} answers")
    answered_s = time.monotonic()
    await until(serves, f"{node} serves")
    served_s = time.monotonic()
    await cluster.whole()
    return answered_s - began_s, served_s - began_s


async def _serves(cluster: Cluster, kind: str, said: Mapping[str, Any]) -> bool:
    if kind == "nameserver":
        return any("0" in broker["addrs"] for broker in said["brokers"].values())
    if kind == "slave":
        return (await cluster.cluster_state()).redundant
    return bool(said["leaderId"])


async def measure(
    stage: str, folder: Path, topics: Mapping[str, int], messages: int, starts: int
) -> list[tuple[str, ...]]:
    """The table's lines for one cluster."""
    print(f"{stage} ...", file=sys.stderr)
    async with raised(folder, TRIAL, topics) as cluster:
        if messages:
            failed = await poured(cluster.client, list(topics), messages)
            print(f"{messages:,} messages, {failed} of which failed", file=sys.stderr)
        nodes = of_kind(cluster, await cluster.whole())
        memory = {kind: await memory_mb(cluster, node) for kind, node in nodes.items()}
        took = dict.fromkeys(KINDS, ("", ""))
        for kind in RESTARTED:
            times = [await restarted(cluster, kind, nodes[kind]) for _ in range(starts)]
            answers, serves = zip(*times, strict=True)
            took[kind] = f"{median(answers):.2f}", f"{median(serves):.2f}"
    return [
        (stage, kind, *(f"{megabytes:.1f}" for megabytes in memory[kind]), *took[kind])
        for kind in KINDS
    ]


async def story(topics: int, messages: int, starts: int, folder: Path) -> int:
    few = {f"topic-{number}": 1 for number in range(QUEUES)}
    many = {f"topic-{number:05}": 1 for number in range(topics)}
    lines: list[tuple[str, ...]] = []
    for stage, made, sent in (
        ("idle", few, 0),
        (f"{topics:,} topics", many, 0),
        (f"{messages:,} messages", few, messages),
    ):
        lines += await measure(stage, folder / str(len(lines)), made, sent, starts)
    print(table(("cluster", "node", "RSS MB", "PSS MB", "answers, s", "serves, s"), lines))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=3, help="of each kind of node")
    parser.add_argument("--quick", action="store_true", help="little: to see that it works")
    asked = parser.parse_args()
    size = (QUICK_TOPICS, QUICK_MESSAGES, 1) if asked.quick else (TOPICS, MESSAGES, asked.starts)
    return alone(partial(story, *size))


if __name__ == "__main__":
    sys.exit(main())
