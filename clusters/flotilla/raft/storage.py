"""A member's folder: the snapshot, and the log behind it.

    raft.snapshot   replaced as a whole
    raft.wal        records, appended; replaced as a whole when its beginning is dropped, or when
                    it is of the first edition

The snapshot is always on disk before the log is cut, so a crash in between leaves a log that is
longer than necessary, or one that a leader's snapshot has overtaken. The second kind is dropped
when the member starts: it ends before the snapshot, or holds another entry where the snapshot ends,
which cannot have been committed (Raft 7, figure 13).

A member whose log does not reach its snapshot, or begins behind it, has lost what it promised and
refuses to start. So does one that has only one of the two where both must exist.
"""

from dataclasses import dataclass

from ..world.ports import FileSystem, retry_when_out_of_files
from .effects import LogChange
from .log import EntryId, RaftLog
from .messages import LogEntry
from .snapshot import Snapshot, SnapshotDamaged, parse
from .votes import Vote
from .wal import Wal, WalDamaged, convert_first_edition


class StorageDamaged(Exception):
    """The folder cannot be trusted. The text says which file, from which byte on, and why."""


@dataclass(frozen=True)
class RecoveredState:
    vote: Vote
    snapshot: Snapshot | None
    base: EntryId
    entries: tuple[LogEntry, ...]
    cut: int  # torn bytes at the end of the log

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.entries)


class Storage:
    def __init__(self, files: FileSystem, folder: str, wal: Wal) -> None:
        self._files = files
        self._snapshot_path = f"{folder}/raft.snapshot"
        self._wal = wal
        self._newest = 0  # the last entry of the newest snapshot that was given to `save_snapshot`

    @classmethod
    async def recover(cls, files: FileSystem, folder: str) -> tuple["Storage", RecoveredState]:
        """Read the folder. Raises StorageDamaged.

        Files that an earlier process renamed are made durable before anything is promised: it may
        not have synced the folder.
        """
        files.makedirs(folder)
        await files.sync_folder(folder)
        snapshot = _read_snapshot(files, f"{folder}/raft.snapshot")
        path = f"{folder}/raft.wal"
        if snapshot and not files.exists(path):
            raise StorageDamaged(f"{path} is missing, byte 0: there is a snapshot that needs it")
        try:
            if snapshot is None:
                await convert_first_edition(files, path)
            wal, found = await Wal.recover(files, path)
        except WalDamaged as e:
            raise StorageDamaged(f"{path}, {e}") from e
        storage = cls(files, folder, wal)
        base, entries = found.base, found.entries
        reached = snapshot.index if snapshot else 0
        if base.index > reached:
            raise StorageDamaged(
                f"{path}, byte 0: the log begins behind entry {base.index}, and the snapshot "
                f"holds everything up to {reached} only"
            )
        if snapshot and RaftLog(entries, base).term_at(reached) != snapshot.place.term:
            base, entries = snapshot.place, ()
            await wal.rewrite(found.vote, base, entries)
        return storage, RecoveredState(found.vote, snapshot, base, entries, found.cut)

    async def write(self, vote: Vote, written: LogChange) -> None:
        """Write a change of the log. It is on disk on return. Raises OSError: stop the process."""
        if written.install:
            await self.save_snapshot(written.install)
        if written.base:
            await self._wal.rewrite(vote, written.base, written.entries)
        else:
            self._wal.write(vote, written.first, written.entries)
            await self._wal.sync()

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the snapshot. One that waited for a file descriptor while a newer one was saved
        is dropped, since the log may begin behind it by now."""
        self._newest = max(self._newest, snapshot.index)

        async def put() -> None:
            if snapshot.index == self._newest:
                await self._files.replace(self._snapshot_path, snapshot.packed)

        await retry_when_out_of_files(put)

    def close(self) -> None:
        self._wal.close()


def _read_snapshot(files: FileSystem, path: str) -> Snapshot | None:
    if not files.exists(path):
        return None
    try:
        return parse(files.read(path))
    except (SnapshotDamaged, KeyError, TypeError, ValueError) as e:
        raise StorageDamaged(f"{path}, {e}") from e
