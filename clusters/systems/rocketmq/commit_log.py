"""RocketMQ's message records, as brokers answer them and as their CommitLog files hold them.

A record: `i32 size | i32 magic | i32 crc of the body | i32 queue | i32 flag | i64 offset in the
queue | i64 place in the log | i32 sysflag | i64 born at | born on | i64 stored at | stored on |
i32 reconsumed | i64 prepared | i32 size, body | u8 size (second magic: u16), topic | u16 size,
properties`. A host has 8 bytes, or 20 where sysflag says that it is IPv6. A file ends with a record
of another magic number. Source: MessageDecoder and CommitLog of apache/rocketmq.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

MAGIC, MAGIC_2, BLANK = -626843481, -626843477, -875286124
HEAD = struct.Struct(">iiIiiqqiq")  # up to the time of birth
BORN_6, STORED_6 = 1 << 4, 1 << 5
ENTRY, ENTRY_MAGIC = struct.Struct(">iiqqqiiii"), 1
TRANSACTION = 3 << 2  # bits of sysflag: not 0 for the parts of a transaction


class RocketRecord(NamedTuple):
    """A message in a broker's log."""

    topic: str
    queue: int
    offset: int  # in its queue
    place: int  # in the log
    sysflag: int
    body: bytes


def records(data: bytes) -> Iterator[RocketRecord]:
    """Yield the records, up to the first that is incomplete or has a wrong checksum."""
    at = 0
    while at + HEAD.size <= len(data):
        size, magic, crc, queue, _, offset, place, sysflag, _ = HEAD.unpack_from(data, at)
        if magic not in (MAGIC, MAGIC_2) or size < HEAD.size or at + size > len(data):
            return
        end, found = at + size, at + HEAD.size
        found += (20 if sysflag & BORN_6 else 8) + 8 + (20 if sysflag & STORED_6 else 8) + 4 + 8
        body, found = _sized(data, found, 4)
        topic, found = _sized(data, found, 1 if magic == MAGIC else 2)
        if found > end or crc32(body) & 0x7FFFFFFF != crc & 0x7FFFFFFF:
            return
        yield RocketRecord(topic.decode(errors="replace"), queue, offset, place, sysflag, body)
        at = end


def terms_in(
    data: bytes, begun: Sequence[tuple[int, int]], *, raft: bool
) -> Iterator[tuple[int, RocketRecord]]:
    """Yield the records of a file, each with its term. `begun`: the places in the log at which
    epochs begin, with the epochs; `raft`: the file is one of DLedger's, which tells the term."""
    if raft:
        for term, body in raft_entries(data):
            yield from ((term, each) for each in records(body))
        return
    for each in records(data):
        yield max((term for at, term in begun if at <= each.place), default=0), each


def raft_entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the term and the body of each entry of a file of DLedger: `i32 magic | i32 size | i64
    index | i64 term | i64 place | i32 channel | i32 crc of the chain | i32 crc of the body | i32
    size of the body | body`. Source: DLedgerEntryCoder of openmessaging/dledger."""
    at = 0
    while at + ENTRY.size <= len(data):
        magic, size, _, term, _, _, _, _, length = ENTRY.unpack_from(data, at)
        begin = at + ENTRY.size
        if magic != ENTRY_MAGIC or length < 0 or begin + length > len(data) or size < ENTRY.size:
            return
        yield term, data[begin : begin + length]
        at += size


def _sized(data: bytes, at: int, width: int) -> tuple[bytes, int]:
    """Return bytes whose length comes before them, and where they end."""
    begin = at + width
    end = begin + int.from_bytes(data[at:begin], "big")
    return data[begin:end], end
