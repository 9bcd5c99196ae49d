"""From a history's files to one graph, in two Spark stages.

The first stage reduces each writer's rows to transactions, writes and reads. The second stage gets
all accesses of the same keys in one task and turns them into edges. Both exchange packed columns,
one Spark row for each bucket of keys, so that no object of the size of the history is made of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._cycles import lists, registers
from checkers._cycles.arrays import Ints, concat_packs, split_tables, unpack
from checkers._cycles.blocks import (
    BUCKETS,
    TRANSACTIONS,
    bucketed,
    by_block,
    packed_row,
    rows_of_buckets,
)
from checkers._cycles.branches import Lists
from checkers._cycles.direct_anomalies import NAMES, DirectAnomalies
from checkers._cycles.edges import Edges, OrderLayer, concat_edges
from checkers._cycles.graph import ListTails, sorted_tails
from checkers._cycles.internal_reads import (
    Appends,
    ExternalAccesses,
    Gets,
    ListReads,
    Puts,
    external_accesses,
)
from checkers._cycles.lists import MissingAppends, TailRows
from checkers._cycles.rows import TransactionChunk, Transactions, read_transactions
from checkers._spark.spark_stages import PARTIALS, Batches, Unit, reduced, units_of
from harness.history.reader import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMARKS = -2  # instead of a bucket

WIDTHS = (Appends.width(), ListReads.width(), 2, Puts.width(), Gets.width())


@dataclass(frozen=True)
class TransactionHistory:
    """All records of transactions, as a graph needs them."""

    transactions: Transactions
    edges: Edges
    ending: ListTails
    remarks: list[Ints]


def collect_transactions(
    history: History, spark: "SparkSession | None", layer: OrderLayer
) -> TransactionHistory:
    """Return the transactions of a history, their dependencies on this layer, and direct
    anomalies."""
    units = units_of(history, "ops")
    by = ("block",)
    table = reduced(spark, units, scan, PARTIALS, merge_on(layer), PARTIALS, by, by)
    return merge_blocks(
        (int(block), unpack(data))
        for block, data in zip(
            table.column("block").to_pylist(), table.column("packed").to_pylist(), strict=True
        )
    )


# ----------------------------------------------------------------------------- first stage: files


def scan(unit: Unit) -> Batches:
    for part in read_transactions(unit[1]):
        yield from _scan_chunk(part)


def _scan_chunk(part: TransactionChunk) -> Batches:
    remarks = DirectAnomalies()
    what = external_accesses(part, remarks)
    yield packed_row(TRANSACTIONS, *part.transactions.columns())
    yield packed_row(REMARKS, *remarks.columns())
    yield from _buckets(what)


def _buckets(what: ExternalAccesses) -> Batches:
    """Pack the accesses of each bucket; branches are renumbered within it."""
    appends, puts, gets = (bucketed(c) for c in (what.appends, what.puts, what.gets))
    reads = bucketed(what.reads)
    branches = rows_of_buckets(what.branches.key)
    for bucket in range(BUCKETS):
        ours = branches(bucket)
        table = reads(bucket)
        columns = [appends(bucket), table, puts(bucket), gets(bucket)]
        if not any(len(c) for c in columns):
            continue
        lists_here = what.branches.at(ours)
        parts = [
            *columns[0].columns(),
            *_renumbered(table, ours).columns(),
            lists_here.key,
            lists_here.length,
            *columns[2].columns(),
            *columns[3].columns(),
            lists_here.values,
        ]
        yield packed_row(bucket, *parts)


def _renumbered(reads: ListReads, branches: Ints) -> ListReads:
    columns = reads.columns()
    columns[2] = np.searchsorted(branches, reads.branch)
    return ListReads(*columns)


# ----------------------------------------------------------------------------- second stage: keys


def merge_on(layer: OrderLayer) -> Callable[[Batches], Batches]:
    def merge(partials: Batches) -> Batches:
        for block, parts in by_block(partials):
            if block in (TRANSACTIONS, REMARKS):
                yield packed_row(block, *concat_packs(parts, len(parts[0])))
            else:
                yield _merge_bucket(block, parts, layer)

    return merge


def _merge_bucket(block: int, parts: list[list[Ints]], layer: OrderLayer) -> pa.RecordBatch:
    remarks = DirectAnomalies()
    appends, reads, branches, puts, gets = _bucket(parts)
    found = lists.dependencies(appends, reads, branches, remarks)
    both = concat_edges([found.edges, registers.dependencies(puts, gets, layer, remarks)])
    return packed_row(
        block,
        *both.columns(),
        *found.missing.columns(),
        *found.readers.columns(),
        *found.writers.columns(),
        *remarks.columns(),
    )


def _bucket(
    parts: list[list[Ints]],
) -> tuple[Appends, ListReads, Lists, Puts, Gets]:
    """Concatenate a bucket of all files; branch numbers continue from one file to the next."""
    width = sum(WIDTHS)
    at = WIDTHS[0] + 2
    before = 0
    for number, part in enumerate(parts):
        renumbered = list(part)
        renumbered[at] = part[at] + before
        before += len(part[WIDTHS[0] + WIDTHS[1]])
        parts[number] = renumbered
    columns = concat_packs(parts, width + 1)
    pieces = split_tables(columns, WIDTHS)
    key, length = pieces[2]
    return (
        Appends(*pieces[0]),
        ListReads(*pieces[1]),
        Lists(key, length, columns[width]),
        Puts(*pieces[3]),
        Gets(*pieces[4]),
    )


# ------------------------------------------------------------------------------------- the driver


def merge_blocks(blocks: Iterator[tuple[int, list[Ints]]]) -> TransactionHistory:
    """Merge the results of all tasks, in whatever order they arrive."""
    found: dict[str, list[list[Ints]]] = {"transactions": [], "remarks": [], "keys": []}
    kinds = {TRANSACTIONS: "transactions", REMARKS: "remarks"}
    for block, columns in sorted(blocks, key=lambda pair: pair[0]):
        found[kinds.get(block, "keys")].append(columns)
    widths = (Edges.width(), MissingAppends.width(), TailRows.width(), TailRows.width(), len(NAMES))
    columns = concat_packs(found["keys"], sum(widths))
    pieces = split_tables(columns, widths)
    remarks = concat_packs([*found["remarks"], pieces[4]], len(NAMES))
    ending = sorted_tails(MissingAppends(*pieces[1]), TailRows(*pieces[2]), TailRows(*pieces[3]))
    transactions = Transactions(*concat_packs(found["transactions"], Transactions.width()))
    order = np.argsort(transactions.op, kind="stable")
    return TransactionHistory(transactions.at(order), Edges(*pieces[0]), ending, remarks)
