"""Find where the fields of a trial are written, for error messages.

A trial is composed of flags, a trial file and the `[trial]` tables of its plans. Whether a name in
it is valid is only known when it is complete, so the source of each field is kept: an unknown name,
or an option such as `load.rate` that its owner refuses, is reported with the file, the line and the
key. Flags have no file; their user sees them.
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
class TrialSource:
    """Fields that are set in one place, with the text and name of the file if it is one."""

    table: Mapping[str, Any]
    text: str = ""
    source: str = ""

    def path_to_name(self, field: str, name: str) -> tuple[str | int, ...]:
        """Return the path to where the field has this name, as a key or as a value; empty if it
        does not."""
        value = self.table.get(field)
        if isinstance(value, Mapping):
            return next(((field, key) for key, held in value.items() if name in (key, held)), ())
        if isinstance(value, list | tuple):
            return next(((field, at) for at, held in enumerate(value) if _mentions(held, name)), ())
        return (field,) if value == name else ()

    def mentioned_option(self, message: str) -> tuple[str, str] | None:
        """Return the field and the option set here that a message mentions."""
        for field, value in self.table.items():
            for option in value if isinstance(value, Mapping) else ():
                if re.search(rf"\b{re.escape(f'{field}.{option}')}(?!\w)", message):
                    return field, option
        return None


def _mentions(held: object, name: str) -> bool:
    """Whether it is this name, or a selector such as `one master -> slave` with it."""
    return held == name or (isinstance(held, str) and name in re.findall(r"[\w-]+", held))


def source_position(error: BadRequest, written: Sequence[TrialSource]) -> str:
    """Return `smoke.toml line 3: settings` for the first source that sets what is refused; empty if
    it is not a file."""
    if isinstance(error, UnknownName):
        return _position_of_name(error, written)
    for one in written:
        if error.key in one.table:
            return f"{one.source}{line_of(one.text, error.key)}: {error.key}" if one.source else ""
        if option := one.mentioned_option(str(error)):
            return f"{one.source}{line_of(one.text, *option)}" if one.source else ""
    return ""


def _position_of_name(error: UnknownName, written: Sequence[TrialSource]) -> str:
    fields = FAULTS if error.kind == "fault" else (FIELDS.get(error.kind, error.kind),)
    for one in written:
        for field in fields:
            if path := one.path_to_name(field, error.name):
                return f"{one.source}{line_of(one.text, *path)}: {field}" if one.source else ""
    return ""
