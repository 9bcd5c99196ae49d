"""The fields of Jepsen's operations, for whole pieces of lines at once.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

In a line like this a colon after a blank begins a key, or a keyword that is the value of one; all
other colons stand within brackets. So a line with as many such colons as a sample line, and with
the sample's keys at the same ones, has its fields between them, whatever they hold. Lines with a
string, a comment, a tag, blanks that the printer does not write, or a keyword after a blank in a
value do not fit. `_edn` reads them one by one, with the same result.

An operation may span lines, and a line may have several operations. A literal that cannot be read
does not matter under a key that is not needed.

Files that are not of this form are read form by form (`columns_of_forms`): maps that span lines, a
vector of maps, and JSON, whose objects stand one after the other or in an array. An object (a map)
with a `history` stands for that array. JSON's strings stand for EDN's keywords, and a number such
as 3.0 is the whole number 3.

A piece of a file is an array of bytes with padding, so that reading a few bytes past a position is
always allowed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
_MARKS = rb"(?:[\s,]|\^:?[^\s\[({]+|#[^\s\[({\"_]+)*"  # tags and metadata
_COLLECTION, _OPERATION = re.compile(_MARKS + rb"[\[(]"), re.compile(_MARKS + rb"\{")
_OBJECT = re.compile(r"(?:[\s\[,]|\{\s*\})*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:")
_BETWEEN = re.compile(r"[\s,]*")
_ODD = np.zeros(256, np.bool_)
_ODD[list(b'"\\;#\t\r')] = True


# the fields of operations: `f` is an index in the names of a format, `name` its text; `error`:
# NO_ERROR, FAILED or EMPTY; `actor`: the process, if that is not a number; texts are UTF-8
FIELDS = pa.schema(
    [
        *((name, pa.int64()) for name in ("line", "type", "process", "f", "time", "error")),
        *((name, pa.binary()) for name in ("value", "beside", "name", "actor")),
    ]
)


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
) -> pa.RecordBatch:
    """Return the FIELDS of all operations in whole lines. `beside`: another key to return."""
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
    found: list[pa.RecordBatch] = []
    samples = 0
    while samples < MAX_SAMPLES and len(waiting) > FEW_LINES:
        one = int(waiting[0])
        sample = _sample(data[start[one] : end[one]])
        fits = np.zeros(len(waiting), np.bool_)
        if sample is not None:
            samples += 1
            some = waiting[count[waiting] == sample.colons]
            at = colons[first[some][:, None] + np.arange(sample.colons)]
            there = number[some], start[some], end[some]
            batch, good = _at_once(data, text, there, at, sample, fs, beside)
            fits[np.searchsorted(waiting, some[good])] = True
            found.append(batch)
        if not fits[0]:
            fits[0] = True
            slow.append(waiting[:1])
        waiting = waiting[~fits]
    at_last = np.sort(np.concatenate([*slow, waiting]))
    found.append(
        _one_by_one(data, start[at_last], end[at_last], number[at_last], fs, slips, beside)
    )
    arrays = [pa.concat_arrays([batch.column(name) for batch in found]) for name in FIELDS.names]
    joined = pa.RecordBatch.from_arrays(arrays, schema=FIELDS)
    return joined.take(pc.sort_indices(joined["line"]))


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
    lines: tuple[Ints, Ints, Ints],
    at: Ints,
    sample: _Sample,
    fs: Sequence[str],
    beside: str,
) -> tuple[pa.RecordBatch, Bools]:
    """Return the FIELDS of lines with as many colons as the sample, and which of them fit it.
    `lines`: number, start and end of each."""
    number, start, end = lines
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

    def texts(name: str, skip: int = 0) -> Sequence[bytes | None]:
        if name not in found:
            return [None] * int(good.sum())
        begin, finish = found[name]
        places = zip((begin[good] + skip).tolist(), finish[good].tolist(), strict=True)
        return [data[first:last] for first, last in places]

    columns = {
        "line": number[good],
        "type": np.array([int(t) for t in TYPES.values()])[kind[good]],
        "process": process[good],
        "f": np.where(f < 0, UNKNOWN if "f" in found else NAMELESS, f)[good],
        "time": time[good],
        "error": error[good],
        "value": texts("value"),
        "beside": texts(beside),
        "name": texts("f", skip=1),
        "actor": texts("no key"),
    }
    return _batch(columns), good


def _batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array(columns[field.name], field.type) for field in FIELDS]
    return pa.RecordBatch.from_arrays(arrays, schema=FIELDS)


def text_at(column: pa.BinaryArray, row: int) -> str | None:
    """Return a text of FIELDS; bytes that are not UTF-8 are replaced."""
    found: bytes | None = column[row].as_py()
    return None if found is None else found.decode(errors="replace")


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
    """One row of FIELDS, without its line."""

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
) -> pa.RecordBatch:
    """Return the FIELDS of lines that `_edn` reads."""
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
) -> pa.RecordBatch:
    """Turn rows into FIELDS."""
    columns: dict[str, Sequence[Any]] = {
        name: [getattr(row, name) for row in rows] for name in OperationFields._fields
    }
    columns |= {"line": lines, "name": columns["f"]}
    for name in FIELDS.names[-4:]:  # texts; half of a surrogate pair cannot be encoded
        texts = columns[name]
        columns[name] = [None if t is None else t.encode(errors="replace") for t in texts]
    numbers = {name: number for number, name in enumerate(fs)}
    columns["f"] = [NAMELESS if n is None else numbers.get(n, UNKNOWN) for n in columns["f"]]
    return _batch(columns)


# ------------------------------------------------------------------------------- form by form


def columns_of_forms(
    data: bytes, fs: Sequence[str], slips: Slips, beside: str = ""
) -> pa.RecordBatch:
    """Return the FIELDS of all operations in a file."""
    rows: list[OperationFields] = []
    lines: list[int] = []
    for line, form in forms_of(data, slips):
        if found := fields_of(form, line, slips, beside):
            rows.append(found)
            lines.append(line)
    if len(set(lines)) < len(lines):  # several maps in a line: operations are counted instead
        lines = list(range(1, len(rows) + 1))
    return columns_from(rows, lines, fs)


def forms_of(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    """Yield the operations of a file, each with a line: in EDN its last, in JSON its first."""
    return _json_forms(data, slips) if is_json(data) else _edn_forms(data, slips)


def starts_several_lines(data: bytes) -> bool:
    """Return whether a file begins with a collection of maps, or with a map of several lines. A
    truncated line is neither: complete ones follow it."""
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


def _edn_forms(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    text, whole = decoded(data)
    line, seen = 1, 0
    try:
        for end, item in _edn.forms_in(text, inside=True, lenient=True):
            line, begin, seen = line + text.count("\n", seen, end), seen, end
            if not whole and "\ufffd" in text[begin:end] and "\ufffd" in _edn.write(item):
                slips.add(Slip("NOT_EDN", line, "not UTF-8", gap=True))
                continue
            yield from ((line, each) for each in _operations_in(item))
    except _edn.Malformed as e:
        line = 1 + text.count("\n", 0, e.at)
        column = e.at - text.rfind("\n", 0, e.at)
        slips.add(Slip("NOT_EDN", line, f"not EDN: {e.message}", column=column, gap=True))


def _operations_in(item: Any) -> Sequence[Any]:
    """Return the elements of a collection, or the form itself."""
    if isinstance(item, dict) and "type" not in item and isinstance(item.get("history"), list):
        item = item["history"]
    return item if isinstance(item, list) else [item]


def is_json(data: bytes) -> bool:
    """Return whether a file that begins with these bytes is JSON: EDN has no colon behind a key,
    and a keyword that follows one is not JSON."""
    text = data.decode("utf-8", errors="replace")
    found = _OBJECT.match(text)
    if found is None:
        return False
    rest = text[found.end() :].lstrip()
    try:
        json.JSONDecoder().raw_decode(rest)
    except ValueError as e:  # one about too many digits has no position
        return getattr(e, "pos", 1) > 0
    return True


def _json_forms(data: bytes, slips: Slips) -> Iterator[tuple[int, Any]]:
    text, whole = decoded(data)
    decoder = json.JSONDecoder()
    at = _BETWEEN.match(text, 0).end()  # type: ignore[union-attr]
    at += text.startswith("[", at)
    line, seen = 1, 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at >= len(text) or text[at] == "]":
            return
        line, seen = line + text.count("\n", seen, at), at
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as e:
            what = f"not JSON: {getattr(e, 'msg', 'nested too deep, or a number too long')}"
            slips.add(Slip("NOT_JSON", line, what, gap=True))
            following = text.find("\n", at)
            at = len(text) if following < 0 else following
            continue
        if not whole and "\ufffd" in text[seen:at]:
            slips.add(Slip("NOT_JSON", line, "not UTF-8", gap=True))
            continue
        yield from ((line, _with_whole_numbers(each)) for each in _operations_in(found))


def _with_whole_numbers(form: Any) -> Any:
    """Turn numbers without a fraction into whole ones."""
    if isinstance(form, float) and form.is_integer():
        return int(form)
    if isinstance(form, list):
        return [_with_whole_numbers(each) for each in form]
    if isinstance(form, dict):
        return {key: _with_whole_numbers(value) for key, value in form.items()}
    return form


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
