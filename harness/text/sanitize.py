"""Sanitize text for XML, files and terminals: names of files, errors, another person's run.

XML 1.0 has no surrogates or control letters. A terminal obeys control letters, also those of eight
bits (CSI is U+009B), and may overwrite lines. Only tabs and newlines are kept. Letters that reverse
the direction of writing make a name look like another one.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

UNPRINTABLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff"  # control letters, halves
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # directions, ends of lines
)
STYLES = re.compile(r"\x1b\[[0-9;]*m")  # what sets the colors of a terminal

MASK = "***"
MIN_SECRET = 8  # letters: a shorter value may be a word of any sentence
_WORDS = "token|secret|passw(?:or)?d|credential|(?:api|access|private|secret)[_-]?key"
SECRET_NAME = re.compile(rf"{_WORDS}|_key$", re.IGNORECASE)
SECRET = re.compile(rf"((?:{_WORDS})[\w.-]*=)[^;&,\s'\"]+", re.IGNORECASE)
USER_INFO = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")

T = TypeVar("T")


def sanitize(text: str) -> str:
    """Replace each unprintable letter with a replacement character."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def sanitize_all(value: T) -> T:
    """Sanitize all text in mappings, lists, tuples and dataclasses."""
    return map_text(value, sanitize)


def map_text(value: T, change: Callable[[str], str]) -> T:
    """Change all text in mappings, lists, tuples and dataclasses."""
    made: Any = value
    if type(made) is str:
        made = change(made)
    elif isinstance(value, Mapping):
        made = {map_text(name, change): map_text(item, change) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(map_text(item, change) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: map_text(getattr(value, one.name), change) for one in fields(value)}
        made = replace(value, **parts)
    result: T = made
    return result


def mask_secrets(text: str) -> str:
    """Mask secrets in a text: tokens and passwords in addresses, and the values of environment
    variables whose names look secret."""
    for name, value in os.environ.items():
        if len(value) >= MIN_SECRET and SECRET_NAME.search(name):
            text = text.replace(value, MASK)
    return SECRET.sub(rf"\1{MASK}", USER_INFO.sub(rf"\1{MASK}@", text))
