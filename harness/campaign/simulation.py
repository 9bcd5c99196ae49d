"""Carries out and judges one seed in this process, in a simulated world.

It does the same as `seatrial run --hosts simulated`, without a runner, a live view and Spark: the
same story, the same folder, the same checkers (their kernels run here). So its folder is a run like
any other, which can be checked, reported and replayed.

A world that stops (an endless loop, or access to something real) is a failure of its own class: it
is always a bug, of Flotilla or of the simulation. So is a standstill: on other hosts a missing
final read makes a run *unknown*, since a machine may have been too slow; in a simulated world the
cluster or its clients hang, and the seed failed. Any other seed whose verdict is *unknown* is no
evidence, unless only single faults are doubtful: where many overlap, some affect no node or no
operation. Those faults do not count; the rest of the run is judged.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.campaign.swarm import HOSTS
from harness.errors import BedFailed, SeatrialError
from harness.history.faults_and_events import ClusterEvent, FaultInterval, events, in_force
from harness.history.messages import BEFORE_NS, REQUEST, RecordingWindow
from harness.history.reader import History
from harness.history.roles import election_count, set_change_count
from harness.history.rundir import RunDir
from harness.history.runs import write_run
from harness.judge.claims import unclaimed_faults
from harness.judge.judge import judge_small
from harness.judge.verdict import Verdict
from harness.run.parent_pipe import no_parent
from harness.run.runner import run_in_hosts
from harness.run.story import run as story
from harness.trial import Trial

LAWS = "invariants"
MAX_STEPS = 4  # of what happened before a violation
STOPPED = "STOPPED"  # the failure class of a world that did not come to its end
MAX_RECORDED = 200_000  # events of a world that is carried out again; most have below 100,000
NO_END = "the simulated world stopped: nothing was left to happen, and the run had not ended"


@dataclass(frozen=True)
class SeedOutcome:
    """The result of one seed.

    failure   codes of findings that violate the contract, else of a standstill, or STOPPED
    unproven  codes of the reasons why the seed proves nothing
    seconds   of simulated time; cpu_s: of CPU time
    faults    by kind, those that count: the effect was observed, and an operation was in flight or
              acknowledged during it; `planned`: the number of all
    events    of the cluster by kind: election, truncate, set ... Each election of a master and each
              change of a SyncStateSet counts once, however many nodes reported it
    looks     by invariant of the cluster: how often it was checked
    unseen    lines of event logs that no invariant could check
    choices   made by the world at the system's choice points, by point; none if it made none
    steps     what happened in the world: callbacks of its loops
    in_force  the story of a failure: kinds of the faults in force at the violation, and
    before    what happened in the cluster in the seconds before it, the last few kinds of events
    """

    seed: int
    run: RunDir
    history: History
    digest: str
    verdict: Verdict | None
    failure: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    why: str = ""  # the failure, in a sentence
    seconds: float = 0.0
    cpu_s: float = 0.0
    planned: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    operations: int = 0
    looks: Mapping[str, int] = field(default_factory=dict)
    unseen: int = 0
    choices: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    in_force: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


def simulate(trial: Trial, plan: str, folder: Path) -> SeedOutcome:
    """Carry out the trial with this plan (TOML) in a new `folder`, and judge it.

    The caller removes the folder. The plan must be valid, as those of
    `harness.campaign.swarm.draw_trial` and `harness.run.launch.planned` are.
    """
    gc.collect()
    gc.freeze()  # collections during this seed need not visit modules, nor what earlier seeds left
    folder.mkdir(parents=True)
    run = write_run(trial, plan, folder)
    carry_out(run)
    return judge_simulated(run)


def carry_out(run: RunDir) -> None:
    """Carry out the trial of a run in this process, without a parent."""
    with run.log.open("a") as log, redirect_stderr(log):
        run_in_hosts(run, story, no_parent)


def record_messages(
    run: RunDir, carry_out: Callable[[RunDir], None] = carry_out, scratch: Path | None = None
) -> None:
    """Carry out a failed run a second time, with a recording of the messages around its first
    violation, and keep that in the run's folder. The run itself stays as it is; without a
    recording, its log says why: a world with more than `MAX_RECORDED` events would cost too much.
    `scratch`: the folder for the second run."""
    digest = str(run.state().get("digest", ""))
    window = RecordingWindow.around(_violation_ns(run), digest)
    try:
        if (events := run.state().get("simulated", {}).get("events", 0)) > MAX_RECORDED:
            raise BedFailed(f"its world had {events:,} events, more than {MAX_RECORDED:,}")
        with TemporaryDirectory(prefix="seatrial-again-", dir=scratch) as folder:
            again = write_run(run.trial(), run.plan_text(), Path(folder))
            again.update_state(**{REQUEST: asdict(window)})
            carry_out(again)
            if again.state().get("digest", "") != digest:
                raise BedFailed("it had not the same events when it was carried out again")
            copyfile(again.messages_file, run.messages_file)
    except (SeatrialError, OSError) as e:
        with run.log.open("a") as log:
            print(f"the messages around the violation were not recorded: {e}", file=log)


def _violation_ns(run: RunDir) -> int:
    """Return the earliest moment of a convicting finding; without one, the end of the load, or of
    a world that stopped."""
    verdict = Verdict.read(run.verdict_file) if run.verdict_file.is_file() else None
    findings = verdict.convicting_findings if verdict else ()
    moments = [f.first_moment_s for f in findings if f.first_moment_s is not None]
    if moments:
        return round(min(moments) * 1e9)
    times = History.open(run).read("events")["t"]
    return int(run.state().get("load_ended_ns") or pc.max(times).as_py() or 0)


def judge_simulated(run: RunDir) -> SeedOutcome:
    """Judge a simulated run, and return its result."""
    state, history = run.state(), History.open(run)
    figures = state.get("simulated", {})
    outcome = SeedOutcome(
        seed=run.trial().seed,
        run=run,
        history=history,
        digest=str(state.get("digest", "")),
        verdict=None,
        seconds=figures.get("seconds", 0.0),
        cpu_s=figures.get("cpu_s", 0.0),
        choices=figures.get("choices", {}),
        steps=figures.get("events", 0),
        planned=len(pc.unique(history.read("faults")["id"])),
        events=count_events(history.read("events")),
    )
    if error := state.get("error") or ("" if history.ended or history.cut_short else NO_END):
        stopped = replace(outcome, failure=(STOPPED, *_broken(history)), why=str(error))
        return _with_story(stopped, history)
    verdict = judge_small(history)
    counts = counts_of(verdict)
    failure = verdict.convicting or standstill_codes(history, verdict)
    judged = replace(
        outcome,
        verdict=verdict,
        failure=failure,
        unproven=unproven_codes(verdict),
        why=verdict.sentence if verdict.convicting else _standstill(verdict, failure),
        faults=counts["counted"],
        acknowledged=counts["acknowledged"],
        operations=counts["operations"],
        looks=verdict.stats(LAWS).get("looks", {}),
        unseen=verdict.stats(LAWS).get("unseen", 0),
    )
    return _with_story(judged, history) if failure else judged


def _with_story(outcome: SeedOutcome, history: History) -> SeedOutcome:
    """Return the result with the story of its failure: seeds that failed alike have the same."""
    moment = _violation_ns(outcome.run)
    on = {fault.kind for fault in history.faults if _in_force_at(fault, moment)}
    if not on and outcome.verdict and (first := outcome.verdict.first_finding):
        # what was acknowledged before any fault was lost by a later one
        on = {fault.kind for fault in history.faults if fault.id in first.faults}
    since = max(moment - BEFORE_NS, outcome.run.load_began())
    steps = [step for step in event_steps(history.events) if since <= step[0] <= moment]
    kinds = [kind for kind, _ in groupby(kind for _, kind in steps)]
    return replace(outcome, in_force=tuple(sorted(on)), before=tuple(kinds[-MAX_STEPS:]))


def _in_force_at(fault: FaultInterval, moment: int) -> bool:
    window = in_force(fault, moment)
    return window is not None and window.begin <= moment <= window.end


def event_steps(events: Iterable[ClusterEvent]) -> Iterator[tuple[int, str]]:
    """Yield times and abstract kinds of what happened in the cluster, without nodes and numbers:
    each election and each change of a set once, however many nodes reported it."""
    epochs: set[tuple[Any, Any]] = set()
    members: dict[Any, int] = {}
    for event in events:
        fields = event.fields
        match event.kind:
            case "election":
                which = fields.get("brokerName"), fields.get("epoch")
                if which not in epochs:
                    epochs.add(which)
                    yield event.t, "election"
            case "set" if isinstance(fields.get("set"), list) and "brokerName" in fields:
                name, size = fields["brokerName"], len(fields["set"])
                before = members.get(name, size)
                members[name] = size
                if size != before:
                    yield event.t, "set grows" if size > before else "set shrinks"
            case "raft" if fields.get("state") == "leader" and "brokerName" not in fields:
                yield event.t, "controller leader"
            case "truncate":
                yield event.t, "log cut"
            case "fatal" | "halted":
                yield event.t, "node stops"


def standstill_codes(history: History, verdict: Verdict) -> tuple[str, ...]:
    """Return the codes of reasons why a simulated run stood still after all faults were healed;
    none if the contract does not demand recovery, or the run was interrupted."""
    trial = history.run.trial()
    if trial.hosts != HOSTS or history.interrupted or not trial.demands("recovers"):
        return ()
    if any(one.may_break("recovers") for one in unclaimed_faults(history, trial)):
        return ()
    return tuple(
        sorted({reason.code for reason in verdict.reasons} & registry.reasons("standstill"))
    )


def _standstill(verdict: Verdict, codes: tuple[str, ...]) -> str:
    """Return the sentence of a standstill."""
    messages = (reason.message for reason in verdict.reasons if reason.code in codes)
    return next((f"all faults were healed, and it stood still: {text}" for text in messages), "")


def _broken(history: History) -> tuple[str, ...]:
    """Return the codes of invariants that were violated before the world stopped."""
    result = registry.load("checker", LAWS)(history, history.run.trial(), None)
    return tuple(finding.code for finding in result.findings)


def counts_of(verdict: Verdict) -> dict[str, Any]:
    """Return what a verdict counted: the faults that count, by kind (`counted`), invoked operations
    and acknowledged messages."""
    return {
        "counted": verdict.stats("coverage").get("effective", {}),
        "operations": _invoked(verdict),
        "acknowledged": verdict.acknowledged or 0,
    }


def _invoked(verdict: Verdict) -> int:
    """Return the number of invoked operations."""
    operations = verdict.stats("coverage").get("operations", {})
    return sum(counts.get("invoke", 0) for counts in operations.values())


def unproven_codes(verdict: Verdict) -> tuple[str, ...]:
    codes = {reason.code for reason in verdict.reasons}
    return tuple(sorted(codes - registry.reasons("unobserved") - registry.reasons("spacing")))


def count_events(rows: pa.Table) -> dict[str, int]:
    """Count events by kind; what several nodes reported counts once."""
    counts = {row["values"]: row["counts"] for row in pc.value_counts(rows["kind"]).to_pylist()}
    once = events(rows.filter(pc.is_in(rows["kind"], pa.array(["election", "set"]))))
    counts |= {"election": election_count(once), "set": set_change_count(once)}
    return {kind: count for kind, count in counts.items() if count}
