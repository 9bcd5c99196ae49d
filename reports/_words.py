"""The few numbers that matter about a run, in words, the same in every format."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.judge.verdict import Finding, Judgement, Result
from reports._run import IMPORTED, Told, rank
from reports._times import SILENCE, TO_ACK, TO_SUCCESS, of_faults, usual_and_worst

VERDICT_WORDS = {
    Judgement.VALID: "valid",
    Judgement.INVALID: "invalid",
    Judgement.UNKNOWN: "unknown",
}
MEANING = {
    Judgement.VALID: "The cluster kept every promise of the contract.",
    Judgement.INVALID: "The cluster broke a promise of the contract.",
    Judgement.UNKNOWN: "The run proves nothing either way.",
}
LOST = ("LOST_ACKED",)
ORDER = (  # columns of evidence
    *("node", "set", "missing", "event", "group", "queue", "key", "offset", "value"),
    *("producer", "sequence", "outcome", "sent_s", "acked_s", "seen_s", "at_s", "epoch"),
    *("seen_by", "seen_at", "times_seen", "attempts", "faults"),
)
DUPLICATED = "DUPLICATED"
LONGEST_CELL = 2000  # letters
LONG, SHORT = 90, 24  # letters of a headline


@dataclass(frozen=True)
class Number:
    """One number with its name. `tone`: good, bad, doubt or empty."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def numbers(told: Told) -> Iterator[Number]:
    """What a reader asks first: how much, what was lost, how long it took to come back."""
    stats = told.stats("availability")
    sends: Mapping[str, int] = stats.get("sends", {})
    if any(sends.values()):
        done, refused = sends.get("ok", 0), sends["fail"]
        unknown = max(sends["info"], sends.get("invoke", 0) - done - refused)
        yield Number("acknowledged", f"{done:,}", f"{refused:,} refused, {unknown:,} unknown")
        yield Number("delivered", f"{stats.get('delivered', 0):,}", f"{stats['read']:,} read back")
    else:
        yield from _operations(told)
    ran = {result.checker for result in told.verdict.checkers}
    if "loss" in ran:
        yield _lost(told)
    if "duplicates" in ran:
        yield _duplicated(told)
    yield from _times(stats)
    yield from _availability(stats)
    yield from _offered(told)
    yield from _latency(told, stats)
    yield from _faults(told)


def known(told: Told) -> list[Number]:
    """The same, or none where what was counted is damaged; that is among the doubts then."""
    return told.part("the numbers", lambda: list(numbers(told)), [])


def headline(sentence: str) -> tuple[str, str]:
    """A long sentence as what matters most, and the rest of it."""
    cuts = [sentence.find(mark, SHORT) for mark in (": ", "; ", ". ")]
    at = min((cut for cut in cuts if cut > 0), default=-1)
    if at < 0 or len(sentence) <= LONG:
        return sentence, ""
    rest = sentence[at + 1 :].strip()
    return full(sentence[:at]), full(rest[:1].upper() + rest[1:])


def one_line(told: Told) -> str:
    """What was tried."""
    trial = told.trial
    if told.untold:
        return f"the trial is not known: {told.untold}"
    if trial.system == IMPORTED:
        return f"{trial.workload}, imported from {trial.name}"
    profile = f" ({trial.profile})" if trial.profile else ""
    own = ",".join(f"{kind}={extent}" for kind, extent in sorted(trial.claims.items()))
    return (
        f"{trial.workload} on {trial.system}{profile}, hosts {trial.hosts}, seed {trial.seed}, "
        f"{seconds(trial.duration_s)} of load{f', claims {own}' if own else ''}"
    )


def seconds(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "never"
    if value < 0.01:
        return f"{value * 1000:.2g} ms"
    if value < 0.9995:  # from here on they are a second, or two minutes, or two days when rounded
        return f"{value * 1000:.0f} ms"
    if value < 119.5:
        return f"{value:.3g} s"
    if value >= 48 * 3600 - 0.5:
        return f"{value / 86400:,.1f} days"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def machine(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Versions and machine of a run, by name."""
    for name, value in {**state.get("versions", {}), **state.get("machine", {})}.items():
        memory = name == "memory" and isinstance(value, int)
        yield name, f"{value / 2**30:.1f} GiB" if memory else str(value)
    if state.get("command"):
        yield "command", " ".join(["seatrial", *map(str, state["command"])])


def moment(text: Any) -> str:
    """An ISO time as people write it; anything else as it stands."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%d %B %Y, %H:%M:%S %Z").strip(" ,")
    except ValueError:
        return str(text)


def standing_of(finding: Finding) -> str:
    """What a finding means for the verdict."""
    if finding.excused:
        return f"violates ({finding.excused:,} of {finding.count:,} excused)"
    return ("violates", "permitted by this trial's contract:", "informs")[rank(finding)]


def checked(told: Told) -> tuple[str, str]:
    """Return the demands that were checked, on how many operations and by which checker, and those
    for which the history held nothing to check."""
    counts = defaultdict[str, list[str]](list)
    for result in told.verdict.checkers:
        for demand, n in result.decided.items():
            counts[demand] += [f"{n:,} ({result.checker})"] if n else []
    done = (f"{demand} on {' and '.join(by)}" for demand, by in sorted(counts.items()) if by)
    return ", ".join(done), ", ".join(demand for demand, by in sorted(counts.items()) if not by)


def decided(result: Result) -> str:
    """Return the demands that a checker decided, with the number of operations of each."""
    return ", ".join(f"{demand} {n:,}" for demand, n in sorted(result.decided.items()))


def full(sentence: str) -> str:
    """A sentence ends with a full stop."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def clip(text: Any, most: int) -> str:
    """Text of a length that can be shown; how much there was of it is said."""
    words = str(text)
    return words if len(words) <= most else f"{words[:most]} ... ({len(words):,} characters)"


def cell(value: Any) -> str:
    """A value of an evidence row."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else clip(value, LONGEST_CELL)


def json_text(value: Any) -> str:
    """As people read it: only what JSON itself must escape is escaped."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of evidence rows that say anything: what and where first, then when, the rest."""
    told = {name for row in rows for name, value in row.items() if value not in (None, "")}
    return sorted(told, key=lambda name: (ORDER.index(name) if name in ORDER else 99, name))


def heading(column: str) -> str:
    """`acked_at_s` as `acked at (s)`."""
    for suffix, unit in (("_s", " (s)"), ("_ms", " (ms)"), ("_ns", " (ns)")):
        if column.endswith(suffix):
            return column.removesuffix(suffix).replace("_", " ") + unit
    return column.replace("_", " ")


def _operations(told: Told) -> Iterator[Number]:
    """Of a history without messages. Nobody knows what became of those that were never answered."""
    counted = told.counted
    sums = Counter[str]()
    for layer in counted.layers:
        sums[layer.outcome] += int(layer.n.sum())
    sums["info"] += counted.open
    unclear = ", ".join(
        f"{sums[outcome]:,} {word}"
        for outcome, word in (("fail", "refused"), ("info", "of unknown outcome"))
        if sums[outcome]
    )
    if sums.total():
        yield Number("operations done", f"{sums['ok']:,}", unclear)


def _count(told: Told, prefix: str) -> int:
    return sum(f.count for _, f in told.findings() if f.code.startswith(prefix))


def _lost(told: Told) -> Number:
    lost = sum(_count(told, code) for code in LOST)
    judged = [result for result in told.verdict.checkers if result.checker == "loss"]
    if codes := list(dict.fromkeys(reason.code for r in judged for reason in r.reasons)):
        unread = "NO_FINAL_READ" in codes
        why = "not all queues could be read back" if unread else f"not sure: {', '.join(codes)}"
        return Number("lost", f"{lost:,}?", why, "doubt")
    sure = told.verdict.verdict is not Judgement.UNKNOWN
    tone = "bad" if lost else "good" if sure else "doubt"
    return Number("lost", f"{lost:,}", "acknowledged, then gone", tone)


def _duplicated(told: Told) -> Number:
    count = _count(told, DUPLICATED)
    again = told.stats("duplicates").get("given_twice")
    note = f"stored twice; {again:,} given to one group twice" if again else "stored twice"
    return Number("duplicated", f"{count:,}", note)


def _times(stats: Mapping[str, Any]) -> Iterator[Number]:
    faults = of_faults(stats)
    for name, measure in (
        ("fault to next acknowledgement", TO_ACK),
        ("failure to next success", TO_SUCCESS),
    ):
        if known := usual_and_worst(faults, measure):
            usual, worst = map(seconds, known)
            yield Number(name, usual, f"median; worst {worst}")
    if known := usual_and_worst(faults, SILENCE):
        yield Number("longest silence", seconds(known[1]), "no send acknowledged")


def _availability(stats: Mapping[str, Any]) -> Iterator[Number]:
    known = stats.get("availability", {})
    if known.get("share") is None or not stats.get("faults"):
        return
    nines = known.get("nines")
    outages = known.get("outages", 0)
    broken = f"{outages} outage{'' if outages == 1 else 's'}"
    note = f"{nines:.1f} nines, {broken}" if nines is not None else broken
    yield Number("available", f"{known['share'] * 100:.2f} %", f"{note}, under these faults")


def _offered(told: Told) -> Iterator[Number]:
    """The offered load, where clients could not keep up with it."""
    offered = told.stats("coverage").get("offered", {})
    if skipped := offered.get("skipped", 0):
        share = skipped / offered["arrivals"]
        note = f"arrivals; {skipped:,} ({share:.1%}) were not sent, as every slot was taken"
        yield Number("offered load", f"{offered['arrivals']:,}", note, "doubt")


def _latency(told: Told, stats: Mapping[str, Any]) -> Iterator[Number]:
    latency = stats.get("latency_ms", {}).get("all", {})
    if latency.get("p50") is not None:
        p50, p99 = (seconds(latency[name] / 1000) for name in ("p50", "p99"))
        without = (
            ", without what was not sent"
            if told.stats("coverage").get("offered", {}).get("skipped")
            else ""
        )
        yield Number("latency", p50, f"median; p99 {p99}{without}")


def _faults(told: Told) -> Iterator[Number]:
    stats = told.stats("coverage")
    if stats.get("planned"):
        kinds = ", ".join(f"{n} {kind}" for kind, n in stats["counted_by_kind"].items())
        yield Number("faults that took effect", f"{stats['counted']} of {stats['planned']}", kinds)
