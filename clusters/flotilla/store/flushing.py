"""When the log goes to disk under ASYNC_FLUSH (spec 8.5), and when commits wait in memory.

Every `flushIntervalCommitLog` somebody looks: what is at least `flushCommitLogLeastPages` goes to
disk now, less than that when `flushCommitLogThoroughInterval` is over. Under SYNC_FLUSH every write
is followed by a sync, and nobody needs to look.
"""

from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Flushing:
    """How a log becomes durable. `commit_interval_s`: of the transient pool; 0 without one."""

    sync: bool = False
    least_pages: int = 0
    thorough_s: float = 0.0
    commit_interval_s: float = 0.0

    def is_due(self, dirty_bytes: int, since_s: float) -> bool:
        """Is it time to sync so many bytes, so long after the last sync?"""
        if dirty_bytes <= 0:
            return False
        return dirty_bytes >= self.least_pages * PAGE_BYTES or since_s >= self.thorough_s


def flushed_by_write(records: int, written: int, flushed: int) -> int:
    """Return the flushed position after a write that ends at `written` and held so many records.

    A write alone puts nothing on disk: the position moves when a sync has ended.
    """
    return flushed
