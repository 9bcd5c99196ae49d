"""What became of the messages of a history: the Spark job that loss, phantom and duplicates share.

A task reads files and reduces them to blocks (`message_rows`); blocks with the same number meet in
one task and merge, or are the share of one. `classify` says what is wrong with the messages of a
merged block, and each block becomes one row of counts, lowest values and bits, which `added_up`
sums. Spark moves the names of files and blocks, never rows of the history.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers._messages.message_rows import (
    BLOCK,
    BLOCK_BITS,
    GROUP_BIT,
    MESSAGE_FIELDS,
    Array,
    Block,
    Bools,
    Ints,
    MessageFlag,
    MessageScan,
    absorb,
    among,
    differ,
    has,
    key_of,
    offset_of,
    reports,
)
from checkers._run.evidence import SAMPLE
from checkers._spark.spark_stages import (
    BYTES,
    INT,
    INTS,
    PARTIALS,
    Batches,
    Share,
    Unit,
    in_batches,
    in_shares,
    reduced,
    shares_of,
    units_of,
)
from harness.history.reader import History
from harness.operation import SEQUENCE_BITS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Flags = npt.NDArray[np.uint64]


# ------------------------------------------------------------------------------ sets of numbers


def bits(mask: Bools) -> bytes:
    return np.packbits(mask).tobytes()


def bits_if_any(mask: Bools) -> bytes | None:
    return bits(mask) if mask.any() else None


class Members:
    """A set of numbers, stored as one bit each in the blocks that have any."""

    def __init__(self, packed: Mapping[int, bytes]) -> None:
        self._blocks = packed

    @classmethod
    def of(cls, numbers: Ints) -> "Members":
        packed = {}
        for number in np.unique(numbers >> BLOCK_BITS).tolist():
            mask = np.zeros(BLOCK, np.bool_)
            mask[numbers[numbers >> BLOCK_BITS == number] & (BLOCK - 1)] = True
            packed[number] = bits(mask)
        return cls(packed)

    @classmethod
    def of_blocks(cls, packed: Iterable[tuple[int, bytes | None]]) -> "Members":
        """Return the set of the bits of some blocks; None is a block without any."""
        return cls({number: mask for number, mask in packed if mask})

    def __len__(self) -> int:
        return sum(
            int(np.unpackbits(np.frombuffer(b, np.uint8)).sum()) for b in self._blocks.values()
        )

    def within(self, number: int) -> Bools:
        """Return which numbers of one block are in the set."""
        packed = self._blocks.get(number)
        if packed is None:
            return np.zeros(BLOCK, np.bool_)
        return np.unpackbits(np.frombuffer(packed, np.uint8)).astype(np.bool_)

    def holds(self, numbers: Ints) -> Bools:
        """Return which of these numbers are in the set."""
        held = np.zeros(len(numbers), np.bool_)
        if self._blocks:
            ids, packed = self._sorted
            here = among(numbers >> BLOCK_BITS, ids)
            at = np.searchsorted(ids, numbers[here] >> BLOCK_BITS)
            bit = (at << BLOCK_BITS) | (numbers[here] & (BLOCK - 1))
            byte = np.frombuffer(packed, np.uint8)[bit >> 3]
            held[here] = (byte >> (7 - (bit & 7)) & 1) != 0  # as np.packbits does
        return held

    @cached_property
    def _sorted(self) -> tuple[Ints, bytes]:
        """The numbers of the blocks, and their bits, one after the other."""
        ids = sorted(self._blocks)
        return np.array(ids, np.int64), b"".join(self._blocks[number] for number in ids)


NO_MEMBERS = Members({})


# ------------------------------------------------------------------------------- classifying


@dataclass(frozen=True)
class CensusScope:
    """What was read to its end, so what the census may conclude.

    drained     keys that the final reader read from the first message to the last
    required    key -> bits of the groups that read it to the end
    replicas    every replica's log was read at the end
    groups      process -> number of its consumer group
    passed      key -> offset below which an imported history's consumers had everything to read
    imported    recorded by another tool: no final reader, and every consumer counts as one
    displaced   acknowledged at offsets at which others were seen: no loss, but two at one offset
    committed   of unknown outcome, in a transaction of which another part was seen
    until       when the final phase began, if sends were still open then; else None
    spoiled     places at which a reader received a body that differs from what was sent
    skipped     held by every replica at the offset of their acknowledgement, but not received by
                the final reader
    deleted     key -> the queue's first offset, where its nodes deleted what was before it
    sample      how many values of a class a finding shows
    rows        how many are kept of a class whose messages have times
    group_names names of the consumer groups, by number
    """

    drained: frozenset[int] = frozenset()
    required: Mapping[int, int] = field(default_factory=dict)
    replicas: bool = False
    groups: Mapping[int, int] = field(default_factory=dict)
    passed: Mapping[int, int] = field(default_factory=dict)
    imported: bool = False
    displaced: Members = NO_MEMBERS
    committed: Members = NO_MEMBERS
    until: int | None = None
    spoiled: frozenset[int] = frozenset()
    skipped: Members = NO_MEMBERS
    deleted: Mapping[int, int] = field(default_factory=dict)
    sample: int = SAMPLE
    rows: int = SAMPLE
    group_names: tuple[str, ...] = ()


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


def of_unknown_outcome(flags: Array) -> Bools:
    """Return where the outcome is unknown; also where none was recorded because a client died."""
    ended = has(flags, MessageFlag.ACKED, MessageFlag.FAILED)
    return has(flags, MessageFlag.INFO) | (has(flags, MessageFlag.INVOKED) & ~ended)


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


# ----------------------------------------------------------------------------------- the job


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


# ------------------------------------------------------------------------------- adding up


@dataclass(frozen=True)
class GroupCensus:
    """What a consumer group did not receive of what is in the log: `unread` where it read to the
    end, `ungiven` where it did not."""

    name: str
    unread: int = 0
    ungiven: int = 0
    examples: tuple[int, ...] = ()  # the lowest values that are unread
    members: Members = NO_MEMBERS  # all of them


@dataclass(frozen=True)
class MessageCensus:
    """What became of all messages.

    shown       the lowest values of a class, for evidence
    dated       more of some classes, for the times of their messages
    groups      the consumer groups, by number
    gone        messages that the log does not hold although it should: lost, vanished or torn
    lost        messages of class LOST
    kept        of these, what some replica's log holds at the end
    unsure      in an imported history, messages without one certain place
    late        values of unknown outcome that were seen, sorted, and their places
    missed      values that are lost, sorted, and their places
    where_lost  lost messages by where they are in their producer's sequence
    """

    scope: CensusScope
    counts: Mapping[MessageClass, int]
    shown: Mapping[MessageClass, tuple[int, ...]]
    dated: Mapping[MessageClass, tuple[int, ...]]
    groups: tuple[GroupCensus, ...]
    gone: Members
    lost: Members
    kept: Members
    unsure: Members
    late: tuple[Ints, Ints]
    missed: tuple[Ints, Ints]
    where_lost: Mapping[str, int]


def census_of(history: History, spark: "SparkSession | None", scope: CensusScope) -> MessageCensus:
    """Run the job: reduce each unit to blocks, merge the versions of each block and report on it,
    and add up the reports."""
    job, by = CensusJob.of(scope), ("block",)
    units = units_of(history, "ops", "replicas")
    if shares := shares_of(spark, units):
        table = in_shares(spark, units, job.judge, REPORT, shares)
    else:
        table = reduced(spark, units, job.messages.scan, PARTIALS, job.merge, REPORT, by, by)
    return added_up(table.sort_by("block"), scope)


@dataclass(frozen=True)
class CensusJob:
    """The work of the tasks."""

    scope: CensusScope
    messages: MessageScan

    @classmethod
    def of(cls, scope: CensusScope) -> "CensusJob":
        groups = np.full(max(scope.groups, default=-1) + 1, -1, np.int64)
        for process, group in scope.groups.items():
            groups[process] = group
        return cls(scope, MessageScan(groups, scope.imported, scope.until))

    def judge(self, units: list[Unit], share: Share) -> Batches:
        """Report on the blocks of a share."""
        return self.reported(self.messages.blocks_of(units, share))

    def reported(self, blocks: Iterator[tuple[int, Block]]) -> Batches:
        """Report on blocks that are whole."""
        return in_batches((report_on(*block, self.scope) for block in blocks), REPORT)

    def merge(self, partials: Batches) -> Batches:
        """Merge the versions of each block, and report on it."""
        report = partial(report_on, scope=self.scope)
        return reports(partials, MESSAGE_FIELDS, absorb, report, REPORT)


def added_up(reports: pa.Table, scope: CensusScope) -> MessageCensus:
    """Return the census of all blocks, from their reports in the order of their numbers."""
    numbers = reports.column("block").to_pylist()

    def ints(name: str) -> Ints:
        values: Ints = reports.column(name).combine_chunks().flatten().to_numpy()
        return values

    def members(name: str) -> Members:
        bits = reports.column(f"{name}_bits").to_pylist()
        return Members.of_blocks(zip(numbers, bits, strict=True))

    def total(name: MessageClass) -> int:
        return pc.sum(reports.column(name.value)).as_py() or 0

    examples = {name: ints(f"{name}_examples")[:n] for name, n in example_limits(scope).items()}
    return MessageCensus(
        scope=scope,
        counts={name: total(name) for name in MessageClass},
        shown={name: tuple(some[: scope.sample].tolist()) for name, some in examples.items()},
        dated={name: tuple(examples[name].tolist()) for name in DATED},
        where_lost=where_lost(reports.select(["block", "reads", "before", "between", "after"])),
        late=(ints("late_values"), ints("late_places")),
        missed=(ints("missed_values"), ints("missed_places")),
        groups=_groups_added(reports, scope),
        gone=members("gone"),
        lost=members("lost"),
        kept=members("kept"),
        unsure=members("unsure"),
    )


def _groups_added(reports: pa.Table, scope: CensusScope) -> tuple[GroupCensus, ...]:
    found: dict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    columns = (reports.column(name).to_pylist() for name in ("block", "groups"))
    for block, groups in zip(*columns, strict=True):
        for group in groups or ():
            found[group["group"]].append((block, group))
    return tuple(
        GroupCensus(
            name,
            sum(row["unread"] for _, row in found[number]),
            sum(row["ungiven"] for _, row in found[number]),
            tuple(value for _, row in found[number] for value in row["examples"])[: scope.sample],
            Members.of_blocks((block, row["members"]) for block, row in found[number]),
        )
        for number, name in enumerate(scope.group_names)
    )


def where_lost(extents: pa.Table) -> dict[str, int]:
    """Return how many messages were lost at the start, in the middle and at the end of their
    producers' sequences: what was read before and after them tells a log that was cut off from one
    that has a hole."""
    producers: dict[int, list[dict[str, int]]] = defaultdict(list)
    for row in extents.to_pylist():
        producers[row["block"] >> (SEQUENCE_BITS - BLOCK_BITS)].append(row)
    total = dict.fromkeys(("prefix", "middle", "tail"), 0)
    for blocks in producers.values():
        read = [index for index, block in enumerate(blocks) if block["reads"]]
        first, last = (read[0], read[-1]) if read else (len(blocks), len(blocks))
        for index, block in enumerate(blocks):
            inside = "prefix" if index < first else "tail" if index > last else "middle"
            total["prefix" if index <= first else "middle"] += block["before"] or 0
            total[inside] += block["between"] or 0
            total["tail" if index >= last else "middle"] += block["after"] or 0
    return total
