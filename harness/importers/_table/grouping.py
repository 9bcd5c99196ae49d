"""Which rows of a table are one event.

Rows with a `pos` or a `mop` stand right before the event's own row. Where that is missing, what
follows is another event, and must not get them: it is of another type, or asks another thing, or
its places are there twice.
"""

import numpy as np

from harness.importers._jepsen.pairing import NOBODY
from harness.importers._recording.recording import Bools, Ints, Slip, Slips

LAST = np.iinfo(np.int64).max  # the place of the row that ends a list


def events_of(process: Ints, own: Bools, kind: Ints, f: Ints, free: Bools) -> Ints:
    """For each row the number of its event: the next row of its process that is an event's own, if
    it is of the same type, and asks the same or need not (`free`). NOBODY where there is none."""
    order = np.argsort(process, kind="stable")
    number = np.cumsum(own) - 1  # of an event's own row, in the order of the file
    event = np.full(len(process), NOBODY, np.int64)
    following = _next_own(order, own[order], process[order])
    row, whose = order[following >= 0], following[following >= 0]
    fits = (kind[row] == kind[whose]) & (free[row] | (f[row] == f[whose]))
    event[row[fits]] = number[whose[fits]]
    return event


def _next_own(order: Ints, own: Bools, process: Ints) -> Ints:
    """In rows sorted by process: the row, of the file, of the next own row of the same process."""
    at = np.where(own, np.arange(len(order)), len(order))
    following = np.minimum.accumulate(at[::-1])[::-1]
    inside = following < len(order)
    clipped = np.minimum(following, len(order) - 1)
    same = inside & (process[clipped] == process)
    return np.where(same, order[clipped], NOBODY)


def told(event: Ints, line: Ints, slips: Slips) -> None:
    """Name the rows that are of no event."""
    orphaned = np.flatnonzero(event == NOBODY)
    if len(orphaned):
        what = "rows with pos or mop, and no row of the event itself after them"
        slips.add(Slip("NO_EVENT", int(line[orphaned[0]]), what, gap=True), len(orphaned))


def merged(event: Ints, own: Bools, mop: Ints, pos: Ints, line: Ints, slips: Slips) -> Bools:
    """Rows at a place that their event has already: two events, of which one's own row is missing.
    They are told. `mop` and `pos`: -1 where a row has none."""
    at = np.flatnonzero(~own & (event != NOBODY))
    at = at[np.argsort(event[at], kind="stable")]
    place = np.where(pos < 0, LAST, pos)
    same, rises = _compared(event[at], mop[at], place[at])
    found = np.zeros(len(event), np.bool_)
    if not (same & ~rises).any():
        return found
    at = at[np.lexsort((line[at], place[at], mop[at], event[at]))]
    same, rises = _compared(event[at], mop[at], place[at])
    again = at[1:][same & ~rises]
    if len(again):
        found[again] = True
        what = "a row of this place is there already: the event's own row is missing between them"
        slips.add(Slip("NO_EVENT", int(line[again].min()), what, gap=True), len(again))
    return found


def _compared(event: Ints, mop: Ints, place: Ints) -> tuple[Bools, Bools]:
    """Of each row and the one before it: whether they are of one event, and whether it is behind
    it."""
    rises = (mop[1:] > mop[:-1]) | ((mop[1:] == mop[:-1]) & (place[1:] > place[:-1]))
    return event[1:] == event[:-1], rises
