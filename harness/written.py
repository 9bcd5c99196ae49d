"""Where the fields of a trial are written, for whoever has to correct one.

A trial is laid together from flags, a trial file and the `[trial]` tables of its plans. That a name
in it means nothing is only known when it is whole, so where each field came from is kept: an
unknown name is told with the file, the line and the key. Flags have none; who wrote them sees them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import UnknownName
from harness.trial import line_of

FIELDS = {  # of which field a name of this kind is
    "setting": "settings",
    "mutant": "settings",
    "role": "nodes",
    "node in zones": "zones",
    "key in zone_latency": "zone_latency",
    "target": "targets",
    "checker": "checkers",
    "demand of the contract": "contract",
}
FAULTS = ("survives", "faults")


@dataclass(frozen=True)
class Written:
    """Fields that are set in one place, and the file's text and name where it is one."""

    table: Mapping[str, Any]
    text: str = ""
    source: str = ""

    def names(self, field: str, name: str) -> bool:
        """Whether the field is set here, and names this."""
        value = self.table.get(field, "")
        held = (*value, *value.values()) if isinstance(value, Mapping) else value
        return name == value if isinstance(held, str) else name in held


def place_of(error: UnknownName, written: Sequence[Written]) -> str:
    """`smoke.toml line 3: settings` for the first that names it; nothing where it is no file."""
    fields = FAULTS if error.kind == "fault" else (FIELDS.get(error.kind, error.kind),)
    for one in written:
        for field in fields:
            if one.names(field, error.name):
                return f"{one.source}{line_of(one.text, field)}: {field}" if one.source else ""
    return ""
