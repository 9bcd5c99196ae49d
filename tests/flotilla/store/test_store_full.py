"""A disk that is full or fails, pools that wait in memory, and when the log goes to disk."""

import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_store import KEY, SEGMENT, Life, LoneStore, segment_path
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client import CallOutcome
from clusters.flotilla.client.calls import CALL_ERRORS, outcome_of_failure
from clusters.flotilla.config import ConfigError, loads
from clusters.flotilla.net.wire import Status
from clusters.flotilla.node import SOFTWARE
from clusters.flotilla.store.commit_log import DiskFull
from clusters.flotilla.store.flushing import PAGE_BYTES, Flushing

BODY = b"b" * 40


# one store


def test_a_full_disk_refuses_a_record_and_tears_none() -> None:
    """The next segment is made before its first record is taken; what fits into this one goes on
    being taken, and a look at the disk later tries again."""
    lone = LoneStore()

    async def story(life: Life) -> None:
        store, free = life.store, 0
        life.fill(1)
        lone.disk.room_bytes = SEGMENT // 2
        while store.has_room(KEY[0], b"", BODY):
            store.append(KEY, b"", BODY, 1)
            free += 1
        assert free > 30
        store.log.write_out()
        assert store.log.max_offset <= SEGMENT
        assert store.log.bases() == [0], "no half-made segment stays"
        lone.disk.room_bytes = None
        assert not store.has_room(KEY[0], b"", BODY)
        store.log.full = False
        assert store.has_room(KEY[0], b"", BODY)

    assert lone.live(story) == ""


def test_a_killed_broker_starts_on_a_full_disk() -> None:
    """A tail of zeros needs no truncation; a node that cannot start cannot delete anything."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(30)
        await life.settle()

    async def second(life: Life) -> None:
        assert len(life.bodies()) == 30

    assert lone.live(first) == ""
    lone.disk.full = True
    assert lone.live(second) == ""


@pytest.mark.parametrize(
    ("fault", "number", "told"),
    [
        ("write_error", errno.EIO, "the commit log cannot be written"),
        ("write_error", errno.ENOSPC, "the commit log cannot be written"),
        ("sync_error", errno.EIO, "the commit log cannot be synced"),
    ],
)
def test_a_failed_write_or_sync_stops_the_process(fault: str, number: int, told: str) -> None:
    """In the middle of a batch too: what is on disk is unknown. What was durable is there again."""
    lone = LoneStore()

    async def story(life: Life) -> None:
        life.fill(20)
        await life.settle()
        setattr(lone.disk, fault, number)
        life.fill(5)
        await life.store.log.sync()

    assert lone.live(story).startswith(f"FATAL {told}")
    setattr(lone.disk, fault, 0)
    lone.power_cut()

    async def after(life: Life) -> None:
        assert life.store.log.max_offset >= life.store.confirm_offset > 0
        assert life.bodies() == [b"1-%d-" % number for number in range(20)]

    assert lone.live(after) == ""


def test_a_file_of_a_full_segment_that_finds_no_room_is_left_out() -> None:
    """It only saves time; no rest of it stays on the disk."""
    lone = LoneStore()

    async def story(life: Life) -> None:
        life.fill(100)
        life.store.confirm(life.store.log.max_offset)
        await life.store.flush()
        lone.disk.room_bytes = 10
        await life.store.seal()
        assert life.store.segments.ends == {}

    assert lone.live(story) == ""
    assert not [path for path in lone.files() if "consumequeue" in path]
    assert lone.image(segment_path(0))


@pytest.mark.parametrize("room_bytes", [0, 520])
def test_a_checkpoint_that_finds_no_room_is_written_when_there_is_some(room_bytes: int) -> None:
    """None at all, or a torn one, says nothing: so the log may be cut, and the next process reads
    it as it is, and shows nothing that may not be confirmed."""
    lone = LoneStore()

    async def story(life: Life) -> None:
        starts = life.fill(6)
        life.store.confirm(life.store.log.max_offset)
        lone.disk.room_bytes = room_bytes
        await life.store.flush()
        await life.store.truncate(starts[4])

    async def after(life: Life) -> None:
        assert not life.store.checkpoint.known
        assert life.store.index.queues[KEY].end == 4
        assert life.bodies() == []
        lone.disk.room_bytes = None
        life.store.confirm(life.store.log.max_offset)
        await life.store.flush()

    async def at_last(life: Life) -> None:
        assert life.bodies() == [b"1-%d-" % number for number in range(4)]

    for part in (story, after, at_last):
        assert lone.live(part) == ""


@given(st.integers(0, 20 * PAGE_BYTES), st.floats(0, 20))
def test_the_log_goes_to_disk_by_pages_or_by_time(dirty: int, since_s: float) -> None:
    """At least so many pages, or whatever is dirty after the thorough interval."""
    flushing = Flushing(least_pages=4, thorough_s=10.0)
    due = dirty > 0 and (dirty >= 4 * PAGE_BYTES or since_s >= 10.0)
    assert flushing.is_due(dirty, since_s) is due


def test_a_copy_over_a_segments_end_finds_room_for_all_of_it_or_none_is_taken() -> None:
    """A master's batch may cross into the next segment; a slave without room for that one refuses
    it and lives, whatever still fits into this one."""
    master, slave = LoneStore(), LoneStore(2)
    batches: list[bytes] = []

    async def write(life: Life) -> None:
        life.fill(10)
        batches.append(life.store.log.records(0, SEGMENT))
        start = life.store.log.written
        life.fill(60)
        batches.append(life.store.log.records(start, 4 * SEGMENT))
        assert start < SEGMENT < start + len(batches[-1])

    async def copy(life: Life) -> None:
        first, second = batches
        life.store.append_raw(first, 1)
        await life.store.flush()
        slave.disk.room_bytes = 0
        with pytest.raises(DiskFull):
            life.store.append_raw(second, 1)
        await life.store.flush()
        assert life.store.log.max_offset == len(first)
        slave.disk.room_bytes, life.store.log.full = None, False
        life.store.append_raw(second, 1)
        await life.store.flush()

    assert master.live(write) == ""
    assert slave.live(copy) == ""


# a cluster

SMALL = {"mappedFileSizeCommitLog": 16384, "maxMessageSize": 4096, "cleanResourceInterval": 1000}


def test_a_master_whose_disk_fills_refuses_sends_and_goes_on_reading() -> None:
    """SERVICE_NOT_AVAILABLE in time; nothing acknowledged is lost, no node stops, and
    with room again it goes on."""
    ratios = {"diskMaxUsedSpaceRatio": 75, "diskSpaceCleanForciblyRatio": 85}
    fleet = Fleet(seed=3, settings=SMALL | ratios | {"diskSpaceWarningLevelRatio": 90})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        got = acknowledged(await sailor.send(40))
        for name in fleet.nodes("broker"):
            fleet.aboard[name].disk.room_bytes = 1000

        async def refused() -> bool:
            results = await sailor.send(20)
            got.update(acknowledged(results))
            return any(
                "disk is full" in r.error or Status.SERVICE_NOT_AVAILABLE.name in r.error
                for r in results.values()
            )

        await eventually(refused)
        assert got <= set(await sailor.read_all())
        process = fleet.process(master)
        assert process
        assert process.code is None
        for name in fleet.nodes("broker"):
            fleet.aboard[name].disk.room_bytes = None
        await asyncio.sleep(2)
        assert len(acknowledged(await sailor.send(8))) == 8
        assert (await sailor.cluster_state()).masters[BROKER_SET] == master

    fleet.sail(scenario)
    told = [e["pressure"] for name in fleet.nodes("broker") for e in fleet.events(name, "disk")]
    assert "FULL" in told
    assert told[-1] == "NONE"


def test_a_slave_whose_disk_fills_leaves_the_set_and_comes_back() -> None:
    """It says why, does not dial in a hurry, and the others go on."""
    fleet = Fleet(seed=4, settings=SMALL)

    async def scenario(sailor: Sailor) -> None:
        slave = (await sailor.healthy()).slaves[0]
        fleet.aboard[slave].disk.room_bytes = 0
        got = acknowledged(await sailor.send(300))
        assert len(got) >= 250
        assert fleet.process(slave), "it died of a full disk"
        fleet.aboard[slave].disk.room_bytes = None
        await sailor.healthy()
        assert got <= set(await sailor.read_all())
        assert len(fleet.events(slave, "connection")) < 100

    fleet.sail(scenario)


def fill_disks(fleet: Fleet, room_bytes: int | None) -> None:
    for name in fleet.nodes("broker"):
        fleet.aboard[name].disk.room_bytes = room_bytes


def living(fleet: Fleet) -> set[str]:
    return {name for name in fleet.nodes("broker") if fleet.process(name)}


def test_full_disks_do_not_end_one_new_master_after_the_other() -> None:
    """A promotion writes nothing that it can not do without: where the epoch begins, records will
    tell. The set that has no room left serves reads, and sends when there is room."""
    fleet = Fleet(seed=3, profile="allack-min1", settings=SMALL)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        got = acknowledged(await sailor.send(40))
        fill_disks(fleet, 0)
        await sailor.kill(old)
        new = (await sailor.new_master(old)).masters[BROKER_SET]
        assert got <= set(await sailor.read_all())
        assert living(fleet) == {*fleet.nodes("broker")} - {old}
        fill_disks(fleet, None)
        await sailor.start(old)
        await sailor.healthy()
        assert acknowledged(await sailor.send(8))
        assert (await sailor.cluster_state()).masters[BROKER_SET] == new

    fleet.sail(scenario)


def test_a_broker_without_a_checkpoint_lives_on_a_full_disk() -> None:
    """It refuses sends until there is room, as one does that has a checkpoint."""
    late = {"flushIntervalCommitLog": 200_000, "flushCommitLogThoroughInterval": 200_000}
    fleet = Fleet(seed=3, profile="allack-min2", settings=SMALL | late)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        got = acknowledged(await sailor.send(8))
        fill_disks(fleet, 0)
        sent = await sailor.send(300)
        assert any("disk is full" in r.error for r in sent.values())
        await asyncio.sleep(30)
        assert living(fleet) == {*fleet.nodes("broker")}
        fill_disks(fleet, None)
        await sailor.healthy()
        got |= acknowledged(await sailor.send(8))
        assert got <= set(await sailor.read_all())

    fleet.sail(scenario)


@pytest.mark.parametrize("strict", [False, True])
def test_metadata_that_finds_no_room_is_not_answered_success(strict: bool) -> None:
    """Nobody dies of it. What is made but on no disk is of unknown outcome, and under
    strictMetadata a slave says that it holds a change when it has room for it."""
    fleet = Fleet(seed=3, profile="allack-min1", settings={**SMALL, "strictMetadata": strict})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        fill_disks(fleet, 0)
        for name in ("new", "newer"):
            with pytest.raises(CALL_ERRORS) as raised:
                await sailor.client.topics.create(name, 4)
            assert outcome_of_failure(raised.value) is CallOutcome.UNKNOWN
        await asyncio.sleep(1)
        assert living(fleet) == {*fleet.nodes("broker")}
        fill_disks(fleet, None)
        await sailor.healthy()
        await sailor.client.topics.create("newest", 4)

    fleet.sail(scenario)


POOL = {"transientStorePoolEnable": True, "commitIntervalCommitLog": 500}


@pytest.mark.parametrize("fault", ["kill", "power_cut"])
def test_a_pool_loses_nothing_that_was_acknowledged(fault: str) -> None:
    """Acknowledgements wait for the commit; a promotion does too, and the new master's pool works
    (apache/rocketmq#5714, #2457)."""
    fleet = Fleet(seed=9, profile="allack-min2", settings=POOL)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        sending = asyncio.ensure_future(sailor.send(200))
        await asyncio.sleep(0.5)
        await getattr(sailor, fault)(old)
        await sailor.new_master(old)
        await (sailor.start(old) if fault == "kill" else sailor.power_on(old))
        got = acknowledged(await sending)
        assert len(got) > 50
        await sailor.healthy()
        assert got <= set(await sailor.read_all())
        assert len(acknowledged(await sailor.send(8))) == 8

    fleet.sail(scenario)


def test_under_sync_flush_nobody_sees_what_is_not_on_disk() -> None:
    """Dispatched means durable (apache/rocketmq#8239): with a disk that never ends a sync, nothing
    is acknowledged and nothing is seen."""
    fleet = Fleet(seed=10, profile="sync-flush")

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        await sailor.send(4)
        low, high = await sailor.client.consumer.range(TOPIC, 0)
        fleet.aboard[master].disk.delay_ns = 3600 * 10**9
        results: list[object] = []
        sailor.client.producer.send(TOPIC, 0, b"k", b"unsynced", results.append)
        await asyncio.sleep(0.2)
        assert await sailor.client.consumer.range(TOPIC, 0) == (low, high)
        process = fleet.process(master)
        assert process
        assert process.code != SOFTWARE

    fleet.sail(scenario)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            'transientStorePoolEnable = true\nflushDiskType = "SYNC_FLUSH"',
            "transientStorePoolEnable",
        ),
        ('deleteWhen = "noon"', "deleteWhen"),
        ("fileReservedTime = -1", "fileReservedTime"),
        ("flushCommitLogLeastPages = -1", "flushCommitLogLeastPages"),
        ("diskMaxUsedSpaceRatio = 95", "diskMaxUsedSpaceRatio"),
        ("diskSpaceWarningLevelRatio = 101", "diskSpaceWarningLevelRatio"),
    ],
)
def test_settings_of_the_store_that_make_no_sense_are_refused(text: str, key: str) -> None:
    """By the key, in one sentence; not when the first message comes."""
    node = 'role = "broker"\nnodeName = "b"\nlistenHost = "127.0.0.1"\nstorePath = "s"\n'
    assert loads(node).store == "s"
    with pytest.raises(ConfigError, match=key):
        loads(node + text)
