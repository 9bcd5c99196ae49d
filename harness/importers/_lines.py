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
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
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

TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
MAX_SAMPLES = 16  # orders of keys in one piece
FEW_LINES = 64  # not worth a sample
NAMED, NO_PROCESS = -2, -3  # processes: `actor` has the name; the line has no process
MAX_PROCESSES = 1 << 31
MAX_LINES = 5_000  # of one operation
EMPTY_WORDS = ("empty", "exhausted", "drained", "no-more", "queue-empty", "empty-queue", "nothing")
NAMELESS, UNKNOWN = -1, -2  # indices of f, besides the format's own
MAX_DIGITS = 18
SEPARATOR = b" :"
PLAIN = r"^#?[^\"\\;#\t\r]+$"  # no string, comment or tag; a tag may begin the line
NUMBER = rf"(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"
DOUBTFUL = r"^(?:nil|[ ,\[])"
_MARKS = rb"(?:[\s,]|\^:?[^\s\[({]+|#[^\s\[({\"_]+)*"  # tags and metadata
_COLLECTION, _OPERATION = re.compile(_MARKS + rb"[\[(]"), re.compile(_MARKS + rb"\{")
_OBJECT = re.compile(r"(?:[\s\[,]|\{\s*\})*\{\s*\"(?:[^\"\\]|\\.)*\"\s*:")
_BETWEEN = re.compile(r"[\s,]*")


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
    lines = pc.split_pattern(pa.array([data]), b"\n").flatten()
    colons = pc.count_substring(lines, SEPARATOR).to_numpy()
    plain = pc.match_substring_regex(lines, PLAIN).to_numpy(zero_copy_only=False)
    waiting = np.flatnonzero(plain)
    slow = [np.flatnonzero(~plain)]
    found: list[pa.RecordBatch] = []
    samples = 0
    while samples < MAX_SAMPLES and len(waiting) > FEW_LINES:
        sample = _sample(lines[int(waiting[0])].as_py())
        fits = np.zeros(len(waiting), np.bool_)
        if sample is not None:
            samples += 1
            some = waiting[colons[waiting] == sample.colons]
            there = lines.take(pa.array(some))
            batch, good = _at_once(there, first_line + some, sample, fs, beside)
            fits[np.searchsorted(waiting, some[good])] = True
            found.append(batch)
        if not fits[0]:
            fits[0] = True
            slow.append(waiting[:1])
        waiting = waiting[~fits]
    rest = np.sort(np.concatenate([*slow, waiting]))
    numbers = (first_line + rest).tolist()
    found.append(_one_by_one(lines.take(pa.array(rest)).to_pylist(), numbers, fs, slips, beside))
    arrays = [pa.concat_arrays([batch.column(name) for batch in found]) for name in FIELDS.names]
    joined = pa.RecordBatch.from_arrays(arrays, schema=FIELDS)
    return joined.take(pc.sort_indices(joined["line"]))


def _sample(line: bytes) -> _Sample | None:
    """Return the sample that a line gives, if it can be one."""
    try:
        form = _edn.read(line.decode())
    except ValueError:
        return None
    if not isinstance(form, dict) or not all(isinstance(k, _edn.Keyword) for k in form):
        return None
    keys = tuple((str(k), isinstance(v, _edn.Keyword)) for k, v in form.items())
    numbers = dict(keys)
    good = numbers.get("type") and numbers.get("f", True) and numbers.get("process") is False
    return _Sample(line[: line.index(b"{")], keys) if good else None


def _at_once(
    lines: pa.BinaryArray, number: Ints, sample: _Sample, fs: Sequence[str], beside: str
) -> tuple[pa.RecordBatch, Bools]:
    """Return the FIELDS of lines with as many colons as the sample, and which of them fit it."""
    pieces = pc.split_pattern(lines, SEPARATOR).flatten()
    width = sample.colons + 1
    columns = iter(pieces.take(pa.array(np.arange(n, len(pieces), width))) for n in range(width))
    good = np.ones(len(lines), np.bool_)
    found: dict[str, pa.BinaryArray] = {}
    for index, (name, keyword) in enumerate(sample.keys):
        key = name.encode() if index else b"%s{:%s" % (sample.prefix, name.encode())
        closing = b"," if index + 1 < len(sample.keys) else b"}"
        if keyword:
            good &= is_true(pc.equal(next(columns), key))
            key = b""
        found[name] = _within(next(columns), key and key + b" ", closing, good)
    absent = pa.nulls(len(lines), pa.binary())
    kind = pc.index_in(found["type"], _words(TYPES)).fill_null(-1).to_numpy()
    process = _whole(found["process"], good)
    good &= process < MAX_PROCESSES
    time = _whole(found["time"], good) if "time" in found else np.full(len(lines), UNTIMED)
    error = np.full(len(lines), NO_ERROR)
    if "error" in found:
        error, certain = _errors(found["error"], dict(sample.keys)["error"])
        good &= certain

    def text_of_key(name: str) -> pa.BinaryArray:
        column = found.get(name, absent)
        keyword = dict(sample.keys).get(name, False)
        return pc.binary_join_element_wise(b":", column, b"") if keyword else column

    f = pc.index_in(found.get("f", absent), _words(fs))
    f = f.fill_null(UNKNOWN if "f" in found else NAMELESS).to_numpy()
    batch = _batch(
        {
            "line": number,
            "type": np.array([int(t) for t in TYPES.values()])[kind],
            "process": process,
            "f": f,
            "time": time,
            "error": error,
            "value": text_of_key("value"),
            "beside": text_of_key(beside),
            "name": found.get("f", absent),
            "actor": absent,
        }
    )
    good &= kind >= 0
    return batch.filter(pa.array(good)), good


def _batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array(columns[field.name], field.type) for field in FIELDS]
    return pa.RecordBatch.from_arrays(arrays, schema=FIELDS)


def text_at(column: pa.BinaryArray, row: int) -> str | None:
    """Return a text of FIELDS; bytes that are not UTF-8 are replaced."""
    found: bytes | None = column[row].as_py()
    return None if found is None else found.decode(errors="replace")


def is_true(column: pa.Array) -> Bools:
    """Return where a column is true, and not null."""
    true: Bools = column.fill_null(False).to_numpy(zero_copy_only=False)
    return true


def _words(names: Iterable[str]) -> pa.Array:
    return pa.array([name.encode() for name in names], pa.binary())


def _within(column: pa.BinaryArray, before: bytes, after: bytes, good: Bools) -> pa.BinaryArray:
    """Return what stands between two texts. Where they do not enclose any, it is 0, and not
    `good`."""
    enclosed = is_true(pc.and_(pc.starts_with(column, before), pc.ends_with(column, after)))
    enclosed &= pc.binary_length(column).to_numpy() > len(before + after)
    good &= enclosed
    column = pc.if_else(pa.array(enclosed), column, before + b"0" + after)
    return pc.binary_slice(column, len(before), -len(after))


def _whole(column: pa.BinaryArray, good: Bools) -> Ints:
    """Return whole numbers. Texts that are none, have more than MAX_DIGITS digits, or are octal
    numbers, are 0, and not `good`."""
    whole = is_true(pc.match_substring_regex(column, f"^{NUMBER}$"))
    good &= whole
    numbers = pc.if_else(pa.array(whole), column, b"0").view(pa.string()).cast(pa.int64())
    found: Ints = numbers.to_numpy()
    return found


def _errors(column: pa.BinaryArray, keyword: bool) -> tuple[Ints, Bools]:
    """Return the error that each value stands for, and where that is certain without `_edn`."""
    if keyword:
        empty = is_true(pc.is_in(column, value_set=_words(EMPTY_WORDS)))
        return np.where(empty, EMPTY, FAILED), np.ones(len(column), np.bool_)
    nil = is_true(pc.equal(column, b"nil"))
    doubtful = is_true(pc.match_substring_regex(column, DOUBTFUL))
    return np.where(nil, NO_ERROR, FAILED), nil | ~doubtful


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
    raw: Sequence[bytes], numbers: Sequence[int], fs: Sequence[str], slips: Slips, beside: str = ""
) -> pa.RecordBatch:
    """Return the FIELDS of lines that `_edn` reads."""
    rows: list[OperationFields] = []
    lines: list[int] = []
    at = 0
    while at < len(raw):
        one, line = raw[at], numbers[at]
        at += 1
        if one.strip()[:1] in (b"", b";"):
            continue
        text, whole = decoded(one)
        try:
            forms = [form for _, form in _edn.forms_in(text, lenient=True)]
        except _edn.Malformed as e:
            more = _end_of_operation(raw, numbers, at) if "never closed" in e.message else at
            several = _several(b"\n".join(raw[at - 1 : more])) if more > at else None
            if several is None:
                what = f"not EDN: {e.message}"
                slips.add(Slip("NOT_EDN", line, what, column=e.at + 1, gap=True))
                continue
            forms, at = several, more
        for form in forms:
            found = fields_of(form, line, slips, beside)
            if found and not whole and "\ufffd" in f"{found.f}{found.value}{found[6:]}":
                slips.add(Slip("NOT_EDN", line, "not UTF-8", column=_not_text(one), gap=True))
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


def _end_of_operation(raw: Sequence[bytes], numbers: Sequence[int], at: int) -> int:
    """Return the line before which an operation must end that began before line `at`: the next
    operation begins at the beginning of a line."""
    last = min(len(raw), at + MAX_LINES)
    while at < last and numbers[at] == numbers[at - 1] + 1 and raw[at][:1] not in (b"{", b"#"):
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
    match = _OBJECT.match(text)
    if match is None:
        return False
    rest = text[match.end() :].lstrip()
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
