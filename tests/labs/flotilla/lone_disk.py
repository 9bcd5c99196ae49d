"""A virtual disk that stands alone: its time, and what tests do to its files."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from clusters.hosts._world.content import Content
from clusters.hosts._world.disk import Disk

Change = tuple[str, int, int]  # what is done, where, and to how many bytes


@dataclass
class Clock:
    """Time that passes when a test says so."""

    now_ns: int = 0
    due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.now_ns + delay_ns, len(self.due), call))

    def run(self) -> None:
        while self.due:
            self.now_ns, _, call = heapq.heappop(self.due)
            call()


def carry_out(disk: Disk, file: Content, change: Change, mark: int) -> tuple[int, int] | None:
    """From where to where it wrote, if it did: bytes that are all this mark."""
    kind, at, size = change
    if kind == "write":
        disk.write(file, bytes([mark]) * size, at)
        return at, at + size
    if kind == "truncate":
        disk.truncate(file, at)
    else:
        disk.allocate(file, at + 1)
    return None
