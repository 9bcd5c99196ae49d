"""The index by key: the messages of a topic that carry a key.

As in RocketMQ, it has hashes of topic and key; the log tells matches from collisions. A message
costs two numbers, in log order, and nothing is sorted: a search scans the hashes, ten milliseconds
for a segment of 64 MiB, which an operator's query can afford and a send cannot. Keys in a segment's
file (`segment_index`) are not in memory. The index is rebuilt at start from those files and the
log, and is not stored itself.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from zlib import crc32


def hash_of(topic: bytes, key: bytes) -> int:
    return crc32(key, crc32(topic))


class KeyIndex:
    """Hashes and positions of the messages that are not in a segment's file."""

    def __init__(self) -> None:
        self.hashes, self.places = array("I"), array("Q")

    def add(self, topic: bytes, key: bytes, position: int) -> None:
        if key:
            self.hashes.append(crc32(key, crc32(topic)))
            self.places.append(position)

    def extend(self, hashes: "array[int]", places: "array[int]") -> None:
        self.hashes.extend(hashes)
        self.places.extend(places)

    def segment(self, base: int, end: int) -> tuple["array[int]", "array[int]"]:
        low, high = bisect_left(self.places, base), bisect_left(self.places, end)
        return self.hashes[low:high], self.places[low:high]

    def forget_before(self, point: int) -> None:
        """Drop the keys before `point`: they are in a segment's file, or deleted."""
        gone = bisect_left(self.places, point)
        del self.hashes[:gone], self.places[:gone]

    def truncate(self, point: int) -> None:
        kept = bisect_left(self.places, point)
        del self.hashes[kept:], self.places[kept:]


def find(hashes: "array[int]", places: "array[int]", wanted: int) -> Iterator[int]:
    """Yield the positions with this hash, in log order."""
    at = -1
    while True:
        try:
            at = hashes.index(wanted, at + 1)
        except ValueError:
            return
        yield places[at]
