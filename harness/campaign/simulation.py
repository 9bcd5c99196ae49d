"""One seed in this process: a trial is carried out in a simulated world, and judged here.

What `seatrial run --hosts simulated` does with a runner, a live view and Spark, this does alone:
the same story, the same folder, the same checkers (their kernels run here). So a folder that it
leaves is a run like any other, which can be checked, reported and replayed.

A world that stops (it spins, or reached for something real) is a failure of its own class, for it
is always a bug, of Flotilla's or of ours. So is a standstill: elsewhere a final read that never
came makes a run *unknown*, for a machine may have been too slow; in a world no machine is, so the
cluster or its clients hang, and the seed failed. Any other seed whose verdict is *unknown* is no
evidence, unless what is doubtful are single faults alone: where many overlap, some hit nobody, or
nobody's operation. Those do not count; the rest was judged all the same.
"""

from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.campaign.swarm import HOSTS
from harness.history.faults_and_events import events
from harness.history.reader import History
from harness.history.roles import elections, set_changes
from harness.history.rundir import RunDir
from harness.history.runs import begun
from harness.judge.claims import unclaimed_faults
from harness.judge.judge import judge_here
from harness.judge.verdict import Verdict
from harness.run.parent_pipe import alone
from harness.run.runner import carry_out
from harness.run.story import run as story
from harness.trial import Trial

LAWS = "invariants"
STOPPED = "STOPPED"  # the failure class of a world that did not come to its end
NO_END = "the simulated world stopped: nothing was left to happen, and the run had not ended"


@dataclass(frozen=True)
class Outcome:
    """What became of one seed.

    failure   codes of the findings that the contract speaks against, else of what says that it
              stood still, or STOPPED; empty: none
    unproven  codes of the reasons for which the seed proves nothing; empty: none
    seconds   that passed in the world; cpu_s: that it took here
    faults    by kind, those that count: the effect was seen, and an operation was in flight or
              acknowledged meanwhile; `planned` are all
    events    of the cluster by kind: election, truncate, set ... Each election that made a master
              and each change of a SyncStateSet once, however many nodes told of it
    looks     by law of the cluster's inside: how often it was looked at, 0 where it never was
    unseen    lines of event logs that laws could make nothing of
    """

    seed: int
    run: RunDir
    digest: str
    verdict: Verdict | None
    failure: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    why: str = ""  # it failed, in a sentence
    seconds: float = 0.0
    cpu_s: float = 0.0
    planned: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    operations: int = 0
    looks: Mapping[str, int] = field(default_factory=dict)
    unseen: int = 0


def simulated(trial: Trial, plan: str, folder: Path) -> Outcome:
    """Carry out the trial with this plan (TOML) in `folder`, which is made, and judge it.

    The folder stays; whoever does not want it removes it. The plan is one that makes sense:
    `harness.campaign.swarm.drawn` and `harness.run.launch.planned` see to it.
    """
    folder.mkdir(parents=True)
    run = begun(trial, plan, folder)
    with run.log.open("a") as log, redirect_stderr(log):
        carry_out(run, story, alone)
    return outcome(run)


def outcome(run: RunDir) -> Outcome:
    """What a simulated run came to, from its folder; judged here."""
    state, history = run.state(), History.open(run)
    figures = state.get("simulated", {})
    known = Outcome(
        seed=run.trial().seed,
        run=run,
        digest=str(state.get("digest", "")),
        verdict=None,
        seconds=figures.get("seconds", 0.0),
        cpu_s=figures.get("cpu_s", 0.0),
        planned=len(pc.unique(history.read("faults")["id"])),
        events=happened(history.read("events")),
    )
    if error := state.get("error") or ("" if history.ended or history.cut_short else NO_END):
        return replace(known, failure=(STOPPED, *_broken(history)), why=str(error))
    verdict = judge_here(history)
    failure = verdict.convicting or stood_still(history, verdict)
    return replace(
        known,
        verdict=verdict,
        failure=failure,
        unproven=_unproven(verdict),
        why=verdict.sentence if verdict.convicting else _standstill(verdict, failure),
        faults=verdict.stats("coverage").get("effective", {}),
        acknowledged=verdict.stats("loss").get("acknowledged", 0),
        operations=_invoked(verdict),
        looks=verdict.stats(LAWS).get("looks", {}),
        unseen=verdict.stats(LAWS).get("unseen", 0),
    )


def stood_still(history: History, verdict: Verdict) -> tuple[str, ...]:
    """Codes of the reasons that say of a simulated run that it did not go on, though all was healed
    and nobody was in a hurry. None where the contract does not demand that it does."""
    trial = history.run.trial()
    if trial.hosts != HOSTS or history.interrupted or not trial.demands("recovers"):
        return ()
    if any(one.may_break("recovers") for one in unclaimed_faults(history, trial)):
        return ()
    return tuple(
        sorted({reason.code for reason in verdict.reasons} & registry.reasons("standstill"))
    )


def _standstill(verdict: Verdict, codes: tuple[str, ...]) -> str:
    """In words."""
    said = (reason.message for reason in verdict.reasons if reason.code in codes)
    return next((f"all was healed, and it did not go on: {words}" for words in said), "")


def _broken(history: History) -> tuple[str, ...]:
    """Laws of the inside that were broken until the world stopped."""
    result = registry.load("checker", LAWS)(history, history.run.trial(), None)
    return tuple(finding.code for finding in result.findings)


def _invoked(verdict: Verdict) -> int:
    """Operations, whose rows are several each."""
    told = verdict.stats("coverage").get("operations", {})
    return sum(counts.get("invoke", 0) for counts in told.values())


def _unproven(verdict: Verdict) -> tuple[str, ...]:
    codes = {reason.code for reason in verdict.reasons}
    return tuple(sorted(codes - registry.reasons("unobserved") - registry.reasons("spacing")))


def happened(told: pa.Table) -> dict[str, int]:
    """Events by kind; what several nodes tell of, once."""
    rows = pc.value_counts(told["kind"]).to_pylist()
    counts = {row["values"]: row["counts"] for row in rows}
    once = events(told.filter(pc.is_in(told["kind"], pa.array(["election", "set"]))))
    counts |= {"election": elections(once), "set": set_changes(once)}
    return {kind: count for kind, count in counts.items() if count}
