"""The fields of Jepsen's operations, for whole pieces of lines at once.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

In a line like this a colon after a blank begins a key, or a keyword that is the value of one; all
others stand within brackets. So a line whose colons are as many as those of a sample, with the
sample's keys at the same of them, has its fields between them, whatever they hold. Lines that have
a string, a comment or a tag, other blanks than the printer's, or a keyword after a blank in a value
do not fit. They go through the reader of `edn`, one by one, and mean the same.

An operation may stand on several lines, and a line may have several. What can not be read under a
key that is not needed here is not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.importers._recording.recording import (
    EMPTY,
    FAILED,
    NO_ERROR,
    UNTIMED,
    Bools,
    Ints,
    Slip,
    Slips,
)
from harness.importers._text import edn as _edn
from harness.importers._text.line_bytes import Bytes, Spans, numbers, padded, says
from harness.importers._text.source import decoded
from harness.operation import Type

TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
LOG = "rebalance-log"
MOST_SAMPLES = 16  # orders of keys in one piece
FEW_LINES = 64  # not worth a sample
NAMED, NO_PROCESS = -2, -3  # processes: `actor` has the name; the line names none
MAX_PROCESSES = 1 << 31
MAX_LINES = 5_000  # of one operation
ENDS = ("empty", "exhausted", "drained", "no-more", "queue-empty", "empty-queue", "nothing")
NAMELESS, UNKNOWN = -1, -2  # numbers of f, besides the format's own
_COLON, _BLANK, _NEWLINE = 58, 32, 10
_ODD = np.zeros(256, np.bool_)
_ODD[list(b'"\\;#\t\r')] = True


@dataclass(frozen=True)
class Heads:
    """Fields of some lines; `line` is the file's, `f` the number of one of the names asked for.
    `error`: NO_ERROR, FAILED, or EMPTY, which says that there was nothing. `actor`: the process's
    name, where it is no number."""

    line: Ints
    type: Ints
    process: Ints
    f: Ints
    time: Ints
    value: Spans
    error: Ints
    extra: Spans
    names: Spans  # of f
    actor: Spans


@dataclass(frozen=True)
class _Sample:
    """How a line looks: its keys in order, and for each whether its value is a keyword."""

    prefix: bytes
    keys: tuple[tuple[str, bool], ...]

    @property
    def colons(self) -> int:
        return len(self.keys) - 1 + sum(keyword for _, keyword in self.keys)


def heads_of(data: bytes, first_line: int, fs: Sequence[str], slips: Slips) -> Heads:
    """The fields of all operations in some whole lines."""
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
    found: list[Heads] = []
    samples = 0
    while samples < MOST_SAMPLES and len(waiting) > FEW_LINES:
        one = int(waiting[0])
        sample = _sample(data[start[one] : end[one]])
        fits = np.zeros(len(waiting), np.bool_)
        if sample is not None:
            samples += 1
            some = waiting[count[waiting] == sample.colons]
            at = colons[first[some][:, None] + np.arange(sample.colons)]
            heads, good = _at_once(data, text, (start[some], end[some]), at, sample, fs)
            fits[np.searchsorted(waiting, some[good])] = True
            found.append(_numbered(heads, number[some[good]]))
        if not fits[0]:
            fits[0] = True
            slow.append(waiting[:1])
        waiting = waiting[~fits]
    at_last = np.sort(np.concatenate([*slow, waiting]))
    found.append(_slowly(data, start[at_last], end[at_last], number[at_last], fs, slips))
    return _in_order(found)


def _lines(text: Bytes, size: int) -> tuple[Ints, Ints]:
    """Where each line begins and ends."""
    ends = np.flatnonzero(text[:size] == _NEWLINE)
    if size and text[size - 1] != _NEWLINE:
        ends = np.append(ends, size)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    return starts.astype(np.int64), ends.astype(np.int64)


def _plain(text: Bytes, start: Ints) -> Bools:
    """The lines without strings, comments and tags, but for one that begins the line."""
    odd = np.flatnonzero(_ODD[text])
    line = np.searchsorted(start, odd, side="right") - 1
    opening = (line >= 0) & (start[np.maximum(line, 0)] == odd) & (text[odd] == ord("#"))
    plain = np.ones(len(start), np.bool_)
    plain[line[(line >= 0) & ~opening]] = False
    return plain


def _sample(line: bytes) -> _Sample | None:
    """What a line looks like, if others can be read by its example."""
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
) -> tuple[Heads, Bools]:
    """The fields of lines with as many colons as the sample; and which really are like it."""
    start, end = lines
    opening = sample.prefix + b"{"
    good = says(text, start, opening) & (text[end - 1] == ord("}"))
    fields: dict[str, tuple[Ints, Ints]] = {}
    column = 0
    key = start + len(opening)
    for index, (name, keyword) in enumerate(sample.keys):
        word = f":{name} ".encode()
        good &= says(text, key, word)
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
        fields[name] = begin, finish
    kind = _which(text, fields["type"], list(TYPES))
    process, there = numbers(text, *fields["process"])
    good &= (kind >= 0) & there & (process < MAX_PROCESSES)
    time = np.full(len(start), UNTIMED, np.int64)
    if "time" in fields:
        time, there = numbers(text, *fields["time"])
        good &= there
    error = np.full(len(start), NO_ERROR)
    if "error" in fields:
        error, certain = _errors(text, *fields["error"])
        good &= certain
    f = _which(text, fields["f"], fs) if "f" in fields else np.full(len(start), NAMELESS)

    def spans(name: str, skip: int = 0) -> Spans:
        begin, finish = fields.get(name, (np.full(len(start), -1), np.full(len(start), -1)))
        return Spans(data, (begin + skip)[good], finish[good])

    heads = Heads(
        line=start[good],
        type=np.array([int(t) for t in TYPES.values()])[kind[good]],
        process=process[good],
        f=np.where(f < 0, UNKNOWN if "f" in fields else NAMELESS, f)[good],
        time=time[good],
        value=spans("value"),
        error=error[good],
        extra=spans(LOG),
        names=spans("f", 1) if "f" in fields else spans("f"),
        actor=spans("no key"),
    )
    return heads, good


def _errors(text: Bytes, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """What each of these values says of an error; and where that is certain without the reader."""
    nil = says(text, start, b"nil")
    exact = nil & (end - start == len(b"nil"))
    blank = (text[start] == _BLANK) | (text[start] == ord(","))
    vector = text[start] == ord("[")
    found = np.where(exact, NO_ERROR, FAILED)
    found[_which(text, (start, end), ENDS) >= 0] = EMPTY
    return found, exact | ~(nil | blank | vector)


def _which(text: Bytes, span: tuple[Ints, Ints], names: Sequence[str]) -> Ints:
    """Which of these keywords stands in each span; -1: none of them."""
    start, end = span
    found = np.full(len(start), -1, np.int64)
    for index, name in enumerate(names):
        word = f":{name}".encode()
        same = np.flatnonzero(end - start == len(word))
        found[same[says(text, start[same], word)]] = index
    return found


def _numbered(heads: Heads, line: Ints) -> Heads:
    return Heads(line, *(getattr(heads, name) for name in list(Heads.__dataclass_fields__)[1:]))


# -------------------------------------------------------------------------------- one by one

# type, process, f, time, value, error, extra, actor
Fields = tuple[int, int, str | None, int, str, int, str | None, str | None]


def _slowly(
    data: bytes, start: Ints, end: Ints, number: Ints, fs: Sequence[str], slips: Slips
) -> Heads:
    """Lines through the reader."""
    rows: list[Fields] = []
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
            more = _going_on(data, spans, at) if "never closed" in e.message else at
            found = _several(data[begin : spans[more - 1][1]]) if more > at else None
            if found is None:
                what = f"not EDN: {e.message}"
                slips.add(Slip("NOT_EDN", line, what, column=e.at + 1, gap=True))
                continue
            forms, at = found, more
        for form in forms:
            fields = fields_of(form, line, slips)
            if fields and not whole and "\ufffd" in f"{fields[2]}{fields[4]}{fields[6:]}":
                column = _not_text(data[begin:finish])
                slips.add(Slip("NOT_EDN", line, "not UTF-8", column=column, gap=True))
            elif fields:
                rows.append(fields)
                lines.append(line)
    return heads_from(rows, lines, fs)


def _not_text(raw: bytes) -> int:
    """The column of the first byte that is not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as e:
        return e.start + 1
    return 0


def _going_on(data: bytes, spans: Sequence[tuple[int, int, int]], at: int) -> int:
    """Up to which line an operation can go on that was begun before this one: the next operation
    begins at the beginning of a line."""
    last = min(len(spans), at + MAX_LINES)
    while at < last:
        begin, _, _ = spans[at]
        if data[begin : begin + 1] in (b"{", b"#") or data[spans[at - 1][1] : begin].strip():
            break
        at += 1
    return at


def _several(raw: bytes) -> list[Any] | None:
    """The forms of several lines, if they can be read."""
    try:
        return [form for _, form in _edn.forms_in(decoded(raw)[0], lenient=True)]
    except _edn.Malformed:
        return None


def fields_of(form: Any, line: int, slips: Slips) -> Fields | None:
    """One map's fields; None, and a slip, when it is no operation."""
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
    value, log = _edn.write(form.get("value")), form.get(LOG)
    extra = None if log is None else _edn.write(log)
    return kind, who, name, at, value, _error_of(form.get("error")), extra, actor


def _error_of(form: Any) -> int:
    """What is under `:error`, or the first of it, says that there was nothing, or anything else."""
    if form is None:
        return NO_ERROR
    word = form[0] if isinstance(form, list) and form else form
    return EMPTY if is_end(word) else FAILED


def is_end(form: Any) -> bool:
    """Whether a word says that nothing was left."""
    return isinstance(form, str) and form.removeprefix(":").lower().replace("_", "-") in ENDS


def heads_from(rows: Sequence[Fields], lines: Sequence[int], fs: Sequence[str]) -> Heads:
    """Rows as columns; their texts are data of their own."""
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * 8
    kind, process, f, time, value, error, extra, actor = columns
    numbered = {name: number for number, name in enumerate(fs)}
    return Heads(
        np.array(lines, np.int64),
        np.array(kind, np.int64),
        np.array(process, np.int64),
        np.array([NAMELESS if n is None else numbered.get(n, UNKNOWN) for n in f], np.int64),
        np.array(time, np.int64),
        _spans(value),
        np.array(error, np.int64),
        _spans(extra),
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


def _in_order(found: Sequence[Heads]) -> Heads:
    """All lines in the order of the file, their texts in one place."""
    line = np.concatenate([heads.line for heads in found])
    order = np.argsort(line, kind="stable")
    columns: dict[str, Any] = {}
    for name in Heads.__dataclass_fields__:
        parts = [getattr(heads, name) for heads in found]
        columns[name] = (
            _joined(parts).take(order)
            if isinstance(parts[0], Spans)
            else np.concatenate(parts)[order]
        )
    return Heads(**columns)


def _joined(parts: Sequence[Spans]) -> Spans:
    """Spans of several texts as spans of one."""
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
