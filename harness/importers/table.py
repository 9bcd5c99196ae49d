"""Tables of operations, from CSV or Parquet: one row per event, in the history's own columns.

    process  type    f     key     value  offset  pos  time
    app-1    invoke  send  orders  m-1
    app-1    ok      send  orders  m-1    0
    app-2    invoke  poll
    app-2    ok      poll  orders  m-1    0       0
    app-2    ok      poll

The columns `process`, `type` (invoke, ok, fail, info) and `f` (a word of `harness.operation.F` in
lower case) are required; `key`, `value`, `arg` (the new value of a cas), `offset`, `pos`, `mop` and
`time` (nanoseconds) are optional, and an empty cell is absent. The kinds of operation determine
what the history is about.

**Events of several rows.** Messages of a poll (`pos`) and micro-operations of a transaction (`mop`)
stand right before the event's own row, which has neither. A cas that was refused by its comparison
is an exception: its `fail` has a `pos` of 0. Rows whose own row is missing must not become part of
the following event; they are detected by their type, their `f`, or places that are there twice.

**Order.** The rows of each process stand in their order; those of several may stand one process
after the other, if all have a time. Events of equal times count as concurrent.

**Empty cells.** Often one of an operation's two rows leaves out the key or the written value; it is
that of the other row. In a table without keys all rows are about one object. A row that then still
lacks what its kind of operation needs proves nothing, and its event is dropped.

**Numbers.** Tools without absent integers write a column with holes as 5.0, 3.0 and nothing, and
mean 5 and 3. So it is read wherever a column holds nothing but whole numbers. Among other texts 5.0
is a text, and 007 always is one.

**CSV.** The first line names the columns. A quoted empty string is a value, an empty cell is
absent. A row with too few or too many cells is dropped.

**Parquet.** A row's number, from 1, is its line.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.history.reader import is_text, size_of
from harness.importers._pairing import UNPAIRED, pair_alternating
from harness.importers._recording import (
    KINDS,
    MAX_NUMBER,
    PARTS,
    SAME,
    UNTIMED,
    Bools,
    Events,
    HistoryKind,
    Ints,
    Recording,
    Slip,
    Slips,
)
from harness.importers._source import max_bytes, refuse_pipe, too_large, whole
from harness.operation import F, Type

NEEDED = ("process", "type", "f")
NUMBERS = ("offset", "pos", "mop", "time")
NAMED_OR_NUMBERS = ("value", "arg")
COLUMNS = (*NEEDED, "key", *NAMED_OR_NUMBERS, *NUMBERS)
DIGITS = {"pos": r"\d{1,9}", "mop": r"\d{1,9}", "time": r"-?(\d{1,18}|[0-3]\d{18}|4[0-5]\d{17})"}
MANY_DIGITS = r"-?\d{1,18}"
LATEST = int("45" + "9" * 17)  # ns since 1970, in 2115; two such times differ by 63 bits
MIN = {"time": -LATEST, "value": -MAX_NUMBER, "arg": 0}
MAX = {"time": LATEST, "value": MAX_NUMBER, "arg": 10**12}  # a lease of 31 years, in ms

Columns = dict[str, pa.Array]

CELL_BYTES = 8
KEYLESS = (F.POLL, F.READ)  # the event's own row is about all keys
WRITES = {
    "value": (F.SEND, F.PUT, F.CAS, F.APPEND, F.ENQUEUE, F.ADD),
    "arg": (F.CAS,),
}
WITH_VALUE = {  # operations that need a value; reads have one in rows with a `pos`
    "messages": (F.SEND,),
    "queue": (F.ENQUEUE,),
    "set": (F.ADD,),
    "transactions": (F.PUT, F.APPEND),
}
ONLY = 0  # the key of the one object of a table without keys, as in Jepsen's histories

TYPES = {kind.name.lower(): int(kind) for kind in Type}
FS = {f.name.lower(): int(f) for f in F}
ABOUT = (  # what a history is about, and the kinds of operation it may have
    ("messages", {F.SEND, F.POLL, F.READ}),
    ("registers", {F.GET, F.PUT, F.CAS, F.APPEND}),
    ("queue", {F.ENQUEUE, F.DEQUEUE}),
    ("set", {F.ADD, F.LIST}),
    ("counter", {F.ADD, F.COUNT}),
    ("lock", {F.ACQUIRE, F.RELEASE}),
    ("transactions", {F.GET, F.PUT, F.APPEND, F.LIST}),
)
IN_TRANSACTIONS = {F.GET, F.PUT, F.CAS, F.APPEND, F.LIST}


def recording(table: pa.Table, path: Path, line: Ints, slips: Slips) -> Recording:
    """Return the events of a table; `line`: the line of each row in the file."""
    columns, odd = _columns_of(table, path, line, slips)
    kind = _words(columns["type"], TYPES, line, "type", slips)
    f = _words(columns["f"], FS, line, "f", slips)
    process, some = _processes(columns["process"], line, slips)
    good = np.flatnonzero((kind >= 0) & (f >= 0) & some & ~odd)
    if not len(good):
        why = f": {slips.first[0]}" if slips.first else ""
        raise BadRequest(f"{path} holds no operation{why}")
    taken = {name: columns[name].take(pa.array(good)) for name in columns}
    line, kind, f, process = line[good], kind[good], f[good], process[good]
    about = _about(f, taken, path)
    unclear = _type_values(taken, KINDS[about], path, line, slips)
    mop, pos = (taken[name].fill_null(-1).to_numpy().astype(np.int64) for name in ("mop", "pos"))
    listed = pos >= 0
    listed &= (f != F.CAS) | (kind != Type.FAIL)  # a refused cas has a pos of its own
    own = ~(listed | (mop >= 0))
    event_of, again = _events_of(EventRows(process, own, kind, f, mop, pos), line, slips)
    unclear |= again
    at = np.flatnonzero(own)
    if not len(at):
        raise BadRequest(f"{path} holds no operation: {slips.first[-1]}")
    time = _times(taken["time"])
    events = Events(line[at], time[at], kind[at], process[at], f[at], np.zeros(len(at), np.bool_))
    shape = TableRows(about, line, f, kind, own, listed, event_of, pair_alternating(events))
    taken, lacking = _fill(taken, shape, slips)
    unclear |= lacking
    order = _order(events)
    number = np.append(np.argsort(order), -1)  # of each event; -1 stays -1
    event = number[event_of]
    event[np.isin(event, event[unclear])] = UNPAIRED  # one unclear row spoils its event
    parts = _parts(taken, event, f, kind)
    return Recording(about, events.take(order), parts, slips)


def _times(column: pa.Array) -> Ints:
    """Return times; absent ones are UNTIMED. If a time has that value, all times are shifted."""
    alike = pc.any(pc.equal(column, UNTIMED)).as_py()
    moved = pc.subtract(column, pc.min(column)) if alike else column
    times: Ints = moved.fill_null(UNTIMED).to_numpy(zero_copy_only=False)
    return times


def _order(events: Events) -> Ints:
    """Return the order of events by time, if all times are known and no process's go back; else
    the order of the lines: then the times are wrong, not the lines."""
    by_process = np.lexsort((np.arange(len(events)), events.process))
    process, t = events.process[by_process], events.t[by_process]
    back = (process[1:] == process[:-1]) & (t[1:] < t[:-1])
    if back.any() or (events.t == UNTIMED).any():
        return np.arange(len(events))
    return np.argsort(events.t, kind="stable")


def _processes(column: pa.Array, line: Ints, slips: Slips) -> tuple[Ints, Bools]:
    """Return process numbers, as written or in order of appearance, and which rows have one."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    absent = np.flatnonzero(~there)
    if len(absent):
        slips.add(Slip("NO_PROCESS", int(line[absent[0]]), "no process", gap=True), len(absent))
    whole = _whole_numbers(column)
    if whole is not None:
        numbers: Ints = whole.fill_null(0).to_numpy(zero_copy_only=False)
        if not len(numbers) or (numbers.min() >= 0 and numbers.max() < 1 << 31):
            return numbers, there
    encoded = column.dictionary_encode().indices.fill_null(0)
    return encoded.to_numpy(zero_copy_only=False).astype(np.int64), there


def _about(f: Ints, columns: dict[str, pa.Array], path: Path) -> str:
    """Return what the history is about. Raises BadRequest if that is several things."""
    there = {F(int(number)) for number in np.unique(f)}
    if columns["mop"].null_count < len(f):
        if there <= IN_TRANSACTIONS:
            return "transactions"
        words = ", ".join(sorted(f.name.lower() for f in there - IN_TRANSACTIONS))
        raise BadRequest(
            f"{path} has rows with mop, so it is about transactions, which have append, list,"
            f" get, put and cas, but no {words}; leave mop empty, or split the file"
        )
    for name, allowed in ABOUT:
        if there <= allowed:
            return name
    judged = {f for _, allowed in ABOUT for f in allowed}
    words = ", ".join(sorted(f.name.lower() for f in (there - judged or there)))
    if there - judged:
        raise BadRequest(f"{path} has {words}, which no table can have; remove those rows")
    raise BadRequest(
        f"{path} is about several things ({words}), which no checker judges together; split the"
        " file"
    )


def _parts(columns: dict[str, pa.Array], event: Ints, f: Ints, kind: Ints) -> pa.Table:
    """Return all rows as parts of their events, in the events' order."""
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


# -------------------------------------------------------------------------------------------- cells


def _columns_of(table: pa.Table, path: Path, line: Ints, slips: Slips) -> tuple[Columns, Bools]:
    """Return the columns by name, and which rows have a cell that cannot be read. `value` and
    `arg` are left as they are: their meaning depends on what the history is about."""
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        there = ", ".join(table.column_names)
        raise BadRequest(f"{path} has no column {missing[0]!r}; its columns are: {there}")
    odd = np.zeros(table.num_rows, np.bool_)
    columns = {}
    for name in COLUMNS:
        if table.column_names.count(name) > 1:
            raise BadRequest(f"{path} has more than one column {name!r}")
        if name not in table.column_names:
            kind = pa.string() if name in NEEDED else pa.int64()
            columns[name] = pa.nulls(table.num_rows, kind)
            continue
        with _readable(name, path):
            columns[name], strange = _column(table.column(name), name, line, slips)
        odd |= strange
    columns |= _names({"key": columns["key"]}, path)
    return columns, odd


def _column(column: pa.ChunkedArray, name: str, line: Ints, slips: Slips) -> tuple[pa.Array, Bools]:
    plain = _plain(column)
    if name in NUMBERS:
        found, odd = _numbers(plain, name, line, slips)
        return found.cast(pa.int32()) if name in ("pos", "mop") else found, odd
    text = plain.cast(pa.string()) if name in NEEDED else plain
    return text, np.zeros(len(text), np.bool_)


def _type_values(
    columns: Columns, kind: HistoryKind, path: Path, line: Ints, slips: Slips
) -> Bools:
    """Convert `value` and `arg` to what they are in such a history: a quantity, names, or nothing.
    Return the rows whose quantity cannot be read."""
    for name in kind.unused:
        columns[name] = pa.nulls(len(line), pa.int64())
    named = [name for name in NAMED_OR_NUMBERS if name not in (kind.quantity, *kind.unused)]
    columns |= _names({name: columns[name] for name in named}, path)
    odd = np.zeros(len(line), np.bool_)
    if name := kind.quantity:
        with _readable(name, path):
            columns[name], odd = _numbers(columns[name], name, line, slips)
    return odd


@contextmanager
def _readable(name: str, path: Path) -> Iterator[None]:
    """Raise BadRequest if a column has a type that cannot be converted."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        what = "must contain whole numbers" if name in NUMBERS else "must contain numbers or texts"
        raise BadRequest(f"{path}: column {name!r} {what} ({e})") from e


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one chunk, with strings of one type, and NaN as absent."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    plain = column.cast(kind).combine_chunks()
    plain = plain.combine_chunks() if isinstance(plain, pa.ChunkedArray) else plain
    return pc.if_else(pc.is_nan(plain), None, plain) if pa.types.is_floating(kind) else plain


def _numbers(column: pa.Array, name: str, line: Ints, slips: Slips) -> tuple[pa.Array, Bools]:
    """Return a column of whole numbers, and where cells are something else or too large."""
    if pa.types.is_string(column.type):
        digits = DIGITS.get(name, MANY_DIGITS)
        whole = pc.match_substring_regex(column, rf"^{digits}(\.0+)?$")
        whole_text = pc.replace_substring_regex(column, r"\.0+$", "")
        found = pc.if_else(whole, whole_text, None).cast(pa.int64())
    elif name in NAMED_OR_NUMBERS and pa.types.is_floating(column.type):
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**62))
        found = pc.if_else(whole, column, None).cast(pa.int64())
    else:
        found = _as_ns(column).cast(pa.int64())
    if name in MIN:
        within = pc.and_(pc.less_equal(MIN[name], found), pc.less_equal(found, MAX[name]))
        found = pc.if_else(within, found, None)
    odd: Bools = pc.and_(column.is_valid(), found.is_null()).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(odd)
    if len(at):
        what = "whole number from 0" if MIN.get(name) == 0 else "whole number"
        why = f"{name} is {column[int(at[0])].as_py()!r}, not a {what}, or too large"
        slips.add(Slip("ODD_VALUE", int(line[at[0]]), why, gap=True), len(at))
    return found, odd


def _as_ns(column: pa.Array) -> pa.Array:
    """Convert times and durations to nanoseconds."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ns", kind.tz))
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("ns"))
    return column.cast(pa.time64("ns")) if pa.types.is_time(kind) else column


def _names(columns: Columns, path: Path) -> Columns:
    """Convert columns that name the same things: to numbers if all of them are, else to texts."""
    found = {name: _whole_numbers(column) for name, column in columns.items()}
    if all(whole is not None for whole in found.values()):
        return found
    texts = {}
    for name, column in columns.items():
        whole = None if pa.types.is_string(column.type) else found[name]
        with _readable(name, path):
            texts[name] = (column if whole is None else whole).cast(pa.string())
    return texts


def _whole_numbers(column: pa.Array) -> pa.Array | None:
    """Return the whole numbers of a column; None if it holds anything else, such as 007."""
    try:
        if not pa.types.is_string(column.type):
            return column.cast(pa.int64())
        text = pc.replace_substring_regex(column, r"^(-?\d+)\.0$", r"\1")
        found = text.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return found if pc.all(pc.equal(text, found.cast(pa.string()))).as_py() is not False else None


def _words(column: pa.Array, known: dict[str, int], line: Ints, name: str, slips: Slips) -> Ints:
    """Return the numbers of words; an unknown word is -1, and a slip."""
    found = pc.index_in(pc.utf8_lower(column), value_set=pa.array(list(known)))
    at: Ints = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    strange = np.flatnonzero(at < 0)
    if len(strange):
        word = column[int(strange[0])].as_py()
        what = f"{name} is {word!r}, not one of {', '.join(known)}"
        slips.add(Slip("UNKNOWN_WORD", int(line[strange[0]]), what, gap=True), len(strange))
    numbers = np.array([*known.values(), -1])
    return numbers[at]


# -------------------------------------------------------------------------------- rows of one event


class EventRows(NamedTuple):
    """What decides which event a row belongs to. `own`: it is an event's own row; `mop` and `pos`
    are -1 where a row has none."""

    process: Ints
    own: Bools
    kind: Ints
    f: Ints
    mop: Ints
    pos: Ints


def _events_of(rows: EventRows, line: Ints, slips: Slips) -> tuple[Ints, Bools]:
    """Return the number of each row's event: that of the next own row of its process, if it has the
    same type, and the same `f` unless the row has a `mop`. UNPAIRED, and a slip, if there is none.

    Also return rows at a place that their event has already, with a slip: there are two events, and
    the own row of one is missing."""
    event = np.full(len(line), UNPAIRED, np.int64)
    again = np.zeros(len(line), np.bool_)
    waiting: dict[int, list[int]] = {}  # rows of each process since its last own row
    columns = (getattr(rows, name).tolist() for name in EventRows._fields)
    process, own, kind, f, mop, pos = columns
    number = 0
    for row, who in enumerate(process):
        if not own[row]:
            waiting.setdefault(who, []).append(row)
            continue
        places: set[tuple[int, int]] = set()
        for each in waiting.pop(who, ()):
            if kind[each] == kind[row] and (mop[each] >= 0 or f[each] == f[row]):
                event[each], place = number, (mop[each], pos[each])
                again[each] = place in places
                places.add(place)
        event[row] = number
        number += 1
    for found, what in (
        (event == UNPAIRED, "rows with pos or mop, and the event's own row is missing after them"),
        (again, "a row of this place exists already: the event's own row is missing between them"),
    ):
        if found.any():
            slip = Slip("NO_EVENT", int(line[np.argmax(found)]), what, gap=True)
            slips.add(slip, int(found.sum()))
    return event, again


# -------------------------------------------------------------------------------------- empty cells


@dataclass(frozen=True)
class TableRows:
    """The rows of a table.

    own       rows that are an event's own; `listed`: rows with a `pos`
    event_of  the number of each row's event, in the order of their own rows, or UNPAIRED
    invoked   for each event the event that invoked it, itself, or UNPAIRED
    """

    about: str
    line: Ints
    f: Ints
    kind: Ints
    own: Bools
    listed: Bools
    event_of: Ints
    invoked: Ints


def _fill(columns: Columns, rows: TableRows, slips: Slips) -> tuple[Columns, Bools]:
    """Fill in what rows leave out, and return the rows that still lack something."""
    columns = _shared(columns, rows)
    keyless = _need_no_key(rows) if rows.about == "transactions" else np.isin(rows.f, KEYLESS)
    needed = ~(rows.own & keyless)
    if columns["key"].null_count == len(needed):
        columns["key"] = pa.array(np.full(len(needed), ONLY), pa.int64(), mask=~needed)
    lacking = _lacking(columns, "key", needed, rows, slips)
    lacking |= _lacking(columns, "value", needed & ~lacking & _need_value(rows), rows, slips)
    return columns, lacking


def _shared(columns: Columns, rows: TableRows) -> Columns:
    """Copy keys and written values between the two rows of an operation."""
    at = np.flatnonzero(rows.own)
    ends = np.flatnonzero((rows.invoked != UNPAIRED) & (rows.kind[at] != Type.INVOKE))
    completed, invoked = at[ends], at[rows.invoked[ends]]
    both = np.concatenate([completed, invoked])
    others = np.concatenate([invoked, completed])
    found = {"key": _copy_absent(columns["key"], both, others)}
    for name, kinds in WRITES.items():
        writing = np.isin(rows.f[both], kinds)
        found[name] = _copy_absent(columns[name], both[writing], others[writing])
    return columns | found


def _copy_absent(column: pa.Array, rows: Ints, others: Ints) -> pa.Array:
    there = _there(column)
    at = np.flatnonzero(~there[rows] & there[others])
    if not len(at):
        return column
    source = np.arange(len(column))
    source[rows[at]] = others[at]
    return column.take(pa.array(source))


def _need_no_key(rows: TableRows) -> Bools:
    """Return own rows of transactions that need no key: their rows with `mop` have one, or those of
    the invocation, if the transaction only wrote or did not end ok."""
    parts = ~rows.own & (rows.event_of != UNPAIRED)
    writing = parts & np.isin(rows.f, WRITES["value"])
    n = len(rows.invoked)
    count = np.bincount(rows.event_of[parts], minlength=n)
    writes = np.bincount(rows.event_of[writing], minlength=n)
    at = np.flatnonzero(rows.own)
    ends = np.flatnonzero((rows.invoked != UNPAIRED) & (rows.kind[at] != Type.INVOKE))
    invoked = rows.invoked[ends]
    only_wrote = (rows.kind[at[ends]] != Type.OK) | (count[invoked] == writes[invoked])
    described = count > 0
    described[ends] |= (count[invoked] > 0) & only_wrote
    described[invoked] |= (count[ends] > 0) & (writes[ends] == 0)
    keyless = np.zeros(len(rows.f), np.bool_)
    keyless[at] = described
    return keyless


def _need_value(rows: TableRows) -> Bools:
    """Return the rows that must have a value."""
    named: Bools = np.isin(rows.f, WITH_VALUE.get(rows.about, ()))
    if rows.about == "transactions":
        named &= rows.kind == Type.INVOKE
    return named | rows.listed


def _lacking(columns: Columns, name: str, needed: Bools, rows: TableRows, slips: Slips) -> Bools:
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


# -------------------------------------------------------------------------------------------- files


def read_csv(path: Path) -> Recording:
    slips = Slips()
    data = whole(path, slips)
    try:
        data.decode()
    except UnicodeDecodeError as e:
        line = 1 + data.count(b"\n", 0, e.start)
        raise BadRequest(f"{path} cannot be read as CSV: line {line} is not UTF-8") from e
    convert = pv.ConvertOptions(
        column_types=dict.fromkeys(COLUMNS, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    odd: list[pv.InvalidRow] = []

    def skip(row: pv.InvalidRow) -> str:
        odd.append(row)
        return "skip"

    try:
        table = pv.read_csv(
            BytesIO(data),
            pv.ReadOptions(use_threads=False),
            pv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert,
        )
    except pa.ArrowInvalid as e:
        raise BadRequest(f"{path} cannot be read as CSV: {str(e).splitlines()[0]}") from e
    lines = _csv_lines(data, table.num_rows + len(odd))
    for row in odd:
        what = f"{row.actual_columns} cells, where the first line names {row.expected_columns}"
        slips.add(Slip("ODD_LINE", int(lines[row.number - 2]), what, gap=True))
    good = np.delete(lines, [row.number - 2 for row in odd])
    return recording(table, path, good, slips)


def _csv_lines(data: bytes, rows: int) -> Ints:
    """Return the line of each row after the first. Empty lines are no rows; where a text spans
    lines, rows are counted instead."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    ends = np.append(ends, len(data))
    long = np.diff(ends, prepend=-1) - 1
    returns = np.frombuffer(data + b"\n", np.uint8)[ends - 1] == ord("\r")
    full = np.flatnonzero(long > (returns & (long > 0))) + 1
    return full[1:] if len(full) == rows + 1 else np.arange(2, rows + 2)


def read_parquet(path: Path) -> Recording:
    refuse_pipe(path)
    try:
        with pq.ParquetFile(path) as file:
            fields = [field for field in file.schema_arrow if field.name in COLUMNS]
            _refuse_large(path, file.metadata, fields)
            table = file.read([field.name for field in fields])
            table.validate(full=True)  # texts are UTF-8
    except (pa.ArrowException, OSError, MemoryError, ValueError) as e:
        why = (str(e).splitlines() or [type(e).__name__])[0]
        raise BadRequest(f"{path} cannot be read as Parquet: {why}") from e
    return recording(table, path, np.arange(1, table.num_rows + 1), Slips())


def _refuse_large(path: Path, metadata: pq.FileMetaData, fields: Sequence[pa.Field]) -> None:
    """Raise BadRequest if the unpacked columns exceed MAX_UNPACKED_MB, or a column is a list."""
    for field in fields:
        if pa.types.is_nested(field.type):
            raise BadRequest(f"{path}: column {field.name!r} must contain numbers or texts")
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    stated = sum(group.total_byte_size for group in groups)
    size = max(stated, metadata.num_rows * len(fields) * CELL_BYTES)
    texts = [field.name for field in fields if is_text(field.type)]
    if (
        size <= max_bytes() and texts
    ):  # equal texts are stored once, so their sizes are not in the metadata
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(columns=texts):
                size += size_of(batch).text
                if size > max_bytes():
                    break
    if size > max_bytes():
        raise too_large()


PLUGINS = {
    "csv": ImporterPlugin(
        read=read_csv,
        description="Comma-separated values of any origin: one row for each event, in the"
        " history's own columns.",
    ),
    "parquet": ImporterPlugin(
        read=read_parquet,
        description="Parquet tables of any origin: one row for each event, in the history's own"
        " columns.",
    ),
}
