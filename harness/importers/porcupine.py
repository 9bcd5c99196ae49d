"""Porcupine's logs of one etcd register, as Jepsen printed them: process, type, kind, value.

    INFO  jepsen.util - 3	:invoke	:cas	[1 4]
    INFO  jepsen.util - 3	:ok	:cas	[1 4]

There are no times, so a line is a microsecond. A cas that fails without an error was refused by the
comparison itself. Lines of other loggers, and of the nemesis (`:nemesis`), are passed over.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from harness.contracts import ImporterPlugin
from harness.errors import BadRequest
from harness.importers._recording.recording import UNTIMED, Events, Recording, Sheet, Slip, Slips
from harness.importers._text import edn as _edn
from harness.importers._text.source import text_of
from harness.importers._text.value_events import Odd
from harness.importers.jepsen_register import said
from harness.operation import Type

TYPES = {"invoke": Type.INVOKE, "ok": Type.OK, "fail": Type.FAIL, "info": Type.INFO}
KINDS = ("read", "write", "cas")
_NEMESIS = re.compile(r"jepsen\.util - :\w")
_LINE = re.compile(r"jepsen\.util - (\d{1,9})\s+:(\w+)\s+:([\w-]+)\s+(.*?)\s*$")


def read(path: Path) -> Recording:
    slips = Slips()
    sheet = Sheet()
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for number, line in enumerate(text_of(path, slips).split("\n"), start=1):
        if "jepsen.util - " not in line or _NEMESIS.search(line):
            continue
        match = _LINE.search(line)
        if match is None or match[2] not in TYPES or match[3] not in KINDS:
            what = "not a line of process, type, :read, :write or :cas, and value"
            slips.add(Slip("ODD_LINE", number, what, gap=True))
            continue
        kind, error = TYPES[match[2]], match[4] == ":timed-out"
        before = len(sheet)
        try:
            said(sheet, len(rows), kind, match[3], 0, _value(match[4], error), error)
        except (Odd, _edn.Malformed) as e:
            sheet.cut(before)
            slips.add(Slip("ODD_VALUE", number, f"the value of :{match[3]}: {e}", gap=True))
        process = int(match[1])
        rows.append((number, UNTIMED, kind, process, KINDS.index(match[3]), error))
    if not rows:
        raise BadRequest(
            f"{path} is not a Porcupine log (no line contains 'jepsen.util - ...'); its key-value "
            "histories are read with --as porcupine-kv"
        )
    return Recording("registers", events_of(rows), sheet.table(), slips)


PLUGIN = ImporterPlugin(read=read)


def _value(text: str, error: bool) -> Any:
    return None if error else _edn.read(text)


def events_of(rows: list[tuple[int, int, int, int, int, bool]]) -> Events:
    """Events from rows of line, time, type, process, kind and whether there was an error."""
    line, t, kind, process, f, error = (np.array(column) for column in zip(*rows, strict=True))
    return Events(line, t, kind, process, f, error)
