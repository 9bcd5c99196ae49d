"""Epochs: the offset at which each master's reign began, and where two logs diverge (RIP-44).

    master {6: 200, 7: 1200, 8: 2500}   slave {6: 200, 7: 1200, 8: 2250}   both end at 2500

Epoch 8 began at different offsets, so the logs diverge within epoch 7, at min(2500, 2250) = 2250.

An epoch that ends where it began is empty. A new epoch at the same offset *replaces* an empty one.
RocketMQ refuses it, and two elections without a message between them leave replicas that never find
a common point again (apache/rocketmq#9942). Empty epochs are ignored when two tables are compared.

The file is replaced atomically, by an empty table, too. The log's records carry their epochs, so at
start the table is rebuilt from the log, and the file adds only a last, empty epoch.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

from ..world.ports import FileSystem


@dataclass(frozen=True)
class EpochTable:
    """(epoch, start) pairs; both rise strictly from one to the next."""

    entries: tuple[tuple[int, int], ...] = ()

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else 0

    @property
    def last_start(self) -> int:
        return self.entries[-1][1] if self.entries else -1

    def ranges(self, end: int) -> list[tuple[int, int, int]]:
        """Return (epoch, start, end) of each non-empty epoch in a log that ends at `end`."""
        starts = [start for _, start in self.entries[1:]]
        rows = zip(self.entries, [*starts, end], strict=True) if self.entries else ()
        return [(epoch, start, stop) for (epoch, start), stop in rows if start < stop]

    def at(self, offset: int, end: int) -> tuple[int, int, int]:
        """Return (epoch, start, end) of the epoch of the byte at `offset`, written or not."""
        index = bisect_right(self.entries, offset, key=lambda e: e[1]) - 1
        if index < 0:
            raise ValueError(f"no epoch owns offset {offset}")
        epoch, start = self.entries[index]
        stop = self.entries[index + 1][1] if index + 1 < len(self.entries) else end
        return epoch, start, stop

    def truncate_suffix(self, point: int) -> "EpochTable":
        """Return the table of the log cut at `point`."""
        return EpochTable(tuple(e for e in self.entries if e[1] < point))

    def truncate_prefix(self, offset: int) -> "EpochTable":
        """Return the table of the log without the bytes before `offset`."""
        gone = {
            self.entries[i - 1] for i in range(1, len(self.entries)) if self.entries[i][1] <= offset
        }
        return EpochTable(tuple(e for e in self.entries if e not in gone))

    def clip(self, low: int) -> "EpochTable":
        """Return the table as if the log began at `low`.

        So two tables can be compared that have different starts for one epoch, because one log has
        lost its oldest segments.
        """
        rows = self.truncate_prefix(low).entries
        return EpochTable(tuple((epoch, max(start, low)) for epoch, start in rows))


def cut_epochs(table: EpochTable, point: int) -> EpochTable:
    """Return the table of a log that a slave cut at `point`: epochs that began there are
    dropped."""
    return table.truncate_suffix(point)


def append_epoch(table: EpochTable, epoch: int, start: int) -> EpochTable:
    """Return the table with a new epoch from `start` on; the same table for its last epoch.

    Raises ValueError if the epoch or the start goes back.
    """
    if epoch == table.last_epoch:
        return table
    if epoch < table.last_epoch or start < table.last_start:
        raise ValueError(
            f"epoch {epoch} from {start} cannot follow {table.last_epoch} from {table.last_start}"
        )
    kept = table.entries[:-1] if table.last_start == start else table.entries
    return EpochTable((*kept, (epoch, start)))


def next_epoch(recorded: int, registered: int) -> int:
    """Return the number of the epoch that a master begins at its start without an election.

    `recorded`: the last epoch on its disk; `registered`: the last one that nameservers know.
    """
    return 1 + max(recorded, registered)


def is_emptied(recorded: int, registered: int) -> bool:
    """Return whether a master without an election has lost its disk: it has no epoch, and its set
    has had one."""
    return recorded == 0 < registered


def keep_everything(local: EpochTable, local_end: int, remote: EpochTable, remote_end: int) -> int:
    """Return the end of the slave's log: it cuts nothing (`switchlessEpochs = false`)."""
    return local_end


def find_consistent_point(
    local: EpochTable, local_end: int, remote: EpochTable, remote_end: int
) -> int:
    """Return the offset up to which both logs are equal; -1 if they have no epoch in common."""
    theirs = {epoch: (start, end) for epoch, start, end in remote.ranges(remote_end)}
    for epoch, start, end in reversed(local.ranges(local_end)):
        if epoch in theirs and theirs[epoch][0] == start:
            return min(end, theirs[epoch][1])
    return -1


def table_from_log(runs: Iterable[tuple[int, int]], end: int, recorded: EpochTable) -> EpochTable:
    """Return the table of a recovered log, by its records.

    The recorded table adds a last, empty epoch, and the start of the first one if that part of the
    log is deleted.
    """
    table = EpochTable(_with_first_start(tuple(runs), recorded))
    epoch, start = recorded.last_epoch, recorded.last_start
    if epoch > table.last_epoch and start == end:
        return append_epoch(table, epoch, start)
    return table


def _with_first_start(
    runs: tuple[tuple[int, int], ...], recorded: EpochTable
) -> tuple[tuple[int, int], ...]:
    if not runs:
        return runs
    epoch, start = runs[0]
    before = [s for e, s in recorded.entries if e == epoch and s < start]
    return ((epoch, before[0]), *runs[1:]) if before else runs


def pack(table: EpochTable) -> bytes:
    rows = json.dumps([list(entry) for entry in table.entries], separators=(",", ":"))
    return f"{crc32(rows.encode()):08x} {rows}\n".encode()


def unpack(data: bytes) -> EpochTable:
    """Raises ValueError if the file is damaged."""
    crc, _, rows = data.decode().rstrip("\n").partition(" ")
    if f"{crc32(rows.encode()):08x}" != crc:
        raise ValueError("the epoch file is damaged: its check sum does not match")
    return EpochTable(tuple((int(epoch), int(start)) for epoch, start in json.loads(rows)))


class EpochFile:
    """The table on disk, `epochFileCheckpoint` in the store."""

    def __init__(self, store: str, files: FileSystem) -> None:
        self._path = f"{store}/epochFileCheckpoint"
        self._files = files

    def load(self) -> EpochTable:
        if not self._files.exists(self._path):
            return EpochTable()
        return unpack(self._files.read(self._path))

    async def save(self, table: EpochTable) -> None:
        await self._files.replace(self._path, pack(table))
