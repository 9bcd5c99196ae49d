"""Text that XML, files and terminals can be given, whatever it came from: a file's name, an error,
a run of somebody else's.

No XML 1.0 has half a letter, or a control letter. A terminal obeys control letters, also those of
eight bits (CSI is U+009B), and goes back over a line where it is told to. Only tabs and ends of
lines are left of them. Letters that reverse the direction of writing show a name as another one.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

UNSAYABLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"  # control letters, halves
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # directions, ends of lines
)

MASK = "***"
MIN_SECRET = 8  # letters: a shorter value may be a word of any sentence
_WORDS = "token|secret|passw(?:or)?d|credential|(?:api|access|private|secret)[_-]?key"
SECRET_NAME = re.compile(rf"{_WORDS}|_key$", re.IGNORECASE)
SECRET = re.compile(rf"((?:{_WORDS})[\w.-]*=)[^;&,\s'\"]+", re.IGNORECASE)
USER_INFO = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")

T = TypeVar("T")


def sayable(text: str) -> str:
    """The same; a sign stands for each letter that can not be written."""
    return UNSAYABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def printable(value: T) -> T:
    """The same with all text in it sayable: of mappings, lists, tuples and dataclasses."""
    return each_text(value, sayable)


def each_text(value: T, change: Callable[[str], str]) -> T:
    """The same with all text in it changed: of mappings, lists, tuples and dataclasses."""
    made: Any = value
    if type(made) is str:
        made = change(made)
    elif isinstance(value, Mapping):
        made = {each_text(name, change): each_text(item, change) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(each_text(item, change) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: each_text(getattr(value, one.name), change) for one in fields(value)}
        made = replace(value, **parts)
    result: T = made
    return result


def masked(text: str) -> str:
    """The text without secrets: tokens and passwords of addresses, and the values of environment
    variables whose names say that they are secret."""
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET and SECRET_NAME.search(name):
            text = text.replace(value, MASK)
    return SECRET.sub(rf"\1{MASK}", USER_INFO.sub(rf"\1{MASK}@", text))
