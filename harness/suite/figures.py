"""The figures of a run of a suite, as its checkers counted them, by name.

Recovery is measured in two ways (checkers/availability.py): from the fault to the first
acknowledgement (or to the first poll that is answered), and from the first failed send to the next
that succeeds. Without recovery the time is infinite, beyond every bound.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.reader import History
from harness.history.roles import catch_up_times, election_count, hold_times, set_changes_of
from harness.history.rundir import RunDir
from harness.judge.verdict import Verdict
from harness.text.parsing import is_number

TIMES = ("to_ack_s", "to_read_s", "failure_to_success_s")
QUANTILES = {"p50": 0.5, "p99": 0.99}
STATES = ("single", "async", "semi", "sync")  # of pairs, as their events `machine` name them
NAMES = (
    *("injections", "elections", "acknowledged", "lost", "failed_sends", "duplicated", "anomalies"),
    *("sends_in_faults", "not_acknowledged_in_faults", "success_in_faults", "success_quiet"),
    *("unknown_sends", "set_changes", "truncations", "last_epoch"),
    *("compared", "per_s", *(f"{name}_{word}" for name in TIMES for word in QUANTILES)),
    *("ack_ms_p50", "ack_ms_p99", "silence_s_max", "down_s", "availability", "late_s_p99"),
    *("redelivered", "delivered", "to_sync_s_p50", "to_sync_s_max", "held_s_max"),
    *(f"struck_{state}" for state in STATES),
)
LATE = "late_s_p99"  # counted by a checker of messages with a time of their own
NS = 1e9


def measured(run: RunDir | None, verdict: Verdict | None) -> dict[str, float]:
    """Return the figures of a run that are known."""
    if run is None or verdict is None:
        return {}
    values: dict[str, float | None] = {**figures(verdict)}
    values["per_s"] = per_s(verdict, run.state())
    history = History.open(run)
    values |= of_events(history.events) | struck(history.events, history.faults)
    return {name: value for name, value in values.items() if value is not None}


def of_events(events: Sequence[ClusterEvent]) -> dict[str, float]:
    """Return what nodes did, as they logged it. Only of systems that log who is in sync are cuts of
    logs and changes of the set known: no event of others would mean nothing."""
    found: dict[str, float] = {"elections": election_count(events)}
    if changes := set_changes_of(events):
        found["set_changes"] = len(changes)
        found["truncations"] = sum(event.kind == "truncate" for event in events)
        made = (event.fields.get("epoch") for event in events if event.kind == "election")
        found["last_epoch"] = max((epoch for epoch in made if isinstance(epoch, int)), default=0)
    if times := [ns / NS for ns in catch_up_times(events)]:
        found |= {"to_sync_s_p50": median(times), "to_sync_s_max": max(times)}
    if held := hold_times(events):
        found["held_s_max"] = max(held) / NS
    return found


def struck(events: Sequence[ClusterEvent], faults: Sequence[FaultInterval]) -> dict[str, float]:
    """Return for each state of a pair how many faults began to be in force while a pair was in it;
    nothing if no system with such states was tested. The states of a pair are numbered."""
    found: dict[str, float] = {}
    machine = [event for event in events if event.kind == "machine"]
    changes = sorted(machine, key=lambda event: int(event.fields["seq"]))
    for fault in faults if changes else ():
        if (at := fault.applied) is not None:
            before = (event.fields for event in changes if event.t <= at)
            present = {fields["brokerName"]: str(fields["state"]) for fields in before}
            for state in {state.lower() for state in present.values()}:
                found[f"struck_{state}"] = found.get(f"struck_{state}", 0) + 1
    return {f"struck_{state}": 0.0 for state in STATES if changes} | found


def per_s(verdict: Verdict, state: Mapping[str, Any]) -> float | None:
    """Return acknowledged messages per second of the actual load; None if they were not counted,
    or the load has no end."""
    acked: Any = verdict.acknowledged
    began: Any = state.get("load_began_ns")
    ended: Any = state.get("load_ended_ns")
    if not all(map(is_number, (acked, began, ended))) or ended <= began:
        return None
    rate: float = round(acked / ((ended - began) / NS), 1)
    return rate


def figures(verdict: Verdict) -> dict[str, float | None]:
    """Return the figures that checkers counted; None if none did."""
    loss, seen = verdict.stats("loss"), verdict.stats("availability")
    during, success = seen.get("sends_in_faults", {}), seen.get("success", {})
    sends = verdict.stats("coverage").get("operations", {}).get("send", {})
    values: dict[str, float | None] = {
        "injections": verdict.stats("coverage").get("counted"),
        "acknowledged": verdict.acknowledged,
        "lost": loss.get("lost"),
        "failed_sends": sends["invoke"] - sends.get("ok", 0) if "invoke" in sends else None,
        "unknown_sends": sends.get("info", 0) if sends else None,
        "duplicated": verdict.stats("duplicates").get("stored_twice"),
        "anomalies": sum(f.count for r in verdict.checkers for f in r.findings if f.demand),
        "sends_in_faults": sum(during.values()) if during else None,
        "not_acknowledged_in_faults": _beside(during, "ok"),
        "success_in_faults": success.get("in_faults"),
        "success_quiet": success.get("quiet"),  # for comparison
        "compared": verdict.stats("replicas").get("looks"),
        "redelivered": verdict.stats("duplicates").get("given_twice"),
        "delivered": seen.get("delivered"),
        "late_s_p99": next((r.stats[LATE] for r in verdict.checkers if LATE in r.stats), None),
        "silence_s_max": seen.get("times", {}).get("silence_s", {}).get("max"),
        "down_s": seen.get("availability", {}).get("down_s"),
        "availability": seen.get("availability", {}).get("share"),
        **{
            f"ack_ms_{word}": seen.get("latency_ms", {}).get("all", {}).get(word)
            for word in QUANTILES
        },
    }
    for name in TIMES:
        times = [*_times(seen.get("faults", ()), name)]
        for word, share in QUANTILES.items():
            values[f"{name}_{word}"] = quantile(times, share)
    return values


def _times(faults: Iterable[Mapping[str, Any]], name: str) -> Iterator[float]:
    """Yield the times of the faults; without a failed send there is no time to a success, and
    without polls none to a read."""
    published = "failure_to_success_s"
    for fault in faults:
        if fault.get(name) is not None:
            yield fault[name]
        elif fault.get("failed") if name == published else name in fault:
            yield math.inf


def quantile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that is not below this share of all values; None without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _beside(counts: Mapping[str, int], word: str) -> int | None:
    return sum(n for name, n in counts.items() if name != word) if counts else None
