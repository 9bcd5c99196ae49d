"""The ledger of faults that are in the world and not yet healed.

An intent is written before its fault is injected, and closed after it is observed healed. Where
hosts outlive a run (Docker, SSH) the open entries of a run that crashed are what has to be undone,
so each is synced to disk. Where hosts die with the run (local, simulated) nothing has to be undone,
and the ledger is only a record.
"""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import BadRequest
from harness.text.parsing import parse_json, read_bytes

MAX_LEDGER_BYTES = 64 << 20
LINE_START = '{"is": "'  # of every line


@dataclass(frozen=True)
class LedgerEntry:
    """One fault that was, or was about to be, in the world."""

    id: int  # its position in the plan
    kind: str
    nodes: Sequence[str]  # names of its targets
    params: Mapping[str, Any] = field(default_factory=dict)


class FaultLedger:
    """An append-only file of intents and closings, one JSON object a line."""

    def __init__(self, path: "os.PathLike[str]", *, durable: bool = True) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._durable = durable
        self._begin_line()

    def intend(self, entry: LedgerEntry) -> None:
        """Write an intent; if the ledger is durable, it is on the disk when this returns."""
        self._write({"is": "intent", **asdict(entry)})

    def close_entry(self, number: int) -> None:
        self._write({"is": "closed", "id": number})

    def close(self) -> None:
        os.close(self._fd)

    def _begin_line(self) -> None:
        """Start a new line, in case a crash left a part of one."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _write(self, row: Mapping[str, Any]) -> None:
        """Append a line completely or not at all. Raises OSError if the disk is full."""
        line = json.dumps(row).encode() + b"\n"
        end = os.fstat(self._fd).st_size
        if os.write(self._fd, line) < len(line):
            os.ftruncate(self._fd, end)
            why = os.strerror(errno.ENOSPC)
            raise OSError(errno.ENOSPC, f"{why}: the ledger took a part of a line")
        if self._durable:
            os.fsync(self._fd)


def open_entries(path: Path) -> tuple[LedgerEntry, ...]:
    """Return the faults that were begun and not closed, newest first: the order to undo them in.

    A line torn by a crash was an intent not yet acted upon, or a closing that may be repeated.
    """
    entries: dict[int, LedgerEntry] = {}
    for line in _lines(path):
        match _row(line):
            case LedgerEntry() as entry:
                entries[entry.id] = entry
            case int() as closed:
                entries.pop(closed, None)
    return tuple(reversed(entries.values()))


def ledger_damage(path: Path) -> str:
    """Return why the ledger does not say what was done to the world, or ''.

    Only intents, closings, and the part of a line that a crash left are expected.
    """
    if path.exists() and not path.is_file():
        return f"{path} is not a file"
    for number, line in enumerate(_lines(path), start=1):
        if _row(line) is None and not _torn(line):
            return f"{path} line {number} is neither an intent nor a closing"
    return ""


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    try:
        return read_bytes(path, MAX_LEDGER_BYTES).decode(errors="replace").splitlines()
    except ValueError as e:
        raise BadRequest(f"{path} is not a ledger: {e}") from e


def _torn(line: str) -> bool:
    return bool(line) and LINE_START.startswith(line[: len(LINE_START)])


def _row(line: str) -> LedgerEntry | int | None:
    """Parse an intent, or the number of a closed entry; None if the line is neither."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        row = parse_json(line)
        if row["is"] == "intent":
            return LedgerEntry(
                int(row["id"]), str(row["kind"]), tuple(map(str, row["nodes"])), dict(row["params"])
            )
        if row["is"] == "closed":
            return int(row["id"])
    return None
