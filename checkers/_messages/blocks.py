"""Arrays over a wide, sparse range of integers, in blocks that can be merged.

Messages are numbered densely for each producer, and offsets densely for each queue, so what is
known of them fits in plain arrays: 8,192 consecutive numbers are a *block*, whose arrays are
created when its first number is added. Two machines that read different files hold different
versions of one block; merging them takes a few array operations, whatever the size of the history,
the number of queues or the order of events. Rows are never sorted, hashed or shuffled.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers._spark.compiled import rowwise
from checkers._spark.spark_stages import PARTIALS, Batches

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Block = dict[str, Array]  # a block's arrays, by name
Fields = Mapping[str, tuple[Any, int]]  # name -> (dtype, initial value)

BLOCK_BITS = 13
BLOCK = 1 << BLOCK_BITS
NEVER = np.iinfo(np.int64).max  # later than any time
GROWTH = 8  # factor by which arrays grow
MAX_BLOCKS = 1 << 11  # that a task holds; it yields them, and starts again with none
MAX_MISSING = 64  # blocks that a look-up may find missing before they are created

# A place is the position of a message, key << OFFSET_BITS | offset: a number in a block.
OFFSET_BITS = 44
MAX_OFFSETS = 1 << OFFSET_BITS


class Blocks:
    """Blocks of one task, by number."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._ids: Ints = np.array([NEVER])  # sorted; the last one is greater than any number
        self._slots: Ints = np.array([0])
        self._used = 0
        self._arrays = {name: np.full(0, fill, dtype) for name, (dtype, fill) in fields.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __len__(self) -> int:
        return self._used

    def at(self, numbers: Ints) -> Ints:
        """Return the indices of these numbers in the arrays, -1 for negative ones. Arrays may have
        been replaced by larger ones afterwards."""
        found, missing = np.empty(len(numbers), np.int64), np.empty(MAX_MISSING, np.int64)
        done = 0
        while done < len(numbers):
            known = (self._ids, self._slots, self._used)
            done, count = _locate(numbers, found, done, *known, missing)
            self._add(missing[:count])
        return found

    def items(self) -> Iterator[tuple[int, Block]]:
        """Yield each block's number and arrays."""
        for number, slot in zip(self._ids[:-1].tolist(), self._slots[:-1].tolist(), strict=True):
            here = slice(slot << BLOCK_BITS, (slot + 1) << BLOCK_BITS)
            yield number, {name: array[here] for name, array in self._arrays.items()}

    def packed(self) -> Batches:
        """Yield a row of PARTIALS for each block."""
        for number, block in self.items():
            yield pa.record_batch([[number], [pack(block, self.fields)]], schema=PARTIALS)

    def _add(self, ids: Ints) -> None:
        """Create these blocks, none of which exists."""
        order = np.argsort(ids)
        at = np.searchsorted(self._ids, ids[order])
        self._ids = np.insert(self._ids, at, ids[order])
        self._slots = np.insert(self._slots, at, self._used + order)
        first, self._used = self._used << BLOCK_BITS, self._used + len(ids)
        end = self._used << BLOCK_BITS
        for name, (_, fill) in self.fields.items():
            if len(self._arrays[name]) < end:
                self._arrays[name] = _larger(self._arrays[name], first, end)
            self._arrays[name][first:end] = fill


def _larger(array: Array, used: int, needed: int) -> Array:
    """Return a copy with much more room: unused pages of memory are not allocated."""
    room = max(2 * needed, min(GROWTH * needed, 2 * MAX_BLOCKS << BLOCK_BITS))
    larger = np.empty(room, array.dtype)
    larger[:used] = array[:used]
    return larger


@rowwise
def _locate(
    numbers: Ints, found: Ints, start: int, ids: Ints, slots: Ints, used: int, missing: Ints
) -> tuple[int, int]:
    """Fill `found` from `start` to the end, or until too many blocks are missing. Return where it
    stopped, and how many `missing` blocks have to be created, in the order of their slots."""
    count = 0
    near, near_slots = np.full(64, -1), np.empty(64, np.int64)  # a cache of recent blocks
    for i in range(start, len(numbers)):
        number = numbers[i]
        if number < 0:
            found[i] = -1
            continue
        block = number >> BLOCK_BITS
        spot = (block ^ (block >> 19) ^ (block >> 31)) & 63  # differs by producer and queue
        if near[spot] != block:
            known = np.searchsorted(ids, block)
            slot = slots[known]
            if ids[known] != block:
                place = 0
                while place < count and missing[place] != block:
                    place += 1
                if place == len(missing):
                    return i, count
                missing[place] = block
                count = max(count, place + 1)
                slot = used + place
            near[spot], near_slots[spot] = block, slot
        found[i] = (near_slots[spot] << BLOCK_BITS) | (number & (BLOCK - 1))
    return len(numbers), count


def empty(fields: Fields) -> Block:
    return {name: np.full(BLOCK, fill, dtype) for name, (dtype, fill) in fields.items()}


def pack(block: Block, fields: Fields) -> bytes:
    """Return a block as bytes: a bit for each array that differs from its initial value, then
    those arrays. They are repetitive, so they compress well."""
    differs = [bool((block[name] != fill).any()) for name, (_, fill) in fields.items()]
    arrays = [block[name].tobytes() for name, any_ in zip(fields, differs, strict=True) if any_]
    packed: bytes = pa.compress(b"".join(arrays), codec="lz4", asbytes=True)
    return bytes(np.packbits(differs, bitorder="little")) + packed


def unpack(data: bytes, fields: Fields) -> Block:
    differs = np.unpackbits(np.frombuffer(data, np.uint8, 1), bitorder="little")
    sizes = {
        name: BLOCK * np.dtype(dtype).itemsize
        for (name, (dtype, _)), any_ in zip(fields.items(), differs.tolist(), strict=False)
        if any_
    }
    whole = pa.decompress(data[1:], sum(sizes.values()), codec="lz4", asbytes=True)
    block, at = empty(fields), 0
    for name, size in sizes.items():
        block[name][:] = np.frombuffer(whole, fields[name][0], BLOCK, at)
        at += size
    return block


def merged(
    partials: Iterable[tuple[int, bytes]],
    fields: Fields,
    absorb: Callable[[Block, Block], None],
) -> Iterator[tuple[int, Block]]:
    """Merge packed blocks that are sorted by number, and yield each of them before the next one is
    read."""
    current, block = -1, Block()
    for number, packed in partials:
        other = unpack(packed, fields)
        if number == current:
            absorb(block, other)
            continue
        if current >= 0:
            yield current, block
        current, block = number, other
    if current >= 0:
        yield current, block


def merged_batches(
    partials: Batches, fields: Fields, absorb: Callable[[Block, Block], None]
) -> Iterator[tuple[int, Block]]:
    """Merge blocks from sorted rows of PARTIALS."""
    columns = (zip(*(c.to_pylist() for c in b.columns), strict=True) for b in partials)
    return merged(chain.from_iterable(columns), fields, absorb)


# ------------------------------------------------------------------------------ sets of numbers


def bits(mask: Bools) -> bytes:
    return np.packbits(mask).tobytes()


def bits_if_any(mask: Bools) -> bytes | None:
    return bits(mask) if mask.any() else None


class Members:
    """A set of numbers, stored as one bit each in the blocks that have any."""

    def __init__(self, packed: Mapping[int, bytes]) -> None:
        self._blocks = packed

    @classmethod
    def of(cls, numbers: Ints) -> "Members":
        packed = {}
        for number in np.unique(numbers >> BLOCK_BITS).tolist():
            mask = np.zeros(BLOCK, np.bool_)
            mask[numbers[numbers >> BLOCK_BITS == number] & (BLOCK - 1)] = True
            packed[number] = bits(mask)
        return cls(packed)

    @classmethod
    def of_blocks(cls, packed: Iterable[tuple[int, bytes | None]]) -> "Members":
        """Return the set of the bits of some blocks; None is a block without any."""
        return cls({number: mask for number, mask in packed if mask})

    def __len__(self) -> int:
        return sum(
            int(np.unpackbits(np.frombuffer(b, np.uint8)).sum()) for b in self._blocks.values()
        )

    def within(self, number: int) -> Bools:
        """Return which numbers of one block are in the set."""
        packed = self._blocks.get(number)
        if packed is None:
            return np.zeros(BLOCK, np.bool_)
        return np.unpackbits(np.frombuffer(packed, np.uint8)).astype(np.bool_)

    def holds(self, numbers: Ints) -> Bools:
        """Return which of these numbers are in the set."""
        held = np.zeros(len(numbers), np.bool_)
        if self._blocks:
            ids = np.array(sorted(self._blocks), np.int64)
            at = np.minimum(np.searchsorted(ids, numbers >> BLOCK_BITS), len(ids) - 1)
            here = np.flatnonzero(ids[at] == numbers >> BLOCK_BITS)
            packed = b"".join(self._blocks[number] for number in ids.tolist())
            bit = (at[here] << BLOCK_BITS) | (numbers[here] & (BLOCK - 1))
            byte = np.frombuffer(packed, np.uint8)[bit >> 3]
            held[here] = (byte >> (7 - (bit & 7)) & 1) != 0  # as np.packbits does
        return held


NO_MEMBERS = Members({})


def among(numbers: Ints, wanted: Ints) -> Ints:
    """Return the indices of the numbers that are in `wanted`, which is sorted."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.flatnonzero(wanted[at] == numbers)
