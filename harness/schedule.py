"""What next, for whom, when: the pure, seeded part of a workload.

Every generator takes its randomness as an argument and touches nothing else, so the same seed
gives the same load, in this world or in a simulated one. Arrivals are those of a Poisson process:
the load does not fall into step with the cluster's own timers, and does not wait for it (an
arrival that finds every slot taken is skipped by the caller, never piled up).
"""

from collections.abc import Iterator, Sequence
from itertools import count, repeat
from typing import Protocol

from harness.operation import value_of


class Randomness(Protocol):
    """What of `random.Random` is used."""

    def expovariate(self, lambd: float) -> float: ...

    def randrange(self, stop: int) -> int: ...


def arrivals(random: Randomness, rate_per_s: float) -> Iterator[float]:
    """Seconds since the load began at which operations are due; rate 0: at once, always."""
    if rate_per_s <= 0:
        yield from repeat(0.0)
    at_s = 0.0
    while True:
        at_s += random.expovariate(rate_per_s)
        yield at_s


def values(producer: int) -> Iterator[int]:
    """The values a producer sends: dense, from its sequence number 0 on."""
    return (value_of(producer, sequence) for sequence in count())


def choices(random: Randomness, keys: int) -> Iterator[int]:
    """The key of each operation, uniformly."""
    return (random.randrange(keys) for _ in count())


def share(items: Sequence[int], index: int, of: int) -> list[int]:
    """The items that fall to one of several workers: every item to exactly one, evenly."""
    return list(items[index::of])
