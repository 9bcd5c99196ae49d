"""Locks that are leases: a hold ends by itself, `arg` milliseconds after it was requested.

From that moment on, or from the next request of its holder, nothing is known about a lease: it is
treated as if the holder had called for its release then without an answer. Later events of the
lease, a late release or a failed one, prove nothing. A lease that was over before its holder heard
of it was never certain, nor was one whose request was not recorded. A lease whose release was
called in time is a hold like others.
"""

import numpy as np

from checkers._cycles.arrays import Bools, Ints
from checkers._linear.batch import ABSENT
from checkers._linear.objects import LOCK, Rows
from harness.operation import F, Type

NS_IN_MS = 1_000_000
MADE_UP = 1 << 62  # a bit in the numbers of releases that are not in the history
BEFORE_ALL = -1


def without_leases(rows: Rows) -> Rows:
    """Return the same rows with leases replaced by holds that last until their release."""
    leased = (rows["f"] == F.ACQUIRE) & (rows["type"] == Type.OK) & (rows["arg"] >= 0)
    if not leased.any():
        return rows
    calls = _calls(rows, leased)
    given = np.flatnonzero(leased)
    at = _positions(rows["op"][calls], rows["op"][given])
    over = rows["t"][calls[at]] + rows["arg"][given] * NS_IN_MS
    over[rows["type"][calls[at]] != Type.INVOKE] = BEFORE_ALL
    follower, asked = _next(rows, calls, at)
    releases = (follower >= 0) & (rows["f"][follower] == F.RELEASE)
    late = releases & (asked > over)
    in_time = releases & ~late
    end = np.minimum(over, asked - 1)  # before the next request
    never = (end <= rows["t"][given]) & ~in_time
    changed = dict(rows)
    changed["type"] = rows["type"].copy()
    changed["type"][given[never]] = Type.INFO
    kept = ~np.isin(rows["op"], rows["op"][follower[late]])
    changed = {name: column[kept] for name, column in changed.items()}
    return _with_ends(changed, rows, given, end, ~never & ~in_time)


def _calls(rows: Rows, leased: Bools) -> Ints:
    """Return the invocations of each process on each lock, in order, without those that did not
    happen. A lease without a recorded request counts as its own request."""
    undone = rows["op"][(rows["type"] == Type.FAIL) & (rows["pos"] != 0)]
    invoked = rows["type"] == Type.INVOKE
    asked = invoked & np.isin(rows["f"], LOCK) & ~np.isin(rows["op"], undone)
    calls = np.flatnonzero(asked | (leased & ~np.isin(rows["op"], rows["op"][invoked])))
    return calls[np.lexsort([rows[name][calls] for name in ("op", "t", "process", "key")])]


def _positions(ops: Ints, wanted: Ints) -> Ints:
    """Return where each wanted operation is among `ops`."""
    order = np.argsort(ops)
    return order[np.searchsorted(ops[order], wanted)]


def _next(rows: Rows, calls: Ints, at: Ints) -> tuple[Ints, Ints]:
    """Return what the same process called next, or -1; and when."""
    after = np.append(calls, -1)[at + 1]
    same: Bools = after >= 0
    for name in ("key", "process"):
        same = same & (rows[name][after] == rows[name][calls[at]])
    return np.where(same, after, -1), np.where(same, rows["t"][after], np.iinfo(np.int64).max)


def _with_ends(rows: Rows, all_rows: Rows, given: Ints, end: Ints, ending: Bools) -> Rows:
    """Add a release of unknown outcome for each lease that ends by itself."""
    mine = given[ending]
    made = {name: column[mine] for name, column in all_rows.items()}
    made |= {"t": end[ending], "op": made["op"] | MADE_UP}
    made |= {"type": np.full(len(mine), Type.INVOKE), "f": np.full(len(mine), F.RELEASE)}
    made |= {name: np.full(len(mine), ABSENT) for name in ("value", "offset")}
    return {name: np.concatenate([column, made[name]]) for name, column in rows.items()}
