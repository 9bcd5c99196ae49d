"""What it takes to catch each known-bad Flotilla: `python benchmarks/mutants.py [NAME ...]`.

For each mutant a campaign, `seatrial simulate messages --drawn --mutant NAME` with seeds from 1,
goes on until a seed shows it from outside (lost messages, dead nodes ...), or until enough faults
have counted. Most are convicted earlier, by a law of the cluster that is watched inside. The first
seed that failed is shrunk, `seatrial shrink --within 2m`. Then there is the plan that was written
against the mutant, suites/mutants/NAME.toml, in as many worlds as it takes. At last the sound build
plays the seeds of all these campaigns, and none of them may fail.

A Markdown table on standard output, progress on standard error; one worker at a time. `--quick`:
three mutants that are easy to catch, and less patience.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from checkers.invariants import MEANING
from clusters.flotilla_mutants import MUTANTS
from harness import registry
from harness.campaign.run import Campaign, CampaignState, conduct
from harness.campaign.tally import CampaignTotals, SeedResult
from harness.cli.commands.simulate import DURATION_S
from harness.cli.options import request
from harness.contracts import PlannedFault
from harness.history.rundir import RunDir
from harness.plans import without_defaults
from harness.selftest.mutants import PLANS
from harness.shrink.simulated import SearchLimits, ShrinkState, failing_case, search

QUICK = ("no-fsync", "double-vote", "no-truncation")
SEEDS = range(1, 10_001)
WORLDS = range(1, 51)  # of a directed plan
HEADS = (
    "mutant",
    "caught after",
    "by",
    "seen from outside after",
    "by",
    "shrunk to",
    "which are",
    "its directed plan",
)
FEW = 3  # faults that a cell has room for


@dataclass(frozen=True)
class Effort:
    """What is spent on a mutant at most: counted faults to catch it, and seconds to shrink it."""

    faults: int = 6_000
    shrink_s: float = 120.0


@dataclass(frozen=True)
class Caught:
    """A seed that failed, and the faults that had counted until then, its own included."""

    faults: int
    row: SeedResult

    def __str__(self) -> str:
        return f"{self.faults:,} faults, seed {self.row.seed}"


# ---------------------------------------------------------------------------------- the campaigns


def base(mutant: str = "", **more: Any) -> Any:
    """What a campaign is asked for, as the command asks."""
    settings = {"settings": {"mutant": mutant}} if mutant else {}
    return request("", {"hosts": "simulated", "name": "campaign", **settings, **more})


def random_search(
    mutant: str, enough: Callable[[CampaignState], bool], runs: Path
) -> CampaignState:
    asked = base(mutant, duration_s=DURATION_S)
    return searched_until(enough, Campaign(asked.trial, SEEDS, 1, to_the_end=True), runs)


def directed(mutant: str, runs: Path) -> CampaignState:
    """The story that was written against it, in worlds enough to show what it was made for."""

    def enough(state: CampaignState) -> bool:
        return bool(first(state, partial(made_for, mutant)))

    asked = base(mutant, plan=str(PLANS / f"{mutant}.toml"))
    worlds = Campaign(asked.trial, WORLDS, 1, asked.plan_text, to_the_end=True)
    return searched_until(enough, worlds, runs)


def searched_until(
    enough: Callable[[CampaignState], bool], campaign: Campaign, runs: Path
) -> CampaignState:
    def watch(state: CampaignState) -> None:
        state.interrupted = state.interrupted or enough(state)

    return conduct(campaign, runs, watch)


def first(state: CampaignState, kind: Callable[[Sequence[str]], Iterable[str]]) -> Caught | None:
    """The first seed with findings of a kind; one worker carries them out in their order."""
    for place, row in enumerate(state.rows, 1):
        if any(kind(row.failure)):
            return Caught(CampaignTotals.of(state.rows[:place]).faults, row)
    return None


def everything(codes: Sequence[str]) -> Sequence[str]:
    return codes


def from_outside(codes: Sequence[str]) -> list[str]:
    return [code for code in codes if code not in MEANING]


def made_for(mutant: str, codes: Sequence[str]) -> list[str]:
    return [code for code in codes if code == MUTANTS[mutant].finding]


def laws(codes: Sequence[str]) -> list[str]:
    return [code for code in codes if code in MEANING]


# ------------------------------------------------------------------------------------- the table


def line(mutant: str, effort: Effort, runs: Path) -> tuple[Sequence[str], CampaignState]:
    """A row of the table, and the campaign that it comes from."""

    def enough(state: CampaignState) -> bool:
        return state.tally.faults >= effort.faults or bool(first(state, from_outside))

    state = random_search(mutant, enough, runs)
    found, seen = first(state, everything), first(state, from_outside)
    never = f"not within {state.tally.faults:,} faults"
    words = (
        mutant,
        str(found or never),
        by(found, laws),
        str(seen or never),
        by(seen, from_outside),
    )
    story = directed(mutant, runs)
    left = shrunk(state.runs[found.row.seed], effort) if found else ("", "")
    return (*words, *left, in_words(mutant, story)), state


def by(caught: Caught | None, wanted: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """Codes of findings; of all of them if there is none of those that are wanted."""
    codes = caught.row.failure if caught else ()
    return ", ".join(wanted(codes) or codes)


def in_words(mutant: str, state: CampaignState) -> str:
    """What became of its directed plan."""
    finding = MUTANTS[mutant].finding
    if not (caught := first(state, partial(made_for, mutant))):
        return f"no {finding} in {len(state.rows)} worlds"
    faults = sum(caught.row.planned.values())
    return f"{faults} fault{'s' if faults > 1 else ''}: {finding} in world {caught.row.seed}"


def shrunk(run: Path, effort: Effort) -> Sequence[str]:
    """How many faults are left of a run, after how many tries, and which."""
    progress = search(failing_case(RunDir.open(run)), SearchLimits(effort.shrink_s, jobs=1), still)
    tries, before = progress.tries, len(progress.start.plan)
    cut = "" if progress.whole else ", time over"
    spent = f"{tries.count} tries in {progress.took_s:.0f} s{cut}"
    left = f"{len(tries.best.plan)} of {before} faults ({tries.failure}), {spent}"
    return (left, in_a_line(tries.best.plan))


def still(_: ShrinkState) -> None:
    """Nobody watches."""


def in_a_line(plan: Sequence[PlannedFault]) -> str:
    if len(plan) > FEW:
        kinds = Counter(fault.kind for fault in plan)
        return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    defaults = {
        fault.kind: {k: p.default for k, p in registry.fault(fault.kind).params.items()}
        for fault in plan
    }
    return (
        "; ".join(_sentence(fault) for fault in without_defaults(plan, defaults))
        or "no fault at all"
    )


def _sentence(fault: PlannedFault) -> str:
    params = " ".join(f"{key}={value}" for key, value in fault.params.items())
    conditions = [f"{word} {said}" for word in ("after", "until") if (said := getattr(fault, word))]
    times = f"at {fault.at_s:g} s for {fault.for_s:g} s"
    return " ".join(filter(None, (fault.kind, fault.target, params, times, *conditions)))


def put(cells: Sequence[str]) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def main() -> int:
    quick = "--quick" in sys.argv
    effort = Effort(1_000, 30.0) if quick else Effort()
    chosen = [word for word in sys.argv[1:] if word != "--quick"]
    names = chosen or (QUICK if quick else tuple(MUTANTS))
    longest = 0
    put(HEADS)
    put(["---"] * len(HEADS))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(name, file=sys.stderr, flush=True)
            cells, state = line(name, effort, Path(folder))
            longest = max(longest, len(state.rows))
            put(cells)
        print("the sound build", file=sys.stderr, flush=True)
        sound = random_search("", lambda state: len(state.rows) >= longest, Path(folder))
    failures = dict(sound.tally.failures) or "none failed"
    print(f"\nThe sound build, seeds 1..{longest}, {sound.tally.faults:,} faults: {failures}.")
    print(f"Edition {sound.edition}.")
    return 1 if sound.caught or sound.lost else 0


if __name__ == "__main__":
    sys.exit(main())
