"""Sends beside one slow slave: `python benchmarks/slow_slave.py [--seconds 6] [--quick]`.

500 sends a second at timeScale 1, with one slave of three brokers made slow: all that it sends
arrives 50 ms late; it stands still for 100 ms of every 250 (a collector of garbage, a hung disk);
one packet in five of what it sends is lost. It is a member of the SyncStateSet, and of a
semi-synchronous one the designated slave. Told are the medians and 99th percentiles of all sends
that were begun meanwhile, by who must have a message before it is acknowledged. All three are the
nemesis's, and observed.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from _cluster import Cluster, Load, Silent, alone, raised
from _figures import above_zero, quantile, table

from harness.contracts import PlannedFault
from harness.trial import Trial
from nemesis import carry_out

PER_S, TOPICS = 500.0, 4
LATE_S, STILL_S, EVERY_S, LOST = 0.05, 0.1, 0.25, 0.2
CALM_S = 1.0  # after a fault, before the next
WRITES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "all three": ("allack-min2", {}),
    "master and designated slave": ("semi-sync", {}),
    "the same, exchanged after 30 ms": ("semi-sync", {"haMaxTimeSemiSyncLag": 30}),
    "any two of three": ("quorum2of3", {}),
    "master alone (asynchronous)": ("unsafe-default", {}),
}
OUT = {"from": "", "direction": "out", "clients": False}
LOSS = {"probability": LOST, **OUT}
DELAY = {"delay_s": LATE_S, "jitter_s": 0.0, "reorder": 0.0, **OUT, "clients": True}


def stutter(slave: str, seconds: float) -> tuple[PlannedFault, ...]:
    """Pauses in a row."""
    moments = (number * EVERY_S for number in range(int(seconds / EVERY_S)))
    return tuple(PlannedFault("pause", at_s, STILL_S, slave) for at_s in moments)


def losing(slave: str, seconds: float) -> tuple[PlannedFault, ...]:
    return (PlannedFault("loss", 0.0, seconds, slave, LOSS),)


def late(slave: str, seconds: float) -> tuple[PlannedFault, ...]:
    return (PlannedFault("delay", 0.0, seconds, slave, DELAY),)


async def designated(cluster: Cluster) -> str:
    """A slave that sends wait for, if they wait for any."""
    standing = await cluster.whole()
    masters = standing.masters.values()
    return next(name for name in standing.in_set if name not in masters)


async def broken(
    plan: Callable[[str, float], tuple[PlannedFault, ...]],
    cluster: Cluster,
    seconds: float,
    folder: Path,
) -> None:
    """The nemesis carries out a plan. SystemExit when it was not seen to."""
    faults, record = plan(await designated(cluster), seconds), Silent()
    recorder: Any = record
    bed, ledger = cluster.with_record(recorder), folder / "ledger.jsonl"
    await carry_out(faults, bed, ledger, asyncio.Event(), Random(1), time.monotonic_ns())
    states = [row["state"] for row in record.faults.values()]
    if set(states) != {"installed"}:
        sys.exit(f"{faults[0].kind}: {states.count('installed')} of {len(states)} installed")


async def calm(cluster: Cluster, seconds: float, _folder: Path) -> None:
    await cluster.whole()
    await asyncio.sleep(seconds)


PHASES: Mapping[str, Callable[[Cluster, float, Path], Any]] = {
    "nothing": calm,
    "50 ms late": partial(broken, late),
    "stands still": partial(broken, stutter),
    "loses 20 %": partial(broken, losing),
}


@asynccontextmanager
async def loaded(
    folder: Path, profile: str, more: Mapping[str, Any]
) -> AsyncIterator[tuple[Cluster, Load]]:
    trial = Trial(name="slow-slave", profile=profile, settings={"timeScale": 1.0, **more})
    names = [f"topic-{number}" for number in range(TOPICS)]
    async with (
        raised(folder, trial, dict.fromkeys(names, 1)) as cluster,
        Load(cluster.client, names, PER_S) as load,
    ):
        yield cluster, load


async def measure(who: str, folder: Path, seconds: float) -> tuple[str, ...]:
    """The table's line for one kind of write."""
    told: list[list[float]] = []
    async with loaded(folder, *WRITES[who]) as (cluster, load):
        for name, phase in PHASES.items():
            print(f"{who}: {name}", file=sys.stderr)
            await calm(cluster, CALM_S, folder)
            before = len(load.sent)
            began_s = time.monotonic()
            await phase(cluster, seconds, folder)
            await asyncio.sleep(CALM_S)  # what was begun has ended, or is told as failed at the end
            mine = [s for s in load.sent[before:] if began_s <= s.begun_s < began_s + seconds]
            told.append([sent.ms for sent in mine])
    failed = sum(not sent.ok for sent in load.sent)
    cells = [f"{quantile(ms, 0.5):.1f} / {quantile(ms, 0.99):.1f}" for ms in told]
    return who, *cells, f"{failed} of {len(load.sent):,}"


async def story(seconds: float, folder: Path) -> int:
    lines = [await measure(who, folder / str(number), seconds) for number, who in enumerate(WRITES)]
    print("p50 / p99 of sends in ms, while one slave ...")
    print(table(("acknowledged once it is on", *PHASES, "failed sends"), lines))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=above_zero, default=6.0, help="of each phase")
    parser.add_argument("--quick", action="store_true", help="short phases: to see that it works")
    asked = parser.parse_args()
    return alone(partial(story, 1.0 if asked.quick else asked.seconds))


if __name__ == "__main__":
    sys.exit(main())
