"""Guided search beside uniform drawing: `python benchmarks/guided.py [MUTANT ...]`.

For each mutant, runs of both: `seatrial simulate --mutant NAME` with and without `--guided`, one
worker each, until a seed fails with the finding that convicts it, or until a cap of CPU time. The
two searches of a run have the same first seed, and run at the same time, so that a busy machine
slows both. Without names: all mutants that uniform drawing needs more than `--least` CPU seconds
for.

    --runs N      runs of each                  --cap S    CPU seconds of a search, at most
    --least S     of uniform drawing's first run; others are left out
    --workload    let guided search draw the workloads, as it does by default; uniform drawing, and
                  guided search without it, gets the workload of the mutant's own plan
    --duration S  of the load of uniform drawing; guided search draws it
    --features S  no mutants: the features that each finds in the sound code in S CPU seconds

A Markdown table on standard output, a line for each search on standard error. CPU time is that of
the worker and of making the candidate, judging included.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

from clusters.flotilla_mutants import MUTANTS
from harness import registry
from harness.campaign.features import unpacked
from harness.campaign.guided import GuidedSearch, SearchCandidate
from harness.campaign.pool import run_in_pool
from harness.campaign.run import DURATION, WORKLOAD, Campaign, SeedRunner
from harness.campaign.swarm import draw_trial, recover_within_s
from harness.campaign.tally import SeedResult
from harness.cli.commands.simulate import DURATION_S
from harness.cli.options import request
from harness.selftest.mutants import PLANS
from harness.trial import Trial

GUIDED, UNIFORM = "guided", "uniform"
BETWEEN = 100_000  # seeds of two runs


@dataclass(frozen=True)
class Cost:
    """What a search cost. `caught`: it ended with the mutant's finding, before its cap."""

    cpu_s: float
    worlds: int
    caught: bool
    features: int = 0

    def __str__(self) -> str:
        what = "caught" if self.caught else "not caught"
        return f"{what} in {self.worlds} worlds, {self.cpu_s:.0f} s, {self.features:,} features"


@dataclass(frozen=True)
class Terms:
    """Of all searches. `free`: guided ones draw the workloads, too."""

    cap_s: float
    free: bool
    duration_s: float


def base(mutant: str, workload: str, duration_s: float) -> Trial:
    """The trial of a campaign, as the command makes it."""
    settings = {"settings": {"mutant": mutant}} if mutant else {}
    fields = {"hosts": "simulated", "name": "campaign", "duration_s": duration_s, **settings}
    trial = request(workload, fields).trial
    return replace(trial, recover_within_s=recover_within_s(trial))


def own_workload(mutant: str) -> str:
    """The workload of the plan that was written against the mutant."""
    return request("", {"plan": str(PLANS / f"{mutant}.toml")}).trial.workload


def rows_of(campaign: Campaign, first: int) -> Iterator[SeedResult]:
    """Carry out a campaign in one worker, with features."""
    search = GuidedSearch(campaign.bases, first) if campaign.guided else None

    def items() -> Iterator[SearchCandidate | None]:
        for number in campaign.seeds:
            if search is None:
                yield drawn(number, campaign.base)
                continue
            while (candidate := search.candidate()) is None:
                yield None
            yield candidate

    with closing(run_in_pool(SeedRunner(campaign.base), items(), 1)) as steps:
        for done in steps:
            if done is None:
                continue
            row = done.result and replace(done.result[0], cpu_s=done.cpu_s + done.item.made_s)
            if search:
                search.add(done.item.number, row)
            if row:
                yield row


def drawn(number: int, base: Trial) -> SearchCandidate:
    """A seed as any campaign draws it, run as a candidate so that its features are counted."""
    began_s = time.thread_time()
    trial, plan = draw_trial(number, base)
    return SearchCandidate(number, trial, plan, time.thread_time() - began_s)


def search(mutant: str, mode: str, run: int, workload: str, terms: Terms) -> Cost:
    """Search until the mutant is convicted, or to the cap."""
    first = 1 + run * BETWEEN
    asked = base(mutant, workload, terms.duration_s)
    seeds = range(first, first + BETWEEN)
    campaign = Campaign(asked, seeds, 1)
    if mode == GUIDED:
        drawn_too = frozenset({WORKLOAD, DURATION} if terms.free else {DURATION})
        campaign = replace(campaign, guided=True, free=drawn_too)
    cpu_s, seen, worlds = 0.0, set[int](), 0
    wanted = MUTANTS[mutant].finding if mutant else None
    with closing(rows_of(campaign, first)) as rows:
        for row in rows:
            cpu_s, worlds = cpu_s + row.cpu_s, worlds + 1
            seen |= unpacked(row.features)
            if wanted in row.failure:
                return Cost(cpu_s, worlds, True, len(seen))
            if cpu_s >= terms.cap_s:
                break
    return Cost(terms.cap_s, worlds, False, len(seen))


def side_by_side(mutant: str, run: int, terms: Terms) -> dict[str, Cost]:
    """Both searches at once."""
    workload = own_workload(mutant) if mutant else ""
    with ThreadPoolExecutor(2) as pool:
        begun = {
            mode: pool.submit(search, mutant, mode, run, workload, terms)
            for mode in (UNIFORM, GUIDED)
        }
        costs = {mode: future.result() for mode, future in begun.items()}
    for mode, cost in costs.items():
        print(f"{mutant or 'sound code'}, run {run + 1}, {mode}: {cost}", file=sys.stderr)
    return costs


def table(mutants: Sequence[str], runs: int, least_s: float, terms: Terms) -> None:
    print("| mutant | uniform, median CPU s | guided, median CPU s | ratio | caught |")
    print("| --- | --- | --- | --- | --- |")
    ratios = []
    for mutant in mutants:
        costs = [side_by_side(mutant, 0, terms)]
        if costs[0][UNIFORM].cpu_s < least_s:
            continue
        costs += [side_by_side(mutant, run, terms) for run in range(1, runs)]
        medians = {m: statistics.median(c[m].cpu_s for c in costs) for m in (UNIFORM, GUIDED)}
        caught = (f"{sum(c[m].caught for c in costs)}" for m in (UNIFORM, GUIDED))
        ratios.append(medians[UNIFORM] / medians[GUIDED])
        print(
            f"| {mutant} | {medians[UNIFORM]:.0f} | {medians[GUIDED]:.0f} | {ratios[-1]:.2f} "
            f"| {' and '.join(caught)} of {runs} |",
            flush=True,
        )
    if ratios:
        print(f"| median of {len(ratios)} | | | {statistics.median(ratios):.2f} | |")


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mutants", nargs="*", default=list(registry.system("flotilla").mutants()))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--cap", type=float, default=1200.0)
    parser.add_argument("--least", type=float, default=60.0)
    parser.add_argument("--workload", action="store_true")
    parser.add_argument("--duration", type=float, default=DURATION_S)
    parser.add_argument("--features", type=float, default=0.0)
    given = parser.parse_args()
    terms = Terms(given.features or given.cap, given.workload, given.duration)
    if given.features:
        for run in range(given.runs):
            side_by_side("", run, terms)
    else:
        table(given.mutants, given.runs, given.least, terms)


if __name__ == "__main__":
    main()
