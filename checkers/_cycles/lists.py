"""Lists: the longest read of each is the order of its versions, which gives the edges.

Committed appends are in the longest read, in the order in which they were installed. Appends of
unknown outcome that were read were committed. Aborted appends that were read, values that were
never appended, and the second of two equal values are direct anomalies and are removed; of what
remains of two reads, one must be a prefix of the other.

A committed append that no read has comes after all that were read: each reader of the last known
version came before it. Those are not edges yet but *missing* appends, because an append that should
have been read is a loss, and the many edges to it only follow from it.

The result depends on all records of some keys, and not on which keys are processed together.
"""

from dataclasses import dataclass, replace

import numpy as np

from checkers._cycles.arrays import NULL, Bools, Ints, Lookup, group_starts
from checkers._cycles.branches import Lists, find_branches, in_common
from checkers._cycles.direct_anomalies import DirectAnomalies, DirectAnomaly
from checkers._cycles.edges import EdgeKind, Edges, concat_edges, make_edges
from checkers._cycles.internal_reads import Appends, ListReads
from checkers._cycles.rows import FAIL, ColumnTable

NOWHERE = int(np.iinfo(np.int64).max >> 2)  # the place of an append that no read has


@dataclass(frozen=True)
class MissingAppends(ColumnTable):
    """Appends that no read has. `known`: already recorded as lost, so the rest follows from it."""

    key: Ints
    op: Ints
    value: Ints
    known: Ints


@dataclass(frozen=True)
class TailRows(ColumnTable):
    """Transactions at the end of a key's known versions: readers of the last one; or its writer,
    and those that read it and wrote the next one, which no read has."""

    key: Ints
    op: Ints
    value: Ints


@dataclass(frozen=True)
class ListDependencies:
    """Dependencies of some keys of lists."""

    edges: Edges
    missing: MissingAppends
    readers: TailRows
    writers: TailRows


@dataclass(frozen=True)
class Versions:
    """The versions of each key: its main branch, cleaned. An element is a row of the appends.

    place   of each append in its key's main branch, or NOWHERE
    aside   appends that are only in another branch
    """

    lists: Lists
    place: Ints
    aside: Bools

    def start(self, key: Ints) -> Ints:
        return self.lists.start[self._row(key)]

    def length(self, key: Ints) -> Ints:
        return self.lists.length[self._row(key)]

    def known(self, key: Ints) -> Bools:
        """Return for each key whether it was ever read."""
        if not len(self.lists.key):
            return np.zeros(len(key), np.bool_)
        there: Bools = self.lists.key[self._row(key)] == key
        return there

    def _row(self, key: Ints) -> Ints:
        rows: Ints = np.minimum(np.searchsorted(self.lists.key, key), len(self.lists.key) - 1)
        return rows


def dependencies(
    appends: Appends, reads: ListReads, branches: Lists, remarks: DirectAnomalies
) -> ListDependencies:
    """Return the edges of the lists of some keys; record their direct anomalies."""
    repeated = Lookup(appends.key, appends.value).repeated
    twice = np.unique(appends.key[repeated])
    if len(twice):
        remarks.add(DirectAnomaly.NOT_UNIQUE, appends.op[repeated], appends.key[repeated], NULL, -1)
        appends, reads, branches = _without(twice, appends, reads, branches)
    lists, reads = _cleaned(appends, reads, branches, remarks)
    versions, reads = _ordered(appends, reads, lists, remarks)
    _shuffled(appends, versions, remarks)
    if len(reads):
        own = _own_place(appends, reads, versions)
        ahead = own < reads.length
        remarks.add(DirectAnomaly.UNSEEN_OWN, reads.op[ahead], reads.key[ahead], NULL, -1)
        reads, own = reads.at(~ahead), own[~ahead]
    else:
        own = np.empty(0, np.int64)
    known = np.zeros(len(appends), np.int64)
    if len(reads):
        good = _own_kept(appends, reads, versions, known, remarks)
        reads, own = reads.at(good), own[good]
        good = _whole(appends, reads, versions, remarks)
        reads, own = reads.at(good), own[good]
    if len(reads):
        behind = _lost_updates(reads, own, remarks)
        reads = replace(reads, again=reads.again | behind)
    return _found(appends, reads, versions, known)


def _without(
    keys: Ints, appends: Appends, reads: ListReads, branches: Lists
) -> tuple[Appends, ListReads, Lists]:
    """Remove these keys."""
    stay = ~np.isin(branches.key, keys)
    renumbered = np.cumsum(stay) - 1
    reads = reads.at(~np.isin(reads.key, keys))
    reads = replace(reads, branch=renumbered[reads.branch])
    rows = np.flatnonzero(stay)
    return appends.at(~np.isin(appends.key, keys)), reads, branches.at(rows)


def _cleaned(
    appends: Appends, reads: ListReads, branches: Lists, remarks: DirectAnomalies
) -> tuple[Lists, ListReads]:
    """Return branches of committed appends, each append once; and reads shortened accordingly."""
    branch = np.repeat(np.arange(len(branches.key)), branches.length)
    key = branches.key[branch]
    append = Lookup(appends.key, appends.value).at(key, branches.values)
    phantom = append < 0
    aborted = np.zeros(len(append), np.bool_)
    aborted[~phantom] = appends.status[append[~phantom]] == FAIL
    order = np.lexsort((append, branch))
    again = np.zeros(len(append), np.bool_)
    equal = (append[order][1:] == append[order][:-1]) & (branch[order][1:] == branch[order][:-1])
    again[order[1:]] = equal
    again &= ~phantom
    odd = phantom | aborted | again
    reader = _first_readers(reads, branches) if odd.any() else branch
    for code, rows in (
        (DirectAnomaly.PHANTOM, phantom),
        (DirectAnomaly.DUPLICATE, again & ~aborted),
    ):
        remarks.add(code, reader[rows], key[rows], branches.values[rows], -1)
    writer = appends.op[append[aborted]]
    values = branches.values[aborted]
    remarks.add(DirectAnomaly.ABORTED, writer, key[aborted], values, reader[aborted])
    kept = ~odd
    counted = np.concatenate([[0], np.cumsum(kept)])
    start = branches.start
    lengths = counted[start + branches.length] - counted[start]
    begin = start[reads.branch]
    reads = replace(reads, length=counted[begin + reads.length] - counted[begin])
    return Lists(branches.key, lengths, append[kept]), reads


def _first_readers(reads: ListReads, branches: Lists) -> Ints:
    """Return, for each element of each branch, the lowest operation that read so far, however rows
    were cut: backwards through the elements, starting over at each branch."""
    ops, rank = np.unique(reads.op, return_inverse=True)
    some = reads.length > 0
    first = np.full(len(branches.values), len(ops), np.int64)
    np.minimum.at(first, (branches.start[reads.branch] + reads.length - 1)[some], rank[some])
    restart = np.repeat(np.arange(len(branches.key)), branches.length) * (len(ops) + 1)
    backwards = np.minimum.accumulate((first + restart)[::-1])[::-1] - restart
    lowest: Ints = ops[backwards]
    return lowest


def _ordered(
    appends: Appends, reads: ListReads, lists: Lists, remarks: DirectAnomalies
) -> tuple[Versions, ListReads]:
    """Return the main branch of each key, and the reads that are prefixes of it."""
    tie = _ranked(lists, _whole_readers(reads, reads.branch, lists.length), appends.value)
    branch, of_branch = find_branches(lists, tie)
    found = lists.at(of_branch)
    _, main = np.unique(found.key, return_index=True)  # the longest of a key comes first
    side = np.setdiff1d(np.arange(len(found.key)), main)
    own_main = main[np.searchsorted(found.key[main], found.key[side])]
    common = found.length.copy()
    common[side] = in_common(found, side, own_main)
    on = branch[reads.branch]
    fits = reads.length <= common[on]
    odd = reads.at(~fits)
    if len(odd):
        leader = own_main[np.searchsorted(side, on[~fits])]
        witness = _whole_readers(reads, on, found.length)
        remarks.add(DirectAnomaly.INCOMPATIBLE, odd.op, odd.key, NULL, witness[leader])
    place = np.full(len(appends), NOWHERE, np.int64)
    chosen = found.at(main)
    place[chosen.values] = np.arange(len(chosen.values)) - np.repeat(chosen.start, chosen.length)
    aside = np.zeros(len(appends), np.bool_)
    aside[found.at(side).values] = True
    return Versions(chosen, place, aside & (place == NOWHERE)), reads.at(fits)


def _whole_readers(reads: ListReads, lists: Ints, length: Ints) -> Ints:
    """Return, for each list, the lowest operation that read all of it. `lists`: the list of each
    read."""
    lowest = np.full(len(length), np.iinfo(np.int64).max)
    whole = reads.length == length[lists]
    np.minimum.at(lowest, lists[whole], reads.op[whole])
    return lowest


def _ranked(lists: Lists, reader: Ints, value: Ints) -> Ints:
    """Rank equally long lists of a key by their readers, and those of one reader, which read a key
    in two orders, by their values: however rows were cut, the same one is first."""
    order = np.lexsort((reader, lists.length, lists.key))
    columns = [column[order] for column in (lists.key, lists.length, reader)]
    equal = np.all([column[1:] == column[:-1] for column in columns], axis=0)
    for first, last in zip(*_runs(equal), strict=True):
        rows = order[first:last]
        texts = [value[lists.at(rows[[n]]).values].tolist() for n in range(len(rows))]
        order[first:last] = rows[sorted(range(len(rows)), key=texts.__getitem__)]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _runs(equal: Bools) -> tuple[list[int], list[int]]:
    """Return the begins and the ends of runs of equal rows."""
    change = np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8))
    return np.flatnonzero(change == 1).tolist(), (np.flatnonzero(change == -1) + 1).tolist()


def _shuffled(appends: Appends, versions: Versions, remarks: DirectAnomalies) -> None:
    """Record appends of a transaction that are not in the order in which it made them."""
    row = versions.lists.values
    back = np.flatnonzero((appends.op[row[1:]] == appends.op[row[:-1]]) & (row[1:] < row[:-1]))
    back = back[appends.key[row[back]] == appends.key[row[back + 1]]]
    at = row[back]
    remarks.add(DirectAnomaly.SHUFFLED, appends.op[at], appends.key[at], appends.value[at], -1)


def _own_place(appends: Appends, reads: ListReads, versions: Versions) -> Ints:
    """Return the first place of the reader's own appends to the list; NOWHERE: not read, or
    none."""
    if not len(appends):
        return np.full(len(reads), NOWHERE + 1, np.int64)
    order = np.argsort(versions.place, kind="stable")
    first = Lookup(appends.key[order], appends.op[order]).at(reads.key, reads.op)
    return np.where(first >= 0, versions.place[order][first], NOWHERE + (first < 0))


def _own_kept(
    appends: Appends, reads: ListReads, versions: Versions, known: Ints, remarks: DirectAnomalies
) -> Bools:
    """Return the reads whose own appends are where the transaction read them, as far as others have
    read."""
    start, length = versions.start(reads.key), versions.length(reads.key)
    beyond = (reads.own > 0) & (reads.length < length)
    following = versions.lists.values[(start + reads.length)[beyond]]
    bad = np.zeros(len(reads), np.bool_)
    bad[beyond] = appends.op[following] != reads.op[beyond]
    if bad.any():
        readers = Lookup(reads.key[bad], reads.op[bad])
        theirs = readers.at(appends.key, appends.op) >= 0
        lost = theirs & (versions.place == NOWHERE) & ~versions.aside
        known[lost] = 1
        remarks.add(
            DirectAnomaly.LOST_OWN, appends.op[lost], appends.key[lost], appends.value[lost], -1
        )
        moved = theirs & ~lost
        remarks.add(DirectAnomaly.INCOMPATIBLE, appends.op[moved], appends.key[moved], NULL, -1)
    return ~bad


def _whole(
    appends: Appends, reads: ListReads, versions: Versions, remarks: DirectAnomalies
) -> Bools:
    """Return the reads that do not end between two appends of one other transaction."""
    some = reads.length > 0
    last = versions.lists.values[(versions.start(reads.key) + reads.length - 1)[some]]
    within = np.zeros(len(reads), np.bool_)
    within[some] = (appends.last[last] == 0) & (appends.op[last] != reads.op[some])
    at = last[within[some]]
    writer, value = appends.op[at], appends.value[at]
    remarks.add(DirectAnomaly.INTERMEDIATE, writer, reads.key[within], value, reads.op[within])
    return ~within


def _lost_updates(reads: ListReads, own: Ints, remarks: DirectAnomalies) -> Ints:
    """Return the reads whose transaction replaced a version that another one also read and
    replaced. A read after its transaction's own appends shows the version before them."""
    rows = np.flatnonzero(own <= NOWHERE)
    order = rows[np.lexsort((reads.op[rows], own[rows], reads.length[rows], reads.key[rows]))]
    key, length, op = reads.key[order], reads.length[order], reads.op[order]
    same = (key[1:] == key[:-1]) & (length[1:] == length[:-1])
    behind = np.zeros(len(reads), np.int64)
    if not same.any():
        return behind
    first = np.concatenate([[True], ~same])
    leader = op[np.flatnonzero(first)][np.cumsum(first) - 1]
    late = op != leader
    behind[order[late]] = 1
    remarks.add(DirectAnomaly.LOST_UPDATE, op[late], key[late], NULL, leader[late])
    return behind


def _found(appends: Appends, reads: ListReads, versions: Versions, known: Ints) -> ListDependencies:
    lists = versions.lists
    op, value = appends.op[lists.values], appends.value[lists.values]
    key = np.repeat(lists.key, lists.length)
    same = np.flatnonzero(key[1:] == key[:-1])
    ww = make_edges(op[same], op[same + 1], EdgeKind.WW, key[same], value[same], value[same + 1])
    last = (lists.start + lists.length - 1)[lists.length > 0]
    writers = TailRows(key[last], op[last], value[last])
    missing = (versions.place == NOWHERE) & ~versions.aside & (appends.status != FAIL)
    missing &= versions.known(appends.key)
    lost = MissingAppends(
        appends.key[missing], appends.op[missing], appends.value[missing], known[missing]
    )
    if not len(reads):
        empty = np.empty(0, np.int64)
        return ListDependencies(ww, lost, TailRows(empty, empty, empty), writers)
    some = reads.length > 0
    at = versions.start(reads.key) + reads.length
    before = np.full(len(reads), NULL, np.int64)
    before[some] = value[at[some] - 1]
    wr = make_edges(op[at[some] - 1], reads.op[some], EdgeKind.WR, reads.key[some], before[some])
    open_end = reads.length == versions.length(reads.key)
    going_on = ~open_end & (reads.again == 0)
    ahead = at[going_on]
    source = reads.op[going_on], op[ahead]
    rw = make_edges(*source, EdgeKind.RW, reads.key[going_on], before[going_on], value[ahead])
    final = open_end & (reads.again == 0)
    readers = TailRows(reads.key[final], reads.op[final], before[final])
    writers = _with_next(writers, readers, lost)
    return ListDependencies(concat_edges([ww, wr, rw]), lost, readers, writers)


def _with_next(writers: TailRows, readers: TailRows, lost: MissingAppends) -> TailRows:
    """Add those readers of the last version that wrote the one after it: other appends came after
    theirs."""
    if not len(lost):
        return writers
    rows = np.flatnonzero(Lookup(lost.key, lost.op).at(readers.key, readers.op) >= 0)
    rows = rows[np.lexsort((readers.op[rows], readers.key[rows]))]
    following = readers.at(rows[group_starts(readers.key[rows], readers.op[rows])])
    pairs = zip(writers.columns(), following.columns(), strict=True)
    return TailRows(*(np.concatenate(pair) for pair in pairs))
