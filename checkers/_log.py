"""Each queue as an append-only log: bounds on the instant at which it grew over each offset.

Let t(o) be the instant at which offset o came to be. Whoever appended there gives a lower bound,
its invocation; every acknowledgement and every read of o gives an upper bound, its return. A log
grows in order, so t rises with o, and the history is linearizable exactly when some t fits: when
the greatest lower bound up to o never exceeds o's upper bound. With values that are unique that is
one running maximum, where a general search would be exponential (checked against one in the tests).

    order         the same with acknowledgements alone: a's ok came before b's invoke, and yet b
                  has the lower offset
    linearizable  with reads too, and appends of unknown outcome that were seen

Bounds live in blocks of consecutive offsets of one queue (`_blocks`) that merge by maximum and
minimum. Messages that are gone from the log are left out: their loss has been counted, and the
offsets they held belong to others now. An offset with two values has no bounds at all; that is a
finding of its own.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkers._blocks import (
    BLOCK_BITS,
    NEVER,
    OFFSET_BITS,
    Array,
    Block,
    Blocks,
    Bools,
    Ints,
    Members,
)
from checkers._messages import NOBODY, Rows, in_range, key_of, offset_of
from checkers._steps import Readings, Shelf, Walks
from harness.operation import F, Type

LOG_FIELDS: dict[str, tuple[Any, int]] = {
    "value": (np.int64, -1),
    "invoked": (np.int64, -1),  # t(o) is later than this
    "acked": (np.int64, NEVER),  # and earlier than these
    "seen": (np.int64, NEVER),
    "marks": (np.uint8, 0),
}
CONFLICT, FRESH = np.uint8(1), np.uint8(2)
# in an imported history: somebody was given the message there; it is no certain one; it is lost
GIVEN, UNSURE, LOST = np.uint8(4), np.uint8(8), np.uint8(16)
SEND_FIELDS: dict[str, tuple[Any, int]] = {"invoked": (np.int64, -1)}


@dataclass(frozen=True)
class Known:
    """What the survey knows already: messages that are gone, where those of unknown outcome were
    seen (values, sorted, and their places), and those that are not at the one place of a message
    that was sent. `readings`: in an imported history, what its processes read from."""

    gone: Members
    late: tuple[Ints, Ints]
    unsure: Members = NOBODY
    readings: Readings | None = None


class Bounds:
    """The bounds that one writer's rows give, and what its polls say about their own order."""

    def __init__(self, known: Known) -> None:
        self.offsets = Blocks(LOG_FIELDS)
        self.backwards: list[tuple[int, ...]] = []  # (key, op, offset, the one before it)
        self._known = known
        self.walks = Walks(known.readings, known.late) if known.readings else None
        self._sends = Blocks(SEND_FIELDS)  # a send completes in the journal it was invoked in
        self._last: dict[tuple[int, int], tuple[int, int]] = {}  # (process, key): (op, offset)

    def observe(self, rows: Rows) -> None:
        if self.walks is not None:
            self.walks.observe(rows)
        rows = rows.where((rows.key >= 0) & (rows.value >= 0))
        sends = rows.f == F.SEND
        invoked = rows.where(sends & (rows.type == Type.INVOKE))
        at = self._sends.at(invoked.value)
        self._sends["invoked"][at] = invoked.t
        self._bound_late(invoked)
        acked = rows.where(sends & (rows.type == Type.OK) & in_range(rows.offset))
        at = self._sends.at(acked.value)
        self._bound(acked, self._sends["invoked"][at], "acked")
        reads = (rows.f == F.POLL) | (rows.f == F.READ)
        seen = rows.where(reads & (rows.type == Type.OK) & in_range(rows.offset))
        if self.walks is None:
            self._follow(seen)
        else:
            told = (rows.type == Type.OK) | (rows.type == Type.INFO)
            self._mark(rows.where(sends & told & in_range(rows.offset)), seen)
        self._bound(seen, np.full(len(seen.t), -1), "seen")

    def _bound(self, rows: Rows, since: Ints, name: str) -> None:
        here = ~self._known.gone.holds(rows.value)
        rows, since = rows.where(here), since[here]
        at = self.offsets.at((rows.key << OFFSET_BITS) | rows.offset)
        self._put(at, rows.value)
        np.maximum.at(self.offsets["invoked"], at, since)
        np.minimum.at(self.offsets[name], at, rows.t)
        self.offsets["marks"][at[rows.f == F.READ]] |= FRESH

    def _mark(self, told: Rows, seen: Rows) -> None:
        """What stands at the offsets that somebody was told."""
        unsure = self._known.unsure.holds(seen.value)
        gone = told.where(self._known.gone.holds(told.value))
        for rows, mark in (
            (seen.where(~unsure), GIVEN),
            (seen.where(unsure), UNSURE),
            (gone, LOST),
        ):
            at = self.offsets.at((rows.key << OFFSET_BITS) | rows.offset)
            self.offsets["marks"][at] |= mark

    def _bound_late(self, invoked: Rows) -> None:
        """Sends of unknown outcome that were seen: appended after they were invoked."""
        values, places = self._known.late
        found = np.searchsorted(values, invoked.value)
        found = np.where(found < len(values), found, 0)
        late = values[found] == invoked.value if len(values) else np.zeros(len(found), np.bool_)
        place = places[found[late]] if len(values) else np.zeros(0, np.int64)
        at = self.offsets.at((key_of(place) << OFFSET_BITS) | offset_of(place))
        self._put(at, invoked.value[late])
        np.maximum.at(self.offsets["invoked"], at, invoked.t[late])

    def _put(self, at: Ints, value: Ints) -> None:
        """Every offset has one value."""
        values, marks = self.offsets["value"], self.offsets["marks"]
        before = values[at]
        marks[at[(before >= 0) & (before != value)]] |= CONFLICT
        fresh = before < 0
        values[at[fresh]] = value[fresh]
        marks[at[values[at] != value]] |= CONFLICT

    def _follow(self, seen: Rows) -> None:
        """Within one poll, offsets rise."""
        rows = seen.take(np.lexsort((np.arange(len(seen.t)), seen.key, seen.process)))
        who = (rows.process << 32) | rows.key
        heads = np.flatnonzero(np.diff(who, prepend=-1))
        before_op, before = np.roll(rows.op, 1), np.roll(rows.offset, 1)
        for at in heads.tolist():
            reader = (int(rows.process[at]), int(rows.key[at]))
            before_op[at], before[at] = self._last.get(reader, (-1, -1))
        for at in [*(heads[1:] - 1).tolist(), len(who) - 1] if len(who) else []:
            reader = (int(rows.process[at]), int(rows.key[at]))
            self._last[reader] = (int(rows.op[at]), int(rows.offset[at]))
        back = np.flatnonzero((rows.op == before_op) & (rows.offset <= before))
        columns = (rows.key, rows.op, rows.offset, before, rows.process, rows.t)
        self.backwards += zip(*(column[back].tolist() for column in columns), strict=True)


def absorb(mine: Block, other: Block) -> None:
    """Merge what somebody else knows of the same block into `mine`."""
    both = (mine["value"] >= 0) & (other["value"] >= 0)
    mine["marks"] |= other["marks"]
    mine["marks"][both & (mine["value"] != other["value"])] |= CONFLICT
    missing = mine["value"] < 0
    lower = both & (other["value"] < mine["value"])
    mine["value"] = np.where(missing | lower, other["value"], mine["value"])
    mine["invoked"] = np.maximum(mine["invoked"], other["invoked"])
    for name in ("acked", "seen"):
        mine[name] = np.minimum(mine[name], other[name])


@dataclass(frozen=True)
class Inversion:
    """Two entries of a queue in the wrong order: the one at `offset` was there by `until`, and the
    one at the lower or same offset `lower` was only invoked at `since`, later."""

    offset: int
    value: int
    until: int
    lower: int
    lower_value: int
    since: int


def _shelved(marks: Array, conflict: Bools) -> dict[str, Bools]:
    """What steps over some offsets are judged by."""
    doubtful, lost = conflict | ((marks & UNSURE) != 0), (marks & LOST) != 0
    given = ((marks & GIVEN) != 0) & ~doubtful
    excused = (doubtful | lost) & ~given
    return {"given": given, "excused": excused, "conflict": conflict, "lost": lost}


@dataclass
class Sweep:
    """One queue's blocks, swept in order of offsets."""

    sample: int
    shelf: Shelf | None = None
    length: int = 0
    conflicts: int = 0
    reordered: int = 0
    impossible: int = 0
    fresh: int = 0
    fresh_first: int = -1
    fresh_last: int = -1
    conflict_offsets: list[int] = field(default_factory=list)
    reorderings: list[Inversion] = field(default_factory=list)
    contradictions: list[Inversion] = field(default_factory=list)
    _latest: tuple[int, int, int] = (-1, -1, -1)  # greatest lower bound so far: at, offset, value

    def add(self, number: int, block: Block) -> None:
        """The next block of this queue."""
        first = (number << BLOCK_BITS) & ((1 << OFFSET_BITS) - 1)
        conflict = (block["marks"] & CONFLICT) != 0
        self._count(block, conflict, first)
        if self.shelf is not None:
            self.shelf.add(first, _shelved(block["marks"], conflict))
        since = np.where(conflict, -1, block["invoked"])
        acked = np.where(conflict, NEVER, block["acked"])
        until = np.minimum(acked, np.where(conflict, NEVER, block["seen"]))
        upto = np.maximum.accumulate(np.maximum(since, self._latest[0]))
        before = np.concatenate([[self._latest[0]], upto[:-1]])
        self._judge(block, first, since, before > acked, acked, inclusive=False)
        self._judge(block, first, since, upto > until, until, inclusive=True)
        best = int(np.argmax(since))
        if since[best] > self._latest[0]:
            self._latest = (int(since[best]), first + best, int(block["value"][best]))

    def _count(self, block: Block, conflict: Bools, first: int) -> None:
        self.length += int((block["value"] >= 0).sum())
        self.conflicts += int(conflict.sum())
        room = self.sample - len(self.conflict_offsets)
        self.conflict_offsets += (first + np.flatnonzero(conflict)[:room]).tolist()
        fresh = np.flatnonzero(block["marks"] & FRESH)
        if len(fresh):
            self.fresh += len(fresh)
            self.fresh_last = first + int(fresh[-1])
            if self.fresh_first < 0:
                self.fresh_first = first + int(fresh[0])

    def _judge(
        self, block: Block, first: int, since: Ints, wrong: Bools, until: Ints, inclusive: bool
    ) -> None:
        at = np.flatnonzero(wrong)
        shown = self.contradictions if inclusive else self.reorderings
        if inclusive:
            self.impossible += len(at)
        else:
            self.reordered += len(at)
        for offset in at[: self.sample - len(shown)].tolist():
            lower = self._greatest(block, first, since, offset + inclusive)
            value = int(block["value"][offset])
            shown.append(Inversion(first + offset, value, int(until[offset]), *lower))

    def _greatest(self, block: Block, first: int, since: Ints, end: int) -> tuple[int, int, int]:
        """Who gave the greatest lower bound before `end`: offset, value, when invoked."""
        latest, offset, value = self._latest
        if end:
            best = int(np.argmax(since[:end]))
            if since[best] > latest:
                return first + best, int(block["value"][best]), int(since[best])
        return offset, value, latest

    def told(self) -> dict[str, Any]:
        """What was found, for whoever asked."""
        return {
            "length": self.length,
            "conflicts": self.conflicts,
            "reordered": self.reordered,
            "impossible": self.impossible,
            "holes": self.holes,
            "conflict_offsets": self.conflict_offsets,
            "reorderings": [asdict(inversion) for inversion in self.reorderings],
            "contradictions": [asdict(inversion) for inversion in self.contradictions],
        }

    @property
    def holes(self) -> int:
        """Offsets that the fresh reader was not given, between its first and its last."""
        return self.fresh_last - self.fresh_first + 1 - self.fresh if self.fresh else 0
