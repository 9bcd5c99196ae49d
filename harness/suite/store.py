"""The folder `suites` below the runs, and how its files are written and read.

    NAME-KEY.jsonl           a suite that is under way: its runs so far (`log`)
    NAME.json, .xml, .md     the last summary of a suite (`view`)
    nights.jsonl             what each suite came to, night by night (`trend`)

Several processes may use the folder at once. A line that was cut short or is foreign is skipped.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.text.parsing import parse_json

FOLDER = "suites"  # below that of the runs


def failing(runs: Path) -> set[str]:
    """Return the names of runs that did not end as expected, to be kept for inspection: those of
    suites under way, and of the last summary of each suite."""
    rows = _rows(runs / FOLDER)
    return {str(row["run"]) for row in rows if row.get("run") and row.get("outcome")}


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    for path in folder.glob("*.json"):
        rows = parsed_object(text(path)).get("rows")
        if isinstance(rows, list):
            yield from (row for row in rows if isinstance(row, dict))
    for path in folder.glob("*.jsonl"):
        for line in text(path).splitlines():
            row = parsed_object(line).get("row")
            if isinstance(row, dict):
                yield row


def text(path: Path) -> str:
    """Return the text of a file, or nothing if it cannot be read."""
    with suppress(OSError):
        return path.read_bytes().decode(errors="replace")
    return ""


def parsed_object(line: str) -> Mapping[str, Any]:
    """Return the JSON object of a line, empty if the line is something else."""
    with suppress(ValueError):
        read = parse_json(line)
        if isinstance(read, dict):
            return read
    return {}


def replace_file(path: Path, content: str) -> None:
    """Write a file completely or not at all."""
    temporary = temporary_beside(path)
    temporary.write_text(content)
    os.replace(temporary, path)


def temporary_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}-{os.getpid()}")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, for reading a file and replacing it. Raises OSError if the folder
    cannot be opened."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
