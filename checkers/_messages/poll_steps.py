"""Steps: two offsets that follow each other in what one process was given, or sent, in a queue.

A step is odd unless it leads to the next offset. A task sees a process's rows, so it finds the odd
steps; whether one went over anything is known when the queue's offsets are together: offsets may
be left out, by a broker for its own marks, so only those that somebody was given count.

    inside    both within one answer, or one transaction
    between   the end of one operation, and the beginning of the next one that tells of the queue
    loose     the same of a consumer whose group may have been given other queues meanwhile: it may
              begin anywhere, so that convicts nobody

A process keeps its position in a queue over `ASSIGN` and `SUBSCRIBE` when they name the queue, and
loses it otherwise. An operation that did not end ok moves no position. What `REBALANCE` names is
judged neither inside the operation nor between it and its neighbours.

A step over messages that are lost, refused, or no certain entry of the log is an echo of that.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from checkers._messages.blocks import BLOCK, Bools, Ints, Members, bits
from checkers._messages.messages import Rows, offset_of
from harness.history.notes import ASSIGN, CRASH, REBALANCE, SUBSCRIBE
from harness.history.reader import History
from harness.operation import F, Type

INSIDE, BETWEEN, LOOSE, SENT_INSIDE, SENT_BETWEEN = range(5)
COLUMNS = ("kind", "before", "offset", "op", "process", "t")  # of a step
WRONG = ("backwards", "skipped", "went_back", "went_over", "moved", "sent_back", "sent_before")
OPERATION_BITS = 32
STRICT_FORMAT = "jepsen-kafka"  # where a process that said nothing has its queues for itself


@dataclass(frozen=True)
class Readings:
    """What processes said that they read from, in order: whose and when, the word, the keys."""

    code: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # process and operation
    t: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    words: Sequence[str] = ()
    keys: Sequence[frozenset[int]] = ()
    nowhere: Sequence[Members] = ()  # messages without one certain place
    strict: bool = True

    @property
    def loose(self) -> Bools:
        """After each note: is its process one whose queues others may be given?"""
        loose, now, who = np.zeros(len(self.words), np.bool_), not self.strict, -1
        for at, (code, word) in enumerate(zip(self.code.tolist(), self.words, strict=True)):
            if code >> OPERATION_BITS != who:
                who, now = code >> OPERATION_BITS, not self.strict
            if word in (ASSIGN, SUBSCRIBE):
                now = word == SUBSCRIBE
            loose[at] = now
        return loose


def readings_of(history: History, *nowhere: Members) -> Readings:
    """The readings of an imported history."""
    notes = [n for n in history.notes(ASSIGN, SUBSCRIBE, REBALANCE, CRASH) if n.process is not None]
    notes.sort(key=lambda n: (n.process, n.op))
    said = [n.text.partition(" ") for n in notes]
    return Readings(
        np.array([(n.process or 0) << OPERATION_BITS | (n.op or 0) for n in notes], np.int64),
        np.array([n.t for n in notes], np.int64),
        [word for word, _, _ in said],
        [frozenset(json.loads(rest)["keys"]) if rest else frozenset() for _, _, rest in said],
        nowhere,
        history.state.get("imported", {}).get("as") == STRICT_FORMAT,
    )


@dataclass(frozen=True)
class Sightings:
    """What processes were given, or sent, in order; the offset is -1 where it is not known."""

    process: Ints
    key: Ints
    op: Ints
    offset: Ints
    t: Ints

    def take(self, at: Ints) -> "Sightings":
        return Sightings(*(getattr(self, name)[at] for name in ("process", *SIGHTED)))


SIGHTED = ("key", "op", "offset", "t")


class Walks:
    """The odd steps in one writer's rows, and what its transactions were given of their own."""

    def __init__(self, readings: Readings, late: tuple[Ints, Ints]) -> None:
        self._readings, self._late = readings, late
        self._given: list[Sightings] = []
        self._sent: list[Sightings] = []
        self._unfinished: list[Ints] = []  # operations that did not end ok
        self._parts: list[Rows] = []

    def observe(self, rows: Rows) -> None:
        kind, message = rows.type, (rows.key >= 0) & (rows.value >= 0)
        sends = rows.f == F.SEND
        given = message & ~sends & (kind == Type.OK)
        self._given.append(_sighted(rows.where(given), None))
        sent = rows.where(message & sends & ((kind == Type.OK) | (kind == Type.INFO)))
        self._sent.append(_sighted(sent, self._places(sent)))
        ended = ~message & ((kind == Type.FAIL) | (kind == Type.INFO))
        lone = message & sends & (kind == Type.INFO) & (rows.mop < 0)
        self._unfinished.append(rows.op[ended | lone])
        self._parts.append(_own_copy(rows.where(message & (rows.mop >= 0) & (sends | given))))

    def _places(self, sent: Rows) -> Ints:
        """Where messages were put, as far as it is certain."""
        values, places = self._late
        offset = np.where(sent.type == Type.OK, sent.offset, -1)
        if len(values):
            found = np.minimum(np.searchsorted(values, sent.value), len(values) - 1)
            late = (values[found] == sent.value) & (sent.type == Type.INFO)
            offset = np.where(late, offset_of(places[found]), offset)
        for members in self._readings.nowhere:
            offset = np.where(members.holds(sent.value), -1, offset)
        return offset

    @property
    def own(self) -> list[tuple[int, ...]]:
        """Messages that a transaction was given although it had sent them itself."""
        parts = {name: _joined([getattr(p, name) for p in self._parts]) for name in OWN}
        sends = parts["f"] == F.SEND
        if not sends.any() or sends.all():
            return []
        value, first = np.unique(parts["value"][sends], return_index=True)
        op = parts["op"][sends][first]
        seen = {name: column[~sends] for name, column in parts.items()}
        at = np.minimum(np.searchsorted(value, seen["value"]), len(value) - 1)
        mine = (value[at] == seen["value"]) & (op[at] == seen["op"])
        columns = [seen[name][mine].tolist() for name in ("key", "value", "op", "process", "t")]
        return sorted(set(zip(*columns, strict=True)))

    def steps(self) -> Iterator[tuple[int, Ints]]:
        """Odd steps by key, as rows of COLUMNS."""
        unfinished = np.unique(_joined(self._unfinished))
        given, sent = _all(self._given), _all(self._sent)
        found = [*_of_polls(given, unfinished, self._readings), *_of_sends(sent, unfinished)]
        key = _joined([keys for keys, _ in found])
        steps = np.concatenate([rows for _, rows in found])
        order = np.argsort(key, kind="stable")
        heads = np.flatnonzero(np.diff(key[order], prepend=-1))
        for first, last in pairwise([*heads.tolist(), len(order)]):
            yield int(key[order[first]]), steps[order[first:last]]


OWN = ("f", "key", "value", "op", "process", "t")


def _own_copy(rows: Rows) -> Rows:
    return Rows({name: getattr(rows, name) for name in OWN})


def _sighted(rows: Rows, offset: Ints | None) -> Sightings:
    place = rows.offset if offset is None else offset
    return Sightings(rows.process, rows.key, rows.op, place, rows.t)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _all(parts: Sequence[Sightings]) -> Sightings:
    """All sightings, by process and key, in their order."""
    names = ("process", *SIGHTED)
    all_ = Sightings(*(_joined([getattr(part, name) for part in parts]) for name in names))
    return all_.take(np.lexsort((np.arange(len(all_.op)), all_.key, all_.process)))


def _together(s: Sightings) -> Bools:
    """Which sightings are of the same process and queue as the one before them."""
    same = np.zeros(len(s.op), np.bool_)
    same[1:] = (s.process[1:] == s.process[:-1]) & (s.key[1:] == s.key[:-1])
    return same


@dataclass(frozen=True)
class Turns:
    """What each operation told of a queue: the first and last sighting, and the turn before it
    that counts, of the same process and queue; -1 if there is none."""

    first: Ints
    last: Ints
    before: Ints


def _turns(s: Sightings, unfinished: Ints) -> Turns:
    same = _together(s)
    head = ~same
    head[1:] |= s.op[1:] != s.op[:-1]
    first = np.flatnonzero(head)
    last = np.append(first[1:], len(s.op)) - 1
    counts = ~np.isin(s.op[first], unfinished)
    latest = np.maximum.accumulate(np.where(counts, np.arange(len(first)), -1))
    before = np.concatenate([[-1], latest[:-1]])[: len(first)]
    was = first[np.maximum(before, 0)]
    fits = (s.process[was] == s.process[first]) & (s.key[was] == s.key[first])
    return Turns(first, last, np.where((before >= 0) & fits, before, -1))


Found = tuple[Ints, Ints]  # keys, and rows of COLUMNS


def _row_pairs(s: Sightings, kind: Ints | int, a: Ints, b: Ints) -> Found:
    kinds = np.broadcast_to(np.asarray(kind, np.int64), len(a))
    rows = np.stack([kinds, s.offset[a], s.offset[b], s.op[b], s.process[b], s.t[b]], axis=1)
    return s.key[b], rows.astype(np.int64)


def _pairs_inside(s: Sightings) -> Ints:
    """Where an operation has a second sighting of a queue, and both offsets are known."""
    within = _together(s)
    within[1:] &= (s.op[1:] == s.op[:-1]) & (s.offset[1:] >= 0) & (s.offset[:-1] >= 0)
    return np.flatnonzero(within)


def _pairs_between(s: Sightings, turns: Turns) -> tuple[Ints, Ints]:
    """The last sighting of a turn and the first of the next one, both known."""
    at = np.flatnonzero(turns.before >= 0)
    a, b = turns.last[turns.before[at]], turns.first[at]
    known = (s.offset[a] >= 0) & (s.offset[b] >= 0)
    return a[known], b[known]


def _of_polls(s: Sightings, unfinished: Ints, readings: Readings) -> Iterator[Found]:
    b = _pairs_inside(s)
    b = b[s.offset[b] != s.offset[b - 1] + 1]
    b = b[~_rebalanced(s, b, readings)]
    yield _row_pairs(s, INSIDE, b - 1, b)
    a, b = _pairs_between(s, _turns(s, unfinished))
    odd = s.offset[b] != s.offset[a] + 1
    a, b = a[odd], b[odd]
    kept, loose = _kept(s, a, b, readings)
    yield _row_pairs(s, np.where(loose, LOOSE, BETWEEN)[kept], a[kept], b[kept])


def _of_sends(s: Sightings, unfinished: Ints) -> Iterator[Found]:
    b = _pairs_inside(s)
    b = b[s.offset[b] <= s.offset[b - 1]]
    yield _row_pairs(s, SENT_INSIDE, b - 1, b)
    a, b = _pairs_between(s, _turns(s, unfinished))
    back = s.offset[b] <= s.offset[a]
    yield _row_pairs(s, SENT_BETWEEN, a[back], b[back])


def _code(s: Sightings, at: Ints) -> Ints:
    code: Ints = (s.process[at] << OPERATION_BITS) | s.op[at]
    return code


def _rebalanced(s: Sightings, at: Ints, readings: Readings) -> Bools:
    """Which of these sightings are of a queue that their operation was told it had lost."""
    excused = np.zeros(len(at), np.bool_)
    if REBALANCE not in readings.words:
        return excused
    first = np.searchsorted(readings.code, _code(s, at), "right").tolist()
    for number, (row, note) in enumerate(zip(at.tolist(), first, strict=True)):
        who, key, t = int(s.process[row]), int(s.key[row]), int(s.t[row])
        while note < len(readings.words) and readings.code[note] >> OPERATION_BITS == who:
            if readings.t[note] > t:
                break
            if readings.words[note] == REBALANCE and key in readings.keys[note]:
                excused[number] = True
            note += 1
    return excused


def _kept(s: Sightings, a: Ints, b: Ints, readings: Readings) -> tuple[Bools, Bools]:
    """Between which of these pairs the process kept its position, and which of them are loose."""
    kept = np.ones(len(b), np.bool_)
    since = np.searchsorted(readings.code, _code(s, a), "right")
    until = np.searchsorted(readings.code, _code(s, b), "right")
    loose = _loose(s, b, until, readings) | _rebalanced(s, b, readings)
    for number in np.flatnonzero(until > since).tolist():
        key = int(s.key[b[number]])
        for note in range(int(since[number]), int(until[number])):
            word, named = readings.words[note], key in readings.keys[note]
            if word == REBALANCE:
                loose[number] |= named
            elif not named:
                kept[number] = False
    return kept, loose


def _loose(s: Sightings, b: Ints, until: Ints, readings: Readings) -> Bools:
    """Whether the last that each process said before these was that it shares its queues."""
    loose = np.full(len(b), not readings.strict)
    if len(readings.words):
        note = np.maximum(until - 1, 0)
        mine = (until > 0) & (readings.code[note] >> OPERATION_BITS == s.process[b])
        loose = np.where(mine, readings.loose[note], loose)
    return loose


# ------------------------------------------------------------------------------------- judging


class Shelf:
    """What is known of a queue's offsets, a bit each, to be counted over any range."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._packed: dict[str, list[bytes]] = {}
        self._sums: dict[str, list[int]] = {}

    def add(self, first: int, marks: Mapping[str, Bools]) -> None:
        """The next block of the queue."""
        self._first.append(first)
        for name, mask in marks.items():
            self._packed.setdefault(name, []).append(bits(mask))
            sums = self._sums.setdefault(name, [0])
            sums.append(sums[-1] + int(mask.sum()))

    def below(self, name: str, offset: Ints) -> Ints:
        """How many offsets with this mark are lower than each of these."""
        if not self._first or not len(offset):
            return np.zeros(len(offset), np.int64)
        firsts, sums = np.array(self._first), np.array(self._sums[name])
        block = np.searchsorted(firsts, offset, "right") - 1
        counts = np.where(block >= 0, sums[np.maximum(block, 0)], 0)
        for number in np.unique(block[block >= 0]).tolist():
            if not self._any(name, number):
                continue
            here = np.flatnonzero(block == number)
            mask = np.unpackbits(np.frombuffer(self._packed[name][number], np.uint8))
            running = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
            counts[here] += running[np.minimum(offset[here] - firsts[number], BLOCK)]
        return counts

    def between(self, name: str, first: Ints, end: Ints) -> Ints:
        """How many offsets with this mark are from `first` on, and lower than `end`."""
        if name not in self._sums or not self._sums[name][-1]:
            return np.zeros(len(first), np.int64)
        both = self.below(name, np.concatenate([first, end]))
        return both[len(first) :] - both[: len(first)]

    def _any(self, name: str, number: int) -> bool:
        return self._sums[name][number + 1] > self._sums[name][number]

    def all(self, name: str) -> Ints:
        """All offsets with this mark."""
        found = [
            first + np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8)))
            for number, (first, packed) in enumerate(
                zip(self._first, self._packed.get(name, ()), strict=False)
            )
            if self._any(name, number)
        ]
        return _joined(found)


def together(parts: Sequence[bytes]) -> Ints:
    """Steps of a queue that several tasks found."""
    rows = [np.frombuffer(part, np.int64).reshape(-1, len(COLUMNS)) for part in parts]
    return np.concatenate(rows) if rows else np.zeros((0, len(COLUMNS)), np.int64)


def judge(steps: Ints, shelf: Shelf, sample: int) -> dict[str, Any]:
    """What is wrong with a queue's odd steps: counts, samples, and the echoes of what is lost."""
    if not len(steps):
        return {}
    kind, before, offset = steps[:, 0], steps[:, 1], steps[:, 2]
    polls, forward = kind <= LOOSE, offset > before
    first = np.minimum(before + 1, offset)
    over = np.where(forward & polls, shelf.between("given", first, offset), 0)
    echo = forward & polls & (over == 0) & (shelf.between("excused", first, offset) > 0)
    conflict = shelf.between("conflict", before, before + 1) > 0
    conflict |= shelf.between("conflict", offset, offset + 1) > 0
    back = ~forward & polls & ~(conflict & (offset == before))
    skip = over > 0
    sent = ~forward & ~polls & ~conflict
    wrong = {
        "backwards": back & (kind == INSIDE),
        "skipped": skip & (kind == INSIDE),
        "went_back": back & (kind == BETWEEN),
        "went_over": skip & (kind == BETWEEN),
        "moved": (back | skip) & (kind == LOOSE),
        "sent_back": sent & (kind == SENT_INSIDE),
        "sent_before": sent & (kind == SENT_BETWEEN),
    }
    told: dict[str, Any] = {name: int(mask.sum()) for name, mask in wrong.items()}
    told["echoes"] = int(echo.sum())
    for name in WRONG:
        if told[name]:
            told[f"{name}_rows"] = _first_rows(steps, over, wrong[name], sample)
    told["over"] = _stepped_over(
        shelf.all("lost"), before[forward & polls], offset[forward & polls]
    )
    return told


def _first_rows(steps: Ints, over: Ints, mask: Bools, sample: int) -> list[list[int]]:
    """The earliest steps: from, to, operation, process, time, and how much they went over."""
    at = np.flatnonzero(mask)
    at = at[np.lexsort((steps[at, 2], steps[at, 3], steps[at, 5]))[:sample]]
    rows: list[list[int]] = np.column_stack([steps[at, 1:], over[at]]).tolist()
    return rows


def _stepped_over(lost: Ints, before: Ints, offset: Ints) -> list[list[int]]:
    """Lost offsets, and how many steps went over each."""
    begin = np.bincount(np.searchsorted(lost, before, "right"), minlength=len(lost) + 1)
    end = np.bincount(np.searchsorted(lost, offset, "left"), minlength=len(lost) + 1)
    times = np.cumsum(begin - end)[: len(lost)]
    pairs: list[list[int]] = np.column_stack([lost, times]).tolist()
    return pairs
