"""The end of a story: the final state of the logs, and the conclusion."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.history.faults_and_events import ClusterEvent, faults_at
from harness.history.notes import PASSED
from harness.history.reader import DRAINED, History
from harness.operation import F, Type
from harness.text.plurals import quantity
from reports._stories.cluster_events import BrokerNames
from reports._stories.moments import HistoryNames
from reports._stories.rows import READING, Pass, Place, Row, RowQuery
from reports._stories.witness import FindingWitness

# columns of evidence on two entries of a log in an order that real time forbids
INVERTED = {"there_by_s", "only_invoked_at_s", "queue"}
INVERTED |= {"value", "lower_value", "offset", "lower_offset"}


@dataclass(frozen=True)
class StoryFacts:
    """The facts in the run's folder about a story's subject."""

    history: History
    names: HistoryNames
    witness: FindingWitness
    query: RowQuery
    rows: Sequence[Row]
    copies: Sequence[Row]  # rows of replicas
    read: frozenset[int]  # replicas whose logs were read at the end
    passes: Mapping[int, Sequence[Pass]]

    def sends(self, value: int, kind: Type) -> list[Row]:
        return [
            row
            for row in self.rows
            if row["f"] == F.SEND and row["value"] == value and row["type"] == kind
        ]

    def acknowledged_at(self, value: int) -> list[Place]:
        acks = self.sends(value, Type.OK)
        return [(row["key"], row["offset"]) for row in acks if row["offset"] is not None]

    def receptions(self, value: int) -> list[Row]:
        return [row for row in self.rows if row["f"] in READING and row["value"] == value]

    def original(self, value: int) -> str:
        """Return the message's name in the file that it was imported from."""
        row = self.witness.row
        names = [name for name, cell in row.items() if name.endswith("value") and cell == value]
        prefixes = (name.removesuffix("value") for name in names)
        return next((str(row[f"{p}original"]) for p in prefixes if f"{p}original" in row), "")

    @cached_property
    def events(self) -> tuple[ClusterEvent, ...]:
        return self.history.events

    @cached_property
    def broker_set(self) -> str:
        """The broker set of the story; empty if it is not recorded."""
        nodes = [self.names.node(row["node"]) for row in self.rows if row["node"] is not None]
        nodes += [str(self.witness.row[name]) for name in ("node",) if name in self.witness.row]
        if "set" in self.witness.row:
            return str(self.witness.row["set"])
        names = {  # of a container, several
            str(event.fields["brokerName"])
            for event in self.events
            if event.kind == "role" and "brokerName" in event.fields and event.node in nodes
        }
        return names.pop() if len(names) == 1 else ""


# ---------------------------------------------------------------------------------- the final state


def final_state(facts: StoryFacts) -> Iterator[str]:
    """Yield the logs that hold the messages, and the readers that reached the end of their
    queues."""
    if facts.query.values and not facts.read and "imported" not in facts.history.state:
        yield "No replica's log was read at the end."
    for value in facts.query.values if facts.read else ():
        yield _logs(facts, value)
        yield from _instead(facts, value)
    for place in facts.query.places:
        yield from _entries_at(facts, place)
    yield from _drains(facts)


def _logs(facts: StoryFacts, value: int) -> str:
    it = facts.names.message(value)
    rows = sorted({(r["node"], r["key"], r["offset"]) for r in facts.copies if r["value"] == value})
    if not rows:
        return f"In the end no log holds {it}, of {_nodes(facts, facts.read)}."
    where = ", ".join(
        f"{facts.names.node(n)} ({facts.names.key(key)} at {offset:,})" for n, key, offset in rows
    )
    without = facts.read - {node for node, _, _ in rows}
    lack = f"; not that of {_nodes(facts, without)}" if without else ""
    return f"In the end {it} is in the log of {where}{lack}."


def _instead(facts: StoryFacts, value: int) -> Iterator[str]:
    """Yield the messages at the offsets at which a message had been acknowledged."""
    for place in dict.fromkeys(facts.acknowledged_at(value)):
        there = [r for r in facts.copies if (r["key"], r["offset"]) == place]
        for other in sorted({r["value"] for r in there if r["value"] not in (None, value)}):
            nodes = frozenset(r["node"] for r in there if r["value"] == other)
            what = f"{_hold(facts, nodes)} {facts.names.message(other)}"
            yield f"In its place, {facts.names.place(place)}, {what}."


def _nodes(facts: StoryFacts, numbers: frozenset[int]) -> str:
    return ", ".join(sorted(facts.names.node(number) for number in numbers))


def _hold(facts: StoryFacts, numbers: frozenset[int]) -> str:
    """Return `broker-1, broker-2 hold`."""
    return f"{_nodes(facts, numbers) or 'no replica'} {'hold' if len(numbers) > 1 else 'holds'}"


def _entries_at(facts: StoryFacts, place: Place) -> Iterator[str]:
    rows = [row for row in facts.copies if (row["key"], row["offset"]) == place]
    for row in sorted(rows, key=lambda row: (row["node"], row["value"] or 0)):
        what = facts.names.message(row["value"]) if row["value"] is not None else "no message"
        where = f"{facts.names.node(row['node'])} {facts.names.place(place)}"
        yield f"In the log of {where} holds {what}."


def _drains(facts: StoryFacts) -> Iterator[str]:
    """Yield the readers that reached the end of the messages' queues."""
    keys = {row["key"] for row in facts.rows if row["key"] is not None and facts.query.values}
    for note in (*facts.history.notes[DRAINED], *facts.history.notes[PASSED]):
        word, _, rest = note.text.partition(" ")
        fields = json.loads(rest)
        if fields.get("key") not in keys:
            continue
        key = facts.names.key(fields["key"])
        if word == PASSED:
            yield f"{key} was read up to offset {fields['to']:,}."
            continue
        who = facts.names.process(note.process) if note.process is not None else "a reader"
        if fields["from"] == fields["to"]:
            yield f"{who} was at the end of {key}, offset {fields['to']:,}."
        else:
            extent = f"from offset {fields['from']:,} to {fields['to']:,}"
            yield f"{who} read {key} to its end, {extent}."


# ---------------------------------------------------------------------------------- the conclusion

Clause = Callable[[StoryFacts, int], str]


def conclusion(facts: StoryFacts) -> str:
    """Return what the story proves, from its facts; otherwise the checker's own text."""
    row, code = facts.witness.row, facts.witness.finding.code
    for name in ("explanation", "why"):
        if row.get(name):
            by_time = f" {row['by_time']}" if row.get("by_time") else ""
            meaning = facts.witness.finding.message.partition("; first: ")[0]
            lead = f"{meaning}. Here: " if {"kind", "what"} & set(row) else ""
            return f"{_sentence(lead + str(row[name]))}{by_time}"
    if set(row) >= INVERTED:
        return _inversion(facts)
    clauses = CLAUSES.get(code, ())
    value = next(iter(facts.query.values), None)
    texts = [clause(facts, value) for clause in clauses if value is not None]
    words = "; ".join(text for text in texts if text)
    return _sentence(words or facts.witness.finding.message)


def _sentence(words: str) -> str:
    text = words[:1].upper() + words[1:]
    return text if text.endswith(".") else f"{text}."


def _inversion(facts: StoryFacts) -> str:
    """Return the text of two entries of one log in an order that real time forbids."""
    row = facts.witness.row
    later, earlier = (facts.names.message(row[name]) for name in ("value", "lower_value"))
    first = _sentence(later)[:-1]
    return (
        f"{first} was acknowledged or read by {row['there_by_s']:.3f} s of the run, "
        f"before {earlier} was sent at {row['only_invoked_at_s']:.3f} s, but {later} is at "
        f"offset {row['offset']:,} of {row['queue']}, behind {earlier} at {row['lower_offset']:,}."
    )


def _acknowledged(facts: StoryFacts, value: int) -> str:
    acks = facts.sends(value, Type.OK)
    if not acks:
        return ""
    ack = acks[0]
    epoch = f" in epoch {ack['epoch']}" if ack["epoch"] is not None else ""
    on_then = faults_at(facts.history.faults, ack["t"])
    on = [f"fault {f.id} ({f.label})" for f in facts.history.faults if f.id in on_then]
    during = f" while {' and '.join(on)} {'was' if len(on) == 1 else 'were'} on" if on else ""
    who = f"{facts.names.acknowledger(ack)} acknowledged {facts.names.message(value)}"
    return f"{who}{epoch}{during}"


def _succeeded(facts: StoryFacts, value: int) -> str:
    """Return who was elected next, how soon, and whether its log lacked the message then."""
    acks = facts.sends(value, Type.OK)
    after = [
        e
        for e in facts.events
        if acks
        and e.kind == "election"
        and e.t >= acks[0]["t"]
        and e.fields.get("masterId")
        and e.fields.get("brokerName") == facts.broker_set
    ]
    if not after:
        return ""
    event = after[0]
    who, epoch = BrokerNames.of(facts.history).name(event.fields["masterId"]), event.fields["epoch"]
    later = (event.t - acks[0]["t"]) / 1e9
    other = _written_instead(facts, value, epoch)
    chosen = who if other is None else f"{who}, whose log did not hold it,"
    proof = (
        "whether its log held the message by then is not recorded"
        if other is None
        else f"in that epoch it wrote {facts.names.message(other)} at the same offset"
    )
    return f"{later:.3f} s later {chosen} was elected for epoch {epoch}; {proof}"


def _written_instead(facts: StoryFacts, value: int, epoch: int) -> int | None:
    """Return the message that the master of an epoch wrote at the offset of the acknowledgement:
    masters only append, so it had nothing there when it was elected. None if there is none."""
    places = facts.acknowledged_at(value)
    others = {
        row["value"]
        for row in facts.copies
        if (row["key"], row["offset"]) in places and row.get("epoch") == epoch
    }
    return min(others - {value, None}, default=None)


def _cut(facts: StoryFacts, value: int) -> str:
    """Return how its acknowledger cut its log afterwards, and whether below the message."""
    acks = facts.sends(value, Type.OK)
    who = facts.names.node(acks[0]["node"]) if acks and acks[0]["node"] is not None else ""
    mine = [e for e in facts.events if acks and e.node == who]
    cuts = [e for e in mine if e.kind == "truncate" and e.t >= acks[0]["t"]]
    if not cuts:
        return ""
    fields = cuts[0].fields
    text = f"{who} cut its log from {fields['before']:,} to {fields['point']:,} bytes"
    least, most = _position(facts, value, [e for e in mine if e.t < cuts[0].t])
    if least is not None and fields["point"] <= least:
        return f"{text}, below the message"
    if most is not None and fields["point"] >= most:
        return f"{text}, which is behind the message"
    return f"{text}; whether the message was in that part is not recorded"


def _position(
    facts: StoryFacts, value: int, events: Sequence[ClusterEvent]
) -> tuple[int | None, int | None]:
    """Return bounds of where the message is in its acknowledger's log: the log's reported ends
    before it was sent and after it was acknowledged, in bytes."""
    sent = min((row["t"] for row in facts.sends(value, Type.INVOKE)), default=None)
    acked = min(row["t"] for row in facts.sends(value, Type.OK))
    ends = [(e.t, int(e.fields["end"])) for e in events if e.kind == "replication"]
    before = [end for t, end in ends if sent is not None and t <= sent]
    after = [end for t, end in ends if t >= acked]
    return before[-1] if before else None, after[0] if after else None


def _held(facts: StoryFacts, value: int) -> str:
    nodes = frozenset(row["node"] for row in facts.copies if row["value"] == value)
    if not facts.read:
        return ""
    return f"in the end {_hold(facts, nodes)} it"


def _unseen(facts: StoryFacts, value: int) -> str:
    """Return the readers that went on without the message."""
    past = [facts.names.process(one.process) for one in facts.passes.get(value, ())]
    return f"{', '.join(past)} read past its offset without receiving it" if past else ""


def _given(facts: StoryFacts, value: int) -> str:
    places = sorted({(row["key"], row["offset"]) for row in facts.receptions(value)})
    at = " and ".join(f"{facts.names.key(key)} at {offset:,}" for key, offset in places)
    return f"readers received it from {at}" if places else "no reader ever received it"


def _sent(facts: StoryFacts, value: int) -> str:
    sends = [row for row in facts.rows if row["f"] == F.SEND and row["value"] == value]
    if not sends:
        return "no send of it is recorded"
    attempts = max(row["attempts"] or 1 for row in sends)
    ended = [Type(row["type"]) for row in sends if row["type"] != Type.INVOKE]
    how = {Type.OK: "acknowledged", Type.FAIL: "refused"}
    end = how.get(ended[-1], "of unknown outcome") if ended else "of unknown outcome"
    return f"it was sent in {quantity(attempts, 'attempt')}, and {end}"


def _group(facts: StoryFacts, value: int) -> str:
    group = facts.witness.row.get("group")
    return f"{group} read to the end without receiving it" if group else ""


def _both(facts: StoryFacts, value: int) -> str:
    """Return the messages at one offset."""
    row = facts.witness.row
    messages = " and ".join(facts.names.message(each) for each in facts.query.values)
    return f"offset {row['offset']:,} of {row['queue']} was that of {messages}"


CLAUSES: Mapping[str, tuple[Clause, ...]] = {
    "LOST_ACKED": (_acknowledged, _succeeded, _cut, _held, _unseen),
    "READ_SKIPPED": (_acknowledged, _held, _given, _unseen),
    "UNSEEN_ACKED": (_acknowledged, _held, _given),
    "UNREAD_ACKED": (_acknowledged, _held, _given, _group),
    "OFFSET_CONFLICT": (_both,),
    "REPLICAS_DIFFER": (_both,),
    "DUPLICATED": (_sent, _given),
    "DUPLICATED_BY_RETRY": (_sent, _given),
    "OFFSET_MOVED": (_acknowledged, _given, _held),
    "PHANTOM_NEVER_SENT": (_sent, _given, _held),
    "PHANTOM_REFUSED": (_sent, _given, _held),
    "PHANTOM_VANISHED": (_sent, _given, _held),
}
