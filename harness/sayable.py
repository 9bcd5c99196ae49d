"""Text that XML, files and terminals can be given, whatever it came from: a file's name, an error,
a run of somebody else's.

No XML 1.0 has half a letter, or a control letter. A terminal obeys control letters, also those of
eight bits (CSI is U+009B), and goes back over a line where it is told to. Only tabs and ends of
lines are left of them.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

UNSAYABLE = re.compile("[^\t\n\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

T = TypeVar("T")


def sayable(text: str) -> str:
    """The same; a sign stands for each letter that can not be written."""
    return UNSAYABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def printable(value: T) -> T:
    """The same with all text in it sayable: of mappings, lists, tuples and dataclasses."""
    made: Any = value
    if type(made) is str:
        made = sayable(made)
    elif isinstance(value, Mapping):
        made = {printable(name): printable(item) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(map(printable, value))
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: printable(getattr(value, one.name)) for one in fields(value)}
        made = replace(value, **parts)
    result: T = made
    return result
