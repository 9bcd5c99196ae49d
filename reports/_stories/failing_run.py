"""The story of a failing run: the first finding that convicts, and what happened around it.

A timeline of sentences that fits on one screen: the initial state, all faults, the nodes' events,
and the message or the operations of the violation; then the final state of the logs. In a long run,
moments that are far from the violation or of little weight are left out first.
"""

from collections.abc import Iterator

from harness.history.reader import History
from harness.judge.verdict import Verdict
from reports._stories.cluster_events import BrokerNames, cluster_moments, fault_moments
from reports._stories.moments import select_moments
from reports._stories.outcome import StoryFacts, final_state
from reports._stories.story import describe_subject, gather_facts, own_moments
from reports._stories.witness import LAWS, choose_witness

MAX_RUN_MOMENTS = 22


def failing_run_story(
    history: History, verdict: Verdict, limit: int = MAX_RUN_MOMENTS
) -> list[str]:
    """Return the story, line by line."""
    return list(_lines(history, verdict, limit))


def _lines(history: History, verdict: Verdict, limit: int) -> Iterator[str]:
    began = int(history.state.get("load_began_ns", 0))
    brokers = BrokerNames.of(history)
    finding = verdict.first_finding
    facts = _first_facts(history, verdict)
    steps = [*fault_moments(history), *cluster_moments(history, brokers, began)]
    steps += own_moments(facts) if facts else ()
    when_s = finding.first_moment_s if finding else None
    shown = select_moments(steps, round((when_s or 0.0) * 1e9), limit)
    if facts and (about := describe_subject(facts)):
        yield from about.splitlines()
    yield f"In seconds since the load began. {_initial_state(history, brokers, began)}"
    yield from (f"{(step.t - began) / 1e9:9.3f}  {step.text}" for step in shown)
    if len(shown) < len(steps):
        yield f"           ({len(steps) - len(shown):,} less relevant events omitted)"
    yield from final_state(facts) if facts else ()
    law = LAWS.get(finding.demand, finding.demand) if finding else "a simulated world ends"
    yield f"Violated: {law}."
    yield verdict.sentence


def _first_facts(history: History, verdict: Verdict) -> StoryFacts | None:
    """Return the facts about the first witness that convicts."""
    about = choose_witness(verdict, None) if verdict.first_finding else None
    return gather_facts(history, about) if about else None


def _initial_state(history: History, brokers: BrokerNames, began: int) -> str:
    """Return the state of the cluster when the load began."""
    masters: dict[str, str] = {}
    sets: dict[str, str] = {}
    leader = ""
    for event in (e for e in history.events if e.t < began):
        fields = event.fields
        if event.kind == "election":
            masters[fields["brokerName"]] = (
                f"{brokers.name(fields['masterId'])} in epoch {fields['epoch']}"
            )
        if event.kind in ("election", "set") and "brokerName" in fields and "set" in fields:
            sets[fields["brokerName"]] = f", SyncStateSet {brokers.names(fields['set'])}"
        if event.kind == "raft" and fields.get("state") == "leader":
            leader = event.node
    stands = [f"{name} has the master {who}{sets.get(name, '')}" for name, who in masters.items()]
    return f"At first {'; '.join([*stands, *([f'{leader} leads'] if leader else [])])}."
