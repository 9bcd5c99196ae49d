"""The bytes that a broker set has acknowledged, and how many of them each replica holds.

The bytes are kept once, as they are on the disk of the acknowledging master. A replica is compared
from the offset up to which it was last found equal; a truncation or a power cut lowers that offset.
A replica reports the end of its log: of what it wrote, or of what it flushed if the configuration
acknowledges only flushed bytes.
"""

from collections.abc import Callable, Iterable

LogBytes = Callable[[str, int, int], bytes | None]  # node, start, end -> bytes on its disk


class AckedLog:
    """The acknowledged bytes of one broker set. `end`: the offset behind the last one."""

    def __init__(self, log_bytes: LogBytes) -> None:
        self.end = 0
        self._log_bytes = log_bytes
        self._bytes = bytearray()
        self._held: dict[str, int] = {}
        self._same: dict[str, int] = {}  # up to which offset the bytes are equal

    def set_held(self, node: str, position: int) -> None:
        """Record that the node has its log up to this offset, as durably as the configuration
        demands."""
        self._held[node] = position

    def cut(self, node: str, point: int) -> None:
        self._held[node] = min(self._held.get(node, point), point)
        self._same[node] = min(self._same.get(node, 0), point)

    def restart(self, node: str, end: int) -> None:
        """Record that the node holds what it found on its disk."""
        self._held[node] = end
        self._same[node] = min(self._same.get(node, 0), end)

    def power_lost(self, node: str) -> None:
        """Compare the node's log from its beginning again: its disk may have lost any part
        of it."""
        self._same[node] = 0

    def acknowledge(self, node: str, position: int) -> None:
        """Record that the node, a master, acknowledges everything up to this offset."""
        if position <= self.end:
            return
        if len(self._bytes) == self.end:  # else some could not be read, and only offsets count
            self._bytes += self._log_bytes(node, self.end, position) or b""
        self.end = position

    def first_missing(self, node: str, until: int) -> int | None:
        """Return the first acknowledged byte below `until` that the node lacks or holds
        differently, if any."""
        held = self._held.get(node)
        if held is None:
            return None
        return held if held < until else self._first_difference(node, until)

    def first_changed(self, node: str, until: int) -> int | None:
        """Return the first acknowledged byte below `until` that the node holds differently."""
        return self._first_difference(node, min(until, self._held.get(node, 0)))

    def holders(self, nodes: Iterable[str], until: int) -> int:
        """Return how many of the nodes hold all acknowledged bytes below `until`."""
        return sum(
            self._held.get(node, 0) >= until and self.first_missing(node, until) is None
            for node in nodes
        )

    def common_prefix(self, one: str, other: str) -> int:
        """Return the offset up to which both nodes are known to hold the acknowledged bytes."""
        return min(self._same.get(one, 0), self._same.get(other, 0))

    def _first_difference(self, node: str, until: int) -> int | None:
        at = self._same.get(node, 0)
        if at >= until or until > len(self._bytes):
            return None
        theirs = self._log_bytes(node, at, until)
        if theirs is None:
            return None
        mine = self._bytes[at:until]
        if theirs != mine:
            return at + first_difference(mine, theirs)
        self._same[node] = until
        return None


def first_difference(mine: bytes | bytearray, theirs: bytes | bytearray) -> int:
    """Return the offset where two byte strings diverge, or the length of the shorter one."""
    low, high = 0, min(len(mine), len(theirs))
    while low < high:  # equal up to low; a difference, if any, is within high
        middle = (low + high + 1) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
