"""Witnesses in words: what the transactions of a cycle saw, one dependency a sentence."""

from collections.abc import Iterator
from dataclasses import dataclass

from checkers._cycles.arrays import NULL
from checkers._cycles.edges import Kind
from checkers._cycles.ways import Hop


@dataclass(frozen=True)
class Story:
    """Names for the words: of keys and values, and when a transaction was (seconds, process)."""

    keys: dict[int, str]
    times: dict[int, tuple[float, float, int]]

    def told(self, hops: list[Hop]) -> str:
        """A cycle in plain sentences."""
        return ". ".join((*self._sentences(hops), "No order explains all of this")) + "."

    def _sentences(self, hops: list[Hop]) -> Iterator[str]:
        for hop in hops:
            yield f"{self._seen(hop)}, so {name(hop.src)} came before {name(hop.dst)}"

    def _seen(self, hop: Hop) -> str:
        first, second, key = name(hop.src), name(hop.dst), self.key(hop.key)
        if hop.kind is Kind.WW:
            return f"{first} wrote {_value(hop.a)} to {key} and {second} wrote {_value(hop.b)} next"
        if hop.kind is Kind.WR:
            return f"{second} read {_value(hop.a)} of {key}, which {first} wrote"
        if hop.kind is Kind.RW:
            return (
                f"{first} read {key} up to {_value(hop.a)} and did not see {_value(hop.b)}, "
                f"which {second} wrote"
            )
        begin, end = self.times.get(hop.dst, (0, 0, 0)), self.times.get(hop.src, (0, 0, 0))
        if hop.kind is Kind.PROCESS:
            return f"process {end[2]} had ended {first} when it began {second}"
        return f"{first} had ended at {end[1]:.6f} s and {second} began at {begin[0]:.6f} s"

    def key(self, key: int) -> str:
        return self.keys.get(key, str(key))


def name(op: int) -> str:
    return f"T{op}"


def _value(value: int) -> str:
    return "nothing" if value == NULL else str(value)
