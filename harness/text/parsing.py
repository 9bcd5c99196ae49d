"""What people write and machines damage: text, TOML, JSON and numbers, read in one way.

A file may hold anything: bytes that are no text, tables a thousand deep, numbers of a thousand
digits; a name may be one that no file can have. The libraries fail at each of them in a way of
their own. Here it is one sentence, or for JSON, whose files are ours, one error that every reader
of JSON expects. TOML promises whole numbers of 64 bits, and whoever counts nanoseconds or messages
has no room for more.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import BadRequest
from harness.suite.bundled import locate

MOST = 2**63 - 1  # the largest whole number
MOST_S = 1e9  # the longest time: 31 years, which are nanoseconds in 64 bits
DEEPEST = 32  # tables and lists within each other
MAX_TOML_BYTES = 2 << 20
MAX_JSON_BYTES = 128 << 20
MAX_JSON_VALUES = 8_000_000  # as objects of Python they take about 0.5 GB
SHOWN = 80  # letters of somebody's words that are repeated to them
DEEP_KEY = re.compile(  # tomllib takes quadratic time and memory for it
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST},}}"""
)
BYTE_ORDER_MARK = "\ufeff"


class NotTOML(BadRequest):
    """It does not read as TOML at all."""


def text_of(path: Path, what: str) -> str:
    """The text of a file, a bundled one if suites/... is not here. `what`: `the plan file`.

    Raises BadRequest if it is missing or unreadable.
    """
    try:
        text = bytes_of(locate(path), MAX_TOML_BYTES).decode()
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as e:
        raise BadRequest(f"{what} {path} does not exist") from e
    except UnicodeDecodeError as e:
        raise BadRequest(f"{what} {path} is not text in UTF-8") from e
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        why = getattr(e, "strerror", None) or e
        raise BadRequest(f"{what} {shown(str(path))} is unreadable: {why}") from e


def bytes_of(path: Path, most: int) -> bytes:
    """The content of a file. Raises ValueError if it has more than `most` bytes."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most >> 20} MB")
    return data


def parsed(text: str, source: str) -> dict[str, Any]:
    """TOML as a table. BadRequest names the line, and what stands there."""
    if text.startswith(BYTE_ORDER_MARK):
        raise NotTOML(
            f"{source} begins with a byte order mark, which TOML does not allow;"
            " save it as UTF-8 without one"
        )
    if DEEP_KEY.search(text):
        raise _too_deep(source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        at = re.search(r"at line (\d+)", str(e))
        there = "".join(text.split("\n")[int(at[1]) - 1 : int(at[1])]).strip() if at else ""
        raise NotTOML(f"{source} is not valid TOML: {e}{there and f': {shown(there)}'}") from e
    except RecursionError as e:
        raise _too_deep(source) from e
    except ValueError as e:  # more digits than Python reads
        raise BadRequest(f"{source} holds a number of too many digits; write less") from e
    for where, value in _parts(table, source):
        if isinstance(value, int) and not -MOST - 1 <= value <= MOST:
            raise BadRequest(f"{where} is too large a number; TOML knows whole ones of 64 bits")
    return table


def _parts(value: Any, source: str, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All that stands in a table, with its place. BadRequest when that is too deep."""
    if len(names) > DEEPEST:
        raise _too_deep(source)
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _parts(below, source, (*names, key))
    elif isinstance(value, list):
        for number, below in enumerate(value, start=1):
            yield from _parts(below, source, (*names, str(number)))
    else:
        yield f"{source}: {shown('.'.join(names))}", value


def _too_deep(source: str) -> BadRequest:
    return BadRequest(f"{source} is nested too deep; at most {DEEPEST} tables or lists in another")


def json_of(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if it is invalid, too large, or nested too deep."""
    marks = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if len(text) > MAX_JSON_BYTES or sum(map(text.count, marks)) > MAX_JSON_VALUES:  # type: ignore[arg-type]
        raise ValueError(
            f"it has more than {MAX_JSON_BYTES >> 20} MB or {MAX_JSON_VALUES:,} values"
        )
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ValueError("it is nested too deep") from e


def json_in(path: Path) -> Any:
    """Parse a JSON file. Raises ValueError as `json_of` does."""
    return json_of(bytes_of(path, MAX_JSON_BYTES).decode())


def whole(digits: str) -> int:
    """A whole number, as somebody wrote it. BadRequest when it has more than 64 bits."""
    number = int(digits) if len(digits) < len(str(MOST)) * 2 else MOST + 1
    if number > MOST:
        raise BadRequest(f"{shown(digits)} is too large a number; write a smaller one")
    return number


def seconds(digits: str) -> float:
    """A time, as somebody wrote it. BadRequest when nobody lives to see its end."""
    number = float(digits)
    if not number <= MOST_S:
        raise BadRequest(f"{shown(digits)} s is longer than a time can be, {MOST_S:g} s")
    return number


def is_number(value: Any) -> bool:
    """Whether one can reckon with it: neither nan nor infinite, nor a truth."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (isinstance(value, float) or abs(value) <= MOST)
        and math.isfinite(value)
    )


def shown(words: str) -> str:
    """Somebody's words, to be repeated to them: not all of very many, and nothing unprintable."""
    plain = words if words.isprintable() else repr(words)[1:-1]
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}... ({len(plain):,} letters)"
