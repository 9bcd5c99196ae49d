"""What a broker set has acknowledged, byte by byte, and which replica holds how much of it.

The bytes are kept once, as the acknowledging master had them on its disk. A replica is compared
with them from where it was last found to be the same; a cut or a loss of power lowers that mark.
How far a replica holds its log is what it says to itself: written, or flushed where that counts.
"""

from collections.abc import Callable

LogBytes = Callable[[str, int, int], bytes | None]  # node, start, end -> as they are on its disk


class Acknowledged:
    """The acknowledged bytes of one broker set. `end`: how far they go."""

    def __init__(self, log_bytes: LogBytes) -> None:
        self.end = 0
        self._log_bytes = log_bytes
        self._bytes = bytearray()
        self._held: dict[str, int] = {}
        self._same: dict[str, int] = {}  # up to where a node's bytes were compared

    def holds(self, node: str, position: int) -> None:
        """The node has its log up to this position, as durably as it has to."""
        self._held[node] = position

    def cut(self, node: str, point: int) -> None:
        self._held[node] = min(self._held.get(node, point), point)
        self._same[node] = min(self._same.get(node, 0), point)

    def restarted(self, node: str, end: int) -> None:
        """What it holds now is what it found on its disk."""
        self._held[node] = end
        self._same[node] = min(self._same.get(node, 0), end)

    def power_lost(self, node: str) -> None:
        """Its disk may have lost anything: what was compared has to be compared again."""
        self._same[node] = 0

    def acknowledge(self, node: str, position: int) -> None:
        """The node, a master, acknowledges everything up to this position."""
        if position <= self.end:
            return
        if len(self._bytes) == self.end:  # else some could not be read: positions have to do
            self._bytes += self._log_bytes(node, self.end, position) or b""
        self.end = position

    def lacks(self, node: str, until: int) -> int | None:
        """The first acknowledged byte below `until` that the node lacks, or has otherwise."""
        held = self._held.get(node)
        if held is None:
            return None
        return held if held < until else self._differs(node, until)

    def in_common(self, one: str, other: str) -> int:
        """Up to where the bytes of both are known to be the acknowledged ones."""
        return min(self._same.get(one, 0), self._same.get(other, 0))

    def _differs(self, node: str, until: int) -> int | None:
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
    """Where two stretches part; the shorter one's length when it begins the longer one."""
    low, high = 0, min(len(mine), len(theirs))
    while low < high:  # they are the same up to low, and differ within high, if at all
        middle = (low + high + 1) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
