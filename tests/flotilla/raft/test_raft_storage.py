"""A Raft member's folder: after a power cut at any moment it holds what the member promised (Raft
7)."""

import asyncio
import errno
from pathlib import Path

import pytest

from clusters.flotilla.raft.effects import LogChange
from clusters.flotilla.raft.log import EntryId, RaftLog
from clusters.flotilla.raft.membership import Configuration
from clusters.flotilla.raft.messages import LogEntry
from clusters.flotilla.raft.snapshot import Snapshot
from clusters.flotilla.raft.storage import RecoveredState, Storage, StorageDamaged
from clusters.flotilla.raft.votes import Vote
from clusters.flotilla.world.ports import Ports, real
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World

FOLDER = "/var/lib/node/store"
MEMBERS = Configuration({"a": "at a"})


def entry(index: int) -> LogEntry:
    return LogEntry(1 + index // 5, b"%d" % index)


def snapshot(index: int) -> Snapshot:
    return Snapshot(EntryId(index, entry(index).term), MEMBERS, b"state after %d" % index)


class Promises:
    """A member writes entries, takes snapshots and receives some, until the power fails."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.host = SimHost(self.world, SimNetwork(self.world), "a", "10.0.0.1")
        self.disk = disk_of(self.host)
        self.luck = self.world.random("what happens")
        self.vote = Vote()
        self.last = 0  # the last entry promised
        self.saved = 0  # the snapshot promised
        self.steps = 0

    def cut_after(self, seconds: float) -> None:
        """Work for this long, lose the power, and recover."""
        self.host.start("p", self.work)
        self.world.after(int(seconds * 1e9), self.host.power_cut)
        self.world.after(int(seconds * 1e9) + 1, self.world.stop)
        self.world.run()
        self.host.power_on()

    async def work(self, process: SimProcess) -> int:
        storage, found = await Storage.recover(ports_of(process, self.disk).files, FOLDER)
        self.holds(found)
        log = RaftLog(found.entries, found.base)
        while True:
            self.steps += 1
            await self.step(storage, log)

    async def step(self, storage: Storage, log: RaftLog) -> None:
        kind = self.luck.random()
        vote = Vote(self.vote.term + 1, "a")
        if kind < 0.6:
            first = log.last_index + 1
            new = tuple(entry(first + at) for at in range(int(self.luck.random() * 4) + 1))
            log.replace(first, new)
            await storage.write(vote, LogChange(first=first, entries=new))
        elif kind < 0.8 and log.last_index > self.saved:
            before = self.saved
            await storage.save_snapshot(snapshot(log.last_index))
            self.saved = log.last_index
            if before > log.base.index:
                log.compact(snapshot(before).place)
            await storage.write(vote, self.rewritten(log))
        elif kind < 0.9:
            log.compact(snapshot(log.last_index + 7).place)  # a leader's
            got = self.rewritten(log, snapshot(log.base.index))
            await storage.write(vote, got)
            self.saved = log.base.index
        self.vote, self.last = max(self.vote, vote, key=lambda v: v.term), log.last_index

    def rewritten(self, log: RaftLog, install: Snapshot | None = None) -> LogChange:
        first = log.base.index + 1
        return LogChange(
            first=first, entries=log.entries_from(first), base=log.base, install=install
        )

    def holds(self, found: RecoveredState) -> None:
        """What was promised is there, and all that is there is right."""
        assert found.vote.term >= self.vote.term - 1
        reached = found.snapshot.index if found.snapshot else 0
        assert reached >= self.saved
        assert found.last_index >= self.last
        assert found.base.index <= reached <= found.last_index
        if found.snapshot:
            assert found.snapshot.data == b"state after %d" % reached
        for index, kept in enumerate(found.entries, found.base.index + 1):
            assert kept == entry(index)
        self.last, self.saved = found.last_index, reached
        self.vote = found.vote


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_at_any_moment_takes_no_promise(seed: int) -> None:
    """Raft figure 2 and section 7: between the snapshot and the log, during a replacement,
    anywhere; and a log that the snapshot has overtaken is dropped."""
    promises = Promises(seed)
    for number in range(25):
        promises.cut_after(0.002 + promises.luck.random() * 0.02 * (number % 5))
    assert promises.steps > 100
    assert promises.saved > 0


@pytest.mark.parametrize("seed", range(8))
def test_a_log_that_was_found_can_not_be_taken_back(seed: int) -> None:
    """A kill between the renaming of a file and the sync of its folder: the next process votes in
    the new log, and a power cut must not bring the old one back."""
    promises = Promises(seed)
    disk, wal = promises.disk, f"{FOLDER}/raft.wal"
    found: list[RecoveredState] = []

    async def vote(process: SimProcess) -> int:
        storage, before = await Storage.recover(ports_of(process, disk).files, FOLDER)
        found.append(before)
        await storage.write(Vote(before.vote.term + 1, "b"), LogChange())
        return 0

    def live() -> None:
        promises.host.start("p", vote)
        promises.world.run(until_ns=promises.world.now_ns + SECOND)

    live()
    new, old = disk.file(f"{wal}.tmp", create=True), disk.file(wal)
    disk.write(new, old.read(old.size, 0), 0)
    new.settle(new.changes)
    disk.rename(f"{wal}.tmp", wal)
    live()
    promises.host.power_cut()
    promises.host.power_on()
    live()
    assert [recovered.vote.term for recovered in found] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(8))
def test_a_vote_whose_sync_failed_is_given_durably_or_not_at_all(seed: int) -> None:
    """The member stops. Its next process reads the vote, though the disk does not have it, counts
    it as given, and no power cut may make it free to vote again."""
    promises = Promises(seed)
    disk = promises.disk
    found: list[Vote] = []

    async def vote(process: SimProcess) -> int:
        storage, before = await Storage.recover(ports_of(process, disk).files, FOLDER)
        found.append(before.vote)
        disk.sync_error = errno.EIO if len(found) == 2 else 0
        await storage.write(Vote(len(found), "b"), LogChange())
        return 0

    async def look(process: SimProcess) -> int:
        _, before = await Storage.recover(ports_of(process, disk).files, FOLDER)
        found.append(before.vote)
        return 0

    for life in (vote, vote, look):
        promises.host.start("p", life)
        promises.world.run(until_ns=promises.world.now_ns + SECOND)
        disk.sync_error = 0
    promises.host.power_cut()
    promises.host.power_on()
    promises.host.start("p", look)
    promises.world.run(until_ns=promises.world.now_ns + SECOND)
    assert found[2] in (Vote(1, "b"), Vote(2, "b"))
    assert found[3] == found[2]


def test_a_snapshot_that_had_to_wait_is_not_written_over_a_newer_one() -> None:
    """There were no file descriptors, so both were tried again, each at its own time; and the log
    begins behind the newer one."""
    promises = Promises(1)
    disk = promises.disk
    found: list[RecoveredState] = []

    async def saved(process: SimProcess) -> int:
        storage, _ = await Storage.recover(ports_of(process, disk).files, FOLDER)
        disk.no_descriptors = True
        own = asyncio.ensure_future(storage.save_snapshot(snapshot(100)))
        await asyncio.sleep(0.3)
        got = LogChange(first=501, base=snapshot(500).place, install=snapshot(500))
        theirs = asyncio.ensure_future(storage.write(Vote(2, None), got))
        await asyncio.sleep(0.8)
        disk.no_descriptors = False
        await asyncio.gather(own, theirs)
        return 0

    async def again(process: SimProcess) -> int:
        found.append((await Storage.recover(ports_of(process, disk).files, FOLDER))[1])
        return 0

    for life in (saved, again):
        promises.host.start("p", life)
        promises.world.run(until_ns=promises.world.now_ns + 5 * SECOND)
    assert [recovered.snapshot for recovered in found] == [snapshot(500)]


def recover(folder: Path, ports: Ports | None = None) -> RecoveredState:
    async def run() -> RecoveredState:
        storage, found = await Storage.recover((ports or real()).files, str(folder))
        storage.close()
        return found

    return asyncio.run(run())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With entries 3 to 6 behind a snapshot of the first four."""

    async def run() -> None:
        storage, _ = await Storage.recover(real().files, str(tmp_path))
        await storage.save_snapshot(snapshot(4))
        base, entries = snapshot(2).place, tuple(entry(index) for index in range(3, 7))
        await storage.write(Vote(2, "b"), LogChange(first=3, entries=entries, base=base))
        storage.close()

    asyncio.run(run())
    return tmp_path


def test_a_restart_finds_snapshot_and_log(folder: Path) -> None:
    """Both, and the hard state."""
    found = recover(folder)
    assert found.snapshot == snapshot(4)
    assert (found.vote, found.base, found.last_index) == (Vote(2, "b"), snapshot(2).place, 6)


def test_a_log_that_its_snapshot_has_overtaken_is_given_up(folder: Path) -> None:
    """Raft 7, figure 13: the power failed between the two; the vote stays."""
    (folder / "raft.snapshot").write_bytes(snapshot(90).packed)
    for _ in range(2):
        found = recover(folder)
        assert (found.vote, found.base, found.entries) == (Vote(2, "b"), snapshot(90).place, ())


@pytest.mark.parametrize(
    ("name", "at", "says"),
    [
        ("raft.snapshot", 0, r"raft.snapshot, byte 0: "),
        ("raft.snapshot", 20, r"raft.snapshot, byte 8: "),
        ("raft.snapshot", 60, r"raft.snapshot, byte 44: "),
        ("raft.wal", 3, r"raft.wal, byte 0: "),
        ("raft.wal", 12, r"raft.wal, byte 8: "),
        ("raft.wal", 50, r"raft.wal, byte 32: "),
    ],
)
def test_damage_names_file_and_byte(folder: Path, name: str, at: int, says: str) -> None:
    """For any change of the bytes the node refuses to start rather than guess."""
    data = bytearray((folder / name).read_bytes())
    data[at] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(StorageDamaged, match=says):
        recover(folder)


@pytest.mark.parametrize(
    ("missing", "says"),
    [("raft.snapshot", "begins behind entry 2"), ("raft.wal", "raft.wal is missing")],
)
def test_a_missing_file_is_refused(folder: Path, missing: str, says: str) -> None:
    """Entries that no other member may have, or a vote, are lost with it."""
    (folder / missing).unlink()
    with pytest.raises(StorageDamaged, match=says):
        recover(folder)
