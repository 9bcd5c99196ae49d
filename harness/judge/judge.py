"""Judge a stored run: run every checker, apply the contract, write a verdict.

Checkers are found by name and isolated: one that crashes or exceeds its time is *unknown* with a
reason, and does not hide other results; but if a file of a run in storage cannot be fetched, there
is nothing to judge. What the run itself could not prove, because it was interrupted, its test bed
failed or a journal is damaged, is a reason too; only a certain finding outweighs it. Judging needs
nothing but the run's folder, and doing it twice gives the same bytes.

The verdict's sentence is composed here, for terminals, reports and pipelines: findings and reasons
bring their own text. A message with a damaged body outranks a missing one, so it comes first. What
a reader must know of a run whatever its verdict, such as that no fault was injected, is in the
sentence too.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from harness import registry
from harness.errors import BedFailed, FetchFailed
from harness.history.faults_and_events import FaultInterval
from harness.history.journal import skip_pandas
from harness.history.notes import DISK_FULL, NODE_GONE
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.history.source_names import with_originals
from harness.importers._recording import KINDS
from harness.judge.claims import UnclaimedFault, unclaimed_faults
from harness.judge.demands import DEMANDS, ISOLATION
from harness.judge.verdict import (
    Excuse,
    Finding,
    Judgement,
    Reason,
    Result,
    Verdict,
    by_importance,
    worst_judgement,
)
from harness.plans import planned_kinds
from harness.run.broker_sets import replica_groups
from harness.run.clocks import DOUBTFUL, clock_reasons, without_demands
from harness.spark.master import DEFAULT
from harness.spark.probe import (
    ExecutorWatch,
    cancel_jobs,
    check_executors,
    finishes_within,
    is_remote,
)
from harness.text.plurals import and_list, and_more
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from harness.spark.session import SparkLauncher

CHECKER_BUDGET_S = 600.0
NOT_CHECKED = "NOT_CHECKED"  # code of the reason that a demand was decided by no checker
EXCUSED = "EXCUSED"  # code of the reason that every row of a finding is excused
SPELLED_OUT = 3  # findings of which the sentence has the message; of others it has the code
NO_FAULT = "no fault was injected"
CUT_SHORT = frozenset(("BED_FAILED", "INTERRUPTED", NODE_GONE, DISK_FULL))

UNFETCHED = re.compile(rf"\b{FetchFailed.__module__}\.{FetchFailed.__name__}: (.+)")
WORKER_ENDED = "Python worker exited unexpectedly"  # in a Java traceback

Check = Callable[[History, Trial, Any], Result]


def judge(
    run: RunDir,
    spark: "SparkSession | None" = None,
    on_progress: Callable[[str], None] = lambda checker: None,
) -> Verdict:
    """Return the verdict on a run, written to its folder. Starts Spark if no session is given."""
    if spark is not None:
        return _run_checkers(_prepare(run), spark, on_progress)
    from harness.spark.session import launch

    with closing(launch(DEFAULT, run.history_bytes())) as engine:
        return judge_by(engine, run, on_progress)


def judge_by(
    engine: "SparkLauncher", run: RunDir, on_progress: Callable[[str], None] = lambda checker: None
) -> Verdict:
    """Return the verdict on a run, written to its folder. What does not need Spark is done while it
    starts."""
    return _run_checkers(_prepare(run), engine.session(), on_progress)


def judge_small(history: History) -> Verdict:
    """Return the verdict on a small run, by the same kernels, without Spark and without sealing
    it."""
    history.read_ahead()
    trial = history.run.trial()
    checks = [(name, registry.load("checker", name)) for name in checkers_of(trial)]
    results = [_run_guarded(check, name, history, trial, None) for name, check in checks]
    verdict = conclude(results, history, trial, unchecked_demands(results, history, trial))
    _write(history.run, verdict)
    return verdict


def judge_in_process(
    run: RunDir, on_progress: Callable[[str], None] = lambda checker: None
) -> Verdict:
    """Return the verdict on a sealed run by the same kernels without Spark, written to its
    folder."""
    skip_pandas()
    return _run_checkers(_prepare(run), None, on_progress)


def _prepare(run: RunDir) -> tuple[History, Trial, Sequence[str]]:
    """Return the sealed history, the trial, and the names of its checkers, imported."""
    seal(run)
    trial = run.trial()
    names = load_checkers(trial)
    history = History.open(run)
    history.read_ahead()
    own_checkers(history, trial)  # loads the system's modules
    return history, trial, names


def load_checkers(trial: Trial) -> Sequence[str]:
    """Import what judges the trial, which takes longer than judging a small run. Return the names
    of its checkers."""
    names = checkers_of(trial)
    for name in names:
        registry.module("checker", name)
    return names


def _run_checkers(
    prepared: tuple[History, Trial, Sequence[str]],
    spark: "SparkSession | None",
    on_progress: Callable[[str], None],
) -> Verdict:
    history, trial, names = prepared
    if spark is not None:
        check_executors(spark, history.run.probe_path, on_progress)
    results = [run_checker(name, history, trial, spark, on_progress=on_progress) for name in names]
    verdict = conclude(results, history, trial, unchecked_demands(results, history, trial))
    _write(history.run, verdict)
    return verdict


def checkers_of(trial: Trial) -> Sequence[str]:
    """Return the trial's checkers, else its workload's."""
    if trial.checkers:
        return trial.checkers
    checkers: Sequence[str] = registry.load("workload", trial.workload)(trial).checkers
    return checkers


def run_checker(
    name: str,
    history: History,
    trial: Trial,
    spark: "SparkSession | None",
    budget_s: float = CHECKER_BUDGET_S,
    on_progress: Callable[[str], None] = lambda checker: None,
) -> Result:
    """Run one checker in a thread of its own, so that it can be abandoned; return its result.
    Raises BedFailed if a cluster has lost its executors, or Spark its JVM."""
    on_progress(name)
    answer: list[Result] = []
    check: Check = registry.load("checker", name)

    failures: list[BedFailed] = []

    def ask() -> None:
        try:
            answer.append(_run_guarded(check, name, history, trial, spark))
        except BedFailed as e:
            failures.append(e)

    watch = ExecutorWatch(spark, on_progress, name)
    finishes_within(budget_s, ask, watch.look)
    if failures:
        raise failures[0]
    if answer:
        return answer[0]
    if spark is not None:
        cancel_jobs(spark)
        check_executors(spark, history.run.probe_path)
    why = f"the checker {name} did not finish within {budget_s:g} s; check the run on more cores"
    return Result(name, reasons=(Reason("CHECKER_TIMEOUT", why),))


def _run_guarded(check: Check, name: str, history: History, trial: Trial, spark: Any) -> Result:
    try:
        return _check_codes(check(history, trial, spark), name)
    except Exception as e:
        if fetch_error := UNFETCHED.search(str(e)):  # in a Java traceback of an executor
            raise FetchFailed(fetch_error[1]) from e
        if isinstance(e, FetchFailed):
            raise
        if spark is not None:
            is_remote(spark)  # raises BedFailed if its JVM has exited
        if WORKER_ENDED in str(e):
            return _failed(
                name,
                f"a Python process of Spark ended while the checker {name} ran; if the kernel's"
                " log says that it was killed for memory, check the run on a machine with more",
            )
        lines = [line.strip() for line in registry.blame(e).splitlines() if line.strip()]
        words = " ".join((lines[0], lines[-1]) if len(lines) > 1 else lines)[:400]
        return _failed(name, f"the checker {name} failed ({words}); please report it with this run")


def _check_codes(result: Result, name: str) -> Result:
    """Return the result if the checker declares all codes in it; else a failure of the checker."""
    plugin = registry.checker(name)
    codes = [(f.code, plugin.findings, "finding") for f in result.findings]
    codes += [(r.code, plugin.reasons, "reason") for r in result.reasons]
    for code, declared, what in codes:
        if code not in declared:
            return _failed(
                name,
                f"the checker {name} gave the {what} {code}, which its PLUGIN does not declare; add"
                f" it to its {what}s and check the run again",
            )
    return result


def _failed(name: str, why: str) -> Result:
    return Result(name, reasons=(Reason("CHECKER_FAILED", why),))


# ---------------------------------------------------------------------------------- concluding


def unchecked_demands(
    results: Sequence[Result], history: History, trial: Trial
) -> Iterable[Reason]:
    """Return a reason for each demand of the trial that no checker decided, or only on no data.

    A demand applies to a workload if one of the workload's own checkers decides it. If the run has
    other reasons, they say why there was no data.
    """
    sizes = Counter(replica_groups(history.names).values()).values()
    copies = "imported" in history.state or max(sizes, default=0) > 1
    own = [c for c in own_checkers(history, trial) if copies or not registry.checker(c).compares]
    applies = frozenset().union(*map(decided_by, own))
    words = sorted(filter(trial.demands, applies - set(ISOLATION)))
    words += [trial.isolation] if applies & set(ISOLATION) else []
    has_reasons = any(result.reasons for result in results) or any(_own_reasons(history))
    for demand in words:
        able = [result for result in results if demand in decided_by(result.checker)]
        waive = f", or leave {demand} out of the contract" if demand in DEMANDS else ""
        if not able:
            names = " or ".join(name for name in own if demand in decided_by(name))
            why = f"{demand} was not checked: add {names} to the trial's checkers{waive}"
            yield Reason(NOT_CHECKED, why)
        elif not has_reasons and not any(result.decided.get(demand, 1) for result in able):
            names = ", ".join(result.checker for result in able)
            why = f"the history holds nothing that {names} could decide it on; let the workload do"
            yield Reason(NOT_CHECKED, f"{demand} was not checked: {why} more{waive}")


def omitted_checkers(results: Sequence[Result], history: History, trial: Trial) -> Iterator[str]:
    """Yield which of the workload's own checkers that can convict the trial left out."""
    present = {result.checker for result in results}
    own = own_checkers(history, trial) if trial.checkers else ()
    if names := [name for name in own if name not in present and registry.checker(name).findings]:
        what = "checker was" if len(names) == 1 else "checkers were"
        yield f"the {what} left out: {', '.join(names)}"


def own_checkers(history: History, trial: Trial) -> Sequence[str]:
    """Return the checkers of the workload itself, whatever the trial names."""
    if "imported" in history.state:
        return KINDS[trial.workload].checkers if trial.workload in KINDS else trial.checkers
    return checkers_of(replace(trial, checkers=()))


def decided_by(checker: str) -> frozenset[str]:
    """Return the demands that hold if this checker finds nothing and gives no reason."""
    return frozenset(registry.checker(checker).decides)


def conclude(
    results: Iterable[Result], history: History, trial: Trial, missing: Iterable[Reason] = ()
) -> Verdict:
    """Apply the contract and the claims to the checkers' results; return the verdict.

    `missing`: reasons for demands that no checker decided.
    """
    unclaimed = unclaimed_faults(history, trial)
    load_began = history.phases.get("load", 0) if unclaimed else 0
    results = tuple(mark_excused(mark_permitted(r, trial), unclaimed, load_began) for r in results)
    if "imported" in history.state:
        results = with_originals(results, history.run, history.names)
    own = tuple(_own_reasons(history))
    if DOUBTFUL in _codes(own):
        results = tuple(map(without_demands, results))
    own_codes = _codes(own)
    cut_short = bool(own_codes & CUT_SHORT)
    theirs = [
        reason
        for result in results
        for reason in result.reasons
        if reason.code not in own_codes
        and not (cut_short and reason.code in registry.cut_short(result.checker))
    ]
    theirs += [] if cut_short else missing
    reasons = tuple(dict.fromkeys((*own, *theirs)))
    verdict = worst_judgement(results)
    if verdict is Judgement.VALID and reasons:
        verdict = Judgement.UNKNOWN
    remarks = [*run_remarks(history)]
    if verdict is Judgement.VALID:
        remarks += omitted_checkers(results, history, trial)
    words = verdict_sentence(verdict, results, reasons, tuple(remarks))
    return Verdict(verdict, words, reasons, results, events=history.row_counts)


def mark_permitted(result: Result, trial: Trial) -> Result:
    """Return the result with findings marked as permitted that the contract does not forbid."""
    findings = (
        replace(f, permitted=bool(f.demand) and not trial.demands(f.demand))
        for f in result.findings
    )
    return replace(result, findings=tuple(findings))


def mark_excused(
    result: Result, unclaimed: Sequence[UnclaimedFault], load_began: int = 0
) -> Result:
    """Return the result with findings without rows excused by time, and a reason for each finding
    of which every row is excused."""
    findings = tuple(_excused_by_time(f, unclaimed) for f in result.findings)
    by_id = {one.fault.id: one for one in unclaimed}
    reasons = tuple(
        Reason(EXCUSED, _excuse_text(f, by_id, load_began))
        for f in findings
        if f.demand and not f.permitted and f.excuses and not f.convicts
    )
    return replace(result, findings=findings, reasons=(*reasons, *result.reasons))


def _excused_by_time(finding: Finding, unclaimed: Sequence[UnclaimedFault]) -> Finding:
    """Excuse the finding where it overlaps the time from applied to recovered of a fault that may
    break its demand."""
    if finding.excuses or not finding.demand or finding.permitted:
        return finding
    first = [
        next((u.fault.id for u in unclaimed if u.excuses(finding.demand, span, group)), None)
        for span, group in zip(finding.spans, chain(finding.broker_sets, repeat("")), strict=False)
    ]
    counts = Counter(number for number in first if number is not None)
    excuses = (Excuse((number,), rows) for number, rows in sorted(counts.items()))
    return replace(finding, excuses=tuple(excuses))


def _excuse_text(finding: Finding, by_id: Mapping[int, UnclaimedFault], load_began: int) -> str:
    """Return `LOST_ACKED 12 excused: all 12 were held only by broker-1, hit by power ..., which
    ...`."""
    parts = []
    for excuse in finding.excuses:
        faults = [by_id[number] for number in excuse.faults if number in by_id]
        what = and_list([fault.label(load_began) for fault in faults])
        why = "; ".join(dict.fromkeys(fault.why for fault in faults))
        whole = "all " if excuse.rows == finding.count > 1 else ""
        count = f"{whole}{excuse.rows:,}" if finding.count > 1 else "it"
        one = excuse.rows == 1
        how = f"{'is' if one else 'are'} explained by"
        if excuse.nodes:
            how = f"{'was' if one else 'were'} held only by {', '.join(excuse.nodes)}, hit by"
        parts.append(f"{count} {how} {what}, which {why}")
    return f"{finding.code} {finding.count:,} excused: {'; '.join(parts)}"


def _own_reasons(history: History) -> Iterable[Reason]:
    error = history.state.get("error")
    if error:
        yield Reason("BED_FAILED", f"the test bed failed: {error}")
    yield from history.cut_short
    if history.state.get("interrupted") or not history.ended:
        how = "was interrupted" if history.ended else "did not come to its end"
        yield Reason("INTERRUPTED", f"the run {how}, so it proves nothing; run it again")
    yield from clock_reasons(history.state)
    yield from history.damage
    if not history.cut_short:
        yield from unhealed_reasons(history.faults)
    for reason in history.state.get("reasons", ()):  # what an imported file lacks or a journal
        yield Reason(reason["code"], reason["message"])


def unhealed_reasons(faults: Sequence[FaultInterval]) -> Iterable[Reason]:
    """Yield one reason for all faults that could not be healed: they may still be in effect."""
    left = [(fault, why) for fault in faults if (why := fault.heal_error)]
    for fault, why in left[:1]:
        yield Reason(
            "NOT_HEALED",
            f"fault {fault.id} ({fault.label}) could not be healed{and_more(len(left) - 1)}: {why};"
            " what came after it is no evidence, so run it again",
        )


def _codes(reasons: Iterable[Reason]) -> frozenset[str]:
    return frozenset(reason.code for reason in reasons)


def _write(run: RunDir, verdict: Verdict) -> None:
    """Write the verdict atomically: a reader never sees half of it."""
    temporary = run.verdict_file.with_name(".verdict.json.tmp")
    try:
        temporary.write_text(verdict.to_json())
        os.replace(temporary, run.verdict_file)
    except OSError as e:
        why = f"cannot write {run.verdict_file}: {e.strerror}; free space and check again"
        raise BedFailed(why) from e


# ------------------------------------------------------------------------ the verdict's sentence


def verdict_sentence(
    verdict: Judgement,
    results: Sequence[Result],
    reasons: Sequence[Reason],
    remarks: Sequence[str] = (),
) -> str:
    """Return the verdict's sentence. `remarks`: what holds of the run whatever the verdict."""
    findings = [f for result in results for f in result.findings if f.demand]
    warnings = [str(r.stats["warning"]) for r in results if r.stats.get("warning")]
    if verdict is Judgement.VALID:
        proved = [str(r.stats["proved"]) for r in results if r.stats.get("proved")]
        held = proved or ["nothing that the contract demands was violated"]
        text = f"Valid: {'; '.join([*warnings, *held, *remarks])}."
    else:
        first = _invalid(findings) if verdict is Judgement.INVALID else _unknown(reasons)
        text = first + "".join(
            f" {with_full_stop(_capital(text))}" for text in (*warnings, *remarks)
        )
    if verdict is Judgement.INVALID:
        return text
    return text + _permitted([f for f in findings if f.permitted])


def run_remarks(history: History) -> Iterator[str]:
    """Yield what the record itself says of the run, apart from its verdict."""
    yield from map(str, history.state.get("remarks", ()))  # of an import: `_nemesis.caveats`
    if "imported" in history.state or "load" not in history.phases:
        return
    if all(fault.applied is None for fault in history.faults):
        planned = len(planned_kinds(history.run.plan_text()))
        yield f"none of {planned} planned faults took effect" if planned else NO_FAULT


def with_full_stop(text: str) -> str:
    """End a sentence with a full stop."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _invalid(findings: Sequence[Finding]) -> str:
    first, *others = by_importance(f for f in findings if f.convicts)
    spelled, rest = others[: SPELLED_OUT - 1], others[SPELLED_OUT - 1 :]
    more = "".join(f"; {f.message}{_some_excused(f)} ({f.code})" for f in spelled)
    codes = ", ".join(f"{f.code} {f.count:,}" for f in rest)
    also = f"; also {codes}" if codes else ""
    return with_full_stop(f"Invalid: {first.message}{_some_excused(first)}{more}{also}")


def _some_excused(finding: Finding) -> str:
    return f" ({finding.excused:,} of them excused)" if finding.excused else ""


def _unknown(reasons: Sequence[Reason]) -> str:
    return with_full_stop(f"Unknown: {reasons[0].message}{and_more(len(reasons) - 1)}")


def _permitted(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    what = ", ".join(f"{f.code} {f.count:,}" for f in findings)
    return f" Permitted, because the trial's contract does not demand it: {what}."
