"""From a recording to the rows of the ops table, and the names of what was numbered.

The number of an operation is the line of its invocation. A completion that is not ok says nothing
that its invocation does not say, unless its importer found more in it: it repeats the invocation's
parts. A completion without parts is of no use, so its operation stays open, of unknown outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.schema import OPS
from harness.importers._jepsen.mismatched import without_unlike
from harness.importers._jepsen.pairing import NOBODY, Alike, Paired, paired
from harness.importers._jepsen.quantities import with_numbers
from harness.importers._recording.kinds import KINDS
from harness.importers._recording.messages import Originals, renumbered
from harness.importers._recording.recording import PARTS, SAME, Events, Ints, Recording, Slips
from harness.operation import F, Type

PLACE = list(PARTS).index("pos")


@dataclass(frozen=True)
class Rows:
    """A history ready to be written.

    keys       texts of the keys, by number
    values     texts of the values, by number; None: they are numbers themselves
    originals  of each message, where values were numbered anew
    line       of the file, for each row
    """

    ops: pa.Table
    keys: Sequence[str]
    values: Sequence[str] | None
    originals: Originals | None
    line: Ints
    t_of_event: Ints
    end: int


def rows_of(recording: Recording, slips: Slips) -> Rows:
    """The rows of a recording, in time order. Its parts are used up: they may be most of memory."""
    events = recording.events
    timeless = recording.completed_only and recording.kind == "transactions"
    found = Slips() if timeless else slips  # nothing invoked them, and nothing is missing
    pairs = paired(events, found, _alike(recording.parts), strict=recording.strict)
    pairs = without_unlike(recording.parts, events, pairs, slips)
    parts = _completed(recording.parts, events, pairs)
    recording.parts = parts.slice(0, 0)
    event = parts.column("event").to_numpy()
    kind = parts.column("type").to_numpy()
    kind = np.where(kind == SAME, events.type[event], kind)
    early = _early(parts, events, pairs)
    invoke = pairs.invoke[event]
    columns = {
        "t": pairs.t[event],
        "process": events.process[event],
        "op": events.line[invoke],
        "type": kind,
        "line": events.line[event],
    }
    table = pa.table({name: pa.array(array) for name, array in columns.items()})
    for name in ("f", "key", "value", "arg", "offset", "pos", "mop"):
        table = table.append_column(name, parts.column(name))
    if early is not None:
        table = pa.concat_tables([early, table])
    return _named(table, recording, slips, pairs)


def _alike(parts: pa.Table) -> Alike:
    """Whether two events say the same of the same objects."""
    event = parts.column("event").to_numpy()

    def said(number: int) -> pa.Table:
        first, last = np.searchsorted(event, (number, number + 1))
        return parts.slice(first, last - first).drop_columns("event")

    return lambda first, second: bool(said(first).equals(said(second)))


def _completed(parts: pa.Table, events: Events, pairs: Paired) -> pa.Table:
    """Without the parts of dropped events; completions that are not ok and have none of their own
    repeat those of their invocations."""
    event = parts.column("event").to_numpy()
    n = len(events)
    counts = np.bincount(event, minlength=n)
    starts = np.concatenate([[0], np.cumsum(counts)])
    kept = pairs.invoke != NOBODY
    source = np.arange(n)
    unsaid = (counts == 0) & kept & (events.type > Type.OK) & ~pairs.orphans
    source[unsaid] = pairs.invoke[unsaid]
    without = kept & (counts[np.maximum(pairs.invoke, 0)] == 0) & ~pairs.orphans
    length = np.where(kept & ~without, counts[source], 0)
    owner = np.repeat(np.arange(n), length)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
    at = starts[source[owner]] + within
    if len(at) == parts.num_rows and bool((np.diff(at, prepend=-1) == 1).all()):
        return parts
    taken = parts.take(pa.array(at))
    return taken.set_column(0, "event", pa.array(owner, pa.int64()))


def _early(parts: pa.Table, events: Events, pairs: Paired) -> pa.Table | None:
    """Invocations at the very beginning, for completions that nobody invoked."""
    event = parts.column("event").to_numpy()
    pos = parts.column("pos").fill_null(-1).to_numpy()
    asked = (pos < 0) | (parts.column("f").to_numpy() == F.CAS)  # a refused cas has a pos of 0
    at = np.flatnonzero(pairs.orphans[event] & asked)
    if not len(at):
        return None
    some = parts.take(pa.array(at))
    event = event[at]
    first = np.full(len(at), pairs.t[0] if len(pairs.t) else 0)
    columns = {
        "t": first,
        "process": events.process[event],
        "op": events.line[event],
        "type": np.full(len(at), Type.INVOKE, np.int64),
        "line": events.line[event],
    }
    table = pa.table({name: pa.array(array) for name, array in columns.items()})
    some = some.set_column(PLACE, "pos", pa.nulls(len(at), pa.int32()))
    for name in ("f", "key", "value", "arg", "offset", "pos", "mop"):
        table = table.append_column(name, some.column(name))
    return table


def _named(table: pa.Table, recording: Recording, slips: Slips, pairs: Paired) -> Rows:
    """Keys numbered; values as their kind of history needs them."""
    keys, key = _keys(table.column("key"))
    table = table.set_column(table.column_names.index("key"), "key", key)
    values: Sequence[str] | None = None
    originals: Originals | None = None
    if recording.kind == "messages":
        table, originals = renumbered(table, slips)
    elif recording.kind == "counter":
        table = with_numbers(table, slips)
    elif not KINDS[recording.kind].quantity:
        table, values = _values(table)
    line = table.column("line").to_numpy()
    return Rows(_as_ops(table), keys, values, originals, line, pairs.t, int(pairs.t[-1]))


def _as_ops(table: pa.Table) -> pa.Table:
    columns = [
        table.column(f.name).cast(f.type)
        if f.name in table.column_names
        else pa.nulls(table.num_rows, f.type)
        for f in OPS
    ]
    return pa.Table.from_arrays(columns, schema=OPS)


def _keys(column: pa.ChunkedArray) -> tuple[Sequence[str], pa.Array]:
    """Texts of the distinct keys, numbers in their order and texts in that of their appearance;
    and the column as their numbers."""
    distinct = pc.drop_null(pc.unique(column))
    if pa.types.is_integer(distinct.type):
        distinct = distinct.take(pc.sort_indices(distinct))
    numbers = pc.index_in(column, value_set=distinct)
    return [str(key) for key in distinct.to_pylist()], numbers


def _values(table: pa.Table) -> tuple[pa.Table, Sequence[str] | None]:
    """Values as they are, when they are whole numbers from 0; else numbered, with their texts."""
    value, arg = table.column("value"), table.column("arg")
    numbers = pa.types.is_integer(value.type) and pa.types.is_integer(arg.type)
    if numbers and not (_below_zero(value) or _below_zero(arg)):
        return table, None
    texts = [column.cast(pa.string()) for column in (value, arg)]
    distinct = pc.drop_null(pc.unique(pa.chunked_array([c for t in texts for c in t.chunks])))
    for name, text in zip(("value", "arg"), texts, strict=True):
        numbered = pc.index_in(text, value_set=distinct)
        table = table.set_column(table.column_names.index(name), name, numbered)
    return table, distinct.to_pylist()


def _below_zero(column: pa.ChunkedArray) -> bool:
    least = pc.min(column).as_py()
    return least is not None and least < 0


def ended_ok(ops: pa.Table, fs: Sequence[F]) -> bool:
    """Did any of these operations end ok?"""
    f, kind = ops.column("f").to_numpy(), ops.column("type").to_numpy()
    return bool((np.isin(f, fs) & (kind == Type.OK)).any())
