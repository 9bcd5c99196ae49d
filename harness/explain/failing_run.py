"""The story of a failing run: what `explain` tells of the first finding that convicts, and all that
happened around it.

A timeline in plain sentences, short enough to read at a glance: how things stood at first, all
faults, what the nodes told, and the message or the operations that break a law; then whose log
holds what in the end. Of a long run, what is far from that message or tells little is left out
first.
"""

from collections.abc import Iterator, Sequence

from harness.explain.context import Cast, cluster_told, faults_told
from harness.explain.outcome import Known, ending
from harness.explain.story import known_of, own, subject
from harness.explain.subject import LAWS, asked
from harness.explain.words import Step
from harness.history.faults_and_events import events
from harness.history.reader import History
from harness.judge.verdict import Finding, Verdict

MOST = 22  # moments
TIMES = ("acked_s", "at_s", "sent_s", "seen_s")  # in evidence


def told(history: History, verdict: Verdict, most: int = MOST) -> list[str]:
    """The story, line by line."""
    return list(_lines(history, verdict, most))


def _lines(history: History, verdict: Verdict, most: int) -> Iterator[str]:
    began = int(history.state.get("load_began_ns", 0))
    cast = Cast.of(history)
    finding = verdict.first
    known = _known(history, verdict)
    steps = [*faults_told(history), *cluster_told(history, cast, began)]
    steps += own(known) if known else ()
    shown = _shown(steps, round((when_s(finding) or 0.0) * 1e9), most)
    if known and (about := subject(known)):
        yield from about.splitlines()
    yield f"In seconds since the load began. {_before(history, cast, began)}"
    yield from (f"{(step.t - began) / 1e9:9.3f}  {step.words}" for step in shown)
    if len(shown) < len(steps):
        yield f"           ({len(steps) - len(shown):,} less relevant events omitted)"
    yield from ending(known) if known else ()
    law = LAWS.get(finding.demand, finding.demand) if finding else "a simulated world ends"
    yield f"Violated: {law}."
    yield verdict.sentence


def _known(history: History, verdict: Verdict) -> Known | None:
    """Of the first witness that convicts."""
    about = asked(verdict, None) if verdict.first else None
    return known_of(history, about) if about else None


def _shown(steps: Sequence[Step], about: int, most: int) -> list[Step]:
    ranked = sorted(steps, key=lambda step: (-step.weight, abs(step.t - about), step))
    return sorted(ranked[:most])


def when_s(finding: Finding | None) -> float | None:
    """When the first thing happened that convicts, as far as is known; since the run's start."""
    rows = finding.evidence[:1] if finding else ()
    return next((float(row[key]) for row in rows for key in TIMES if row.get(key)), None)


def _before(history: History, cast: Cast, began: int) -> str:
    """How things stood when the load began."""
    masters: dict[str, str] = {}
    sets: dict[str, str] = {}
    leader = ""
    for event in (e for e in events(history.read("events")) if e.t < began):
        told = event.fields
        if event.kind == "election":
            masters[told["brokerName"]] = f"{cast.name(told['masterId'])} in epoch {told['epoch']}"
        if event.kind in ("election", "set") and "brokerName" in told and "set" in told:
            sets[told["brokerName"]] = f", SyncStateSet {cast.names(told['set'])}"
        if event.kind == "raft" and told.get("state") == "leader":
            leader = event.node
    stands = [f"{name} has the master {who}{sets.get(name, '')}" for name, who in masters.items()]
    return f"At first {'; '.join([*stands, *([f'{leader} leads'] if leader else [])])}."
