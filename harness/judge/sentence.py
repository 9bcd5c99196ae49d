"""The verdict as one sentence of plain English, for terminals, reports and pipelines.

Findings and reasons bring their own words; this orders them. A message that came out with another
body outranks a missing one, so it is named first. What a reader must know of a run whatever its
verdict, such as that no fault was injected, is in the sentence too.
"""

from collections.abc import Iterator, Sequence

from harness.history.reader import History
from harness.judge.verdict import Finding, Judgement, Reason, Result, by_importance
from harness.plans import planned_kinds

SPELLED_OUT = 3  # findings of which the sentence has the message; of others it has the code
NO_FAULT = "no fault was injected"


def sentence(
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
        said = f"Valid: {'; '.join([*warnings, *held, *remarks])}."
    else:
        told = _invalid(findings) if verdict is Judgement.INVALID else _unknown(reasons)
        said = told + "".join(f" {full(_capital(text))}" for text in (*warnings, *remarks))
    if verdict is Judgement.INVALID:
        return said
    return said + _permitted([f for f in findings if f.permitted])


def remarks_of(history: History) -> Iterator[str]:
    """Yield what the record itself says of the run, apart from its verdict."""
    yield from map(str, history.state.get("remarks", ()))  # of an import: `_nemesis.caveats`
    if "imported" in history.state or "load" not in history.phases():
        return
    if all(fault.applied is None for fault in history.faults):
        planned = len(planned_kinds(history.run.plan_text()))
        yield f"none of {planned} planned faults took effect" if planned else NO_FAULT


def full(text: str) -> str:
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
    return full(f"Invalid: {first.message}{_some_excused(first)}{more}{also}")


def _some_excused(finding: Finding) -> str:
    return f" ({finding.excused:,} of them excused)" if finding.excused else ""


def _unknown(reasons: Sequence[Reason]) -> str:
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return full(f"Unknown: {reasons[0].message}{more}")


def _permitted(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    what = ", ".join(f"{f.code} {f.count:,}" for f in findings)
    return f" Permitted, because the trial's contract does not demand it: {what}."
