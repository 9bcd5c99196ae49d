"""Cells of a table: whole numbers, names and words, whatever tool wrote them.

Tools that know no absent whole number write a column that has holes as 5.0, 3.0 and nothing, and
mean 5 and 3. So it is read wherever a column holds nothing but whole numbers. Among other texts 5.0
is a text like them, and 007 always is one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import BadRequest
from harness.importers._recording.kinds import Kind
from harness.importers._recording.recording import LARGEST, Bools, Ints, Slip, Slips

NEEDED = ("process", "type", "f")
NUMBERS = ("offset", "pos", "mop", "time")
SAID = ("value", "arg")
KNOWN = (*NEEDED, "key", *SAID, *NUMBERS)
DIGITS = {"pos": r"\d{1,9}", "mop": r"\d{1,9}", "time": r"-?(\d{1,18}|[0-3]\d{18}|4[0-5]\d{17})"}
MANY_DIGITS = r"-?\d{1,18}"
LATEST = int("45" + "9" * 17)  # ns since 1970, in the year 2115; two such differ by 63 bits
LEAST = {"time": -LATEST, "value": -LARGEST, "arg": 0}
MOST = {"time": LATEST, "value": LARGEST, "arg": 10**12}  # a lease of 31 years, in ms

Columns = dict[str, pa.Array]


def columns_of(table: pa.Table, path: Path, line: Ints, slips: Slips) -> tuple[Columns, Bools]:
    """The columns by name, and the rows of which a cell can not be read. `value` and `arg` are as
    they were found: what they mean shows when it is known what the history is about."""
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        there = ", ".join(table.column_names)
        raise BadRequest(f"{path} has no column {missing[0]!r}; its columns are: {there}")
    odd = np.zeros(table.num_rows, np.bool_)
    columns = {}
    for name in KNOWN:
        if table.column_names.count(name) > 1:
            raise BadRequest(f"{path} has more than one column {name!r}")
        if name not in table.column_names:
            kind = pa.string() if name in NEEDED else pa.int64()
            columns[name] = pa.nulls(table.num_rows, kind)
            continue
        with _readable(name, path):
            columns[name], strange = _column(table.column(name), name, line, slips)
        odd |= strange
    columns |= names({"key": columns["key"]}, path)
    return columns, odd


def _column(column: pa.ChunkedArray, name: str, line: Ints, slips: Slips) -> tuple[pa.Array, Bools]:
    plain = _plain(column)
    if name in NUMBERS:
        found, odd = numbers(plain, name, line, slips)
        return found.cast(pa.int32()) if name in ("pos", "mop") else found, odd
    text = plain.cast(pa.string()) if name in NEEDED else plain
    return text, np.zeros(len(text), np.bool_)


def said(columns: Columns, kind: Kind, path: Path, line: Ints, slips: Slips) -> Bools:
    """Make of `value` and `arg` what they are in such a history: a quantity, names, or nothing.
    Where a quantity is none: those rows say nothing."""
    for name in kind.unsaid:
        columns[name] = pa.nulls(len(line), pa.int64())
    named = [name for name in SAID if name not in (kind.quantity, *kind.unsaid)]
    columns |= names({name: columns[name] for name in named}, path)
    odd = np.zeros(len(line), np.bool_)
    if name := kind.quantity:
        with _readable(name, path):
            columns[name], odd = numbers(columns[name], name, line, slips)
    return odd


@contextmanager
def _readable(name: str, path: Path) -> Iterator[None]:
    """BadRequest where a column is of a type that nothing can be made of."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        what = "must hold whole numbers" if name in NUMBERS else "must hold numbers or texts"
        raise BadRequest(f"{path}: column {name!r} {what} ({e})") from e


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """The same in one piece, its texts of one type, and absent what is said to be no number."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    plain = column.cast(kind).combine_chunks()
    plain = plain.combine_chunks() if isinstance(plain, pa.ChunkedArray) else plain
    return pc.if_else(pc.is_nan(plain), None, plain) if pa.types.is_floating(kind) else plain


def numbers(column: pa.Array, name: str, line: Ints, slips: Slips) -> tuple[pa.Array, Bools]:
    """A column of whole numbers without cells that are none, or too large; and where those are."""
    if pa.types.is_string(column.type):
        digits = DIGITS.get(name, MANY_DIGITS)
        whole = pc.match_substring_regex(column, rf"^{digits}(\.0+)?$")
        whole_text = pc.replace_substring_regex(column, r"\.0+$", "")
        found = pc.if_else(whole, whole_text, None).cast(pa.int64())
    elif name in SAID and pa.types.is_floating(column.type):
        whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 2.0**62))
        found = pc.if_else(whole, column, None).cast(pa.int64())
    else:
        found = _as_ns(column).cast(pa.int64())
    if name in LEAST:
        within = pc.and_(pc.less_equal(LEAST[name], found), pc.less_equal(found, MOST[name]))
        found = pc.if_else(within, found, None)
    odd: Bools = pc.and_(column.is_valid(), found.is_null()).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(odd)
    if len(at):
        what = "whole number from 0" if LEAST.get(name) == 0 else "whole number"
        said = f"{name} is {column[int(at[0])].as_py()!r}, no {what}, or too large a one"
        slips.add(Slip("ODD_VALUE", int(line[at[0]]), said, gap=True), len(at))
    return found, odd


def _as_ns(column: pa.Array) -> pa.Array:
    """Moments and spans of time in nanoseconds; all else as it is."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ns", kind.tz))
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("ns"))
    return column.cast(pa.time64("ns")) if pa.types.is_time(kind) else column


def names(columns: Columns, path: Path) -> Columns:
    """Columns that speak of the same things: as numbers if all of them are, else as texts."""
    found = {name: whole_numbers(column) for name, column in columns.items()}
    if all(whole is not None for whole in found.values()):
        return found
    texts = {}
    for name, column in columns.items():
        whole = None if pa.types.is_string(column.type) else found[name]
        with _readable(name, path):
            texts[name] = (column if whole is None else whole).cast(pa.string())
    return texts


def whole_numbers(column: pa.Array) -> pa.Array | None:
    """The whole numbers that a column holds; None when it holds anything else, such as 007."""
    try:
        if not pa.types.is_string(column.type):
            return column.cast(pa.int64())
        text = pc.replace_substring_regex(column, r"^(-?\d+)\.0$", r"\1")
        found = text.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return found if pc.all(pc.equal(text, found.cast(pa.string()))).as_py() is not False else None


def words(column: pa.Array, known: dict[str, int], line: Ints, name: str, slips: Slips) -> Ints:
    """The numbers of words; -1, and a slip, for one that is not known."""
    found = pc.index_in(pc.utf8_lower(column), value_set=pa.array(list(known)))
    at: Ints = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    strange = np.flatnonzero(at < 0)
    if len(strange):
        word = column[int(strange[0])].as_py()
        what = f"{name} is {word!r}, not one of {', '.join(known)}"
        slips.add(Slip("UNKNOWN_WORD", int(line[strange[0]]), what, gap=True), len(strange))
    numbers = np.array([*known.values(), -1])
    return numbers[at]
