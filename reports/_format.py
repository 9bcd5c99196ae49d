"""The key numbers of a run and the formats of values, the same in every report."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.judge.verdict import Finding, Judgement, Result
from harness.text.sanitize import sanitize
from reports._run import IMPORTED, RunView, rank
from reports._times import SILENCE, TO_ACK, TO_SUCCESS, times_of_faults, usual_and_worst

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
ERRORS_SHOWN, EXAMPLE_SHOWN = 4, 100  # names of exceptions; characters of an example


@dataclass(frozen=True)
class Number:
    """One number with its name. `tone`: good, bad, doubt or empty."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def key_numbers(view: RunView) -> Iterator[Number]:
    """Yield the key numbers: counts, losses, times to recover."""
    stats = view.stats("availability")
    sends: Mapping[str, int] = stats.get("sends", {})
    if any(sends.values()):
        done, refused = sends.get("ok", 0), sends["fail"]
        unknown = max(sends["info"], sends.get("invoke", 0) - done - refused)
        yield Number("acknowledged", f"{done:,}", f"{refused:,} refused, {unknown:,} unknown")
        yield Number("delivered", f"{stats.get('delivered', 0):,}", f"{stats['read']:,} read back")
    else:
        yield from _operations(view)
    yield from _errors(view)
    ran = {result.checker for result in view.verdict.checkers}
    if "loss" in ran:
        yield _lost(view)
    if "duplicates" in ran:
        yield _duplicated(view)
    yield from _times(stats)
    yield from _availability(stats)
    yield from _offered(view)
    yield from _latency(view, stats)
    yield from _faults(view)


def key_numbers_or_none(view: RunView) -> list[Number]:
    """Return the key numbers; none if the counts are damaged, which is a doubt then."""
    return view.part("the numbers", lambda: list(key_numbers(view)), [])


def headline(sentence: str) -> tuple[str, str]:
    """Split a long sentence into its most important part and the rest."""
    cuts = [sentence.find(mark, SHORT) for mark in (": ", "; ", ". ")]
    at = min((cut for cut in cuts if cut > 0), default=-1)
    if at < 0 or len(sentence) <= LONG:
        return sentence, ""
    rest = sentence[at + 1 :].strip()
    return end_sentence(sentence[:at]), end_sentence(rest[:1].upper() + rest[1:])


def trial_line(view: RunView) -> str:
    """Return one line about the trial."""
    trial = view.trial
    if view.trial_unknown:
        return f"the trial is not known: {view.trial_unknown}"
    if trial.system == IMPORTED:
        return f"{trial.workload}, imported from {trial.name}"
    profile = f" ({trial.profile})" if trial.profile else ""
    own = ",".join(f"{kind}={extent}" for kind, extent in sorted(trial.claims.items()))
    system = f"{trial.system}{system_version(view)}{profile}"
    return (
        f"{trial.workload} on {system}, hosts {trial.hosts}, seed {trial.seed}, "
        f"{seconds(trial.duration_s)} of load{f', claims {own}' if own else ''}"
    )


def programs(view: RunView) -> list[tuple[str, str, str, str]]:
    """Return the programs that ran: name, version, SHA-256, and where each came from."""
    healthy = view.state.get("healthy")
    found = healthy.get("programs") if isinstance(healthy, Mapping) else None
    others = healthy.get("other_versions") if isinstance(healthy, Mapping) else None
    rows = [
        *(found.items() if isinstance(found, Mapping) else ()),
        *((of.get("program"), of) for of in others or () if isinstance(of, Mapping)),
    ]
    return [
        (
            str(name),
            str(of.get("version") or ""),
            str(of.get("sha256") or ""),
            str(of.get("source") or ""),
        )
        for name, of in rows
        if isinstance(of, Mapping)
    ]


def program_line(program: tuple[str, str, str, str]) -> str:
    """Return a program as text, with the begin of its digest."""
    name, version, digest, source = program
    parts = (f"from {source}" if source else "", f"SHA-256 {digest[:16]}" if digest else "")
    return ", ".join(filter(None, (f"{name} {version}".strip(), *parts)))


def system_version(view: RunView) -> str:
    """Return the version of the system that ran, after a space; empty if it is not recorded."""
    healthy = view.state.get("healthy")
    version = healthy.get("version") if isinstance(healthy, Mapping) else None
    return f" {clip(sanitize(str(version)), 40)}" if version else ""


def seconds(value: float | None) -> str:
    """Return a duration as text."""
    if value is None:
        return "never"
    if value < 0.01:
        return f"{value * 1000:.2g} ms"
    if value < 0.9995:  # the limits below are those of the rounded values
        return f"{value * 1000:.0f} ms"
    if value < 119.5:
        return f"{value:.3g} s"
    if value >= 48 * 3600 - 0.5:
        return f"{value / 86400:,.1f} days"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def machine(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield versions and machine of a run, by name."""
    for name, value in {**state.get("versions", {}), **state.get("machine", {})}.items():
        memory = name == "memory" and isinstance(value, int)
        yield name, f"{value / 2**30:.1f} GiB" if memory else str(value)
    if state.get("command"):
        yield "command", " ".join(["seatrial", *map(str, state["command"])])


def moment(text: Any) -> str:
    """Return an ISO time as text for readers; other text unchanged."""
    try:
        return datetime.fromisoformat(str(text)).strftime("%d %B %Y, %H:%M:%S %Z").strip(" ,")
    except ValueError:
        return str(text)


def standing_of(finding: Finding) -> str:
    """Return what a finding means for the verdict."""
    if finding.excused:
        return f"violates ({finding.excused:,} of {finding.count:,} excused)"
    return ("violates", "permitted by this trial's contract:", "informs")[rank(finding)]


def checked_demands(view: RunView) -> tuple[str, str]:
    """Return the demands that were checked, with the number of operations and the checker of each,
    and the demands for which the history had nothing to check."""
    counts = defaultdict[str, list[str]](list)
    for result in view.verdict.checkers:
        for demand, n in result.decided.items():
            counts[demand] += [f"{n:,} ({result.checker})"] if n else []
    done = (f"{demand} on {' and '.join(by)}" for demand, by in sorted(counts.items()) if by)
    return ", ".join(done), ", ".join(demand for demand, by in sorted(counts.items()) if not by)


def decided_text(result: Result) -> str:
    """Return the demands that a checker decided, with the number of operations of each."""
    return ", ".join(f"{demand} {n:,}" for demand, n in sorted(result.decided.items()))


def end_sentence(sentence: str) -> str:
    """Return the sentence with a full stop."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def clip(text: Any, limit: int) -> str:
    """Return text of at most `limit` letters; cut text ends with its full length."""
    words = str(text)
    return words if len(words) <= limit else f"{words[:limit]} ... ({len(words):,} characters)"


def cell(value: Any) -> str:
    """Return a value of an evidence row as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else clip(value, LONGEST_CELL)


def json_text(value: Any) -> str:
    """Return JSON for readers: only characters that JSON must escape are escaped."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns of evidence rows that have values: subject and place first, then times,
    the rest."""
    view = {name for row in rows for name, value in row.items() if value not in (None, "")}
    return sorted(view, key=lambda name: (ORDER.index(name) if name in ORDER else 99, name))


def heading(column: str) -> str:
    """Return `acked_at_s` as `acked at (s)`."""
    for suffix, unit in (("_s", " (s)"), ("_ms", " (ms)"), ("_ns", " (ns)")):
        if column.endswith(suffix):
            return column.removesuffix(suffix).replace("_", " ") + unit
    return column.replace("_", " ")


def _operations(view: RunView) -> Iterator[Number]:
    """Yield the numbers of a history without messages; operations that never completed are of
    unknown outcome."""
    counted = view.counted
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


def _errors(view: RunView) -> Iterator[Number]:
    """Yield how many calls ended in an exception of the client, with the names of the most
    frequent, and what the first of them was about."""
    if errors := view.errors:
        first = list(errors.items())[:ERRORS_SHOWN]
        words = [
            f"{each.calls:,} {clip(name, 60)}"
            + (f" (first: {clip(each.example, EXAMPLE_SHOWN)})" if each.example else "")
            for name, each in first
        ]
        more = [f"{len(errors) - len(first):,} other names"] if len(errors) > len(first) else []
        total = sum(each.calls for each in errors.values())
        yield Number("errors of clients", f"{total:,}", ", ".join(words + more))


def _count(view: RunView, prefix: str) -> int:
    return sum(f.count for _, f in view.findings() if f.code.startswith(prefix))


def _lost(view: RunView) -> Number:
    lost = sum(_count(view, code) for code in LOST)
    judged = [result for result in view.verdict.checkers if result.checker == "loss"]
    if codes := list(dict.fromkeys(reason.code for r in judged for reason in r.reasons)):
        unread = "NO_FINAL_READ" in codes
        why = "not all queues could be read back" if unread else f"not sure: {', '.join(codes)}"
        return Number("lost", f"{lost:,}?", why, "doubt")
    sure = view.verdict.verdict is not Judgement.UNKNOWN
    tone = "bad" if lost else "good" if sure else "doubt"
    return Number("lost", f"{lost:,}", "acknowledged, then gone", tone)


def _duplicated(view: RunView) -> Number:
    count = _count(view, DUPLICATED)
    again = view.stats("duplicates").get("given_twice")
    note = f"stored twice; {again:,} given to one group twice" if again else "stored twice"
    return Number("duplicated", f"{count:,}", note)


def _times(stats: Mapping[str, Any]) -> Iterator[Number]:
    faults = times_of_faults(stats)
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
    availability = stats.get("availability", {})
    if availability.get("share") is None or not stats.get("faults"):
        return
    nines = availability.get("nines")
    outages = availability.get("outages", 0)
    broken = f"{outages} outage{'' if outages == 1 else 's'}"
    note = f"{nines:.1f} nines, {broken}" if nines is not None else broken
    yield Number("available", f"{availability['share'] * 100:.2f} %", f"{note}, under these faults")


def _offered(view: RunView) -> Iterator[Number]:
    """Yield the offered load, if clients could not keep up with it."""
    offered = view.stats("coverage").get("offered", {})
    if skipped := offered.get("skipped", 0):
        share = skipped / offered["arrivals"]
        note = f"arrivals; {skipped:,} ({share:.1%}) were not sent, as every slot was taken"
        yield Number("offered load", f"{offered['arrivals']:,}", note, "doubt")


def _latency(view: RunView, stats: Mapping[str, Any]) -> Iterator[Number]:
    latency = stats.get("latency_ms", {}).get("all", {})
    if latency.get("p50") is not None:
        p50, p99 = (seconds(latency[name] / 1000) for name in ("p50", "p99"))
        without = (
            ", without skipped sends"
            if view.stats("coverage").get("offered", {}).get("skipped")
            else ""
        )
        yield Number("latency", p50, f"median; p99 {p99}{without}")


def _faults(view: RunView) -> Iterator[Number]:
    stats = view.stats("coverage")
    if stats.get("planned"):
        kinds = ", ".join(f"{n} {kind}" for kind, n in stats["counted_by_kind"].items())
        yield Number("faults that took effect", f"{stats['counted']} of {stats['planned']}", kinds)
