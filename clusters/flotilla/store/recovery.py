"""Opening a store: find the end of the log, cut what is behind it, rebuild the index (spec 8.4).

The log is scanned from its first segment, every record checked by its CRC. It ends at the first
place that holds no sound record: everything behind is zeroed durably before the store is used.
The index takes all records, but only those up to the checkpoint's confirm offset are dispatched:
the rest may be cut by the next master and must not be seen (apache/rocketmq#6609).

A file `abort` marks a store in use; one that is found at start tells of an unclean stop.
"""

from dataclasses import dataclass

from ..epochs import EpochFile, EpochTable, from_log
from ..ports import Ports
from .checkpoint import Checkpoint
from .commit_log import CommitLog
from .consume_queue import QueueIndex
from .message_store import MessageStore, StoreRules
from .record import entries


@dataclass(frozen=True)
class Place:
    """Where a store is and how it was made."""

    path: str
    segment_size: int
    max_message_size: int
    sync_flush: bool

    @property
    def log(self) -> str:
        return f"{self.path}/commitlog"

    @property
    def abort(self) -> str:
        return f"{self.path}/abort"


@dataclass(frozen=True)
class Recovered:
    """An opened store and what was found in it. `cut`: bytes of records beyond the end, if any."""

    store: MessageStore
    epochs: EpochTable
    clean: bool
    records: int


@dataclass
class _Scan:
    """What a walk over the log finds."""

    index: QueueIndex
    end: int
    runs: list[tuple[int, int]]
    records: int = 0

    def take(self, data: bytes) -> bool:
        """Walk one segment; true when it is full to its last byte."""
        start = self.end
        for e in entries(data, start):
            if not self.runs or e.epoch != self.runs[-1][0]:
                self.runs.append((e.epoch, e.offset))
            self.index.add(e)
            self.end = e.end
            self.records += 1
        return self.end == start + len(data)


async def recover(place: Place, ports: Ports, rules: StoreRules) -> Recovered:
    ports.files.makedirs(place.path)
    clean = not ports.files.exists(place.abort)
    ports.files.append(place.abort, b"")
    log = CommitLog(place.log, place.segment_size, ports, sync_flush=place.sync_flush)
    scan = _scan(place, log, ports)
    log.open_at(scan.start, scan.found.end)
    await log.truncate(scan.found.end)
    checkpoint = Checkpoint(place.path, ports.files)
    store = MessageStore(log, scan.found.index, checkpoint, ports, rules, place.max_message_size)
    store.confirm(min(max(checkpoint.confirm_offset, log.min_offset), log.max_offset))
    recorded = EpochFile(place.path, ports.files).load()
    table = from_log(scan.found.runs, scan.found.end, recorded)
    return Recovered(store, table, clean, scan.found.records)


@dataclass(frozen=True)
class _Scanned:
    start: int
    found: _Scan


def _scan(place: Place, log: CommitLog, ports: Ports) -> _Scanned:
    bases = log.bases()
    start = bases[0] if bases else 0
    found = _Scan(QueueIndex(), start, [])
    for base in bases:
        if base != found.end:
            break
        data = ports.files.read(f"{place.log}/{base:020d}")[: place.segment_size]
        if not found.take(data) or len(data) < place.segment_size:
            break
    return _Scanned(start, found)


def close(place: Place, ports: Ports) -> None:
    """The store was left in order."""
    if ports.files.exists(place.abort):
        ports.files.remove(place.abort)
