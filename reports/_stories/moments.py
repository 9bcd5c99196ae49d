"""Rows of a history as moments with a sentence each: messages, and operations on objects."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.history.reader import History
from harness.operation import F, Type, producer_of, sequence_of
from harness.text.plurals import ordinal
from reports._stories.rows import READING, Pass, Place, Row

MAX_RECEPTIONS = 2  # deliveries of a message to one process
MAX_ELEMENTS = 8
OUTCOMES = {Type.FAIL: "refused", Type.INFO: "not answered: the outcome is unknown"}


@dataclass(frozen=True, order=True)
class Moment:
    """Something that happened, ns since the run's start. Moments of less `weight` are left out
    first."""

    t: int
    order: int  # among moments of the same time
    text: str
    weight: int = field(compare=False, default=9)


def select_moments(moments: Iterable[Moment], about: int, limit: int) -> list[Moment]:
    """Return the moments with most weight and nearest to a time, in order of time."""
    ranked = sorted(moments, key=lambda one: (-one.weight, abs(one.t - about), one))
    return sorted(ranked[:limit])


@dataclass(frozen=True)
class HistoryNames:
    """Names for the numbers of a history, and for the messages of a story."""

    history: History
    errors: Mapping[int, str] = field(default_factory=dict)  # by operation: error text
    labels: Mapping[int, str] = field(default_factory=dict)
    originals: Mapping[int, str] = field(default_factory=dict)  # names of imported messages

    def process(self, number: int) -> str:
        return str(self._names("processes").get(str(number), f"process {number}"))

    def key(self, number: int | None) -> str:
        return self._at("keys", number)

    def object(self, number: int) -> str:
        """Return the name of a key, with the word key before a bare number."""
        name = self.key(number)
        return f"key {name}" if name.lstrip("-").isdigit() else name

    def node(self, number: int | None) -> str:
        return self._at("nodes", number)

    def place(self, place: Place) -> str:
        """Return `offset 1,203 of orders-0`."""
        return f"offset {place[1]:,} of {self.key(place[0])}"

    def acknowledger(self, row: Row) -> str:
        return "the cluster" if row["node"] is None else self.node(row["node"])

    def error(self, op: int) -> str:
        """Return the error of an operation in brackets; empty if none is noted."""
        return f" ({self.errors[op]})" if self.errors.get(op) else ""

    def message(self, value: int) -> str:
        number = f"message {sequence_of(value)} of producer {producer_of(value)}"
        return self.labels.get(value) or number

    def value(self, number: int | None) -> str:
        """Return a value of an object, as its file wrote it."""
        texts = self.history.names.get("values", ())
        if number is None:
            return "nothing"
        if number in self.originals:
            return self.originals[number]
        return str(texts[number]) if 0 <= number < len(texts) else str(number)

    def _names(self, what: str) -> Mapping[str, Any]:
        names = self.history.names.get(what, {})
        return names if isinstance(names, dict) else {}

    def _at(self, what: str, number: int | None) -> str:
        names = self.history.names.get(what, ())
        return str(names[number]) if number is not None and 0 <= number < len(names) else "?"


# ------------------------------------------------------------------------------------- messages


def message_moments(rows: Sequence[Row], names: HistoryNames) -> Iterator[Moment]:
    """Yield the sends of messages, their completions, and their deliveries."""
    given: dict[tuple[int, int], list[Row]] = {}
    selected: set[int] = set()  # sends whose queue the client selected
    for row in rows:
        if row["f"] == F.SEND:
            if row["type"] == Type.INVOKE and row["key"] is None:
                selected.add(row["op"])
            yield _send_moment(row, names, row["op"] in selected)
        elif row["f"] in READING and row["type"] == Type.OK and row["value"] is not None:
            given.setdefault((row["process"], row["value"]), []).append(row)
    for some in given.values():
        yield from (_reception(row, names) for row in some[:MAX_RECEPTIONS])
        if len(some) > MAX_RECEPTIONS:
            last, who = some[-1], names.process(some[-1]["process"])
            what = names.message(last["value"])
            words = f"{who} receives {what} for the {ordinal(len(some))} time"
            yield Moment(last["t"], 2, words)


def _send_moment(row: Row, names: HistoryNames, selected: bool) -> Moment:
    it = names.message(row["value"])
    if row["type"] == Type.INVOKE:
        to = "a queue that its client selects" if selected else names.key(row["key"])
        words = f"{names.process(row['process'])} sends {it} to {to}"
        return Moment(row["t"], 0, words)
    attempts = _attempts(row)
    if row["type"] != Type.OK:
        why = f"{attempts}{names.error(row['op'])}"
        return Moment(row["t"], 2, f"{it} is {OUTCOMES[Type(row['type'])]}{why}")
    where = f": offset {row['offset']:,}" if row["offset"] is not None else ""
    it += f" in {names.key(row['key'])}" if selected else ""
    epoch = f", epoch {row['epoch']}" if row["epoch"] is not None else ""
    who = names.acknowledger(row)
    return Moment(row["t"], 2, f"{who} acknowledges {it}{where}{epoch}{attempts}")


def _attempts(row: Row) -> str:
    many = row["attempts"] or 1
    return f", at attempt {many}" if many > 1 else ""


def _reception(row: Row, names: HistoryNames) -> Moment:
    at = "" if row["offset"] is None else f" at offset {row['offset']:,}"
    where = f"{names.key(row['key'])}{at}"
    verb = "reads" if row["f"] == F.READ else "receives"
    words = f"{names.process(row['process'])} {verb} {names.message(row['value'])} from {where}"
    return Moment(row["t"], 3, words)


def pass_moments(some: Sequence[Pass], place: Place, names: HistoryNames) -> Iterator[Moment]:
    """Yield the first message beyond a place that each process received."""
    for one in some:
        what = f"{names.message(one.value)} at {one.offset:,}"
        who = names.process(one.process)
        words = f"{who} reads past {names.place(place)}: it receives {what}"
        yield Moment(one.t, 4, words, 8)


# ----------------------------------------------------------------------------------- operations


def operation_moments(rows: Sequence[Row], names: HistoryNames) -> Iterator[Moment]:
    """Yield the begin and the end of each operation."""
    by_op: dict[int, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    for op, some in by_op.items():
        yield from _operation(op, some, names)


def _operation(op: int, rows: Sequence[Row], names: HistoryNames) -> Iterator[Moment]:
    transaction = any(row["mop"] is not None for row in rows)
    name = f"T{op}" if transaction else f"op {op}"
    who = names.process(rows[0]["process"])
    begun = [row for row in rows if row["type"] == Type.INVOKE]
    ended = [row for row in rows if row["type"] != Type.INVOKE]
    if begun:
        what = "; ".join(_invocation(row, names) for row in begun if not transaction or _named(row))
        yield Moment(begun[0]["t"], 0, f"{who} begins {name}: {what}")
    if ended:
        yield Moment(ended[-1]["t"], 2, f"{name} of {who} {_completion(ended, names)}")
    else:
        yield Moment(max(row["t"] for row in rows) + 1, 3, f"{name} of {who} never completes")


def _named(row: Row) -> bool:
    return row["mop"] is not None


def _invocation(row: Row, names: HistoryNames) -> str:
    """Return `put 7 to x`."""
    f = F(row["f"]).name.lower()
    value = "" if row["value"] is None else f" {names.value(row['value'])}"
    arg = "" if row["arg"] is None else f" -> {names.value(row['arg'])}"
    preposition = "to" if row["f"] in WRITES else "of"
    where = "" if row["key"] is None else f" {preposition} {names.object(row['key'])}"
    return f"{f}{value}{arg}{where}"


def _completion(rows: Sequence[Row], names: HistoryNames) -> str:
    last = rows[-1]
    if last["f"] in (*READING, F.WATCH) and last["type"] == Type.OK:
        return f"gives {_batch(rows, names)}"
    if last["type"] != Type.OK:
        if last["f"] == F.CAS and last["pos"] is not None:
            return "is refused by its comparison"
        return f"is {OUTCOMES[Type(last['type'])]}{names.error(last['op'])}"
    seen = _answers(rows, names)
    return f"ends ok{f': {seen}' if seen else ''}"


def _batch(rows: Sequence[Row], names: HistoryNames) -> str:
    """Return the offsets of each queue in a poll's answer, in its order."""
    queues: dict[int, list[str]] = {}
    for row in rows:
        if row["pos"] is not None and row["offset"] is not None:
            queues.setdefault(row["key"], []).append(f"{row['offset']}")
    answers = [f"{names.key(key)} at {_shortened(some)}" for key, some in queues.items()]
    return "; ".join(answers) or "nothing"


def _answers(rows: Sequence[Row], names: HistoryNames) -> str:
    """Return the answer of an operation, or of each micro-operation of a transaction."""
    lists: dict[int | None, list[str]] = {}
    answers: list[tuple[int, str]] = []
    for row in rows:
        if row["type"] != Type.OK:
            continue
        if row["pos"] is not None:
            lists.setdefault(row["mop"], []).append(names.value(row["value"]))
            continue
        if row["f"] == F.LIST and row["key"] is not None:
            some = lists.pop(row["mop"], [])
            answers.append((row["mop"] or 0, f"{names.object(row['key'])} is {_shortened(some)}"))
        elif row["f"] in READS and row["key"] is not None:
            answers.append(
                (row["mop"] or 0, f"{names.object(row['key'])} gives {_answer(row, names)}")
            )
        elif row["offset"] is not None:
            answers.append((row["mop"] or 0, f"offset {row['offset']:,}"))
    answers += [(number or 0, _shortened(some)) for number, some in lists.items()]
    return "; ".join(words for _, words in sorted(answers, key=lambda pair: pair[0]))


WRITES = (F.PUT, F.CAS, F.APPEND, F.ADD, F.ENQUEUE, F.SEND)
READS = (F.GET, F.COUNT, F.DEQUEUE, F.ACQUIRE, F.SEE, F.QUERY)


def _answer(row: Row, names: HistoryNames) -> str:
    if row["f"] == F.ACQUIRE:
        return "the lock" + ("" if row["offset"] is None else f", token {row['offset']}")
    if row["f"] in (F.SEE, F.QUERY):
        return "nothing" if row["offset"] is None else f"{row['offset']:,}"
    return names.value(row["value"])


def _shortened(elements: Sequence[str]) -> str:
    if len(elements) <= MAX_ELEMENTS:
        return f"[{' '.join(elements)}]"
    ends = [*elements[: MAX_ELEMENTS // 2], "...", *elements[-MAX_ELEMENTS // 2 :]]
    return f"[{' '.join(ends)}] ({len(elements):,} elements)"
