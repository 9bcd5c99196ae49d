"""Raft's disk: what was synced is read back; what was torn is cut; what was lost is refused."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.raft.log import START, EntryId
from clusters.flotilla.raft.messages import EntryKind, LogEntry
from clusters.flotilla.raft.votes import Vote
from clusters.flotilla.raft.wal import HEAD_BYTES, RecoveredWal, Wal, WalDamaged, head, pack, parse
from clusters.flotilla.world import ports
from clusters.flotilla.world.ports import File, OsFileSystem, real

HEAD = head(START)
Record = tuple[Vote, int, tuple[LogEntry, ...]]
FIRST: Record = (Vote(1, "a"), 1, (LogEntry(1, b""), LogEntry(1, b"one")))
SECOND: Record = (Vote(2), 2, (LogEntry(2, b"two"), LogEntry(2, bytes(20))))
THIRD: Record = (Vote(3, "b"), 0, ())


def recover(path: Path) -> RecoveredWal:
    async def reading() -> RecoveredWal:
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
    assert recover(path) == RecoveredWal(Vote(), START, (), HEAD_BYTES, 0)
    write(path, FIRST, SECOND)
    write(path, THIRD)
    assert recover(path).vote == Vote(3, "b")
    assert recover(path).entries == (LogEntry(1, b""), LogEntry(2, b"two"), LogEntry(2, bytes(20)))


@given(st.lists(st.tuples(st.integers(0, 2**60), st.binary(max_size=40)), max_size=5))
def test_packing_loses_nothing(rows: list[tuple[int, bytes]]) -> None:
    """For any entries, also with empty data."""
    entries = tuple(LogEntry(term, data) for term, data in rows)
    recovered = parse(HEAD + pack(Vote(2**60, "é"), 1, entries) + bytes(100))
    assert (recovered.vote, recovered.entries, recovered.cut) == (Vote(2**60, "é"), entries, 0)


@pytest.mark.parametrize("rest", [b"", bytes(4096)], ids=["file ends", "zeros follow"])
def test_a_record_torn_at_any_byte_is_cut(rest: bytes) -> None:
    """A crash in the middle of a write leaves the state before it, never half of it."""
    sound = HEAD + pack(*FIRST)
    torn = pack(*SECOND)
    for length in range(len(torn)):
        recovered = parse(sound + torn[:length] + rest)
        if torn[:length] + bytes(len(torn) - length) == torn and rest:
            continue  # the bytes not written were zeros anyway
        assert (recovered.vote, recovered.entries) == (FIRST[0], FIRST[2])
        assert recovered.end == len(sound)


def test_zeros_are_no_record() -> None:
    """CRC-32 of nothing is 0, so eight zero bytes would be a good record of size 0."""
    assert parse(HEAD + bytes(10_000)) == RecoveredWal(Vote(), START, (), HEAD_BYTES, 0)


def test_any_flipped_bit_of_the_last_record_cuts_it() -> None:
    """The last record may be torn in any way; none of it is trusted."""
    sound, last = HEAD + pack(*FIRST), pack(*THIRD)
    for bit in range(len(last) * 8):
        damaged = bytearray(last)
        damaged[bit // 8] ^= 1 << bit % 8
        recovered = parse(sound + bytes(damaged) + bytes(64))
        assert (recovered.vote, recovered.end) == (FIRST[0], len(sound))


def test_any_flipped_bit_of_an_earlier_record_is_refused() -> None:
    """A good record follows it, so it was synced: this node has lost a promise."""
    first, last = pack(*FIRST), pack(*THIRD)
    for bit in range(len(first) * 8):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WalDamaged):
            parse(HEAD + bytes(damaged) + last + bytes(64))


def test_a_cut_tail_is_gone_from_the_disk(tmp_path: Path) -> None:
    """A shorter record written over a torn one must not be followed by the rest of the torn one."""
    path = tmp_path / "raft.wal"
    write(path, FIRST)
    end = recover(path).end
    long = pack(Vote(9, "c"), 3, (LogEntry(9, b"never synced" * 20),))
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
    entries = tuple(LogEntry(1, bytes([i]) * 70_000) for i in range(1, 11))
    write(path, *((Vote(1), i + 1, (entry,)) for i, entry in enumerate(entries)))
    assert recover(path).entries == entries


@pytest.mark.parametrize("base", [START, EntryId(7, 3)])
def test_a_rewritten_log_begins_behind_its_base(tmp_path: Path, base: EntryId) -> None:
    """Raft 7: nothing of the old log is left, and later records follow."""
    path, last = tmp_path / "raft.wal", (LogEntry(4, b"last", EntryKind.MEMBERS),)

    async def run() -> None:
        wal, _ = await Wal.recover(real().files, str(path))
        wal.write(*FIRST)
        await wal.sync()
        await wal.rewrite(Vote(4, "c"), base, (LogEntry(4, b"kept"),))
        wal.write(Vote(4, "c"), base.index + 2, last)
        await wal.sync()
        wal.close()

    asyncio.run(run())
    found = recover(path)
    assert (found.vote, found.base) == (Vote(4, "c"), base)
    assert found.entries == (LogEntry(4, b"kept"), *last)


class TooMany(OsFileSystem):
    """The next time a file is opened, too many are open."""

    once = False

    def open(self, path: str) -> File:
        if self.once:
            self.once = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path)


def test_a_rewritten_log_waits_until_it_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written, and too many files are open at that moment: as soon as one is closed it goes
    on."""
    monkeypatch.setattr(ports, "RETRY_S", 0.0)
    path, files = tmp_path / "raft.wal", TooMany()

    async def run() -> None:
        wal, _ = await Wal.recover(files, str(path))
        files.once = True
        await wal.rewrite(Vote(4, "c"), EntryId(7, 3), (LogEntry(4, b"kept"),))
        assert not files.once
        wal.write(*THIRD)
        await wal.sync()
        wal.close()

    asyncio.run(run())
    found = recover(path)
    assert (found.vote, found.entries) == (THIRD[0], (LogEntry(4, b"kept"),))


def test_what_came_with_the_head_is_never_cut() -> None:
    """It was written as a whole or not at all; unlike a later record it cannot be torn."""
    record = pack(Vote(1, "a"), 6, FIRST[2])
    whole = head(EntryId(5, 1), len(record)) + record
    assert parse(whole).base == EntryId(5, 1)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WalDamaged, match=r"byte \d+"):
            parse(bytes(damaged) + bytes(64))


def test_what_has_no_head_is_no_log() -> None:
    """The first edition's log had none; a member that starts converts it first
    (`test_older.py`)."""
    for bytes_of_others in (b"", bytes(65536), b"?" + pack(*FIRST) + bytes(65536)):
        with pytest.raises(WalDamaged, match="byte 0: it does not begin like a Raft log"):
            parse(bytes_of_others)
