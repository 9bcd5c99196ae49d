"""What a command answers: rows under names, printed as columns for people or as JSON. Pure.

    brokerName  masterId  masterAddr        set
    set-1              2  10.0.0.6:10911    1,2,3

Columns are named as the fields that they are in JSON, and are divided by two spaces or more, so
`awk` and `cut` find them. What is unknown is `-`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusters.flotilla.net.wire import Json, Status

Rows = Sequence[Mapping[str, Any]]
GAP = "  "


@dataclass(frozen=True)
class Answer:
    """Tables by name, or a sentence that says what is done."""

    tables: Mapping[str, Rows] = field(default_factory=dict)
    says: str = ""

    def json(self) -> str:
        said = {"says": self.says} if self.says else {}
        return json.dumps({"status": Status.SUCCESS.name, "code": 0, **said, **self.tables})

    def text(self) -> str:
        parts = [self.says] if self.says else []
        for name, rows in self.tables.items():
            parts.append(columns(rows) if rows else f"no {name}")
        return "\n\n".join(parts)


def refused_json(status: Status, remark: str) -> str:
    return json.dumps({"status": status.name, "code": int(status), "remark": remark})


def columns(rows: Rows) -> str:
    """Numbers to the right, everything else to the left; no spaces at the ends of lines."""
    names = list(rows[0])
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    right = [all(_is_number(row.get(name)) for row in rows) for name in names]
    lines = [_line(line, widths, right) for line in cells]
    return "\n".join(lines)


def _line(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (
        text.rjust(width) if to_the_right else text.ljust(width)
        for text, width, to_the_right in zip(line, widths, right, strict=True)
    )
    return GAP.join(placed).rstrip()


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
    """Of a ReplicaInfo, who is the master."""
    return {key: info[key] for key in ("brokerName", "masterId", "masterAddr", "masterEpoch")}
