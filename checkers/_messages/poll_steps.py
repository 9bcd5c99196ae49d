"""Steps: two successive offsets of one queue that a process received, or sent.

A step is irregular unless it leads to the next offset. A task sees all rows of a process, so it
finds its irregular steps; whether a step skipped messages is known when the offsets of the queue
are merged. A broker may use offsets for its own marks, so only offsets that some consumer received
count as skipped.

    inside    both entries in one answer, or one transaction
    between   the last entry of an operation, and the first of the next one in the queue
    loose     the same for a consumer whose group may have received other queues in the meantime: it
              may begin anywhere, so such a step is no violation

A process keeps its position in a queue over `ASSIGN` and `SUBSCRIBE` if they name the queue, and
loses it otherwise. An operation that did not end ok moves no position. Queues that `REBALANCE`
names are judged neither inside the operation nor between it and its neighbours.

A step over messages that are lost or refused, or that are not certain to be in the log, is an echo
of that.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from checkers._messages.message_rows import (
    BLOCK,
    Bools,
    Ints,
    OpColumns,
    offset_of,
    rowwise,
)
from checkers._messages.messages import Members, bits
from harness.history.notes import ASSIGN, CRASH, REBALANCE, SUBSCRIBE
from harness.history.reader import History
from harness.operation import F, Type

INSIDE, BETWEEN, LOOSE, SENT_INSIDE, SENT_BETWEEN = range(5)
COLUMNS = ("kind", "before", "offset", "op", "process", "t")  # of an irregular step
OPERATION_BITS = 32
KEY_BITS = 32
FIRST_READERS = 256  # for which there is room at first
STRICT_FORMAT = "jepsen-kafka"  # where queues of a process without notes are its own


class StepKind(StrEnum):
    """Wrong steps."""

    BACKWARDS = "backwards"  # inside an answer, to a lower offset
    SKIPPED = "skipped"  # inside an answer, over messages that others received
    WENT_BACK = "went_back"  # the same between two operations
    WENT_OVER = "went_over"
    MOVED = "moved"  # either of them, loose
    SENT_BACK = "sent_back"  # inside a transaction, to a lower offset
    SENT_BEFORE = "sent_before"  # between two sends


class PollStep(NamedTuple):
    """A wrong step of a process in a queue: from one offset to another, and how many messages are
    between them."""

    key: int
    before: int
    offset: int
    op: int
    process: int
    t: int
    skipped: int = 0


class OwnRead(NamedTuple):
    """A message that a transaction received although it had sent it itself."""

    key: int
    value: int
    op: int
    process: int
    t: int


class StepsOver(NamedTuple):
    """The offset of a lost message, and how many steps led over it."""

    offset: int
    times: int


@dataclass(frozen=True)
class Assignments:
    """What the notes of processes say that they read from, in order: process and operation, time,
    the note's first word, and its keys."""

    code: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # process and operation
    t: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    words: Sequence[str] = ()
    keys: Sequence[frozenset[int]] = ()
    nowhere: Sequence[Members] = ()  # messages without one certain place
    strict: bool = True

    @property
    def loose(self) -> Bools:
        """For each note, whether afterwards its process shares its queues with others."""
        loose, now, process = np.zeros(len(self.words), np.bool_), not self.strict, -1
        for at, (code, word) in enumerate(zip(self.code.tolist(), self.words, strict=True)):
            if code >> OPERATION_BITS != process:
                process, now = code >> OPERATION_BITS, not self.strict
            if word in (ASSIGN, SUBSCRIBE):
                now = word == SUBSCRIBE
            loose[at] = now
        return loose


def assignments_of(history: History, *nowhere: Members) -> Assignments:
    """Return the assignments of an imported history."""
    every = (note for word in (ASSIGN, SUBSCRIBE, REBALANCE, CRASH) for note in history.notes[word])
    notes = [note for note in every if note.process is not None]
    notes.sort(key=lambda n: (n.process, n.op, n.t, n.text))
    texts = [n.text.partition(" ") for n in notes]
    return Assignments(
        np.array([(n.process or 0) << OPERATION_BITS | (n.op or 0) for n in notes], np.int64),
        np.array([n.t for n in notes], np.int64),
        [word for word, _, _ in texts],
        [frozenset(json.loads(rest)["keys"]) if rest else frozenset() for _, _, rest in texts],
        nowhere,
        history.state.get("imported", {}).get("as") == STRICT_FORMAT,
    )


@dataclass(frozen=True)
class Entries:
    """Log entries that processes received, or sent, in order; offset -1: not known."""

    process: Ints
    key: Ints
    op: Ints
    offset: Ints
    t: Ints

    def take(self, at: Ints) -> "Entries":
        return Entries(*(getattr(self, name)[at] for name in ENTRY_COLUMNS))


ENTRY_COLUMNS = ("process", "key", "op", "offset", "t")


class StepScan:
    """The irregular steps in one writer's rows, and what its transactions received of their own."""

    def __init__(self, assignments: Assignments, late: tuple[Ints, Ints]) -> None:
        self._assignments, self._late = assignments, late
        self._received: list[Entries] = []
        self._sent: list[Entries] = []
        self._unfinished: list[Ints] = []  # operations that did not end ok
        self._parts: list[OpColumns] = []

    def observe(self, rows: OpColumns) -> None:
        kind, message = rows.type, (rows.key >= 0) & (rows.value >= 0)
        sends = rows.f == F.SEND
        received = message & ~sends & (kind == Type.OK)
        self._received.append(_entries(rows.where(received), None))
        sent = rows.where(message & sends & ((kind == Type.OK) | (kind == Type.INFO)))
        self._sent.append(_entries(sent, self._offsets(sent)))
        ended = ~message & ((kind == Type.FAIL) | (kind == Type.INFO))
        lone = message & sends & (kind == Type.INFO) & (rows.mop < 0)
        self._unfinished.append(rows.op[ended | lone])
        self._parts.append(
            _part_columns(rows.where(message & (rows.mop >= 0) & (sends | received)))
        )

    def _offsets(self, sent: OpColumns) -> Ints:
        """Return the offsets of sent messages; -1 where they are not certain."""
        values, places = self._late
        offset = np.where(sent.type == Type.OK, sent.offset, -1)
        if len(values):
            found = np.minimum(np.searchsorted(values, sent.value), len(values) - 1)
            late = (values[found] == sent.value) & (sent.type == Type.INFO)
            offset = np.where(late, offset_of(places[found]), offset)
        for members in self._assignments.nowhere:
            offset = np.where(members.holds(sent.value), -1, offset)
        return offset

    @property
    def own(self) -> list[OwnRead]:
        """Return the messages that a transaction received although it had sent them itself, in
        order of time."""
        parts = {name: _joined([getattr(p, name) for p in self._parts]) for name in PART_COLUMNS}
        sends = parts["f"] == F.SEND
        if not sends.any() or sends.all():
            return []
        value, first = np.unique(parts["value"][sends], return_index=True)
        op = parts["op"][sends][first]
        seen = {name: column[~sends] for name, column in parts.items()}
        at = np.minimum(np.searchsorted(value, seen["value"]), len(value) - 1)
        mine = (value[at] == seen["value"]) & (op[at] == seen["op"])
        columns = [seen[name][mine].tolist() for name in OwnRead._fields]
        found = {OwnRead(*row) for row in zip(*columns, strict=True)}
        return sorted(found, key=lambda own: (own.t, own.op, own.value))

    def steps(self) -> Iterator[tuple[int, Ints]]:
        """Yield the irregular steps of each key, as rows of COLUMNS."""
        unfinished = np.unique(_joined(self._unfinished))
        received, sent = _all(self._received), _all(self._sent)
        found = [*_of_polls(received, unfinished, self._assignments), *_of_sends(sent, unfinished)]
        key = _joined([keys for keys, _ in found])
        steps = np.concatenate([rows for _, rows in found])
        order = np.argsort(key, kind="stable")
        heads = np.flatnonzero(np.diff(key[order], prepend=-1))
        for first, last in pairwise([*heads.tolist(), len(order)]):
            yield int(key[order[first]]), steps[order[first:last]]


PART_COLUMNS = ("f", "key", "value", "op", "process", "t")


def _part_columns(rows: OpColumns) -> OpColumns:
    return OpColumns({name: getattr(rows, name) for name in PART_COLUMNS})


def _entries(rows: OpColumns, offset: Ints | None) -> Entries:
    known = rows.offset if offset is None else offset
    return Entries(rows.process, rows.key, rows.op, known, rows.t)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _all(parts: Sequence[Entries]) -> Entries:
    """Return all entries by process and key, in their order."""
    joined = Entries(*(_joined([getattr(p, name) for p in parts]) for name in ENTRY_COLUMNS))
    return joined.take(np.lexsort((np.arange(len(joined.op)), joined.key, joined.process)))


def _follows(s: Entries) -> Bools:
    """Return which entries have the process and queue of the entry before them."""
    same = np.zeros(len(s.op), np.bool_)
    same[1:] = (s.process[1:] == s.process[:-1]) & (s.key[1:] == s.key[:-1])
    return same


@dataclass(frozen=True)
class Visits:
    """The entries of each operation in a queue: the first and the last one, and the previous visit
    of the same process and queue that counts; -1 if there is none."""

    first: Ints
    last: Ints
    before: Ints


def _visits(s: Entries, unfinished: Ints) -> Visits:
    head = ~_follows(s)
    head[1:] |= s.op[1:] != s.op[:-1]
    first = np.flatnonzero(head)
    last = np.append(first[1:], len(s.op)) - 1
    counts = ~np.isin(s.op[first], unfinished)
    latest = np.maximum.accumulate(np.where(counts, np.arange(len(first)), -1))
    before = np.concatenate([[-1], latest[:-1]])[: len(first)]
    was = first[np.maximum(before, 0)]
    fits = (s.process[was] == s.process[first]) & (s.key[was] == s.key[first])
    return Visits(first, last, np.where((before >= 0) & fits, before, -1))


Steps = tuple[Ints, Ints]  # keys, and rows of COLUMNS


def _step_rows(s: Entries, kind: Ints | int, a: Ints, b: Ints) -> Steps:
    kinds = np.broadcast_to(np.asarray(kind, np.int64), len(a))
    rows = np.stack([kinds, s.offset[a], s.offset[b], s.op[b], s.process[b], s.t[b]], axis=1)
    return s.key[b], rows.astype(np.int64)


def _pairs_inside(s: Entries) -> Ints:
    """Return where an operation has a second entry of a queue, and both offsets are known."""
    within = _follows(s)
    within[1:] &= (s.op[1:] == s.op[:-1]) & (s.offset[1:] >= 0) & (s.offset[:-1] >= 0)
    return np.flatnonzero(within)


def _pairs_between(s: Entries, visits: Visits) -> tuple[Ints, Ints]:
    """Return the last entry of a visit and the first of the next one, where both are known."""
    at = np.flatnonzero(visits.before >= 0)
    a, b = visits.last[visits.before[at]], visits.first[at]
    known = (s.offset[a] >= 0) & (s.offset[b] >= 0)
    return a[known], b[known]


def _of_polls(s: Entries, unfinished: Ints, assignments: Assignments) -> Iterator[Steps]:
    b = _pairs_inside(s)
    b = b[s.offset[b] != s.offset[b - 1] + 1]
    b = b[~_rebalanced(s, b, assignments)]
    yield _step_rows(s, INSIDE, b - 1, b)
    a, b = _pairs_between(s, _visits(s, unfinished))
    irregular = s.offset[b] != s.offset[a] + 1
    a, b = a[irregular], b[irregular]
    kept, loose = _kept(s, a, b, assignments)
    yield _step_rows(s, np.where(loose, LOOSE, BETWEEN)[kept], a[kept], b[kept])


def _of_sends(s: Entries, unfinished: Ints) -> Iterator[Steps]:
    b = _pairs_inside(s)
    b = b[s.offset[b] <= s.offset[b - 1]]
    yield _step_rows(s, SENT_INSIDE, b - 1, b)
    a, b = _pairs_between(s, _visits(s, unfinished))
    back = s.offset[b] <= s.offset[a]
    yield _step_rows(s, SENT_BETWEEN, a[back], b[back])


def _code(s: Entries, at: Ints) -> Ints:
    code: Ints = (s.process[at] << OPERATION_BITS) | s.op[at]
    return code


def _rebalanced(s: Entries, at: Ints, assignments: Assignments) -> Bools:
    """Return which of these entries are of a queue that a note of their operation took away."""
    excused = np.zeros(len(at), np.bool_)
    if REBALANCE not in assignments.words:
        return excused
    first = np.searchsorted(assignments.code, _code(s, at), "right").tolist()
    for number, (row, note) in enumerate(zip(at.tolist(), first, strict=True)):
        process, key, t = int(s.process[row]), int(s.key[row]), int(s.t[row])
        while note < len(assignments.words) and assignments.code[note] >> OPERATION_BITS == process:
            if assignments.t[note] > t:
                break
            if assignments.words[note] == REBALANCE and key in assignments.keys[note]:
                excused[number] = True
            note += 1
    return excused


def _kept(s: Entries, a: Ints, b: Ints, assignments: Assignments) -> tuple[Bools, Bools]:
    """Return for which of these pairs the process kept its position, and which are loose."""
    kept = np.ones(len(b), np.bool_)
    since = np.searchsorted(assignments.code, _code(s, a), "right")
    until = np.searchsorted(assignments.code, _code(s, b), "right")
    loose = _loose(s, b, until, assignments) | _rebalanced(s, b, assignments)
    for number in np.flatnonzero(until > since).tolist():
        key = int(s.key[b[number]])
        for note in range(int(since[number]), int(until[number])):
            word, named = assignments.words[note], key in assignments.keys[note]
            if word == REBALANCE:
                loose[number] |= named
            elif not named:
                kept[number] = False
    return kept, loose


def _loose(s: Entries, b: Ints, until: Ints, assignments: Assignments) -> Bools:
    """Whether each process shared its queues by its last note before these entries."""
    loose = np.full(len(b), not assignments.strict)
    if len(assignments.words):
        note = np.maximum(until - 1, 0)
        mine = (until > 0) & (assignments.code[note] >> OPERATION_BITS == s.process[b])
        loose = np.where(mine, assignments.loose[note], loose)
    return loose


# ------------------------------------------------------- the order of offsets within one poll


class PollOrder:
    """The order of what one writer's polls received. `backwards`: steps to a lower offset."""

    def __init__(self) -> None:
        self.backwards: list[PollStep] = []
        self._known = 0
        self._readers = np.full(FIRST_READERS, -1)  # by hash: process and key
        self._op, self._offset = np.zeros((2, FIRST_READERS), np.int64)

    def observe(self, rows: OpColumns, readers: Ints) -> None:
        """Add rows. `readers`: for each the reader that received a message, as
        process << KEY_BITS | key, or -1."""
        before = np.full(len(readers), -1)
        done = 0
        while done < len(readers):
            last = (self._known, self._readers, self._op, self._offset)
            done, self._known = _follow(readers, rows.op, rows.offset, before, done, *last)
            if done < len(readers):
                self._grow()
        back = np.flatnonzero(before >= 0)
        columns = (rows.key, before, rows.offset, rows.op, rows.process, rows.t)
        values = (column[back].tolist() for column in columns)
        self.backwards += [PollStep(*row) for row in zip(*values, strict=True)]

    def _grow(self) -> None:
        """Double the size of the table."""
        old, op, offset = self._readers, self._op, self._offset
        self._readers = np.full(2 * len(old), -1)
        self._op, self._offset = np.zeros((2, 2 * len(old)), np.int64)
        held = np.flatnonzero(old >= 0)
        unused = np.empty(len(held), np.int64)
        last = (0, self._readers, self._op, self._offset)
        _follow(old[held], op[held], offset[held], unused, 0, *last)


@rowwise
def _follow(
    readers: Ints,
    op: Ints,
    offset: Ints,
    before: Ints,
    start: int,
    known: int,
    held: Ints,
    last_op: Ints,
    last_offset: Ints,
) -> tuple[int, int]:
    """Follow readers from row `start` until the table is full. Return where it stopped, and how
    many readers the table holds. `before`: the greater or same offset before it in the same poll,
    or -1."""
    room = len(held) - 1
    for i in range(start, len(readers)):
        reader = readers[i]
        if reader < 0:
            continue
        spot = ((reader >> KEY_BITS) * 31 + (reader & ((1 << KEY_BITS) - 1)) * 17) & room
        while held[spot] != reader and held[spot] >= 0:
            spot = (spot + 1) & room
        if held[spot] < 0:
            if 2 * known >= room:
                return i, known
            held[spot] = reader
            known += 1
        elif last_op[spot] == op[i] and offset[i] <= last_offset[spot]:
            before[i] = last_offset[spot]
        last_op[spot], last_offset[spot] = op[i], offset[i]
    return len(readers), known


# ------------------------------------------------------------------------------------- judging


class OffsetMark(StrEnum):
    """What is known of an offset that a step leads over."""

    GIVEN = "given"  # a consumer received the message there
    EXCUSED = "excused"  # not, and the message there is lost or uncertain
    CONFLICT = "conflict"  # two messages
    LOST = "lost"


class MarkedOffsets:
    """The marks of a queue's offsets, as bits that can be counted over any range."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._packed: dict[OffsetMark, list[bytes]] = {mark: [] for mark in OffsetMark}
        self._sums: dict[OffsetMark, list[int]] = {mark: [0] for mark in OffsetMark}

    def add(self, first: int, marks: Mapping[OffsetMark, Bools]) -> None:
        """Add the next block of the queue."""
        self._first.append(first)
        for name, mask in marks.items():
            self._packed[name].append(bits(mask))
            self._sums[name].append(self._sums[name][-1] + int(mask.sum()))

    def below(self, name: OffsetMark, offset: Ints) -> Ints:
        """Return how many offsets with this mark are lower than each of these."""
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

    def between(self, name: OffsetMark, first: Ints, end: Ints) -> Ints:
        """Return how many offsets with this mark are at least `first` and lower than `end`."""
        if not self._sums[name][-1]:
            return np.zeros(len(first), np.int64)
        both = self.below(name, np.concatenate([first, end]))
        return both[len(first) :] - both[: len(first)]

    def _any(self, name: OffsetMark, number: int) -> bool:
        return self._sums[name][number + 1] > self._sums[name][number]

    def all(self, name: OffsetMark) -> Ints:
        """Return all offsets with this mark."""
        found = [
            first + np.flatnonzero(np.unpackbits(np.frombuffer(packed, np.uint8)))
            for number, (first, packed) in enumerate(
                zip(self._first, self._packed[name], strict=True)
            )
            if self._any(name, number)
        ]
        return _joined(found)


def unpacked_steps(packed: bytes) -> Ints:
    """Return the steps of a queue that one task sent."""
    return np.frombuffer(packed, np.int64).reshape(-1, len(COLUMNS))


def joined_steps(parts: Sequence[Ints]) -> Ints:
    """Return all steps of a queue."""
    return np.concatenate(parts) if parts else np.zeros((0, len(COLUMNS)), np.int64)


def judge_steps(key: int, steps: Ints, marks: MarkedOffsets, sample: int) -> dict[str, Any]:
    """Return what is wrong with a queue's irregular steps, as fields of `queue_log.QUEUES`: counts,
    the first rows of each kind, and the echoes of losses."""
    if not len(steps):
        return {}
    kind, before, offset = steps[:, 0], steps[:, 1], steps[:, 2]
    polls, forward = kind <= LOOSE, offset > before
    first = np.minimum(before + 1, offset)
    over = np.where(forward & polls, marks.between(OffsetMark.GIVEN, first, offset), 0)
    echo = forward & polls & (over == 0) & (marks.between(OffsetMark.EXCUSED, first, offset) > 0)
    conflict = marks.between(OffsetMark.CONFLICT, before, before + 1) > 0
    conflict |= marks.between(OffsetMark.CONFLICT, offset, offset + 1) > 0
    back = ~forward & polls & ~(conflict & (offset == before))
    skip = over > 0
    sent = ~forward & ~polls & ~conflict
    wrong = {
        StepKind.BACKWARDS: back & (kind == INSIDE),
        StepKind.SKIPPED: skip & (kind == INSIDE),
        StepKind.WENT_BACK: back & (kind == BETWEEN),
        StepKind.WENT_OVER: skip & (kind == BETWEEN),
        StepKind.MOVED: (back | skip) & (kind == LOOSE),
        StepKind.SENT_BACK: sent & (kind == SENT_INSIDE),
        StepKind.SENT_BEFORE: sent & (kind == SENT_BETWEEN),
    }
    passed = forward & polls
    return {
        **{name.value: int(mask.sum()) for name, mask in wrong.items()},
        **{
            f"{name}_rows": _first_rows(key, steps, over, mask, sample)
            for name, mask in wrong.items()
            if mask.any()
        },
        "echoes": int(echo.sum()),
        "over": _stepped_over(marks.all(OffsetMark.LOST), before[passed], offset[passed]),
    }


def _first_rows(
    key: int, steps: Ints, over: Ints, mask: Bools, sample: int
) -> list[dict[str, int]]:
    """Return the earliest of some steps."""
    at = np.flatnonzero(mask)
    at = at[np.lexsort((steps[at, 2], steps[at, 3], steps[at, 5]))[:sample]]
    rows = np.column_stack([steps[at, 1:], over[at]]).tolist()
    return [PollStep(key, *row)._asdict() for row in rows]


def _stepped_over(lost: Ints, before: Ints, offset: Ints) -> list[dict[str, int]]:
    """Return lost offsets, and how many steps led over each."""
    begin = np.bincount(np.searchsorted(lost, before, "right"), minlength=len(lost) + 1)
    end = np.bincount(np.searchsorted(lost, offset, "left"), minlength=len(lost) + 1)
    times = np.cumsum(begin - end)[: len(lost)]
    return [StepsOver(*row)._asdict() for row in zip(lost.tolist(), times.tolist(), strict=True)]
