"""What became of each message: flags and a place for each value.

A value is sent once, completes once, and is then seen by readers, consumer groups and replicas. All
of that is one word of flags and one *place* (queue and offset), stored in blocks of consecutive
values. `observe` adds rows of the history, in any order; `absorb` merges two versions of a block;
`classify` says what is wrong with the messages of a complete block. `CensusJob` is what Spark's
tasks do with these: `scan` reduces files to blocks, `merge` reports on merged blocks.

The place that the final reader saw takes precedence over all others: it read the log that survived.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers._messages.blocks import (
    BLOCK,
    BLOCK_BITS,
    MAX_BLOCKS,
    MAX_OFFSETS,
    NEVER,
    OFFSET_BITS,
    Array,
    Block,
    Blocks,
    Bools,
    Ints,
    bits_if_any,
    merged_batches,
)
from checkers._messages.final_reads import GROUP_BIT, CensusScope
from checkers._spark.compiled import rowwise
from checkers._spark.spark_stages import (
    BYTES,
    INT,
    INTS,
    Batches,
    Unit,
    arrays,
    in_batches,
    stored,
)
from harness.operation import F, Type

Flags = npt.NDArray[np.uint64]


class MessageFlag(IntFlag):
    """What is known of a message."""

    INVOKED = 1
    ACKED = 2
    FAILED = 4
    INFO = 8
    RETRIED = 16  # its send took more than one attempt
    READ = 32  # by the final reader
    READ_TWICE = 64  # by the final reader, at two places: it is stored twice
    MOVED = 128  # rows of the history have two places for it
    POLLED = 256  # by a consumer
    STORED = 512  # in a replica's log at the end
    PART = 1024  # sent in a transaction of unknown outcome
    GIVEN_TWICE = 2048  # delivered to one group more than once
    OVERDUE = 4096  # acknowledged after the final phase began: perhaps too late for its readers


GROUPS = -1 << GROUP_BIT  # the flags of all groups

OFFSETS = MAX_OFFSETS - 1  # the bits of a place that are the offset
INFO, POLLED, RETRIED = int(MessageFlag.INFO), int(MessageFlag.POLLED), int(MessageFlag.RETRIED)
SEND, OK, UNSURE = int(F.SEND), int(Type.OK), int(Type.INFO)
READ, READ_TWICE = int(MessageFlag.READ), int(MessageFlag.READ_TWICE)
MOVED, GIVEN_TWICE = int(MessageFlag.MOVED), int(MessageFlag.GIVEN_TWICE)
ACKED, OVERDUE, PART = int(MessageFlag.ACKED), int(MessageFlag.OVERDUE), int(MessageFlag.PART)

MESSAGE_FIELDS: dict[str, tuple[Any, int]] = {
    "flags": (np.uint64, 0),
    "place": (np.int64, -1),
    "acked": (np.int64, -1),  # the place in the acknowledgement
}


COLUMNS = (
    *("t", "process", "op", "type", "f", "key", "value", "offset", "pos", "mop", "attempts"),
    *("epoch", "arg"),
)


class OpColumns:
    """Some rows of the ops table, as arrays by column; -1 is null. A selection copies only the
    columns that are used."""

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

    def where(self, mask: Bools) -> "OpColumns":
        return self.take(np.flatnonzero(mask))

    def take(self, at: Ints) -> "OpColumns":
        return OpColumns(self._columns, at if self._at is None else self._at[at])


def place_of(key: Ints, offset: Ints) -> Ints:
    """Return places. The offset may be absent, the key may not."""
    return (key << OFFSET_BITS) | np.where(in_range(offset), offset + 1, 0)


def has(flags: Array, *wanted: MessageFlag) -> Bools:
    """Return where any of these flags is set."""
    mask: Bools = (flags & np.uint64(sum(wanted))) != 0
    return mask


def of_unknown_outcome(flags: Array) -> Bools:
    """Return where the outcome is unknown; also where none was recorded because a client died."""
    ended = has(flags, MessageFlag.ACKED, MessageFlag.FAILED)
    return has(flags, MessageFlag.INFO) | (has(flags, MessageFlag.INVOKED) & ~ended)


def in_range(offset: Ints) -> Bools:
    known: Bools = (offset >= 0) & (offset < MAX_OFFSETS - 1)
    return known


def key_of(place: Ints) -> Ints:
    """Return the key of each place; -1 for no place."""
    return place >> OFFSET_BITS


def offset_of(place: Ints) -> Ints:
    """Return the offset of each place; -1 if it is not known."""
    return np.where(place < 0, -1, (place & (MAX_OFFSETS - 1)) - 1)


def differ(a: Ints, b: Ints) -> Bools:
    """Return where two places cannot be one: other queues, or other offsets if both are known."""
    both = (a >= 0) & (b >= 0) & (a != b)
    known = (offset_of(a) >= 0) & (offset_of(b) >= 0)
    result: Bools = both & (known | (key_of(a) != key_of(b)))
    return result


# ----------------------------------------------------------------------------------- observing


def observe(
    blocks: Blocks,
    rows: OpColumns,
    groups: Ints,
    *,
    imported: bool = False,
    until: int | None = None,
) -> None:
    """Add rows of the history. `groups[p]` is the group of process p, or -1; `until` is that of
    the scope."""
    number, place, news = np.empty((3, len(rows.value)), np.int64)
    columns = (rows.key, rows.offset, rows.type, rows.f, rows.attempts, rows.process)
    _interpret(rows.value, *columns, groups, NEWS[imported], imported, number, place, news)
    if imported:
        news |= np.where((news & INFO != 0) & (rows.mop >= 0), PART, 0)
    if until is not None:
        news |= np.where((news & ACKED != 0) & (rows.t > until), OVERDUE, 0)
    _add(blocks, number, place, news)


def observe_replica(blocks: Blocks, value: Ints, key: Ints, offset: Ints) -> None:
    """Add messages of a replica's log."""
    news = np.full(len(value), int(MessageFlag.STORED))
    _add(blocks, np.where(key >= 0, value, -1), place_of(key, offset), news)


def _add(blocks: Blocks, number: Ints, place: Ints, news: Ints) -> None:
    at = blocks.at(number)
    flags = blocks["flags"].view(np.int64)
    _put(at, place, news, flags, blocks["place"], blocks["acked"])


def _news(received: Mapping[F, MessageFlag]) -> Ints:
    """Return the flags that a row sets, by its f and type: those of sends, and for each f with
    which messages are received, those of its answers."""
    table = np.zeros((max(F) + 2) << 2, np.int64)
    send = (MessageFlag.INVOKED, MessageFlag.ACKED, MessageFlag.FAILED, MessageFlag.INFO)
    table[F.SEND << 2 : (F.SEND + 1) << 2] = send
    for f, flags in received.items():
        table[f << 2 | Type.OK] = flags
    return table


# of a run of Seatrial, and of an imported history, in which every receiver counts as a reader
NEWS = (
    _news({F.POLL: MessageFlag.POLLED, F.READ: MessageFlag.READ}),
    _news(
        {
            f: MessageFlag.READ | (MessageFlag.POLLED if f is F.POLL else 0)
            for f in F
            if f is not F.SEND
        }
    ),
)


@rowwise
def _interpret(
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
    """Fill in what each row says: of which message (-1: of none), its flags, and its place."""
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
        known = kind[i] == OK or (imported and kind[i] == UNSURE)  # its offset means something
        if known and 0 <= offset[i] < OFFSETS:
            place[i] |= offset[i] + 1


@rowwise
def _put(at: Ints, place: Ints, news: Ints, flags: Ints, places: Ints, acked: Ints) -> None:
    """Record what rows say of their messages. The first place with an offset is kept until the
    final reader reports one. A group that received the message before has received it twice."""
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
    """Merge another task's version of the same block into `mine`."""
    flags, places = mine["flags"], mine["place"]
    elsewhere = differ(places, other["place"])
    read, other_read = has(flags, MessageFlag.READ), has(other["flags"], MessageFlag.READ)
    again = (flags & other["flags"]).view(np.int64) & GROUPS != 0
    flags |= other["flags"]
    flags[again] |= np.uint64(MessageFlag.GIVEN_TWICE)
    flags[elsewhere] |= np.uint64(MessageFlag.MOVED)
    flags[elsewhere & read & other_read] |= np.uint64(MessageFlag.READ_TWICE)
    np.maximum(mine["acked"], other["acked"], out=mine["acked"])
    better = np.where(read == other_read, _rank(other["place"]) < _rank(places), other_read)
    places[better] = other["place"][better]


def _rank(places: Array) -> Array:
    """Return the rank of each place. The lowest is kept, so that the order of merging does not
    matter: places with an offset come first, no place comes last."""
    ranked = np.where(offset_of(places) >= 0, places, places | (1 << 62))
    return np.where(places < 0, NEVER, ranked)


# --------------------------------------------------------------------------------- classifying


class MessageClass(StrEnum):
    """A set of messages that the census counts: by what was recorded of them ..."""

    INVOKED = "invoked"
    ACKED = "acked"
    FAILED = "failed"
    INFO = "info"  # of unknown outcome
    READ = "read"
    POLLED = "polled"
    PART = "part"
    GIVEN_TWICE = "given_twice"
    # ... and by what follows from that
    LOST = "lost"  # acknowledged, and not found by the final reader, which read everything
    LEFT = "left"  # of these, found at another place, where an earlier attempt had left a copy
    PERHAPS_LOST = "perhaps_lost"  # not found where the final reader did not read everything
    OVERDUE = "overdue"  # would be lost or unread if not acknowledged in the final phase
    NEVER_SENT = "never_sent"
    REFUSED = "refused"  # failed for certain, and seen
    VANISHED = "vanished"  # seen, and in no replica's log at the end
    DISPLACED = "displaced"  # acknowledged, never seen, and others were seen at its offset
    SKIPPED = "skipped"  # acknowledged, in every replica's log, and not seen by the final reader
    DELETED = "deleted"  # acknowledged, and deleted by retention
    TORN = "torn"  # lost, never acknowledged, but another part of its transaction was seen
    DOUBLED = "doubled"  # stored twice without a cause
    RETRIED = "retried"  # stored twice by a retry
    MOVED = "moved"  # acknowledged at the first attempt, and found elsewhere
    RECOVERED = "recovered"  # of unknown outcome, and found


FLAGS_COUNTED = {
    MessageClass(str(flag.name).lower()): flag
    for flag in (
        *(MessageFlag.INVOKED, MessageFlag.ACKED, MessageFlag.FAILED, MessageFlag.READ),
        *(MessageFlag.POLLED, MessageFlag.PART, MessageFlag.GIVEN_TWICE),
    )
}


@dataclass(frozen=True)
class GroupMasks:
    """Messages in the log that a consumer group did not receive: `unread` where it read to the
    end, `ungiven` where it did not, so that they may still be on their way."""

    unread: Bools
    ungiven: Bools


@dataclass(frozen=True)
class BlockClasses:
    """A block's messages by what became of them, as masks.

    found   by the reader that counts
    unsure  seen, and not a message at one certain place: refused, never sent, or at two places
    late    of unknown outcome, and seen: they bound the order of the log
    """

    classes: Mapping[MessageClass, Bools]
    groups: Mapping[int, GroupMasks]
    found: Bools
    unsure: Bools
    late: Bools


def classify(number: int, block: Block, scope: CensusScope) -> BlockClasses:
    flags, key = block["flags"], key_of(block["place"])
    acked, read = has(flags, MessageFlag.ACKED), has(flags, MessageFlag.READ)
    invoked = has(flags, MessageFlag.INVOKED)
    info = of_unknown_outcome(flags)
    drained = np.isin(key, np.array(sorted(scope.drained), np.int64))
    seen = has(flags, MessageFlag.READ, MessageFlag.POLLED)
    twice = has(flags, MessageFlag.READ_TWICE)
    caused = has(flags, MessageFlag.RETRIED, MessageFlag.FAILED) | info
    found = read | (seen & np.isin(key, np.array(sorted(scope.passed), np.int64)))
    reached = drained | _below(key, offset_of(block["place"]), scope.passed)
    displaced = acked & ~found & scope.displaced.within(number)
    left = _left(block, scope)
    stored = acked & (~found | left) & scope.skipped.within(number)
    spoiled = np.isin(block["place"], np.array(sorted(scope.spoiled), np.int64))
    expired = _below(key, offset_of(block["place"]), scope.deleted)
    missing = ~found & ~displaced & ~stored & ~spoiled & ~expired
    punctual = ~has(flags, MessageFlag.OVERDUE)
    left &= punctual & ~stored
    lost = (acked & missing & reached & punctual) | left
    refused, never_sent = seen & has(flags, MessageFlag.FAILED), seen & ~invoked
    moved = has(flags, MessageFlag.MOVED)
    unread = _unread(flags, key, acked & read & ~spoiled, scope)
    kept_waiting = np.any([missed & asked for missed, asked in unread.values()], axis=0)
    there = has(flags, MessageFlag.STORED) | lost | spoiled | expired
    classes = {name: has(flags, flag) for name, flag in FLAGS_COUNTED.items()} | {
        MessageClass.INFO: info,
        MessageClass.LOST: lost,
        MessageClass.LEFT: left,
        MessageClass.PERHAPS_LOST: acked & missing & ~reached,
        MessageClass.OVERDUE: ~punctual & ((acked & missing & reached) | kept_waiting),
        MessageClass.NEVER_SENT: never_sent,
        MessageClass.REFUSED: refused,
        MessageClass.VANISHED: seen & invoked & ~there & scope.replicas,
        MessageClass.DISPLACED: displaced,
        MessageClass.SKIPPED: stored,
        MessageClass.DELETED: acked & ~found & expired,
        MessageClass.TORN: scope.committed.within(number) & ~acked & missing & reached,
        MessageClass.DOUBLED: twice & ~caused & invoked,
        MessageClass.RETRIED: twice & caused,
        MessageClass.MOVED: moved & ~twice & ~caused & invoked & ~lost,
        MessageClass.RECOVERED: info & found,
    }
    groups = {
        group: GroupMasks(missed & asked & punctual, missed & ~asked)
        for group, (missed, asked) in unread.items()
    }
    return BlockClasses(classes, groups, found, seen & (refused | never_sent | moved), info & seen)


def _left(block: Block, scope: CensusScope) -> Bools:
    """Return which messages the final reader, which read that queue to its end, did not find where
    they were acknowledged, but at one other place, where an earlier attempt had left a copy."""
    flags, acked = block["flags"], block["acked"]
    if scope.imported or not (acked >= 0).any():
        return np.zeros(len(flags), np.bool_)
    retried = has(flags, MessageFlag.RETRIED)
    elsewhere = differ(acked, block["place"]) & has(flags, MessageFlag.READ) & retried
    drained = np.isin(key_of(acked), np.array(sorted(scope.drained), np.int64))
    spoiled = np.isin(acked, np.array(sorted(scope.spoiled), np.int64))
    expired = _below(key_of(acked), offset_of(acked), scope.deleted)
    return elsewhere & drained & ~has(flags, MessageFlag.READ_TWICE) & ~spoiled & ~expired


def _below(key: Ints, offset: Ints, limits: Mapping[int, int]) -> Bools:
    """Return where an offset is below the limit of its key."""
    keys = np.array(sorted(limits), np.int64)
    if not len(keys):
        return np.zeros(len(key), np.bool_)
    to = np.array([limits[k] for k in keys.tolist()], np.int64)
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    below: Bools = (keys[at] == key) & (offset >= 0) & (offset < to[at])
    return below


def _unread(
    flags: Flags, key: Ints, there: Bools, scope: CensusScope
) -> dict[int, tuple[Bools, Bools]]:
    """Return by group which messages of those `there` it did not receive, and which messages are
    in queues that it read to the end."""
    unread: dict[int, tuple[Bools, Bools]] = {}
    for group in sorted(set(scope.groups.values())):
        bit = 1 << (GROUP_BIT + group)
        keys = [k for k, required in scope.required.items() if required >> group & 1]
        asked = np.isin(key, np.array(sorted(keys), np.int64))
        unread[group] = there & ((flags & np.uint64(bit)) == 0), asked
    return unread


def values_in(number: int, mask: Bools) -> Ints:
    """Return the values of a block that a mask selects."""
    return (np.int64(number) << BLOCK_BITS) | np.flatnonzero(mask)


# --------------------------------------------------------------------------------------- the job


READ_COLUMNS = ("process", "type", "f", "key", "value", "offset", "attempts")  # of ops
HELD_COLUMNS = ("value", "key", "offset")  # of replicas
# classes of which many values are kept, for their times, and all of which the lowest are
DATED = (
    *(MessageClass.MOVED, MessageClass.DOUBLED, MessageClass.REFUSED, MessageClass.NEVER_SENT),
    MessageClass.SKIPPED,
)
EXAMPLES = (
    *(MessageClass.LOST, MessageClass.LEFT, MessageClass.PERHAPS_LOST, MessageClass.DISPLACED),
    *(MessageClass.TORN, MessageClass.VANISHED, MessageClass.RETRIED),
    *DATED,
)
CLEAN = dict.fromkeys(("invoked", "acked", "read", "polled", "reads"), BLOCK)  # a block's report
GROUP = pa.struct(
    [("group", INT), ("unread", INT), ("ungiven", INT), ("examples", INTS), ("members", BYTES)]
)
REPORT = pa.schema(
    [
        ("block", INT),
        *((name.value, INT) for name in MessageClass),
        *((f"{name}_examples", INTS) for name in EXAMPLES),
        ("reads", INT),  # messages that were found, and lost ones by where they are: ...
        ("before", INT),  # before the first of these,
        ("between", INT),
        ("after", INT),  # after the last
        ("groups", pa.list_(GROUP)),  # those that did not receive everything
        ("gone_bits", BYTES),  # a bit for each value of the block, or null
        ("lost_bits", BYTES),
        ("kept_bits", BYTES),
        ("unsure_bits", BYTES),
        ("late_values", INTS),  # and their places
        ("late_places", INTS),
        ("missed_values", INTS),
        ("missed_places", INTS),
    ]
)


@dataclass(frozen=True)
class CensusJob:
    """The two stages of a census."""

    scope: CensusScope

    def scan(self, unit: Unit) -> Batches:
        """Reduce a unit to blocks."""
        table, paths = unit
        scope, groups = self.scope, self._groups()
        blocks = Blocks(MESSAGE_FIELDS)
        columns = (*READ_COLUMNS, "mop") if scope.imported else READ_COLUMNS
        columns = columns if scope.until is None else (*columns, "t")
        for rows in stored(paths, columns) if table == "ops" else arrays(paths, HELD_COLUMNS):
            if table == "ops":
                imported, until = scope.imported, scope.until
                observe(blocks, OpColumns(rows), groups, imported=imported, until=until)
            else:
                observe_replica(blocks, *(rows[name] for name in HELD_COLUMNS))
            if len(blocks) > MAX_BLOCKS:
                yield from blocks.packed()
                blocks = Blocks(MESSAGE_FIELDS)
        yield from blocks.packed()

    def merge(self, partials: Batches) -> Batches:
        """Merge the versions of each block, and report on it."""
        return in_batches(self._reports(partials), REPORT)

    def _reports(self, partials: Batches) -> Iterator[dict[str, Any]]:
        for number, block in merged_batches(partials, MESSAGE_FIELDS, absorb):
            yield report_on(number, block, self.scope)

    def _groups(self) -> Ints:
        """Return the number of each process's group, -1 for none."""
        groups = np.full(max(self.scope.groups, default=-1) + 1, -1, np.int64)
        for process, group in self.scope.groups.items():
            groups[process] = group
        return groups


def report_on(number: int, block: Block, scope: CensusScope) -> dict[str, Any]:
    """Return a merged block as a row of REPORT, with bits and values only where something is
    wrong."""
    if is_clean(block["flags"], scope):
        return {"block": number, **CLEAN}
    found = classify(number, block, scope)
    classes, flags, places = found.classes, block["flags"], block["place"]
    lost = classes[MessageClass.LOST]
    gone = lost | classes[MessageClass.VANISHED] | classes[MessageClass.TORN]
    placed = offset_of(places) >= 0
    late, missed = found.late & ~gone & placed, lost & placed
    stood = np.where(classes[MessageClass.LEFT], block["acked"], places)
    limits = example_limits(scope)
    return {
        "block": number,
        **{name.value: int(np.count_nonzero(mask)) for name, mask in classes.items()},
        **{f"{n}_examples": values_in(number, classes[n])[:most] for n, most in limits.items()},
        **_extent(found.found, lost),
        "groups": list(_groups_of(number, found, scope.sample)) or None,
        "gone_bits": bits_if_any(gone),
        "lost_bits": bits_if_any(lost),
        "kept_bits": bits_if_any(lost & has(flags, MessageFlag.STORED)),
        "unsure_bits": bits_if_any(found.unsure & scope.imported),
        "late_values": values_in(number, late),
        "late_places": places[late],
        "missed_values": values_in(number, missed),
        "missed_places": stood[missed],
    }


def example_limits(scope: CensusScope) -> dict[MessageClass, int]:
    """Return how many values of each class are kept."""
    return dict.fromkeys(EXAMPLES, scope.sample) | dict.fromkeys(
        DATED, max(scope.sample, scope.rows)
    )


def is_clean(flags: Array, scope: CensusScope) -> bool:
    """Whether every message was acknowledged, read, delivered to every group, and seen at one
    place. That is true of most blocks of most runs, and quickly found."""
    groups = sum(1 << (GROUP_BIT + group) for group in set(scope.groups.values()))
    wanted = MessageFlag.INVOKED | MessageFlag.ACKED | MessageFlag.READ | MessageFlag.POLLED
    ignored = MessageFlag.RETRIED if scope.replicas else MessageFlag.RETRIED | MessageFlag.STORED
    wanted |= MessageFlag.STORED if scope.replicas else 0
    return bool(((flags & ~np.uint64(ignored)) == np.uint64(int(wanted) | groups)).all())


def _groups_of(number: int, found: BlockClasses, sample: int) -> Iterator[dict[str, Any]]:
    for group, masks in found.groups.items():
        unread, ungiven = int(masks.unread.sum()), int(masks.ungiven.sum())
        if unread or ungiven:
            yield {
                "group": group,
                "unread": unread,
                "ungiven": ungiven,
                "examples": values_in(number, masks.unread)[:sample].tolist(),
                "members": bits_if_any(masks.unread),
            }


def _extent(found: Bools, lost: Bools) -> dict[str, int]:
    """Return how many messages were found in a block, and how many were lost before, between and
    after them."""
    reads, missing = np.flatnonzero(found), np.flatnonzero(lost)
    if not len(reads):
        return {"reads": 0, "before": 0, "between": len(missing), "after": 0}
    before, after = int((missing < reads[0]).sum()), int((missing > reads[-1]).sum())
    between = len(missing) - before - after
    return {"reads": len(reads), "before": before, "between": between, "after": after}
