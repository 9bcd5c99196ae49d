"""Rows of a history about messages: what a task records of each, in blocks that can be merged.

Messages are numbered densely for each producer, and offsets densely for each queue, so what is
known of them fits in plain arrays: 8,192 consecutive numbers are a *block*, whose arrays are
created when its first number is added. Two machines that read different files hold different
versions of one block; merging them takes a few array operations, whatever the size of the history,
the number of queues or the order of events. Rows are never sorted, hashed or shuffled.

A value is sent once, completes once, and is then seen by readers, consumer groups and replicas. All
of that is one word of flags and one *place* (queue and offset). `observe` adds rows of the history,
in any order; `absorb` merges two versions of a block. The place that the final reader saw takes
precedence over all others: it read the log that survived.
"""

import heapq
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import IntFlag
from functools import wraps
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers._spark.spark_stages import (
    EVERYTHING,
    PARTIALS,
    Batches,
    Share,
    Unit,
    arrays,
    in_batches,
)
from harness.compiled import kernel
from harness.history.object_store import SCRATCH
from harness.operation import F, Type

Function = TypeVar("Function", bound=Callable[..., Any])
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
SIEVE_BITS = 16
SIEVE = 1 << SIEVE_BITS
HASH, HASHED = 0x9E3779B1, 0xFFFFFFFF  # 2**32 / the golden ratio: spreads consecutive numbers
MAX_MISSING = 64  # blocks that a look-up may find missing before they are created

# A place is the position of a message, key << OFFSET_BITS | offset: a number in a block.
OFFSET_BITS = 44
MAX_OFFSETS = 1 << OFFSET_BITS
MAX_QUEUES = 1 << (63 - OFFSET_BITS)

COMPILED_ROWS = 1 << 16  # from which on plain Python is slower than the import of numba


def rowwise(function: Function) -> Function:
    """Decorator of a loop over the rows of its first argument: it runs as plain Python for few rows
    and compiled for many, so that a short history needs no compiler."""
    compiled: list[Function] = []

    @wraps(function)
    def run(rows: Any, *others: Any) -> Any:
        if not compiled:
            if len(rows) < COMPILED_ROWS:
                return function(rows, *others)
            compiled.append(kernel(function))
        return compiled[0](rows, *others)

    return run  # type: ignore[return-value]


class Blocks:
    """Blocks of one task, by number."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.clear()

    def clear(self) -> None:
        """Remove all blocks."""
        self._ids: Ints = np.array([NEVER])  # sorted; the last one is greater than any number
        self._slots: Ints = np.array([0])
        self._used = 0
        self._arrays = {n: np.full(0, fill, dtype) for n, (dtype, fill) in self.fields.items()}

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

    def keep(self, wanted: Callable[[Block], bool]) -> None:
        """Remove the blocks that are not wanted."""
        kept = [
            (number, {name: array.copy() for name, array in block.items()})
            for number, block in self.items()
            if wanted(block)
        ]
        self.clear()
        for number, block in kept:
            first = int(self.at(np.array([number << BLOCK_BITS]))[0])
            for name, array in block.items():
                self._arrays[name][first : first + BLOCK] = array

    def known(self, numbers: Ints) -> Bools:
        """Return which of these numbers are in a block that exists."""
        blocks = numbers >> BLOCK_BITS
        known: Bools = self._ids[np.searchsorted(self._ids, blocks)] == blocks
        return known

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


class SpillingBlocks(Blocks):
    """Blocks of one task that sees all rows. What exceeds its memory is put aside in a file, in
    sorted runs, and merged at the end: memory is the same for any number of rows."""

    HEAD = struct.Struct("<qI")  # a block's number, and how many bytes follow

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, int]] = []

    def spill(self) -> None:
        """Put the blocks aside if there are too many."""
        if len(self) > MAX_BLOCKS:
            self._put_aside()

    def whole(
        self, absorb: Callable[[Block, Block], None], correct: Callable[[Block], None] | None = None
    ) -> Iterator[tuple[int, Block]]:
        """Yield each block's number and arrays in the order of numbers, all versions merged.
        `correct` changes a version that had been put aside before it is merged."""
        if self._file is None:
            yield from self.items()
            return
        self._put_aside()
        self._file.flush()
        runs = (self._run(*ends) for ends in self._runs)
        yield from merged(heapq.merge(*runs, key=itemgetter(0)), self.fields, absorb, correct)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _put_aside(self) -> None:
        if self._file is None:
            folder = os.environ.get(SCRATCH, "").split(",")[0]  # on an executor its own
            self._file = tempfile.TemporaryFile(dir=folder or None)  # noqa: SIM115 -- as long as it
        begin = self._file.tell()
        for number, block in self.items():
            packed = pack(block, self.fields)
            self._file.write(self.HEAD.pack(number, len(packed)) + packed)
        self._runs.append((begin, self._file.tell()))
        self.clear()

    def _run(self, at: int, end: int) -> Iterator[tuple[int, bytes]]:
        file = self._file.fileno() if self._file else -1
        while at < end:
            number, size = self.HEAD.unpack(os.pread(file, self.HEAD.size, at))
            yield number, os.pread(file, size, at + self.HEAD.size)
            at += self.HEAD.size + size


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
    correct: Callable[[Block], None] | None = None,
) -> Iterator[tuple[int, Block]]:
    """Merge packed blocks that are sorted by number, and yield each of them before the next one is
    read."""
    current, block = -1, Block()
    for number, packed in partials:
        other = unpack(packed, fields)
        if correct is not None:
            correct(other)
        if number == current:
            absorb(block, other)
            continue
        if current >= 0:
            yield current, block
        current, block = number, other
    if current >= 0:
        yield current, block


def reports(
    partials: Batches,
    fields: Fields,
    absorb: Callable[[Block, Block], None],
    report: Callable[[int, Block], Mapping[str, Any]],
    schema: pa.Schema,
) -> Batches:
    """Merge blocks from sorted rows of PARTIALS, and yield the report on each as a row."""
    columns = (zip(*(c.to_pylist() for c in b.columns), strict=True) for b in partials)
    blocks = merged(chain.from_iterable(columns), fields, absorb)
    return in_batches((report(number, block) for number, block in blocks), schema)


# ------------------------------------------------------------------------- rows and places


COLUMNS = (
    *("t", "process", "op", "type", "f", "key", "value", "offset", "pos", "mop", "attempts"),
    *("epoch", "arg"),
)


class OpColumns:
    """Some rows of the ops table, as arrays by column; -1 is null. A selection copies only the
    columns that are used."""

    t: Ints
    process: Ints
    op: Ints
    type: Ints
    f: Ints
    key: Ints
    value: Ints
    offset: Ints
    pos: Ints
    mop: Ints
    attempts: Ints
    epoch: Ints
    arg: Ints

    def __init__(self, columns: Mapping[str, Ints], at: Ints | None = None) -> None:
        self._columns, self._at = columns, at

    def __getattr__(self, name: str) -> Ints:
        array = self._columns[name]
        array = array if self._at is None else array[self._at]
        self.__dict__[name] = array
        return array

    def where(self, mask: Bools) -> "OpColumns":
        return self.take(np.flatnonzero(mask))

    def take(self, at: Ints) -> "OpColumns":
        return OpColumns(self._columns, at if self._at is None else self._at[at])


def queue_rows(
    paths: Iterable[Path], columns: Sequence[str], **how: Any
) -> Iterator[dict[str, Ints]]:
    """Yield what `arrays` does. Raises ValueError if a queue's number does not fit in a place."""
    for rows in arrays(paths, columns, **how):
        if (highest := int(rows["key"].max(initial=-1))) >= MAX_QUEUES:
            limit = f"checks of messages can tell {MAX_QUEUES:,} queues apart"
            raise ValueError(f"a row names queue number {highest:,}, and {limit}")
        yield rows


def place_of(key: Ints, offset: Ints) -> Ints:
    """Return places. The offset may be absent, the key may not."""
    return (key << OFFSET_BITS) | np.where(in_range(offset), offset + 1, 0)


def in_range(offset: Ints) -> Bools:
    known: Bools = (offset >= 0) & (offset < MAX_OFFSETS - 1)
    return known


def key_of(place: Ints) -> Ints:
    """Return the key of each place; -1 for no place."""
    return place >> OFFSET_BITS


def offset_of(place: Ints) -> Ints:
    """Return the offset of each place; -1 if it is not known."""
    return np.where(place < 0, -1, (place & (MAX_OFFSETS - 1)) - 1)


def among(numbers: Ints, wanted: Ints) -> Ints:
    """Return the indices of the numbers that are in `wanted`, which is sorted."""
    if not len(wanted):
        return np.zeros(0, np.int64)
    if len(numbers) < SIEVE or len(wanted) > SIEVE >> 4:
        return _equal(numbers, wanted)
    sieve = np.zeros(SIEVE, np.bool_)  # one look-up rules out most
    sieve[(wanted & HASHED) * HASH >> SIEVE_BITS & (SIEVE - 1)] = True
    some = np.empty(len(numbers), np.int64)
    some = some[: _sieved(numbers, sieve, some)]
    return some[_equal(numbers[some], wanted)]


def _equal(numbers: Ints, wanted: Ints) -> Ints:
    at = np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)
    return np.flatnonzero(wanted[at] == numbers)


@rowwise
def _sieved(numbers: Ints, sieve: Bools, found: Ints) -> int:
    """Fill in the indices of the numbers that the sieve does not rule out, and count them."""
    count = 0
    for i in range(len(numbers)):
        if sieve[(int(numbers[i]) & HASHED) * HASH >> SIEVE_BITS & (SIEVE - 1)]:
            found[count] = i
            count += 1
    return count


def differ(a: Ints, b: Ints) -> Bools:
    """Return where two places cannot be one: other queues, or other offsets if both are known."""
    both = (a >= 0) & (b >= 0) & (a != b)
    known = (offset_of(a) >= 0) & (offset_of(b) >= 0)
    result: Bools = both & (known | (key_of(a) != key_of(b)))
    return result


# -------------------------------------------------------------------- what is known of messages

GROUP_BIT = 16  # of a message's flags: group g's deliveries are bit GROUP_BIT + g
MAX_GROUPS = 64 - GROUP_BIT


class MessageFlag(IntFlag):
    """What is known of a message."""

    INVOKED = 1
    ACKED = 2
    FAILED = 4
    INFO = 8
    RETRIED = 16  # its send took more than one attempt
    READ = 32  # by the final reader
    READ_TWICE = 64  # by the final reader, at two places: it is stored twice
    MOVED = 128  # rows of the history have two places for it
    POLLED = 256  # by a consumer
    STORED = 512  # in a replica's log at the end
    PART = 1024  # sent in a transaction of unknown outcome
    GIVEN_TWICE = 2048  # delivered to one group more than once
    OVERDUE = 4096  # acknowledged after the final phase began: perhaps too late for its readers


GROUPS = -1 << GROUP_BIT  # the flags of all groups

OFFSETS = MAX_OFFSETS - 1  # the bits of a place that are the offset
INFO, POLLED, RETRIED = int(MessageFlag.INFO), int(MessageFlag.POLLED), int(MessageFlag.RETRIED)
SEND, OK, UNSURE = int(F.SEND), int(Type.OK), int(Type.INFO)
READ, READ_TWICE = int(MessageFlag.READ), int(MessageFlag.READ_TWICE)
MOVED, GIVEN_TWICE = int(MessageFlag.MOVED), int(MessageFlag.GIVEN_TWICE)
ACKED, OVERDUE, PART = int(MessageFlag.ACKED), int(MessageFlag.OVERDUE), int(MessageFlag.PART)

MESSAGE_FIELDS: dict[str, tuple[Any, int]] = {
    "flags": (np.uint64, 0),
    "place": (np.int64, -1),
    "acked": (np.int64, -1),  # the place in the acknowledgement
}


def has(flags: Array, *wanted: MessageFlag) -> Bools:
    """Return where any of these flags is set."""
    mask: Bools = (flags & np.uint64(sum(wanted))) != 0
    return mask


READ_COLUMNS = ("process", "type", "f", "key", "value", "offset", "attempts")  # of ops
HELD_COLUMNS = ("value", "key", "offset")  # of replicas
TRIVIAL = {"attempts": 1, "mop": -1, "epoch": -1, "arg": -1}  # a second attempt is what counts


@dataclass(frozen=True)
class MessageScan:
    """How the rows of a history are reduced to blocks.

    groups    by process, the number of its group, or -1
    imported  the history was recorded by another tool
    until     that of the scope
    """

    groups: Ints
    imported: bool = False
    until: int | None = None

    def scan(self, unit: Unit) -> Batches:
        """Reduce the files of a unit."""
        blocks = Blocks(MESSAGE_FIELDS)
        for _ in self.observed(blocks, unit):
            if len(blocks) > MAX_BLOCKS:
                yield from blocks.packed()
                blocks.clear()
        yield from blocks.packed()

    def blocks_of(self, units: Iterable[Unit], share: Share) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of a share, in the order of their numbers."""
        with closing(SpillingBlocks(MESSAGE_FIELDS)) as blocks:
            for unit in units:
                for _ in self.observed(blocks, unit, share):
                    blocks.spill()
            yield from blocks.whole(absorb)

    def observed(
        self, blocks: Blocks, unit: Unit, share: Share = EVERYTHING, more: Sequence[str] = ()
    ) -> Iterator[OpColumns]:
        """Add a unit's rows, some at a time, and yield those of operations, with more columns."""
        table, paths = unit
        if table != "ops":
            for rows in queue_rows(paths, HELD_COLUMNS):
                observe_replica(blocks, rows["value"], rows["key"], rows["offset"], share)
                yield OpColumns({})
            return
        columns = {*READ_COLUMNS, *more}
        columns |= ({"mop"} if self.imported else set()) | (set() if self.until is None else {"t"})
        for rows in queue_rows(paths, sorted(columns), narrow=True, trivial=TRIVIAL):
            ops = OpColumns(rows)
            observe(blocks, ops, self, share)
            yield ops


def observe(blocks: Blocks, rows: OpColumns, scan: MessageScan, share: Share = EVERYTHING) -> None:
    """Add rows of the history."""
    number, place, news = np.empty((3, len(rows.value)), np.int64)
    columns = (rows.key, rows.offset, rows.type, rows.f, rows.attempts, rows.process)
    imported, until = scan.imported, scan.until
    how = (scan.groups, NEWS[imported], imported, share.number, share.of)
    _interpret(rows.value, *columns, *how, number, place, news)
    if imported:
        news |= np.where((news & INFO != 0) & (rows.mop >= 0), PART, 0)
    if until is not None:
        news |= np.where((news & ACKED != 0) & (rows.t > until), OVERDUE, 0)
    _add(blocks, number, place, news)


def observe_replica(
    blocks: Blocks, value: Ints, key: Ints, offset: Ints, share: Share = EVERYTHING
) -> None:
    """Add messages of a replica's log."""
    news = np.full(len(value), int(MessageFlag.STORED))
    mine = (key >= 0) & ((value >> BLOCK_BITS) % share.of == share.number)
    _add(blocks, np.where(mine, value, -1), place_of(key, offset), news)


def _add(blocks: Blocks, number: Ints, place: Ints, news: Ints) -> None:
    at = blocks.at(number)
    flags = blocks["flags"].view(np.int64)
    _put(at, place, news, flags, blocks["place"], blocks["acked"])


def _news(received: Mapping[F, MessageFlag]) -> Ints:
    """Return the flags that a row sets, by its f and type: those of sends, and for each f with
    which messages are received, those of its answers."""
    table = np.zeros((max(F) + 2) << 2, np.int64)
    send = (MessageFlag.INVOKED, MessageFlag.ACKED, MessageFlag.FAILED, MessageFlag.INFO)
    table[F.SEND << 2 : (F.SEND + 1) << 2] = send
    for f, flags in received.items():
        table[f << 2 | Type.OK] = flags
    return table


# of a run of Seatrial, and of an imported history, in which every receiver counts as a reader
NEWS = (
    _news({F.POLL: MessageFlag.POLLED, F.READ: MessageFlag.READ}),
    _news(
        {
            f: MessageFlag.READ | (MessageFlag.POLLED if f is F.POLL else 0)
            for f in F
            if f is not F.SEND
        }
    ),
)


@rowwise
def _interpret(
    value: Ints,
    key: Ints,
    offset: Ints,
    kind: Ints,
    f: Ints,
    attempts: Ints,
    process: Ints,
    groups: Ints,
    meaning: Ints,
    imported: bool,
    share: int,
    shares: int,
    number: Ints,
    place: Ints,
    news: Ints,
) -> None:
    """Fill in what each row says: of which message (-1: of none, or not of this share), its flags,
    and its place."""
    for i in range(len(value)):
        number[i], news[i] = -1, 0
        code = (int(f[i]) << 2) | int(kind[i])
        if value[i] < 0 or not 0 <= code < len(meaning) or meaning[code] == 0:
            continue
        if shares > 1 and (value[i] >> BLOCK_BITS) % shares != share:
            continue
        if key[i] < 0 and f[i] != SEND:
            continue
        number[i], new = value[i], meaning[code]
        if f[i] == SEND and attempts[i] > 1:
            new |= RETRIED
        if new & POLLED and 0 <= process[i] < len(groups) and groups[process[i]] >= 0:
            new |= np.int64(1) << (GROUP_BIT + groups[process[i]])
        news[i], place[i] = new, -1
        if key[i] < 0:  # the client selects the queue
            continue
        place[i] = int(key[i]) << OFFSET_BITS
        known = kind[i] == OK or (imported and kind[i] == UNSURE)  # its offset means something
        if known and 0 <= offset[i] < OFFSETS:
            place[i] |= offset[i] + 1


@rowwise
def _put(at: Ints, place: Ints, news: Ints, flags: Ints, places: Ints, acked: Ints) -> None:
    """Record what rows say of their messages. The lowest place with an offset is kept, that of
    the final reader before all others, so that the order of rows does not matter. A group that
    received the message before has received it twice."""
    for i in range(len(at)):
        here = at[i]
        if here < 0:
            continue
        new, now, was = news[i], places[here], flags[here]
        if now >= 0 and place[i] >= 0 and now != place[i]:  # as in `differ`
            known = now & OFFSETS != 0 and place[i] & OFFSETS != 0
            if known or now >> OFFSET_BITS != place[i] >> OFFSET_BITS:
                new |= MOVED
                if new & READ and was & READ:
                    new |= READ_TWICE
        if new & was & GROUPS:
            new |= GIVEN_TWICE
        if new & ACKED and place[i] >= 0:
            acked[here] = max(acked[here], place[i])
        if place[i] >= 0 and now != place[i]:
            if (new ^ was) & READ != 0 and now >= 0:
                better = new & READ != 0
            else:  # as by `_rank`
                known, knew = place[i] & OFFSETS != 0, now & OFFSETS != 0
                better = now < 0 or (place[i] < now if known == knew else known)
            if better:
                places[here] = place[i]
        flags[here] = was | new


def absorb(mine: Block, other: Block) -> None:
    """Merge another task's version of the same block into `mine`."""
    flags, places = mine["flags"], mine["place"]
    elsewhere = differ(places, other["place"])
    read, other_read = has(flags, MessageFlag.READ), has(other["flags"], MessageFlag.READ)
    again = (flags & other["flags"]).view(np.int64) & GROUPS != 0
    flags |= other["flags"]
    flags[again] |= np.uint64(MessageFlag.GIVEN_TWICE)
    flags[elsewhere] |= np.uint64(MessageFlag.MOVED)
    flags[elsewhere & read & other_read] |= np.uint64(MessageFlag.READ_TWICE)
    np.maximum(mine["acked"], other["acked"], out=mine["acked"])
    better = np.where(read == other_read, _rank(other["place"]) < _rank(places), other_read)
    places[better] = other["place"][better]


def _rank(places: Array) -> Array:
    """Return the rank of each place. The lowest is kept, so that the order of merging does not
    matter: places with an offset come first, no place comes last."""
    ranked = np.where(offset_of(places) >= 0, places, places | (1 << 62))
    return np.where(places < 0, NEVER, ranked)
