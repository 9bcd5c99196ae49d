"""Reads within a transaction, and what its reads show about other transactions.

At each isolation level a transaction sees its own writes, in the order in which it made them, and
no writes that it has yet to make. Reads that break this are direct anomalies and show nothing more.
"""

from dataclasses import dataclass

import numpy as np

from checkers._cycles.arrays import NULL, Bools, Ints, all_of, ranges, starts_of
from checkers._cycles.branches import Lists, find_branches
from checkers._cycles.direct_anomalies import DirectAnomalies, DirectAnomaly
from checkers._cycles.rows import Accesses, ColumnTable, TransactionChunk, Transactions


@dataclass(frozen=True)
class Appends(ColumnTable):
    """`last`: the transaction's last append to this list."""

    op: Ints
    key: Ints
    value: Ints
    status: Ints
    last: Ints


@dataclass(frozen=True)
class ListReads(ColumnTable):
    """A read is a prefix of a branch.

    own     the number of the transaction's own appends that followed; not included in `length`
    again   the transaction read this list in two states
    """

    op: Ints
    key: Ints
    branch: Ints
    length: Ints
    own: Ints
    again: Ints


@dataclass(frozen=True)
class Puts(ColumnTable):
    """`last`: the transaction's last write of this register, the one that others may read."""

    op: Ints
    key: Ints
    value: Ints
    status: Ints
    last: Ints
    begin: Ints
    end: Ints
    process: Ints


@dataclass(frozen=True)
class Gets(ColumnTable):
    """Reads of registers before any write of their own transaction; `value`: NULL if there was
    none.

        again   the transaction read this register in two states
    """

    op: Ints
    key: Ints
    value: Ints
    again: Ints
    begin: Ints
    end: Ints
    process: Ints


@dataclass(frozen=True)
class ExternalAccesses:
    """What a chunk of rows shows about other transactions."""

    appends: Appends
    reads: ListReads
    branches: Lists
    puts: Puts
    gets: Gets


@dataclass(frozen=True)
class _AccessOrder:
    """Reads and writes of a chunk by transaction and key, in order.

    row       in the reads or in the writes
    group     of the same transaction and key
    before    number of earlier writes of the group
    """

    row: Ints
    writing: Bools
    group: Ints
    before: Ints
    first_write: Ints  # first write of the group, in the order of all writes
    last: Bools  # the group's last write


def external_accesses(chunk: TransactionChunk, remarks: DirectAnomalies) -> ExternalAccesses:
    """Return what the transactions read of each other; record what they did not read of their
    own."""
    appends, reads, kept = _list_moves(chunk, remarks)
    lists = Lists(reads.key, reads.length, chunk.elements[kept])
    branch, of_branch = find_branches(lists)
    reads = ListReads(reads.op, reads.key, branch, reads.length, reads.own, reads.again)
    puts, gets = _register_moves(chunk, remarks)
    return ExternalAccesses(appends, reads, lists.at(of_branch), puts, gets)


def _access_order(reads: Accesses, writes: Accesses) -> _AccessOrder:
    n = len(reads)
    of, key, step = (
        np.concatenate([getattr(reads, name), getattr(writes, name)])
        for name in ("of", "key", "step")
    )
    order = np.lexsort((step, key, of))
    of, key, writing = of[order], key[order], order >= n
    first = np.ones(len(order), np.bool_)
    first[1:] = (of[1:] != of[:-1]) | (key[1:] != key[:-1])
    group = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    counted: Ints = np.cumsum(writing) - writing
    first_write: Ints = counted[starts][group] if len(starts) else counted
    place = np.where(writing, np.arange(len(order)), -1)
    last = np.zeros(len(order), np.bool_)
    if len(starts):
        last_of_group = np.maximum.reduceat(place, starts)
        last[last_of_group[last_of_group >= 0]] = True
    row = np.where(writing, order - n, order)
    return _AccessOrder(row, writing, group, counted - first_write, first_write, last)


def _list_moves(
    chunk: TransactionChunk, remarks: DirectAnomalies
) -> tuple[Appends, ListReads, Ints]:
    """Return appends, reads by length alone, and the places of the reads' elements."""
    mixed = _access_order(chunk.lists, chunk.appends)
    w, r = mixed.writing, ~mixed.writing
    writes = chunk.appends.at(mixed.row[w])
    status = chunk.transactions.status[writes.of]
    appends = Appends(writes.op, writes.key, writes.value, status, mixed.last[w].astype(np.int64))

    number, own = mixed.row[r], mixed.before[r]
    start, length = starts_of(chunk.length)[number], chunk.length[number]
    enough = own <= length
    tail = np.where(enough, own, 0)
    equal = chunk.elements[ranges(start + length - tail, tail)]
    equal = equal == writes.value[ranges(mixed.first_write[r], tail)]
    good = enough & all_of(equal, tail)
    reads = chunk.lists.at(number)
    remarks.add(DirectAnomaly.UNSEEN_OWN, reads.op[~good], reads.key[~good], NULL, -1)

    number, own, start = number[good], own[good], start[good]
    reads, length = reads.at(good), length[good] - own
    again = _again(mixed.group[r][good], length)
    remarks.add(DirectAnomaly.READ_TWICE, reads.op[again], reads.key[again], NULL, -1)
    twice = again.astype(np.int64)
    found = ListReads(reads.op, reads.key, number, length, own, twice)
    return appends, found, ranges(start, length)


def _register_moves(chunk: TransactionChunk, remarks: DirectAnomalies) -> tuple[Puts, Gets]:
    mixed = _access_order(chunk.gets, chunk.puts)
    w, r = mixed.writing, ~mixed.writing
    writes = chunk.puts.at(mixed.row[w])
    last = mixed.last[w].astype(np.int64)
    status = chunk.transactions.status[writes.of]
    puts = Puts(
        writes.op, writes.key, writes.value, status, last, *_when(chunk.transactions, writes)
    )

    reads, own = chunk.gets.at(mixed.row[r]), mixed.before[r]
    expected = mixed.first_write[r] + own - 1
    after = own > 0
    good = ~after
    good[after] = reads.value[after] == writes.value[expected[after]]
    remarks.add(DirectAnomaly.UNSEEN_OWN, reads.op[~good], reads.key[~good], reads.value[~good], -1)
    outside = ~after
    reads, group = reads.at(outside), mixed.group[r][outside]
    again = _again(group, reads.value)
    remarks.add(DirectAnomaly.READ_TWICE, reads.op[again], reads.key[again], reads.value[again], -1)
    when = _when(chunk.transactions, reads)
    return puts, Gets(reads.op, reads.key, reads.value, again.astype(np.int64), *when)


def _when(transactions: Transactions, moves: Accesses) -> tuple[Ints, Ints, Ints]:
    return (
        transactions.begin[moves.of],
        transactions.end[moves.of],
        transactions.process[moves.of],
    )


def _again(group: Ints, state: Ints) -> Bools:
    """Return for each read whether its transaction read the key in different states. Groups are
    adjacent."""
    if not len(group):
        return np.empty(0, np.bool_)
    first = np.ones(len(group), np.bool_)
    first[1:] = group[1:] != group[:-1]
    starts = np.flatnonzero(first)
    differ = np.minimum.reduceat(state, starts) != np.maximum.reduceat(state, starts)
    answer: Bools = differ[np.cumsum(first) - 1]
    return answer
