"""A rolling upgrade under load loses nothing: `upgrade.py [REVISION]`, by default HEAD's parent.

A cluster of 2 nameservers, 3 controllers and 3 brokers is started from the `clusters/` of that
revision and loaded by this one's clients. Then one node at a time is stopped in order and started
from this one's code on the same folder: brokers (slaves, then the master after a planned handover),
controllers (followers, then the leader), nameservers; `--order` names another order of the roles.
Where one side of the handover is of a revision without it, the successor is elected at once.

In the end every acknowledged message must have been read where the acknowledgement said and in
order, all replicas must hold the same, no group may have gone back, and at a planned handover no
send may have failed. Ends with 1 at a deviation.
"""

import argparse
import asyncio
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab_paths  # noqa: F401 - the labs below are found by it

# isort: split

from upgrade_fleet import ROOT, Deviation, Fleet
from upgrade_traffic import GROUP, Traffic, differing, lost_or_moved

from clusters.flotilla.admin.output import columns

ROLES = ("broker", "controller", "nameserver")
HANDOVER, ELECTION = "handed over", "elected at once"


@dataclass(frozen=True)
class Outcome:
    """A row for each step, and what went wrong."""

    rows: list[dict[str, Any]]
    deviations: list[str]


async def upgraded(folder: Path, old: Path, new: Path, roles: tuple[str, ...] = ROLES) -> Outcome:
    """The whole story."""
    rows: list[dict[str, Any]] = []
    async with Fleet(folder).raised(old) as fleet:
        traffic = Traffic(fleet.addresses("nameserver"))
        try:
            traffic.start()
            await traffic.flows()
            rows.append(_row(traffic, "before", "", 0.0))
            async for node, what, took_s in _steps(fleet, traffic, new, roles):
                rows.append(_row(traffic, node, what, took_s))
            traffic.step = "after"
            await traffic.stop()
            rows.append(_row(traffic, "after", "", 0.0))
            offsets = await traffic.offsets()
            await fleet.abreast()
        finally:
            await traffic.close()
        for role in ("controller", "broker", "nameserver"):  # so that nobody is elected meanwhile
            for node in fleet.of_role(role):
                await node.stop()
        stores = {node.name: node.store for node in fleet.of_role("broker")}
        deviations = [*lost_or_moved(traffic), *differing(traffic, stores)]
        deviations += _went_back(offsets, traffic.committed)
        deviations += _failed_at_handover(rows)
        return Outcome(rows, deviations)


async def _steps(
    fleet: Fleet, traffic: Traffic, new: Path, roles: tuple[str, ...]
) -> AsyncIterator[tuple[str, str, float]]:
    """Carries the upgrade out; a node, what was done with it, and how long that took."""

    def begin(step: str) -> float:
        traffic.step = step
        return time.monotonic()

    for role in roles:
        last = await _leader(fleet, role)
        for node in [*(n.name for n in fleet.of_role(role) if n.name != last), last]:
            if role == "broker" and node == last:
                to = next(n.name for n in fleet.of_role(role) if n.name != last)
                began = begin(f"{to} for {last}")
                what = await _hand_over(fleet, traffic, new, to)
                yield traffic.step, what, time.monotonic() - began
            began = begin(node)
            await fleet.replace(node, new)
            yield node, "replaced", time.monotonic() - began


async def _leader(fleet: Fleet, role: str) -> str:
    """The node of a role that goes last."""
    if role == "broker":
        return await fleet.master()
    if role == "controller":
        return await fleet.controller_leader()
    return fleet.of_role(role)[-1].name


def _knows_handovers(code: Path) -> bool:
    wires = (code / "clusters" / "flotilla").rglob("wire.py")
    return any("DRILL = " in wire.read_text() for wire in wires)


async def _hand_over(fleet: Fleet, traffic: Traffic, new: Path, to: str) -> str:
    """Hand over as planned if all nodes know that, else elect."""
    nodes = [*fleet.of_role("controller"), fleet.nodes[await fleet.master()]]
    if all(_knows_handovers(node.code) for node in nodes):
        await fleet.hand_over(new, to)
        return HANDOVER
    for queue, offset in enumerate(list(traffic.committed.values())):
        await fleet.keeps_offset(to, GROUP, queue, offset)
    await fleet.elect(new, to)
    return ELECTION


def _row(traffic: Traffic, step: str, what: str, took_s: float) -> dict[str, Any]:
    return {"step": step, "what": what, "seconds": round(took_s, 1), **traffic.counts(step)}


def _went_back(offsets: list[int], committed: dict[int, int]) -> list[str]:
    return [
        f"queue {queue}: {GROUP} had come to {committed[queue]}, and is at {offset}"
        for queue, offset in enumerate(offsets)
        if offset < committed[queue]
    ]


def _failed_at_handover(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"{row['step']}: {row['failed']} sends failed and {row['unknown']} are of unknown outcome"
        for row in rows
        if row["what"] == HANDOVER and row["failed"] + row["unknown"]
    ]


def exported(revision: str, folder: Path) -> Path:
    """The code of a revision."""
    packed = subprocess.run(
        ["git", "archive", revision, "clusters"], cwd=ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", nargs="?", default="HEAD^")
    parser.add_argument("--order", default=",".join(ROLES), help="of the roles")
    asked = parser.parse_args()
    roles = tuple(asked.order.split(","))
    kept = Path(tempfile.mkdtemp(prefix="seatrial-upgrade-"))
    old = exported(asked.revision, kept / "old")
    try:
        outcome = asyncio.run(upgraded(kept / "fleet", old, ROOT, roles))
    except Deviation as e:
        outcome = Outcome([], [str(e)])
    if outcome.rows:
        print(columns(outcome.rows))
    for deviation in outcome.deviations[:20]:
        print(f"DEVIATION: {deviation}")
    if outcome.deviations:
        print(f"kept in {kept}")
        return 1
    shutil.rmtree(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
