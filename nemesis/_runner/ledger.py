"""What we have done to the world and not yet undone.

An intent is written before its fault is injected, and closed after it is observed healed. Where
hosts outlive a run (Docker, SSH) the open entries of a run that crashed are what has to be undone,
so each is synced to disk; where they die with it (local, simulated) nothing has to be, and the
ledger only tells the tale.
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
from harness.text.parsing import bytes_of, json_of

MAX_LEDGER_BYTES = 64 << 20
BEGINNING = '{"is": "'  # of every line


@dataclass(frozen=True)
class Entry:
    """One fault that was, or was about to be, in the world."""

    id: int  # its place in the plan
    kind: str
    nodes: Sequence[str]  # whom it resolved to
    params: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    def __init__(self, path: "os.PathLike[str]", *, durable: bool = True) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._durable = durable
        self._begin_line()

    def intend(self, entry: Entry) -> None:
        """Written when this returns, and on disk if it is to be durable."""
        self._write({"is": "intent", **asdict(entry)})

    def close_entry(self, number: int) -> None:
        self._write({"is": "closed", "id": number})

    def close(self) -> None:
        os.close(self._fd)

    def _begin_line(self) -> None:
        """What a crash left of a last line does not spoil the next."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _write(self, row: Mapping[str, Any]) -> None:
        """All of it, or nothing: OSError when the disk takes no more, or only a part."""
        line = json.dumps(row).encode() + b"\n"
        end = os.fstat(self._fd).st_size
        if os.write(self._fd, line) < len(line):
            os.ftruncate(self._fd, end)
            why = os.strerror(errno.ENOSPC)
            raise OSError(errno.ENOSPC, f"{why}: the ledger took a part of a line")
        if self._durable:
            os.fsync(self._fd)


def open_entries(path: Path) -> tuple[Entry, ...]:
    """Faults that were begun and not closed, newest first: the order to undo them in.

    A line torn by a crash was an intent not acted upon, or a closing that may be repeated.
    """
    found: dict[int, Entry] = {}
    for line in _lines(path):
        match _row(line):
            case Entry() as entry:
                found[entry.id] = entry
            case int() as closed:
                found.pop(closed, None)
    return tuple(reversed(found.values()))


def ledger_damage(path: Path) -> str:
    """Why nobody knows what was done to the world: what stands in the ledger besides intents and
    closings, and what a crash has left of one. Empty when nothing does."""
    if path.exists() and not path.is_file():
        return f"{path} is no file"
    for number, line in enumerate(_lines(path), start=1):
        if _row(line) is None and not _torn(line):
            return f"{path} line {number} is neither an intent nor a closing"
    return ""


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    try:
        return bytes_of(path, MAX_LEDGER_BYTES).decode(errors="replace").splitlines()
    except ValueError as e:
        raise BadRequest(f"{path} is not a ledger: {e}") from e


def _torn(line: str) -> bool:
    return bool(line) and BEGINNING.startswith(line[: len(BEGINNING)])


def _row(line: str) -> Entry | int | None:
    """An intent, or the number of an entry that was closed; None: neither."""
    with suppress(ValueError, KeyError, TypeError, OverflowError):
        row = json_of(line)
        if row["is"] == "intent":
            return Entry(
                int(row["id"]), str(row["kind"]), tuple(map(str, row["nodes"])), dict(row["params"])
            )
        if row["is"] == "closed":
            return int(row["id"])
    return None
