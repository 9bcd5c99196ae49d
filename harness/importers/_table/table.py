"""Tables of any origin: one row for each event, in the columns of the history itself.

    process  type    f     key     value  offset  pos  time
    app-1    invoke  send  orders  m-1
    app-1    ok      send  orders  m-1    0
    app-2    invoke  poll
    app-2    ok      poll  orders  m-1    0       0
    app-2    ok      poll

`process`, `type` (invoke, ok, fail, info) and `f` must be there; `f` is a word of
`harness.operation.F` in small letters. `key`, `value`, `arg` (the new value of a cas), `offset`,
`pos`, `mop` and `time` (nanoseconds) may be missing, and an empty cell is absent; what that means
for a key and a value is said in `empty_cells`. What one event says
in several rows, messages of a poll (`pos`) or micro-operations of a transaction (`mop`), comes
right before the event's own row, which has neither, but for a cas that was refused by the
comparison: its `fail` has a `pos` of 0. Which kinds of operation there are tells what
the history is about.

Each process's rows stand in their order; those of several may stand one process after the other, if
all have a time. Events of equal times count as concurrent.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import BadRequest
from harness.importers._jepsen.pairing import NOBODY, in_turn
from harness.importers._recording.kinds import KINDS
from harness.importers._recording.recording import (
    PARTS,
    SAME,
    UNTIMED,
    Bools,
    Events,
    Ints,
    Recording,
    Slip,
    Slips,
)
from harness.importers._table.cells import columns_of, said, whole_numbers, words
from harness.importers._table.empty_cells import Shape, filled
from harness.importers._table.grouping import events_of, merged, told
from harness.operation import F, Type

TYPES = {kind.name.lower(): int(kind) for kind in Type}
FS = {f.name.lower(): int(f) for f in F}
ABOUT = (  # what a history is about, and the kinds of operation it then may have
    ("messages", {F.SEND, F.POLL, F.READ}),
    ("registers", {F.GET, F.PUT, F.CAS, F.APPEND}),
    ("queue", {F.ENQUEUE, F.DEQUEUE}),
    ("set", {F.ADD, F.LIST}),
    ("counter", {F.ADD, F.COUNT}),
    ("lock", {F.ACQUIRE, F.RELEASE}),
    ("transactions", {F.GET, F.PUT, F.APPEND, F.LIST}),
)
PARTED = {F.GET, F.PUT, F.CAS, F.APPEND, F.LIST}  # what a transaction may do


def recording(table: pa.Table, path: Path, line: Ints, slips: Slips) -> Recording:
    """A table's events; its rows stand on these lines of the file."""
    columns, odd = columns_of(table, path, line, slips)
    kind = words(columns["type"], TYPES, line, "type", slips)
    f = words(columns["f"], FS, line, "f", slips)
    process, some = _processes(columns["process"], line, slips)
    good = np.flatnonzero((kind >= 0) & (f >= 0) & some & ~odd)
    if not len(good):
        why = f": {slips.first[0]}" if slips.first else ""
        raise BadRequest(f"{path} holds no operation{why}")
    taken = {name: columns[name].take(pa.array(good)) for name in columns}
    line, kind, f, process = line[good], kind[good], f[good], process[good]
    about = _about(f, taken, path)
    unclear = said(taken, KINDS[about], path, line, slips)
    mop, pos = (taken[name].fill_null(-1).to_numpy().astype(np.int64) for name in ("mop", "pos"))
    listed = pos >= 0
    listed &= (f != F.CAS) | (kind != Type.FAIL)  # a refused cas has a pos of its own
    own = ~(listed | (mop >= 0))
    event_of = events_of(process, own, kind, f, mop >= 0)
    told(event_of, line, slips)
    unclear |= merged(event_of, own, mop, pos, line, slips)
    at = np.flatnonzero(own)
    if not len(at):
        raise BadRequest(f"{path} holds no operation: {slips.first[-1]}")
    time = _times(taken["time"])
    events = Events(line[at], time[at], kind[at], process[at], f[at], np.zeros(len(at), np.bool_))
    shape = Shape(about, line, f, kind, own, listed, event_of, in_turn(events))
    taken, lacking = filled(taken, shape, slips)
    unclear |= lacking
    order = _order(events)
    number = np.append(np.argsort(order), -1)  # of each event; -1 stays -1
    event = number[event_of]
    event[np.isin(event, event[unclear])] = NOBODY  # one row that says nothing, and none does
    parts = _parts(taken, event, f, kind)
    return Recording(about, events.take(order), parts, slips)


def _times(column: pa.Array) -> Ints:
    """Times, of which only those that are absent are UNTIMED; where one that is told looks like
    that, all are moved."""
    alike = pc.any(pc.equal(column, UNTIMED)).as_py()
    moved = pc.subtract(column, pc.min(column)) if alike else column
    times: Ints = moved.fill_null(UNTIMED).to_numpy(zero_copy_only=False)
    return times


def _order(events: Events) -> Ints:
    """The events by their times, where these are known and no process's go back; else as they
    stand: then the times break a rule, and not the lines."""
    by_process = np.lexsort((np.arange(len(events)), events.process))
    process, t = events.process[by_process], events.t[by_process]
    back = (process[1:] == process[:-1]) & (t[1:] < t[:-1])
    if back.any() or (events.t == UNTIMED).any():
        return np.arange(len(events))
    return np.argsort(events.t, kind="stable")


def _processes(column: pa.Array, line: Ints, slips: Slips) -> tuple[Ints, Bools]:
    """Process numbers: as they are, or in the order of appearance; and which rows have one."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    absent = np.flatnonzero(~there)
    if len(absent):
        slips.add(Slip("NO_PROCESS", int(line[absent[0]]), "no process", gap=True), len(absent))
    whole = whole_numbers(column)
    if whole is not None:
        numbers: Ints = whole.fill_null(0).to_numpy(zero_copy_only=False)
        if not len(numbers) or (numbers.min() >= 0 and numbers.max() < 1 << 31):
            return numbers, there
    encoded = column.dictionary_encode().indices.fill_null(0)
    return encoded.to_numpy(zero_copy_only=False).astype(np.int64), there


def _about(f: Ints, columns: dict[str, pa.Array], path: Path) -> str:
    """What the history is about. BadRequest when its kinds of operation do not go together."""
    there = {F(int(number)) for number in np.unique(f)}
    if columns["mop"].null_count < len(f):
        if there <= PARTED:
            return "transactions"
        words = ", ".join(sorted(f.name.lower() for f in there - PARTED))
        raise BadRequest(
            f"{path} has rows with mop, so it is about transactions, and these know append, list,"
            f" get, put and cas, but no {words}; leave mop empty, or make a file of each"
        )
    for name, allowed in ABOUT:
        if there <= allowed:
            return name
    judged = {f for _, allowed in ABOUT for f in allowed}
    words = ", ".join(sorted(f.name.lower() for f in (there - judged or there)))
    if there - judged:
        raise BadRequest(f"{path} has {words}, which no table can have; leave those rows out")
    raise BadRequest(
        f"{path} is about several things ({words}), which no checker judges together; make a file"
        " of each"
    )


def _parts(columns: dict[str, pa.Array], event: Ints, f: Ints, kind: Ints) -> pa.Table:
    """All rows as parts of their events, in the events' order."""
    pos = columns["pos"].is_valid().to_numpy(zero_copy_only=False)
    kinds = np.where(pos & (kind == Type.OK), Type.OK, SAME)
    arrays = {
        "event": pa.array(event, pa.int64()),
        "f": pa.array(f).cast(pa.int8()),
        "type": pa.array(kinds).cast(pa.int8()),
        **{name: columns[name] for name in ("key", "value", "arg")},
        **{name: columns[name].cast(PARTS[name]) for name in ("offset", "pos", "mop")},
    }
    table = pa.table({name: arrays[name] for name in PARTS})
    at = np.flatnonzero(event >= 0)
    at = at[np.argsort(event[at], kind="stable")]
    return table.take(pa.array(at)).combine_chunks()
