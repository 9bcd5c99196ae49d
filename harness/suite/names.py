"""What suites name of the runs beside them: those that somebody wants to look at in the morning.

Read by whoever makes room among runs, from what suites keep: the state of one that is under way,
and the last summary of each. A run that came otherwise than expected is named until the same suite
is summed up again without it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.text.parsing import json_of

FOLDER = "suites"  # below that of the runs


def failing(runs: Path) -> set[str]:
    """Folders of runs that did not end as expected, by name."""
    return {
        str(row["run"]) for row in _rows(runs / FOLDER) if row.get("run") and row.get("outcome")
    }


def _rows(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Of all summaries, and of all suites under way."""
    for path in folder.glob("*.json"):
        yield from _tables(_parsed(_text(path)).get("rows"))
    for path in folder.glob("*.jsonl"):
        for line in _text(path).splitlines():
            yield from _tables([_parsed(line).get("row")])


def _tables(rows: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(rows, list):
        yield from (row for row in rows if isinstance(row, dict))


def _parsed(text: str) -> Mapping[str, Any]:
    """Nothing, when it was cut short or is foreign."""
    with suppress(ValueError):
        read = json_of(text)
        if isinstance(read, dict):
            return read
    return {}


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes().decode(errors="replace")
    return ""
