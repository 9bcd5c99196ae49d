"""Opening a store: find the end of the log, cut what is behind it, rebuild the indexes (spec 8.4).

Full segments that were on disk and confirmed are known from their files (`segment_index`); the
rest of the log is scanned, every record checked by its CRC. The log ends at the first place that
holds no sound record. Two things can have brought that about:

    behind the checkpoint's `flushed`  a write that was never finished: the rest is zeroed durably
    before it                          the disk lost or changed what it had: refused, by file and
                                       byte, because what stood there may have been acknowledged

The index takes all records, but only those up to the checkpoint's confirm offset are dispatched:
the rest may be cut by the next master and must not be seen (apache/rocketmq#6609). The epochs are
read from the records, and their file adds what no record can tell (see `epochs.from_log`).

What an earlier life wrote and did not sync is found and may still be lost with the power, so names
and marks are made durable before anything is built on them. If its sync was tried and failed, the
kernel shows what it could not write and takes it for clean: another sync succeeds and saves nothing
(Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020). So the checkpoint, and
the log behind its `flushed`, are written again before they are synced.

A file `abort` marks a store in use; one that is found at start tells of an unclean stop.
"""

from dataclasses import dataclass

from ..replication.epochs import EpochFile, EpochTable, table_from_log
from ..world.ports import Ports
from .checkpoint import Checkpoint, Marks
from .commit_log import CommitLog, StoreError
from .consume_queue import QueueIndex
from .flushing import Flushing
from .key_index import KeyIndex
from .message_store import MessageStore, StoreRules, take_entry
from .segment_files import SegmentFiles
from .segment_index import SegmentIndex


@dataclass(frozen=True)
class Place:
    """Where a store is and how it was made."""

    path: str
    segment_size: int
    max_message_size: int
    flushing: Flushing = Flushing()

    @property
    def log(self) -> str:
        return f"{self.path}/commitlog"

    @property
    def abort(self) -> str:
        return f"{self.path}/abort"


@dataclass(frozen=True)
class Recovered:
    """An opened store and what was found in it: how many records, how many of them by reading the
    log, and what was damaged but not needed (`notes`)."""

    store: MessageStore
    epochs: EpochTable
    clean: bool
    records: int
    scanned: int
    notes: tuple[str, ...]


async def recover(place: Place, ports: Ports, rules: StoreRules) -> Recovered:
    """StoreError: the store can not be used as it is; which file and byte say why."""
    ports.files.makedirs(place.path)
    clean = not ports.files.exists(place.abort)
    ports.files.append(place.abort, b"")
    log = CommitLog(
        place.log,
        place.segment_size,
        ports,
        sync_flush=place.flushing.sync,
        commit_interval_s=place.flushing.commit_interval_s,
        flushed_by_write=rules.flushed_by_write,
    )
    checkpoint = Checkpoint(place.path, ports)
    await checkpoint.renew()
    scan = _Scan(place, log, checkpoint, ports, rules)
    await ports.files.sync_folder(place.path)
    scan.run()
    await scan.segments.prune()
    log.open_at(scan.start, scan.end)
    log.write_again(checkpoint.marks.flushed)
    await log.truncate(scan.end)
    store = scan.store()
    if checkpoint.marks.confirmed > log.max_offset:  # or what comes there would count as confirmed
        await checkpoint.settle(Marks(log.max_offset, log.flushed, log.min_offset))
    store.confirm(min(max(checkpoint.marks.confirmed, log.min_offset), log.max_offset))
    recorded = _recorded_epochs(place, ports)
    table = table_from_log(scan.index.runs, scan.end, recorded)
    notes = tuple(checkpoint.damage)
    return Recovered(store, table, clean, scan.records, scan.scanned, notes)


class _Scan:
    """A walk over the log of a stopped broker."""

    def __init__(
        self, place: Place, log: CommitLog, checkpoint: Checkpoint, ports: Ports, rules: StoreRules
    ) -> None:
        self.index, self.keys = QueueIndex(), KeyIndex()
        self.segments = SegmentFiles(place.path, ports.files)
        self.start = self.end = checkpoint.marks.min_offset
        self.records = self.scanned = 0
        self._place, self._log, self._checkpoint = place, log, checkpoint
        self._ports, self._rules = ports, rules

    def run(self) -> None:
        begin = self._checkpoint.marks.min_offset
        bases = [base for base in self._log.bases() if base >= begin]
        if bases and not self._checkpoint.tells_disk:
            self.start = self.end = bases[0]
        for base in bases:
            if base != self.end or not self._take(base):
                break
        flushed = self._checkpoint.marks.flushed
        if not self._rules.log_is_whole(self.end, flushed):
            self._refuse(flushed)

    def store(self) -> MessageStore:
        place = self._place
        return MessageStore(
            self._log,
            self.index,
            self.keys,
            self.segments,
            self._checkpoint,
            self._ports,
            self._rules,
            place.max_message_size,
            place.flushing,
        )

    def _take(self, base: int) -> bool:
        """Walk one segment; true when it is full to its last byte."""
        file = self._ports.files.open(self._log.path(base))
        try:
            kept = self.segments.load(base) if self._may_trust(file.size()) else None
            if kept is not None and kept.end > self._checkpoint.marks.confirmed:
                self.segments.ends.pop(base)
                kept = None
            if kept is not None:
                self._take_kept(kept)
            end = base + self._place.segment_size
            if self.end < end:
                self._read(file.pread(end - self.end, self.end - base))
        finally:
            file.close()
        return self.end == end

    def _may_trust(self, size: int) -> bool:
        return self._checkpoint.tells_disk and size >= self._place.segment_size

    def _take_kept(self, kept: SegmentIndex) -> None:
        self.index.take(kept)
        self.records += kept.records
        self.end = kept.end
        if kept.end % self._place.segment_size:
            self.keys.extend(kept.hashes, kept.places)

    def _read(self, data: bytes) -> None:
        start = self.end
        for e in self._rules.recovered_records(data, start):
            take_entry(self.index, self.keys, e, data, start)
            self.end = e.end
            self.records += 1
            self.scanned += 1

    def _refuse(self, flushed: int) -> None:
        path = self._log.path(self.end - self.end % self._place.segment_size)
        missing = not self._ports.files.exists(path)
        found = f"{path} is missing" if missing else f"no record at {self._log.place_of(self.end)}"
        raise StoreError(
            f"{found}, but the log was on disk up to {flushed}: the disk lost or changed it. Bring "
            f"it back, or empty {self._place.path}, and a new member copies everything anew"
        )


def _recorded_epochs(place: Place, ports: Ports) -> EpochTable:
    file = EpochFile(place.path, ports.files)
    try:
        return file.load()
    except ValueError as e:
        raise StoreError(
            f"{place.path}/epochFileCheckpoint is damaged somewhere behind byte 0 ({e}): bring it "
            f"back, or empty {place.path}, and a new member copies everything anew"
        ) from e


def close(place: Place, ports: Ports) -> None:
    """The store was left in order."""
    if ports.files.exists(place.abort):
        ports.files.remove(place.abort)
