"""Witnesses in words: what the transactions of a cycle saw, one dependency a sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkers._cycles.arrays import NULL
from checkers._cycles.edges import Kind
from checkers._cycles.ways import Hop


@dataclass(frozen=True)
class Story:
    """Names for the words: of keys and values, as far as they have any, and when a transaction was
    (seconds, process)."""

    keys: dict[int, str]
    times: dict[int, tuple[float, float, int]]
    values: Sequence[str] = ()

    def told(self, hops: list[Hop]) -> str:
        """A cycle in plain sentences."""
        return ". ".join((*self._sentences(hops), "No serial order explains all of this")) + "."

    def _sentences(self, hops: list[Hop]) -> Iterator[str]:
        for hop in hops:
            yield f"{self._seen(hop)}, so {name(hop.src)} came before {name(hop.dst)}"

    def _seen(self, hop: Hop) -> str:
        first, second, key = name(hop.src), name(hop.dst), self.key(hop.key)
        if hop.kind is Kind.WW:
            one, next_ = self.value(hop.a), self.value(hop.b)
            return f"{first} wrote {one} to {key} and {second} wrote {next_} next"
        if hop.kind is Kind.WR:
            return f"{second} read {self.value(hop.a)} of {key}, which {first} wrote"
        if hop.kind is Kind.RW:
            upto, unseen = self.value(hop.a), self.value(hop.b)
            return f"{first} read {key} up to {upto} and did not see {unseen}, which {second} wrote"
        begin, end = self.times.get(hop.dst, (0, 0, 0)), self.times.get(hop.src, (0, 0, 0))
        if hop.kind is Kind.PROCESS:
            return f"process {end[2]} ended {first} before it started {second}"
        return f"{first} ended at {end[1]:.6f} s and {second} started at {begin[0]:.6f} s"

    def key(self, key: int) -> str:
        return self.keys.get(key, str(key))

    def value(self, value: int) -> str:
        if value == NULL:
            return "nothing"
        return self.values[value] if 0 <= value < len(self.values) else str(value)


class LogStory(Story):
    """Of transactions that send messages to logs and poll them: what hops know are offsets."""

    def _seen(self, hop: Hop) -> str:
        first, second, key = name(hop.src), name(hop.dst), self.key(hop.key)
        if hop.kind is Kind.WW:
            return f"{first} sent the message at {hop.a} of {key} and {second} the one at {hop.b}"
        if hop.kind is Kind.WR:
            before = "it" if hop.a == hop.b else f"the earlier one at {hop.a}"
            return f"{second} polled the message at {hop.b} of {key} and {first} had sent {before}"
        return super()._seen(hop)


def name(op: int) -> str:
    return f"T{op}"
