"""Bytes of many lines at once: what stands at some places, and the numbers there.

A piece of a file is an array of bytes with some padding, so that looking a few bytes past a place
is always allowed. A *span* is a start and an end in it.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.importers._recording.recording import Bools, Ints

Bytes = npt.NDArray[np.uint8]

PADDING = 64  # longer than any word that is looked for
MOST_DIGITS = 18
ZERO = 48


@dataclass(frozen=True)
class Spans:
    """Texts within some data. A start of -1: there is none."""

    data: bytes
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, at: int) -> str | None:
        start = int(self.start[at])
        if start < 0:
            return None
        return self.data[start : int(self.end[at])].decode("utf-8", errors="replace")

    def take(self, at: Ints) -> "Spans":
        return replace(self, start=self.start[at], end=self.end[at])


def padded(data: bytes) -> Bytes:
    return np.frombuffer(data + b"\0" * PADDING, np.uint8)


def says(text: Bytes, at: Ints, word: bytes) -> Bools:
    """Where this word stands: eight bytes at a time are compared as one number."""
    eights = np.ndarray(len(text) - 7, np.dtype("<u8"), text, strides=(1,))
    same = np.ones(len(at), np.bool_)
    for index in range(0, len(word), 8):
        some = word[index : index + 8]
        mask = np.uint64((1 << 8 * len(some)) - 1)
        same &= (eights[at + index] & mask) == np.uint64(int.from_bytes(some, "little"))
    return same


def numbers(text: Bytes, start: Ints, end: Ints) -> tuple[Ints, Bools]:
    """The numbers in some spans, and which spans hold nothing but digits, not too many, and none
    that are octal."""
    found = np.zeros(len(start), np.int64)
    length = end - start
    good = (length > 0) & (length <= MOST_DIGITS) & ((length == 1) | (text[start] != ZERO))
    for digit in range(int(length[good].max(initial=0))):
        long = np.flatnonzero(good & (length > digit))
        value = text[start[long] + digit] - np.uint8(ZERO)  # what is below zero wraps around
        good[long[value > 9]] = False
        found[long] = found[long] * 10 + value
    return found, good


def digit_runs(text: Bytes) -> tuple[Ints, Ints]:
    """Where each run of digits begins, and where it has ended."""
    digits = (text - np.uint8(ZERO)) <= 9
    edges = np.flatnonzero(digits[1:] != digits[:-1]) + 1
    if digits[0]:
        edges = np.insert(edges, 0, 0)
    return edges[0::2], edges[1::2]


def ranges(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Of ranges of numbers, all of the numbers, and to which range each belongs."""
    owner = np.repeat(np.arange(len(first)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return first[owner] + within, owner
