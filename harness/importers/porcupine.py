"""Porcupine's histories: logs of one etcd register, and of a key-value store.

The logs are as Jepsen printed them: process, type, kind, value.

    INFO  jepsen.util - 3	:invoke	:cas	[1 4]
    INFO  jepsen.util - 3	:ok	:cas	[1 4]

There are no times, so a line counts as a microsecond. A cas that fails without an error was refused
by its comparison. Lines of other loggers, and of the nemesis (`:nemesis`), are skipped.

The key-value histories have `:put`, `:append` to a string, and `:get`, by key.

    {:process 0, :type :invoke, :f :append, :key "4", :value "x 0 1 y"}

The maps may be EDN or JSON, one on each line or all in one vector. Strings are numbered;
`names.json` has them under "values", so `append` and `get` are about texts. A key that holds the
empty string was never written.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers._jepsen import (
    DecodedPiece,
    Format,
    JepsenEvent,
    OperationLines,
    Piece,
    decode_rows,
    importer,
    merged,
    piece_of,
    recorded,
    unexpected,
)
from harness.importers._lines import (
    TYPES,
    OperationFields,
    batch_of,
    columns_from,
    is_true,
    sorted_by_line,
)
from harness.importers._recording import (
    FAILED,
    NO_ERROR,
    PARTS,
    SAME,
    UNTIMED,
    Ints,
    PartsBuilder,
    Recording,
    Slip,
    Slips,
)
from harness.importers._source import text_of
from harness.importers.jepsen import FORMATS
from harness.operation import F, Type

LOG = replace(FORMATS["jepsen-register"], name="porcupine", keyed=None)
CHUNK_CHARACTERS = 1 << 21
_NEMESIS = re.compile(r"jepsen\.util - :\w")
_LINE = re.compile(r"jepsen\.util - (\d{1,9})\s+:(\w+)\s+:([\w-]+)\s+(.*?)\s*$")
# lines of ASCII that `_LINE` matches in the same way, with one j: a second "jepsen.util - " may
# make the line one of the nemesis
_COMMON = (
    r"^[^j]*jepsen\.util - (?P<process>[0-9]{1,9})[ \t]+"
    rf":(?P<type>{'|'.join(TYPES)})[ \t]+:(?P<f>{'|'.join(LOG.operations)})[ \t]+"
    r"(?P<value>[!-ik-~](?:[ -ik-~]*[!-ik-~])?)[ \t\r]*$"
)
_PLAIN_TEXT = r'^"[^"\\]*"$'
_TIMED_OUT = ":timed-out"  # in place of the value


def read(path: Path) -> Recording:
    slips = Slips()
    text = text_of(path, slips)
    read: list[Piece] = []
    first, at = 1, 0
    while at < len(text):
        cut = text.find("\n", at + CHUNK_CHARACTERS)
        chunk = text[at : len(text) if cut < 0 else cut]
        read.append(piece_of(LOG, _columns(chunk, first, slips), Slips()))
        first, at = first + chunk.count("\n") + 1, at + len(chunk) + 1
    if not any(len(piece.events) for piece in read):
        raise BadRequest(
            f"{path} is not a Porcupine log (no line contains 'jepsen.util - ...'); its key-value "
            "histories are read with --as porcupine-kv"
        )
    return recorded(path, LOG, read, slips)


def _columns(text: str, first: int, slips: Slips) -> pa.RecordBatch:
    """Return the FIELDS of lines, of which the first has this number."""
    lines = pc.split_pattern(pa.array([text], pa.string()), "\n").flatten()
    found = pc.extract_regex(lines, _COMMON)
    common = found.is_valid().to_numpy(zero_copy_only=False)
    at = np.flatnonzero(common)
    process, kind, f, value = found.drop_null().flatten()
    late = pc.equal(value, _TIMED_OUT)
    columns = {
        "line": first + at,
        "type": np.array(list(TYPES.values()), np.int64)[_numbers(kind, tuple(TYPES))],
        "process": process.cast(pa.int64()),
        "f": _numbers(f, LOG.names),
        "time": np.full(len(at), UNTIMED),
        "error": np.where(late.to_numpy(zero_copy_only=False), FAILED, NO_ERROR),
        "value": pc.if_else(late, "nil", value).cast(pa.binary()),
        "beside": pa.nulls(len(at)),
        "name": f.cast(pa.binary()),
        "actor": pa.nulls(len(at)),
    }
    rest = np.flatnonzero(~common)
    texts = lines.take(pa.array(rest)).to_pylist()
    other = _one_by_one(texts, (first + rest).tolist(), slips)
    return sorted_by_line([batch_of(columns), other])


def _numbers(column: pa.StringArray, names: Sequence[str]) -> Ints:
    found: Ints = pc.index_in(column, pa.array(names, column.type)).to_numpy().astype(np.int64)
    return found


def _one_by_one(texts: Sequence[str], numbers: Sequence[int], slips: Slips) -> pa.RecordBatch:
    rows: list[OperationFields] = []
    lines: list[int] = []
    for number, line in zip(numbers, texts, strict=True):
        if "jepsen.util - " not in line or _NEMESIS.search(line):
            continue
        match = _LINE.search(line)
        if match is None or match[2] not in TYPES or match[3] not in LOG.operations:
            what = "not a line of process, type, :read, :write or :cas, and value"
            slips.add(Slip("ODD_LINE", number, what, gap=True))
            continue
        late = match[4] == _TIMED_OUT
        value, error = ("nil", FAILED) if late else (match[4], NO_ERROR)
        process, kind = int(match[1]), TYPES[match[2]]
        rows.append(OperationFields(kind, process, match[3], UNTIMED, value, error))
        lines.append(number)
    return columns_from(rows, lines, LOG.names)


def key_value(parts: PartsBuilder, event: JepsenEvent, f: F) -> None:
    if type(event.key) not in (str, int):
        raise unexpected(event.key, "a :key, which must be a string")
    if type(event.value) not in (str, type(None)):
        raise unexpected(event.value, "a string")
    if f is F.GET:
        value = event.value if event.type == Type.OK else None
        parts.add(event.number, f, event.key, value or None)
    elif event.type <= Type.OK:
        parts.add(event.number, f, event.key, event.value or None)


def decode(lines: OperationLines, slips: Slips) -> DecodedPiece:
    """Decode keys and values that are plain texts as columns, and others one by one."""
    value, key = (column.cast(pa.string()) for column in (lines.value, lines.beside))
    absent = is_true(pc.equal(value, "nil")) | ~is_true(value.is_valid())
    plain, named = (is_true(pc.match_substring_regex(each, _PLAIN_TEXT)) for each in (value, key))
    good = (absent | plain) & named
    kept = good & (lines.of_kinds("get") | (lines.type <= Type.OK))
    at = np.flatnonzero(kept)
    text, name = (pc.utf8_slice_codeunits(each.take(pa.array(at)), 1, -1) for each in (value, key))
    unknown = lines.of_kinds("get") & (lines.type != Type.OK)
    empty = (absent | unknown)[at] | is_true(pc.equal(text, ""))
    shown = pa.nulls(len(at)) if empty.all() else pc.if_else(pa.array(empty), None, text)
    operation = np.array([f for f, _ in KEY_VALUE.operations.values()], np.int64)
    columns = {
        "event": at,
        "f": operation[lines.f[at]],
        "type": np.full(len(at), SAME),
        "key": name if len(at) else pa.nulls(0),
        "value": shown,
    }
    parts = {each: pa.array(columns.get(each, pa.nulls(len(at)))) for each in PARTS}
    texts = {each for each in ("key", "value") if pa.types.is_string(parts[each].type)}
    fast = pa.table(
        {
            each: column if each in texts else column.cast(PARTS[each])
            for each, column in parts.items()
        }
    )
    rest = np.flatnonzero(~good)
    if not len(rest):
        return DecodedPiece(fast)
    slow = decode_rows(KEY_VALUE, lines.take(rest), slips).parts
    event = pa.array(rest[slow.column("event").to_numpy()], pa.int64())
    return DecodedPiece(merged([fast, slow.set_column(0, "event", event)]))


KEY_VALUE = Format(
    "porcupine-kv",
    "Porcupine's key-value histories: `:put`, `:append` to a string, and `:get`, by key.",
    "registers",
    {"get": (F.GET, key_value), "put": (F.PUT, key_value), "append": (F.APPEND, key_value)},
    columns=decode,
    beside="key",
)
PLUGINS = {
    "porcupine": ImporterPlugin(
        read=read,
        description="Porcupine's logs of one etcd register, as Jepsen printed them: process, type,"
        " kind, value.",
    ),
    "porcupine-kv": importer(KEY_VALUE),
}
