"""The commit log's records: what is written is read, and nothing else passes for a record."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.store import record

TOPIC, KEY, BODY = b"orders", b"k1", b"hello, world"
SOUND = record.encode(4096, 7, TOPIC, 3, 42, 1_700_000_000_000, KEY, BODY)


def at_4096(data: bytes) -> record.RecordHeader | None:
    return record.entry(data, 0, 4096)


def test_a_record_is_read_as_it_was_written() -> None:
    """Place, epoch, queue and message survive; the CRC handed to consumers is of key and body."""
    assert at_4096(SOUND) == record.RecordHeader(4096, len(SOUND), 7, TOPIC, 3, 42, KEY)
    assert record.size_of(TOPIC, KEY, BODY) == len(SOUND)
    payload = record.payload(SOUND, 0, 4096)
    crc = record.crc32(BODY, record.crc32(KEY))
    assert payload == (42, 7, crc, KEY, BODY, 1_700_000_000_000)


@pytest.mark.parametrize("kept", range(len(SOUND)))
def test_a_record_torn_at_any_byte_is_none(kept: int) -> None:
    """The rest missing, zeros, or an older record's bytes: none of them is a record.

    The one exception is bytes that happen to be the same: then the record is whole.
    """
    older = record.encode(4096, 6, b"former", 1, 9, 1_600_000_000_000, b"k0", b"another body")
    for tail in (b"", bytes(len(SOUND) - kept), older[kept:]):
        torn = SOUND[:kept] + tail
        if torn[: len(SOUND)] != SOUND and torn[: len(older)] != older:
            assert at_4096(torn) is None


@given(st.integers(0, 8 * len(SOUND) - 1))
def test_a_flipped_bit_is_seen(bit: int) -> None:
    """The CRC covers everything behind it, and a wrong size or CRC is a mismatch too."""
    damaged = bytearray(SOUND)
    damaged[bit // 8] ^= 1 << bit % 8
    assert at_4096(bytes(damaged)) is None
    with pytest.raises(record.DamagedRecord, match="offset 4096 is damaged"):
        record.payload(bytes(damaged), 0, 4096)


def test_zeros_are_the_end() -> None:
    """A preallocated segment's rest must never parse, wherever it is read."""
    zeros = bytes(4096)
    assert record.entry(zeros, 0, 0) is None
    assert record.declared_size(zeros, 0) == 0
    assert list(record.entries(SOUND + zeros, 4096)) == [at_4096(SOUND)]


def test_a_record_of_another_place_is_refused() -> None:
    """A sound record left over from elsewhere in the log does not belong here."""
    assert record.entry(SOUND, 0, 8192) is None


@given(st.integers(record.HEAD_SIZE, 500))
def test_a_filler_has_the_size_that_is_asked_for(size: int) -> None:
    """Every byte of the log belongs to a record."""
    data = record.filler(100, 3, size, 0)
    assert len(data) == size
    found = record.entry(data, 0, 100)
    assert found is not None
    assert (found.topic, found.end, found.epoch) == (b"", 100 + size, 3)


@given(st.lists(st.binary(max_size=30), max_size=6), st.data())
def test_whole_counts_whole_records(bodies: list[bytes], data: st.DataObject) -> None:
    """A batch is cut between records, never inside one."""
    log, ends = b"", [0]
    for i, body in enumerate(bodies):
        log += record.encode(len(log), 1, TOPIC, 0, i, 0, b"", body)
        ends.append(len(log))
    cut = data.draw(st.integers(0, len(log)))
    assert record.whole(log[:cut]) == max(end for end in ends if end <= cut)


def test_a_claimed_size_beyond_the_data_is_no_record() -> None:
    """A size larger than what is there must not be believed."""
    huge = struct.pack(">I", 2**31) + SOUND[4:]
    assert at_4096(huge) is None
