"""Porcupine's logs of one etcd register, as Jepsen printed them: process, type, kind, value.

    INFO  jepsen.util - 3	:invoke	:cas	[1 4]
    INFO  jepsen.util - 3	:ok	:cas	[1 4]

There are no times, so a line counts as a microsecond. A cas that fails without an error was refused
by its comparison. Lines of other loggers, and of the nemesis (`:nemesis`), are skipped.
"""

import re
from dataclasses import replace
from pathlib import Path

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers import jepsen_register
from harness.importers._jepsen import piece_of, recorded
from harness.importers._lines import TYPES, OperationFields, columns_from
from harness.importers._recording import FAILED, NO_ERROR, UNTIMED, Recording, Slip, Slips
from harness.importers._source import text_of

FORMAT = replace(jepsen_register.FORMAT, name="porcupine", keyed=None)
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
        if match is None or match[2] not in TYPES or match[3] not in FORMAT.fs:
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
    piece = piece_of(FORMAT, columns_from(rows, lines, FORMAT.names), Slips())
    return recorded(path, FORMAT, [piece], slips)


PLUGIN = ImporterPlugin(read=read)
