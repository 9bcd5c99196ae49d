"""What next, for whom, when: the pure, seeded part of a workload.

Every generator takes its randomness as an argument and touches nothing else, so the same seed
gives the same load, in this world or in a simulated one. Arrivals are those of a Poisson process:
the load does not fall into step with the cluster's own timers, and does not wait for it: an
arrival that finds every slot taken is skipped, never piled up. Skipped arrivals are counted, since
latencies of what was sent alone would make a stalled client look fast (coordinated omission).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat
from typing import Protocol

from harness.history.notes import SKIPPED
from harness.operation import value_of

NOTE_EVERY_S = 1.0


class Randomness(Protocol):
    """What of `random.Random` is used."""

    def expovariate(self, lambd: float) -> float: ...

    def randrange(self, stop: int) -> int: ...


def arrivals(random: Randomness, rate_per_s: float, burst: int = 1) -> Iterator[float]:
    """Seconds since the load began at which operations are due; rate 0: at once, always.

    `burst`: so many are due at the same instant; the rate stays what it is.
    """
    if rate_per_s <= 0:
        yield from repeat(0.0)
    at_s = 0.0
    while True:
        at_s += random.expovariate(rate_per_s / burst)
        yield from repeat(at_s, burst)


class Skipped:
    """Counts the arrivals of one process that found every slot taken, and notes their number."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.count = self._noted = 0
        self._note, self._next_s = note, 0.0

    def add(self, now_s: float) -> None:
        """Count one; note the number now and then, for a process may be killed before its end."""
        self.count += 1
        if now_s >= self._next_s:
            self._next_s = now_s + NOTE_EVERY_S
            self.note()

    def note(self) -> None:
        """Note the number, if it has changed."""
        if self.count > self._noted:
            self._noted = self.count
            self._note(f"{SKIPPED} {self.count}")


def values(producer: int) -> Iterator[int]:
    """The values a producer sends: dense, from its sequence number 0 on."""
    return (value_of(producer, sequence) for sequence in count())


def choices(random: Randomness, keys: int) -> Iterator[int]:
    """The key of each operation, uniformly."""
    return (random.randrange(keys) for _ in count())


def share(items: Sequence[int], index: int, of: int) -> list[int]:
    """The items that fall to one of several workers: every item to exactly one, evenly."""
    return list(items[index::of])
