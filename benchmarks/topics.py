"""Failover with many topics: `python benchmarks/topics.py [--kills 5] [--quick]`, timeScale 1.

A broker set is elected, not a topic, so that the number of topics must not matter. With 10, 1,000
and 20,000 of them, each of which holds a message, the master is killed again and again under 300
sends a second to topics at random. Measured are the time from the kill to the first send that was
invoked after it and acknowledged, the time from the killed broker's new start to full redundancy,
and what one more topic costs to make while the cluster runs. The last line has the figures as JSON.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from _cluster import Cluster, Load, alone, poured, raised
from _figures import table

from harness.trial import Trial

COUNTS, QUICK = (10, 1_000, 20_000), (10, 100)
FLAT = 2.0  # the most that the slowest may be of the quickest
PER_S, MADE = 300.0, 20
TRIAL = Trial(name="topics", profile="allack-min2", settings={"timeScale": 1.0})


@dataclass(frozen=True)
class TopicFailovers:
    """Medians, in seconds; `served_most`: the longest."""

    topics: int
    raised: float
    served: float
    served_most: float
    whole: float
    made: float
    failed: int


async def failover(cluster: Cluster, load: Load) -> tuple[float, float]:
    """Seconds until sends are served, and from the new start until all is whole again."""
    master = await cluster.master()
    await cluster.kill(master)
    killed_s = time.monotonic()
    served_s = await load.served(killed_s)
    await load.served(served_s + 1.0)  # under load for a while before it comes back
    await cluster.start(master)
    started_s = time.monotonic()
    await cluster.whole()
    return served_s - killed_s, time.monotonic() - started_s


async def making(cluster: Cluster, count: int) -> float:
    """Seconds for one topic more, the median of some."""
    took = []
    for number in range(count):
        began_s = time.monotonic()
        await cluster.client.topics.create(f"one-more-{number}", 1)
        took.append(time.monotonic() - began_s)
    return median(took)


async def measure(folder: Path, count: int, kills: int) -> TopicFailovers:
    names = [f"topic-{number:05}" for number in range(count)]
    began_s = time.monotonic()
    async with raised(folder, TRIAL, dict.fromkeys(names, 1)) as cluster:
        raised_s = time.monotonic() - began_s
        failed = await poured(cluster.client, names, count)
        async with Load(cluster.client, names, PER_S) as load:
            times = []
            for number in range(kills):
                times.append(await failover(cluster, load))
                print(f"{count:,} topics, kill {number + 1} of {kills}", file=sys.stderr)
        made_s = await making(cluster, MADE)
        served, whole = zip(*times, strict=True)
        failed += sum(not sent.ok for sent in load.sent)
        middle = median(served), max(served), median(whole)
        return TopicFailovers(count, raised_s, *middle, made_s, failed)


def tell(rows: list[TopicFailovers]) -> None:
    headings = ("topics", "killed to acknowledged, s", "most", "start to full redundancy, s")
    print(
        table(
            (*headings, "failed sends", "one more topic, ms", "cluster raised in, s"),
            [
                (
                    f"{row.topics:,}",
                    f"{row.served:.3f}",
                    f"{row.served_most:.3f}",
                    f"{row.whole:.2f}",
                    f"{row.failed}",
                    f"{row.made * 1000:.1f}",
                    f"{row.raised:.1f}",
                )
                for row in rows
            ],
        )
    )
    steps = pairwise(rows)
    all_s = sum((b.made + a.made) / 2 * (b.topics - a.topics) for a, b in steps)
    print(f"making {rows[-1].topics:,} topics by one order each: about {all_s:,.0f} s")


def figures(rows: list[TopicFailovers]) -> dict[str, float]:
    """The record of suites/claims.toml: median seconds by the number of topics. The least of a
    few kills may be a tenth of the others."""
    kept: dict[str, float] = {}
    for row in rows:
        kept |= {
            f"served_s_{row.topics}": round(row.served, 4),
            f"whole_s_{row.topics}": round(row.whole, 4),
        }
    return kept


async def story(counts: tuple[int, ...], kills: int, folder: Path) -> int:
    rows = [await measure(folder / str(count), count, kills) for count in counts]
    tell(rows)
    served = [row.served for row in rows]
    ratio = max(served) / min(served)
    print(f"slowest failover is {ratio:.2f} times the quickest; {FLAT:g} are allowed")
    print(json.dumps(figures(rows)))
    return 0 if ratio <= FLAT else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=5, help="for each number of topics")
    parser.add_argument("--quick", action="store_true", help="few topics: to see that it works")
    asked = parser.parse_args()
    counts, kills = (QUICK, 2) if asked.quick else (COUNTS, asked.kills)
    return alone(partial(story, counts, kills))


if __name__ == "__main__":
    sys.exit(main())
