"""The fields of Jepsen's operations, for whole pieces of lines at once.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

In a line like this a colon after a blank begins a key, or a keyword that is the value of one; all
others stand within brackets. So a line whose colons are as many as those of a sample, with the
sample's keys at the same of them, has its fields between them, whatever they hold. Lines that have
a string, a comment or a tag, other blanks than the printer's, or a keyword after a blank in a value
do not fit. They go through the reader of `_edn`, one by one, and mean the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.importers import _edn
from harness.importers._bytes import Bytes, Spans, numbers, padded, says
from harness.importers._recording import UNTIMED, Bools, Ints, Slip, Slips
from harness.operation import Type

TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
LOG = "rebalance-log"
MOST_SAMPLES = 16  # orders of keys in one piece
FEW_LINES = 64  # not worth a sample
NEMESIS = -2
MOST_PROCESSES = 1 << 31
NAMELESS, UNKNOWN = -1, -2  # numbers of f, besides the format's own
_COLON, _BLANK, _NEWLINE = 58, 32, 10
_ODD = np.zeros(256, np.bool_)
_ODD[list(b'"\\;#\t\r')] = True


@dataclass(frozen=True)
class Heads:
    """Fields of some lines; `line` is the file's, `f` the number of one of the names asked for."""

    line: Ints
    type: Ints
    process: Ints
    f: Ints
    time: Ints
    value: Spans
    error: Bools
    extra: Spans
    names: Spans  # of f


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
    good &= (kind >= 0) & there & (process < MOST_PROCESSES)
    time = np.full(len(start), UNTIMED, np.int64)
    if "time" in fields:
        time, there = numbers(text, *fields["time"])
        good &= there
    error = np.zeros(len(start), np.bool_)
    if "error" in fields:
        error, told = _told(text, *fields["error"])
        good &= told
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
    )
    return heads, good


def _told(text: Bytes, start: Ints, end: Ints) -> tuple[Bools, Bools]:
    """Which of these values are not nil; and where that is certain without the reader."""
    nil = says(text, start, b"nil")
    exact = nil & (end - start == len(b"nil"))
    blank = (text[start] == _BLANK) | (text[start] == ord(","))
    return ~exact, exact | ~(nil | blank)


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

# type, process, f, time, value, error, extra
Fields = tuple[int, int, str | None, int, str, bool, str | None]


def _slowly(
    data: bytes, start: Ints, end: Ints, number: Ints, fs: Sequence[str], slips: Slips
) -> Heads:
    """Lines through the reader."""
    rows: list[Fields] = []
    lines: list[int] = []
    for begin, finish, line in zip(start.tolist(), end.tolist(), number.tolist(), strict=True):
        raw = data[begin:finish].strip()
        if not raw or raw.startswith(b";"):
            continue
        try:
            form = _edn.read(data[begin:finish].decode())
        except _edn.Malformed as e:
            slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=e.at + 1, gap=True))
            continue
        except UnicodeDecodeError as e:
            slips.add(Slip("NOT_EDN", line, "not UTF-8", column=e.start + 1, gap=True))
            continue
        if fields := fields_of(form, line, slips):
            rows.append(fields)
            lines.append(line)
    return heads_from(rows, lines, fs)


def fields_of(form: Any, line: int, slips: Slips) -> Fields | None:
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
    if isinstance(process, str):
        who = NEMESIS
    elif type(process) is int and 0 <= process < MOST_PROCESSES:
        who = process
    else:
        what = f":process is {_edn.write(process)}, no number from 0 below {MOST_PROCESSES:,}"
        slips.add(Slip("NO_PROCESS", line, what, gap=True))
        return None
    at = time if isinstance(time, int) and 0 <= time < 1 << 62 else UNTIMED
    name = str(f) if isinstance(f, str) else None if f is None else _edn.write(f)
    value, log = _edn.write(form.get("value")), form.get(LOG)
    extra = None if log is None else _edn.write(log)
    return kind, who, name, at, value, form.get("error") is not None, extra


def heads_from(rows: Sequence[Fields], lines: Sequence[int], fs: Sequence[str]) -> Heads:
    """Rows as columns; their texts are data of their own."""
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * 7
    kind, process, f, time, value, error, extra = columns
    numbered = {name: number for number, name in enumerate(fs)}
    return Heads(
        np.array(lines, np.int64),
        np.array(kind, np.int64),
        np.array(process, np.int64),
        np.array([NAMELESS if n is None else numbered.get(n, UNKNOWN) for n in f], np.int64),
        np.array(time, np.int64),
        _spans(value),
        np.array(error, np.bool_),
        _spans(extra),
        _spans(f),
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
