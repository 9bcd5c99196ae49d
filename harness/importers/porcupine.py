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
from dataclasses import replace
from pathlib import Path

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers._jepsen import (
    Format,
    JepsenEvent,
    importer,
    piece_of,
    recorded,
    unexpected,
)
from harness.importers._lines import TYPES, OperationFields, columns_from
from harness.importers._recording import (
    FAILED,
    NO_ERROR,
    UNTIMED,
    PartsBuilder,
    Recording,
    Slip,
    Slips,
)
from harness.importers._source import text_of
from harness.importers.jepsen import FORMATS
from harness.operation import F, Type

LOG = replace(FORMATS["jepsen-register"], name="porcupine", keyed=None)
_NEMESIS = re.compile(r"jepsen\.util - :\w")
_LINE = re.compile(r"jepsen\.util - (\d{1,9})\s+:(\w+)\s+:([\w-]+)\s+(.*?)\s*$")
_TIMED_OUT = ":timed-out"  # in place of the value


def read(path: Path) -> Recording:
    slips = Slips()
    rows: list[OperationFields] = []
    lines: list[int] = []
    for number, line in enumerate(text_of(path, slips).split("\n"), start=1):
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
    if not rows:
        raise BadRequest(
            f"{path} is not a Porcupine log (no line contains 'jepsen.util - ...'); its key-value "
            "histories are read with --as porcupine-kv"
        )
    piece = piece_of(LOG, columns_from(rows, lines, LOG.names), Slips())
    return recorded(path, LOG, [piece], slips)


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


KEY_VALUE = Format(
    "porcupine-kv",
    "Porcupine's key-value histories: `:put`, `:append` to a string, and `:get`, by key.",
    "registers",
    {"get": (F.GET, key_value), "put": (F.PUT, key_value), "append": (F.APPEND, key_value)},
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
