"""Turns a recording into the rows of the ops table, and into names of what was numbered.

The number of an operation is the line of its invocation. A completion that is not ok proves no more
than its invocation, unless its importer found more in it: it repeats the invocation's parts. A
completion without parts is dropped, so its operation stays open, of unknown outcome.

Messages are renumbered `producer << 32 | sequence`, dense for each producer. In another tool's
history a message is a key and a value. Its producer is the process that sent it first. Where
clients that crash get ever new numbers, a process takes over the producer of one that has ended, so
there are no more producers than processes that sent at one time. Messages that were read and never
sent belong to a producer of their own, the last one.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.schema import OPS
from harness.importers._pairing import (
    UNPAIRED,
    Alike,
    Pairing,
    drop_contradictions,
    pair_events,
    stable_order,
)
from harness.importers._recording import (
    KINDS,
    PARTS,
    SAME,
    Events,
    Ints,
    Recording,
    Slip,
    Slips,
    is_one_of,
)
from harness.operation import SEQUENCE_BITS, F, Type

NAMES = ("f", "key", "value", "arg", "offset", "pos", "mop")  # columns that parts and rows share
PLACE = list(PARTS).index("pos")
SENT_TWICE = (
    "this value was sent to this key before; the two cannot be distinguished, so they are left out"
)
FEW_PROCESSES = 1024  # up to so many keep their own numbers


@dataclass(frozen=True)
class Originals:
    """What each message was in the file, in the order of the new numbers."""

    value: Ints
    key: Ints
    original: pa.Array  # numbers or texts
    line: Ints  # on which it was sent, or else first read


@dataclass(frozen=True)
class ImportedRows:
    """A history ready to be written.

    keys       texts of the keys, by number
    values     texts of the values, by number; None if the values are the numbers
    originals  the messages, where values were renumbered
    line       of the file, for each row
    """

    ops: pa.Table
    keys: Sequence[str]
    values: Sequence[str] | None
    originals: Originals | None
    line: Ints
    t_of_event: Ints
    end: int


def rows_of(recording: Recording, slips: Slips) -> ImportedRows:
    """Return the rows of a recording, in time order. Its parts are released, for the memory."""
    events = recording.events
    timeless = recording.completed_only and recording.kind == "transactions"
    pairing_slips = Slips() if timeless else slips  # without invocations, and none is missing
    pairs = pair_events(events, pairing_slips, _alike(recording.parts), strict=recording.strict)
    pairs = drop_contradictions(recording.parts, events, pairs, slips)
    parts = _completed(recording.parts, events, pairs)
    recording.parts = parts.slice(0, 0)
    event = parts.column("event").to_numpy()
    kind = parts.column("type").to_numpy().copy()
    same = np.flatnonzero(kind == SAME)
    kind[same] = events.type[event[same]]
    table = _table(parts, events, pairs.t[event], events.line[pairs.invoke[event]], kind)
    early = _early(parts, events, pairs)
    if early is not None:
        table = pa.concat_tables([early, table])
    return _named(table, recording, slips, pairs)


def _table(parts: pa.Table, events: Events, t: Ints, op: Ints, kind: npt.NDArray[Any]) -> pa.Table:
    event = parts.column("event").to_numpy()
    columns = {
        "t": t,
        "process": pa.array(events.process).cast(pa.int32()).to_numpy()[event],
        "op": op,
        "type": kind,
        "line": events.line[event],
    }
    table = pa.table({name: pa.array(array) for name, array in columns.items()})
    for name in NAMES:
        table = table.append_column(name, parts.column(name))
    return table


def _alike(parts: pa.Table) -> Alike:
    """Return a function that tells whether two events have the same parts."""
    event = parts.column("event").to_numpy()

    def parts_of(number: int) -> pa.Table:
        first, last = np.searchsorted(event, (number, number + 1))
        return parts.slice(first, last - first).drop_columns("event")

    return lambda first, second: bool(parts_of(first).equals(parts_of(second)))


def _completed(parts: pa.Table, events: Events, pairs: Pairing) -> pa.Table:
    """Drop the parts of dropped events. Completions that are not ok and have no parts repeat those
    of their invocations."""
    event = parts.column("event").to_numpy()
    n = len(events)
    counts = np.bincount(event, minlength=n)
    starts = np.concatenate([[0], np.cumsum(counts)])
    kept = pairs.invoke != UNPAIRED
    source = np.arange(n)
    bare = (counts == 0) & kept & (events.type > Type.OK) & ~pairs.orphans
    source[bare] = pairs.invoke[bare]
    without = kept & (counts[np.maximum(pairs.invoke, 0)] == 0) & ~pairs.orphans
    length = np.where(kept & ~without, counts[source], 0)
    if (length == counts).all():
        return parts
    owner = np.repeat(np.arange(n), length)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
    taken = parts.take(pa.array(starts[source[owner]] + within))
    return taken.set_column(0, "event", pa.array(owner, pa.int64()))


def _early(parts: pa.Table, events: Events, pairs: Pairing) -> pa.Table | None:
    """Return invocations at the very beginning, for completions without an invocation."""
    if not pairs.orphans.any():
        return None
    event = parts.column("event").to_numpy()
    pos = parts.column("pos").fill_null(-1).to_numpy()
    invoked = (pos < 0) | (parts.column("f").to_numpy() == F.CAS)  # a refused cas has a pos of 0
    at = np.flatnonzero(pairs.orphans[event] & invoked)
    if not len(at):
        return None
    some = parts.take(pa.array(at)).set_column(PLACE, "pos", pa.nulls(len(at), pa.int32()))
    event = event[at]
    first = np.full(len(at), pairs.t[0] if len(pairs.t) else 0)
    invoke = np.full(len(at), Type.INVOKE, np.int8)
    return _table(some, events, first, events.line[event], invoke)


def _named(table: pa.Table, recording: Recording, slips: Slips, pairs: Pairing) -> ImportedRows:
    """Number the keys, and the values as their kind of history demands."""
    keys, key = _keys(table.column("key"))
    table = table.set_column(table.column_names.index("key"), "key", key)
    values: Sequence[str] | None = None
    originals: Originals | None = None
    if recording.kind == "messages":
        table, originals = _renumbered(table, slips)
    elif recording.kind == "counter":
        table = drop_unknown_quantities(table, slips)
    elif not KINDS[recording.kind].quantity:
        table, values = _values(table)
    line = table.column("line").to_numpy()
    return ImportedRows(_as_ops(table), keys, values, originals, line, pairs.t, int(pairs.t[-1]))


def _as_ops(table: pa.Table) -> pa.Table:
    columns = [
        table.column(f.name).cast(f.type)
        if f.name in table.column_names
        else pa.nulls(table.num_rows, f.type)
        for f in OPS
    ]
    return pa.Table.from_arrays(columns, schema=OPS)


def _keys(column: pa.ChunkedArray) -> tuple[Sequence[str], pa.Array]:
    """Return the distinct keys as texts, numbers in their order and texts in that of their first
    appearance, and the column as their indices."""
    distinct = pc.drop_null(pc.unique(column))
    if pa.types.is_integer(distinct.type):
        distinct = distinct.take(pc.sort_indices(distinct))
    numbers = pc.index_in(column, value_set=distinct)
    return [str(key) for key in distinct.to_pylist()], numbers


def _values(table: pa.Table) -> tuple[pa.Table, Sequence[str] | None]:
    """Keep values that are whole numbers from 0; else number them, and return their texts."""
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
    smallest = pc.min(column).as_py()
    return smallest is not None and smallest < 0


def ended_ok(ops: pa.Table, fs: Sequence[F]) -> bool:
    """Return whether any of these operations ended ok."""
    f, kind = ops.column("f").to_numpy(), ops.column("type").to_numpy()
    return bool((is_one_of(f, fs) & (kind == Type.OK)).any())


# ------------------------------------------------------------------------ numbers of messages


def _renumbered(table: pa.Table, slips: Slips) -> tuple[pa.Table, Originals]:
    """Return the table with renumbered messages, and what each was."""
    f, kind = table.column("f").to_numpy(), table.column("type").to_numpy()
    key = table.column("key").fill_null(-1).to_numpy().astype(np.int64)
    texts, code = _codes(table.column("value"))
    at = np.flatnonzero(code >= 0)
    message, first = _identities(key[at], code[at])
    sent = (f[at] == F.SEND) & (kind[at] == Type.INVOKE)
    process, op = table.column("process").to_numpy()[at], table.column("op").to_numpy()[at]
    rows = np.flatnonzero(sent)
    sending = _first_of_each(message[rows], rows, len(first))
    again = rows[sending[message[rows]] != rows]  # of messages that were sent before
    if len(again):
        slips.add(Slip("SENT_TWICE", int(op[again].min()), SENT_TWICE), len(again))
        kept = np.ones(table.num_rows, np.bool_)
        kept[at[np.isin(message, message[again])]] = False
        return _renumbered(table.filter(pa.array(kept)), slips)
    number, order = _numbers(sending, process)
    shown = np.where(sending >= 0, sending, first)[order]
    value = np.full(len(code), -1, np.int64)
    value[at] = number[message]
    new = pa.array(value, pa.int64(), mask=value < 0)
    originals = Originals(
        number[order], key[at][shown], texts.take(pa.array(code[at][shown])), op[shown]
    )
    return table.set_column(table.column_names.index("value"), "value", new), originals


def _codes(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Return the distinct values, and the column as their indices; -1 is null."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return encoded.dictionary, indices.astype(np.int64)


def _identities(key: Ints, code: Ints) -> tuple[Ints, Ints]:
    """Number each pair of key and value by its first row; return the numbers and first rows."""
    rows = np.arange(len(key))
    keys, codes = (int(column.max(initial=-1)) + 1 for column in (key, code))
    if (keys + 1) * codes <= len(key):  # a table of all pairs is faster than a search
        pair = (key + 1) * codes + code
        seen = _first_of_each(pair, rows, (keys + 1) * codes)
        found = np.flatnonzero(seen >= 0)
        order = np.argsort(seen[found])
        number_of = np.empty(len(seen), np.int64)
        number_of[found[order]] = np.arange(len(found))
        return number_of[pair], seen[found[order]]
    pairs = pa.array(((key + 1) << SEQUENCE_BITS) | code).dictionary_encode()
    number = pairs.indices.to_numpy().astype(np.int64)
    return number, _first_of_each(number, rows, len(pairs.dictionary))


def _first_of_each(message: Ints, rows: Ints, count: int) -> Ints:
    """Return the first of these rows that sends each message, or -1."""
    sending = np.full(count, -1, np.int64)
    sending[message[::-1]] = rows[::-1]
    return sending


def _numbers(sending: Ints, process: Ints) -> tuple[Ints, Ints]:
    """Return the new number of each message, and the messages in the order of these numbers.
    Messages never sent have the last producer."""
    sent = np.flatnonzero(sending >= 0)
    producer = np.zeros(len(sending), np.int64)
    if len(sent):
        slots = _producers(process[np.sort(sending[sent])])
        processes = np.array(list(slots))
        by_process = np.argsort(processes)
        at = np.searchsorted(processes, process[sending[sent]], sorter=by_process)
        producer[sent] = np.array(list(slots.values()))[by_process[at]]
        producer[sending < 0] = max(slots.values()) + 1
    order = stable_order(producer)  # messages are in order of appearance
    ordered = producer[order]
    heads = np.flatnonzero(np.diff(ordered, prepend=-1))
    sequence = np.arange(len(order)) - np.repeat(heads, np.diff(np.append(heads, len(order))))
    number = np.empty(len(order), np.int64)
    number[order] = (ordered << SEQUENCE_BITS) | sequence
    return number, order


def _producers(process: Ints) -> dict[int, int]:
    """Return a producer for each process; `process` is that of each send, in order."""
    distinct, first = np.unique(process, return_index=True)
    if not len(distinct) or (distinct.max() < FEW_PROCESSES and distinct.min() >= 0):
        return {int(p): int(p) for p in distinct}
    last = len(process) - 1 - np.unique(process[::-1], return_index=True)[1]
    slots: dict[int, int] = {}
    ended: list[tuple[int, int]] = []  # a heap of the last send of each producer
    for at in np.argsort(first).tolist():
        free = bool(ended) and ended[0][0] < first[at]
        slot = heapq.heappop(ended)[1] if free else len(ended)
        slots[int(distinct[at])] = slot
        heapq.heappush(ended, (int(last[at]), slot))
    return slots


def read_up_to(table: pa.Table) -> dict[int, int]:
    """Return for each key the highest offset that a read returned, plus one. A message that was
    acknowledged below it and never read is lost."""
    f, kind = table.column("f").to_numpy(), table.column("type").to_numpy()
    reads = is_one_of(f, (F.POLL, F.READ)) & (kind == Type.OK)
    seen = table.select(["key", "offset"]).filter(pa.array(reads))
    best = seen.group_by("key").aggregate([("offset", "max")])
    pairs = zip(best.column("key").to_pylist(), best.column("offset_max").to_pylist(), strict=True)
    return {key: top + 1 for key, top in pairs if key is not None and top is not None}


# ------------------------------------------------------------------------------------ counters


def drop_unknown_quantities(table: pa.Table, slips: Slips) -> pa.Table:
    """Drop the operations of counters whose number is unknown: a sum with them would be wrong."""
    f, kind, op = (table.column(name).to_numpy() for name in ("f", "type", "op"))
    known = table.column("value").is_valid().to_numpy()
    read = (f == F.COUNT) & np.isin(op, op[kind == Type.OK])
    lacking = ((f == F.ADD) | read) & ~np.isin(op, op[known])
    if not lacking.any():
        return table
    lines = np.unique(op[lacking])
    slips.add(
        Slip("ODD_VALUE", int(lines[0]), "value is absent, and must be a whole number", gap=True),
        len(lines),
    )
    return table.filter(pa.array(~lacking))


def total_counted(ops: pa.Table) -> float:
    """Return the sum of all amounts that are added or subtracted."""
    value = ops.column("value").fill_null(0).to_numpy().astype(np.float64)
    added = (ops.column("f").to_numpy() == F.ADD) & (ops.column("type").to_numpy() == Type.INVOKE)
    return float(np.abs(value[added]).sum())
