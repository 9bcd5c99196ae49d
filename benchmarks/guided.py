"""Guided search beside uniform drawing: `python benchmarks/guided.py [MUTANT ...]`.

For each mutant, runs of both: `seatrial simulate --mutant NAME`, `--guided` and `--drawn`, one
worker each, until a seed fails with the finding that convicts it, or until a cap of CPU time. Two
searches run at a time. Without names: all mutants that the first run of uniform drawing needs more
than `--least` CPU seconds for.

    --runs N      runs of each                  --cap S    CPU seconds of a search, at most
    --least S     see above
    --workload    let guided search draw the workloads, as it does by default; uniform drawing, and
                  guided search without it, get the workload of the mutant's own plan
    --duration S  of the load of uniform drawing; guided search draws it
    --tenth N     only the mutants whose number ends like N: ten nights try all
    --features S  no mutants: the features that each finds in the sound code in S CPU seconds
    --results F   file of finished searches, which are not repeated: goes on where it was stopped

A Markdown table on standard output, a line for each search on standard error. CPU time is that of
the worker and of making the candidate, judging included.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from clusters.flotilla_mutants import MUTANTS
from harness import registry
from harness.campaign.features import unpacked
from harness.campaign.guided import GuidedSearch, SearchCandidate
from harness.campaign.pool import run_in_pool
from harness.campaign.run import DURATION, RECOVERY, WORKLOAD, Campaign, SeedRunner
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


@dataclass(frozen=True)
class Job:
    """A search. Those of a run have the same first seed. `mutant`: none if empty."""

    mutant: str
    mode: str
    run: int

    def __str__(self) -> str:
        return f"{self.mutant or 'sound code'}, run {self.run + 1}, {self.mode}"


class Results:
    """The costs of finished searches, in a file of JSON lines if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._costs = path, dict[str, Cost]()
        if path:
            path.touch()
            for line in path.read_text().splitlines():
                with suppress(ValueError, TypeError):  # a line that was cut short
                    key, cost = json.loads(line)
                    self._costs[key] = Cost(**cost)

    def get(self, job: Job, terms: Terms) -> Cost | None:
        return self._costs.get(f"{job} {terms}")

    def add(self, job: Job, terms: Terms, cost: Cost) -> None:
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps([f"{job} {terms}", asdict(cost)]) + "\n")


def base(mutant: str, workload: str, duration_s: float) -> Trial:
    """The trial of a campaign, as the command makes it."""
    settings = {"settings": {"mutant": mutant}} if mutant else {}
    fields = {"hosts": "simulated", "name": "campaign", "duration_s": duration_s, **settings}
    trial = request(workload, fields).trial
    return replace(trial, recover_within_s=recover_within_s(trial))


def own_workload(mutant: str) -> str:
    """The workload of the plan that was written against the mutant."""
    return request("", {"plan": str(PLANS / f"{mutant}.toml")}).trial.workload


def rows_of(campaign: Campaign, first: int) -> Generator[SeedResult, None, None]:
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


def search(job: Job, workload: str, terms: Terms) -> Cost:
    """Search until the mutant is convicted, or to the cap."""
    first = 1 + job.run * BETWEEN
    asked = base(job.mutant, workload, terms.duration_s)
    seeds = range(first, first + BETWEEN)
    campaign = Campaign(asked, seeds, 1)
    if job.mode == GUIDED:
        drawn_too = frozenset({WORKLOAD, DURATION, RECOVERY} if terms.free else {DURATION})
        campaign = replace(campaign, guided=True, free=drawn_too)
    cpu_s, seen, worlds = 0.0, set[int](), 0
    wanted = MUTANTS[job.mutant].finding if job.mutant else None
    with closing(rows_of(campaign, first)) as rows:
        for row in rows:
            cpu_s, worlds = cpu_s + row.cpu_s, worlds + 1
            seen |= unpacked(row.features)
            if wanted in row.failure:
                return Cost(cpu_s, worlds, True, len(seen))
            if cpu_s >= terms.cap_s:
                break
    return Cost(terms.cap_s, worlds, False, len(seen))


def carried_out(jobs: Sequence[Job], terms: Terms, stored: Results) -> dict[Job, Cost]:
    """Carry out searches, two at a time, each in a process of its own; those that are stored are
    not repeated."""

    def one(job: Job) -> Cost:
        cost = stored.get(job, terms)
        if cost is None:
            cost = search(job, own_workload(job.mutant) if job.mutant else "", terms)
            stored.add(job, terms, cost)
        print(f"{job}: {cost}", file=sys.stderr, flush=True)
        return cost

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(jobs, pool.map(one, jobs), strict=True))


def table(mutants: Sequence[str], runs: int, least_s: float, terms: Terms, stored: Results) -> None:
    """Print the medians of the mutants that the first run of uniform drawing needs long for."""
    costs = carried_out([Job(mutant, UNIFORM, 0) for mutant in mutants], terms, stored)
    slow = [job.mutant for job, cost in costs.items() if cost.cpu_s >= least_s]
    modes = (UNIFORM, GUIDED)
    jobs = [Job(m, mode, run) for run in range(runs) for m in slow for mode in modes]
    costs |= carried_out([job for job in jobs if job not in costs], terms, stored)
    print("| mutant | uniform, median CPU s | guided, median CPU s | ratio | caught |")
    print("| --- | --- | --- | --- | --- |")
    ratios = []
    for mutant in slow:
        of = {mode: [costs[Job(mutant, mode, run)] for run in range(runs)] for mode in modes}
        medians = {mode: statistics.median(c.cpu_s for c in of[mode]) for mode in modes}
        caught = " and ".join(str(sum(c.caught for c in of[mode])) for mode in modes)
        ratios.append(medians[UNIFORM] / medians[GUIDED])
        print(
            f"| {mutant} | {medians[UNIFORM]:.0f} | {medians[GUIDED]:.0f} | {ratios[-1]:.2f} "
            f"| {caught} of {runs} |"
        )
    if ratios:
        print(f"| median of {len(ratios)} | | | {statistics.median(ratios):.2f} | |")


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mutants", nargs="*")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--cap", type=float, default=1200.0)
    parser.add_argument("--least", type=float, default=60.0)
    parser.add_argument("--workload", action="store_true")
    parser.add_argument("--duration", type=float, default=DURATION_S)
    parser.add_argument("--tenth", type=int)
    parser.add_argument("--features", type=float, default=0.0)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    known = list(registry.system("flotilla").mutants())
    if unknown := set(given.mutants).difference(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the mutants are {', '.join(known)}")
    if given.runs < 1:
        parser.error("--runs must be at least 1")
    terms = Terms(given.features or given.cap, given.workload, given.duration)
    try:
        stored = Results(given.results)
    except OSError as e:
        parser.error(f"--results: {given.results} cannot be written: {e.strerror or e}")
    if given.features:
        jobs = [Job("", mode, run) for run in range(given.runs) for mode in (UNIFORM, GUIDED)]
        carried_out(jobs, terms, stored)
    else:
        least_s = 0.0 if given.mutants else given.least
        some = known if given.tenth is None else known[given.tenth % 10 :: 10]
        table(given.mutants or some, given.runs, least_s, terms, stored)


if __name__ == "__main__":
    main()
