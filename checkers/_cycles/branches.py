"""Which lists are prefixes of which: each read of a list is a prefix of a branch.

All reads of one list should be prefixes of the longest one. So only the *branches* of a key are
kept, lists that are no prefix of another, and a read is the number of its branch and a length. A
sound history has one branch a key, whose elements are transferred once instead of once a read.
"""

from dataclasses import dataclass

import numpy as np

from checkers._cycles.arrays import Bools, Ints, all_of, ranges, starts_of


@dataclass(frozen=True)
class Lists:
    """Lists of values under keys: `values` holds them one after another."""

    key: Ints
    length: Ints
    values: Ints

    @property
    def start(self) -> Ints:
        return starts_of(self.length)

    def at(self, rows: Ints) -> "Lists":
        flat = ranges(self.start[rows], self.length[rows])
        return Lists(self.key[rows], self.length[rows], self.values[flat])


def find_branches(lists: Lists, tie: Ints | None = None) -> tuple[Ints, Ints]:
    """Return the branch of each list, and the list of each branch, longest first in a key.

    Lists of one key are compared with the longest of them; those that are no prefix of it are
    compared with the longest of the rest, and so on. Of lists of equal length, the one with the
    least `tie` is first, or the first row.
    """
    branch = np.full(len(lists.key), -1, np.int64)
    row = np.arange(len(lists.key))
    order = np.lexsort((row, row if tie is None else tie, -lists.length, lists.key))
    found: list[Ints] = []
    count = 0
    while len(order):
        first = np.ones(len(order), np.bool_)
        first[1:] = lists.key[order][1:] != lists.key[order][:-1]
        longest = order[first]
        of = np.cumsum(first) - 1
        fits = is_prefix(lists, order, longest[of])
        branch[order[fits]] = count + of[fits]
        found.append(longest)
        count += len(longest)
        order = order[~fits]
    return branch, np.concatenate(found) if found else np.empty(0, np.int64)


def is_prefix(lists: Lists, shorter: Ints, longer: Ints) -> Bools:
    """Return for each pair whether the first list is a prefix of the second."""
    lengths = lists.length[shorter]
    start = lists.start
    equal = lists.values[ranges(start[shorter], lengths)]
    equal = equal == lists.values[ranges(start[longer], lengths)]
    return all_of(equal, lengths)


def in_common(lists: Lists, some: Ints, others: Ints) -> Ints:
    """Return the length of the common prefix of each pair of lists."""
    lengths = np.minimum(lists.length[some], lists.length[others])
    start = lists.start
    differ = lists.values[ranges(start[some], lengths)]
    differ = differ != lists.values[ranges(start[others], lengths)]
    pair = np.repeat(np.arange(len(some)), lengths)
    place = ranges(np.zeros(len(some), np.int64), lengths)
    common = lengths.copy()
    np.minimum.at(common, pair[differ], place[differ])
    return common
