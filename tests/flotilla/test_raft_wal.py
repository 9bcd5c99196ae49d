"""Raft's disk: what was synced is read back; what was torn is cut; what was lost is refused."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.ports import real
from clusters.flotilla.raft.core import Vote
from clusters.flotilla.raft.messages import Entry
from clusters.flotilla.raft.wal import Recovered, Wal, WalDamaged, pack, parse

Record = tuple[Vote, int, tuple[Entry, ...]]
FIRST: Record = (Vote(1, "a"), 1, (Entry(1, b""), Entry(1, b"one")))
SECOND: Record = (Vote(2), 2, (Entry(2, b"two"), Entry(2, bytes(20))))
THIRD: Record = (Vote(3, "b"), 0, ())


def recover(path: Path) -> Recovered:
    async def reading() -> Recovered:
        wal, recovered = await Wal.recover(real().files, str(path))
        wal.close()
        return recovered

    return asyncio.run(reading())


def write(path: Path, *records: Record) -> None:
    async def writing() -> None:
        wal, _ = await Wal.recover(real().files, str(path))
        for record in records:
            wal.write(*record)
            await wal.sync()
        wal.close()

    asyncio.run(writing())


def test_a_restart_finds_what_was_written(tmp_path: Path) -> None:
    """The hard state is the last one; later entries replace earlier ones from their first on."""
    path = tmp_path / "raft.wal"
    assert recover(path) == Recovered(Vote(), (), 0, 0)
    write(path, FIRST, SECOND)
    write(path, THIRD)
    assert recover(path).vote == Vote(3, "b")
    assert recover(path).entries == (Entry(1, b""), Entry(2, b"two"), Entry(2, bytes(20)))


@given(st.lists(st.tuples(st.integers(0, 2**60), st.binary(max_size=40)), max_size=5))
def test_packing_loses_nothing(rows: list[tuple[int, bytes]]) -> None:
    """Any entries, empty data among them."""
    entries = tuple(Entry(term, data) for term, data in rows)
    recovered = parse(pack(Vote(2**60, "é"), 1, entries) + bytes(100))
    assert (recovered.vote, recovered.entries, recovered.cut) == (Vote(2**60, "é"), entries, 0)


@pytest.mark.parametrize("rest", [b"", bytes(4096)], ids=["file ends", "zeros follow"])
def test_a_record_torn_at_any_byte_is_cut(rest: bytes) -> None:
    """A crash in the middle of a write leaves the state before it, never half of it."""
    sound = pack(*FIRST)
    torn = pack(*SECOND)
    for length in range(len(torn)):
        recovered = parse(sound + torn[:length] + rest)
        if torn[:length] + bytes(len(torn) - length) == torn and rest:
            continue  # the bytes not written were zeros anyway
        assert (recovered.vote, recovered.entries) == (FIRST[0], FIRST[2])
        assert recovered.end == len(sound)


def test_zeros_are_no_record() -> None:
    """CRC-32 of nothing is 0, so eight zero bytes would be a good record of size 0."""
    assert parse(bytes(10_000)) == Recovered(Vote(), (), 0, 0)


def test_any_flipped_bit_of_the_last_record_cuts_it() -> None:
    """The last record may be torn in any way; nothing of it is believed."""
    sound, last = pack(*FIRST), pack(*THIRD)
    for bit in range(len(last) * 8):
        damaged = bytearray(last)
        damaged[bit // 8] ^= 1 << bit % 8
        recovered = parse(sound + bytes(damaged) + bytes(64))
        assert (recovered.vote, recovered.end) == (FIRST[0], len(sound))


def test_any_flipped_bit_of_an_earlier_record_is_refused() -> None:
    """Behind it stands a good record, so it was synced: this node has forgotten a promise."""
    first, last = pack(*FIRST), pack(*THIRD)
    for bit in range(len(first) * 8):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WalDamaged):
            parse(bytes(damaged) + last + bytes(64))


def test_a_cut_tail_is_gone_from_the_disk(tmp_path: Path) -> None:
    """A shorter record written over a torn one must not meet the torn one's rest."""
    path = tmp_path / "raft.wal"
    write(path, FIRST)
    end = recover(path).end
    long = pack(Vote(9, "c"), 3, (Entry(9, b"never synced" * 20),))
    with path.open("r+b") as file:
        file.seek(end)
        file.write(long[:-1] + b"?")
    recovered = recover(path)
    assert (recovered.vote, recovered.end, recovered.cut) == (FIRST[0], end, len(long))
    write(path, THIRD)
    assert recover(path).vote == THIRD[0]
    assert recover(path).cut == 0


def test_the_log_grows_beyond_its_reserve(tmp_path: Path) -> None:
    """Preallocation goes on ahead of the writes."""
    path = tmp_path / "raft.wal"
    entries = tuple(Entry(1, bytes([i]) * 70_000) for i in range(1, 11))
    write(path, *((Vote(1), i + 1, (entry,)) for i, entry in enumerate(entries)))
    assert recover(path).entries == entries
