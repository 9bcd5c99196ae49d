"""Delayed messages: when consumers get them, and what becomes of them in a failover."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from simulated_fleet import BROKER_SET, QUEUES, TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client import CallOutcome, SendResult
from clusters.flotilla.client.calls import CALL_ERRORS, CallRefused
from clusters.flotilla.net.wire import Op, SendReply, SendRequest, Status
from clusters.flotilla.special.delay import DelayScan
from clusters.flotilla.special.envelope import DELAY_TOPIC


async def send_delayed(sailor: Sailor, delays_ms: Mapping[bytes, int]) -> set[bytes]:
    """Send a message for each body; return the bodies of those that were accepted."""
    results: dict[bytes, SendResult] = {}
    for number, (body, delay_ms) in enumerate(delays_ms.items()):
        done = partial(results.__setitem__, body)
        sailor.client.producer.send_delayed(TOPIC, number % QUEUES, b"k", body, delay_ms, done)

    async def all_ended() -> bool:
        return len(results) == len(delays_ms)

    await eventually(all_ended)
    return {body for body, r in results.items() if r.outcome is CallOutcome.HAPPENED}


async def await_all(sailor: Sailor, bodies: set[bytes]) -> Counter[bytes]:
    """Wait until all of these can be read; return how often each is there."""

    async def look() -> Counter[bytes] | None:
        found = Counter(await sailor.read_all())
        return found if bodies <= found.keys() else None

    return await eventually(look)


def plan(count: int, delay_ms: int, name: str = "late") -> dict[bytes, int]:
    return {b"%s %d" % (name.encode(), n): delay_ms + n for n in range(count)}


def test_they_come_after_their_delay_in_order_of_their_times() -> None:
    """The one that was sent last is due first; each comes once, with its key."""
    fleet = Fleet(1)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        wanted = {b"slow": 900, b"middle": 600, b"quick": 300}
        assert await send_delayed(sailor, wanted) == set(wanted)
        for body in (b"quick", b"middle", b"slow"):
            found = await await_all(sailor, {body})
            assert loop.time() - began_s >= wanted[body] / 1000
            assert set(found) == {b for b in wanted if wanted[b] <= wanted[body]}
        assert set(found.values()) == {1}

    fleet.sail(scenario)


@pytest.mark.parametrize("strict", [True, False])
def test_the_next_master_delivers_what_the_last_one_accepted(strict: bool) -> None:
    """What was delivered before, it does not deliver again, if its set has the progress."""
    fleet = Fleet(2, "sync-flush", {"strictSpecialMessages": strict})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        early = await send_delayed(sailor, plan(20, 50, "early"))
        await await_all(sailor, early)
        late = await send_delayed(sailor, plan(20, 8000))
        assert len(early) == len(late) == 20
        old = (await sailor.healthy()).masters[BROKER_SET]
        await asyncio.sleep(3)  # until slaves have the progress
        assert not set(await sailor.read_all()) & late
        await sailor.kill(old)
        await sailor.new_master(old)
        found = await await_all(sailor, early | late)
        assert found == Counter([*early, *late])

    fleet.sail(scenario)


def test_a_master_that_returns_delivers_again_what_it_had_not_noted() -> None:
    """Twice, but not lost: progress is noted after the message is in the log."""
    fleet = Fleet(3, "switchless-sync", {"flushDelayOffsetInterval": 10_000_000})

    async def scenario(sailor: Sailor) -> None:
        async def look() -> bool:
            return (await sailor.cluster_state()).redundant

        await eventually(look)
        first = await send_delayed(sailor, plan(10, 50, "noted"))
        await await_all(sailor, first)
        second = await send_delayed(sailor, plan(10, 50, "unnoted"))
        await await_all(sailor, second)
        await asyncio.sleep(3)
        await sailor.kill("broker-1")
        await sailor.start("broker-1")
        await eventually(look)

        async def again() -> Counter[bytes] | None:
            found = Counter(await sailor.read_all())
            return found if all(found[body] == 2 for body in second) else None

        found = await eventually(again)
        assert set(found) == first | second
        assert all(found[body] <= 2 for body in first)

    fleet.sail(scenario)


@pytest.mark.parametrize(("until_success", "kept"), [(True, 10), (False, 0)])
def test_what_cannot_be_put_is_tried_again(until_success: bool, kept: int) -> None:
    """RocketMQ drops it after three times half a second."""
    settings = {"timerEnableRetryUntilSuccess": until_success, "timeScale": 1.0}
    fleet = Fleet(4, "allack-min2", settings)

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        wanted = await send_delayed(sailor, plan(10, 30_000))
        slaves = [name for name in fleet.nodes("broker") if name != master]
        for slave in slaves:
            await sailor.kill(slave)
        await asyncio.sleep(60)  # the messages are due, and the set is too small
        for slave in slaves:
            await sailor.start(slave)
        await sailor.healthy()
        await asyncio.sleep(5)
        found = Counter(await sailor.read_all())
        assert len(wanted) == 10
        assert found == Counter(sorted(wanted)[:kept])
        dropped = fleet.events(master, "delay-dropped")
        assert len(dropped) == 10 - kept

    fleet.sail(scenario)


def test_a_scan_sleeps_while_nothing_can_be_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a message is due it looks at the clock every second. While the set is too small for
    what is due it tries at each interval, and no more often."""
    fleet, looks, put = Fleet(7, "allack-min2"), [0], DelayScan._put_due

    def counted(scan: DelayScan) -> bool:
        looks[0] += 1
        return put(scan)

    monkeypatch.setattr(DelayScan, "_put_due", counted)

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        wanted = await send_delayed(sailor, plan(1, 60_000))
        await asyncio.sleep(1)
        looks[0] = 0
        await asyncio.sleep(30)
        assert 25 <= looks[0] <= 35
        slaves = [name for name in fleet.nodes("broker") if name != master]
        for slave in slaves:
            await sailor.kill(slave)
        await asyncio.sleep(31)  # the message is due
        looks[0] = 0
        await asyncio.sleep(10)
        assert 900 <= looks[0] <= 1100  # 100 ms, at timeScale 0.1
        for slave in slaves:
            await sailor.start(slave)
        assert await await_all(sailor, wanted) == Counter(wanted)

    fleet.sail(scenario)


def test_a_drill_loses_and_repeats_nothing() -> None:
    """Nothing is put while the master hands over."""
    fleet = Fleet(5)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        wanted = await send_delayed(sailor, {b"m %d" % n: 20 * n for n in range(1, 101)})
        await sailor.admin.drill(BROKER_SET)
        await sailor.new_master(old)
        found = await await_all(sailor, wanted)
        assert len(wanted) == 100
        assert sum(found.values()) <= 100 + 20  # those that were not noted yet

    fleet.sail(scenario)


def test_system_topics_are_refused() -> None:
    """Clients send to one; they cannot read, make or delete it, nor send nonsense."""
    fleet = Fleet(6)

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        client, address = sailor.client, fleet.address(master)
        await send_delayed(sailor, {b"one": 100})
        refused: list[Any] = []
        for call in (
            client.topics.create("%mine", 1),
            client.topics.create(DELAY_TOPIC, 1),
            client.topics.delete(DELAY_TOPIC),
        ):
            with pytest.raises(CALL_ERRORS) as caught:
                await call
            refused.append(caught.value)
        assert all(isinstance(why, CallRefused) for why in refused)
        assert await status_of(sailor, address, SendRequest(DELAY_TOPIC, 0, b"", b"junk")) is (
            Status.MESSAGE_ILLEGAL
        )
        too_long = 4 * 24 * 3600 * 1000
        assert not await send_delayed(sailor, {b"too long": too_long})
        assert not await send_delayed(sailor, {b"before": -1})

    fleet.sail(scenario)


async def status_of(sailor: Sailor, address: str, send: SendRequest) -> Status:
    """Return the status with which a broker answers a SEND."""
    answer = await sailor.client.calls.call(address, Op.SEND, send.pack(), 1.0)
    return SendReply.unpack(answer).status
