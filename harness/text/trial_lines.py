"""Where the fields of a trial are written, for whoever has to correct one.

A trial is laid together from flags, a trial file and the `[trial]` tables of its plans. That a name
in it means nothing is only known when it is whole, so where each field came from is kept: an
unknown name, or an option such as `load.rate` that its owner refuses, is told with the file, the
line and the key. Flags have none; who wrote them sees them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import BadRequest, UnknownName
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
FAULTS = ("claims", "survives", "faults")


@dataclass(frozen=True)
class Written:
    """Fields that are set in one place, and the file's text and name where it is one."""

    table: Mapping[str, Any]
    text: str = ""
    source: str = ""

    def naming(self, field: str, name: str) -> tuple[str | int, ...]:
        """What leads to where the field names this, as a key or as a value; nothing where it does
        not."""
        value = self.table.get(field)
        if isinstance(value, Mapping):
            return next(((field, key) for key, held in value.items() if name in (key, held)), ())
        if isinstance(value, list | tuple):
            return next(((field, at) for at, held in enumerate(value) if _says(held, name)), ())
        return (field,) if value == name else ()

    def option(self, told: str) -> tuple[str, str] | None:
        """The field and the option that are set here, of which these words speak."""
        for field, value in self.table.items():
            for option in value if isinstance(value, Mapping) else ():
                if re.search(rf"\b{re.escape(f'{field}.{option}')}(?!\w)", told):
                    return field, option
        return None


def _says(held: object, name: str) -> bool:
    """Whether it is this name, or a selector such as `one master -> slave` with it."""
    return held == name or (isinstance(held, str) and name in re.findall(r"[\w-]+", held))


def place_of(error: BadRequest, written: Sequence[Written]) -> str:
    """`smoke.toml line 3: settings` for the first that sets what is refused; nothing where that
    is no file."""
    if isinstance(error, UnknownName):
        return _place_of_name(error, written)
    for one in written:
        if error.key in one.table:
            return f"{one.source}{line_of(one.text, error.key)}: {error.key}" if one.source else ""
        if found := one.option(str(error)):
            return f"{one.source}{line_of(one.text, *found)}" if one.source else ""
    return ""


def _place_of_name(error: UnknownName, written: Sequence[Written]) -> str:
    fields = FAULTS if error.kind == "fault" else (FIELDS.get(error.kind, error.kind),)
    for one in written:
        for field in fields:
            if path := one.naming(field, error.name):
                return f"{one.source}{line_of(one.text, *path)}: {field}" if one.source else ""
    return ""
