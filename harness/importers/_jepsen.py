"""Jepsen's histories: one EDN map a line, or a vector of maps, read as columns.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

Their fields are found by `_heads`. What is under `:value` stays text; a format's `Decode` makes
parts of it, as columns where that is worth it.

Large files are cut into pieces of lines, which several processes read. An operation whose process
is no number is the nemesis's: a note.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.errors import BadRequest
from harness.importers import _edn
from harness.importers._bytes import Spans
from harness.importers._heads import (
    NAMELESS,
    NEMESIS,
    Fields,
    Heads,
    fields_of,
    heads_from,
    heads_of,
)
from harness.importers._recording import (
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

MOST_WAITING = 12  # pieces that are read or wait to be
FEW_PIECES = 3  # not worth several processes


@dataclass(frozen=True)
class Lines:
    """Events of one piece for a decoder.

    f      the number of its name in `names`
    value  the text under `:value`, if there is any
    extra  the text under `:rebalance-log`
    """

    line: Ints
    type: Ints
    f: Ints
    names: tuple[str, ...]
    value: Spans
    error: Bools
    extra: Spans

    def __len__(self) -> int:
        return len(self.line)

    def named(self, *names: str) -> Bools:
        """Where one of these was asked."""
        return np.isin(self.f, [self.names.index(name) for name in names])


@dataclass(frozen=True)
class Decoded:
    """`votes`: what this piece says of a question that only the whole file can answer."""

    parts: pa.Table
    remarks: Sequence[Remark] = ()
    votes: tuple[int, ...] = ()


Decode = Callable[[Lines, Slips], Decoded]


@dataclass(frozen=True)
class Format:
    """A workload of Jepsen's: the kinds of operation it knows, those that are no operations on
    data, and how values are read. `elect`: from the votes of all pieces the decoder of the file,
    None where each piece was read as the file is. `nameless`: the kind of a line without `:f`."""

    name: str
    kind: str
    fs: tuple[str, ...]
    decode: Decode
    silent: tuple[str, ...] = ()
    elect: Callable[[Sequence[tuple[int, ...]]], Decode | None] | None = None
    nameless: str | None = None


@dataclass(frozen=True)
class Piece:
    """What one process made of some lines."""

    events: Events
    decoded: Decoded
    slips: Slips
    nemesis: Sequence[tuple[int, str]]  # line and text
    strangers: Sequence[tuple[int, str | None]]  # line and name of kinds that nobody knows here


def recording(path: Path, form: Format, size: int = PIECE_BYTES) -> Recording:
    """The whole file. BadRequest when there is no operation of this format in it."""
    slips = Slips()
    read = list(_pieces(path, form, slips, size))
    if form.elect and (decode := form.elect([piece.decoded.votes for piece in read])):
        return recording(path, replace(form, decode=decode, elect=None), size)
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
    return Recording(form.kind, events, parts, slips, remarks, strict=True)


def _nothing(
    path: Path, form: Format, strangers: Sequence[tuple[int, str | None]], slips: Slips
) -> str:
    if strangers:
        line, name = strangers[0]
        has = "no :f" if name is None else f":f :{name}"
        return (
            f"{path} is no {form.name} history: line {line} has {has}, and {form.name} knows "
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
    few = [first, *islice(found, FEW_PIECES)]
    if len(few) <= FEW_PIECES:
        yield from (read_piece(form, *piece) for piece in few)
        return
    with ProcessPoolExecutor(cpu_count() or 1, get_context("spawn")) as pool:
        waiting: deque[Future[Piece]] = deque()
        for piece in chain(few, found):
            waiting.append(pool.submit(read_piece, form, *piece))
            if len(waiting) > MOST_WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _not_line_by_line(data: bytes) -> bool:
    """Does the file begin with a collection of maps, or with a map of several lines? A line that
    broke off is neither: whole ones follow it."""
    lines = (line.strip() for line in data.splitlines())
    for number, line in enumerate(filter(None, lines)):
        if number == 0 and line[:1] in (b"[", b"("):
            return True
        try:
            form = _edn.read(line.decode("utf-8", errors="replace"))
        except _edn.Malformed as e:
            if line[:1] == b"{" and "never closed" in e.message:
                continue
            return number > 0
        return number > 0 and not (isinstance(form, dict) and "type" in form)
    return True


# -------------------------------------------------------------------------------------- pieces


def read_piece(form: Format, first_line: int, data: bytes) -> Piece:
    """Some whole lines of a file, the first of which has this number."""
    slips = Slips()
    return _piece(form, heads_of(data, first_line, (*form.fs, *form.silent), slips), slips)


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
            if fields := fields_of(item, line, slips):
                rows.append(fields)
                lines.append(line)
    except _edn.Malformed as e:
        line = 1 + text.count("\n", 0, e.at)
        column = e.at - text.rfind("\n", 0, e.at)
        slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=column, gap=True))
    if len(set(lines)) < len(lines):  # several maps in a line: then it is their number that counts
        lines = list(range(1, len(rows) + 1))
    return _piece(form, heads_from(rows, lines, (*form.fs, *form.silent)), slips)


def _piece(form: Format, heads: Heads, slips: Slips) -> Piece:
    """Sorted into operations, the nemesis's notes, and what the format does not know."""
    nemesis = heads.process == NEMESIS
    if form.nameless is not None:
        known = (*form.fs, *form.silent).index(form.nameless)
        heads = replace(heads, f=np.where(heads.f == NAMELESS, known, heads.f))
    strange = np.flatnonzero((heads.f < 0) & ~nemesis)
    strangers = [(int(heads.line[i]), heads.names[i]) for i in strange[:20].tolist()]
    if len(strange):
        first, name = strangers[0]
        why = "it has no :f" if name is None else f"{form.name} knows no operation :{name}"
        what = f"{why}; the line is dropped"
        slips.add(Slip("UNKNOWN_KIND", first, what, gap=True), len(strange))
    at = np.flatnonzero((heads.f >= 0) & ~nemesis)
    line, kind, f, error = heads.line[at], heads.type[at], heads.f[at], heads.error[at]
    events = Events(line, heads.time[at], kind, heads.process[at], f, error)
    names = (*form.fs, *form.silent)
    lines = Lines(line, kind, f, names, heads.value.take(at), error, heads.extra.take(at))
    told = [
        (int(heads.line[i]), f":{heads.names[i]} {heads.value[i]}")
        for i in np.flatnonzero(nemesis).tolist()
    ]
    return Piece(events, form.decode(lines, slips), slips, told, strangers)
