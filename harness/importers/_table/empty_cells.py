"""Cells that a row of a table leaves out.

Of an operation's two rows often only one says what it is about: what one of them leaves out, its
key and what it writes, is what the other one has. Where no row of a table has a key, all of it is
about one object. A row that still lacks what its kind of operation needs says nothing.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness.importers._jepsen.pairing import NOBODY
from harness.importers._recording.recording import Bools, Ints, Slip, Slips
from harness.importers._table.cells import Columns
from harness.operation import F, Type

BARE = (F.POLL, F.READ)  # the event's own row is about all keys
WRITES = {
    "value": (F.SEND, F.PUT, F.CAS, F.APPEND, F.ENQUEUE, F.ADD),
    "arg": (F.CAS,),
}
NAMED = {  # what must have a value; what is read has one where it is listed
    "messages": (F.SEND,),
    "queue": (F.ENQUEUE,),
    "set": (F.ADD,),
    "transactions": (F.PUT, F.APPEND),
}
ONLY = 0  # the key of the one object of a table without keys, as in Jepsen's histories


@dataclass(frozen=True)
class Shape:
    """The rows of a table.

    own       rows that are an event's own; `listed`: rows with a `pos`
    event_of  the number of each row's event, in the order of their own rows; NOBODY: it has none
    invoked   for each event the event that invoked it, itself, or NOBODY
    """

    about: str
    line: Ints
    f: Ints
    kind: Ints
    own: Bools
    listed: Bools
    event_of: Ints
    invoked: Ints


def filled(columns: Columns, rows: Shape, slips: Slips) -> tuple[Columns, Bools]:
    """The columns with what rows leave out; and the rows that say nothing, which are told."""
    columns = _shared(columns, rows)
    bare = _told_apart(rows) if rows.about == "transactions" else np.isin(rows.f, BARE)
    needed = ~(rows.own & bare)
    if columns["key"].null_count == len(needed):
        columns["key"] = pa.array(np.full(len(needed), ONLY), pa.int64(), mask=~needed)
    lacking = _lacking(columns, "key", needed, rows, slips)
    lacking |= _lacking(columns, "value", needed & ~lacking & _named(rows), rows, slips)
    return columns, lacking


def _shared(columns: Columns, rows: Shape) -> Columns:
    """The two rows of an operation have one key, and write the same."""
    at = np.flatnonzero(rows.own)
    ends = np.flatnonzero((rows.invoked != NOBODY) & (rows.kind[at] != Type.INVOKE))
    completed, asked = at[ends], at[rows.invoked[ends]]
    both, others = np.concatenate([completed, asked]), np.concatenate([asked, completed])
    found = {"key": _taken(columns["key"], both, others)}
    for name, kinds in WRITES.items():
        writing = np.isin(rows.f[both], kinds)
        found[name] = _taken(columns[name], both[writing], others[writing])
    return columns | found


def _taken(column: pa.Array, rows: Ints, others: Ints) -> pa.Array:
    there = _there(column)
    at = np.flatnonzero(~there[rows] & there[others])
    if not len(at):
        return column
    source = np.arange(len(column))
    source[rows[at]] = others[at]
    return column.take(pa.array(source))


def _told_apart(rows: Shape) -> Bools:
    """Own rows of transactions that need to say nothing: their rows with `mop` do, or those of the
    invocation where it only wrote, or did not end ok. What it wrote is told when it is invoked."""
    parts = ~rows.own & (rows.event_of != NOBODY)
    writing = parts & np.isin(rows.f, WRITES["value"])
    n = len(rows.invoked)
    count = np.bincount(rows.event_of[parts], minlength=n)
    writes = np.bincount(rows.event_of[writing], minlength=n)
    at = np.flatnonzero(rows.own)
    ends = np.flatnonzero((rows.invoked != NOBODY) & (rows.kind[at] != Type.INVOKE))
    asked = rows.invoked[ends]
    only_wrote = (rows.kind[at[ends]] != Type.OK) | (count[asked] == writes[asked])
    told = count > 0
    told[ends] |= (count[asked] > 0) & only_wrote
    told[asked] |= (count[ends] > 0) & (writes[ends] == 0)
    apart = np.zeros(len(rows.f), np.bool_)
    apart[at] = told
    return apart


def _named(rows: Shape) -> Bools:
    """The rows that must have a value."""
    named: Bools = np.isin(rows.f, NAMED.get(rows.about, ()))
    if rows.about == "transactions":
        named &= rows.kind == Type.INVOKE
    return named | rows.listed


def _lacking(columns: Columns, name: str, needed: Bools, rows: Shape, slips: Slips) -> Bools:
    absent: Bools = needed & ~_there(columns[name])
    at = np.flatnonzero(absent)
    if len(at):
        word = F(int(rows.f[at[0]])).name.lower()
        what = f"{name} is absent, and {word} proves nothing without it"
        slips.add(Slip("ODD_VALUE", int(rows.line[at[0]]), what, gap=True), len(at))
    return absent


def _there(column: pa.Array) -> Bools:
    there: Bools = column.is_valid().to_numpy(zero_copy_only=False)
    return there
