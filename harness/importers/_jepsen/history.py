"""Jepsen's histories: one EDN or JSON map a line, or a vector of maps, read as columns.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

Their fields are found by `fields`. What is under `:value` stays text; a format's `Decode` makes
parts of it, as columns where that is worth it.

Large files are cut into pieces of lines, which several processes read.

An operation of one of the format's kinds is a client's, whatever its process is called: a number, a
word or a map. All others of processes that are no numbers are the nemesis's, and become notes; so
does what a process called nemesis reports as `:info`. A process that is a client elsewhere in the
file is no nemesis: what it does there is of an unknown kind.

A file in which nothing is invoked has completed operations alone. Each of them is a process's own,
and began at the history's beginning, for all that is known.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from multiprocessing import get_context
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from harness.errors import BadRequest
from harness.importers._jepsen import faults as _nemesis
from harness.importers._jepsen.fields import (
    MAX_PROCESSES,
    NAMED,
    NAMELESS,
    NO_PROCESS,
    Fields,
    Heads,
    fields_of,
    heads_from,
    heads_of,
)
from harness.importers._recording.recording import (
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
from harness.importers._text import edn as _edn
from harness.importers._text import json_text as _json_text
from harness.importers._text.line_bytes import Spans
from harness.importers._text.source import PIECE_BYTES, decoded, pieces
from harness.operation import Type

MOST_WAITING = 12  # pieces that are read or wait to be
FEW_PIECES = 3  # not worth several processes
_MARKS = rb"(?:[\s,]|\^:?[^\s\[({]+|#[^\s\[({\"_]+)*"  # tags and metadata
_COLLECTION, _OPERATION = re.compile(_MARKS + rb"[\[(]"), re.compile(_MARKS + rb"\{")


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
    error: Ints
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
    None where each piece was read as the file is. `nameless`: the kind of a line without `:f`.
    `initial`: what every object holds at first, where the format says so."""

    name: str
    kind: str
    fs: tuple[str, ...]
    decode: Decode
    silent: tuple[str, ...] = ()
    elect: Callable[[Sequence[tuple[int, ...]]], Decode | None] | None = None
    nameless: str | None = None
    initial: str | None = None


@dataclass(frozen=True)
class Other:
    """A line of another process than a client's, or of a kind that the format does not know.
    `actor`: the process's name, where it is no number; `f`: the kind, where it has one."""

    line: int
    actor: str | None
    f: str | None
    value: str | None

    @property
    def of_nemesis(self) -> bool:
        return self.actor is not None and _is_nemesis(self.actor)

    def told(self, form: Format) -> str:
        return "it has no :f" if self.f is None else f"{form.name} knows no operation :{self.f}"


@dataclass(frozen=True)
class Piece:
    """What one process made of some lines. `actors`: of events, the names of processes that are no
    numbers. `crowded`: a line has several operations."""

    events: Events
    decoded: Decoded
    slips: Slips
    actors: Sequence[tuple[int, str]]
    others: Sequence[Other]
    crowded: bool = False


def recording(path: Path, form: Format, size: int = PIECE_BYTES) -> Recording:
    """The whole file. BadRequest when there is no operation of this format in it."""
    slips = Slips()
    read = list(_pieces(path, form, slips, size))
    crowded = any(piece.crowded for piece in read)
    if crowded or sum(piece.slips.counts["NOT_EDN"] for piece in read) > 1:
        whole_slips = Slips()
        data = b"".join(data for _, data in pieces(path, whole_slips, size))
        whole = _read_json(form, data) if _json_text.is_json(data) else _read_whole(form, data)
        if crowded or not whole.slips.counts["NOT_EDN"]:  # else some lines are broken
            slips, read = whole_slips, [whole]
    if form.elect and (decode := form.elect([piece.decoded.votes for piece in read])):
        return recording(path, replace(form, decode=decode, elect=None), size)
    for piece in read:
        slips.add_all(piece.slips)
    lengths = [len(piece.events) for piece in read]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).tolist()
    events = joined([piece.events for piece in read])
    actors = {
        event + start: actor
        for piece, start in zip(read, starts, strict=True)
        for event, actor in piece.actors
    }
    notes = _sorted_out([o for piece in read for o in piece.others], actors, form, slips)
    if not len(events):
        raise BadRequest(_nothing(path, form, notes, slips))
    parts = together([piece.decoded.parts for piece in read], starts)
    completed_only = not (events.type == Type.INVOKE).any()
    events, parts, number = _of_processes(events, parts, actors, slips, alone=completed_only)
    if not len(events):
        raise BadRequest(_nothing(path, form, [], slips))
    remarks = [
        replace(remark, event=int(number[remark.event + start]))
        for piece, start in zip(read, starts, strict=True)
        for remark in piece.decoded.remarks
        if number[remark.event + start] >= 0
    ]
    last = len(events) - 1
    remarks += [
        Remark(
            min(int(np.searchsorted(events.line, o.line)), last),
            f"NEMESIS :{o.f} {o.value}",
            alone=True,
        )
        for o in notes
        if o.actor is not None
    ]
    return Recording(
        form.kind,
        events,
        parts,
        slips,
        remarks,
        strict=True,
        completed_only=completed_only,
        initial=form.initial,
        caveats=_nemesis.caveats([(o.line, o.f or "") for o in notes if o.actor], events),
    )


def _is_nemesis(actor: str) -> bool:
    return actor.strip(':"').lower().startswith("nemesis")


def _sorted_out(
    others: Sequence[Other], actors: Mapping[int, str], form: Format, slips: Slips
) -> Sequence[Other]:
    """Lines that are not the format's: those of a client are slips, and all but these are given."""
    clients = set(actors.values())
    strange = [o for o in others if not o.of_nemesis and (o.actor is None or o.actor in clients)]
    if strange:
        what = f"{strange[0].told(form)}; the line is dropped"
        slips.add(Slip("UNKNOWN_KIND", strange[0].line, what, gap=True), len(strange))
    if not actors and strange:  # a file of another format has no client that is known here
        return others
    return [o for o in others if o not in strange]


def _of_processes(
    events: Events, parts: pa.Table, actors: Mapping[int, str], slips: Slips, *, alone: bool
) -> tuple[Events, pa.Table, Ints]:
    """The events with a number for every process, and the new number of each event, -1 for those
    that are dropped: what names no process, unless each event is one's own (`alone`)."""
    number = np.arange(len(events))
    if alone:
        return replace(events, process=number), parts, number
    process = events.process.copy()
    taken = set(np.unique(process).tolist())
    free = chain(range(max(taken) + 1, MAX_PROCESSES), range(MAX_PROCESSES))
    numbers: dict[str, int] = {}
    for event, actor in actors.items():
        if actor not in numbers:
            numbers[actor] = next(number for number in free if number not in taken)
        process[event] = numbers[actor]
    absent = process == NO_PROCESS
    events = replace(events, process=process)
    if not absent.any():
        return events, parts, number
    line = int(events.line[np.argmax(absent)])
    what = ":process is nil, which is no process"
    slips.add(Slip("NO_PROCESS", line, what, gap=True), int(absent.sum()))
    number = np.where(absent, -1, np.cumsum(~absent) - 1)
    parts = parts.filter(pa.array(number[parts.column("event").to_numpy()] >= 0))
    moved = pa.array(number[parts.column("event").to_numpy()], pa.int64())
    return events.take(np.flatnonzero(~absent)), parts.set_column(0, "event", moved), number


def _nothing(path: Path, form: Format, others: Sequence[Other], slips: Slips) -> str:
    """Why there is nothing to import."""
    kinds = ", ".join(f":{f}" for f in form.fs)
    strangers = [o for o in others if not o.of_nemesis]
    if strangers:
        line, name = strangers[0].line, strangers[0].f
        has = "no :f" if name is None else f":f :{name}"
        return (
            f"{path} is no {form.name} history: line {line} has {has}, and {form.name} knows "
            f"{kinds}; name its format with --as"
        )
    if others:
        return (
            f"{path} holds only operations of the nemesis ({len(others):,}, the first on line "
            f"{others[0].line}) and none of a client, such as {kinds}; there is nothing to judge"
        )
    if slips:
        return f"{path} holds no operation of {form.name} that can be read: {slips.first[0]}"
    return f"{path} holds no operation in EDN or JSON; name its format with --as"


def _pieces(path: Path, form: Format, slips: Slips, size: int) -> Iterator[Piece]:
    found = pieces(path, slips, size)
    first = next(found)
    if _json_text.is_json(first[1]):
        yield _read_json(form, b"".join([first[1], *(data for _, data in found)]))
        return
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
    number = 0
    for line in filter(None, (line.strip() for line in data.splitlines())):
        if number == 0 and _COLLECTION.match(line):
            return True
        try:
            text = line.decode("utf-8", errors="replace")
            forms = [form for _, form in _edn.forms_in(text, lenient=True)]
        except _edn.Malformed as e:
            if "never closed" in e.message and (number or _OPERATION.match(line)):
                number += 1
                continue
            return number > 0
        if forms:  # else a comment
            return number > 0 and not (isinstance(forms[0], dict) and "type" in forms[0])
    return True


# -------------------------------------------------------------------------------------- pieces


def read_piece(form: Format, first_line: int, data: bytes) -> Piece:
    """Some whole lines of a file, the first of which has this number."""
    slips = Slips()
    return _piece(form, heads_of(data, first_line, (*form.fs, *form.silent), slips), slips)


def _read_whole(form: Format, data: bytes) -> Piece:
    """A file that is one vector of maps, or whose maps span lines: form by form."""
    slips = Slips()
    return _of_items(form, edn_items(data, slips), slips)


def edn_items(data: bytes, slips: Slips, first_line: int = 1) -> Iterator[tuple[int, Any]]:
    """The forms of a file with the lines on which they end; of collections their elements."""
    text, whole = decoded(data)
    line, seen = first_line, 0
    try:
        for end, item in _edn.forms_in(text, inside=True, lenient=True):
            line, begin, seen = line + text.count("\n", seen, end), seen, end
            if not whole and "\ufffd" in text[begin:end] and "\ufffd" in _edn.write(item):
                slips.add(Slip("NOT_EDN", line, "not UTF-8", gap=True))
                continue
            yield from ((line, each) for each in _operations_in(item))
    except _edn.Malformed as e:
        line = first_line + text.count("\n", 0, e.at)
        column = e.at - text.rfind("\n", 0, e.at)
        slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=column, gap=True))


def _operations_in(item: Any) -> Sequence[Any]:
    """A form of a file; or those in it, where it is a collection of them."""
    if isinstance(item, dict) and "type" not in item and isinstance(item.get("history"), list):
        return item["history"]  # type: ignore[no-any-return]
    return item if isinstance(item, list) else [item]


def _read_json(form: Format, data: bytes) -> Piece:
    """A file of JSON: one array of objects, or one object after the other."""
    slips = Slips()
    return _of_items(form, _json_text.items(data, slips), slips)


def _of_items(form: Format, items: Iterable[tuple[int, Any]], slips: Slips) -> Piece:
    """Operations with their lines."""
    rows: list[Fields] = []
    lines: list[int] = []
    for line, item in items:
        if fields := fields_of(item, line, slips):
            rows.append(fields)
            lines.append(line)
    if len(set(lines)) < len(lines):  # several maps in a line: then it is their number that counts
        lines = list(range(1, len(rows) + 1))
    return _piece(form, heads_from(rows, lines, (*form.fs, *form.silent)), slips)


def _piece(form: Format, heads: Heads, slips: Slips) -> Piece:
    """Sorted into the operations of clients, and all others."""
    if form.nameless is not None:
        known = (*form.fs, *form.silent).index(form.nameless)
        heads = replace(heads, f=np.where(heads.f == NAMELESS, known, heads.f))
    theirs = heads.f < 0
    for i in np.flatnonzero((heads.process == NAMED) & ~theirs).tolist():
        theirs[i] = heads.type[i] == Type.INFO and _is_nemesis(heads.actor[i] or "")
    others = [
        Other(int(heads.line[i]), heads.actor[i], heads.names[i], heads.value[i])
        for i in np.flatnonzero(theirs).tolist()
    ]
    at = np.flatnonzero(~theirs)
    line, kind, f, error = heads.line[at], heads.type[at], heads.f[at], heads.error[at]
    events = Events(line, heads.time[at], kind, heads.process[at], f, error)
    names = (*form.fs, *form.silent)
    lines = Lines(line, kind, f, names, heads.value.take(at), error, heads.extra.take(at))
    named = np.flatnonzero(events.process == NAMED).tolist()
    actors = [(i, heads.actor[int(at[i])] or "") for i in named]
    crowded = bool((np.diff(heads.line) == 0).any())
    return Piece(events, form.decode(lines, slips), slips, actors, others, crowded)
