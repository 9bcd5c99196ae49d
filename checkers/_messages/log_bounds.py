"""Each queue as an append-only log: bounds on the instant at which it grew over each offset.

Let t(o) be the instant at which offset o came to be. Whoever appended there gives a lower bound,
its invocation; every acknowledgement and every read of o gives an upper bound, its return. A log
grows in order, so t rises with o, and the history is linearizable exactly when some t fits: when
the greatest lower bound up to o never exceeds o's upper bound. With values that are unique that is
one running maximum, where a general search would be exponential (checked against one in the tests).

    order         the same with acknowledgements alone: a's ok came before b's invoke, and yet b
                  has the lower offset
    linearizable  with reads too, and appends of unknown outcome that were seen

Bounds live in blocks of consecutive offsets of one queue (`blocks`) that merge by maximum and
minimum. Messages that are gone from the log are left out: their loss has been counted, and the
offsets they held belong to others now. An offset with two values has no bounds at all; that is a
finding of its own.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from checkers._messages.blocks import (
    BLOCK_BITS,
    MOST_OFFSETS,
    NEVER,
    OFFSET_BITS,
    Array,
    Block,
    Blocks,
    Bools,
    Ints,
    Members,
)
from checkers._messages.messages import NOBODY, Rows, in_range, key_of, offset_of
from checkers._messages.poll_order import KEY_BITS, Polls
from checkers._messages.poll_steps import Readings, Shelf, Walks
from checkers._spark.compiled import rowwise
from harness.operation import F, Type

LOG_FIELDS: dict[str, tuple[Any, int]] = {
    "value": (np.int64, -1),
    "invoked": (np.int64, -1),  # t(o) is later than this
    "acked": (np.int64, NEVER),  # and earlier than these
    "seen": (np.int64, NEVER),
    "epoch": (np.int32, -1),  # of the record there, as clients were told
    "stored": (np.int64, -1),  # its store time
    "marks": (np.uint8, 0),
}
SEND, POLL, READ = int(F.SEND), int(F.POLL), int(F.READ)  # as kernels take them
INVOKE, OK = int(Type.INVOKE), int(Type.OK)
CONFLICT, FRESH = 1, 2  # marks
# in an imported history: somebody was given the message there; it is no certain one; it is lost
GIVEN, UNSURE, LOST = 4, 8, 16
RESTAMPED = 32  # two epochs or two store times of one record
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
        self._known = known
        self.walks = Walks(known.readings, known.late) if known.readings else None
        self._sends = Blocks(SEND_FIELDS)  # a send completes in the journal it was invoked in
        self._polls = Polls()

    def observe(self, rows: Rows) -> None:
        send, place, reader = np.empty((3, len(rows.value)), np.int64)
        asked = (rows.key, rows.offset, rows.type, rows.f, rows.process)
        _tell(rows.value, *asked, send, place, reader)
        if self.walks is None:
            self._polls.observe(rows, reader)
        else:
            self.walks.observe(rows)
            self._mark(rows)
        self._bound_late(rows)
        if self._known.gone:
            place[self._known.gone.holds(rows.value)] = -1
        sent, at = self._sends.at(send), self.offsets.at(place)
        columns = (rows.value, rows.t, rows.type, rows.f, rows.epoch, rows.arg)
        bounds = (self.offsets[name] for name in LOG_FIELDS)
        _bind(at, sent, *columns, self._sends["invoked"], *bounds)

    @property
    def backwards(self) -> list[tuple[int, ...]]:
        """(key, op, offset, the one before it, process, t) within one poll."""
        return self._polls.backwards

    def _mark(self, rows: Rows) -> None:
        """What stands at the offsets that somebody was told."""
        rows = rows.where((rows.key >= 0) & (rows.value >= 0) & in_range(rows.offset))
        sends, ok = rows.f == F.SEND, rows.type == Type.OK
        told = rows.where(sends & (ok | (rows.type == Type.INFO)))
        seen = rows.where(ok & ((rows.f == F.POLL) | (rows.f == F.READ)))
        unsure = self._known.unsure.holds(seen.value)
        gone = told.where(self._known.gone.holds(told.value))
        for some, mark in (
            (seen.where(~unsure), GIVEN),
            (seen.where(unsure), UNSURE),
            (gone, LOST),
        ):
            at = self.offsets.at((some.key << OFFSET_BITS) | some.offset)
            self.offsets["marks"][at] |= np.uint8(mark)
        self._hold(told.where(told.type == Type.INFO))

    def _hold(self, sends: Rows) -> None:
        """Sends of unknown outcome that were seen are committed, so they held the offset that they
        name."""
        values = self._known.late[0]
        if not len(values) or not len(sends.value):
            return
        found = np.minimum(np.searchsorted(values, sends.value), len(values) - 1)
        some = sends.where((values[found] == sends.value) & ~self._known.gone.holds(sends.value))
        at = self.offsets.at((some.key << OFFSET_BITS) | some.offset)
        held, marks = self.offsets["value"], self.offsets["marks"]
        fresh = held[at] < 0
        held[at[fresh]] = some.value[fresh]
        marks[at[held[at] != some.value]] |= np.uint8(CONFLICT)

    def _bound_late(self, rows: Rows) -> None:
        """Sends of unknown outcome that were seen: appended after they were invoked. One that was
        seen at several places bounds none of them: which one the survey names depends on which
        rows stood together."""
        values, places = self._known.late
        if not len(values):
            return
        rows = rows.where((rows.value >= 0) & (rows.f == F.SEND) & (rows.type == Type.INVOKE))
        found = np.minimum(np.searchsorted(values, rows.value), len(values) - 1)
        late = (values[found] == rows.value) & ~self._known.unsure.holds(rows.value)
        place, value = places[found[late]], rows.value[late]
        at = self.offsets.at((key_of(place) << OFFSET_BITS) | offset_of(place))
        held, marks = self.offsets["value"], self.offsets["marks"]
        fresh = held[at] < 0
        held[at[fresh]] = value[fresh]
        marks[at[held[at] != value]] |= np.uint8(CONFLICT)
        np.maximum.at(self.offsets["invoked"], at, rows.t[late])


@rowwise
def _tell(
    value: Ints,
    key: Ints,
    offset: Ints,
    kind: Ints,
    f: Ints,
    process: Ints,
    send: Ints,
    place: Ints,
    reader: Ints,
) -> None:
    """Each row's send, the offset that it names, and who was given a message there; or -1."""
    for i in range(len(value)):
        send[i] = place[i] = reader[i] = -1
        if value[i] < 0 or (key[i] < 0 and f[i] != SEND):
            continue
        known = kind[i] == OK and key[i] >= 0 and 0 <= offset[i] < MOST_OFFSETS - 1
        if f[i] == SEND:
            send[i] = value[i]
        elif known and (f[i] == POLL or f[i] == READ):
            reader[i] = (int(process[i]) << KEY_BITS) | int(key[i])
        else:
            continue
        if known:
            place[i] = (int(key[i]) << OFFSET_BITS) | offset[i]


@rowwise
def _bind(
    at: Ints,
    sent: Ints,
    value: Ints,
    t: Ints,
    kind: Ints,
    f: Ints,
    epoch: Ints,
    arg: Ints,
    began: Ints,
    values: Ints,
    invoked: Ints,
    acked: Ints,
    seen: Ints,
    epochs: Array,
    stored: Ints,
    marks: Array,
) -> None:
    """Rows of sends, and of who saw what. `at`: of their offsets, or -1; `sent`: of sends."""
    for i in range(len(at)):
        send, here = sent[i], at[i]
        if send >= 0 and kind[i] == INVOKE:
            began[send] = t[i]
        if here < 0:
            continue
        told = arg[i] if send < 0 else -1  # the store time, which only readers are told
        if values[here] < 0:  # every offset has one value
            values[here] = value[i]
        elif values[here] != value[i]:
            marks[here] |= CONFLICT
        elif (min(epochs[here], epoch[i]) >= 0 and epochs[here] != epoch[i]) or (
            min(stored[here], told) >= 0 and stored[here] != told
        ):
            marks[here] |= RESTAMPED
        epochs[here] = max(epochs[here], epoch[i])
        stored[here] = max(stored[here], told)
        if send >= 0:
            invoked[here] = max(invoked[here], began[send])
            acked[here] = min(acked[here], t[i])
        else:
            seen[here] = min(seen[here], t[i])
            if f[i] == READ:
                marks[here] |= FRESH


def absorb(mine: Block, other: Block) -> None:
    """Merge what somebody else knows of the same block into `mine`."""
    both = (mine["value"] >= 0) & (other["value"] >= 0)
    mine["marks"] |= other["marks"]
    mine["marks"][both & (mine["value"] != other["value"])] |= CONFLICT
    for name in ("epoch", "stored"):
        known = both & (mine[name] >= 0) & (other[name] >= 0)
        mine["marks"][known & (mine[name] != other[name])] |= RESTAMPED
        mine[name] = np.maximum(mine[name], other[name])
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
    restamped: int = 0
    reordered: int = 0
    impossible: int = 0
    fresh: int = 0
    fresh_first: int = -1
    fresh_last: int = -1
    conflict_offsets: list[int] = field(default_factory=list)
    restamped_offsets: list[int] = field(default_factory=list)
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
        restamped = np.flatnonzero(((block["marks"] & RESTAMPED) != 0) & ~conflict)
        self.restamped += len(restamped)
        room = self.sample - len(self.restamped_offsets)
        self.restamped_offsets += (first + restamped[:room]).tolist()
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
            "pairs": max(0, self.length - 1),
            "conflicts": self.conflicts,
            "reordered": self.reordered,
            "impossible": self.impossible,
            "holes": self.holes,
            "conflict_offsets": self.conflict_offsets,
            "restamped": self.restamped,
            "restamped_offsets": self.restamped_offsets,
            "reorderings": [asdict(inversion) for inversion in self.reorderings],
            "contradictions": [asdict(inversion) for inversion in self.contradictions],
        }

    @property
    def holes(self) -> int:
        """Offsets that the fresh reader was not given, between its first and its last."""
        return self.fresh_last - self.fresh_first + 1 - self.fresh if self.fresh else 0
