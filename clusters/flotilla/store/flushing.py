"""When the log is synced under ASYNC_FLUSH, and when appends wait in memory.

A check every `flushIntervalCommitLog` syncs if at least `flushCommitLogLeastPages` are dirty, or if
`flushCommitLogThoroughInterval` has passed since the last sync. Under SYNC_FLUSH a sync follows
every write.
"""

from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Flushing:
    """How a log becomes durable. `commit_interval_s`: of the transient pool, 0 without one."""

    sync: bool = False
    least_pages: int = 0
    thorough_s: float = 0.0
    commit_interval_s: float = 0.0

    def is_due(self, dirty_bytes: int, since_s: float) -> bool:
        """Return whether to sync `dirty_bytes`, `since_s` after the last sync."""
        if dirty_bytes <= 0:
            return False
        return dirty_bytes >= self.least_pages * PAGE_BYTES or since_s >= self.thorough_s


def flushed_by_write(records: int, written: int, flushed: int) -> int:
    """Return the flushed position after a write of some records that ends at `written`.

    A write alone puts nothing on disk: the position moves when a sync has ended.
    """
    return flushed
