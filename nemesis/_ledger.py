"""What we have done to the world and not yet undone.

An intent is written before its fault is injected, and closed after it is observed healed. Where
hosts outlive a run (Docker, SSH) the open entries of a run that crashed are what has to be undone,
so each is synced to disk; where they die with it (local, simulated) nothing has to be, and the
ledger only tells the tale.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One fault that was, or was about to be, in the world."""

    id: int  # its place in the plan
    kind: str
    nodes: Sequence[str]  # whom it resolved to
    params: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    def __init__(self, path: "os.PathLike[str]", *, durable: bool = True) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._durable = durable

    def intend(self, entry: Entry) -> None:
        """Written when this returns, and on disk if it is to be durable."""
        self._write({"is": "intent", **asdict(entry)})

    def close_entry(self, number: int) -> None:
        self._write({"is": "closed", "id": number})

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, row: Mapping[str, Any]) -> None:
        os.write(self._fd, json.dumps(row).encode() + b"\n")
        if self._durable:
            os.fsync(self._fd)


def open_entries(path: Path) -> tuple[Entry, ...]:
    """Faults that were begun and not closed, newest first: the order to undo them in.

    A last line torn by a crash was an intent not acted upon, or a closing that may be repeated.
    """
    found: dict[int, Entry] = {}
    for row in _rows(path):
        if row["is"] == "intent":
            found[row["id"]] = Entry(row["id"], row["kind"], tuple(row["nodes"]), row["params"])
        else:
            found.pop(row["id"], None)
    return tuple(reversed(found.values()))


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
