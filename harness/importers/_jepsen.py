"""Jepsen's histories: one EDN map a line, or a vector of maps, read as columns.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

The maps of a file have their keys in one of a few orders. For each order an expression is made that
takes a whole piece of lines apart at once (pyarrow's, in C++). A line that fits none, because of
its strings, tags or nested keywords, goes through the reader of `_edn`, and means the same. What is
under `:value` stays text; a format's `Decode` makes parts of it, as columns where that is worth it.

Large files are cut into pieces of lines, which several processes read. An operation whose process
is no number is the nemesis's: a note.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import BadRequest
from harness.importers import _edn
from harness.importers._recording import (
    UNTIMED,
    Bools,
    Events,
    Ints,
    Recording,
    Remark,
    Slip,
    Slips,
    joined,
    together,
)
from harness.importers._source import PIECE_BYTES, pieces
from harness.operation import Type

TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
MOST_ORDERS = 12  # of a map's keys, in one piece
FEW_LINES = 64  # not worth an expression
MOST_WAITING = 6  # pieces that are read or wait to be
NEMESIS = -2

_ANY = r'(?:[^\s,"\\;#]|[\s,]+[^\s,:"\\;#])+'  # no string, and no keyword but within brackets
_OTHER = rf'(?:{_ANY}|"[^"\\]*")'
_FIELDS = {
    "type": r":(?P<type>invoke|ok|fail|info)",
    "process": r"(?P<process>\d{1,18})",
    "f": r':(?P<f>[^\s,\[\](){}"\\;#:]+)',
    "time": r"(?P<time>-?\d{1,18})",
    "value": rf"(?P<value>{_ANY})",
    "rebalance-log": rf"(?P<extra>{_ANY})",
}


@dataclass(frozen=True)
class Lines:
    """Events of one piece for a decoder: `f` and `value` are texts, a null value is nil; `extra` is
    the text under `:rebalance-log`, mostly null."""

    line: Ints
    type: Ints
    f: pa.Array
    value: pa.Array
    error: Bools
    extra: pa.Array

    def __len__(self) -> int:
        return len(self.line)


@dataclass(frozen=True)
class Decoded:
    parts: pa.Table
    remarks: Sequence[Remark] = ()


Decode = Callable[[Lines, Slips], Decoded]


@dataclass(frozen=True)
class Format:
    """A workload of Jepsen's: the kinds of operation it knows, those that are no operations on
    data, and how values are read."""

    name: str
    kind: str
    fs: tuple[str, ...]
    decode: Decode
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """What one process made of some lines."""

    events: Events
    decoded: Decoded
    slips: Slips
    nemesis: Sequence[tuple[int, str]]  # line and text
    strangers: Sequence[tuple[int, str]]  # line and name of kinds that the format does not know


def recording(path: Path, form: Format, size: int = PIECE_BYTES) -> Recording:
    """The whole file. BadRequest when there is no operation of this format in it."""
    slips = Slips()
    read = list(_pieces(path, form, slips, size))
    for piece in read:
        slips.add_all(piece.slips)
    events = joined([piece.events for piece in read])
    strangers = [stranger for piece in read for stranger in piece.strangers]
    if not len(events):
        raise BadRequest(_nothing(path, form, strangers, slips))
    lengths = [len(piece.events) for piece in read]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).tolist()
    remarks = [
        replace(remark, event=remark.event + start)
        for piece, start in zip(read, starts, strict=True)
        for remark in piece.decoded.remarks
    ]
    last = len(events) - 1
    remarks += [
        Remark(min(int(np.searchsorted(events.line, line)), last), f"NEMESIS {text}", alone=True)
        for piece in read
        for line, text in piece.nemesis
    ]
    parts = together([piece.decoded.parts for piece in read], starts)
    return Recording(form.kind, events, parts, slips, remarks)


def _nothing(path: Path, form: Format, strangers: Sequence[tuple[int, str]], slips: Slips) -> str:
    if strangers:
        line, name = strangers[0]
        return (
            f"{path} is no {form.name} history: line {line} has :f :{name}, and {form.name} knows "
            f"{', '.join(f':{f}' for f in form.fs)}; name its format with --as"
        )
    why = f": {slips.first[0]}" if slips.first else ""
    return f"{path} holds no operation in EDN{why}; name its format with --as"


def _pieces(path: Path, form: Format, slips: Slips, size: int) -> Iterator[Piece]:
    found = pieces(path, slips, size)
    first = next(found)
    if _not_line_by_line(first[1]):
        text = b"".join([first[1], *(data for _, data in found)])
        yield _read_whole(form, text)
        return
    second = next(found, None)
    if second is None:
        yield read_piece(form, *first)
        return
    with ProcessPoolExecutor(cpu_count() or 1, get_context("spawn")) as pool:
        waiting: deque[Future[Piece]] = deque()
        for piece in chain((first, second), found):
            waiting.append(pool.submit(read_piece, form, *piece))
            if len(waiting) > MOST_WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _not_line_by_line(data: bytes) -> bool:
    """Does the file begin with a collection of maps, or with a map of several lines?"""
    line = next((s for s in data.splitlines() if s.strip()), b"").strip()
    if line[:1] in (b"[", b"("):
        return True
    try:
        _edn.read(line.decode("utf-8", errors="replace"))
    except _edn.Malformed as e:
        return "never closed" in e.message and line[:1] == b"{"
    return False


# -------------------------------------------------------------------------------------- pieces


@dataclass(frozen=True)
class _Heads:
    """Fields of some lines, as columns; `at` says which lines."""

    at: Ints
    type: Ints
    process: Ints
    f: pa.Array
    time: Ints
    value: pa.Array
    error: Bools
    extra: pa.Array


def read_piece(form: Format, first_line: int, data: bytes) -> Piece:
    """Some whole lines of a file, the first of which has this number."""
    slips = Slips()
    lines, numbers = _split(data, first_line)
    heads: list[_Heads] = []
    waiting = np.arange(len(lines))
    for _ in range(MOST_ORDERS):
        if len(waiting) <= FEW_LINES:
            break
        order = _order_of(lines[int(waiting[0])].as_py())
        if order is None:
            skipped, waiting = waiting[:1], waiting[1:]
            heads.append(_slowly(lines, skipped, numbers, slips))
            continue
        found, rest = _at_once(lines, waiting, order)
        heads.append(found)
        waiting = rest
    heads.append(_slowly(lines, waiting, numbers, slips))
    return _piece(form, _in_order(heads), numbers, slips)


def _split(data: bytes, first_line: int) -> tuple[pa.Array, Ints]:
    """The lines that are not blank, without copying them, and their numbers."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([[0], ends + 1]).astype(np.int64)
    blank = np.diff(offsets) <= 1
    offsets[-1] = min(offsets[-1], len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    lines = pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)
    numbers = np.arange(first_line, first_line + len(ends))
    if not blank.any():
        return lines, numbers
    return lines.filter(pa.array(~blank)), numbers[~blank]


def _order_of(line: bytes) -> tuple[str, ...] | None:
    """The keys of a line's map in their order, if it is one that an expression can follow."""
    try:
        form = _edn.read(line.decode())
    except (ValueError, UnicodeDecodeError):
        return None
    if not isinstance(form, dict) or not all(isinstance(k, _edn.Keyword) for k in form):
        return None
    known = "type" in form and isinstance(form.get("process"), int)
    return tuple(form) if known else None


def _expression(order: tuple[str, ...]) -> str:
    fields = [rf":{re.escape(name)}[\s,]+{_FIELDS.get(name, _OTHER)}" for name in order]
    return r"^\s*(?:#[\w.]+)?\{" + r"[\s,]+".join(fields) + r"\s*\}\s*$"


def _at_once(lines: pa.Array, at: Ints, order: tuple[str, ...]) -> tuple[_Heads, Ints]:
    """The lines that an order of keys fits, and the rest."""
    some = lines if len(at) == len(lines) else lines.take(pa.array(at))
    found = pc.extract_regex(some, _expression(order))
    fits = found.is_valid().to_numpy(zero_copy_only=False)
    if not fits.any():
        return _slow_heads([], []), at
    got = found.filter(pa.array(fits))
    n = int(fits.sum())

    def text(name: str) -> pa.Array:
        return got.field(name).cast(pa.large_string())

    def number(name: str) -> Ints:
        values: Ints = text(name).cast(pa.int64()).to_numpy()
        return values

    heads = _Heads(
        at=at[fits],
        type=_typed(text("type")),
        process=number("process"),
        f=text("f") if "f" in order else pa.nulls(n, pa.large_string()),
        time=number("time") if "time" in order else np.full(n, UNTIMED, np.int64),
        value=text("value") if "value" in order else pa.nulls(n, pa.large_string()),
        error=np.full(n, "error" in order),
        extra=text("extra") if "rebalance-log" in order else pa.nulls(n, pa.large_string()),
    )
    return heads, at[~fits]


def _typed(names: pa.Array) -> Ints:
    known = pa.array(list(TYPES), pa.large_string())
    numbers = pc.index_in(names, value_set=known).to_numpy(zero_copy_only=False)
    typed: Ints = np.array([int(t) for t in TYPES.values()])[numbers]
    return typed


def _slowly(lines: pa.Array, at: Ints, numbers: Ints, slips: Slips) -> _Heads:
    """Lines through the reader, one by one."""
    forms: list[tuple[int, int, Any]] = []
    for index in at.tolist():
        line, text = int(numbers[index]), lines[index].as_py()
        if not text.strip() or text.lstrip().startswith(b";"):
            continue
        try:
            forms.append((index, line, _edn.read(text.decode())))
        except _edn.Malformed as e:
            slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=e.at + 1, gap=True))
        except UnicodeDecodeError as e:
            slips.add(Slip("NOT_EDN", line, "not UTF-8", column=e.start + 1, gap=True))
    rows = [(i, fields) for i, line, form in forms if (fields := _fields(form, line, slips))]
    return _slow_heads([i for i, _ in rows], [fields for _, fields in rows])


# type, process, f, time, value, error, extra
Fields = tuple[int, int, str | None, int, str, bool, str | None]


def _fields(form: Any, line: int, slips: Slips) -> Fields | None:
    """One map's fields; None, and a slip, when it is no operation."""
    if not isinstance(form, dict):
        slips.add(Slip("NOT_A_MAP", line, "not a map, as every operation is", gap=True))
        return None
    kind = TYPES.get(str(form.get("type")))
    process, time, f = form.get("process"), form.get("time"), form.get("f")
    if kind is None:
        what = f":type is {_edn.write(form.get('type'))}, not :invoke, :ok, :fail or :info"
        slips.add(Slip("NO_TYPE", line, what, gap=True))
        return None
    if not isinstance(process, int | str) or isinstance(process, bool):
        slips.add(Slip("NO_PROCESS", line, f":process is {_edn.write(process)}", gap=True))
        return None
    who = process if isinstance(process, int) and 0 <= process < 1 << 31 else NEMESIS
    at = time if isinstance(time, int) and abs(time) < 1 << 62 else UNTIMED
    name = str(f) if isinstance(f, str) else None if f is None else _edn.write(f)
    value, log = _edn.write(form.get("value")), form.get("rebalance-log")
    extra = None if log is None else _edn.write(log)
    return kind, who, name, at, value, form.get("error") is not None, extra


def _slow_heads(at: list[int], rows: Sequence[Fields]) -> _Heads:
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * 7
    kind, process, f, time, value, error, extra = columns
    return _Heads(
        np.array(at, np.int64),
        np.array(kind, np.int64),
        np.array(process, np.int64),
        pa.array(f, pa.large_string()),
        np.array(time, np.int64),
        pa.array(value, pa.large_string()),
        np.array(error, np.bool_),
        pa.array(extra, pa.large_string()),
    )


def _in_order(heads: Sequence[_Heads]) -> _Heads:
    at = np.concatenate([h.at for h in heads])
    order = np.argsort(at, kind="stable")
    columns: dict[str, Any] = {"at": at[order]}
    for name in ("type", "process", "time", "error"):
        columns[name] = np.concatenate([getattr(h, name) for h in heads])[order]
    for name in ("f", "value", "extra"):
        whole = pa.chunked_array([getattr(h, name) for h in heads], pa.large_string())
        columns[name] = whole.combine_chunks().take(pa.array(order))
    return _Heads(**columns)


def _piece(form: Format, heads: _Heads, numbers: Ints, slips: Slips) -> Piece:
    """Sorted into operations, the nemesis's notes, and what the format does not know."""
    line = numbers[heads.at]
    known = pa.array([*form.fs, *form.silent], pa.large_string())
    number = pc.index_in(heads.f, value_set=known).fill_null(-1).to_numpy(zero_copy_only=False)
    nemesis = heads.process == NEMESIS
    strange = np.flatnonzero((number < 0) & ~nemesis)
    strangers = [(int(line[i]), str(heads.f[i].as_py())) for i in strange[:20].tolist()]
    if len(strange):
        first, name = strangers[0]
        what = f"{form.name} knows no operation :{name}; the line is dropped"
        slips.add(Slip("UNKNOWN_KIND", first, what, gap=True), len(strange))
    at = np.flatnonzero((number >= 0) & ~nemesis)
    events = Events(
        line[at], heads.time[at], heads.type[at], heads.process[at], number[at], heads.error[at]
    )
    taken = pa.array(at)
    lines = Lines(
        line[at],
        heads.type[at],
        heads.f.take(taken),
        heads.value.take(taken),
        heads.error[at],
        heads.extra.take(taken),
    )
    told = [
        (int(line[i]), f":{heads.f[i].as_py()} {heads.value[i].as_py()}")
        for i in np.flatnonzero(nemesis).tolist()
    ]
    return Piece(events, form.decode(lines, slips), slips, told, strangers)


def _read_whole(form: Format, data: bytes) -> Piece:
    """A file that is one vector of maps, or whose maps span lines: form by form."""
    text = data.decode("utf-8", errors="replace")
    slips = Slips()
    inside = text.lstrip()[:1] in ("[", "(")
    rows: list[Fields] = []
    lines: list[int] = []
    line, seen = 1, 0
    try:
        for end, item in _edn.forms_in(text, inside=inside):
            line, seen = line + text.count("\n", seen, end), end
            if fields := _fields(item, line, slips):
                rows.append(fields)
                lines.append(line)
    except _edn.Malformed as e:
        line = 1 + text.count("\n", 0, e.at)
        column = e.at - text.rfind("\n", 0, e.at)
        slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=column, gap=True))
    heads = _slow_heads(list(range(len(rows))), rows)
    numbers = np.array(lines, np.int64)
    if (np.diff(numbers) == 0).any():  # several maps in a line: then it is their number that counts
        numbers = np.arange(1, len(rows) + 1)
    return _piece(form, heads, numbers, slips)
