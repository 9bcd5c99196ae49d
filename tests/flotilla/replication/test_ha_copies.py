"""How a log is copied and which copies count: learners, the last file, flow control, retention.

Real stores and links in a simulated world (`tests/labs/flotilla/ha_lab.py`), and a whole cluster
where the SyncStateSet and elections matter.
"""

import asyncio
from typing import Any

import pytest
from ha_lab import HaLab, Side, eventually, play
from hypothesis import given
from hypothesis import strategies as st
from simulated_fleet import BROKER_SET, CONFIG, Fleet, Sailor, acknowledged

from clusters.flotilla.net.wire import MAX_FRAME
from clusters.flotilla.replication.ha_master import SAVED_S, TokenBucket


async def abreast(slave: Side, master: Side) -> None:
    await eventually(lambda: slave.shape() == master.shape())
    assert slave.bytes() == master.bytes()


KEY = (b"t", 0)


def write(master: Side, count: int) -> None:
    for _ in range(count):
        master.replica.store.append(KEY, b"", bytes(10), master.epoch)


# flow control


@given(st.integers(1, 10_000), st.lists(st.tuples(st.integers(1, 5_000), st.floats(0, 3))))
def test_no_more_than_the_rate_passes(rate: int, sends: list[tuple[int, float]]) -> None:
    """Over any time from the start: the rate, the saved tokens, and the last batch at most."""
    bucket, now, passed, last = TokenBucket.full(rate, 0.0), 0.0, 0, 0
    for size, pause_s in sends:
        now += pause_s
        wait_s = bucket.wait_s(now)
        assert wait_s >= 0
        now += wait_s
        assert bucket.wait_s(now) == 0
        bucket, passed, last = bucket.take(size, now), passed + size, size
        assert passed - last <= rate * (now + SAVED_S) + 1e-3


def test_the_largest_batch_fits_into_a_frame() -> None:
    """A slave that lacks 24 MiB receives them; a larger batch size is refused with the
    configuration."""

    async def scenario(lab: HaLab) -> None:
        segment = {"mappedFileSizeCommitLog": 1 << 25}
        master = await lab.side(haTransferBatchSize=MAX_FRAME // 2, **segment)
        slave = await lab.side(**segment)
        master.replica.new_epoch(1, 0)
        for _ in range(24):
            master.replica.store.append((b"t", 0), b"", bytes(1 << 20), 1)
        master.replica.store.log.write_out()
        await master.replica.save()
        await master.reign(2)
        await slave.follow(master, 2)
        await eventually(lambda: slave.shape().max_offset == master.shape().max_offset)

    play(scenario)


def test_a_batch_larger_than_the_bucket_passes() -> None:
    """And the debt delays the next one."""
    bucket = TokenBucket.full(1000, 0.0).take(2000, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(1.901)
    assert bucket.wait_s(1.901) == 0


@pytest.mark.parametrize(("enabled", "least_s", "most_s"), [(True, 0.75, 1.0), (False, 0.0, 0.1)])
def test_a_slave_is_fed_at_the_rate(enabled: bool, least_s: float, most_s: float) -> None:
    """`haFlowControlEnable`: 10,000 bytes at 10,000 a second."""

    async def scenario(lab: HaLab) -> None:
        limits = {"haFlowControlEnable": enabled, "maxHaTransferByteInSecond": 10_000}
        master = await lab.side(haTransferBatchSize=1024, **limits)
        slave = await lab.side()
        await master.fill((1, 10_000))
        await master.reign(2)
        began = asyncio.get_running_loop().time()
        await slave.follow(master, 2)
        await eventually(lambda: slave.shape().max_offset == 10_000)
        assert least_s <= asyncio.get_running_loop().time() - began <= most_s

    play(scenario)


# where a copy begins, and what retention leaves


@pytest.mark.parametrize(("last_file", "begins"), [(True, 3 * 4096), (False, 0)])
def test_a_new_copy_may_begin_at_the_last_file(last_file: bool, begins: int) -> None:
    """`syncFromLastFile`: later it continues from where it is, and numbers messages as its master
    does."""

    async def scenario(lab: HaLab) -> None:
        segment = {"mappedFileSizeCommitLog": 4096}
        master, slave = (
            await lab.side(**segment),
            await lab.side(**segment, syncFromLastFile=last_file),
        )
        await master.reign(1)
        write(master, 240)
        await slave.follow(master, 1)
        await eventually(lambda: slave.shape().max_offset == master.shape().max_offset)
        assert slave.shape().min_offset == begins
        assert slave.replica.store.index.queue(KEY).end == 240
        await slave.slave.stop()
        write(master, 9)
        await slave.follow(master, 1)
        await eventually(lambda: slave.shape().max_offset == master.shape().max_offset)
        assert master.bytes().endswith(slave.bytes())
        assert slave.events("log-case")[-1]["action"] == "continue"

    play(scenario)


def test_no_copy_begins_where_no_ledger_is() -> None:
    """A large message leaves no room for a ledger in the last segment: a copy of that segment alone
    would assign queue offsets again (apache/rocketmq#7689). Logs without a ledger are copied
    whole."""

    async def scenario(lab: HaLab) -> None:
        segment = {"mappedFileSizeCommitLog": 4096, "maxMessageSize": 4096}
        master, slave = await lab.side(**segment), await lab.side(**segment, syncFromLastFile=True)
        await master.reign(1)
        write(master, 100)
        master.replica.store.append((b"t", 1), b"", bytes(3980), 1)
        last = (master.shape().max_offset - 1) // 4096 * 4096
        await slave.follow(master, 1)
        await eventually(lambda: slave.shape().max_offset == master.shape().max_offset)
        assert 0 < slave.shape().min_offset < last
        assert slave.replica.store.index.queue(KEY).end == 100
        bare, blank = await lab.side(), await lab.side(syncFromLastFile=True)
        await bare.fill((1, 3050))
        await bare.reign(2)
        await blank.follow(bare, 2)
        await eventually(lambda: blank.shape().max_offset == 3050)
        assert blank.shape().min_offset == 0

    play(scenario)


def test_a_slave_whose_log_begins_later_hides_nothing() -> None:
    """A consumer that lags gets every message, also if it is sent to a slave that copied from the
    last file: only the master may declare a message as deleted."""
    settings = {
        "slaveReadEnable": True,
        "accessMessageInMemoryBytes": 5000,
        "syncFromLastFile": True,
        "mappedFileSizeCommitLog": 16384,
        "maxMessageSize": 4096,
    }
    fleet = Fleet(5, profile="allack-min2", settings=settings)

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        sent = await sailor.send(600)
        for slave in (name for name in fleet.nodes("broker") if name != master):
            await sailor.kill(slave)
            fleet.empty(slave)
            await sailor.start(slave)
            await sailor.healthy()
            assert fleet.events(slave, "log-case")[-1]["point"] > 16384
        assert (await sailor.cluster_state()).masters[BROKER_SET] == master
        assert sorted(await sailor.read_all()) == sorted(sent)

    fleet.sail(scenario)


@pytest.mark.parametrize("forgetful", ["master", "slave"])
@pytest.mark.parametrize("again", [False, True])
def test_what_retention_deleted_is_not_copied_anew(forgetful: str, again: bool) -> None:
    """A log that lost its oldest segments no longer knows where its first epoch began; the rest is
    the same (cases 1-2 and 2-2), also after a restart."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((1, 500), (2, 3000))
        await master.reign(3)
        await slave.fill((1, 500), (2, 2000))
        one = master if forgetful == "master" else slave
        one.replica.store.confirm(1000)
        await one.replica.delete_before(1000)
        assert one.shape().min_offset == 1000
        if again:
            await slave.close()
            await slave.open()
        await slave.follow(master, 3)
        await eventually(lambda: slave.shape().max_offset == 3000)
        case = slave.events("log-case")[-1]
        assert (case["action"], case["point"]) == ("continue", 2000)
        assert slave.bytes()[-2000:] == master.bytes()[-2000:]

    play(scenario)


def test_an_old_masters_tail_is_cut_though_retention_was_there() -> None:
    """The tail of another epoch is found, whatever was deleted before it (case 2-3)."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((1, 500), (2, 3000))
        await slave.fill((1, 500), (2, 2500), (3, 4000))
        slave.replica.store.confirm(1000)
        await slave.replica.delete_before(1000)
        await master.reign(4)
        await slave.follow(master, 4)
        await eventually(lambda: slave.shape().max_offset == 3000)
        assert slave.events("truncate")[-1]["point"] == 2500
        assert slave.bytes() == master.bytes()[1000:]

    play(scenario)


# acks


def test_the_first_ack_comes_right_after_the_cut() -> None:
    """In RocketMQ the transfer waits for a timer when nothing was cut."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((1, 1000))
        await slave.fill((1, 1000))
        await master.reign(2)
        began = asyncio.get_running_loop().time()
        await slave.follow(master, 2)
        await eventually(lambda: slave.number in master.told, within_s=0.1)
        assert asyncio.get_running_loop().time() - began < 0.1
        assert master.ha.acks() == {slave.number: 1000}

    play(scenario)


def test_a_master_tells_how_far_replication_is() -> None:
    """The event `replication` is written when it changes, and not otherwise."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((1, 1000))
        await master.reign(2)
        await slave.follow(master, 2)
        await abreast(slave, master)
        await eventually(lambda: master.events("replication"), within_s=1.0)
        master.append(3)
        await abreast(slave, master)
        await asyncio.sleep(5)
        end = master.replica.store.log.max_offset
        told = [(row["end"], row["acks"]) for row in master.events("replication")]
        assert told[-1] == (end, {str(slave.number): end})
        assert 2 <= len(told) <= 3
        assert slave.events("replication") == []

    play(scenario)


def test_a_slave_that_must_sync_begins_with_all_it_has() -> None:
    """SYNC_FLUSH: the transfer begins at the first ack, so everything before it is synced first.
    Otherwise the master would send what the slave has, and the slave would leave it."""

    async def scenario(lab: HaLab) -> None:
        master = await lab.side()
        slave = await lab.side(flushDiskType="SYNC_FLUSH")
        await master.fill((1, 1000))
        await slave.fill((1, 800))
        assert slave.replica.store.log.flushed < 800
        await master.reign(2)
        await slave.follow(master, 2)
        await abreast(slave, master)
        opened = master.events("connection")
        assert [(row["state"], row["offset"]) for row in opened] == [("opened", 800)]

    play(scenario)


def test_a_slave_that_comes_again_counts_once() -> None:
    """Counted by its id: the dead connection's ack is dropped before the new one's arrives."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((1, 1000))
        await master.reign(2)
        await slave.follow(master, 2)
        await abreast(slave, master)
        twin = await lab.side()
        twin.number = slave.number
        await twin.follow(master, 2)
        await eventually(lambda: twin.slave.state == "transfer")
        assert list(master.ha.links) == [slave.number]

    play(scenario)


def test_a_new_reign_of_the_same_master_needs_no_new_connection() -> None:
    """apache/rocketmq#9689: the slave learns the epoch with the next batch."""

    async def scenario(lab: HaLab) -> None:
        master, slave = await lab.side(), await lab.side()
        await master.fill((1, 1000))
        await master.reign(2)
        await slave.follow(master, 2)
        await abreast(slave, master)
        master.epoch = 3
        master.replica.record_epoch(3)
        await slave.follow(master, 3)
        master.append(2)
        await abreast(slave, master)
        assert slave.shape().epochs.last_epoch == 3
        assert len(master.events("handshake")) == 1

    play(scenario)


# learners


def test_a_learner_is_fed_and_nobody_hears_of_its_acks() -> None:
    """`asyncLearner`: its ack is neither counted nor a reason to let it enter."""

    async def scenario(lab: HaLab) -> None:
        master, learner = await lab.side(), await lab.side(asyncLearner=True)
        await master.fill((1, 1000))
        await master.reign(2)
        await learner.follow(master, 2)
        await abreast(learner, master)
        await eventually(lambda: learner.number in master.told)
        assert (master.ha.acks(), master.ha.progress(learner.number)) == ({}, None)
        assert master.ha.links[learner.number].progress.ack == 1000

    play(scenario)


@pytest.mark.parametrize("idle", [False, True])
def test_a_slave_that_lacks_what_is_deleted_begins_anew(idle: bool) -> None:
    """Its link ends with the next record or heartbeat, and no other link does. Retention takes
    learners into account, so it does not delete what they lack."""

    async def scenario(lab: HaLab) -> None:
        slow = {"haFlowControlEnable": True, "maxHaTransferByteInSecond": 1024}
        master, learner = await lab.side(**slow), await lab.side(asyncLearner=True)
        await master.fill((1, 4000))
        await master.reign(2)
        master.append(80)
        await learner.follow(master, 2)
        await eventually(lambda: learner.shape().max_offset > 500)
        store, held = master.replica.store, master.ha.peer_positions()
        assert held[learner.number] is not None
        assert (held[learner.number] or 0) < 6000
        store.confirm(6000)
        await master.replica.delete_before(6000)
        if not idle:
            master.append(1)
        await eventually(lambda: learner.shape().max_offset == store.log.max_offset)
        assert learner.shape().min_offset == 6000
        assert learner.bytes() == master.bytes()

    play(scenario)


class FleetWithALearner(Fleet):
    """Broker-3 is a learner."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, "allack-min1", settings)
        disk = self.aboard["broker-3"].disk
        content = disk.file(CONFIG)
        told = content.read(content.size, 0)
        disk.put(CONFIG, b"asyncLearner = true\n" + told)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_learner_never_enters_the_set_and_is_never_elected(seed: int) -> None:
    """Not even if no other broker is left and unclean elections are allowed
    (apache/rocketmq#10013)."""
    fleet = FleetWithALearner(seed, enableElectUncleanMaster=True)

    async def scenario(sailor: Sailor) -> None:
        async def two() -> bool:
            return (await sailor.cluster_state()).in_set == ("broker-1", "broker-2")

        await until(two)
        results = await sailor.send(50)
        assert len(acknowledged(results)) == 50
        assert (await sailor.cluster_state()).in_set == ("broker-1", "broker-2")
        for name in ("broker-1", "broker-2"):
            await sailor.kill(name)
        await asyncio.sleep(30)
        assert (await sailor.cluster_state()).masters.get(BROKER_SET) != "broker-3"
        for name in ("broker-1", "broker-2"):
            await sailor.start(name)
        await until(two)
        assert acknowledged(results) <= set(await sailor.read_all())

    fleet.sail(scenario)
    assert all(row["role"] != "master" for row in fleet.events("broker-3", "role"))
    assert fleet.events("broker-3", "epoch")


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - what is waited for is state, in virtual time
            await asyncio.sleep(0.05)
