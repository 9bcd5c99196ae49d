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

from checkers._spark.compiled import rowwise

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Block = dict[str, Array]  # a block's arrays, by name
Fields = Mapping[str, tuple[Any, int]]  # name -> (dtype, what it holds before anything is known)

BLOCK_BITS = 13
BLOCK = 1 << BLOCK_BITS
NEVER = np.iinfo(np.int64).max  # later than any time
ROOM = 8  # times what is needed, when arrays grow
MOST_BLOCKS = 1 << 11  # that a task keeps in memory; it hands on what it knows, and begins anew
MET_AT_ONCE = 64  # blocks that a look-up may find missing before they are made

# a place: where a message is, as key << OFFSET_BITS | offset; NOWHERE, or a number in a block
OFFSET_BITS = 44
MOST_OFFSETS = 1 << OFFSET_BITS
NOWHERE = -1


class Blocks:
    """Blocks met so far."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._ids: Ints = np.array([NEVER])  # sorted, with a last one that no number reaches
        self._slots: Ints = np.array([0])
        self._used = 0
        self._arrays = {name: np.full(0, fill, dtype) for name, (dtype, fill) in fields.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __len__(self) -> int:
        return self._used

    def at(self, numbers: Ints) -> Ints:
        """Where these numbers are in the arrays, -1 for a negative one; take an array afterwards,
        it may have grown."""
        found, missing = np.empty(len(numbers), np.int64), np.empty(MET_AT_ONCE, np.int64)
        done = 0
        while done < len(numbers):
            known = (self._ids, self._slots, self._used)
            done, count = _locate(numbers, found, done, *known, missing)
            self._add(missing[:count])
        return found

    def items(self) -> Iterator[tuple[int, Block]]:
        """Each block's number and arrays."""
        for number, slot in zip(self._ids[:-1].tolist(), self._slots[:-1].tolist(), strict=True):
            here = slice(slot << BLOCK_BITS, (slot + 1) << BLOCK_BITS)
            yield number, {name: array[here] for name, array in self._arrays.items()}

    def _add(self, ids: Ints) -> None:
        """Make these blocks, each of which is new."""
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
    """A copy with room for many more: a page of memory is there once it is written to."""
    room = max(2 * needed, min(ROOM * needed, 2 * MOST_BLOCKS << BLOCK_BITS))
    larger = np.empty(room, array.dtype)
    larger[:used] = array[:used]
    return larger


@rowwise
def _locate(
    numbers: Ints, found: Ints, start: int, ids: Ints, slots: Ints, used: int, missing: Ints
) -> tuple[int, int]:
    """Fill `found` from `start` on, to the end or until too many blocks are missing: how far it
    came, and how many `missing` are to be made, in the order of their slots."""
    count = 0
    near, near_slots = np.full(64, -1), np.empty(64, np.int64)  # lately met
    for i in range(start, len(numbers)):
        number = numbers[i]
        if number < 0:
            found[i] = -1
            continue
        block = number >> BLOCK_BITS
        spot = (block ^ (block >> 19) ^ (block >> 31)) & 63  # apart for each producer and queue
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
    """A block as bytes to send: a bit for each array that says anything, then those arrays, mostly
    repetition, so that they shrink well."""
    told = [bool((block[name] != fill).any()) for name, (_, fill) in fields.items()]
    data = b"".join(block[name].tobytes() for name, any_ in zip(fields, told, strict=True) if any_)
    packed: bytes = pa.compress(data, codec="lz4", asbytes=True)
    return bytes(np.packbits(told, bitorder="little")) + packed


def unpack(data: bytes, fields: Fields) -> Block:
    told = np.unpackbits(np.frombuffer(data, np.uint8, 1), bitorder="little")
    sizes = {
        name: BLOCK * np.dtype(dtype).itemsize
        for (name, (dtype, _)), any_ in zip(fields.items(), told.tolist(), strict=False)
        if any_
    }
    whole = pa.decompress(data[1:], sum(sizes.values()), codec="lz4", asbytes=True)
    block, at = empty(fields), 0
    for name, size in sizes.items():
        block[name][:] = np.frombuffer(whole, fields[name][0], BLOCK, at)
        at += size
    return block


def merged(
    partials: Iterator[pa.RecordBatch],
    fields: Fields,
    absorb: Callable[[Block, Block], None],
) -> Iterator[tuple[int, Block]]:
    """Blocks from rows (block, packed) sorted by block: each merged from all that is known of it,
    and handed out before the next one is read."""
    current, block = -1, Block()
    for batch in partials:
        for number, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            other = unpack(packed, fields)
            if number == current:
                absorb(block, other)
                continue
            if current >= 0:
                yield current, block
            current, block = number, other
    if current >= 0:
        yield current, block


def column(batch: pa.RecordBatch, name: str) -> Array:
    """A column of integers, as wide as it is stored; -1 where it is null."""
    array = batch.column(batch.schema.get_field_index(name))
    if not array.null_count:
        numbers: Array = array.to_numpy(zero_copy_only=False)
        return numbers
    there, data = array.buffers()
    numbers = np.frombuffer(data, array.type.to_pandas_dtype())[array.offset :][: len(array)]
    known = np.unpackbits(np.frombuffer(there, np.uint8), bitorder="little")
    return np.where(known[array.offset :][: len(array)], numbers, numbers.dtype.type(-1))


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
        if self._blocks:
            ids = np.array(sorted(self._blocks), np.int64)
            at = np.minimum(np.searchsorted(ids, numbers >> BLOCK_BITS), len(ids) - 1)
            here = np.flatnonzero(ids[at] == numbers >> BLOCK_BITS)
            packed = b"".join(self._blocks[number] for number in ids.tolist())
            bit = (at[here] << BLOCK_BITS) | (numbers[here] & (BLOCK - 1))
            byte = np.frombuffer(packed, np.uint8)[bit >> 3]
            held[here] = (byte >> (7 - (bit & 7)) & 1) != 0  # as np.packbits does
        return held


def among(numbers: Ints, wanted: Ints) -> Ints:
    """Where those numbers are that are wanted; `wanted` is sorted."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.flatnonzero(wanted[at] == numbers)
