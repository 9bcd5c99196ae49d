"""Which operation comes next, on which key, and when: the pure, seeded part of a workload.

Every generator takes its random numbers as an argument and touches nothing else, so the same seed
gives the same load, in this world or in a simulated one. Arrivals are a Poisson process: the load
does not fall into step with the cluster's timers, and does not wait for it: an arrival that finds
every slot taken is skipped, never queued. Skipped arrivals are counted, since the latencies of what
was sent alone would make a stalled client look fast (coordinated omission).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat
from typing import Protocol

from harness.history.notes import SKIPPED
from harness.operation import value_of

NOTE_EVERY_S = 1.0


class LoadRandom(Protocol):
    """The methods of `random.Random` that are used."""

    def expovariate(self, lambd: float) -> float: ...

    def randrange(self, stop: int) -> int: ...


def arrivals(random: LoadRandom, rate_per_s: float, burst: int = 1) -> Iterator[float]:
    """Yield the seconds since the load began at which operations are due; rate 0: at once, always.

    `burst`: so many are due at the same instant, at an unchanged rate.
    """
    if rate_per_s <= 0:
        yield from repeat(0.0)
    at_s = 0.0
    while True:
        at_s += random.expovariate(rate_per_s / burst)
        yield from repeat(at_s, burst)


class SkippedArrivals:
    """Counts the arrivals of one process that found every slot taken, and notes their number."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.count = self._noted = 0
        self._note, self._next_s = note, 0.0

    def add(self, now_s: float) -> None:
        """Count one; note the number every second, because a process may be killed before its
        end."""
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
    """Yield the values that a producer sends: dense, from sequence number 0 on."""
    return (value_of(producer, sequence) for sequence in count())


def choices(random: LoadRandom, keys: int) -> Iterator[int]:
    """Yield the key of each operation, uniformly."""
    return (random.randrange(keys) for _ in count())


def share(items: Sequence[int], index: int, of: int) -> list[int]:
    """Return one worker's share of the items: every item goes to exactly one worker, evenly."""
    return list(items[index::of])
