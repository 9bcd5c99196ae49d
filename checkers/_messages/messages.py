"""What became of every message: flags and a place for each value.

A value is sent once, completes once, and is then seen by readers, consumer groups and replicas. All
of that is one word of flags and one *place* (its queue and offset), kept in blocks of consecutive
values. `observe` adds rows of the history, in any order; `absorb` merges what two machines know of
one block; `classify` tells what is wrong, once everything is known. Loss, phantom and duplicates
are three questions to the same blocks.

The fresh reader's word on a message's place outranks everybody's: it read the log that survived.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

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
from checkers._spark.compiled import rowwise
from harness.operation import SEQUENCE_BITS, F, Type

Flags = npt.NDArray[np.uint64]


class Seen(IntFlag):
    """What is known of a message."""

    INVOKED = 1
    ACKED = 2
    FAILED = 4
    INFO = 8
    RETRIED = 16  # its send took more than one attempt
    READ = 32  # by the fresh reader
    READ_TWICE = 64  # by the fresh reader, at two places: it is stored twice
    MOVED = 128  # two witnesses name two places
    POLLED = 256  # by some consumer
    STORED = 512  # in some replica's log at the end
    PART = 1024  # sent in a transaction of unknown outcome
    GIVEN_TWICE = 2048  # given to one group more than once
    OVERDUE = 4096  # acknowledged so late that who read to the end may have come too early


GROUP_BIT = 16  # group g's deliveries are bit GROUP_BIT + g
MOST_GROUPS = 64 - GROUP_BIT
GROUPS = -1 << GROUP_BIT  # the bits of all of them

OFFSETS = MOST_OFFSETS - 1  # the part of a place that names the offset
INFO, POLLED, RETRIED = int(Seen.INFO), int(Seen.POLLED), int(Seen.RETRIED)  # as kernels take it
SEND, OK, UNSURE = int(F.SEND), int(Type.OK), int(Type.INFO)
READ, READ_TWICE, MOVED = int(Seen.READ), int(Seen.READ_TWICE), int(Seen.MOVED)
GIVEN_TWICE, ACKED = int(Seen.GIVEN_TWICE), int(Seen.ACKED)

MESSAGE_FIELDS: dict[str, tuple[Any, int]] = {
    "flags": (np.uint64, 0),
    "place": (np.int64, -1),
    "acked": (np.int64, -1),  # the place that the acknowledgement named
}


COLUMNS = (
    *("t", "process", "op", "type", "f", "key", "value", "offset", "pos", "mop", "attempts"),
    *("epoch", "arg"),
)


class Rows:
    """Some rows of the ops table, as arrays by column; -1 is null. A selection copies only the
    columns that somebody asks for."""

    t: Ints
    process: Ints
    op: Ints
    type: Ints
    f: Ints
    key: Ints
    value: Ints
    offset: Ints
    pos: Ints
    mop: Ints
    attempts: Ints
    epoch: Ints
    arg: Ints

    def __init__(self, columns: Mapping[str, Ints], at: Ints | None = None) -> None:
        self._columns, self._at = columns, at

    def __getattr__(self, name: str) -> Ints:
        array = self._columns[name]
        array = array if self._at is None else array[self._at]
        self.__dict__[name] = array
        return array

    def where(self, mask: Bools) -> "Rows":
        return self.take(np.flatnonzero(mask))

    def take(self, at: Ints) -> "Rows":
        return Rows(self._columns, at if self._at is None else self._at[at])


NOBODY = Members({})


@dataclass(frozen=True)
class Scope:
    """What the final phase reached, so what may be concluded.

    drained    keys that the fresh reader read from their first message to their last
    required   key -> bits of the groups that read it to its end
    replicas   every replica's log was read at the end
    groups     process -> number of its consumer group
    passed     key -> offset up to which somebody read on, where nobody drained: what stood below
               it was there for him, so that seen by anybody is found, and seen by nobody is lost
    imported   recorded by others: there is no fresh reader, and every consumer counts as one
    displaced  acknowledged at offsets at which others were seen: no loss, but two at one offset
    committed  of unknown outcome, in a transaction of which another part was seen
    until      when the final phase began, if sends were still open then; else None
    spoiled    places at which a reader was given a body that differs from what was sent
    skipped    held by every replica at the offset of their acknowledgement, and not given to the
               fresh reader
    deleted    key -> the queue's first offset, where its nodes deleted what stood before it
    rows       how many offenders of a kind are kept
    """

    drained: frozenset[int] = frozenset()
    required: dict[int, int] = field(default_factory=dict)
    replicas: bool = False
    groups: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    imported: bool = False
    displaced: Members = NOBODY
    committed: Members = NOBODY
    until: int | None = None
    spoiled: frozenset[int] = frozenset()
    skipped: Members = NOBODY
    deleted: dict[int, int] = field(default_factory=dict)
    rows: int = 0


def place_of(key: Ints, offset: Ints) -> Ints:
    """A place; the offset may be absent, the key may not."""
    return (key << OFFSET_BITS) | np.where(in_range(offset), offset + 1, 0)


def has(flags: Array, *wanted: Seen) -> Bools:
    """Where any of these is known."""
    mask: Bools = (flags & np.uint64(sum(wanted))) != 0
    return mask


def of_unknown_outcome(flags: Array) -> Bools:
    """Also where nobody recorded the end, because the client died."""
    ended = has(flags, Seen.ACKED, Seen.FAILED)
    return has(flags, Seen.INFO) | (has(flags, Seen.INVOKED) & ~ended)


def in_range(offset: Ints) -> Bools:
    known: Bools = (offset >= 0) & (offset < MOST_OFFSETS - 1)
    return known


def key_of(place: Ints) -> Ints:
    """-1 for no place at all."""
    return place >> OFFSET_BITS


def offset_of(place: Ints) -> Ints:
    """-1 when the offset is not known."""
    return np.where(place < 0, -1, (place & (MOST_OFFSETS - 1)) - 1)


def differ(a: Ints, b: Ints) -> Bools:
    """Two places that can not be one: other queues, or other offsets where both are known."""
    both = (a >= 0) & (b >= 0) & (a != b)
    known = (offset_of(a) >= 0) & (offset_of(b) >= 0)
    result: Bools = both & (known | (key_of(a) != key_of(b)))
    return result


# ----------------------------------------------------------------------------------- observing


def observe(
    blocks: Blocks,
    rows: Rows,
    groups: Ints,
    *,
    imported: bool = False,
    until: int | None = None,
) -> None:
    """Add rows of the history. `groups[p]` is the group of process p, or -1; `until` is the
    scope's."""
    number, place, news = np.empty((3, len(rows.value)), np.int64)
    asked = (rows.key, rows.offset, rows.type, rows.f, rows.attempts, rows.process)
    _tell(rows.value, *asked, groups, NEWS[imported], imported, number, place, news)
    if imported:
        news |= np.where((news & INFO != 0) & (rows.mop >= 0), int(Seen.PART), 0)
    if until is not None:
        news |= np.where((news & int(Seen.ACKED) != 0) & (rows.t > until), int(Seen.OVERDUE), 0)
    _add(blocks, number, place, news)


def observe_replica(blocks: Blocks, value: Ints, key: Ints, offset: Ints) -> None:
    """Add messages of a replica's log."""
    news = np.full(len(value), int(Seen.STORED))
    _add(blocks, np.where(key >= 0, value, -1), place_of(key, offset), news)


def _add(blocks: Blocks, number: Ints, place: Ints, news: Ints) -> None:
    at = blocks.at(number)
    flags = blocks["flags"].view(np.int64)
    _put(at, place, news, flags, blocks["place"], blocks["acked"])


def _news(seen: Mapping[F, Seen]) -> Ints:
    """What a row tells of its message, by its kind and type: sends, in the order of the types, and
    what those are given who read."""
    table = np.zeros((max(F) + 2) << 2, np.int64)
    table[F.SEND << 2 : (F.SEND + 1) << 2] = Seen.INVOKED, Seen.ACKED, Seen.FAILED, Seen.INFO
    for f, flags in seen.items():
        table[f << 2 | Type.OK] = flags
    return table


# of a run of ours, and of an imported history, in which whoever is given a message has read it
NEWS = (
    _news({F.POLL: Seen.POLLED, F.READ: Seen.READ}),
    _news({f: Seen.READ | (Seen.POLLED if f is F.POLL else 0) for f in F if f is not F.SEND}),
)


@rowwise
def _tell(
    value: Ints,
    key: Ints,
    offset: Ints,
    kind: Ints,
    f: Ints,
    attempts: Ints,
    process: Ints,
    groups: Ints,
    meaning: Ints,
    imported: bool,
    number: Ints,
    place: Ints,
    news: Ints,
) -> None:
    """What each row tells: of which message, or -1, and what; and the place that it names."""
    for i in range(len(value)):
        number[i], news[i] = -1, 0
        code = (int(f[i]) << 2) | int(kind[i])
        if value[i] < 0 or not 0 <= code < len(meaning) or meaning[code] == 0:
            continue
        if key[i] < 0 and f[i] != SEND:
            continue
        number[i], new = value[i], meaning[code]
        if f[i] == SEND and attempts[i] > 1:
            new |= RETRIED
        if new & POLLED and 0 <= process[i] < len(groups) and groups[process[i]] >= 0:
            new |= np.int64(1) << (GROUP_BIT + groups[process[i]])
        news[i], place[i] = new, -1
        if key[i] < 0:  # the client selects the queue
            continue
        place[i] = int(key[i]) << OFFSET_BITS
        told = kind[i] == OK or (imported and kind[i] == UNSURE)  # its offset means something
        if told and 0 <= offset[i] < OFFSETS:
            place[i] |= offset[i] + 1


@rowwise
def _put(at: Ints, place: Ints, news: Ints, flags: Ints, places: Ints, acked: Ints) -> None:
    """Somebody names a message's place: the first one who knows the offset is believed, until the
    fresh reader does. What a group was given before it is given again."""
    for i in range(len(at)):
        here = at[i]
        if here < 0:
            continue
        new, now, was = news[i], places[here], flags[here]
        if now >= 0 and place[i] >= 0 and now != place[i]:  # as in `differ`
            known = now & OFFSETS != 0 and place[i] & OFFSETS != 0
            if known or now >> OFFSET_BITS != place[i] >> OFFSET_BITS:
                new |= MOVED
                if new & READ and was & READ:
                    new |= READ_TWICE
        if new & was & GROUPS:
            new |= GIVEN_TWICE
        if new & ACKED and place[i] >= 0:
            acked[here] = max(acked[here], place[i])
        if place[i] >= 0 and (now < 0 or (not was & READ and (new & READ or not now & OFFSETS))):
            places[here] = place[i]
        flags[here] = was | new


def absorb(mine: Block, other: Block) -> None:
    """Merge what somebody else knows of the same block into `mine`."""
    flags, places = mine["flags"], mine["place"]
    elsewhere = differ(places, other["place"])
    read, other_read = has(flags, Seen.READ), has(other["flags"], Seen.READ)
    again = (flags & other["flags"]).view(np.int64) & GROUPS != 0
    flags |= other["flags"]
    flags[again] |= np.uint64(Seen.GIVEN_TWICE)
    flags[elsewhere] |= np.uint64(Seen.MOVED)
    flags[elsewhere & read & other_read] |= np.uint64(Seen.READ_TWICE)
    np.maximum(mine["acked"], other["acked"], out=mine["acked"])
    better = np.where(read == other_read, _rank(other["place"]) < _rank(places), other_read)
    places[better] = other["place"][better]


def _rank(places: Array) -> Array:
    """Of two places the least is kept, so that the order of merging never shows: places with an
    offset come first, no place at all last."""
    ranked = np.where(offset_of(places) >= 0, places, places | (1 << 62))
    return np.where(places < 0, NEVER, ranked)


# --------------------------------------------------------------------------------- classifying


@dataclass(frozen=True)
class Classes:
    """A block's messages by what became of them, as masks; `unread` by group."""

    found: Bools  # by whoever's reading counts
    lost: Bools  # acknowledged, and the fresh reader that read everything did not find it
    left: Bools  # of these, what it found where an earlier attempt had left it
    perhaps_lost: Bools  # the same, where the fresh reader did not read everything
    unread: dict[int, Bools]  # in the log, and never given to a group that read to the end
    ungiven: dict[int, Bools]  # the same of a group that did not say so: it may still be on its way
    overdue: Bools  # lost or unread, were it not for an acknowledgement after the final phase began
    never_sent: Bools
    refused: Bools  # certainly failed, and seen
    vanished: Bools  # seen, and in no replica's log at the end
    displaced: Bools  # acknowledged, seen by nobody, and others were seen at its offset
    skipped: Bools  # acknowledged, in every replica's log, and not given to the fresh reader
    deleted: Bools  # acknowledged, and deleted by retention
    torn: (
        Bools  # lost like `lost`: never acknowledged, but another part of its transaction was seen
    )
    unsure: Bools  # seen, and not a message at its one place: refused, never sent, at two places
    doubled: Bools  # stored twice without a cause
    retried: Bools  # stored twice by a retry
    moved: Bools  # acknowledged at the first attempt, and found elsewhere
    recovered: Bools  # of unknown outcome, and found
    late: Bools  # the same or delivered: bounds the order of the log


def classify(number: int, block: Block, scope: Scope) -> Classes:
    flags, key = block["flags"], key_of(block["place"])
    acked, read = has(flags, Seen.ACKED), has(flags, Seen.READ)
    invoked = has(flags, Seen.INVOKED)
    info = of_unknown_outcome(flags)
    drained = np.isin(key, np.array(sorted(scope.drained), np.int64))
    seen = has(flags, Seen.READ, Seen.POLLED)
    twice = has(flags, Seen.READ_TWICE)
    caused = has(flags, Seen.RETRIED, Seen.FAILED) | info
    found = read | (seen & np.isin(key, np.array(sorted(scope.passed), np.int64)))
    reached = drained | _below(key, offset_of(block["place"]), scope.passed)
    displaced = acked & ~found & scope.displaced.within(number)
    left = _left(block, scope)
    stored = acked & (~found | left) & scope.skipped.within(number)
    spoiled = np.isin(block["place"], np.array(sorted(scope.spoiled), np.int64))
    expired = _below(key, offset_of(block["place"]), scope.deleted)
    missing = ~found & ~displaced & ~stored & ~spoiled & ~expired
    punctual = ~has(flags, Seen.OVERDUE)
    left &= punctual & ~stored
    lost = (acked & missing & reached & punctual) | left
    torn = scope.committed.within(number) & ~acked & missing & reached
    refused, never_sent = seen & has(flags, Seen.FAILED), seen & ~invoked
    unread = _unread(flags, key, acked & read & ~spoiled, scope)
    skipped = np.any([missed & asked for missed, asked in unread.values()], axis=0)
    return Classes(
        found=found,
        lost=lost,
        left=left,
        perhaps_lost=acked & missing & ~reached,
        unread={group: missed & asked & punctual for group, (missed, asked) in unread.items()},
        ungiven={group: missed & ~asked for group, (missed, asked) in unread.items()},
        overdue=~punctual & ((acked & missing & reached) | skipped),
        never_sent=never_sent,
        refused=refused,
        vanished=seen
        & invoked
        & ~has(flags, Seen.STORED)
        & ~(lost | spoiled | expired)
        & scope.replicas,
        displaced=displaced,
        skipped=stored,
        deleted=acked & ~found & expired,
        torn=torn,
        unsure=seen & (refused | never_sent | has(flags, Seen.MOVED)),
        doubled=twice & ~caused & invoked,
        retried=twice & caused,
        moved=has(flags, Seen.MOVED) & ~twice & ~caused & invoked & ~lost,
        recovered=info & found,
        late=info & seen,
    )


def _left(block: Block, scope: Scope) -> Bools:
    """Return which messages the fresh reader, which read that queue to its end, did not find where
    they were acknowledged, but at one other place, where an earlier attempt had left a copy."""
    flags, acked = block["flags"], block["acked"]
    if scope.imported or not (acked >= 0).any():
        return np.zeros(len(flags), np.bool_)
    elsewhere = differ(acked, block["place"]) & has(flags, Seen.READ) & has(flags, Seen.RETRIED)
    drained = np.isin(key_of(acked), np.array(sorted(scope.drained), np.int64))
    spoiled = np.isin(acked, np.array(sorted(scope.spoiled), np.int64))
    expired = _below(key_of(acked), offset_of(acked), scope.deleted)
    return elsewhere & drained & ~has(flags, Seen.READ_TWICE) & ~spoiled & ~expired


def _below(key: Ints, offset: Ints, limits: Mapping[int, int]) -> Bools:
    """Return where an offset is below the limit of its key."""
    keys = np.array(sorted(limits), np.int64)
    if not len(keys):
        return np.zeros(len(key), np.bool_)
    to = np.array([limits[k] for k in keys.tolist()], np.int64)
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    below: Bools = (keys[at] == key) & (offset >= 0) & (offset < to[at])
    return below


def _unread(flags: Flags, key: Ints, there: Bools, scope: Scope) -> dict[int, tuple[Bools, Bools]]:
    """By group: what it was not given of what is there, and where it read to the end."""
    unread: dict[int, tuple[Bools, Bools]] = {}
    for group in sorted(set(scope.groups.values())):
        bit = 1 << (GROUP_BIT + group)
        keys = [k for k, required in scope.required.items() if required >> group & 1]
        asked = np.isin(key, np.array(sorted(keys), np.int64))
        unread[group] = there & ((flags & np.uint64(bit)) == 0), asked
    return unread


def values_in(number: int, mask: Bools) -> Ints:
    """The values of a block that a mask holds."""
    return (np.int64(number) << BLOCK_BITS) | np.flatnonzero(mask)


def producer_of_block(number: int) -> int:
    return number >> (SEQUENCE_BITS - BLOCK_BITS)
