"""Columns of integers: segments, joins by value, and packing for transport."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NULL = int(np.iinfo(np.int64).min)  # an absent value
MAX_CODES = 1 << 62


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers start, start + 1 ... of each segment, one segment after another."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    flat: Ints = np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)
    return flat


def starts_of(lengths: Ints) -> Ints:
    """Return the starts of adjacent segments of these lengths."""
    starts: Ints = np.cumsum(lengths) - lengths
    return starts


def group_starts(*columns: Ints) -> Ints:
    """Return the first row of each group in columns whose equal rows are adjacent."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    change = np.zeros(len(columns[0]), np.bool_)
    change[0] = True
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(change)


def group_numbers(starts: Ints, count: int) -> Ints:
    """Return the number of each row's group."""
    marks = np.zeros(count, np.int64)
    marks[starts] = 1
    numbers: Ints = np.cumsum(marks) - 1
    return numbers


def all_of(good: Bools, lengths: Ints) -> Bools:
    """Return for each segment whether everything in it is true; an empty segment is."""
    bad = np.cumsum(np.concatenate([[0], ~good]))
    ends = np.cumsum(lengths)
    answer: Bools = bad[ends] == bad[ends - lengths]
    return answer


def count_until(key: Ints, time: Ints, of_key: Ints, until: Ints) -> Ints:
    """Return how many rows, sorted by key and time, come before or at each (key, until)."""
    times = np.unique(np.concatenate([time, until]))
    keys = np.unique(key)
    width = len(times) + 1
    sorted_codes = np.searchsorted(keys, key) * width + np.searchsorted(times, time)
    wanted = np.searchsorted(keys, of_key) * width + np.searchsorted(times, until)
    counted: Ints = np.searchsorted(sorted_codes, wanted, side="right")
    return counted


class Lookup:
    """Finds rows by two columns: the first row with (key, value), or -1."""

    def __init__(self, key: Ints, value: Ints) -> None:
        self._keys, self._values = _DenseRange(key), _DenseRange(value)
        if self._keys.size * self._values.size > MAX_CODES:
            self._values = _Ranks(value)
        codes = self._codes(key, value)
        self._order = np.argsort(codes, kind="stable")
        self._sorted = codes[self._order]
        self.repeated: Ints = self._order[1:][self._sorted[1:] == self._sorted[:-1]]

    def _codes(self, key: Ints, value: Ints) -> Ints:
        k, v = self._keys.of(key), self._values.of(value)
        codes: Ints = np.where((k < 0) | (v < 0), -1, k * self._values.size + v)
        return codes

    def at(self, key: Ints, value: Ints) -> Ints:
        """Return the row of each pair, -1 where there is none."""
        if not len(self._sorted):
            return np.full(len(key), -1, np.int64)
        codes = self._codes(key, value)
        place = np.minimum(np.searchsorted(self._sorted, codes), len(self._sorted) - 1)
        rows: Ints = np.where(self._sorted[place] == codes, self._order[place], -1)
        return rows


class _DenseRange:
    """Numbers counted from their minimum; negative: out of range."""

    def __init__(self, known: Ints) -> None:
        self._least, self._most = (int(known.min()), int(known.max())) if len(known) else (0, -1)
        self.size = self._most - self._least + 1

    def of(self, wanted: Ints) -> Ints:
        inside = (wanted >= self._least) & (wanted <= self._most)
        return np.where(inside, wanted, self._least - 1) - self._least


class _Ranks(_DenseRange):
    """The same for numbers that lie far apart: their ranks."""

    def __init__(self, known: Ints) -> None:
        self._known = np.unique(known)
        self.size = len(self._known)

    def of(self, wanted: Ints) -> Ints:
        place = np.minimum(np.searchsorted(self._known, wanted), self.size - 1)
        ranks: Ints = np.where(self._known[place] == wanted, place, -1)
        return ranks


def pack(*columns: Ints) -> bytes:
    """Return columns of any lengths as bytes."""
    head = np.array([len(columns), *(len(column) for column in columns)], np.int64)
    data = b"".join(np.ascontiguousarray(c, np.int64).tobytes() for c in (head, *columns))
    squeezed: bytes = pa.compress(data, codec="lz4", asbytes=True)
    return len(data).to_bytes(8, "little") + squeezed


def unpack(data: bytes) -> list[Ints]:
    """Return the columns of `pack`."""
    size = int.from_bytes(data[:8], "little")
    raw = pa.decompress(data[8:], decompressed_size=size, codec="lz4", asbytes=True)
    numbers = np.frombuffer(raw, np.int64)
    count = int(numbers[0])
    ends = 1 + count + np.cumsum(numbers[1 : 1 + count])
    return [numbers[end - n : end] for end, n in zip(ends, numbers[1 : 1 + count], strict=True)]


def split_tables(columns: list[Ints], widths: Sequence[int]) -> list[list[Ints]]:
    """Split the columns of several tables; `widths`: the number of columns of each."""
    ends = np.cumsum(widths)
    return [columns[end - n : end] for end, n in zip(ends, widths, strict=True)]


def concat_packs(parts: list[list[Ints]], width: int) -> list[Ints]:
    """Concatenate several packs column by column."""
    empty: list[Any] = [np.empty(0, np.int64)]
    return [np.concatenate(empty + [part[i] for part in parts]) for i in range(width)]
