"""Jepsen's histories: one EDN or JSON map per line, or a vector of maps, read as columns.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

`_lines` finds the fields. The text under `:value` is decoded by the format: row by row, or as
columns where histories are large. Files of many pieces are read by several threads or processes.

A file with several objects (`jepsen.independent`) has a pair of key and value wherever a file with
one object has a value. Which of the two a file is, is decided for the file as a whole: by its
invoked reads, else by its writes, else by its pairs (`KeyedFs`), so that one odd line decides
nothing. A completion without a pair failed before it had an answer. A file with a failed read and
no error names no errors at all, so a failure without an error says nothing about its reason.

An operation of one of the format's kinds belongs to a client, whatever its process is called: a
number, a word or a map. Other operations of processes that are not numbers belong to the nemesis,
and become notes; so does what a process called nemesis reports as `:info`. A process that is a
client elsewhere in the file is no nemesis: its other operations are of an unknown kind.

A file without invocations has only completed operations. Each is taken as the operation of its own
process, which began at the beginning of the history.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import chain, islice
from os import cpu_count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers import _edn
from harness.importers._lines import (
    MAX_PROCESSES,
    NAMED,
    NAMELESS,
    NO_PROCESS,
    columns_of,
    columns_of_forms,
    is_json,
    load_scanner,
    starts_several_lines,
    text_at,
)
from harness.importers._recording import (
    EMPTY,
    FAILED,
    NO_ERROR,
    Bools,
    Events,
    HistoryNote,
    Ints,
    PartsBuilder,
    Recording,
    Slip,
    Slips,
    concatenated,
)
from harness.importers._source import (
    PIECE_BYTES,
    AbandonedThreads,
    max_bytes,
    pieces,
    quiet_processes,
    too_large,
)
from harness.operation import F, Type

MAX_WAITING = 12  # pieces in work or waiting for it
FEW_PIECES = 3  # not worth several processes
MANY_PIECES = 16  # worth the start of compiled functions, and the first time their compilation
ONLY = 0  # the key of the one object
ODD_VALUE = "ODD_VALUE"  # the rule of slips of decoders
_SPACES = re.compile(rb"\s*")


class UnexpectedValue(ValueError):
    """A value does not have the shape that its kind of operation demands."""


class JepsenEvent(NamedTuple):
    """One event for a decoder; `value` as `_edn` reads it, or None. `key`: of its object."""

    number: int
    type: int
    f: str
    key: Any
    value: Any
    error: int


# Adds the parts of one event, with this operation; raises `UnexpectedValue`.
Decoder = Callable[[PartsBuilder, JepsenEvent, F], None]


@dataclass(frozen=True)
class OperationLines:
    """Events of one piece for a decoder.

    f       the index of the kind in `names`
    value   the text under `:value`, if any (`_lines.text_at`)
    beside  the text under the format's other key, if any
    """

    line: Ints
    type: Ints
    f: Ints
    names: tuple[str, ...]
    value: pa.BinaryArray
    error: Ints
    beside: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.line)

    def of_kinds(self, *names: str) -> Bools:
        return np.isin(self.f, [self.names.index(name) for name in names])

    def take(self, at: Ints) -> "OperationLines":
        texts = (column.take(pa.array(at)) for column in (self.value, self.beside))
        value, beside = texts
        line, kind, f, error = (each[at] for each in (self.line, self.type, self.f, self.error))
        return OperationLines(line, kind, f, self.names, value, error, beside)


@dataclass(frozen=True)
class DecodedPiece:
    """`votes`: this piece's counts for a decision about the whole file (`KeyedFs`)."""

    parts: pa.Table
    notes: Sequence[HistoryNote] = ()
    votes: tuple[int, ...] = ()


@dataclass(frozen=True)
class KeyedFs:
    """The kinds of operation that show whether a file has one object or many, by key."""

    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()


class FileLayout(NamedTuple):
    """`by_key`: values are pairs of key and value. `errors`: failures name their errors."""

    by_key: bool
    errors: bool


@dataclass(frozen=True)
class Format:
    """A workload of Jepsen's.

    description  the sentence for lists
    kind         what its histories are about, a key of `_recording.KINDS`
    operations   for each `:f` the operation of its rows, and the function that adds them
    silent       kinds that are no operations on data
    columns      decodes a piece as a whole, instead of event by event
    heads        keywords that begin the vectors of its values
    keyed        set where files may have many objects; `layout`: once decided for the file
    beside       another field of a line that decoding needs; without `columns`, the object's key
    nameless     the kind of a line without `:f`
    initial      what every object holds at first, where the format defines it
    """

    name: str
    description: str
    kind: str
    operations: Mapping[str, tuple[F, Decoder]]
    columns: Callable[[OperationLines, Slips], DecodedPiece] | None = None
    silent: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    keyed: KeyedFs | None = None
    layout: FileLayout | None = None
    beside: str = ""
    nameless: str | None = None
    initial: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.operations, *self.silent)


@dataclass(frozen=True)
class OtherLine:
    """A line that is no operation of the format. `actor`: its process, if that is not a number."""

    line: int
    actor: str | None
    f: str | None
    value: str | None

    @property
    def of_nemesis(self) -> bool:
        return self.actor is not None and _is_nemesis(self.actor)


@dataclass(frozen=True)
class Piece:
    """Some lines, decoded. `actors`: for events of processes that are not numbers, their names.
    `crowded`: a line has several operations."""

    events: Events
    decoded: DecodedPiece
    slips: Slips
    actors: Sequence[tuple[int, str]]
    others: Sequence[OtherLine]
    crowded: bool = False


def importer(form: Format) -> ImporterPlugin:
    return ImporterPlugin(read=lambda path: recording(path, form), description=form.description)


def recording(path: Path, form: Format, size: int = PIECE_BYTES) -> Recording:
    """Read a whole file. Raises BadRequest if it has no operation of this format."""
    slips = Slips()
    read = list(_pieces(path, form, slips, size))
    crowded = any(piece.crowded for piece in read)
    if crowded or sum(piece.slips.counts["NOT_EDN"] for piece in read) > 1:
        again = Slips()
        whole = _read_whole(form, b"".join(data for _, data in pieces(path, again, size)))
        if crowded or not whole.slips.counts["NOT_EDN"]:  # else some lines are broken
            slips, read = again, [whole]
    if form.keyed and form.layout is None:
        votes = [piece.decoded.votes for piece in read]
        layout = _layout(tuple(map(sum, zip(*votes, strict=True))))
        if any(_layout(some) != layout for some in votes):
            return recording(path, replace(form, layout=layout), size)
    return recorded(path, form, read, slips)


def recorded(path: Path, form: Format, read: Sequence[Piece], slips: Slips) -> Recording:
    """Join the pieces of a file. Raises BadRequest if they have no operation of this format."""
    _add_slips([piece.slips for piece in read], slips)
    lengths = [len(piece.events) for piece in read]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).tolist()
    events = Events.concatenated([piece.events for piece in read])
    actors = {
        event + start: actor
        for piece, start in zip(read, starts, strict=True)
        for event, actor in piece.actors
    }
    others = _without_clients([o for piece in read for o in piece.others], actors, form, slips)
    if not len(events):
        raise BadRequest(_nothing(path, form, others, slips))
    parts = concatenated([piece.decoded.parts for piece in read], starts)
    completed_only = not (events.type == Type.INVOKE).any()
    events, parts, number = _number_processes(events, parts, actors, slips, alone=completed_only)
    if not len(events):
        raise BadRequest(_nothing(path, form, [], slips))
    notes = [
        replace(note, event=int(number[note.event + start]))
        for piece, start in zip(read, starts, strict=True)
        for note in piece.decoded.notes
        if number[note.event + start] >= 0
    ]
    nemesis = [o for o in others if o.actor is not None]
    at = np.minimum(np.searchsorted(events.line, [o.line for o in nemesis]), len(events) - 1)
    notes += [
        HistoryNote(event, f"NEMESIS :{o.f} {o.value}", alone=True)
        for event, o in zip(at.tolist(), nemesis, strict=True)
    ]
    return Recording(
        form.kind,
        events,
        parts,
        slips,
        notes,
        strict=True,
        completed_only=completed_only,
        initial=form.initial,
        caveats=_caveats([(o.line, o.f or "") for o in nemesis], events),
    )


def _add_slips(found: Sequence[Slips], slips: Slips) -> None:
    """Add the slips of all pieces, as of one piece: first those of lines, then those of values."""
    every = Slips()
    for some in found:
        every.add_all(some)
    every.first.sort(key=lambda slip: slip.rule == ODD_VALUE)
    every.counts = Counter(dict(sorted(every.counts.items(), key=lambda c: c[0] == ODD_VALUE)))
    slips.add_all(every)


def _is_nemesis(actor: str) -> bool:
    return actor.strip(':"').lower().startswith("nemesis")


def _without_clients(
    others: Sequence[OtherLine], actors: Mapping[int, str], form: Format, slips: Slips
) -> Sequence[OtherLine]:
    """Return the lines of the nemesis; a client's operation of an unknown kind is a slip."""
    clients = set(actors.values())
    strange = [o for o in others if not o.of_nemesis and (o.actor is None or o.actor in clients)]
    if strange:
        f = strange[0].f
        why = "it has no :f" if f is None else f"{form.name} has no operation :{f}"
        slips.add(
            Slip("UNKNOWN_KIND", strange[0].line, f"{why}; the line is dropped", gap=True),
            len(strange),
        )
    if not actors and strange:  # in a file of another format no client is known
        return others
    return [o for o in others if o not in strange]


def _number_processes(
    events: Events, parts: pa.Table, actors: Mapping[int, str], slips: Slips, *, alone: bool
) -> tuple[Events, pa.Table, Ints]:
    """Number every process, and drop events without one; -1 is the new number of a dropped event.
    `alone`: each event gets a process of its own."""
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
    slips.add(Slip("NO_PROCESS", line, ":process is nil", gap=True), int(absent.sum()))
    number = np.where(absent, -1, np.cumsum(~absent) - 1)
    parts = parts.filter(pa.array(number[parts.column("event").to_numpy()] >= 0))
    moved = pa.array(number[parts.column("event").to_numpy()], pa.int64())
    return events.take(np.flatnonzero(~absent)), parts.set_column(0, "event", moved), number


def _nothing(path: Path, form: Format, others: Sequence[OtherLine], slips: Slips) -> str:
    """Say why there is nothing to import."""
    kinds = ", ".join(f":{f}" for f in form.operations)
    strangers = [o for o in others if not o.of_nemesis]
    if strangers:
        line, name = strangers[0].line, strangers[0].f
        has = "no :f" if name is None else f":f :{name}"
        return (
            f"{path} is not a {form.name} history: line {line} has {has}, and {form.name} has "
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


# -------------------------------------------------------------------------------------- pieces


def _pieces(path: Path, form: Format, slips: Slips, size: int) -> Iterator[Piece]:
    found = pieces(path, slips, size)
    first = (1, b"".join(_beginning(found)))
    if is_json(first[1]) or starts_several_lines(first[1]):
        yield _read_whole(form, b"".join([first[1], *(data for _, data in found)]))
        return
    few = [first, *islice(found, MANY_PIECES)]
    if len(few) <= FEW_PIECES:
        yield from (read_piece(form, *piece) for piece in few)
        return
    pool = _pool(form, compiled=len(few) > MANY_PIECES)
    waiting: deque[Future[Piece]] = deque()
    try:
        for piece in chain(few, found):
            waiting.append(pool.submit(read_piece, form, *piece))
            if len(waiting) > MAX_WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # an import that is stopped reads no more pieces


def _beginning(found: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield pieces up to the first one that holds a form."""
    left = max_bytes()
    for _, data in found:
        yield data
        left -= len(data)
        if not _is_blank(data):
            return
        if left < 0:
            raise too_large()


def _is_blank(data: bytes) -> bool:
    """Whether lines hold nothing but space and comments."""
    at = 0
    while at >= 0 and (at := _end(_SPACES.match(data, at))) < len(data):
        if not data.startswith((b";", b"#!"), at):
            return False
        at = data.find(b"\n", at)
    return True


def _end(match: re.Match[bytes] | None) -> int:
    return match.end() if match else 0


def _pool(form: Format, *, compiled: bool) -> Executor:
    """Return threads for a format that becomes columns: what reads those releases the interpreter's
    lock. `compiled`: they read by compiled functions."""
    count, begin = cpu_count() or 1, load_scanner if compiled else None
    if form.columns:
        return AbandonedThreads(count, initializer=begin)
    return quiet_processes(count, begin)


def read_piece(form: Format, first_line: int, data: bytes) -> Piece:
    """Read whole lines of a file, of which the first has this number."""
    slips = Slips()
    return piece_of(form, columns_of(data, first_line, form.names, slips, form.beside), slips)


def _read_whole(form: Format, data: bytes) -> Piece:
    """Read a file form by form: a vector of maps, maps that span lines, or JSON."""
    slips = Slips()
    return piece_of(form, columns_of_forms(data, form.names, slips, form.beside), slips)


def piece_of(form: Format, columns: pa.RecordBatch, slips: Slips) -> Piece:
    """Separate the operations of clients from all other lines, and decode them. `columns`: FIELDS
    of `_lines`."""
    f, process, kind = (columns[name].to_numpy() for name in ("f", "process", "type"))
    if form.nameless is not None:
        f = np.where(f == NAMELESS, form.names.index(form.nameless), f)
    other = f < 0
    for i in np.flatnonzero((process == NAMED) & ~other).tolist():
        other[i] = kind[i] == Type.INFO and _is_nemesis(text_at(columns["actor"], i) or "")
    others = [
        OtherLine(
            columns["line"][i].as_py(),
            *(text_at(columns[name], i) for name in ("actor", "name", "value")),
        )
        for i in np.flatnonzero(other).tolist()
    ]
    own = columns.filter(pa.array(~other)) if len(others) else columns
    line, time, kind, process, error = (
        own[name].to_numpy() for name in ("line", "time", "type", "process", "error")
    )
    events = Events(line, time, kind, process, f[~other], error)
    lines = OperationLines(line, kind, events.f, form.names, own["value"], error, own["beside"])
    named = np.flatnonzero(process == NAMED).tolist()
    actors = [(i, text_at(own["actor"], i) or "") for i in named]
    crowded = bool((np.diff(columns["line"].to_numpy()) == 0).any())
    decode = form.columns or (lambda lines, slips: decode_rows(form, lines, slips))
    return Piece(events, decode(lines, slips), slips, actors, others, crowded)


# -------------------------------------------------------------------------------- values by row


def decode_rows(form: Format, lines: OperationLines, slips: Slips) -> DecodedPiece:
    """Decode each different event. A value of the wrong shape is a slip, and its events have no
    parts; a completion that is not ok may have an error in place of its value."""
    votes = _votes(form.keyed, lines) if form.keyed else ()
    layout = form.layout or (_layout(votes) if votes else FileLayout(False, True))
    rows, like = _different(lines)
    parts, unexpected_at = _decode_each(form, lines, rows.tolist(), layout)
    for event in np.flatnonzero(np.isin(like, list(unexpected_at))).tolist():
        message = f":value is not a value of :f :{lines.names[lines.f[event]]}: "
        message += unexpected_at[int(like[event])]
        slips.add(Slip(ODD_VALUE, int(lines.line[event]), message, gap=True))
    table = parts.table()
    return DecodedPiece(table if len(rows) == len(lines) else _repeated(table, like), votes=votes)


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the parts of tables in the order of their events."""
    both = concatenated(tables, [0] * len(tables))
    return both.take(pa.array(np.argsort(both.column("event").to_numpy(), kind="stable")))


def _different(lines: OperationLines) -> tuple[Ints, Ints]:
    """Return the events to decode, and for each event which of them it is like: the first one with
    its kind, error and texts. If most are different, they are all decoded."""
    code = (lines.type * len(lines.names) + lines.f) * (EMPTY + 1) + lines.error
    for column in (lines.value, lines.beside):
        texts = column.dictionary_encode()
        number = texts.indices.fill_null(len(texts.dictionary)).to_numpy().astype(np.int64)
        code = pa.array(code * (len(texts.dictionary) + 1) + number).dictionary_encode()
        code = code.indices.to_numpy().astype(np.int64)
    every = np.arange(len(lines))
    count = int(code.max(initial=-1)) + 1
    if 2 * count > len(lines):
        return every, every
    first = np.empty(count, np.int64)
    first[code[::-1]] = every[::-1]
    return first, first[code]


def _repeated(parts: pa.Table, like: Ints) -> pa.Table:
    """Return the parts of all events; `like`: the event whose parts each has."""
    event = parts.column("event").to_numpy()
    count = np.bincount(event, minlength=len(like))
    starts = np.cumsum(count) - count
    length = count[like]
    owner = np.repeat(np.arange(len(like)), length)
    at = starts[like[owner]] + np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
    return parts.take(pa.array(at)).set_column(0, "event", pa.array(owner, pa.int64()))


def _decode_each(
    form: Format, lines: OperationLines, events: Sequence[int], layout: FileLayout
) -> tuple[PartsBuilder, Mapping[int, str]]:
    """Return the parts of some events, and for each that has an unexpected value why it has."""
    heads = None
    if form.heads:
        heads = re.compile(rf"\[:({'|'.join(map(re.escape, form.heads))})(?=[ \]])")
    parts = PartsBuilder()
    failures: dict[int, str] = {}
    for number in events:
        kind, error = int(lines.type[number]), int(lines.error[number])
        name, before = lines.names[lines.f[number]], len(parts)
        if kind == Type.FAIL and error == NO_ERROR and not layout.errors:
            error = FAILED
        try:
            text = text_at(lines.value, number)
            value = None if text is None else _edn.read_vectors(text, heads)
            key: Any = ONLY
            if form.beside:
                key = _edn.read_vectors(text_at(lines.beside, number) or "nil")
            if layout.by_key:
                if value is None and kind > Type.OK:
                    continue
                key, value = pair(value, "a pair of key and value")
                key = atom(key)
            operation, decoder = form.operations[name]
            decoder(parts, JepsenEvent(number, kind, name, key, value, error), operation)
        except (UnexpectedValue, _edn.Malformed) as e:
            parts.truncate(before)
            if kind <= Type.OK:
                failures[number] = str(e)
    return parts, failures


def _votes(keyed: KeyedFs, lines: OperationLines) -> tuple[int, ...]:
    """Count reads invoked with a vector and with nil; writes invoked with a vector and with
    anything else; pairs whose value is a pair and others; failed reads without an error."""
    votes: list[int] = []
    for names in (keyed.reads, keyed.writes):
        invoked = np.flatnonzero(lines.of_kinds(*names) & (lines.type == Type.INVOKE)).tolist()
        values = [text_at(lines.value, event) or "nil" for event in invoked]
        vectors = sum(value.startswith("[") and value != "[]" for value in values)
        others = values.count("nil") if names == keyed.reads else len(values) - vectors
        votes += [vectors, others]
    invoked = np.flatnonzero(lines.of_kinds(*keyed.pairs) & (lines.type == Type.INVOKE)).tolist()
    nested = sum((text_at(lines.value, event) or "").endswith("]]") for event in invoked)
    failed = lines.of_kinds(*keyed.reads) & (lines.type == Type.FAIL) & (lines.error == NO_ERROR)
    unexplained = sum(  # older histories have a keyword as value that names the error
        not (text_at(lines.value, event) or "").startswith(":")
        for event in np.flatnonzero(failed).tolist()
    )
    return (*votes, nested, len(invoked) - nested, unexplained)


def _layout(votes: tuple[int, ...]) -> FileLayout:
    vectors, others = next((two for two in (votes[:2], votes[2:4]) if any(two)), votes[4:6])
    return FileLayout(vectors > others, votes[6] == 0)


def atom(form: Any) -> int | str | None:
    """Return a key or a value: numbers as they are, None for nil, and the text of anything else."""
    if form is None or (isinstance(form, int) and not isinstance(form, bool)):
        return form
    if isinstance(form, list | dict | _edn.Unreadable) and (found := _edn.unreadable(form)):
        raise UnexpectedValue(f"{_shortened(found)} cannot be read")
    return _edn.canonical(form)


def written_value(form: Any, kind: int) -> int | str | None:
    """Return a value that an operation writes. Nil is none: it is how reads show an absence."""
    if form is None and kind == Type.INVOKE:
        raise UnexpectedValue("nil cannot be distinguished from a missing value")
    return atom(form)


def pair(form: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(form, list) or len(form) != 2:
        raise unexpected(form, what)
    return form[0], form[1]


def elements(form: Any, what: str) -> list[Any]:
    """Return the elements of a vector, list or set; none for nil."""
    if form is None:
        return []
    if not isinstance(form, list):
        raise unexpected(form, what)
    return form


def unexpected(form: Any, what: str) -> UnexpectedValue:
    return UnexpectedValue(f"{_shortened(form)} is not {what}")


def _shortened(form: Any) -> str:
    text = _edn.write(form)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ------------------------------------------------------------------------------ nemesis's faults

# Kinds that begin a fault, and those that end it; also :start-X and :stop-X, in either order.
# Jepsen writes two lines for each, when the nemesis begins to act and when it has acted: a fault
# lasts from the first line of its beginning to the first line of its end.
_RESTARTS = ("start", "restart", "recover")
ENDS = {
    **dict.fromkeys(("kill", "crash", "stop"), _RESTARTS),
    "pause": ("resume", "start", "recover"),
    **dict.fromkeys(("partition", "isolate", "split"), ("heal", "stop", "recover")),
    **dict.fromkeys(("slow", "flaky"), ("fast", "heal", "stop")),
}


def _caveats(notes: Sequence[tuple[int, str]], events: Events) -> Sequence[str]:
    """Name the faults during which nothing succeeded; `notes`: line and kind of the nemesis's."""
    faults = list(_faults(notes))
    quiet = [fault for fault in faults if _is_quiet(fault, events)]
    if not quiet:
        return ()
    kind, first, last = quiet[0]
    until = f"to line {last}" if last else "to the end"
    which = f"while :{kind} lasted, from line {first} {until}"
    if len(quiet) > 1:
        which = f"during {len(quiet):,} of {len(faults):,} faults, first {which}"
    return (f"no operation was acknowledged {which}",)


def _faults(notes: Iterable[tuple[int, str]]) -> Iterator[tuple[str, int, int]]:
    """Yield kind, first line, and last line of each fault; 0 if it lasts to the end."""
    begun: dict[str, int] = {}
    for line, kind in notes:
        if ended := [other for other in begun if kind in _ends_of(other)]:
            yield from ((other, begun.pop(other), line) for other in ended)
        elif _ends_of(kind) and kind not in begun:
            begun[kind] = line
    yield from ((kind, line, 0) for kind, line in begun.items())


def _ends_of(kind: str) -> tuple[str, ...]:
    """Return the kinds that end a fault; none if `kind` does not begin one."""
    if kind in ENDS:
        return ENDS[kind]
    words = kind.split("-")
    if "start" not in words:
        return ()
    same = "-".join("stop" if word == "start" else word for word in words)
    return (same, "heal", "recover")


def _is_quiet(fault: tuple[str, int, int], events: Events) -> bool:
    """Return whether operations were invoked during a fault, and none acknowledged."""
    _, first, last = fault
    during = events.line > first
    if last:
        during &= events.line < last
    kinds = events.type[during]
    return bool(np.any(kinds == Type.INVOKE) and not np.any(kinds == Type.OK))
