"""What is deleted, when, and what never: the rules, and a cluster that keeps little."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_store import SEGMENT as SMALL_SEGMENT
from lone_store import Life, LoneStore
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.net.wire import Status
from clusters.flotilla.store.retention import (
    DiskPressure,
    RetentionPolicy,
    delete_up_to,
    hours_of,
    needed_from,
)
from clusters.flotilla.world.ports import Space

SEGMENT, HOUR_MS = 1 << 20, 3_600_000
KEEPING = RetentionPolicy(SEGMENT, 72 * HOUR_MS, frozenset({4}), 75, 85, 90)
AT_FOUR, AT_NOON = 1000 * 24 * HOUR_MS + 4 * HOUR_MS, 1000 * 24 * HOUR_MS + 12 * HOUR_MS
LOG_END = 10 * SEGMENT


def disk(used_percent: int, total: int = 100 * SEGMENT // 4) -> Space:
    return Space(total * (100 - used_percent) // 100, total)


def segments(age_h: float, now_ms: int = AT_FOUR, count: int = 9) -> list[tuple[int, int]]:
    finished = int(now_ms - age_h * HOUR_MS)
    return [(i * SEGMENT, finished) for i in range(1, count + 1)]


@pytest.mark.parametrize(
    ("used", "age_h", "now_ms", "deleted"),
    [
        (10, 73, AT_FOUR, 9),  # old enough, and it is the hour
        (10, 71, AT_FOUR, 0),  # not old enough
        (10, 73, AT_NOON, 0),  # not the hour
        (80, 73, AT_NOON, 9),  # fuller than diskMaxUsedSpaceRatio: any hour
        (80, 1, AT_NOON, 0),  # but not younger ones
        (88, 1, AT_NOON, 1),  # diskSpaceCleanForciblyRatio: any age, no more than is needed
        (96, 1, AT_NOON, 3),
    ],
)
def test_age_hour_and_pressure_decide(used: int, age_h: float, now_ms: int, deleted: int) -> None:
    """RocketMQ's rules of cleaning the commit log."""
    full = segments(age_h, now_ms)
    point = delete_up_to(full, LOG_END, now_ms, disk(used), KEEPING)
    assert point == (deleted * SEGMENT or None)


def test_young_messages_stay_where_nothing_is_forced() -> None:
    """cleanFileForciblyEnable = false: a full disk refuses what is new, and keeps what it has."""
    keeping = replace(KEEPING, forcibly=False)
    full = segments(1, AT_NOON)
    assert delete_up_to(full, LOG_END, AT_NOON, disk(96), keeping) is None
    assert keeping.pressure(disk(96)) is DiskPressure.FULL


def test_a_large_disk_is_not_full_at_nine_tenths() -> None:
    """With room for plenty of segments there is no pressure, whatever the ratio says."""
    assert KEEPING.pressure(disk(95, total=10**6 * SEGMENT)) is DiskPressure.NONE
    assert [KEEPING.pressure(disk(used)) for used in (74, 76, 86, 91)] == list(DiskPressure)


@given(
    st.integers(0, 12 * SEGMENT),
    st.dictionaries(st.integers(1, 5), st.none() | st.integers(0, 12 * SEGMENT)),
    st.lists(st.integers(1, 5), unique=True),
    st.integers(0, 100),
)
def test_nothing_is_deleted_that_somebody_needs(
    confirmed: int, acks: dict[int, int | None], members: list[int], used: int
) -> None:
    """Not beyond the confirm offset, nor what a member or a connected slave has not acknowledged;
    a silent member may need everything, however full the disk is."""
    needed = needed_from(confirmed, acks, tuple(members))
    point = delete_up_to(segments(100), needed, AT_FOUR, disk(used), KEEPING) or 0
    assert point <= confirmed
    assert all(point <= (acks.get(member) or 0) for member in members)
    assert all(point <= (ack or 0) for ack in acks.values())


def test_hours_are_hours() -> None:
    """`deleteWhen`: `04;16`, or `always`."""
    assert hours_of("04;16") == {4, 16}
    assert hours_of("always") is None
    for nonsense in ("24", "noon", ""):
        with pytest.raises(ValueError, match=r"hour|invalid literal"):
            hours_of(nonsense)


SHORT = {
    "mappedFileSizeCommitLog": 16384,
    "maxMessageSize": 4096,
    "fileReservedTime": 0.0003,  # about a second
    "deleteWhen": "always",
    "cleanResourceInterval": 2000,
}


@pytest.mark.parametrize("after_ms", [n / 10 for n in range(12)])
def test_a_deletion_that_is_cancelled_takes_nothing_or_all(after_ms: float) -> None:
    """A broker stops while retention deletes, and the disk is busy with what comes in: whatever is
    in its log is in its indexes, too, and consumers see it in its next life."""
    lone = LoneStore()

    async def first(life: Life) -> None:
        life.fill(300)
        life.store.confirm(life.store.log.max_offset)
        await life.store.flush()

        async def busy() -> None:
            while True:
                life.fill(1)
                await life.store.log.sync()

        work = asyncio.ensure_future(busy())
        deletion = asyncio.ensure_future(life.store.delete_before(2 * SMALL_SEGMENT))
        await asyncio.sleep(after_ms / 1000)
        deletion.cancel()
        work.cancel()
        await asyncio.wait([deletion, work])
        await life.store.leave()

    async def second(life: Life) -> None:
        begins = life.store.log.min_offset
        assert begins in (0, 2 * SMALL_SEGMENT)
        numbers = [int(body.split(b"-")[1]) for body in life.bodies()]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert (numbers[0] == 0) == (begins == 0)
        assert numbers[-1] >= 299

    assert lone.live(first) == ""
    assert lone.live(second) == ""


def test_a_cluster_that_keeps_little_loses_only_what_is_old() -> None:
    """min offsets move on all replicas, pulls below get PULL_OFFSET_MOVED with the new one, epochs
    and queue offsets stay what they were, over a failover and a restart."""
    fleet = Fleet(seed=5, settings=SHORT)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        before = acknowledged(await sailor.send(400))
        assert len(before) == 400

        async def all_shortened() -> bool:
            found = [await sailor._described(name) for name in fleet.nodes("broker")]
            return all(d and d["minOffset"] >= 16384 for d in found)

        await eventually(all_shortened)
        low, high = await sailor.client.consumer.range(TOPIC, 0)
        assert 0 < low <= high == 100
        moved = await sailor.client.consumer.pull(TOPIC, 0, 0, 1, 0)
        assert (moved.status, moved.next_offset) == (Status.PULL_OFFSET_MOVED, low)
        await sailor.power_cut(old)
        await sailor.new_master(old)
        await sailor.power_on(old)
        await sailor.healthy()
        assert await sailor.client.consumer.range(TOPIC, 0) >= (low, high)
        [after] = {r.queue_offset for r in (await sailor.send(1)).values()}
        assert after == 100

    fleet.sail(scenario)
    for name in fleet.nodes("broker"):
        events = fleet.events(name, "deleted")
        assert events, f"{name} deleted nothing"
        assert all(event["before"] < event["min"] for event in events)


def test_a_slave_that_was_away_for_longer_than_retention_starts_at_the_masters_first_byte() -> None:
    """A new slave copies what there is, and queue offsets continue (apache/rocketmq#3388)."""
    fleet = Fleet(seed=6, settings=SHORT)

    async def scenario(sailor: Sailor) -> None:
        away = (await sailor.healthy()).slaves[0]
        await sailor.send(40)
        await sailor.power_cut(away)
        await sailor.send(400)
        await asyncio.sleep(2)
        await sailor.power_on(away)
        await sailor.healthy()
        described = await sailor._described(away)
        assert (described or {})["minOffset"] >= 16384
        for other in (await sailor.cluster_state()).masters.values():
            await sailor.kill(other)
        assert len(acknowledged(await sailor.send(8))) == 8

    fleet.sail(scenario)
    cases = [
        event["case"] for name in fleet.nodes("broker") for event in fleet.events(name, "log-case")
    ]
    assert "1-1" in cases
