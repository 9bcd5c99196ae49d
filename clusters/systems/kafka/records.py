"""Record batches of Kafka (magic 2): what a broker stores, sends and takes.

Layout (Kafka's documentation, "Record Batch"): i64 base offset, i32 length of the rest, i32 epoch
of the partition's leader, i8 magic, u32 CRC-32C of all that follows: i16 attributes, i32 last
offset delta, i64 first and i64 last timestamp, i64 producer, i16 its epoch, i32 sequence, i32
number of records. A record is a varint of its length, i8 attributes, varints of timestamp and
offset, relative to the batch's, key and value with their lengths as varints, and a varint of its
headers' number. Varints are zigzag-encoded. All other numbers are big-endian.

The standard library has no CRC-32C.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BATCH = struct.Struct(">qiibIhiqqqhii")
PREFIX = struct.Struct(">qi")  # base offset and length, which are not counted in the length
CRC_FROM = 21  # of the attributes
MAGIC, COMPRESSION, TRANSACTIONAL, CONTROL = 2, 0x07, 0x10, 0x20
ABORT = 0  # the type in the key of a control record, behind its version
NO_TIME = -1
POLYNOMIAL = 0x82F63B78  # of Castagnoli, reflected


def _table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Producer(NamedTuple):
    """A producer's number and epoch, which a coordinator gives, and the number of its next record
    in a partition."""

    number: int = -1
    epoch: int = -1
    sequence: int = -1


NO_PRODUCER = Producer()


class Entry(NamedTuple):
    """A record of a partition: its offset, the epoch of the leader that appended it, its value."""

    offset: int
    epoch: int
    value: bytes


def varint(number: int) -> bytes:
    """Encode a number of up to 64 bits."""
    return unsigned_varint(number << 1 ^ number >> 63)


def unsigned_varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset behind it."""
    number, at = read_unsigned_varint(data, at)
    return number >> 1 ^ -(number & 1), at


def read_unsigned_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def encode_batch(values: Sequence[bytes], producer: Producer = NO_PRODUCER) -> bytes:
    """Return a batch of records without keys; one of a producer with a number is part of its
    transaction."""
    records = b""
    for delta, value in enumerate(values):
        body = b"\x00" + varint(0) + varint(delta) + varint(-1)
        body += varint(len(value)) + value + varint(0)
        records += varint(len(body)) + body
    count = len(values)
    length = BATCH.size - PREFIX.size + len(records)
    attributes = TRANSACTIONAL if producer.number >= 0 else 0
    fields = (attributes, count - 1, NO_TIME, NO_TIME, *producer, count)
    batch = BATCH.pack(0, length, -1, MAGIC, 0, *fields) + records
    crc = crc32c(batch[CRC_FROM:])
    return batch[: CRC_FROM - 4] + crc.to_bytes(4) + batch[CRC_FROM:]


class Batch(NamedTuple):
    """A batch of records: the offset behind its last one, what its attributes say, and its
    producer."""

    entries: list[Entry]
    next_offset: int
    control: bool
    transactional: bool
    aborts: bool  # it is the marker of an aborted transaction
    producer: int


def batches_in(data: bytes, verify: bool = True) -> Iterator[Batch]:
    """Yield batches in a row, up to the first one that is incomplete, as at the end of an answer,
    or whose checksum is wrong, unless it is not to be verified. Raises ValueError if one is
    compressed."""
    at = 0
    while at + BATCH.size <= len(data):
        head = BATCH.unpack_from(data, at)
        base, length, epoch, magic, crc, attributes, last, _, _, producer, _, _, count = head
        end = at + PREFIX.size + length
        if end > len(data) or magic != MAGIC:
            break
        if verify and crc32c(data[at + CRC_FROM : end]) != crc:
            break
        if attributes & COMPRESSION:
            raise ValueError("a batch is compressed")
        control, start = bool(attributes & CONTROL), at + BATCH.size
        yield Batch(
            [] if control else _records_in(data, start, count, base, epoch),
            base + last + 1,
            control,
            bool(attributes & TRANSACTIONAL),
            control and _control_type(data, start) == ABORT,
            producer,
        )
        at = end


def entries_in(data: bytes, verify: bool = True) -> list[Entry]:
    """Return the records of batches in a row, as far as `batches_in` yields them, aborted ones
    too."""
    return [entry for batch in batches_in(data, verify) for entry in batch.entries]


def committed_in(data: bytes, aborted: Sequence[tuple[int, int]]) -> tuple[list[Entry], int]:
    """Return the records of batches in a row without those of aborted transactions, and the offset
    behind the last batch, -1 if there is none. `aborted`: the number of the producer and the first
    offset of each, as the broker tells them. Source: Fetcher of apache/kafka."""
    found: list[Entry] = []
    left, inside, after = sorted(aborted, key=lambda one: one[1]), set(), -1
    for batch in batches_in(data, verify=False):
        after = batch.next_offset
        while left and left[0][1] < after:
            inside.add(left.pop(0)[0])
        if batch.aborts:
            inside.discard(batch.producer)
        elif not (batch.transactional and batch.producer in inside):
            found += batch.entries
    return found, after


def _control_type(data: bytes, at: int) -> int:
    """Return the type of the only record of a control batch: i16 version and i16 type are its
    key."""
    _, at = read_varint(data, at)
    _, at = read_varint(data, at + 1)
    _, at = read_varint(data, at)
    _, at = read_varint(data, at)
    return int.from_bytes(data[at + 2 : at + 4])


def _records_in(data: bytes, at: int, count: int, base: int, epoch: int) -> list[Entry]:
    found = []
    for _ in range(count):
        length, at = read_varint(data, at)
        end = at + length
        _, place = read_varint(data, at + 1)
        delta, place = read_varint(data, place)
        key, place = read_varint(data, place)
        size, place = read_varint(data, place + max(key, 0))
        found.append(Entry(base + delta, epoch, data[place : place + max(size, 0)]))
        at = end
    return found
