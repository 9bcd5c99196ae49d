"""How fast a partition of 7 nodes is in place and seen: `python benchmarks/partition.py [times]`.

Seven real nodes on local hosts; a partition into halves is applied, observed and healed again and
again. Told are the medians from a fault's beginning to its rules being in place on all nodes, from
there to the end of its observation, and from the healing's beginning to its being seen.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from clusters.hosts.local import hosts as local
from harness.contracts import ClusterState, Node, PlannedFault, TestBed
from harness.trial import Trial
from nemesis import carry_out

WANTED_MS = 60.0
NODES = (
    *(Node(f"controller-{n}", "controller") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker") for n in (1, 2, 3)),
    Node("client-1", "client"),
)
FAULT = PlannedFault("partition", 0.0, 0.01, "", {"shape": "halves", "clients": True})


class Rows:
    """A recorder that keeps each fault's last row."""

    def __init__(self) -> None:
        self.last: dict[int, Mapping[str, Any]] = {}

    def fault(self, row: Mapping[str, Any]) -> None:
        self.last[row["id"]] = row

    def note(self, text: str) -> None:
        print(text)

    alarm = note


class Still:
    """A system in which nobody plays a part."""

    async def cluster_state(self, _bed: TestBed) -> ClusterState:
        return ClusterState()


async def measure(hosts: local.LocalHosts, folder: Path, times: int) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    async with hosts.start_nodes(NODES) as (nodes, agents):
        for number in range(times):
            record: Any = Rows()
            system: Any = Still()
            bed = TestBed(
                nodes=nodes,
                agents=agents,
                hosts=hosts,
                system=system,
                record=record,
                now_ns=time.monotonic_ns,
                acknowledged=lambda: 0,
                sleep=asyncio.sleep,
            )
            ledger = folder / f"ledger-{number}.jsonl"
            began_ns = time.monotonic_ns()
            await carry_out((FAULT,), bed, ledger, asyncio.Event(), Random(number), began_ns)
            rows.append(record.last[0])
    return rows


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        hosts = local.hosts(Trial(), Path(folder))
        hosts.enter()
        rows = asyncio.run(measure(hosts, Path(folder), times))
    assert all(row["state"] == "installed" and row["healed"] for row in rows)
    for name, start, end in (
        ("begin to applied", "begin", "applied"),
        ("begin to observed", "begin", "observed"),
        ("heal to seen healed", "heal", "healed"),
    ):
        ms = sorted((row[end] - row[start]) / 1e6 for row in rows)
        print(f"{name:20} median of {times}: {median(ms):6.1f} ms   worst {ms[-1]:6.1f} ms")
    applied_ms = median((row["applied"] - row["begin"]) / 1e6 for row in rows)
    return 0 if applied_ms <= WANTED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
