"""Rows of a history as moments in plain words: of messages, and of operations on objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.explain.rows import READING, Pass, Row
from harness.history.reader import History
from harness.operation import F, Type, producer_of, sequence_of

SEEN_SHOWN = 2  # times that one process was given a message
ELEMENTS_SHOWN = 8
UNSAID = {Type.FAIL: "refused", Type.INFO: "not answered: the outcome is unknown"}


@dataclass(frozen=True, order=True)
class Step:
    """Something that happened, ns since the run's start. Less `weight` is left out first."""

    t: int
    order: int  # of what happened in the same moment
    words: str
    weight: int = field(compare=False, default=9)


@dataclass(frozen=True)
class Names:
    """Names for the numbers of a history, and for the messages that a story is about."""

    history: History
    said: Mapping[int, str] = field(default_factory=dict)  # by operation: what went wrong
    labels: Mapping[int, str] = field(default_factory=dict)
    originals: Mapping[int, str] = field(default_factory=dict)  # of imported messages

    def process(self, number: int) -> str:
        return str(self._names("processes").get(str(number), f"process {number}"))

    def key(self, number: int | None) -> str:
        return self._at("keys", number)

    def object(self, number: int) -> str:
        """A key that is not a word alone."""
        name = self.key(number)
        return f"key {name}" if name.lstrip("-").isdigit() else name

    def node(self, number: int | None) -> str:
        return self._at("nodes", number)

    def message(self, value: int) -> str:
        number = f"message {sequence_of(value)} of producer {producer_of(value)}"
        return self.labels.get(value) or number

    def value(self, number: int | None) -> str:
        """A value of an object, as its file called it."""
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


def of_messages(rows: Sequence[Row], names: Names) -> Iterator[Step]:
    """Sending, its end, and who was given it."""
    given: dict[tuple[int, int], list[Row]] = {}
    selected: set[int] = set()  # sends whose queue the client selects
    for row in rows:
        if row["f"] == F.SEND:
            if row["type"] == Type.INVOKE and row["key"] is None:
                selected.add(row["op"])
            yield _sent(row, names, row["op"] in selected)
        elif row["f"] in READING and row["type"] == Type.OK and row["value"] is not None:
            given.setdefault((row["process"], row["value"]), []).append(row)
    for some in given.values():
        yield from (_given(row, names) for row in some[:SEEN_SHOWN])
        if len(some) > SEEN_SHOWN:
            last, who = some[-1], names.process(some[-1]["process"])
            what = names.message(last["value"])
            words = f"{who} receives {what} for the {nth(len(some))} time"
            yield Step(last["t"], 2, words)


def nth(number: int) -> str:
    """`3rd`."""
    teens = number % 100 in (11, 12, 13)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if teens else ending}"


def _sent(row: Row, names: Names, selected: bool) -> Step:
    it = names.message(row["value"])
    if row["type"] == Type.INVOKE:
        to = "a queue that its client selects" if selected else names.key(row["key"])
        words = f"{names.process(row['process'])} sends {it} to {to}"
        return Step(row["t"], 0, words)
    attempts = _attempts(row)
    if row["type"] != Type.OK:
        error = names.said.get(row["op"])
        why = f" ({error})" if error else ""
        return Step(row["t"], 2, f"{it} is {UNSAID[Type(row['type'])]}{attempts}{why}")
    who = names.node(row["node"]) if row["node"] is not None else "the cluster"
    where = f": offset {row['offset']:,}" if row["offset"] is not None else ""
    it += f" in {names.key(row['key'])}" if selected else ""
    epoch = f", epoch {row['epoch']}" if row["epoch"] is not None else ""
    return Step(row["t"], 2, f"{who} acknowledges {it}{where}{epoch}{attempts}")


def _attempts(row: Row) -> str:
    many = row["attempts"] or 1
    return f", at attempt {many}" if many > 1 else ""


def _given(row: Row, names: Names) -> Step:
    at = "" if row["offset"] is None else f" at offset {row['offset']:,}"
    where = f"{names.key(row['key'])}{at}"
    verb = "reads" if row["f"] == F.READ else "receives"
    words = f"{names.process(row['process'])} {verb} {names.message(row['value'])} from {where}"
    return Step(row["t"], 3, words)


def of_passes(some: Sequence[Pass], place: tuple[int, int], names: Names) -> Iterator[Step]:
    """Who read on beyond a place."""
    for one in some:
        what = f"{names.message(one.value)} at {one.offset:,}"
        at = f"offset {place[1]:,} of {names.key(place[0])}"
        words = f"{names.process(one.process)} reads past {at}: it receives {what}"
        yield Step(one.t, 4, words, 8)


# ----------------------------------------------------------------------------------- operations


def of_operations(rows: Sequence[Row], names: Names) -> Iterator[Step]:
    """Each operation: when it began, and how it ended."""
    by_op: dict[int, list[Row]] = {}
    for row in rows:
        by_op.setdefault(row["op"], []).append(row)
    for op, some in by_op.items():
        yield from _operation(op, some, names)


def _operation(op: int, rows: Sequence[Row], names: Names) -> Iterator[Step]:
    transaction = any(row["mop"] is not None for row in rows)
    name = f"T{op}" if transaction else f"op {op}"
    who = names.process(rows[0]["process"])
    begun = [row for row in rows if row["type"] == Type.INVOKE]
    ended = [row for row in rows if row["type"] != Type.INVOKE]
    if begun:
        what = "; ".join(_asked(row, names) for row in begun if not transaction or _named(row))
        yield Step(begun[0]["t"], 0, f"{who} begins {name}: {what}")
    if ended:
        yield Step(ended[-1]["t"], 2, f"{name} of {who} {_ended(ended, names)}")
    else:
        yield Step(max(row["t"] for row in rows) + 1, 3, f"{name} of {who} never completes")


def _named(row: Row) -> bool:
    return row["mop"] is not None


def _asked(row: Row, names: Names) -> str:
    """`put 7 to x`."""
    f = F(row["f"]).name.lower()
    value = "" if row["value"] is None else f" {names.value(row['value'])}"
    arg = "" if row["arg"] is None else f" -> {names.value(row['arg'])}"
    preposition = "to" if row["f"] in WRITES else "of"
    where = "" if row["key"] is None else f" {preposition} {names.object(row['key'])}"
    return f"{f}{value}{arg}{where}"


def _ended(rows: Sequence[Row], names: Names) -> str:
    last = rows[-1]
    if last["f"] in READING and last["type"] == Type.OK:
        return f"gives {_batch(rows, names)}"
    if last["type"] != Type.OK:
        if last["f"] == F.CAS and last["pos"] is not None:
            return "is refused by its comparison"
        error = names.said.get(last["op"])
        return f"is {UNSAID[Type(last['type'])]}{f' ({error})' if error else ''}"
    seen = _seen(rows, names)
    return f"ends ok{f': {seen}' if seen else ''}"


def _batch(rows: Sequence[Row], names: Names) -> str:
    """What a poll returned: the offsets of each queue, in the order of the answer."""
    queues: dict[int, list[str]] = {}
    for row in rows:
        if row["pos"] is not None and row["offset"] is not None:
            queues.setdefault(row["key"], []).append(f"{row['offset']}")
    told = [f"{names.key(key)} at {_shortened(some)}" for key, some in queues.items()]
    return "; ".join(told) or "nothing"


def _seen(rows: Sequence[Row], names: Names) -> str:
    """What an operation, or each micro-operation of a transaction, was answered."""
    lists: dict[int | None, list[str]] = {}
    told: list[tuple[int, str]] = []
    for row in rows:
        if row["type"] != Type.OK:
            continue
        if row["pos"] is not None:
            lists.setdefault(row["mop"], []).append(names.value(row["value"]))
            continue
        if row["f"] == F.LIST and row["key"] is not None:
            some = lists.pop(row["mop"], [])
            told.append((row["mop"] or 0, f"{names.object(row['key'])} is {_shortened(some)}"))
        elif row["f"] in READS and row["key"] is not None:
            told.append(
                (row["mop"] or 0, f"{names.object(row['key'])} gives {_answer(row, names)}")
            )
        elif row["offset"] is not None:
            told.append((row["mop"] or 0, f"offset {row['offset']:,}"))
    told += [(number or 0, _shortened(some)) for number, some in lists.items()]
    return "; ".join(words for _, words in sorted(told, key=lambda pair: pair[0]))


WRITES = (F.PUT, F.CAS, F.APPEND, F.ADD, F.ENQUEUE, F.SEND)
READS = (F.GET, F.COUNT, F.DEQUEUE, F.ACQUIRE, F.SEE, F.QUERY)


def _answer(row: Row, names: Names) -> str:
    if row["f"] == F.ACQUIRE:
        return "the lock" + ("" if row["offset"] is None else f", token {row['offset']}")
    if row["f"] in (F.SEE, F.QUERY):
        return "nothing" if row["offset"] is None else f"{row['offset']:,}"
    return names.value(row["value"])


def _shortened(elements: Sequence[str]) -> str:
    if len(elements) <= ELEMENTS_SHOWN:
        return f"[{' '.join(elements)}]"
    ends = [*elements[: ELEMENTS_SHOWN // 2], "...", *elements[-ELEMENTS_SHOWN // 2 :]]
    return f"[{' '.join(ends)}] ({len(elements):,} elements)"
