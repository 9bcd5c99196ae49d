"""Judging a stored run: every checker is asked, the contract is applied, a verdict is written.

Checkers are found by name and kept apart: one that crashes or runs out of its time is *unknown*
with a reason, and hides nobody else's result; but a file of a run in storage that can not be
fetched leaves nothing to judge. What the run itself could not prove, because it was
interrupted, its test bed failed or a journal is damaged, is a reason too; only a certain finding
outweighs it. Judging needs nothing but the run's folder, and twice gives the same bytes.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from harness import registry
from harness.errors import BedFailed, Unfetched
from harness.history.faults_and_events import FaultInterval
from harness.history.notes import DISK_FULL, NODE_GONE
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.seal import seal
from harness.history.source_names import with_originals
from harness.importers._recording import KINDS
from harness.judge.claims import Unclaimed, unclaimed_faults
from harness.judge.demands import DEMANDS, ISOLATION
from harness.judge.sentence import remarks_of, sentence
from harness.judge.verdict import Excuse, Finding, Judgement, Reason, Result, Verdict, add_up
from harness.run.broker_sets import replica_groups
from harness.run.clocks import DOUBTFUL, doubts, undated
from harness.spark.master import DEFAULT
from harness.spark.probe import give_up, refuse_unfit
from harness.trial import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKER_BUDGET_S = 600.0
NOT_CHECKED = "NOT_CHECKED"  # code of the reason that a demand was decided by no checker
EXCUSED = "EXCUSED"  # code of the reason that nothing is left of a finding to convict
LARGE_BYTES = 4 << 20
IN_PROCESS_BYTES = 32 << 20  # of a history that is judged without Spark, at most
CUT_SHORT = frozenset(("BED_FAILED", "INTERRUPTED", NODE_GONE, DISK_FULL))

UNFETCHED = re.compile(rf"\b{Unfetched.__module__}\.{Unfetched.__name__}: (.+)")

Check = Callable[[History, Trial, Any], Result]


def judge(
    run: RunDir,
    spark: "SparkSession | None" = None,
    on_progress: Callable[[str], None] = lambda checker: None,
    master: str = DEFAULT,
) -> Verdict:
    """The verdict on a run, written to its folder. Starts Spark when no session is given; what
    does not need it is done while it starts."""
    if spark is None:
        from harness.spark.session import started

        with closing(started(master, compiler=_is_large(run))) as engine:
            return _judged(_prepared(run), engine.session(), on_progress)
    return _judged(_prepared(run), spark, on_progress)


def _is_large(run: RunDir) -> bool:
    """Whether its history is so large that kernels will be compiled."""
    return history_bytes(run) >= LARGE_BYTES


def judge_here(history: History) -> Verdict:
    """The verdict on a small run, by the same kernels, without Spark and without sealing it."""
    trial = history.run.trial()
    checks = [(name, registry.load("checker", name)) for name in checkers_of(trial)]
    results = [_isolated(check, name, history, trial, None) for name, check in checks]
    verdict = concluded(results, history, trial, unchecked(results, history, trial))
    _write(history.run, verdict)
    return verdict


def judge_in_process(
    run: RunDir, on_progress: Callable[[str], None] = lambda checker: None
) -> Verdict:
    """The verdict on a sealed run by the same kernels without Spark, written to its folder."""
    return _judged(_prepared(run), None, on_progress)


def history_bytes(run: RunDir) -> int:
    """Size of the recorded history, sealed or not."""
    files = (*run.found("history", "*.parquet"), *run.found("journal", "*.arrows"))
    return sum(path.stat().st_size for path in files)


def _prepared(run: RunDir) -> tuple[History, Trial, Sequence[str]]:
    """The sealed history, the trial, and the names of its checkers, imported."""
    seal(run)
    trial = run.trial()
    names = checkers_of(trial)
    for name in names:
        registry.module("checker", name)
    return History.open(run), trial, names


def _judged(
    prepared: tuple[History, Trial, Sequence[str]],
    spark: "SparkSession | None",
    on_progress: Callable[[str], None],
) -> Verdict:
    history, trial, names = prepared
    if spark is not None:
        refuse_unfit(spark, history.run.witness)
    results: list[Result] = []
    for name in names:
        on_progress(name)
        results.append(asked(name, history, trial, spark))
    verdict = concluded(results, history, trial, unchecked(results, history, trial))
    _write(history.run, verdict)
    return verdict


def checkers_of(trial: Trial) -> Sequence[str]:
    """The trial's checkers, else its workload's."""
    if trial.checkers:
        return trial.checkers
    checkers: Sequence[str] = registry.load("workload", trial.workload)(trial).checkers
    return checkers


def asked(
    name: str,
    history: History,
    trial: Trial,
    spark: "SparkSession | None",
    budget_s: float = CHECKER_BUDGET_S,
) -> Result:
    """One checker's answer, in a thread of its own so that it can be given up on."""
    answer: list[Result] = []
    check: Check = registry.load("checker", name)

    failures: list[Unfetched] = []

    def ask() -> None:
        try:
            answer.append(_isolated(check, name, history, trial, spark))
        except Unfetched as e:
            failures.append(e)

    thread = threading.Thread(target=ask, name=f"check-{name}", daemon=True)
    thread.start()
    thread.join(budget_s)
    if failures:
        raise failures[0]
    if answer:
        return answer[0]
    if spark is not None:
        give_up(spark)
    why = f"the checker {name} did not finish within {budget_s:g} s; check the run on more cores"
    return Result(name, reasons=(Reason("CHECKER_TIMEOUT", why),))


def _isolated(check: Check, name: str, history: History, trial: Trial, spark: Any) -> Result:
    try:
        return _declared(check(history, trial, spark), name)
    except Exception as e:
        if said := UNFETCHED.search(str(e)):  # as an executor told it, in a page of Java
            raise Unfetched(said[1]) from e
        if isinstance(e, Unfetched):
            raise
        lines = [line.strip() for line in registry.blamed(e).splitlines() if line.strip()]
        words = " ".join((lines[0], lines[-1]) if len(lines) > 1 else lines)[:400]
        return _failed(name, f"the checker {name} failed ({words}); please report it with this run")


def _declared(result: Result, name: str) -> Result:
    """The result, if the checker declares all codes in it; else a failure of the checker."""
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


def unchecked(results: Sequence[Result], history: History, trial: Trial) -> Iterable[Reason]:
    """Return a reason for each demand of the trial that no checker decided, or only on nothing.

    A demand applies to a workload if one of the workload's own checkers decides it. Where the run
    has other reasons, they say why there was nothing to decide on.
    """
    sizes = Counter(replica_groups(history.names).values()).values()
    copies = "imported" in history.state or max(sizes, default=0) > 1
    own = [c for c in own_checkers(history, trial) if copies or not registry.checker(c).compares]
    applies = frozenset().union(*map(decides, own))
    words = sorted(filter(trial.demands, applies - set(ISOLATION)))
    words += [trial.isolation] if applies & set(ISOLATION) else []
    known = any(result.reasons for result in results) or any(_own_reasons(history))
    for demand in words:
        able = [result for result in results if demand in decides(result.checker)]
        waive = f", or leave {demand} out of the contract" if demand in DEMANDS else ""
        if not able:
            names = " or ".join(name for name in own if demand in decides(name))
            why = f"{demand} was not checked: add {names} to the trial's checkers{waive}"
            yield Reason(NOT_CHECKED, why)
        elif not known and not any(result.decided.get(demand, 1) for result in able):
            names = ", ".join(result.checker for result in able)
            why = f"the history holds nothing that {names} could decide it on; let the workload do"
            yield Reason(NOT_CHECKED, f"{demand} was not checked: {why} more{waive}")


def left_out(results: Sequence[Result], history: History, trial: Trial) -> Iterator[str]:
    """Yield which of the workload's own checkers that can convict the trial left out."""
    asked = {result.checker for result in results}
    own = own_checkers(history, trial) if trial.checkers else ()
    if names := [name for name in own if name not in asked and registry.checker(name).findings]:
        what = "checker was" if len(names) == 1 else "checkers were"
        yield f"the {what} left out: {', '.join(names)}"


def own_checkers(history: History, trial: Trial) -> Sequence[str]:
    """Return the checkers of the workload itself, whatever the trial names."""
    if "imported" in history.state:
        return KINDS[trial.workload].checkers if trial.workload in KINDS else trial.checkers
    return checkers_of(replace(trial, checkers=()))


def decides(checker: str) -> frozenset[str]:
    """Return the demands that hold if this checker finds nothing and gives no reason."""
    return frozenset(registry.checker(checker).decides)


def concluded(
    results: Iterable[Result], history: History, trial: Trial, missing: Iterable[Reason] = ()
) -> Verdict:
    """The contract and the claims applied to what the checkers found, and what it adds up to.

    `missing`: reasons for demands that no checker decided.
    """
    unclaimed = unclaimed_faults(history, trial)
    load_began = history.phases().get("load", 0) if unclaimed else 0
    results = tuple(excused(permitted(r, trial), unclaimed, load_began) for r in results)
    if "imported" in history.state:
        results = with_originals(results, history.run, history.names)
    own = tuple(_own_reasons(history))
    if DOUBTFUL in _codes(own):
        results = tuple(map(undated, results))
    said = _codes(own)
    cut_short = bool(said & CUT_SHORT)
    theirs = [
        reason
        for result in results
        for reason in result.reasons
        if reason.code not in said
        and not (cut_short and reason.code in registry.cut_short(result.checker))
    ]
    theirs += [] if cut_short else missing
    reasons = tuple(dict.fromkeys((*own, *theirs)))
    verdict = add_up(results)
    if verdict is Judgement.VALID and reasons:
        verdict = Judgement.UNKNOWN
    remarks = [*remarks_of(history)]
    if verdict is Judgement.VALID:
        remarks += left_out(results, history, trial)
    words = sentence(verdict, results, reasons, tuple(remarks))
    return Verdict(verdict, words, reasons, results, events=history.events())


def permitted(result: Result, trial: Trial) -> Result:
    """The result with findings permitted that the contract does not speak against."""
    findings = (
        replace(f, permitted=bool(f.demand) and not trial.demands(f.demand))
        for f in result.findings
    )
    return replace(result, findings=tuple(findings))


def excused(result: Result, unclaimed: Sequence[Unclaimed], load_began: int = 0) -> Result:
    """Return the result with findings without rows excused by time, and a reason for each finding
    of which nothing is left that convicts."""
    findings = tuple(_excused_by_time(f, unclaimed) for f in result.findings)
    by_id = {one.fault.id: one for one in unclaimed}
    reasons = tuple(
        Reason(EXCUSED, _excuse_words(f, by_id, load_began))
        for f in findings
        if f.demand and not f.permitted and f.excuses and not f.convicts
    )
    return replace(result, findings=findings, reasons=(*reasons, *result.reasons))


def _excused_by_time(finding: Finding, unclaimed: Sequence[Unclaimed]) -> Finding:
    """Where it overlaps the time from applied to recovered of a fault that may break its demand."""
    if finding.excuses or not finding.demand or finding.permitted:
        return finding
    first = [
        next((u.fault.id for u in unclaimed if u.excuses(finding.demand, span, group)), None)
        for span, group in zip(finding.spans, chain(finding.broker_sets, repeat("")), strict=False)
    ]
    counts = Counter(number for number in first if number is not None)
    excuses = (Excuse((number,), rows) for number, rows in sorted(counts.items()))
    return replace(finding, excuses=tuple(excuses))


def _excuse_words(finding: Finding, by_id: Mapping[int, Unclaimed], load_began: int) -> str:
    """`LOST_ACKED 12 excused: all 12 were held only by broker-1, hit by power ..., which ...`"""
    parts = []
    for excuse in finding.excuses:
        faults = [by_id[number] for number in excuse.faults if number in by_id]
        what = " and ".join(fault.words(load_began) for fault in faults)
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
    yield from doubts(history.state)
    yield from history.damage
    if not history.cut_short:
        yield from not_healed(history.faults)
    for reason in history.state.get("reasons", ()):  # what an imported file lacks or a journal
        yield Reason(reason["code"], reason["message"])


def not_healed(faults: Sequence[FaultInterval]) -> Iterable[Reason]:
    """One reason for all faults that could not be undone: they may be in the world still."""
    left = [(fault, why) for fault in faults if (why := fault.stuck)]
    for fault, why in left[:1]:
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        yield Reason(
            "NOT_HEALED",
            f"fault {fault.id} ({fault.words}) could not be healed{more}: {why}; what came after it"
            " is no evidence, so run it again",
        )


def _codes(reasons: Iterable[Reason]) -> frozenset[str]:
    return frozenset(reason.code for reason in reasons)


def _write(run: RunDir, verdict: Verdict) -> None:
    """All of it or nothing: a reader never sees half a verdict."""
    temporary = run.verdict_file.with_name(".verdict.json.tmp")
    try:
        temporary.write_text(verdict.to_json())
        os.replace(temporary, run.verdict_file)
    except OSError as e:
        why = f"cannot write {run.verdict_file}: {e.strerror}; free space and check again"
        raise BedFailed(why) from e
