"""The story of one witness: what happened to a message or an object, line by line, and around it.

It has the send and its completion; deliveries, and readers that read beyond the message; the faults
in force at each moment; elections, changes of the SyncStateSet and truncated logs meanwhile; the
logs that hold the message at the end; and the conclusion. All is read from the run's folder,
without Spark. An imported history has less of this, and its story is shorter.

A failing run has a story of its own: the first finding that convicts, and what happened around it,
as a timeline that fits on one screen: the initial state, all faults, the nodes' events, and the
message or the operations of the violation; then the final state of the logs. In a long run, moments
that are far from the violation or of little weight are left out first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import BadRequest
from harness.history.faults_and_events import faults_at
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.history.source_names import original_messages
from harness.judge.stored_verdict import BROKEN, load_verdict
from harness.judge.verdict import Verdict
from harness.operation import F, Type, producer_of, sequence_of
from harness.text.own_words import words_of
from reports._run import finding_in
from reports._stories.cluster_events import (
    BrokerNames,
    broker_sets_before,
    cluster_moments,
    fault_moments,
)
from reports._stories.moments import (
    HistoryNames,
    Moment,
    message_moments,
    operation_moments,
    pass_moments,
    select_moments,
)
from reports._stories.outcome import StoryFacts, conclusion, final_state
from reports._stories.rows import Pass, Row, RowQuery, passes, select_rows, stored_copies
from reports._stories.witness import (
    LAWS,
    FindingWitness,
    choose_witness,
    evidence_times_ns,
    explainable_names,
    open_history,
    row_query,
)

STEPS_INDENT = 20  # columns of time and faults before the text of a moment
MAX_MOMENTS = 40  # moments
MAX_NOTES = 3  # notes of one reader
FINE_NS = 1_000_000_000  # shorter stories have times in microseconds
MARGIN_NS = 1_000_000_000  # around a story without moments of its own
LETTERS = "ABCDEFGH"
MISSED = ("LOST", "UNREAD", "UNSEEN", "SKIP")  # codes of messages that a reader did not receive


@dataclass(frozen=True)
class Story:
    """A story. `moments` are in order of time, with the ids of the faults in force."""

    witness: FindingWitness
    subject: str
    began: int
    moments: tuple[tuple[Moment, tuple[int, ...]], ...]
    left_out: int
    final_state: tuple[str, ...]
    conclusion: str
    others: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        finding = self.witness.finding
        yield f"{self.witness.name}, found by {self.witness.checker}: {finding.message}"
        yield f"It violates {self.witness.law}."
        if self.subject:
            yield self.subject
        if self.moments:
            yield ""
            yield from self._timed()
        yield from ("", *self.final_state) if self.final_state else ()
        yield from ("", f"Conclusion: {self.conclusion}")
        yield from ("", f"Can be explained: {', '.join(self.others)}")

    def _timed(self) -> Iterator[str]:
        since = f"since the {'load' if self.began else 'history'} began"
        yield f"In seconds {since}, with the faults that are on."
        width = max(6, *(len(_ids(on)) for _, on in self.moments))
        yield f"{'s':>10}  faults"
        long = self.moments[-1][0].t - self.moments[0][0].t >= FINE_NS
        digits = 3 if long else 6
        for step, on in self.moments:
            yield f"{(step.t - self.began) / 1e9:10.{digits}f}  {_ids(on):<{width}}  {step.text}"
        if self.left_out:
            yield f"{'':10}  {'':{width}}  ({self.left_out:,} less relevant moments omitted)"

    def plain(self) -> dict[str, Any]:
        """Return the story for JSON."""
        finding = self.witness.finding
        return {
            "code": finding.code,
            "witness": self.witness.number,
            "witnesses": len(finding.evidence),
            "count": finding.count,
            "checker": self.witness.checker,
            "message": finding.message,
            "demand": finding.demand,
            "permitted": finding.permitted,
            "excused": finding.excused,
            "evidence": dict(self.witness.row),
            "subject": self.subject,
            "moments": [self._moment(step, on) for step, on in self.moments],
            "left_out": self.left_out,
            "end": list(self.final_state),
            "conclusion": self.conclusion,
            "explainable": list(self.others),
        }

    def _moment(self, step: Moment, on: tuple[int, ...]) -> dict[str, Any]:
        after_s = round((step.t - self.began) / 1e9, 6)
        return {"t": step.t, "after_s": after_s, "faults": list(on), "what": step.text}


def _ids(faults: Sequence[int]) -> str:
    return " ".join(map(str, faults))


def explain(run: RunDir, text: str | None = None) -> Story | None:
    """Return the story of a finding's witness; None if the run has no finding.

    Raises BadRequest if the finding does not exist or its evidence or the history is damaged.
    """
    verdict = load_verdict(run)
    about = choose_witness(verdict, text)
    if about is None:
        return None
    history = open_history(run)
    try:
        return _write_story(history, verdict, about)
    except BROKEN as e:
        why = " ".join(str(e).split())[:200] or type(e).__name__
        raise BadRequest(
            f"{about.name} of {run.path} cannot be explained: its evidence or the history is"
            f" damaged or of another version ({why}); seatrial check {run.path} judges it again"
        ) from e


def _write_story(history: History, verdict: Verdict, about: FindingWitness) -> Story:
    facts = gather_facts(history, about)
    steps = own_moments(facts)
    around = _surroundings(facts, steps)
    shown = select_moments(
        dict.fromkeys([*steps, *around]), _central_time(about, steps), MAX_MOMENTS
    )
    began = int(history.state.get("load_began_ns", 0))
    words = words_of(history.state)
    steps_shown = [replace(step, text=words(step.text)) for step in shown]
    return Story(
        witness=replace(about, finding=finding_in(about.finding, words)),
        subject=describe_subject(facts),
        began=began,
        moments=tuple((step, faults_at(facts.history.faults, step.t)) for step in steps_shown),
        left_out=len({*steps, *around}) - len(shown),
        final_state=tuple(map(words, final_state(facts))),
        conclusion=words(conclusion(facts)),
        others=tuple(explainable_names(verdict)),
    )


def gather_facts(history: History, about: FindingWitness) -> StoryFacts:
    """Return the facts in the run's folder about a witness."""
    wanted, rows = _query_rows(history, row_query(about, history))
    acked = ((r["key"], r["offset"]) for r in rows if r["f"] == F.SEND and r["type"] == Type.OK)
    places = tuple(place for place in dict.fromkeys(acked) if None not in place)
    held, read = stored_copies(history, replace(wanted, places=(*wanted.places, *places)))
    names = _names(history, wanted, rows)
    missed = any(word in about.finding.code for word in MISSED)
    past = _passes(history, wanted, rows) if missed else {}
    return StoryFacts(history, names, about, wanted, rows, held, read, past)


def _query_rows(history: History, wanted: RowQuery) -> tuple[RowQuery, list[Row]]:
    """Return the rows; for places, also the rows of the messages at them. Messages are in the order
    of their first rows."""
    rows = select_rows(history, wanted)
    if wanted.places:
        there = {row["value"] for row in rows if (row["key"], row["offset"]) in wanted.places}
        wanted = replace(wanted, values=tuple({*wanted.values, *there} - {None}))
        rows = select_rows(history, wanted)
    first = {row["value"]: at for at, row in reversed(list(enumerate(rows)))}
    values = sorted(wanted.values, key=lambda value: (first.get(value, len(rows)), value))
    return replace(wanted, values=tuple(values)), rows


def _names(history: History, wanted: RowQuery, rows: Sequence[Row]) -> HistoryNames:
    """Return the names of a story: one message is `the message`; several have letters."""
    values = wanted.values[: len(LETTERS)]
    labels = {value: f"message {LETTERS[n]}" for n, value in enumerate(values)}
    if len(values) == 1:
        labels = {values[0]: "the message"}
    ops = {row["op"] for row in rows}
    notes = history.read("notes").to_pylist()
    texts = {note["op"]: note["text"] for note in notes if note["op"] in ops and note["text"]}
    numbers = {row["value"] for row in rows if row["value"] is not None}
    called = {
        value: str(text) for value, (text, _) in original_messages(history.run, numbers).items()
    }
    return HistoryNames(history, texts, labels, called)


def _passes(history: History, wanted: RowQuery, rows: Sequence[Row]) -> Mapping[int, list[Pass]]:
    """Return, by message, the processes that read beyond its offset without receiving it."""
    found: dict[int, list[Pass]] = {}
    for row in rows:
        acked = row["f"] == F.SEND and row["type"] == Type.OK and row["offset"] is not None
        if not acked or row["value"] not in wanted.values:
            continue
        given = {r["process"] for r in rows if r["f"] != F.SEND and r["value"] == row["value"]}
        some = passes(history, (row["key"], row["offset"]), row["t"])
        found[row["value"]] = [one for one in some if one.process not in given]
    return found


def own_moments(facts: StoryFacts) -> list[Moment]:
    """Return the moments of the subject itself."""
    rows, names = facts.rows, facts.names
    values, ops = facts.query.values, facts.query.ops
    steps = list(operation_moments([row for row in rows if row["op"] in ops], names))
    steps += message_moments([row for row in rows if row["value"] in values], names)
    for value, some in facts.passes.items():
        (place,) = facts.acknowledged_at(value)[:1]
        steps += pass_moments(some, place, names)
        steps += _why_passed(facts, value, some)
    return steps


def _why_passed(facts: StoryFacts, value: int, some: Sequence[Pass]) -> Iterator[Moment]:
    """Yield the last notes of each process that read beyond the message, up to that time."""
    until = {one.process: one.t for one in some}
    since = min(row["t"] for row in facts.sends(value, Type.OK))
    moments_by_process: dict[int, list[Moment]] = {process: [] for process in until}
    for note in facts.history.read("notes").sort_by("t").to_pylist():
        process, t = note["process"], note["t"]
        if process in until and note["op"] is not None and since <= t <= until[process]:
            words = f"{facts.names.process(process)} notes: {note['text']}"
            moments_by_process[process].append(Moment(t, 1, words, 6))
    for steps in moments_by_process.values():
        yield from steps[-MAX_NOTES:]


def _surroundings(facts: StoryFacts, steps: Sequence[Moment]) -> list[Moment]:
    """Return the faults in force meanwhile, and the events of the broker set."""
    history = facts.history
    times = [*(step.t for step in steps), *evidence_times_ns(facts.witness.row)]
    if not times:
        return []
    first, last = min(times), max(times)
    if not steps:
        first, last = first - MARGIN_NS, last + MARGIN_NS
    overlapping = {
        f.id
        for f in facts.history.faults
        if f.begin is not None and f.begin <= last and (f.healed is None or f.healed >= first)
    }
    moments = list(fault_moments(history, overlapping))
    began = min(first, int(history.state.get("load_began_ns", 0)))
    cluster = cluster_moments(history, BrokerNames.of(history), began, facts.broker_set)
    moments += [m for m in cluster if first <= m.t <= last]
    return [*_master_before(facts, first), *moments]


def _master_before(facts: StoryFacts, t: int) -> Iterator[Moment]:
    """Yield the master before the story begins."""
    sets = broker_sets_before(facts.events, BrokerNames.of(facts.history), t + 1)
    if state := sets.get(facts.broker_set):
        words = f"{state.master} is master in epoch {state.epoch}{state.members}"
        yield Moment(t, -1, f"{facts.broker_set}: {words}", 7)


def _central_time(about: FindingWitness, steps: Sequence[Moment]) -> int:
    """Return the most important time of the story."""
    times = evidence_times_ns(about.row) or [step.t for step in steps]
    return min(times, default=0)


def describe_subject(facts: StoryFacts) -> str:
    """Return the subject of the story, by its numbers."""
    if facts.query.values:
        return "\n".join(_message(facts, value) for value in facts.query.values[: len(LETTERS)])
    words = [
        str(facts.witness.row[name])
        for name in ("kind", "key", "what")
        if name in facts.witness.row
    ]
    imported = facts.history.state.get("imported")
    lines = f" Operations are numbered by the lines of {imported['file']}." if imported else ""
    words = ["key", *words] if "key" in facts.witness.row and len(words) == 1 else words
    what = " ".join(words)
    return f"It is about {what}.{lines}" if words else lines.strip()


def _message(facts: StoryFacts, value: int) -> str:
    original = facts.original(value)
    called = f", {original} in its file" if original else ""
    label = facts.names.message(value)
    number = f"number {sequence_of(value):,} of producer {producer_of(value)}"
    return f"{label[:1].upper()}{label[1:]} is {number} (value {value}){called}."


def nothing_to_explain(run: RunDir) -> str:
    """Return the text for a run without findings."""
    return f"There is nothing to explain: {load_verdict(run).sentence}"


# ----------------------------------------------------------------------------------- a failing run


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
    recorded = history.events
    leader = ""
    for event in (e for e in recorded if e.t < began):
        if event.kind == "raft" and event.fields.get("state") == "leader":
            leader = event.node
    stands = [
        f"{name} has the master {state.master} in epoch {state.epoch}{state.members}"
        for name, state in broker_sets_before(recorded, brokers, began).items()
    ]
    return f"At first {'; '.join([*stands, *([f'{leader} leads'] if leader else [])])}."
