"""The fields of Jepsen's operations, for whole pieces of lines at once.

    {:index 3, :type :ok, :process 2, :f :send, :value [[:send 4 [0 17]]], :time 1250300}

Lines that are alike are read as columns: in large files by compiled functions (`_scanner`), whose
first use takes seconds, in others by taking the lines apart at their colons. Both leave the lines
that they are not certain of to `_edn`, which reads them one by one, with the same result. Of two
errors in one value, a message may name either.

An operation may span lines, and a line may have several operations. A literal that cannot be read
does not matter under a key that is not needed.

Files that are not of this form are read form by form (`columns_of_forms`): maps that span lines, a
vector of maps, and JSON, whose objects stand one after the other or in an array. An object (a map)
with a `history` stands for that array. JSON's strings stand for EDN's keywords, and a number such
as 3.0 is the whole number 3.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
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
COMPILED_BYTES = 4 << 20  # of JSON, from which on the scanner's start pays, if not its compilation
MAX_SAMPLES = 16  # orders of keys in one piece
FEW_LINES = 64  # not worth a sample
SEPARATOR = b" :"
STRING = r'"[ !#-Z^-z|~]*"'  # without brackets: it is certain where collections begin
PLAIN = rf"^#?(?:[ !$-:<-\[\]_-}}]|{STRING})+$"  # no comment or tag; a tag may begin the line
TAG = re.compile(rb"(?:#[A-Za-z][A-Za-z0-9_./-]*)?")
NUMBER = r"(?:0|[1-9][0-9]{0,17})"
WORD = r"[A-Za-z][A-Za-z0-9_-]*"
VECTOR = rf"^\[:(?P<word>{WORD})(?:[ ,].*)?\]$"  # that begins with a keyword
TEXT = r'^\[?":?(?P<word>[^"]*)"'  # a string, or a vector that begins with one
ATOM = rf"(?:-?(?:0|[1-9][0-9]*)|:?{WORD}|{STRING}|~)"
COLLECTION = rf"\[(?:{ATOM}(?:,? {ATOM})*)?\]|\{{(?:{ATOM} {ATOM}(?:,? {ATOM} {ATOM})*)?\}}"
DEEPEST = 8  # collections in each other that are read as columns
SCANNED = 1 << 16  # objects of JSON that become columns together
NAMED, NO_PROCESS = -2, -3  # processes: `actor` has the name; the line has no process
MAX_PROCESSES = 1 << 31
MAX_LINES = 5_000  # of one operation
EMPTY_WORDS = ("empty", "exhausted", "drained", "no-more", "queue-empty", "empty-queue", "nothing")
NAMELESS, UNKNOWN = -1, -2  # indices of f, besides the format's own
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


def columns_of(
    data: bytes, first_line: int, fs: Sequence[str], slips: Slips, beside: str = ""
) -> pa.RecordBatch:
    """Return the FIELDS of all operations in whole lines. `beside`: another key to return."""
    if not is_worth_compiling():
        return _taken_apart(data, first_line, fs, slips, beside)
    from harness.importers import _scanner

    view = np.frombuffer(data, np.uint8)
    count = data.count(b"\n") + (not data.endswith(b"\n"))
    (numbers, spans), good = _room(count), np.empty(count, np.bool_)
    _scanner.scan_lines(view, _scanner.word_table(fs, EMPTY_WORDS, beside), numbers, spans, good)
    if good.all():
        return _scanned(view, first_line + np.arange(count), numbers, spans, json=False)
    at = np.flatnonzero(good)
    found = _scanned(view, first_line + at, numbers[:, at], spans[:, :, at], json=False)
    rest = np.flatnonzero(~good)
    ends = np.append(np.flatnonzero(view == ord("\n")), len(data))
    starts = np.append(0, ends + 1)
    raw = [data[starts[n] : ends[n]] for n in rest.tolist()]
    other = _one_by_one(raw, (first_line + rest).tolist(), fs, slips, beside)
    return sorted_by_line([found, other])


def sorted_by_line(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return all rows of FIELDS in the order of their lines."""
    joined = _joined(batches)
    line = joined["line"].to_numpy()
    if (np.diff(line) >= 0).all():
        return joined
    return joined.take(pa.array(np.argsort(line, kind="stable")))


def load_scanner() -> None:
    """Let this process read all lines by compiled functions."""
    import_module(f"{__package__}._scanner")


def is_worth_compiling(size_bytes: int = 0) -> bool:
    """Return whether to read so many bytes by compiled functions: many, or any if `load_scanner`
    was called."""
    return size_bytes >= COMPILED_BYTES or f"{__package__}._scanner" in sys.modules


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    arrays = [pa.concat_arrays([batch.column(name) for batch in batches]) for name in FIELDS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=FIELDS)


def _room(count: int) -> tuple[Ints, Ints]:
    """Return room for the numbers and the spans of so many operations."""
    return np.empty((5, count), np.int64), np.empty((3, 2, count), np.int64)


def _scanned(view: Any, lines: Ints, numbers: Ints, spans: Ints, *, json: bool) -> pa.RecordBatch:
    """Return the FIELDS that `_scanner` found."""
    kind, process, f, time, error = numbers
    value, beside = (_texts(view, each, json=json) for each in spans[:2])
    name = _texts(view, spans[2], json=False)
    return batch_of(
        {
            "line": lines,
            "type": kind,
            "process": process,
            "f": f,
            "time": time,
            "error": error,
            "value": value,
            "beside": beside,
            "name": name,
            "actor": pa.nulls(len(lines), pa.binary()),
        }
    )


def _texts(view: Any, spans: Ints, *, json: bool) -> pa.BinaryArray:
    """Return the texts of spans; null where they are below 0."""
    from harness.importers import _scanner

    starts, stops = spans
    texts = np.empty(int((stops - starts).sum()), np.uint8)
    ends = np.zeros(len(starts) + 1, np.int32)
    size = _scanner.copy_texts(view, spans, json, texts, ends)
    there = np.packbits(starts >= 0, bitorder="little")
    buffers = [pa.py_buffer(each) for each in (there, ends, texts[:size])]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def is_true(column: pa.Array) -> Bools:
    """Return where a column is true, and not null."""
    true: Bools = column.fill_null(False).to_numpy(zero_copy_only=False)
    return true


def batch_of(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return columns, arrays or lists, as FIELDS."""
    arrays = [pa.array(columns[field.name], field.type) for field in FIELDS]
    return pa.RecordBatch.from_arrays(arrays, schema=FIELDS)


def text_at(column: pa.BinaryArray, row: int) -> str | None:
    """Return a text of FIELDS; bytes that are not UTF-8 are replaced."""
    found: bytes | None = column[row].as_py()
    return None if found is None else found.decode(errors="replace")


# ------------------------------------------------------------------------------ taken apart


@dataclass(frozen=True)
class _Sample:
    """The keys of a line in order, and for each whether its value is a keyword."""

    prefix: bytes
    keys: tuple[tuple[str, bool], ...]

    @property
    def colons(self) -> int:
        return len(self.keys) - 1 + sum(keyword for _, keyword in self.keys)

    @classmethod
    def of(cls, line: bytes) -> "_Sample | None":
        """Return the sample that a line gives, if it can be one."""
        try:
            form = _edn.read(line.decode())
        except ValueError:
            return None
        if not isinstance(form, dict) or not all(isinstance(k, _edn.Keyword) for k in form):
            return None
        keys = tuple((str(k), isinstance(v, _edn.Keyword)) for k, v in form.items())
        known, prefix = dict(keys), line[: line.index(b"{")]
        good = known.get("type") and known.get("f", True) and known.get("process") is False
        return cls(prefix, keys) if good and TAG.fullmatch(prefix) else None


def _taken_apart(
    data: bytes, first_line: int, fs: Sequence[str], slips: Slips, beside: str
) -> pa.RecordBatch:
    """Return the FIELDS of lines: those with the same keys in the same order become columns."""
    lines = pc.split_pattern(pa.array([data]), b"\n").flatten()
    colons = pc.count_substring(lines, SEPARATOR).to_numpy()
    plain = _matches(lines, PLAIN)
    waiting = np.flatnonzero(plain)
    slow = [np.flatnonzero(~plain)]
    found: list[pa.RecordBatch] = []
    while len(found) < MAX_SAMPLES and len(waiting) > FEW_LINES:
        fits = np.zeros(len(waiting), np.bool_)
        if sample := _Sample.of(lines[int(waiting[0])].as_py()):
            alike = waiting[colons[waiting] == sample.colons]
            there = lines.take(pa.array(alike))
            batch, good = _at_once(there, first_line + alike, sample, fs, beside)
            fits[np.searchsorted(waiting, alike[good])] = True
            found.append(batch)
        if not fits[0]:
            fits[0] = True
            slow.append(waiting[:1])
        waiting = waiting[~fits]
    rest = np.sort(np.concatenate([*slow, waiting]))
    numbers = (first_line + rest).tolist()
    found.append(_one_by_one(lines.take(pa.array(rest)).to_pylist(), numbers, fs, slips, beside))
    return sorted_by_line(found)


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
        good &= _matches(found[name], f"^{WORD}$") if keyword else _is_certain(found[name])
    absent = pa.nulls(len(lines), pa.binary())
    keywords = dict(sample.keys)
    kind = pc.index_in(found["type"], _words(TYPES)).fill_null(-1).to_numpy()
    good &= kind >= 0
    process = _whole(found["process"], good)
    good &= process < MAX_PROCESSES
    time = _whole(found["time"], good) if "time" in found else np.full(len(lines), UNTIMED)
    error = np.full(len(lines), NO_ERROR)
    if "error" in found:
        error = _errors(found["error"], keywords["error"], good)

    def text_of_key(name: str) -> pa.BinaryArray:
        column = found.get(name, absent)
        if keywords.get(name):
            return pc.binary_join_element_wise(b":", column, b"")
        return pc.if_else(pc.equal(column, b"nil"), None, column)

    f = pc.index_in(found.get("f", absent), _words(fs))
    columns_found = {
        "line": number,
        "type": np.array([int(t) for t in TYPES.values()])[kind],
        "process": process,
        "f": f.fill_null(UNKNOWN if "f" in found else NAMELESS).to_numpy(),
        "time": time,
        "error": error,
        "value": text_of_key("value"),
        "beside": text_of_key(beside),
        "name": found.get("f", absent),
        "actor": absent,
    }
    return batch_of(columns_found).filter(pa.array(good)), good


def _is_certain(column: pa.BinaryArray) -> Bools:
    """Return which texts are one form of numbers, words, strings and collections, which `_edn`
    reads as it is: collections without others become `~`, until none is left."""
    texts = column.view(pa.string())
    for _ in range(DEEPEST):
        known = _matches(texts, f"^{ATOM}$")
        if known.all():
            break
        texts = pc.replace_substring_regex(texts, COLLECTION, "~")
    return _matches(texts, f"^{ATOM}$")


def _matches(column: pa.BinaryArray, pattern: str) -> Bools:
    return is_true(pc.match_substring_regex(column, pattern))


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
    """Return whole numbers. Texts that are none are 0, and not `good`."""
    whole = _matches(column, f"^{NUMBER}$")
    good &= whole
    numbers = pc.if_else(pa.array(whole), column, b"0").view(pa.string()).cast(pa.int64())
    found: Ints = numbers.to_numpy()
    return found


def _errors(column: pa.BinaryArray, keyword: bool, good: Bools) -> Ints:
    """Return the error that each value, or the keyword that begins a vector, stands for. What is
    not certain is not `good`."""
    nil, words = np.zeros(len(column), np.bool_), column.view(pa.string())
    if not keyword:
        nil = is_true(pc.equal(column, b"nil"))
        found = (pc.struct_field(pc.extract_regex(words, each), 0) for each in (VECTOR, TEXT))
        words = pc.coalesce(*found)
        good &= nil | is_true(words.is_valid())
    spelt = pc.replace_substring(pc.ascii_lower(words), "_", "-")
    empty = is_true(pc.is_in(spelt, value_set=pa.array(EMPTY_WORDS)))
    return np.where(nil, NO_ERROR, np.where(empty, EMPTY, FAILED))


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
    return batch_of(columns)


# ------------------------------------------------------------------------------- form by form


def columns_of_forms(
    data: bytes, fs: Sequence[str], slips: Slips, beside: str = ""
) -> pa.RecordBatch:
    """Return the FIELDS of all operations in a file: in EDN with the last line of each, in JSON
    with its first."""
    if is_json(data):
        found = _columns_of_objects(data, fs, slips, beside)
    else:
        rows: list[OperationFields] = []
        lines: list[int] = []
        for line, form in _edn_forms(data, slips):
            if fields := fields_of(form, line, slips, beside):
                rows.append(fields)
                lines.append(line)
        found = columns_from(rows, lines, fs)
    line_of = found["line"].to_numpy()
    if len(np.unique(line_of)) == len(line_of):
        return found
    # several maps in a line: operations are counted instead
    return found.set_column(0, FIELDS[0], pa.array(np.arange(1, 1 + len(line_of))))


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


def _columns_of_objects(
    data: bytes, fs: Sequence[str], slips: Slips, beside: str
) -> pa.RecordBatch:
    """Return the FIELDS of objects of JSON. Python reads those that the scanner leaves."""
    text, whole = decoded(data)
    scan = _ObjectScan(data, fs, beside) if whole and is_worth_compiling(len(data)) else None
    at = _after_gap(text, 0)
    at += text.startswith("[", at)
    line = 1 + text.count("\n", 0, at)
    rows: list[OperationFields] = []
    lines: list[int] = []
    order: list[int] = []
    count = 0  # of rows so far
    while True:
        if scan:
            count, at, line = scan.go_on(text, at, line, count)
        gap, at = at, _after_gap(text, at)
        line += text.count("\n", gap, at)
        if at >= len(text) or text[at] == "]":
            break
        forms, after = _json_form(text, at, line, slips, whole=whole)
        for form in forms:
            if found := fields_of(form, line, slips, beside):
                rows.append(found)
                lines.append(line)
                order.append(count)
                count += 1
        line += text.count("\n", at, after)
        at = after
    others = columns_from(rows, lines, fs)
    return scan.joined(others, order) if scan else others


def _after_gap(text: str, at: int) -> int:
    return _BETWEEN.match(text, at).end()  # type: ignore[union-attr]


def _json_form(
    text: str, at: int, line: int, slips: Slips, *, whole: bool
) -> tuple[Sequence[Any], int]:
    """Return the operations of the form that begins here, and where it ends."""
    try:
        found, after = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as e:
        what = f"not JSON: {getattr(e, 'msg', 'nested too deep, or a number too long')}"
        slips.add(Slip("NOT_JSON", line, what, gap=True))
        following = text.find("\n", at)
        return (), len(text) if following < 0 else following
    if not whole and "\ufffd" in text[at:after]:
        slips.add(Slip("NOT_JSON", line, "not UTF-8", gap=True))
        return (), after
    return [_with_whole_numbers(each) for each in _operations_in(found)], after


class _ObjectScan:
    """A scan of the objects of a file, which can be interrupted for others. Scanned objects are
    turned into FIELDS when there are many."""

    def __init__(self, data: bytes, fs: Sequence[str], beside: str) -> None:
        from harness.importers import _scanner

        self._scan = _scanner.scan_objects
        self._words = _scanner.word_table(fs, EMPTY_WORDS, beside, "null")
        self._view = np.frombuffer(data, np.uint8)
        self._byte, self._char = 0, 0  # the same place, in bytes and in characters
        self._line, self._order = np.empty(SCANNED, np.int64), np.empty(SCANNED, np.int64)
        self._numbers, self._spans = _room(SCANNED)
        self._used = 0
        self._found: list[pa.RecordBatch] = []
        self._orders: list[Ints] = []

    def go_on(self, text: str, at: int, line: int, count: int) -> tuple[int, int, int]:
        """Scan from a character on. `count`: the rows before it. Return the rows before the end of
        the scan, and its character and line."""
        self._byte += len(text[self._char : at].encode())
        while True:
            used, byte, line = self._scan(
                self._view,
                self._byte,
                line,
                self._used,
                self._words,
                self._line,
                self._numbers,
                self._spans,
            )
            more = used - self._used
            self._order[self._used : used] = np.arange(count, count + more)
            self._used, count = used, count + more
            at, self._byte = at + byte - self._byte, byte  # it takes nothing beyond ASCII
            self._char = at
            if self._used < SCANNED:
                return count, at, line
            self._flush()

    def _flush(self) -> None:
        n, self._used = self._used, 0
        numbers, spans = (each[..., :n].copy() for each in (self._numbers, self._spans))
        lines = self._line[:n].copy()
        self._found.append(_scanned(self._view, lines, numbers, spans, json=True))
        self._orders.append(self._order[:n].copy())

    def joined(self, others: pa.RecordBatch, order: Sequence[int]) -> pa.RecordBatch:
        """Return all rows in order; `others` has those that were not scanned."""
        self._flush()
        places = np.concatenate([*self._orders, np.array(order, np.int64)])
        joined = _joined([*self._found, others])
        return joined.take(pa.array(np.argsort(places))) if order else joined


def _with_whole_numbers(form: Any) -> Any:
    """Turn numbers without a fraction into whole ones."""
    if isinstance(form, float) and form.is_integer():
        return int(form)
    if isinstance(form, list):
        return [_with_whole_numbers(each) for each in form]
    if isinstance(form, dict):
        return {key: _with_whole_numbers(value) for key, value in form.items()}
    return form
