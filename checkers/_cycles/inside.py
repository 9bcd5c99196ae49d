"""What a transaction saw of itself, and what is left of its reads to tell about others.

A transaction sees its own writes at every level of isolation, in the order in which it made them,
and nothing that it has yet to write. Reads that break this are remarked on and tell nothing more.
"""

from dataclasses import dataclass

import numpy as np

from checkers._cycles.arrays import NULL, Bools, Ints, all_of, ranges, starts_of
from checkers._cycles.branches import Lists, branched
from checkers._cycles.remarks import Remark, Remarks
from checkers._cycles.rows import Columns, Moves, Told, Transactions


@dataclass(frozen=True)
class Appends(Columns):
    """`last`: the transaction's last append to this list."""

    op: Ints
    key: Ints
    value: Ints
    status: Ints
    last: Ints


@dataclass(frozen=True)
class ListReads(Columns):
    """A read is a branch's beginning.

    own     how many appends of the transaction's own followed it; they are not in `length`
    again   the transaction read this list in two states
    """

    op: Ints
    key: Ints
    branch: Ints
    length: Ints
    own: Ints
    again: Ints


@dataclass(frozen=True)
class Puts(Columns):
    """`last`: the transaction's last write of this register, the one that others may see."""

    op: Ints
    key: Ints
    value: Ints
    status: Ints
    last: Ints
    begin: Ints
    end: Ints
    process: Ints


@dataclass(frozen=True)
class Gets(Columns):
    """Reads of registers before any write of the transaction's own; `value`: NULL when it had none.

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
class Seen:
    """What a chunk of rows says about others."""

    appends: Appends
    reads: ListReads
    branches: Lists
    puts: Puts
    gets: Gets


@dataclass(frozen=True)
class _Mixed:
    """Reads and writes of a chunk by transaction and key, in their order.

    row       in the reads or in the writes
    group     of the same transaction and key
    before    writes of the group that came before
    """

    row: Ints
    writing: Bools
    group: Ints
    before: Ints
    first_write: Ints  # of the row's group, in the order of all writes
    last: Bools  # the group's last write


def seen(told: Told, remarks: Remarks) -> Seen:
    """What the transactions saw of each other; remarks on what they did not see of themselves."""
    appends, reads, kept = _list_moves(told, remarks)
    lists = Lists(reads.key, reads.length, told.elements[kept])
    branch, of_branch = branched(lists)
    reads = ListReads(reads.op, reads.key, branch, reads.length, reads.own, reads.again)
    puts, gets = _register_moves(told, remarks)
    return Seen(appends, reads, lists.at(of_branch), puts, gets)


def _mixed(reads: Moves, writes: Moves) -> _Mixed:
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
    return _Mixed(row, writing, group, counted - first_write, first_write, last)


def _list_moves(told: Told, remarks: Remarks) -> tuple[Appends, ListReads, Ints]:
    """Appends, reads by length alone, and where the reads' elements are."""
    mixed = _mixed(told.lists, told.appends)
    w, r = mixed.writing, ~mixed.writing
    writes = told.appends.at(mixed.row[w])
    status = told.transactions.status[writes.of]
    appends = Appends(writes.op, writes.key, writes.value, status, mixed.last[w].astype(np.int64))

    number, own = mixed.row[r], mixed.before[r]
    start, length = starts_of(told.length)[number], told.length[number]
    enough = own <= length
    tail = np.where(enough, own, 0)
    equal = told.elements[ranges(start + length - tail, tail)]
    equal = equal == writes.value[ranges(mixed.first_write[r], tail)]
    good = enough & all_of(equal, tail)
    reads = told.lists.at(number)
    remarks.add(Remark.UNSEEN_OWN, reads.op[~good], reads.key[~good], NULL, -1)

    number, own, start = number[good], own[good], start[good]
    reads, length = reads.at(good), length[good] - own
    again = _again(mixed.group[r][good], length)
    remarks.add(Remark.READ_TWICE, reads.op[again], reads.key[again], NULL, -1)
    twice = again.astype(np.int64)
    found = ListReads(reads.op, reads.key, number, length, own, twice)
    return appends, found, ranges(start, length)


def _register_moves(told: Told, remarks: Remarks) -> tuple[Puts, Gets]:
    mixed = _mixed(told.gets, told.puts)
    w, r = mixed.writing, ~mixed.writing
    writes = told.puts.at(mixed.row[w])
    last = mixed.last[w].astype(np.int64)
    status = told.transactions.status[writes.of]
    puts = Puts(
        writes.op, writes.key, writes.value, status, last, *_when(told.transactions, writes)
    )

    reads, own = told.gets.at(mixed.row[r]), mixed.before[r]
    expected = mixed.first_write[r] + own - 1
    after = own > 0
    good = ~after
    good[after] = reads.value[after] == writes.value[expected[after]]
    remarks.add(Remark.UNSEEN_OWN, reads.op[~good], reads.key[~good], reads.value[~good], -1)
    outside = ~after
    reads, group = reads.at(outside), mixed.group[r][outside]
    again = _again(group, reads.value)
    remarks.add(Remark.READ_TWICE, reads.op[again], reads.key[again], reads.value[again], -1)
    when = _when(told.transactions, reads)
    return puts, Gets(reads.op, reads.key, reads.value, again.astype(np.int64), *when)


def _when(transactions: Transactions, moves: Moves) -> tuple[Ints, Ints, Ints]:
    return (
        transactions.begin[moves.of],
        transactions.end[moves.of],
        transactions.process[moves.of],
    )


def _again(group: Ints, state: Ints) -> Bools:
    """Of each read: did its transaction read the key in different states? Groups lie together."""
    if not len(group):
        return np.empty(0, np.bool_)
    first = np.ones(len(group), np.bool_)
    first[1:] = group[1:] != group[:-1]
    starts = np.flatnonzero(first)
    differ = np.minimum.reduceat(state, starts) != np.maximum.reduceat(state, starts)
    answer: Bools = differ[np.cumsum(first) - 1]
    return answer
