"""From a history's files to one graph: the two stages that Spark spreads, and what they bring.

First every writer's rows are reduced to transactions, writes and reads; those of the same keys then
meet in one task and become edges. Both travel as packed columns, a row of Spark for each bucket of
keys, so that nothing of the size of the history is made of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkers._cycles import lists, registers
from checkers._cycles.arrays import Ints, divided, joined, unpack
from checkers._cycles.blocks import (
    BUCKETS,
    TRANSACTIONS,
    bucketed,
    by_block,
    packed_row,
    rows_of_buckets,
)
from checkers._cycles.branches import Lists
from checkers._cycles.edges import Edges, Layer, together
from checkers._cycles.graph import Ending, entries
from checkers._cycles.inside import Appends, Gets, ListReads, Puts, Seen, seen
from checkers._cycles.lists import Ends, Missing
from checkers._cycles.remarks import NAMES, Remarks
from checkers._cycles.rows import Told, Transactions, told
from checkers._spark.spark_stages import PARTIALS, Batches, Unit, reduced, units_of
from harness.history.reader import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMARKS = -2  # in place of a bucket

WIDTHS = (Appends.width(), ListReads.width(), 2, Puts.width(), Gets.width())


@dataclass(frozen=True)
class Gathered:
    """Everything that was recorded of transactions, as one graph needs it."""

    transactions: Transactions
    edges: Edges
    ending: Ending
    remarks: list[Ints]


def gathered(history: History, spark: "SparkSession | None", layer: Layer) -> Gathered:
    """The transactions of a history, their dependencies on this layer, and remarks."""
    units = units_of(history, "ops")
    by = ("block",)
    table = reduced(spark, units, scan, PARTIALS, merge_on(layer), PARTIALS, by, by)
    return added_up(
        (int(block), unpack(data))
        for block, data in zip(
            table.column("block").to_pylist(), table.column("packed").to_pylist(), strict=True
        )
    )


def gathered_here(parts: list[Told], layer: Layer) -> Gathered:
    """The same of what is in memory, without files and without Spark."""
    rows = [row for part in parts for row in _scanned(part)]
    table = pa.Table.from_batches(rows, PARTIALS).sort_by("block")
    merged = merge_on(layer)(iter(table.to_batches()))
    return added_up(
        (int(row["block"]), unpack(row["packed"])) for batch in merged for row in batch.to_pylist()
    )


# ----------------------------------------------------------------------------- first stage: files


def scan(unit: Unit) -> Batches:
    for part in told(unit[1]):
        yield from _scanned(part)


def _scanned(part: Told) -> Batches:
    remarks = Remarks()
    what = seen(part, remarks)
    yield packed_row(TRANSACTIONS, *part.transactions.columns())
    yield packed_row(REMARKS, *remarks.columns())
    yield from _buckets(what)


def _buckets(what: Seen) -> Batches:
    """What is known of the keys of each bucket; branches are renumbered within it."""
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


def merge_on(layer: Layer) -> Callable[[Batches], Batches]:
    def merge(partials: Batches) -> Batches:
        for block, parts in by_block(partials):
            if block in (TRANSACTIONS, REMARKS):
                yield packed_row(block, *joined(parts, len(parts[0])))
            else:
                yield _merged(block, parts, layer)

    return merge


def _merged(block: int, parts: list[list[Ints]], layer: Layer) -> pa.RecordBatch:
    remarks = Remarks()
    appends, reads, branches, puts, gets = _bucket(parts)
    found = lists.dependencies(appends, reads, branches, remarks)
    both = together([found.edges, registers.dependencies(puts, gets, layer, remarks)])
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
    """A bucket of all files together: the numbers of branches go on from one to the next."""
    width = sum(WIDTHS)
    at = WIDTHS[0] + 2
    before = 0
    for number, part in enumerate(parts):
        renumbered = list(part)
        renumbered[at] = part[at] + before
        before += len(part[WIDTHS[0] + WIDTHS[1]])
        parts[number] = renumbered
    columns = joined(parts, width + 1)
    pieces = divided(columns, WIDTHS)
    key, length = pieces[2]
    return (
        Appends(*pieces[0]),
        ListReads(*pieces[1]),
        Lists(key, length, columns[width]),
        Puts(*pieces[3]),
        Gets(*pieces[4]),
    )


# ------------------------------------------------------------------------------------- the driver


def added_up(blocks: Iterator[tuple[int, list[Ints]]]) -> Gathered:
    """Everything from all tasks; the order in which it comes does not matter."""
    found: dict[str, list[list[Ints]]] = {"transactions": [], "remarks": [], "keys": []}
    kinds = {TRANSACTIONS: "transactions", REMARKS: "remarks"}
    for block, columns in sorted(blocks, key=lambda pair: pair[0]):
        found[kinds.get(block, "keys")].append(columns)
    widths = (Edges.width(), Missing.width(), Ends.width(), Ends.width(), len(NAMES))
    columns = joined(found["keys"], sum(widths))
    pieces = divided(columns, widths)
    remarks = joined([*found["remarks"], pieces[4]], len(NAMES))
    ending = entries(Missing(*pieces[1]), Ends(*pieces[2]), Ends(*pieces[3]))
    transactions = Transactions(*joined(found["transactions"], Transactions.width()))
    order = np.argsort(transactions.op, kind="stable")
    return Gathered(transactions.at(order), Edges(*pieces[0]), ending, remarks)
