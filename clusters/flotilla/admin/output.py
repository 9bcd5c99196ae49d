"""What a command returns: tables by name, printed as columns for people or as JSON. Pure.

    brokerName  masterId  masterAddr        set
    set-1              2  10.0.0.6:10911    1,2,3

A column has the name of the field in JSON. Columns are divided by two or more spaces, so `awk` and
`cut` find them. An unknown value is `-`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusters.flotilla.net.wire import Json, Status

Rows = Sequence[Mapping[str, Any]]
GAP = "  "


@dataclass(frozen=True)
class CommandOutput:
    """Tables by name, or a sentence about what was done."""

    tables: Mapping[str, Rows] = field(default_factory=dict)
    message: str = ""

    def json(self) -> str:
        says = {"says": self.message} if self.message else {}
        return json.dumps({"status": Status.SUCCESS.name, "code": 0, **says, **self.tables})

    def text(self) -> str:
        parts = [self.message] if self.message else []
        for name, rows in self.tables.items():
            parts.append(columns(rows) if rows else f"no {name}")
        return "\n\n".join(parts)


def refused_json(status: Status, remark: str) -> str:
    return json.dumps({"status": status.name, "code": int(status), "remark": remark})


def columns(rows: Rows) -> str:
    """Format rows as a table: numbers right-aligned, no spaces at line ends."""
    names = list(rows[0])
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    right = [all(_is_number(row.get(name)) for row in rows) for name in names]
    return "\n".join(_line(line, widths, right) for line in cells)


def _line(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = (
        text.rjust(width) if to_the_right else text.ljust(width)
        for text, width, to_the_right in zip(line, widths, right, strict=True)
    )
    return GAP.join(aligned).rstrip()


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    text = json.dumps(value) if isinstance(value, Mapping) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def master_row(info: Json) -> Json:
    """Return the fields of a ReplicaInfo that describe the master."""
    return {key: info[key] for key in ("brokerName", "masterId", "masterAddr", "masterEpoch")}
