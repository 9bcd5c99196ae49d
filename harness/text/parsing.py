"""Read text, TOML, JSON and numbers of users and damaged files, with uniform errors.

A file may hold anything: bytes that are not text, tables nested a thousand deep, numbers of a
thousand digits; a name may be one that no file can have. The libraries fail at each of them
differently. Here each is one sentence, or for JSON, whose files are ours, one error that every
reader of JSON expects. TOML has whole numbers of 64 bits, and counts of nanoseconds or messages do
not exceed that either.
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

MAX_INT = 2**63 - 1  # the largest whole number
MAX_SECONDS = 1e9  # the longest time: 31 years, which are nanoseconds in 64 bits
MAX_DEPTH = 32  # tables and lists within each other
MAX_TOML_BYTES = 2 << 20
MAX_JSON_BYTES = 128 << 20
MAX_JSON_VALUES = 8_000_000  # as objects of Python they take about 0.5 GB
MAX_SHOWN = 80  # letters of a user's text in a message
DEEP_KEY = re.compile(  # tomllib takes quadratic time and memory for it
    rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_DEPTH},}}"""
)
BYTE_ORDER_MARK = "\ufeff"


class NotTOML(BadRequest):
    """The text cannot be parsed as TOML."""


def read_text(path: Path, what: str) -> str:
    """Return the text of a file, a bundled one if suites/... does not exist here. `what`: `the plan
    file`.

    Raises BadRequest if it is missing or unreadable.
    """
    try:
        text = read_bytes(locate(path), MAX_TOML_BYTES).decode()
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError as e:
        raise BadRequest(f"{what} {path} does not exist") from e
    except UnicodeDecodeError as e:
        raise BadRequest(f"{what} {path} is not text in UTF-8") from e
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        why = getattr(e, "strerror", None) or e
        raise BadRequest(f"{what} {abbreviate(str(path))} is unreadable: {why}") from e


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file. Raises ValueError if it has more than `max_bytes`."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it has more than {max_bytes >> 20} MB")
    return data


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML. Raises BadRequest with the line and its text."""
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
        raise NotTOML(f"{source} is not valid TOML: {e}{there and f': {abbreviate(there)}'}") from e
    except RecursionError as e:
        raise _too_deep(source) from e
    except ValueError as e:  # more digits than Python reads
        raise BadRequest(f"{source} contains a number with too many digits; write fewer") from e
    for where, value in _parts(table, source):
        if isinstance(value, int) and not -MAX_INT - 1 <= value <= MAX_INT:
            raise BadRequest(f"{where} is too large; integers of TOML have at most 64 bits")
    return table


def _parts(value: Any, source: str, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all values of a table, with their paths. Raises BadRequest if it is nested too deep."""
    if len(names) > MAX_DEPTH:
        raise _too_deep(source)
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _parts(below, source, (*names, key))
    elif isinstance(value, list):
        for number, below in enumerate(value, start=1):
            yield from _parts(below, source, (*names, str(number)))
    else:
        yield f"{source}: {abbreviate('.'.join(names))}", value


def _too_deep(source: str) -> BadRequest:
    return BadRequest(
        f"{source} is nested too deeply; at most {MAX_DEPTH} tables or lists in another"
    )


def parse_json(text: str | bytes) -> Any:
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


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises ValueError as `parse_json` does."""
    return parse_json(read_bytes(path, MAX_JSON_BYTES).decode())


def parse_integer(digits: str) -> int:
    """Parse a whole number of a user. Raises BadRequest if it has more than 64 bits."""
    number = int(digits) if len(digits) < len(str(MAX_INT)) * 2 else MAX_INT + 1
    if number > MAX_INT:
        raise BadRequest(f"{abbreviate(digits)} is too large a number; write a smaller one")
    return number


def parse_seconds(digits: str) -> float:
    """Parse a time of a user. Raises BadRequest if it is too long."""
    number = float(digits)
    if not number <= MAX_SECONDS:
        raise BadRequest(f"{abbreviate(digits)} s is too long; the maximum is {MAX_SECONDS:g} s")
    return number


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and not a boolean."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (isinstance(value, float) or abs(value) <= MAX_INT)
        and math.isfinite(value)
    )


def abbreviate(words: str) -> str:
    """Return a user's text for a message: shortened if it is long, and without unprintable
    letters."""
    plain = words if words.isprintable() else repr(words)[1:-1]
    return plain if len(plain) <= MAX_SHOWN else f"{plain[:MAX_SHOWN]}... ({len(plain):,} letters)"
