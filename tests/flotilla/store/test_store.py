"""The store: appended, written, flushed, cut and recovered, on a disk that can lose power.

The disk is a model: bytes that were not synced when the power goes are lost, or some of them are;
file creations and removals last once their folder is synced. Killing the process loses nothing.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_sizes import examples

from clusters.flotilla.replication.epochs import EpochFile, EpochTable
from clusters.flotilla.rules import RULES
from clusters.flotilla.store import record, recovery
from clusters.flotilla.store.commit_log import StoreError
from clusters.flotilla.store.flushing import Flushing
from clusters.flotilla.store.message_store import MessageStore
from clusters.flotilla.store.reader import messages
from clusters.flotilla.world.ports import Buffer, OsClock, OsFileSystem, OsProcess, Ports, Space

PLACE = recovery.StoreOptions("store", 4096, 1024)
KEY = (b"t", 0)


class Died(Exception):
    """The process stopped itself."""


class Exit:
    def fatal(self, why: str) -> NoReturn:
        raise Died(why)


class MemoryFile:
    """Bytes, and the bytes that power loss leaves."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.broken = False

    def pwrite(self, data: Buffer, offset: int) -> int:
        missing = offset + len(data) - len(self.data)
        self.data += bytes(max(0, missing))
        self.data[offset : offset + len(data)] = data
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def size(self) -> int:
        return len(self.data)

    def truncate(self, size: int) -> None:
        del self.data[size:]

    def allocate(self, size: int) -> None:
        self.data += bytes(max(0, size - len(self.data)))

    async def sync(self) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        self.synced = bytes(self.data)

    def close(self) -> None: ...


class MemoryFiles:
    """A file system with a power switch."""

    def __init__(self) -> None:
        self.names: dict[str, MemoryFile] = {}
        self.durable: dict[str, MemoryFile] = {}

    def open(self, path: str) -> MemoryFile:
        return self.names.setdefault(path, MemoryFile())

    def exists(self, path: str) -> bool:
        return path in self.names

    def listdir(self, path: str) -> list[str]:
        return sorted(n.removeprefix(f"{path}/") for n in self.names if n.startswith(f"{path}/"))

    def makedirs(self, path: str) -> None: ...

    def resolve(self, path: str) -> str:
        return path

    def remove(self, path: str) -> None:
        del self.names[path]

    def read(self, path: str) -> bytes:
        if path not in self.names:
            raise FileNotFoundError(path)
        return bytes(self.names[path].data)

    def append(self, path: str, data: bytes) -> None:
        file = self.open(path)
        file.pwrite(data, file.size())

    async def replace(self, path: str, data: bytes) -> None:
        file = MemoryFile()
        file.pwrite(data, 0)
        await file.sync()
        self.names[path] = file
        self.durable[path] = file

    async def sync_folder(self, path: str) -> None:
        here = {name for name in [*self.names, *self.durable] if name.startswith(f"{path}/")}
        for name in here:
            if name in self.names:
                self.durable[name] = self.names[name]
            else:
                del self.durable[name]

    def space(self, path: str) -> Space:
        return Space(1 << 40, 1 << 40)

    def lose_power(self, dice: Random) -> None:
        """What was synced stays; of the rest, each 512-byte sector may or may not be there."""
        self.names = dict(self.durable)
        for file in self.names.values():
            file.data = bytearray(self._survivors(file, dice))

    @staticmethod
    def _survivors(file: MemoryFile, dice: Random) -> bytes:
        size = len(file.data) if dice.random() < 0.5 else len(file.synced)
        old, new = file.synced.ljust(size, b"\0"), bytes(file.data).ljust(size, b"\0")
        sectors = range(0, size, 512)
        return b"".join((new if dice.random() < 0.5 else old)[i : i + 512] for i in sectors)[:size]


def ports_on(files: Any) -> Ports:
    return Ports(files, Random(1), OsClock(), Exit(), OsProcess())


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def opened(files: Any, place: recovery.StoreOptions = PLACE) -> recovery.StoreRecovery:
    return await recovery.recover(place, ports_on(files), RULES)


def fill(store: MessageStore, count: int, epoch: int = 1, size: int = 40) -> list[int]:
    """Messages with recognisable bodies; where they begin."""
    starts = []
    for _ in range(count):
        number = store.index.queue(KEY).end
        body = f"{epoch}-{number}-".encode().ljust(size, b".")
        starts.append(store.append(KEY, b"k", body, epoch).start)
    store.log.write_out()
    return starts


def bodies(store: MessageStore) -> list[bytes]:
    low, high = store.range(KEY)
    return [p.body.rstrip(b".") for p in store.fetch(KEY, low, high - low, 1 << 30)]


def test_messages_come_back_in_order_across_segments() -> None:
    """The log rolls without splitting a record, and reading does not notice."""

    async def scenario() -> None:
        store = (await opened(MemoryFiles())).store
        fill(store, 200)
        store.confirm(store.log.max_offset)
        assert bodies(store) == [f"1-{i}-".encode() for i in range(200)]
        assert len(store.log.bases()) > 3

    run(scenario())


def test_nothing_is_seen_beyond_the_confirm_offset() -> None:
    """Neither before nor after a restart; queue offsets go on behind what is not seen."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        starts = fill(store, 10)
        store.confirm(starts[4])
        assert len(bodies(store)) == 4
        await store.flush()
        again = (await opened(files)).store
        assert len(bodies(again)) == 4
        assert again.append(KEY, b"", b"next", 1).queue_offset == 10

    run(scenario())


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    """Written is enough for kill -9; the epochs come back from the records themselves."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        fill(store, 5, epoch=1)
        [start, *_] = fill(store, 5, epoch=4)
        found = await opened(files)
        assert not found.clean
        assert found.store.log.max_offset == store.log.max_offset
        assert found.epochs.entries == ((1, 0), (4, start))

    run(scenario())


@pytest.mark.parametrize("damage", ["cut", "zeros", "garbage"])
def test_the_log_is_cut_wherever_it_was_torn(damage: str) -> None:
    """For every byte of the last two records: what remains is the whole records before it."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        starts = fill(store, 6)
        image, end = bytes(files.open("store/commitlog/" + "0" * 20).data), store.log.max_offset
        for at in range(starts[4], end):
            torn = MemoryFiles()
            rest = {"cut": b"", "zeros": bytes(len(image) - at), "garbage": b"\xa5" * 600}[damage]
            torn.open("store/commitlog/" + "0" * 20).pwrite(image[:at] + rest, 0)
            found = await opened(torn)
            assert found.store.log.max_offset == max(s for s in [*starts, end] if s <= at)

    run(scenario())


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 60))
def test_synced_records_survive_the_loss_of_power(seed: int, synced: int, more: int) -> None:
    """Everything up to `flushed` is there again, and nothing that was never written."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        fill(store, synced)
        await store.log.sync()
        flushed = store.log.flushed
        fill(store, more)
        written = store.log.written
        files.lose_power(Random(seed))
        found = (await opened(files)).store
        assert flushed <= found.log.max_offset <= written
        found.confirm(found.log.max_offset)
        assert bodies(found) == [f"1-{i}-".encode() for i in range(len(bodies(found)))]

    run(scenario())


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 99), st.integers(0, 30), st.booleans())
def test_a_cut_fork_never_comes_back(seed: int, keep: int, more: int, power: bool) -> None:
    """Truncated, overwritten in another epoch, then killed or without power: no old byte returns.

    The record sizes are the same in both reigns, so that a surviving old record would fit exactly
    behind the new ones (apache/rocketmq#10666).
    """

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        point = [*fill(store, 100, epoch=1), store.log.max_offset][keep]
        await store.flush()
        await store.truncate(point)
        fill(store, more, epoch=2)
        if power:
            files.lose_power(Random(seed))
        found = (await opened(files)).store
        found.confirm(found.log.max_offset)
        old = [b for b in bodies(found) if b.startswith(b"1-")]
        assert len(old) == keep
        assert found.log.max_offset <= store.log.max_offset

    run(scenario())


def test_a_careless_truncation_is_caught_by_that_law() -> None:
    """The same story with the rule that only forgets: the fork comes back."""

    async def scenario() -> None:
        files, careless = MemoryFiles(), replace(RULES, truncation_is_durable=False)
        store = (await recovery.recover(PLACE, ports_on(files), careless)).store
        starts = fill(store, 20, epoch=1)
        await store.truncate(starts[5])
        assert (await opened(files)).store.log.max_offset > starts[5]

    run(scenario())


def test_a_failed_sync_stops_the_process() -> None:
    """Its fate is unknown, and trying again would lie."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        fill(store, 1)
        files.open("store/commitlog/" + "0" * 20).broken = True
        with pytest.raises(Died, match="cannot be synced"):
            await store.log.sync()

    run(scenario())


def test_sync_flush_follows_every_write() -> None:
    """SYNC_FLUSH: what is written is on disk a moment later, without being asked."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files, replace(PLACE, flushing=Flushing(sync=True)))).store
        flushed = asyncio.get_running_loop().create_future()
        store.log.on_flushed = lambda: flushed.done() or flushed.set_result(store.log.flushed)
        fill(store, 3)
        assert await flushed == store.log.max_offset

    run(scenario())


def test_a_slave_takes_the_same_bytes_and_no_others() -> None:
    """Raw bytes in, the same log out; damaged or misplaced bytes are refused."""

    async def scenario() -> None:
        master, slave = (await opened(MemoryFiles())).store, (await opened(MemoryFiles())).store
        fill(master, 100)
        while slave.log.max_offset < master.log.written:
            data = master.log.records(slave.log.max_offset, 700)
            with pytest.raises(ValueError, match="damaged"):
                slave.append_raw(data[:-1], 1)
            with pytest.raises(ValueError, match="another epoch"):
                slave.append_raw(data, 2)
            slave.append_raw(data, 1)
        slave.log.write_out()
        slave.confirm(slave.log.max_offset)
        master.confirm(master.log.max_offset)
        assert bodies(slave) == bodies(master)

    run(scenario())


def test_a_reset_log_begins_where_it_is_told() -> None:
    """Case 1-1: copy from the master's first byte, with its queue offsets."""

    async def scenario() -> None:
        files = MemoryFiles()
        master, slave = (await opened(MemoryFiles())).store, (await opened(files)).store
        fill(slave, 3)
        fill(master, 150)
        master.confirm(2 * PLACE.segment_size)
        await master.delete_before(2 * PLACE.segment_size)
        low, _ = master.range(KEY)
        await slave.reset(master.log.min_offset)
        slave.append_raw(master.log.records(master.log.min_offset, 4096), 1)
        slave.confirm(slave.log.max_offset)
        assert slave.range(KEY)[0] == master.index.queues[KEY].base
        assert (await opened(files)).store.log.min_offset == 2 * PLACE.segment_size
        assert low <= slave.range(KEY)[1]

    run(scenario())


def test_a_damaged_record_stops_the_broker_that_reads_it() -> None:
    """Never hand out what the check sum denies."""

    async def scenario() -> None:
        files = MemoryFiles()
        store = (await opened(files)).store
        fill(store, 3)
        store.confirm(store.log.max_offset)
        fill(store, 3)
        files.open("store/commitlog/" + "0" * 20).data[60] ^= 1
        with pytest.raises(Died, match="is damaged"):
            bodies(store)

    run(scenario())


def test_another_segment_size_is_refused() -> None:
    """The names of the segments would no longer mean what they say."""

    async def scenario() -> None:
        files = MemoryFiles()
        fill((await opened(files)).store, 100)
        with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
            await opened(files, replace(PLACE, segment_size=6000))

    run(scenario())


def test_the_reader_sees_what_the_broker_stored(tmp_path: Path) -> None:
    """A stopped node's folder, on real files, to the first bad record; nothing is changed."""
    place = replace(PLACE, path=str(tmp_path / "store"))

    async def scenario() -> None:
        store = (await opened(OsFileSystem(), place)).store
        fill(store, 120)
        await store.flush()
        store.close()

    run(scenario())
    found = list(messages(place.path))
    assert [m.queue_offset for m in found] == list(range(120))
    assert found[7].body.startswith(b"1-7-")
    assert found[7].crc == record.crc32(found[7].body, record.crc32(b"k"))
    segment = sorted((tmp_path / "store" / "commitlog").iterdir())[1]
    damaged = bytearray(segment.read_bytes())
    damaged[0] ^= 1
    segment.write_bytes(damaged)
    assert [m.queue_offset for m in messages(place.path)] == [
        m.queue_offset for m in found if m.physical_offset < PLACE.segment_size
    ]


def test_an_empty_epoch_table_is_written_too() -> None:
    """Otherwise the epochs that a truncation removed would return."""

    async def scenario() -> None:
        files = MemoryFiles()
        file = EpochFile("store", files)
        await file.save(EpochTable(((1, 0),)))
        await file.save(EpochTable())
        files.lose_power(Random(0))
        assert EpochFile("store", files).load() == EpochTable()

    run(scenario())
