"""How a story ends: whose log holds what in the end, and what follows from all of it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.explain.context import Cast
from harness.explain.rows import READING, Pass, Place, Row, Wanted
from harness.explain.subject import Asked
from harness.explain.words import Names
from harness.history.faults_and_events import Event, events, faults_at
from harness.history.notes import PASSED
from harness.history.reader import DRAINED, History
from harness.operation import F, Type

# what evidence says of two entries of a log in an order that real time forbids
INVERTED = {"there_by_s", "only_invoked_at_s", "queue"}
INVERTED |= {"value", "lower_value", "offset", "lower_offset"}


@dataclass(frozen=True)
class Known:
    """What the run's folder says about the subject."""

    history: History
    names: Names
    asked: Asked
    wanted: Wanted
    rows: Sequence[Row]
    held: Sequence[Row]  # rows of replicas
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

    def given(self, value: int) -> list[Row]:
        return [row for row in self.rows if row["f"] in READING and row["value"] == value]

    def original(self, value: int) -> str:
        """What the message was called in the file that it was imported from."""
        row = self.asked.row
        names = [name for name, cell in row.items() if name.endswith("value") and cell == value]
        prefixes = (name.removesuffix("value") for name in names)
        return next((str(row[f"{p}original"]) for p in prefixes if f"{p}original" in row), "")

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return events(self.history.read("events"))

    @cached_property
    def broker_set(self) -> str:
        """The set of the broker that the story is about; empty where nobody told."""
        nodes = [self.names.node(row["node"]) for row in self.rows if row["node"] is not None]
        nodes += [str(self.asked.row[name]) for name in ("node",) if name in self.asked.row]
        sets = {
            event.node: str(event.fields["brokerName"])
            for event in self.events
            if event.kind == "role" and "brokerName" in event.fields
        }
        if "set" in self.asked.row:
            return str(self.asked.row["set"])
        found = {sets[node] for node in nodes if node in sets}
        return found.pop() if len(found) == 1 else ""


# ---------------------------------------------------------------------------------- the last look


def ending(known: Known) -> Iterator[str]:
    """Whose log holds it, and what was read to its end."""
    if known.wanted.values and not known.read and "imported" not in known.history.state:
        yield "No replica's log was read at the end."
    for value in known.wanted.values if known.read else ():
        yield _logs(known, value)
        yield from _instead(known, value)
    for place in known.wanted.places:
        yield from _stands(known, place)
    yield from _drains(known)


def _logs(known: Known, value: int) -> str:
    it = known.names.message(value)
    rows = sorted({(r["node"], r["key"], r["offset"]) for r in known.held if r["value"] == value})
    if not rows:
        return f"In the end no log holds {it}, of {_nodes(known, known.read)}."
    where = ", ".join(
        f"{known.names.node(n)} ({known.names.key(key)} at {offset:,})" for n, key, offset in rows
    )
    without = known.read - {node for node, _, _ in rows}
    lack = f"; not that of {_nodes(known, without)}" if without else ""
    return f"In the end {it} is in the log of {where}{lack}."


def _instead(known: Known, value: int) -> Iterator[str]:
    """What stands where it had been acknowledged."""
    for place in dict.fromkeys(known.acknowledged_at(value)):
        there = [r for r in known.held if (r["key"], r["offset"]) == place]
        for other in sorted({r["value"] for r in there if r["value"] not in (None, value)}):
            nodes = frozenset(r["node"] for r in there if r["value"] == other)
            what, where = known.names.message(other), f"offset {place[1]:,}"
            yield (
                f"In its place, {where} of {known.names.key(place[0])}, {_nodes(known, nodes)} "
                + (f"{'hold' if len(nodes) > 1 else 'holds'} {what}.")
            )


def _nodes(known: Known, numbers: frozenset[int]) -> str:
    return ", ".join(sorted(known.names.node(number) for number in numbers))


def _stands(known: Known, place: Place) -> Iterator[str]:
    rows = [row for row in known.held if (row["key"], row["offset"]) == place]
    for row in sorted(rows, key=lambda row: (row["node"], row["value"] or 0)):
        what = known.names.message(row["value"]) if row["value"] is not None else "no message"
        where = f"offset {place[1]:,} of {known.names.key(place[0])}"
        yield f"In the log of {known.names.node(row['node'])} {where} holds {what}."


def _drains(known: Known) -> Iterator[str]:
    """Who read the queues of the messages to their ends."""
    keys = {row["key"] for row in known.rows if row["key"] is not None and known.wanted.values}
    for note in known.history.notes(DRAINED, PASSED):
        word, _, rest = note.text.partition(" ")
        said = json.loads(rest)
        if said.get("key") not in keys:
            continue
        key = known.names.key(said["key"])
        if word == PASSED:
            yield f"{key} was read up to offset {said['to']:,}."
            continue
        who = known.names.process(note.process) if note.process is not None else "a reader"
        if said["from"] == said["to"]:
            yield f"{who} stood at the end of {key}, offset {said['to']:,}."
        else:
            yield f"{who} read {key} to its end, from offset {said['from']:,} to {said['to']:,}."


# ---------------------------------------------------------------------------------- what follows

Clause = Callable[[Known, int], str]


def concluded(known: Known) -> str:
    """What the story proves, from what it tells; else what the checker itself says."""
    row, code = known.asked.row, known.asked.finding.code
    for name in ("explanation", "why"):
        if row.get(name):
            by_time = f" {row['by_time']}" if row.get("by_time") else ""
            meaning = known.asked.finding.message.partition("; first: ")[0]
            lead = f"{meaning}. Here: " if {"kind", "what"} & set(row) else ""
            return f"{_full(lead + str(row[name]))}{by_time}"
    if set(row) >= INVERTED:
        return _inversion(known)
    clauses = CLAUSES.get(code, ())
    value = next(iter(known.wanted.values), None)
    said = [clause(known, value) for clause in clauses if value is not None]
    words = "; ".join(text for text in said if text)
    return _full(words or known.asked.finding.message)


def _full(words: str) -> str:
    text = words[:1].upper() + words[1:]
    return text if text.endswith(".") else f"{text}."


def _inversion(known: Known) -> str:
    """Two entries of one log in an order that real time forbids."""
    row = known.asked.row
    later, earlier = (known.names.message(row[name]) for name in ("value", "lower_value"))
    return (
        f"{_full(later)[:-1]} was acknowledged or read by {row['there_by_s']:.3f} s of the run, "
        f"before {earlier} was sent at {row['only_invoked_at_s']:.3f} s, and yet {later} stands at "
        f"offset {row['offset']:,} of {row['queue']}, behind {earlier} at {row['lower_offset']:,}."
    )


def _acknowledged(known: Known, value: int) -> str:
    acks = known.sends(value, Type.OK)
    if not acks:
        return ""
    ack = acks[0]
    who = known.names.node(ack["node"]) if ack["node"] is not None else "the cluster"
    epoch = f" in epoch {ack['epoch']}" if ack["epoch"] is not None else ""
    on_then = faults_at(known.history.faults, ack["t"])
    on = [f"fault {f.id} ({f.words})" for f in known.history.faults if f.id in on_then]
    during = f" while {' and '.join(on)} {'was' if len(on) == 1 else 'were'} on" if on else ""
    return f"{who} acknowledged {known.names.message(value)}{epoch}{during}"


def _succeeded(known: Known, value: int) -> str:
    """Return who was elected next, how soon, and whether its log lacked the message then."""
    acks = known.sends(value, Type.OK)
    after = [
        e
        for e in known.events
        if acks
        and e.kind == "election"
        and e.t >= acks[0]["t"]
        and e.fields.get("masterId")
        and e.fields.get("brokerName") == known.broker_set
    ]
    if not after:
        return ""
    event = after[0]
    who, epoch = Cast.of(known.history).name(event.fields["masterId"]), event.fields["epoch"]
    later = (event.t - acks[0]["t"]) / 1e9
    other = _written_instead(known, value, epoch)
    chosen = who if other is None else f"{who}, whose log did not hold it,"
    proof = (
        "whether its log held the message by then is not recorded"
        if other is None
        else f"in that epoch it wrote {known.names.message(other)} at the same offset"
    )
    return f"{later:.3f} s later {chosen} was elected for epoch {epoch}; {proof}"


def _written_instead(known: Known, value: int, epoch: int) -> int | None:
    """Return the message that the master of an epoch wrote at the offset of the acknowledgement:
    masters only append, so it had nothing there when it was elected. None if there is none."""
    places = known.acknowledged_at(value)
    others = {
        row["value"]
        for row in known.held
        if (row["key"], row["offset"]) in places and row.get("epoch") == epoch
    }
    return min(others - {value, None}, default=None)


def _cut(known: Known, value: int) -> str:
    """Return how its acknowledger cut its log afterwards, and whether below the message."""
    acks = known.sends(value, Type.OK)
    who = known.names.node(acks[0]["node"]) if acks and acks[0]["node"] is not None else ""
    mine = [e for e in known.events if acks and e.node == who]
    cuts = [e for e in mine if e.kind == "truncate" and e.t >= acks[0]["t"]]
    if not cuts:
        return ""
    fields = cuts[0].fields
    said = f"{who} cut its log from {fields['before']:,} to {fields['point']:,} bytes"
    least, most = _position(known, value, [e for e in mine if e.t < cuts[0].t])
    if least is not None and fields["point"] <= least:
        return f"{said}, below the message"
    if most is not None and fields["point"] >= most:
        return f"{said}, which is behind the message"
    return f"{said}; whether the message was in that part is not recorded"


def _position(known: Known, value: int, told: Sequence[Event]) -> tuple[int | None, int | None]:
    """Return bounds of where the message is in its acknowledger's log: the log's reported ends
    before it was sent and after it was acknowledged, in bytes."""
    sent = min((row["t"] for row in known.sends(value, Type.INVOKE)), default=None)
    acked = min(row["t"] for row in known.sends(value, Type.OK))
    ends = [(e.t, int(e.fields["end"])) for e in told if e.kind == "replication"]
    before = [end for t, end in ends if sent is not None and t <= sent]
    after = [end for t, end in ends if t >= acked]
    return before[-1] if before else None, after[0] if after else None


def _held(known: Known, value: int) -> str:
    nodes = frozenset(row["node"] for row in known.held if row["value"] == value)
    if not known.read:
        return ""
    verb = "hold" if len(nodes) > 1 else "holds"
    return f"in the end {_nodes(known, nodes) or 'no replica'} {verb} it"


def _unseen(known: Known, value: int) -> str:
    """Readers that went on without it."""
    past = [known.names.process(one.process) for one in known.passes.get(value, ())]
    return f"{', '.join(past)} read past its offset without receiving it" if past else ""


def _given(known: Known, value: int) -> str:
    places = sorted({(row["key"], row["offset"]) for row in known.given(value)})
    at = " and ".join(f"{known.names.key(key)} at {offset:,}" for key, offset in places)
    return f"readers received it from {at}" if places else "no reader ever received it"


def _sent(known: Known, value: int) -> str:
    sends = [row for row in known.rows if row["f"] == F.SEND and row["value"] == value]
    if not sends:
        return "no send of it is recorded"
    attempts = max(row["attempts"] or 1 for row in sends)
    ended = [Type(row["type"]) for row in sends if row["type"] != Type.INVOKE]
    how = {Type.OK: "acknowledged", Type.FAIL: "refused"}
    end = how.get(ended[-1], "of unknown outcome") if ended else "of unknown outcome"
    return f"it was sent in {attempts} attempt{'s' * (attempts > 1)}, and {end}"


def _group(known: Known, value: int) -> str:
    group = known.asked.row.get("group")
    return f"{group} read to the end without receiving it" if group else ""


def _both(known: Known, value: int) -> str:
    """What stood at one offset."""
    row = known.asked.row
    messages = " and ".join(known.names.message(each) for each in known.wanted.values)
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
