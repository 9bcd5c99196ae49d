"""Opening a store: find the end of the log, cut what is after it, rebuild the indexes.

Full segments that were on disk and confirmed are known from their files (`segment_index`); the rest
of the log is scanned, and the CRC of every record is checked. The log ends at the first place
without a sound record. There are two possible reasons:

    after the checkpoint's `flushed`   a write that was not finished: the rest is durably zeroed
    before it                          the disk lost or changed data: the store is refused, with
                                       file and byte, because it may have been acknowledged

The index has all records, but only those up to the checkpoint's confirm offset are dispatched: the
next master may truncate the rest, so consumers must not see it (apache/rocketmq#6609). The epochs
are read from the records, and their file adds what no record has (see `epochs.from_log`).

Data that an earlier process wrote and did not sync is readable and may still be lost with the
power, so names and checkpoint are made durable before anything is built on them. If a sync failed,
the kernel returns the data and takes it for clean: another sync succeeds and saves nothing (Rebello
et al., "Can Applications Recover from fsync Failures?", ATC 2020). So the checkpoint, and the log
after its `flushed`, are written again before they are synced.

A file `abort` marks a store in use, as in RocketMQ; found at start, it shows an unclean stop.
"""

from dataclasses import dataclass

from ..replication.epochs import EpochFile, EpochTable, table_from_log
from ..rules import Rules
from ..world.ports import Ports
from .checkpoint import Marks, StoreCheckpoint
from .commit_log import CommitLog, StoreError
from .consume_queue import QueueIndex
from .flushing import Flushing
from .key_index import KeyIndex
from .message_store import MessageStore, index_record
from .segment_files import SegmentFiles
from .segment_index import SegmentIndex


@dataclass(frozen=True)
class StoreOptions:
    """The folder of a store, its sizes and its flushing."""

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
class StoreRecovery:
    """An opened store. `records`: their number; `scanned`: how many by reading the log; `notes`:
    what was damaged but not needed."""

    store: MessageStore
    epochs: EpochTable
    clean: bool
    records: int
    scanned: int
    notes: tuple[str, ...]


async def recover(place: StoreOptions, ports: Ports, rules: Rules) -> StoreRecovery:
    """Open a store. Raises StoreError with the file and byte if it cannot be used."""
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
    checkpoint = StoreCheckpoint(place.path, ports)
    await checkpoint.renew()
    scan = _Scan(place, log, checkpoint, ports, rules)
    await ports.files.sync_folder(place.path)
    scan.run()
    await scan.segments.prune()
    log.open_at(scan.start, scan.end)
    log.write_again(checkpoint.marks.flushed)
    await log.truncate(scan.end)
    store = scan.store()
    if checkpoint.marks.confirmed > log.max_offset:  # or new records there would count as confirmed
        await checkpoint.settle(Marks(log.max_offset, log.flushed, log.min_offset))
    store.confirm(min(max(checkpoint.marks.confirmed, log.min_offset), log.max_offset))
    recorded = _recorded_epochs(place, ports)
    table = table_from_log(scan.index.runs, scan.end, recorded)
    notes = tuple(checkpoint.damage)
    return StoreRecovery(store, table, clean, scan.records, scan.scanned, notes)


class _Scan:
    """A scan of the log of a stopped broker."""

    def __init__(
        self,
        place: StoreOptions,
        log: CommitLog,
        checkpoint: StoreCheckpoint,
        ports: Ports,
        rules: Rules,
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
        """Scan one segment; return whether it is full to its last byte."""
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
            index_record(self.index, self.keys, e, data, start)
            self.end = e.end
            self.records += 1
            self.scanned += 1

    def _refuse(self, flushed: int) -> None:
        path = self._log.path(self.end - self.end % self._place.segment_size)
        missing = not self._ports.files.exists(path)
        found = f"{path} is missing" if missing else f"no record at {self._log.place_of(self.end)}"
        raise StoreError(
            f"{found}, but the log was on disk up to {flushed}: the disk lost or changed it. Bring "
            f"it back, or empty {self._place.path}, and a new member copies everything"
        )


def _recorded_epochs(place: StoreOptions, ports: Ports) -> EpochTable:
    file = EpochFile(place.path, ports.files)
    try:
        return file.load()
    except ValueError as e:
        raise StoreError(
            f"{place.path}/epochFileCheckpoint is damaged somewhere after byte 0 ({e}): bring it "
            f"back, or empty {place.path}, and a new member copies everything"
        ) from e


def close(place: StoreOptions, ports: Ports) -> None:
    """Mark a clean stop."""
    if ports.files.exists(place.abort):
        ports.files.remove(place.abort)
