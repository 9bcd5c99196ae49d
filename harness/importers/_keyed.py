"""Values of one object, or of many by key (`jepsen.independent`).

In a history of many every value is a pair of key and value. A file is one of those when most of its
reads are invoked with a vector, or, where nothing is read, most of its writes: one line that is odd
says nothing about the others. A completion without a pair did not get as far as to say anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.importers._decoding import atom, by_rows, pair
from harness.importers._jepsen import Decode, Decoded, Lines
from harness.importers._recording import Sheet, Slips
from harness.operation import Type

ONLY = 0  # the key of the one object

Said = Callable[[Sheet, int, int, str, Any, Any, bool], None]  # ... type, f, key, value, error


@dataclass(frozen=True)
class Keyed:
    """A decoder of files of both kinds; `said`: what one event says of the object `key`."""

    said: Said
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()

    def __call__(self, lines: Lines, slips: Slips) -> Decoded:
        """A piece as it looks by itself, and its votes."""
        votes = self._votes(lines)
        decode = self._decoder(by_key=_by_key(votes))
        return replace(decode(lines, slips), votes=votes)

    def elect(self, votes: Sequence[tuple[int, ...]]) -> Decode | None:
        """What the file is, where a piece of it looked otherwise."""
        by_key = _by_key(tuple(map(sum, zip(*votes, strict=True))))
        alike = all(_by_key(some) == by_key for some in votes)
        return None if alike else self._decoder(by_key=by_key)

    def _decoder(self, *, by_key: bool) -> Decode:
        return by_rows(self._many if by_key else self._one)

    def _one(self, sheet: Sheet, event: int, kind: int, f: str, value: Any, error: bool) -> None:
        self.said(sheet, event, kind, f, ONLY, value, error)

    def _many(self, sheet: Sheet, event: int, kind: int, f: str, value: Any, error: bool) -> None:
        if value is None and kind > Type.OK:
            return
        key, inner = pair(value, "a pair of key and value")
        self.said(sheet, event, kind, f, atom(key), inner, error)

    def _votes(self, lines: Lines) -> tuple[int, ...]:
        """How many reads are invoked with a vector and how many with nil; how many writes with a
        vector and how many with anything else."""
        votes: list[int] = []
        for names in (self.reads, self.writes):
            asked = np.flatnonzero(lines.named(*names) & (lines.type == Type.INVOKE)).tolist()
            values = [lines.value[event] or "nil" for event in asked]
            vectors = sum(value.startswith("[") and value != "[]" for value in values)
            votes += [
                vectors,
                values.count("nil") if names == self.reads else len(values) - vectors,
            ]
        return tuple(votes)


def _by_key(votes: tuple[int, ...]) -> bool:
    reads, writes = votes[:2], votes[2:]
    vectors, others = reads if any(reads) else writes
    return vectors > others
