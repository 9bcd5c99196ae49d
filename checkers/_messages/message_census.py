"""The census of a history's messages: one Spark job that loss, phantom and duplicates share.

A task reads files and reduces them to blocks; blocks with the same number meet in one task and
merge; each merged block becomes one row of counts, lowest values and bits (`messages.CensusJob`).
Here the rows are added up. Spark moves the names of files and blocks, never rows of the history.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers._messages.blocks import BLOCK_BITS, NO_MEMBERS, Ints, Members
from checkers._messages.final_reads import CensusScope, census_scope
from checkers._messages.loss_recheck import RecheckRequest, held_by_all, recheck
from checkers._messages.messages import DATED, REPORT, CensusJob, MessageClass, example_limits
from checkers._spark.spark_stages import PARTIALS, per_history, reduced, units_of
from harness.history.reader import History
from harness.operation import SEQUENCE_BITS
from harness.run.broker_sets import replica_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@per_history
def message_census(history: History, spark: "SparkSession | None") -> MessageCensus:
    """Return the census of a history. Where messages are missing, a second pass (`loss_recheck`)
    may narrow what is concluded from that."""
    scope = census_scope(history)
    census = census_of(history, spark, scope)
    narrower = scope
    if scope.passed:
        narrower = _recheck_imported(history, spark, census)
    elif scope.replicas and len(census.missed[0]):
        replicas = replica_counts(history.names)
        held = held_by_all(units_of(history, "replicas"), spark, census.missed, replicas)
        narrower = replace(scope, skipped=Members.of(held)) if len(held) else scope
    return census if narrower is scope else census_of(history, spark, narrower)


def _recheck_imported(
    history: History, spark: "SparkSession | None", census: MessageCensus
) -> CensusScope:
    """Return what may be concluded after the second pass: which messages are not lost, as others
    were seen at their offsets, and how far queues were read for certain."""
    scope, late = census.scope, census.late[0]
    parts = census.counts[MessageClass.PART] and len(late)
    if not census.counts[MessageClass.LOST] and not parts:
        return scope
    value, place = census.missed
    request = RecheckRequest(place, census.unsure, late)
    found = recheck(units_of(history, "ops"), spark, request)
    passed = {key: min(to, found.passed.get(key, 0)) for key, to in scope.passed.items()}
    displaced = value[np.isin(place, found.taken)]
    if not len(displaced) and not len(found.committed) and passed == scope.passed:
        return scope
    return replace(
        scope,
        passed=passed,
        displaced=Members.of(displaced),
        committed=Members.of(found.committed),
    )


def census_of(history: History, spark: "SparkSession | None", scope: CensusScope) -> MessageCensus:
    """Run the job, and add up the blocks' reports."""
    units, job, by = units_of(history, "ops", "replicas"), CensusJob(scope), ("block",)
    table = reduced(spark, units, job.scan, PARTIALS, job.merge, REPORT, by, by)
    return added_up(table.sort_by("block"), scope)


# ------------------------------------------------------------------------------------- adding up


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
