"""The bounds of a queue's log, by offset, as the rows of one writer give them.

Bounds are stored in blocks of consecutive offsets of one queue (`message_rows`) that merge by
maximum and minimum. Messages that are gone from the log are left out: their loss has been counted,
and other messages have their offsets now. An offset with two values has no bounds at all; that is a
finding of its own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from checkers._messages.message_rows import (
    MAX_BLOCKS,
    MAX_OFFSETS,
    NEVER,
    OFFSET_BITS,
    Array,
    Block,
    Blocks,
    Ints,
    OpColumns,
    among,
    in_range,
    key_of,
    offset_of,
    rowwise,
)
from checkers._messages.messages import NO_MEMBERS, Members
from checkers._messages.poll_steps import KEY_BITS, Assignments, PollOrder, StepScan
from checkers._spark.spark_stages import EVERYTHING, Share
from harness.operation import F, Type

LOG_FIELDS: dict[str, tuple[Any, int]] = {
    "value": (np.int64, -1),
    "invoked": (np.int64, -1),  # t(o) is later than this
    "acked": (np.int64, NEVER),  # and earlier than these
    "seen": (np.int64, NEVER),
    "epoch": (np.int32, -1),  # of the record there, from answers to clients
    "stored": (np.int64, -1),  # its store time
    "marks": (np.uint8, 0),
}
SEND, POLL, READ = int(F.SEND), int(F.POLL), int(F.READ)  # as kernels take them
INVOKE, OK, INFO = int(Type.INVOKE), int(Type.OK), int(Type.INFO)
MAX_CLASHING = 1 << 16  # of values that share offsets, whose names a writer keeps
CONFLICT, FINAL = 1, 2  # marks: two messages; seen by the final reader
# in an imported history: a message there was received; it is not certain; it is lost
GIVEN, UNSURE, LOST = 4, 8, 16
RESTAMPED = 32  # two epochs or two store times of one record
SEND_FIELDS: dict[str, tuple[Any, int]] = {"invoked": (np.int64, -1)}


# ------------------------------------------------------------------- the bounds of one writer


@dataclass(frozen=True)
class LogContext:
    """What the census found before.

    gone         messages that are gone
    late         those of unknown outcome that were seen: values, sorted, and their places
    unsure       those that are not at one certain place
    assignments  in an imported history, what its processes read from
    """

    gone: Members
    late: tuple[Ints, Ints]
    unsure: Members = NO_MEMBERS
    assignments: Assignments | None = None


class LogBounds:
    """The bounds that one writer's rows give, and violations within its own rows; of the queues of
    a share, if it is a task's own."""

    def __init__(
        self, known: LogContext, offsets: Blocks | None = None, share: Share = EVERYTHING
    ) -> None:
        self.offsets = Blocks(LOG_FIELDS) if offsets is None else offsets
        self._known, self._share = known, share
        self.steps = StepScan(known.assignments, known.late) if known.assignments else None
        self.polls = PollOrder()
        self.sends = Blocks(SEND_FIELDS)  # a send completes in the journal it was invoked in
        self.clashing: set[int] | None = set()  # values at one offset; None: too many
        self._sends_kept = MAX_BLOCKS >> 1

    def observe(self, rows: OpColumns) -> None:
        if self.steps and self._share.of > 1:  # a send names its queue
            mine = rows.key % self._share.of == self._share.number
            rows = rows.where(mine | (rows.key < 0) | (rows.value < 0))
        send, place, reader = np.empty((3, len(rows.value)), np.int64)
        columns = (rows.key, rows.offset, rows.type, rows.f, rows.process)
        share = (self._share.number, self._share.of)
        _interpret(rows.value, *columns, *share, send, place, reader)
        if self.steps is None:
            self.polls.observe(rows, reader)
        else:
            self.steps.observe(rows)
            self._mark(rows)
        self._bound_late(rows)
        if self._known.gone:
            place[self._known.gone.holds(rows.value)] = -1
        sent, at = self.sends.at(send), self.offsets.at(place)
        others = (rows.value, rows.t, rows.type, rows.f, rows.epoch, rows.arg)
        bounds = (self.offsets[name] for name in LOG_FIELDS)
        clash = np.empty(len(at), np.int64)
        clash = clash[: _bind(at, sent, *others, self.sends["invoked"], clash, *bounds)]
        self._clash(rows.value[clash], self.offsets["value"][at[clash]])
        if len(self.sends) > self._sends_kept:
            self.sends.keep(lambda block: bool((block["invoked"] >= -1).any()))
            self._sends_kept = max(self._sends_kept, 2 * len(self.sends))

    def _clash(self, *values: Ints) -> None:
        if self.clashing is not None:
            self.clashing.update(*(some.tolist() for some in values))
            self.clashing = self.clashing if len(self.clashing) < MAX_CLASHING else None

    def _mark(self, rows: OpColumns) -> None:
        """OffsetMark the offsets that rows name."""
        rows = rows.where((rows.key >= 0) & (rows.value >= 0) & in_range(rows.offset))
        sends, ok = rows.f == F.SEND, rows.type == Type.OK
        ended = rows.where(sends & (ok | (rows.type == Type.INFO)))
        seen = rows.where(ok & ((rows.f == F.POLL) | (rows.f == F.READ)))
        unsure = self._known.unsure.holds(seen.value)
        gone = ended.where(self._known.gone.holds(ended.value))
        for some, mark in (
            (seen.where(~unsure), GIVEN),
            (seen.where(unsure), UNSURE),
            (gone, LOST),
        ):
            at = self.offsets.at((some.key << OFFSET_BITS) | some.offset)
            self.offsets["marks"][at] |= np.uint8(mark)
        self._hold(ended.where(ended.type == Type.INFO))

    def _hold(self, sends: OpColumns) -> None:
        """Record sends of unknown outcome that were seen: they are committed, so they had the
        offset that they name."""
        some = sends.take(among(sends.value, self._known.late[0]))
        some = some.where(~self._known.gone.holds(some.value))
        at = self.offsets.at((some.key << OFFSET_BITS) | some.offset)
        held, marks = self.offsets["value"], self.offsets["marks"]
        fresh = held[at] < 0
        held[at[fresh]] = some.value[fresh]
        marks[at[held[at] != some.value]] |= np.uint8(CONFLICT)

    def _bound_late(self, rows: OpColumns) -> None:
        """Bound sends of unknown outcome that were seen: they were appended after their invocation.
        One that was seen at several places bounds none of them: which one the census has depends on
        the distribution of the rows."""
        values, places = self._known.late
        if not len(values):
            return
        rows = rows.where((rows.value >= 0) & (rows.f == F.SEND) & (rows.type == Type.INVOKE))
        rows = rows.take(among(rows.value, values))
        rows = rows.where(~self._known.unsure.holds(rows.value))
        self._bound(rows.value, places[np.searchsorted(values, rows.value)], rows.t)

    def bound_late(self, values: Ints, places: Ints) -> None:
        """The same for this writer's sends when all of its rows have been observed."""
        mine = self.sends.known(values)
        values, places = values[mine], places[mine]
        at = self.sends.at(values)
        began = self.sends["invoked"][at]
        began = np.where(began < -1, -2 - began, began)
        self._bound(values[began >= 0], places[began >= 0], began[began >= 0])

    def _bound(self, value: Ints, place: Ints, began: Ints) -> None:
        mine = key_of(place) % self._share.of == self._share.number
        value, place, began = value[mine], place[mine], began[mine]
        at = self.offsets.at((key_of(place) << OFFSET_BITS) | offset_of(place))
        held, marks = self.offsets["value"], self.offsets["marks"]
        fresh = held[at] < 0
        held[at[fresh]] = value[fresh]
        marks[at[held[at] != value]] |= np.uint8(CONFLICT)
        np.maximum.at(self.offsets["invoked"], at, began)


@rowwise
def _interpret(
    value: Ints,
    key: Ints,
    offset: Ints,
    kind: Ints,
    f: Ints,
    process: Ints,
    share: int,
    shares: int,
    send: Ints,
    place: Ints,
    reader: Ints,
) -> None:
    """Fill in each row's send, the place that it names, and the reader that received a message
    there; or -1. Places of other shares are left out."""
    for i in range(len(value)):
        send[i] = place[i] = reader[i] = -1
        if value[i] < 0 or (key[i] < 0 and f[i] != SEND):
            continue
        known = kind[i] == OK and key[i] >= 0 and 0 <= offset[i] < MAX_OFFSETS - 1
        known = known and (shares == 1 or key[i] % shares == share)
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
    clash: Ints,
    values: Ints,
    invoked: Ints,
    acked: Ints,
    seen: Ints,
    epochs: Array,
    stored: Ints,
    marks: Array,
) -> int:
    """Bound offsets by rows of sends and of reads. `at`: index of the offset, or -1; `sent`: index
    of the send, or -1. `began` is -2 - t for one that has ended. Fill in the rows whose offset has
    another value already, and return how many they are."""
    clashes = 0
    for i in range(len(at)):
        send, here, since = sent[i], at[i], np.int64(-1)
        if send >= 0 and kind[i] == INVOKE:
            began[send] = t[i]
        elif send >= 0:
            since = began[send] if began[send] >= -1 else -2 - began[send]
            if kind[i] != INFO:
                began[send] = -2 - since
        if here < 0:
            continue
        store_time = arg[i] if send < 0 else -1  # only answers to readers have it
        if values[here] < 0:  # every offset has one value
            values[here] = value[i]
        elif values[here] != value[i]:
            marks[here] |= CONFLICT
            clash[clashes] = i
            clashes += 1
        elif (min(epochs[here], epoch[i]) >= 0 and epochs[here] != epoch[i]) or (
            min(stored[here], store_time) >= 0 and stored[here] != store_time
        ):
            marks[here] |= RESTAMPED
        epochs[here] = max(epochs[here], epoch[i])
        stored[here] = max(stored[here], store_time)
        if send >= 0:
            invoked[here] = max(invoked[here], since)
            acked[here] = min(acked[here], t[i])
        else:
            seen[here] = min(seen[here], t[i])
            if f[i] == READ:
                marks[here] |= FINAL
    return clashes


def absorb(mine: Block, other: Block) -> None:
    """Merge another task's version of the same block into `mine`."""
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
