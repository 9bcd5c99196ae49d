"""Measures how long each fault kept senders waiting, and how available the cluster was.

The time to recover is measured in two ways. *Applied to acknowledged*: from the moment at which the
fault was in force to the first acknowledgement of a send invoked after it. *First failure to first
success*: the published definition, from the invocation of the first send that failed to the next
success, which does not exist if clients retry silently. The longest *silence*, a stretch without
any acknowledgement, is measured too, because many faults have an effect only once they are
detected.

Availability is MTBF / (MTBF + MTTR) of this trial. An outage is a silence much longer than the
usual interval between two invocations; the interval between answers is no measure, since outages
change it. Silence counts while clients send, or wait for an answer. If no send was ever
acknowledged, all of it is an outage. A trial has far more faults than a year, so the yearly
equivalent says what this rate of faults would mean. Numbers only: this checker never convicts.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from checkers._run.evidence import seconds
from checkers._run.run_facts import IN_FAULTS, QUIET, Outline, RunFacts, facts, full_set_at, latest
from checkers._run.timeline import CellKind
from checkers._run.timeline_query import Timeline
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import FaultInterval, TimeWindow
from harness.history.reader import History
from harness.judge.verdict import Result
from harness.operation import DELIVERIES, SENDS, F, Type
from harness.trial import Trial

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
YEAR_S = 365.25 * 24 * 3600
MIN_OUTAGE_S = 0.2
RHYTHMS = 20  # an outage is this many times the usual interval between two invocations
RESAMPLES = 2000


def check(history: History, trial: Trial, spark: Any) -> Result:
    return judge(facts(history, trial, spark))


PLUGIN = CheckerPlugin(check=check, findings=frozenset(), decides=frozenset())


def judge(known: RunFacts) -> Result:
    """Return numbers for the report. Lanes are strings of numbers, so that the verdict stays
    readable."""
    times = [
        _fault_times(known, fault, group)
        for fault in known.outline.applied
        for group in _sets_hit(known.outline, fault)
    ]
    stats = {
        "sends": _sends(known.timeline),
        "sends_in_faults": _sends_in_faults(known),
        "delivered": known.timeline.messages(DELIVERIES),
        "read": known.timeline.messages((F.READ,)),
        "latency_ms": _latencies(known),
        "success": _success(known),
        "faults": times,
        "times": _summary(times),
        "availability": _availability(known),
        "lanes": _lanes(known),
    }
    return Result("availability", stats=stats)


# -------------------------------------------------------------------------------------- faults


def _fault_times(known: RunFacts, fault: FaultInterval, group: int) -> dict[str, Any]:
    """Return both times to recover, and the longest silence up to the next fault."""
    mark = known.force_number(fault)
    applied = fault.applied
    if mark is None or applied is None:
        raise ValueError(f"fault {fault.id} was never applied")
    only = group if known.outline.set_of_key else None
    acked = known.timeline.answer(mark, SENDS, only)
    until = _next_begin(known.outline, fault)
    return {
        "fault": fault.id,
        "kind": fault.kind,
        "words": fault.label,
        "set": known.outline.sets[group],
        "applied_s": seconds(applied, 3),
        "to_ack_s": None if acked is None else seconds(acked - applied, 3),
        **_to_read(known, mark, applied, only),
        "only_after_healing": acked is not None and fault.heal is not None and acked > fault.heal,
        **_published(known, mark, only, until),
        "silence_s": _longest(known.timeline.silences(_active_part(known, applied, until), only)),
        "to_full_set_s": _to_full_set(known.outline, fault, group),
    }


def _sets_hit(outline: Outline, fault: FaultInterval) -> Sequence[int]:
    """Return the numbers of the broker sets whose master a fault hit, else of those whose brokers
    it hit, else of all that take sends; one if they are judged together. A container that is killed
    takes the master of its own set, and slaves of others, which need no recovery."""
    if not outline.set_of_key:
        return (0,)
    sending = sorted({n for n in outline.set_of_key if n >= 0}) or range(len(outline.sets))
    dealt = {n: outline.dealt.get(outline.sets[n]) for n in sending}
    hit = [n for n, of in dealt.items() if of and set(fault.names) & set(of.nodes)]
    begin = fault.begin or fault.applied or 0
    led = [n for n in hit if outline.master_of(outline.sets[n], begin) in fault.names]
    return led or hit or sending


def _to_read(known: RunFacts, mark: int, applied: int, group: int | None) -> dict[str, Any]:
    """Return the time from applied to the first answer of a poll that was invoked after it; None:
    none was answered. Nothing if the run has no such operations."""
    timeline = known.timeline
    if not any(timeline.total(f, Type.INVOKE) for f in DELIVERIES):
        return {}
    read = timeline.answer(mark, DELIVERIES, group)
    return {"to_read_s": None if read is None else seconds(read - applied, 3)}


def _published(known: RunFacts, mark: int, group: int | None, until: int) -> dict[str, Any]:
    """Return the time from first failure to first success, if a send failed before the next fault
    began."""
    outage = known.timeline.outage(mark, group)
    if outage is None or outage.seen >= until:
        return {"failed": False, "failure_to_success_s": None}
    took = None if outage.end is None else seconds(outage.end - outage.begin, 3)
    return {"failed": True, "failure_to_success_s": took}


def _next_begin(outline: Outline, fault: FaultInterval) -> int:
    """Return when the next fault begins, or the load ends."""
    applied = fault.applied or 0
    at = bisect_right(outline.begins, applied)
    later = outline.begins[at : at + 1]
    ends = outline.load.end if outline.load else outline.end
    return max(applied, min([*later, ends]))


def _active_part(known: RunFacts, begin: int, end: int) -> TimeWindow:
    """Return the part of a stretch in which clients sent, or waited for an answer."""
    asking = _client_activity(known)
    return TimeWindow(begin, max(begin, min(end, asking.end if asking else begin)))


def _client_activity(known: RunFacts) -> TimeWindow | None:
    """Return the time from the invocation of the first send to that of the last one, or to the end
    of the last send that was invoked after the last acknowledgement; to the end of the load if that
    one never completed. Where a part of the record is missing, so may be its answer; but the record
    of a run that was killed is complete up to about the last operation."""
    sending, outline = known.timeline.sending, known.outline
    killed = outline.interrupted and bool(known.timeline.bins)
    in_vain = known.timeline.in_vain(never=killed or "ops" not in outline.gaps)
    if sending is None or in_vain is None:
        return sending
    until = min(in_vain, outline.load.end if outline.load else outline.end)
    if "ops" in outline.gaps:
        until = min(until, known.timeline.bins.stop * known.timeline.query.bin_ns)
    return TimeWindow(sending.begin, max(sending.end, until))


def _to_full_set(outline: Outline, fault: FaultInterval, group: int) -> float | None:
    """Return the time from the healing to the full SyncStateSet, if before the next fault."""
    if fault.heal is None:
        return None
    names = outline.sets[group : group + 1] if outline.set_of_key else outline.sets
    full = latest(full_set_at(outline, name, fault.heal) for name in names)
    if full is None or full > max(fault.heal, _next_begin(outline, fault)):
        return None
    return seconds(full - fault.heal, 3)


def _longest(silences: Iterable[TimeWindow]) -> float | None:
    return max((round(s.length_s, 3) for s in silences), default=None)


def _summary(times: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return median and maximum of each time, over the faults that have one; None: never. Full
    redundancy that was not reached before the next fault may have been reached after it."""
    never = {"to_ack_s": times, "failure_to_success_s": [t for t in times if t["failed"]]}
    summary: dict[str, Any] = {}
    for name in ("to_ack_s", "failure_to_success_s", "silence_s", "to_full_set_s"):
        known = [t[name] for t in times if t[name] is not None]
        values = known + [math.inf] * sum(t[name] is None for t in never.get(name, ()))
        if values:
            middle, worst = (_finite(value) for value in (median(values), max(values)))
            summary[name] = {"p50": middle, "max": worst, "faults": len(known)}
    return summary | {"never_acknowledged": sum(t["to_ack_s"] is None for t in times)}


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


# ---------------------------------------------------------------------------------- the whole


def _sends(answers: Timeline) -> dict[str, int]:
    return {kind.name.lower(): answers.sends(kind) for kind in Type}


def _sends_in_faults(known: RunFacts) -> dict[str, int]:
    """Return completed sends by outcome, while a fault was in force; overlapping faults count
    twice."""
    forced = range(len(known.outline.force))
    return {
        kind.name.lower(): sum(known.timeline.in_window(w, SENDS, kind) for w in forced)
        for kind in (Type.OK, Type.FAIL, Type.INFO)
    }


def _latencies(known: RunFacts) -> dict[str, Any]:
    rows = {"all": None, "in_faults": IN_FAULTS, "quiet": QUIET}
    found: dict[str, Any] = {
        name: {
            label: None if value is None else round(value, 3)
            for label, value in zip(
                QUANTILES, known.timeline.quantiles_ms(QUANTILES.values(), span), strict=True
            )
        }
        for name, span in rows.items()
    }
    worst = known.timeline.worst_ms()
    found["all"]["max"] = None if worst is None else round(worst, 3)
    return found


def _success(known: RunFacts) -> dict[str, float | None]:
    """Return the share of completed sends that were acknowledged, with and without faults."""
    forced = range(len(known.outline.force))
    rest = range(len(known.outline.force), len(known.outline.force) + len(known.outline.quiet))
    return {"in_faults": _share(known.timeline, forced), "quiet": _share(known.timeline, rest)}


def _share(answers: Timeline, windows: Iterable[int]) -> float | None:
    counts = {
        kind: sum(answers.in_window(w, SENDS, kind) for w in windows)
        for kind in (Type.OK, Type.FAIL, Type.INFO)
    }
    total = sum(counts.values())
    return round(counts[Type.OK] / total, 6) if total else None


def _availability(known: RunFacts) -> dict[str, Any]:
    """Return MTBF / (MTBF + MTTR) while clients sent; 95 % interval by resampling fault cycles."""
    load = _client_activity(known)
    if load is None or load.end <= load.begin:
        return {}
    silences = known.timeline.silences(load)
    limit_s = _outage_limit_s(known.timeline, load)
    outages = [s for s in silences if s.length_s > limit_s]
    down_s = sum(s.length_s for s in outages)
    share = 1 - down_s / load.length_s
    return {
        "outage_over_s": round(limit_s, 3),
        "outages": len(outages),
        "down_s": round(down_s, 3),
        "mtbf_s": _mean(load.length_s - down_s, len(outages)),
        "mttr_s": _mean(down_s, len(outages)),
        "share": round(share, 6),
        "nines": round(-math.log10(1 - share), 2) if 0 < share < 1 else None,
        "per_year_s": round((1 - share) * YEAR_S),
        "interval": _interval(_cycles(known.outline, load), outages),
    }


def _outage_limit_s(answers: Timeline, load: TimeWindow) -> float:
    if not answers.sends(Type.OK):
        return 0.0
    usual_s = load.length_s / answers.sends(Type.INVOKE)
    return max(MIN_OUTAGE_S, RHYTHMS * usual_s)


def _mean(total_s: float, count: int) -> float | None:
    return round(total_s / count, 3) if count else None


def _cycles(outline: Outline, load: TimeWindow) -> list[TimeWindow]:
    """Return the load, divided where each fault begins: a fault and the recovery after it."""
    cuts = {f.begin for f in outline.faults if f.begin is not None}
    edges = sorted({load.begin, load.end, *(c for c in cuts if load.begin < c < load.end)})
    return [TimeWindow(begin, end) for begin, end in pairwise(edges)]


def _interval(cycles: Sequence[TimeWindow], outages: Sequence[TimeWindow]) -> list[float] | None:
    """Return the middle 95 % of the share over resampled cycles; None if there are too few."""
    if len(cycles) < 4:
        return None
    length = np.array([c.length_s for c in cycles])
    down = np.array([sum(_overlap_s(c, o) for o in outages) for c in cycles])
    picks = np.random.default_rng(0).integers(0, len(cycles), (RESAMPLES, len(cycles)))
    shares = 1 - down[picks].sum(axis=1) / length[picks].sum(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return [round(float(low), 6), round(float(high), 6)]


def _overlap_s(cycle: TimeWindow, outage: TimeWindow) -> float:
    return max(0, min(cycle.end, outage.end) - max(cycle.begin, outage.begin)) / 1e9


# --------------------------------------------------------------------------------------- lanes


def _lanes(known: RunFacts) -> dict[str, Any]:
    """Return series by bin, for the report: numbers as text, `-` where there is none."""
    answers = known.timeline
    bin_s = answers.query.bin_ns / 1e9
    series: dict[str, Sequence[float | None]] = {
        "ok": answers.lane(CellKind.OPS, SENDS, Type.OK),
        "fail": answers.lane(CellKind.OPS, SENDS, Type.FAIL),
        "info": answers.lane(CellKind.OPS, SENDS, Type.INFO),
        "delivered": answers.lane(CellKind.MESSAGES, DELIVERIES, Type.OK),
        "read": answers.lane(CellKind.MESSAGES, (F.READ,), Type.OK),
        "p50_ms": answers.latency_lane(0.5),
        "p99_ms": answers.latency_lane(0.99),
    }
    words = {name: " ".join(map(_number, values)) for name, values in series.items()}
    return {"bin_s": bin_s, "from_s": round(answers.bins.start * bin_s, 3), **words}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
