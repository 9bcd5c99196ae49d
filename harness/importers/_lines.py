"""The fields of Jepsen's operations, for whole pieces of lines at once.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

In a line like this a colon after a blank begins a key, or a keyword that is the value of one; all
other colons stand within brackets. So a line with as many such colons as a sample line, and with
the sample's keys at the same ones, has its fields between them, whatever they hold. Lines with a
string, a comment, a tag, blanks that the printer does not write, or a keyword after a blank in a
value do not fit. `_edn` reads them one by one, with the same result.

An operation may span lines, and a line may have several operations. A literal that cannot be read
does not matter under a key that is not needed.

A piece of a file is an array of bytes with padding, so that reading a few bytes past a position is
always allowed. A *span* is a start and an end in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.importers import _edn
from harness.importers._recording import (
    EMPTY,
    FAILED,
    NO_ERROR,
    UNTIMED,
    Bools,
    Ints,
    Slip,
    Slips,
)
from harness.importers._source import decoded
from harness.operation import Type

Bytes = npt.NDArray[np.uint8]

TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
MAX_SAMPLES = 16  # orders of keys in one piece
FEW_LINES = 64  # not worth a sample
NAMED, NO_PROCESS = -2, -3  # processes: `actor` has the name; the line has no process
MAX_PROCESSES = 1 << 31
MAX_LINES = 5_000  # of one operation
EMPTY_WORDS = ("empty", "exhausted", "drained", "no-more", "queue-empty", "empty-queue", "nothing")
NAMELESS, UNKNOWN = -1, -2  # indices of f, besides the format's own
PADDING = 64  # bytes; longer than any word that is compared
MAX_DIGITS = 18
ZERO = 48
_COLON, _BLANK, _NEWLINE = 58, 32, 10
_ODD = np.zeros(256, np.bool_)
_ODD[list(b'"\\;#\t\r')] = True


@dataclass(frozen=True)
class Spans:
    """Texts within some data; absent where the start is -1."""

    data: bytes
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, at: int) -> str | None:
        start = int(self.start[at])
        if start < 0:
            return None
        return self.data[start : int(self.end[at])].decode("utf-8", errors="replace")

    def take(self, at: Ints) -> "Spans":
        return replace(self, start=self.start[at], end=self.end[at])


@dataclass(frozen=True)
class FieldColumns:
    """Fields of some lines. `line`: of the file; `f`: an index in the names of a format; `error`:
    NO_ERROR, FAILED or EMPTY; `names`: of f; `actor`: the process, if that is not a number."""

    line: Ints
    type: Ints
    process: Ints
    f: Ints
    time: Ints
    value: Spans
    error: Ints
    beside: Spans
    names: Spans
    actor: Spans

    def take(self, at: Ints) -> "FieldColumns":
        columns: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            columns[each.name] = column.take(at) if isinstance(column, Spans) else column[at]
        return FieldColumns(**columns)


@dataclass(frozen=True)
class _Sample:
    """The keys of a line in order, and for each whether its value is a keyword."""

    prefix: bytes
    keys: tuple[tuple[str, bool], ...]

    @property
    def colons(self) -> int:
        return len(self.keys) - 1 + sum(keyword for _, keyword in self.keys)


def columns_of(
    data: bytes, first_line: int, fs: Sequence[str], slips: Slips, beside: str = ""
) -> FieldColumns:
    """Return the fields of all operations in whole lines. `beside`: another key to return."""
    text = padded(data)
    start, end = _lines(text, len(data))
    number = np.arange(first_line, first_line + len(start))
    full = end > start
    start, end, number = start[full], end[full], number[full]
    colons = np.flatnonzero(text == _COLON)
    colons = colons[(colons > 0) & (text[colons - 1] == _BLANK)]
    first = np.searchsorted(colons, start)
    count = np.searchsorted(colons, end) - first
    plain = _plain(text, start)
    waiting = np.flatnonzero(plain)
    slow = [np.flatnonzero(~plain)]
    found: list[FieldColumns] = []
    samples = 0
    while samples < MAX_SAMPLES and len(waiting) > FEW_LINES:
        one = int(waiting[0])
        sample = _sample(data[start[one] : end[one]])
        fits = np.zeros(len(waiting), np.bool_)
        if sample is not None:
            samples += 1
            some = waiting[count[waiting] == sample.colons]
            at = colons[first[some][:, None] + np.arange(sample.colons)]
            columns, good = _at_once(data, text, (start[some], end[some]), at, sample, fs, beside)
            fits[np.searchsorted(waiting, some[good])] = True
            found.append(replace(columns, line=number[some[good]]))
        if not fits[0]:
            fits[0] = True
            slow.append(waiting[:1])
        waiting = waiting[~fits]
    at_last = np.sort(np.concatenate([*slow, waiting]))
    found.append(
        _one_by_one(data, start[at_last], end[at_last], number[at_last], fs, slips, beside)
    )
    return _in_order(found)


def _lines(text: Bytes, size: int) -> tuple[Ints, Ints]:
    """Return where each line begins and ends."""
    ends = np.flatnonzero(text[:size] == _NEWLINE)
    if size and text[size - 1] != _NEWLINE:
        ends = np.append(ends, size)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    return starts.astype(np.int64), ends.astype(np.int64)


def _plain(text: Bytes, start: Ints) -> Bools:
    """Return which lines have no string, comment or tag; a tag may begin the line."""
    odd = np.flatnonzero(_ODD[text])
    line = np.searchsorted(start, odd, side="right") - 1
    opening = (line >= 0) & (start[np.maximum(line, 0)] == odd) & (text[odd] == ord("#"))
    plain = np.ones(len(start), np.bool_)
    plain[line[(line >= 0) & ~opening]] = False
    return plain


def _sample(line: bytes) -> _Sample | None:
    """Return the sample that a line gives, if it can be one."""
    try:
        form = _edn.read(line.decode())
    except ValueError:
        return None
    if not isinstance(form, dict) or not all(isinstance(k, _edn.Keyword) for k in form):
        return None
    keys = tuple((str(k), isinstance(v, _edn.Keyword)) for k, v in form.items())
    known = dict(keys)
    good = known.get("type") and known.get("f", True) and known.get("process") is False
    return _Sample(line[: line.index(b"{")], keys) if good else None


def _at_once(
    data: bytes,
    text: Bytes,
    lines: tuple[Ints, Ints],
    at: Ints,
    sample: _Sample,
    fs: Sequence[str],
    beside: str,
) -> tuple[FieldColumns, Bools]:
    """Return the fields of lines with as many colons as the sample, and which of them fit it."""
    start, end = lines
    opening = sample.prefix + b"{"
    good = matches(text, start, opening) & (text[end - 1] == ord("}"))
    found: dict[str, tuple[Ints, Ints]] = {}
    column = 0
    key = start + len(opening)
    for index, (name, keyword) in enumerate(sample.keys):
        word = f":{name} ".encode()
        good &= matches(text, key, word)
        begin = key + len(word)
        if keyword:
            good &= at[:, column] == begin
            column += 1
        if index + 1 < len(sample.keys):
            key = at[:, column]
            column += 1
            finish = key - 2
            good &= text[finish] == ord(",")
        else:
            finish = end - 1
        good &= finish > begin
        found[name] = begin, finish
    kind = _keyword_index(text, found["type"], list(TYPES))
    process, there = numbers(text, *found["process"])
    good &= (kind >= 0) & there & (process < MAX_PROCESSES)
    time = np.full(len(start), UNTIMED, np.int64)
    if "time" in found:
        time, there = numbers(text, *found["time"])
        good &= there
    error = np.full(len(start), NO_ERROR)
    if "error" in found:
        error, certain = _errors(text, *found["error"])
        good &= certain
    f = _keyword_index(text, found["f"], fs) if "f" in found else np.full(len(start), NAMELESS)

    def spans(name: str, skip: int = 0) -> Spans:
        begin, finish = found.get(name, (np.full(len(start), -1), np.full(len(start), -1)))
        return Spans(data, (begin + skip)[good], finish[good])

    columns = FieldColumns(
        line=start[good],
        type=np.array([int(t) for t in TYPES.values()])[kind[good]],
        process=process[good],
        f=np.where(f < 0, UNKNOWN if "f" in found else NAMELESS, f)[good],
        time=time[good],
        value=spans("value"),
        error=error[good],
        beside=spans(beside),
        names=spans("f", 1) if "f" in found else spans("f"),
        actor=spans("no key"),
    )
    return columns, good


def _errors(text: Bytes, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """Return the error that each value stands for, and where that is certain without `_edn`."""
    nil = matches(text, start, b"nil")
    exact = nil & (end - start == len(b"nil"))
    blank = (text[start] == _BLANK) | (text[start] == ord(","))
    vector = text[start] == ord("[")
    found = np.where(exact, NO_ERROR, FAILED)
    found[_keyword_index(text, (start, end), EMPTY_WORDS) >= 0] = EMPTY
    return found, exact | ~(nil | blank | vector)


def _keyword_index(text: Bytes, span: tuple[Ints, Ints], names: Sequence[str]) -> Ints:
    """Return which of these keywords each span is; -1: none of them."""
    start, end = span
    found = np.full(len(start), -1, np.int64)
    for index, name in enumerate(names):
        word = f":{name}".encode()
        same = np.flatnonzero(end - start == len(word))
        found[same[matches(text, start[same], word)]] = index
    return found


# -------------------------------------------------------------------------------- one by one


class OperationFields(NamedTuple):
    """One line of `FieldColumns`."""

    type: int
    process: int
    f: str | None
    time: int
    value: str
    error: int
    beside: str | None = None
    actor: str | None = None


def _one_by_one(
    data: bytes,
    start: Ints,
    end: Ints,
    number: Ints,
    fs: Sequence[str],
    slips: Slips,
    beside: str = "",
) -> FieldColumns:
    """Return the fields of lines that `_edn` reads."""
    rows: list[OperationFields] = []
    lines: list[int] = []
    spans = list(zip(start.tolist(), end.tolist(), number.tolist(), strict=True))
    at = 0
    while at < len(spans):
        begin, finish, line = spans[at]
        at += 1
        if data[begin:finish].strip()[:1] in (b"", b";"):
            continue
        text, whole = decoded(data[begin:finish])
        try:
            forms = [form for _, form in _edn.forms_in(text, lenient=True)]
        except _edn.Malformed as e:
            more = _end_of_operation(data, spans, at) if "never closed" in e.message else at
            several = _several(data[begin : spans[more - 1][1]]) if more > at else None
            if several is None:
                what = f"not EDN: {e.message}"
                slips.add(Slip("NOT_EDN", line, what, column=e.at + 1, gap=True))
                continue
            forms, at = several, more
        for form in forms:
            found = fields_of(form, line, slips, beside)
            if found and not whole and "\ufffd" in f"{found.f}{found.value}{found[6:]}":
                column = _not_text(data[begin:finish])
                slips.add(Slip("NOT_EDN", line, "not UTF-8", column=column, gap=True))
            elif found:
                rows.append(found)
                lines.append(line)
    return columns_from(rows, lines, fs)


def _not_text(raw: bytes) -> int:
    """Return the column of the first byte that is not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as e:
        return e.start + 1
    return 0


def _end_of_operation(data: bytes, spans: Sequence[tuple[int, int, int]], at: int) -> int:
    """Return the line before which an operation must end that began before line `at`: the next
    operation begins at the beginning of a line."""
    last = min(len(spans), at + MAX_LINES)
    while at < last:
        begin, _, _ = spans[at]
        if data[begin : begin + 1] in (b"{", b"#") or data[spans[at - 1][1] : begin].strip():
            break
        at += 1
    return at


def _several(raw: bytes) -> list[Any] | None:
    """Return the forms of several lines, if they can be read."""
    try:
        return [form for _, form in _edn.forms_in(decoded(raw)[0], lenient=True)]
    except _edn.Malformed:
        return None


def fields_of(form: Any, line: int, slips: Slips, beside: str = "") -> OperationFields | None:
    """Return the fields of a map; None, and add a slip, if it is not an operation."""
    if not isinstance(form, dict):
        slips.add(Slip("NOT_A_MAP", line, "not a map, as every operation is", gap=True))
        return None
    kind = TYPES.get(str(form.get("type")).removeprefix(":"))
    process, time, f = form.get("process"), form.get("time"), form.get("f")
    if kind is None:
        what = f":type is {_edn.write(form.get('type'))}, not :invoke, :ok, :fail or :info"
        slips.add(Slip("NO_TYPE", line, what, gap=True))
        return None
    who, actor = NO_PROCESS, None
    if type(process) is int and 0 <= process < MAX_PROCESSES:
        who = process
    elif isinstance(process, _edn.Unreadable):
        slips.add(Slip("NO_PROCESS", line, f":process {process[:40]} cannot be read", gap=True))
        return None
    elif process is not None:
        who, actor = NAMED, _edn.canonical(process)
    at = UNTIMED
    if isinstance(time, int | float) and 0 <= time < 1 << 62:
        at = int(time)
    name = f.removeprefix(":") if isinstance(f, str) else None if f is None else _edn.write(f)
    value, log = _edn.write(form.get("value")), form.get(beside)
    other = None if log is None else _edn.write(log)
    return OperationFields(kind, who, name, at, value, _error_of(form.get("error")), other, actor)


def _error_of(form: Any) -> int:
    """Classify what is under `:error`, or its first element."""
    if form is None:
        return NO_ERROR
    word = form[0] if isinstance(form, list) and form else form
    return EMPTY if means_empty(word) else FAILED


def means_empty(form: Any) -> bool:
    """Return whether a word says that an object held nothing."""
    return isinstance(form, str) and form.removeprefix(":").lower().replace("_", "-") in EMPTY_WORDS


def columns_from(
    rows: Sequence[OperationFields], lines: Sequence[int], fs: Sequence[str]
) -> FieldColumns:
    """Turn rows into columns."""
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * 8
    kind, process, f, time, value, error, beside, actor = columns
    numbered = {name: number for number, name in enumerate(fs)}
    return FieldColumns(
        np.array(lines, np.int64),
        np.array(kind, np.int64),
        np.array(process, np.int64),
        np.array([NAMELESS if n is None else numbered.get(n, UNKNOWN) for n in f], np.int64),
        np.array(time, np.int64),
        _spans(value),
        np.array(error, np.int64),
        _spans(beside),
        _spans(f),
        _spans(actor),
    )


def _spans(texts: Sequence[str | None]) -> Spans:
    raw = [None if text is None else text.encode("utf-8", errors="replace") for text in texts]
    ends = np.cumsum([0 if text is None else len(text) for text in raw], dtype=np.int64)
    starts = np.array([-1 if text is None else 0 for text in raw], np.int64)
    lengths = np.diff(ends, prepend=0)
    starts = np.where(starts < 0, -1, ends - lengths)
    return Spans(b"".join(text for text in raw if text is not None), starts, ends)


def _in_order(found: Sequence[FieldColumns]) -> FieldColumns:
    """Return all lines in the order of the file."""
    line = np.concatenate([some.line for some in found])
    order = np.argsort(line, kind="stable")
    columns: dict[str, Any] = {}
    for each in fields(FieldColumns):
        parts = [getattr(some, each.name) for some in found]
        columns[each.name] = (
            _joined(parts) if isinstance(parts[0], Spans) else np.concatenate(parts)
        )
    return FieldColumns(**columns).take(order)


def _joined(parts: Sequence[Spans]) -> Spans:
    """Turn spans of several texts into spans of one."""
    data: list[bytes] = []
    at: dict[int, int] = {}
    size = 0
    starts, ends = [], []
    for part in parts:
        if not len(part):
            continue
        if id(part.data) not in at:
            at[id(part.data)] = size
            data.append(part.data)
            size += len(part.data)
        base = at[id(part.data)]
        starts.append(np.where(part.start < 0, -1, part.start + base))
        ends.append(part.end + base)
    nothing = [np.zeros(0, np.int64)]
    whole = data[0] if len(data) == 1 else b"".join(data)
    return Spans(whole, np.concatenate(starts or nothing), np.concatenate(ends or nothing))


# --------------------------------------------------------------------------------------- bytes


def padded(data: bytes) -> Bytes:
    return np.frombuffer(data + b"\0" * PADDING, np.uint8)


def matches(text: Bytes, at: Ints, word: bytes) -> Bools:
    """Return where `word` stands at a position; eight bytes are compared as one number."""
    eights = np.ndarray(len(text) - 7, np.dtype("<u8"), text, strides=(1,))
    same = np.ones(len(at), np.bool_)
    for index in range(0, len(word), 8):
        some = word[index : index + 8]
        mask = np.uint64((1 << 8 * len(some)) - 1)
        same &= (eights[at + index] & mask) == np.uint64(int.from_bytes(some, "little"))
    return same


def numbers(text: Bytes, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """Return the numbers in spans, and which spans hold nothing else: not more digits than
    MAX_DIGITS, and no octal numbers."""
    found = np.zeros(len(start), np.int64)
    length = end - start
    good = (length > 0) & (length <= MAX_DIGITS) & ((length == 1) | (text[start] != ZERO))
    for digit in range(int(length[good].max(initial=0))):
        long = np.flatnonzero(good & (length > digit))
        value = text[start[long] + digit] - np.uint8(ZERO)  # characters below '0' wrap around
        good[long[value > 9]] = False
        found[long] = found[long] * 10 + value
    return found, good


def digit_runs(text: Bytes) -> tuple[Ints, Ints]:
    """Return where each run of digits begins and ends."""
    digits = (text - np.uint8(ZERO)) <= 9
    edges = np.flatnonzero(digits[1:] != digits[:-1]) + 1
    if digits[0]:
        edges = np.insert(edges, 0, 0)
    return edges[0::2], edges[1::2]


def ranges(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return all numbers of some ranges, and the index of the range of each."""
    owner = np.repeat(np.arange(len(first)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return first[owner] + within, owner
