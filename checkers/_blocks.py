"""Arrays over a wide, sparse range of integers, in blocks that merge.

Messages are numbered densely for each producer and offsets densely for each queue, so what is
known of them fits in plain arrays: 8,192 consecutive numbers are a *block*, and a block's arrays
are made when its first number is met. Two machines that saw different files hold different
versions of one block; merging them is a few array operations, whatever the history's size, the
number of queues or the order of events. Rows are never sorted, hashed or shuffled.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Block = dict[str, Array]  # a block's arrays, by name

BLOCK_BITS = 13
BLOCK = 1 << BLOCK_BITS
NEVER = np.iinfo(np.int64).max  # later than any time
FIRST_SLOTS = 4

# a place: where a message is, as key << OFFSET_BITS | offset; NOWHERE, or a number in a block
OFFSET_BITS = 44
MOST_OFFSETS = 1 << OFFSET_BITS
NOWHERE = -1


class Blocks:
    """Blocks met so far. `fields`: name -> (dtype, what it holds before anything is known)."""

    def __init__(self, fields: Mapping[str, tuple[Any, int]]) -> None:
        self._fields = fields
        self._ids: Ints = np.array([NEVER])  # sorted, with a last one that no number reaches
        self._slots: Ints = np.array([0])
        self._used = 0
        self._arrays = {name: np.full(0, fill, dtype) for name, (dtype, fill) in fields.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def at(self, numbers: Ints) -> Ints:
        """Where these numbers are in the arrays; take an array afterwards, it may have grown."""
        ids = numbers >> BLOCK_BITS
        found = np.searchsorted(self._ids, ids)
        missing = self._ids[found] != ids
        if missing.any():
            self._add(np.unique(ids[missing]))
            found = np.searchsorted(self._ids, ids)
        return (self._slots[found] << BLOCK_BITS) | (numbers & (BLOCK - 1))

    def items(self) -> Iterator[tuple[int, Block]]:
        """Each block's number and arrays."""
        for number, slot in zip(self._ids[:-1].tolist(), self._slots[:-1].tolist(), strict=True):
            here = slice(slot << BLOCK_BITS, (slot + 1) << BLOCK_BITS)
            yield number, {name: array[here] for name, array in self._arrays.items()}

    def _add(self, ids: Ints) -> None:
        slots = np.arange(self._used, self._used + len(ids))
        self._used += len(ids)
        at = np.searchsorted(self._ids, ids)
        self._ids = np.insert(self._ids, at, ids)
        self._slots = np.insert(self._slots, at, slots)
        for name, (dtype, fill) in self._fields.items():
            array = self._arrays[name]
            if len(array) < self._used << BLOCK_BITS:
                room = max(FIRST_SLOTS, 2 * self._used) << BLOCK_BITS
                self._arrays[name] = np.concatenate(
                    [array, np.full(room - len(array), fill, dtype)]
                )


def empty(fields: Mapping[str, tuple[Any, int]]) -> Block:
    return {name: np.full(BLOCK, fill, dtype) for name, (dtype, fill) in fields.items()}


def pack(block: Block) -> bytes:
    """A block as bytes to send; mostly repetition, so they shrink well."""
    data = b"".join(array.tobytes() for array in block.values())
    packed: bytes = pa.compress(data, codec="lz4", asbytes=True)
    return packed


def unpack(data: bytes, fields: Mapping[str, tuple[Any, int]]) -> Block:
    sizes = {name: BLOCK * np.dtype(dtype).itemsize for name, (dtype, _) in fields.items()}
    whole = pa.decompress(data, sum(sizes.values()), codec="lz4", asbytes=True)
    block: Block = {}
    at = 0
    for name, (dtype, _) in fields.items():
        block[name] = np.frombuffer(whole, dtype, BLOCK, at)
        at += sizes[name]
    return block


def merged(
    partials: Iterator[pa.RecordBatch],
    fields: Mapping[str, tuple[Any, int]],
    absorb: Callable[[Block, Block], None],
) -> Iterator[tuple[int, Block]]:
    """Blocks from rows (block, packed) sorted by block: each merged from all that is known of it,
    and handed out before the next one is read."""
    current, block = -1, empty(fields)
    for batch in partials:
        for number, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if number != current:
                if current >= 0:
                    yield current, block
                current, block = number, empty(fields)
            absorb(block, unpack(packed, fields))
    if current >= 0:
        yield current, block


def column(batch: pa.RecordBatch, name: str) -> Ints:
    """A column of integers; -1 where it is null."""
    array = batch.column(batch.schema.get_field_index(name))
    filled = array.fill_null(-1) if array.null_count else array
    numbers: Ints = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def bits(mask: Bools) -> bytes:
    return np.packbits(mask).tobytes()


def members(numbers: Ints) -> "Members":
    """These numbers as a set."""
    packed = {}
    for number in np.unique(numbers >> BLOCK_BITS).tolist():
        mask = np.zeros(BLOCK, np.bool_)
        mask[numbers[numbers >> BLOCK_BITS == number] & (BLOCK - 1)] = True
        packed[number] = bits(mask)
    return Members(packed)


class Members:
    """A set of numbers as one bit each in the blocks that have any."""

    def __init__(self, packed: Mapping[int, bytes]) -> None:
        self._blocks = packed

    def __len__(self) -> int:
        return sum(
            int(np.unpackbits(np.frombuffer(b, np.uint8)).sum()) for b in self._blocks.values()
        )

    def within(self, number: int) -> Bools:
        """Which numbers of one block are in the set."""
        packed = self._blocks.get(number)
        if packed is None:
            return np.zeros(BLOCK, np.bool_)
        return np.unpackbits(np.frombuffer(packed, np.uint8)).astype(np.bool_)

    def holds(self, numbers: Ints) -> Bools:
        """Which of these numbers are in the set."""
        held = np.zeros(len(numbers), np.bool_)
        if not self._blocks or not len(numbers):
            return held
        ids = numbers >> BLOCK_BITS
        for number in np.unique(ids).tolist():
            packed = self._blocks.get(number)
            if packed is not None:
                here = np.flatnonzero(ids == number)
                mask = np.unpackbits(np.frombuffer(packed, np.uint8)).astype(np.bool_)
                held[here] = mask[numbers[here] & (BLOCK - 1)]
        return held
