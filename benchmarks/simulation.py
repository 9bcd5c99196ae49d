"""What a simulated world costs: `python benchmarks/simulation.py [SEEDS]`.

Counted faults a minute and core over a campaign's seeds with three controllers and three brokers;
simulated seconds in a CPU second at 100 sends a second, without faults and with what a campaign
draws; memory of a world, from the growth of a fresh process; and the share of time by layer, from a
profile of one seed, in which every call costs extra, so shares are rough. All in this process, one
core; CPU time, so a busy machine disturbs little.
"""

import cProfile
import pstats
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import harness
from harness.campaign.run import SeedRunner
from harness.campaign.simulation import simulate
from harness.campaign.swarm import draw_trial
from harness.campaign.tally import CampaignTotals
from harness.trial import Trial

ROOT = Path(harness.__file__).parents[1]
SEEDS = 20
DURATION_S = 30.0
NODES = {"nameserver": 1, "controller": 3, "broker": 3, "client": 2}
BASE = Trial(profile="sync-flush", nodes=NODES, duration_s=DURATION_S)
STEADY = Trial(
    name="steady",
    profile="sync-flush",
    hosts="simulated",
    nodes=NODES,
    duration_s=60.0,
    load={"rate": 100.0},
)
LAYERS = {  # the first that a file's path begins with
    "clusters/hosts": "the world: clock, network, disks",
    "clusters/flotilla/client": "Flotilla's clients",
    "clusters/flotilla/raft": "Flotilla's controllers: Raft",
    "clusters/flotilla": "Flotilla",
    "clusters/systems": "the driver of Flotilla",
    "nemesis": "nemesis",
    "checkers": "checkers",
    "harness/history/journal.py": "history",
    "harness/history/reader.py": "history",
    "harness": "harness: crew, workload, recorder",
}
OTHER = "Python: asyncio, JSON, Arrow ..."


def campaign(seeds: int, scratch: Path) -> None:
    """Drawing, carrying out and judging, as a worker does."""
    work = SeedRunner(BASE)
    work(1_000_000, scratch)  # what is imported and cached once
    began_s = time.process_time()
    rows = [work(seed, scratch)[0] for seed in range(1, seeds + 1)]
    cpu_s = time.process_time() - began_s
    tally = CampaignTotals.of(rows)
    print(f"{seeds} seeds of {DURATION_S:g} s of load, {NODES}")
    print(f"  {tally.faults:,} of {sum(tally.planned.values()):,} faults counted")
    print(f"  {60 * tally.faults / cpu_s:,.0f} counted faults a minute and core")
    print(f"  {tally.seconds / cpu_s:.1f} simulated s in a CPU second")
    print(f"  for each 1,000 of them: {tally.per_thousand()}")
    print(f"  failures: {dict(tally.failures) or 'none'}")


def steady(scratch: Path) -> None:
    before_bytes = peak_bytes()
    began_s = time.process_time()
    outcome = simulate(STEADY, "", scratch / "steady")
    cpu_s = time.process_time() - began_s
    print(f"100 sends a second, no faults: {outcome.acknowledged:,} acknowledged")
    print(f"  {outcome.seconds / outcome.cpu_s:.1f} simulated s in a CPU second of the world")
    print(f"  {outcome.seconds / cpu_s:.1f} with judging it and all else")
    print(f"  {(peak_bytes() - before_bytes) / 1e6:.0f} MB more than before, in this process")


def layers(scratch: Path) -> None:
    """Share of time by layer, of the first seed with some faults."""
    trial, plan = draw_trial(2, BASE)
    profile = cProfile.Profile()
    profile.runcall(simulate, trial, plan, scratch / "profiled")
    shares = by_layer(pstats.Stats(profile))
    total_s = sum(shares.values())
    print("share of time by layer, profiled:")
    for layer, seconds in sorted(shares.items(), key=lambda pair: -pair[1]):
        print(f"  {100 * seconds / total_s:5.1f} %  {layer}")


def by_layer(stats: pstats.Stats) -> Mapping[str, float]:
    shares: dict[str, float] = defaultdict(float)
    rows: Mapping[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own_s, _, _) in rows.items():
        shares[layer_of(file)] += own_s
    return shares


def layer_of(file: str) -> str:
    path = Path(file)
    if not path.is_relative_to(ROOT):
        return OTHER
    inner = path.relative_to(ROOT).as_posix()
    return next((layer for start, layer in LAYERS.items() if inner.startswith(start)), OTHER)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        small = Trial(**{**vars(STEADY), "name": "small", "duration_s": 1.0})
        simulate(small, "", scratch / "small")  # imports
        steady(scratch)
        campaign(seeds, scratch)
        layers(scratch)


if __name__ == "__main__":
    main()
