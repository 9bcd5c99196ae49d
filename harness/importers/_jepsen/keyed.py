"""Values of one object, or of many by key (`jepsen.independent`).

In a history of many every value is a pair of key and value. A file is one of those when most of its
reads are invoked with a vector, or, where nothing is read, most of its writes, or, where nothing is
written either, when most of its `pairs` have another pair as value: one line that is odd says
nothing about the others. A completion without a pair did not get as far as to say anything.

Where a read failed and no error is named, the file names no errors. What certainly did not happen
then tells nothing about why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.importers._jepsen.history import Decode, Decoded, Lines
from harness.importers._recording.recording import FAILED, NO_ERROR, Sheet, Slips
from harness.importers._text.value_events import atom, by_rows, pair
from harness.operation import Type

ONLY = 0  # the key of the one object

Said = Callable[[Sheet, int, int, str, Any, Any, int], None]  # ... type, f, key, value, error


@dataclass(frozen=True)
class Keyed:
    """A decoder of files of both kinds; `said`: what one event says of the object `key`. `errors`:
    whether the file names errors, so that a failure without one has another reason."""

    said: Said
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    errors: bool = True

    def __call__(self, lines: Lines, slips: Slips) -> Decoded:
        """A piece as it looks by itself, and its votes."""
        votes = self._votes(lines)
        return replace(self._decoder(votes)(lines, slips), votes=votes)

    def elect(self, votes: Sequence[tuple[int, ...]]) -> Decode | None:
        """What the file is, where a piece of it looked otherwise."""
        whole = tuple(map(sum, zip(*votes, strict=True)))
        alike = all(_looks(some) == _looks(whole) for some in votes)
        return None if alike else self._decoder(whole)

    def _decoder(self, votes: tuple[int, ...]) -> Decode:
        by_key, errors = _looks(votes)
        mine = replace(self, errors=errors)
        return by_rows(mine._many if by_key else mine._one)

    def _one(self, sheet: Sheet, event: int, kind: int, f: str, value: Any, error: int) -> None:
        self.said(sheet, event, kind, f, ONLY, value, self._error(kind, error))

    def _many(self, sheet: Sheet, event: int, kind: int, f: str, value: Any, error: int) -> None:
        if value is None and kind > Type.OK:
            return
        key, inner = pair(value, "a pair of key and value")
        self.said(sheet, event, kind, f, atom(key), inner, self._error(kind, error))

    def _error(self, kind: int, error: int) -> int:
        return FAILED if kind == Type.FAIL and error == NO_ERROR and not self.errors else error

    def _votes(self, lines: Lines) -> tuple[int, ...]:
        """How many reads are invoked with a vector and how many with nil; how many writes with a
        vector and how many with anything else; how many pairs are pairs of a key and a pair, and
        how many are not; how many reads failed without an error."""
        votes: list[int] = []
        for names in (self.reads, self.writes):
            asked = np.flatnonzero(lines.named(*names) & (lines.type == Type.INVOKE)).tolist()
            values = [lines.value[event] or "nil" for event in asked]
            vectors = sum(value.startswith("[") and value != "[]" for value in values)
            votes += [
                vectors,
                values.count("nil") if names == self.reads else len(values) - vectors,
            ]
        asked = np.flatnonzero(lines.named(*self.pairs) & (lines.type == Type.INVOKE)).tolist()
        nested = sum((lines.value[event] or "").endswith("]]") for event in asked)
        votes += [nested, len(asked) - nested]
        failed = lines.named(*self.reads) & (lines.type == Type.FAIL) & (lines.error == NO_ERROR)
        bare = [event for event in np.flatnonzero(failed).tolist() if not _is_word(lines, event)]
        return (*votes, len(bare))


def _is_word(lines: Lines, event: int) -> bool:
    """Whether its value is a keyword: so older histories name an error."""
    return (lines.value[event] or "").startswith(":")


def _looks(votes: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether values are pairs of key and value, and whether errors are named."""
    vectors, others = next((two for two in (votes[:2], votes[2:4]) if any(two)), votes[4:6])
    return vectors > others, votes[6] == 0
