"""Laws that hold inside the cluster at every instant, whatever clients see of it.

A cluster that breaks one of them is no longer safe, although it may take a second fault until a
message is lost. In simulated worlds, where every decision is visible, a system's laws are monitored
while it runs: the history has an event `laws-watched`, and an event `broken-law` for each
violation. Elsewhere the nodes' own event logs show violations of three laws: one leader for each
term, one master for each epoch, and one decision of the controllers for each of these.

A law that was never checked is not reported as held: the result has for each the number of checks
(`looks`), and how many lines of event logs could not be read (`unseen`). A complete run of a world
that monitors its laws, without any check, is *unknown*, and so is a run of which too many lines
could not be read.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkers._run.evidence import SAMPLE, finding_at
from checkers._run.leader_terms import set_of_node
from harness.campaign.swarm import HOSTS as OVERSEEN
from harness.contracts import CheckerPlugin
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.reader import History
from harness.judge.verdict import Finding, Reason, Result
from harness.text.plurals import how_often
from harness.trial import Trial

INTEGRITY = "integrity"
WATCHED, BROKEN = "laws-watched", "broken-law"
FEW, SHARE = 10, 0.02  # so many lines, and such a part of all, may be unreadable
ONE_LEADER, ONE_MASTER, COMMITTED = "ONE_LEADER", "ONE_MASTER", "COMMITTED_CHANGED"
MEANING = {
    ONE_LEADER: "a term had a second leader",
    ONE_MASTER: "an epoch had a second master",
    COMMITTED: "a decision that the controllers had committed was changed",
    "ELECTED_OUTSIDE": "a master was elected from outside the SyncStateSet",
    "LEADER_LACKS_COMMITTED": "a master that was elected by votes lacked a committed byte",
    "CONFIRM_WENT_BACK": "a confirm offset went back",
    "SET_LACKS_ACKED": "a member of the SyncStateSet lacked an acknowledged byte",
    "CUT_TOO_HIGH": "a slave kept bytes that differ from its master's",
    "CUT_TOO_LOW": "a log was cut below its confirm offset",
    "ANSWERED_EARLY": "a send was answered SUCCESS that was not acknowledged yet",
    "LEASE_OVERLAP": "a master served a send after another one was elected",
    "RETURNED_TOO_SOON": "the mastership returned to a preferred broker too soon",
    "ROUTE_OF_ZONE": "a nameserver gave a client in a zone the sets of other zones, or none",
    "LED_IN_CLOSED_ZONE": "a broker was elected in a zone that an operator had closed",
    "UNACCEPTABLE": "a node was sent a malformed message by another node of the cluster",
    "SEQUENCE_REUSED": "a SequenceID was given to two states of pairs",
    "STATE_JUMPED": "a pair was switched from a state that was replaced, or to a wrong one",
    "GHOST_BROKER": "a broker that was not in its container any more went on",
    "STORE_SHARED": "two brokers of a container had one store",
    "INNER_FORGOTTEN": "a restarted container forgot which brokers were added and removed",
    "CONVERTED_UNEQUAL": "a set was converted to another mode with logs that differ",
    "CONVERTED_EARLY": "a broker changed its mode before the one that leads it, or to another one",
    "GENERATION_WENT_BACK": "a broker started in a mode that its set had left",
    "GENERATIONS_MIXED": "brokers in different modes of their set worked together",
    "PROMISE_BROKEN": "a broker led in a mode that it had promised to leave",
    "WROTE_AS_SLAVE": "a slave wrote messages of its own into its log",
    "ESCAPED_HOME": "a slave that acts as master sent special messages to its own set",
    "ESCAPED_TWICE": "a slave that acts as master sent a special message twice",
}
UNWATCHED = Reason(
    "LAWS_NOT_WATCHED",
    "The internal invariants of the cluster were not monitored, as they are in every simulated "
    "world; run it again, and report it if that does not help",
)


@dataclass(frozen=True)
class LawBreach:
    """A violation of a law, and how many more are only counted (`untold`)."""

    law: str
    t: int
    node: str
    why: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    untold: int = 0


@dataclass
class LawChecks:
    """What was checked, and what could not be."""

    looks: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    unseen: int = 0
    breaches: list[LawBreach] = field(default_factory=list)


def check(history: History, trial: Trial, spark: Any) -> Result:
    event_log = history.events
    overseen = trial.hosts == OVERSEEN and not history.interrupted
    return judge(event_log, history.faults, overseen)


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset(
        {
            "ANSWERED_EARLY",
            "COMMITTED_CHANGED",
            "CONFIRM_WENT_BACK",
            "CONVERTED_EARLY",
            "CONVERTED_UNEQUAL",
            "CUT_TOO_HIGH",
            "CUT_TOO_LOW",
            "ELECTED_OUTSIDE",
            "ESCAPED_HOME",
            "ESCAPED_TWICE",
            "GENERATIONS_MIXED",
            "GENERATION_WENT_BACK",
            "GHOST_BROKER",
            "INNER_FORGOTTEN",
            "LEADER_LACKS_COMMITTED",
            "LEASE_OVERLAP",
            "LED_IN_CLOSED_ZONE",
            "ONE_LEADER",
            "ONE_MASTER",
            "PROMISE_BROKEN",
            "RETURNED_TOO_SOON",
            "ROUTE_OF_ZONE",
            "SEQUENCE_REUSED",
            "SET_LACKS_ACKED",
            "STATE_JUMPED",
            "STORE_SHARED",
            "UNACCEPTABLE",
            "WROTE_AS_SLAVE",
        }
    ),
    decides=frozenset(),
    reasons=frozenset({"LAWS_NOT_WATCHED", "LAWS_UNSEEN"}),
)


def judge(
    event_log: Sequence[ClusterEvent], faults: Sequence[FaultInterval], overseen: bool = False
) -> Result:
    """Judge the events of a run. `overseen`: its laws had to be monitored."""
    watched = [event for event in event_log if event.kind == WATCHED]
    seen = _watched(watched) if watched else _derived(event_log)
    breaches = (
        [_breach_of(event) for event in event_log if event.kind == BROKEN]
        if watched
        else seen.breaches
    )
    stats: dict[str, Any] = {
        "looks": dict(sorted(seen.looks.items())),
        "unseen": seen.unseen,
        "watched": bool(watched),
    }
    looked_at = any(seen.looks.values())
    if watched and not breaches and looked_at:
        stats["proved"] = _proved(seen.looks)
    laws = sorted({breach.law for breach in breaches})
    sets = set_of_node(event_log)
    findings = tuple(_finding(law, breaches, faults, sets) for law in laws)
    reasons = [UNWATCHED] if overseen and not (watched and looked_at) else []
    if seen.unseen > max(FEW, seen.lines * SHARE):
        reasons.append(_unseen(seen))
    return Result("invariants", findings, tuple(reasons), stats)


def _unseen(seen: LawChecks) -> Reason:
    message = (
        f"Of {seen.lines:,} lines of the nodes' event logs, {seen.unseen:,} were lost or could not "
        "be read, so violations may have been missed; check for full disks, and read the logs"
    )
    return Reason("LAWS_UNSEEN", message)


def _watched(watched: Sequence[ClusterEvent]) -> LawChecks:
    """Return what the monitors report of themselves."""
    seen = LawChecks()
    for event in watched:
        seen.looks.update(event.fields.get("looked", {}))
        seen.lines += int(event.fields.get("lines", 0))
        seen.unseen += int(event.fields.get("unseen", 0))
    return seen


def _proved(looks: Mapping[str, int]) -> str:
    held = sum(1 for times in looks.values() if times)
    times = sum(looks.values())
    laws = "one internal invariant" if held == 1 else f"{held} internal invariants"
    return f"{laws} held in {times:,} checks"


def _finding(
    law: str,
    breaches: Sequence[LawBreach],
    faults: Sequence[FaultInterval],
    sets: Mapping[str, str],
) -> Finding:
    mine = [breach for breach in breaches if breach.law == law]
    count = sum(1 + breach.untold for breach in mine)
    times = how_often(count)
    meaning = MEANING.get(law, "an internal invariant was violated")
    message = f"{meaning} ({times}); first: {mine[0].why}"
    rows = [_evidence(breach) for breach in mine[:SAMPLE]]
    whose = [sets.get(breach.node, "") for breach in mine]
    moments = [breach.t for breach in mine]
    return finding_at(moments, faults, law, count, message, INTEGRITY, rows, whose)


def _evidence(breach: LawBreach) -> Mapping[str, Any]:
    numbers = {k: v for k, v in breach.numbers.items() if isinstance(v, str | int | float)}
    return {"node": breach.node, "at_s": round(breach.t / 1e9, 3), "why": breach.why, **numbers}


def _breach_of(event: ClusterEvent) -> LawBreach:
    fields = dict(event.fields)
    law, why = str(fields.pop("law", "?")), str(fields.pop("why", ""))
    return LawBreach(
        law, event.t, event.node, why, untold=int(fields.pop("untold", 0)), numbers=fields
    )


# ------------------------------------------------------------------------- from event logs alone


def _derived(event_log: Sequence[ClusterEvent]) -> LawChecks:
    """Return the violations of three laws that the nodes' event logs show."""
    seen = LawChecks(Counter(dict.fromkeys((ONE_LEADER, ONE_MASTER, COMMITTED), 0)))
    names = {
        event.fields["brokerName"]
        for event in event_log
        if event.kind in ("election", "role") and "brokerName" in event.fields
    }
    starts: Counter[str] = Counter()
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    for event in event_log:
        seen.lines += bool(event.node)
        seen.unseen += _missed(event)
        starts[event.node] += event.kind == "start"
        process = f"{event.node} in its life {starts[event.node]}"
        try:
            claim = _claim(event, process, alone=len(names) <= 1)
        except KeyError:  # a field is missing
            seen.unseen += 1
            continue
        if claim is None:
            continue
        law, what, is_now = claim
        seen.looks[law] += 1
        # two groups of nodes may lead and decide in one cluster, each with numbers of its own
        group = event.node.rpartition("-")[0] if event.kind in ("raft", "set") else ""
        was, who = first.setdefault((law, group, what), (is_now, event.node))
        if was != is_now:
            why = f"{what}: {was} according to {who}, and {is_now} according to {event.node}"
            seen.breaches.append(LawBreach(law, event.t, event.node, why))
    return seen


def _missed(event: ClusterEvent) -> int:
    """Return how many lines a node could not write for lack of space, from its next line."""
    missed = event.fields.get("missed", 0)
    return missed if isinstance(missed, int) else 1


def _claim(event: ClusterEvent, process: str, alone: bool) -> tuple[str, str, str] | None:
    """Return (law, subject, value): two values of one subject break the law."""
    fields = event.fields
    match event.kind:
        case "raft" if fields["state"] == "leader":
            group = f" of {name}" if (name := fields.get("brokerName")) else ""
            return ONE_LEADER, f"the leader of term {fields['term']}{group}", process
        case "role" if fields["role"] == "master" and alone:
            return ONE_MASTER, f"the master of epoch {fields['epoch']}", process
        case "election":
            what = f"the master of {fields['brokerName']} in epoch {fields['epoch']}"
            return COMMITTED, what, f"broker {fields['masterId']}"
        case "set" if fields.get("brokerName") and "setEpoch" in fields:
            what = f"SyncStateSet {fields['setEpoch']} of {fields['brokerName']}"
            return COMMITTED, what, json.dumps(fields["set"])
    return None
