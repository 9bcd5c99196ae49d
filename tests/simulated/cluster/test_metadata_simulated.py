"""Metadata over failovers, in a simulated world: topics, offsets, groups, locks (spec 10.3, 10.4).

What a strict cluster has answered is there after any failover; what was answered by a cluster that
copies metadata from time to time, as RocketMQ does, may be lost.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from simulated_fleet import BROKER_SET, QUEUES, TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client import CallOutcome
from clusters.flotilla.client.calls import CALL_ERRORS, CallRefused, outcome_of_failure
from clusters.flotilla.net.wire import Json, Op, PullReply, PullRequest, SendRequest, Status

STRICT = {"strictMetadata": True}
FORGETFUL_S = 6.0  # rebalanceLockMaxLiveTime at timeScale 0.1


async def known(sailor: Sailor) -> Json:
    """Return what the master answers, once it does."""

    async def ask() -> Json | None:
        with suppress(*CALL_ERRORS):
            masters = await sailor.client.calls.masters()
            return await sailor.client.calls.ask(masters[BROKER_SET], Op.METADATA, {})
        return None

    return await eventually(ask)


async def fail_over(sailor: Sailor) -> None:
    """The master is killed, another is elected, and the old one returns."""
    old = (await sailor.cluster_state()).masters[BROKER_SET]
    assert old
    await sailor.kill(old)
    await sailor.new_master(old)
    await sailor.start(old)


async def ordered(sailor: Sailor, topic: str) -> None:
    """Make it as soon as there is a master."""

    async def attempt() -> bool:
        with suppress(*CALL_ERRORS):
            await sailor.client.topics.create(topic, 1)
            return True
        return False

    await eventually(attempt)


async def cut_off(sailor: Sailor) -> str:
    """The master, which reaches no other node any more except the client."""
    fleet = sailor.fleet
    old = (await sailor.healthy()).masters[BROKER_SET]
    assert old
    _each_way(fleet, old, fleet.network.cut)
    return old


def heal(fleet: Fleet, node: str) -> None:
    _each_way(fleet, node, fleet.network.heal)


def _each_way(fleet: Fleet, node: str, change: Callable[[str, str], None]) -> None:
    here = fleet.aboard[node].node.address
    for name, other in fleet.aboard.items():
        if name not in (node, "client-1"):
            change(here, other.node.address)
            change(other.node.address, here)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_strict_master_answered_outlives_it(seed: int) -> None:
    """spec 12, 19 (apache/rocketmq#9804): create a topic, kill the master at once; three times, so
    that every broker has been master based on what another one knew."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await sailor.send(40)
        expected = {TOPIC}
        for turn in range(3):
            await sailor.client.topics.create(f"made-{turn}", 2)
            await sailor.client.consumer.commit("g", TOPIC, 0, 5 + turn)
            await sailor.client.topics.create("fleeting", 1)
            await sailor.client.topics.delete("fleeting")
            expected.add(f"made-{turn}")
            await fail_over(sailor)
            found = await known(sailor)
            assert set(found["topics"]) == expected
            assert found["offsets"] == [["g", TOPIC, 0, 5 + turn]]
            await sailor.healthy()
        await sailor.client.consumer.reset("g", TOPIC, 0, 2)
        await fail_over(sailor)
        assert (await known(sailor))["offsets"] == [["g", TOPIC, 0, 2]]

    Fleet(seed, settings=STRICT).sail(scenario)


def test_as_the_original_copies_it_a_topic_may_be_gone() -> None:
    """The same without strictMetadata: some seed loses the last answer."""
    lost = 0

    async def scenario(sailor: Sailor) -> None:
        nonlocal lost
        await sailor.healthy()
        await sailor.client.topics.create("made", 2)
        await fail_over(sailor)
        lost += "made" not in (await known(sailor))["topics"]

    for seed in range(4):
        Fleet(seed).sail(scenario)
    assert lost


def test_an_old_masters_own_topics_go_when_it_comes_back() -> None:
    """Cut off, it made a topic alone, with a higher counter than the new master's; its epoch is
    older, so it takes the new one's catalog as a whole (spec 10.4). All end with one version."""
    fleet = Fleet(5)

    async def scenario(sailor: Sailor) -> None:
        old = await cut_off(sailor)
        for number in range(5):
            await sailor.client.calls.ask(
                fleet.address(old), Op.TOPIC_CREATE, {"topic": f"alone-{number}", "queues": 1}
            )
        await sailor.new_master(old)
        await ordered(sailor, "new")
        heal(fleet, old)
        await sailor.healthy()

        async def same() -> bool:
            said = [await sailor.admin.describe(fleet.address(n)) for n in fleet.nodes("broker")]
            return len({tuple(s["metadataVersion"]) for s in said}) == 1

        assert await eventually(same)
        await fail_over(sailor)
        assert set((await known(sailor))["topics"]) == {TOPIC, "new"}

    fleet.sail(scenario)


def test_a_strict_master_that_is_cut_off_answers_no_change() -> None:
    """Its slaves do not hold it, so the outcome is unknown; the next master does not have it."""
    fleet = Fleet(6, settings=STRICT)

    async def scenario(sailor: Sailor) -> None:
        old = await cut_off(sailor)
        with pytest.raises(CALL_ERRORS) as raised:
            await sailor.client.calls.ask(
                fleet.address(old), Op.TOPIC_CREATE, {"topic": "alone", "queues": 1}
            )
        assert outcome_of_failure(raised.value) is CallOutcome.UNKNOWN
        await sailor.new_master(old)
        assert set((await known(sailor))["topics"]) == {TOPIC}
        heal(fleet, old)
        await sailor.healthy()

    fleet.sail(scenario)


def test_an_offset_behind_the_end_is_refused() -> None:
    """It was read from a fork: the group would skip what is written there next
    (apache/rocketmq#4771; spec 12, 18). So is one of a queue that is not there."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await sailor.send(40)
        consumer = sailor.client.consumer
        for order in (consumer.commit, consumer.reset):
            with pytest.raises(CallRefused, match="PULL_OFFSET_MOVED orders-0 ends at 10, not 11"):
                await order("g", TOPIC, 0, 11)
            await order("g", TOPIC, 0, 10)
        assert await consumer.committed("g", TOPIC, 0) == 10
        await sailor.client.topics.create("short", 1)
        with pytest.raises(CallRefused, match="MESSAGE_ILLEGAL orders has 4 queues, and cannot"):
            await sailor.client.topics.create(TOPIC, 3)
        with pytest.raises(CallRefused, match="TOPIC_NOT_EXIST"):
            await sailor.client.topics.delete("unknown")

    Fleet(4).sail(scenario)


def test_a_slave_holds_what_is_on_its_disk() -> None:
    """The master is strict and the slaves are not, as while a setting is being changed: an answer
    survives a power cut of all, even if the master stays away."""
    fleet = Fleet(6, "allack-min2", settings=STRICT)

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        slaves = sorted(set(fleet.nodes("broker")) - {master})
        for slave in slaves:
            await sailor.kill(slave)
            fleet.reconfigure(slave, strictMetadata=False)
            await sailor.start(slave)
        await sailor.healthy()
        await ordered(sailor, "new")
        for broker in (master, *slaves):
            await sailor.power_cut(broker)
        for slave in slaves:
            await sailor.power_on(slave)
        await sailor.new_master(master)
        assert "new" in (await known(sailor))["topics"]

    fleet.sail(scenario)


def test_nobody_holds_what_was_not_offered() -> None:
    """strictMetadata: a slave that claims a version that does not exist yet holds nothing of it."""

    async def scenario(sailor: Sailor) -> None:
        fleet, calls = sailor.fleet, sailor.client.calls
        now = await sailor.healthy()
        ids = [now.detail[name]["controllerBrokerId"] for name in now.slaves]
        master = fleet.address(await cut_off(sailor))
        for number in ids:
            claim = {"brokerId": number, "addr": "1.1.1.1:1", "version": [9**9, 1], "waitMs": 0}
            await calls.ask(master, Op.METADATA_SYNC, claim)
        with pytest.raises(CALL_ERRORS):
            await calls.ask(master, Op.TOPIC_CREATE, {"topic": "new", "queues": 1})

    Fleet(6, "allack-min2", settings=STRICT).sail(scenario)


def test_a_topic_does_not_shrink_by_orders_that_cross() -> None:
    """strictMetadata: two orders in progress at once, the second for fewer queues."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        topics = sailor.client.topics
        await asyncio.gather(topics.create("new", 10), topics.create("new", 5))
        assert (await topics.list_queues())["new"] == 10

    Fleet(5, "allack-min2", settings=STRICT).sail(scenario)


def test_a_topic_that_is_gone_is_not_read() -> None:
    """Nor is one that never existed, nor a missing queue; and one answer never holds everything."""

    async def scenario(sailor: Sailor) -> None:
        master = sailor.fleet.address((await sailor.healthy()).masters[BROKER_SET])
        await sailor.send(QUEUES)

        async def pulled(topic: str, queue: int) -> tuple[Status, int]:
            pull = PullRequest(topic, queue, 0, 2**32 - 1, 50)
            answer = PullReply.unpack(
                await sailor.client.calls.call(master, Op.PULL, pull.pack(), 5)
            )
            return answer.status, len(answer.messages)

        assert await pulled(TOPIC, 0) == (Status.SUCCESS, 1)
        assert await pulled(TOPIC, QUEUES) == (Status.MESSAGE_ILLEGAL, 0)
        assert await pulled("unknown", 0) == (Status.TOPIC_NOT_EXIST, 0)
        await sailor.client.topics.delete(TOPIC)
        assert await pulled(TOPIC, 0) == (Status.TOPIC_NOT_EXIST, 0)

    Fleet(4).sail(scenario)


def test_an_offset_behind_what_is_confirmed_waits() -> None:
    """A message that no slave holds yet was not delivered, and may still be cut off."""

    async def scenario(sailor: Sailor) -> None:
        calls, place = sailor.client.calls, {"topic": TOPIC, "queueId": 0}
        await sailor.healthy()
        await sailor.send(QUEUES)
        master = sailor.fleet.address(await cut_off(sailor))
        send = SendRequest(TOPIC, 0, b"", b"alone").pack()
        sending = asyncio.ensure_future(calls.call(master, Op.SEND, send, 5.0))

        async def appended() -> bool:
            told = await calls.ask(master, Op.DESCRIBE, {})
            return bool(told["maxOffset"] > told["confirmOffset"])

        await eventually(appended)
        assert (await calls.ask(master, Op.QUEUE_RANGE, place))["maxOffset"] == 1
        with pytest.raises(CallRefused, match="SERVICE_NOT_AVAILABLE what is before it is not"):
            await calls.ask(master, Op.OFFSET_COMMIT, {**place, "group": "g", "offset": 2})
        await calls.ask(master, Op.OFFSET_COMMIT, {**place, "group": "g", "offset": 1})
        await asyncio.wait({sending})

    Fleet(4, "allack-min2").sail(scenario)


def test_a_slave_that_gets_no_metadata_says_so() -> None:
    """Once, with the reason: otherwise it would be noticed only at the failover that loses the
    changes."""
    fleet = Fleet(7, "allack-min1", {"controllerHeartBeatTimeoutMills": 600_000})

    async def scenario(sailor: Sailor) -> None:
        master = await cut_off(sailor)
        slaves = [name for name in fleet.nodes("broker") if name != master]

        async def told() -> bool:
            return all(fleet.events(name, "metadata-unheard") for name in slaves)

        await eventually(told)
        await asyncio.sleep(5)  # many a question later
        for name in slaves:
            [said] = fleet.events(name, "metadata-unheard")
            assert said["master"] == fleet.address(master)
            assert said["why"]
        heal(fleet, master)
        await sailor.healthy()

    fleet.sail(scenario)


def test_a_group_shares_its_queues_and_takes_over_those_of_the_dead() -> None:
    """Average allocation over the members that the broker knows; over a failover, too."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        members = [sailor.client.member("g", name, {TOPIC: 4}) for name in ("a", "b")]
        for member in members:
            member.start()

        async def shared() -> bool:
            owned = [queue for m in members for queue in m.queues]
            return [len(m.queues) for m in members] == [2, 2] and len(set(owned)) == 4

        assert await eventually(shared)
        await fail_over(sailor)
        assert (await known(sailor))["groups"] in ({"g": [TOPIC]}, {})
        members[0].close()

        async def taken_over() -> bool:
            return len(members[1].queues) == 4

        assert await eventually(taken_over)
        members[1].close()

    Fleet(7).sail(scenario)


@pytest.mark.parametrize("enabled", [True, False])
def test_who_lags_is_sent_to_a_slave(enabled: bool) -> None:
    """slaveReadEnable: a reader behind 40 % of the memory is sent to a slave, which answers; one
    that has caught up is sent back. A slave knows nothing behind its own end (spec 10.3)."""
    settings = {"slaveReadEnable": enabled, "accessMessageInMemoryBytes": 5000}
    fleet = Fleet(9, settings=settings)

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        assert master
        sent = await sailor.send(200)
        slave = next(name for name in fleet.nodes("broker") if name != master)

        async def pull(node: str, offset: int) -> PullReply:
            packed = PullRequest(TOPIC, 0, offset, 8, 0).pack()
            calls = sailor.client.calls
            return PullReply.unpack(await calls.call(fleet.address(node), Op.PULL, packed, 1.0))

        lagging, caught_up = await pull(master, 0), await pull(master, 45)
        assert bool(lagging.suggested) == enabled
        assert caught_up.suggested == 0
        there, beyond = await pull(slave, 0), await pull(slave, 1000)
        if enabled:
            assert [m.queue_offset for m in there.messages] == list(range(8))
            assert (beyond.status, beyond.next_offset) == (Status.PULL_NOT_FOUND, 1000)
        else:
            assert there.status is beyond.status is Status.SERVICE_NOT_AVAILABLE
        await sailor.kill(slave)
        assert sorted(await sailor.read_all()) == sorted(sent)

    fleet.sail(scenario)


@pytest.mark.parametrize("strict", [True, False])
def test_a_lock_over_a_failover(strict: bool) -> None:
    """lockInStrictMode: no other consumer gets the queue while its owner believes in its lease;
    without it the new master knows no lock and grants it again (spec 10.3)."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        consumer = sailor.client.consumer
        place = ("g", "first", TOPIC, 0)

        async def locked() -> float:
            with suppress(*CALL_ERRORS):
                return await consumer.lock(*place)
            return 0.0

        until = await eventually(locked)
        began_s = asyncio.get_running_loop().time()
        assert (
            began_s >= FORGETFUL_S
        ) == strict  # brokers that start do not know what they granted
        assert not await consumer.lock("g", "second", TOPIC, 0)
        await fail_over(sailor)

        async def second() -> bool:
            with suppress(*CALL_ERRORS):
                return bool(await consumer.lock("g", "second", TOPIC, 0))
            return False

        assert await eventually(second)
        assert (asyncio.get_running_loop().time() > until) == strict

    Fleet(8, settings={"lockInStrictMode": strict}).sail(scenario)


def test_a_lock_needs_a_majority() -> None:
    """lockInStrictMode: a master without slaves grants none, so none is granted twice."""
    fleet = Fleet(10, settings={"lockInStrictMode": True})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        await asyncio.sleep(FORGETFUL_S)
        assert await sailor.client.consumer.lock("g", "first", TOPIC, 0)
        for slave in set(fleet.nodes("broker")) - {master}:
            await sailor.kill(slave)
        assert not await sailor.client.consumer.lock("g", "first", TOPIC, 1)

    fleet.sail(scenario)


def test_who_has_had_two_ids_has_one_vote() -> None:
    """lockInStrictMode: an emptied slave returns under a new id at the same address; the master and
    that slave are two of five."""
    fleet = Fleet(11, settings={"lockInStrictMode": True}, nodes={"broker": 5})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        emptied, *others = sorted(set(fleet.nodes("broker")) - {master})
        await sailor.kill(emptied)
        fleet.empty(emptied)
        await sailor.start(emptied)
        await sailor.healthy()
        await asyncio.sleep(FORGETFUL_S)
        assert await sailor.client.consumer.lock("g", "first", TOPIC, 0)
        for slave in others:
            await sailor.kill(slave)
        assert not await sailor.client.consumer.lock("g", "first", TOPIC, 1)
        assert (await sailor.cluster_state()).masters[BROKER_SET] == master

    fleet.sail(scenario)


@pytest.mark.parametrize("strict", [True, False])
def test_a_release_that_was_on_its_way_for_long(strict: bool) -> None:
    """It does not release the lock that its client has taken since then."""
    fleet = Fleet(12, settings={"lockInStrictMode": strict})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        assert master
        await asyncio.sleep(FORGETFUL_S)
        consumer, loop = sailor.client.consumer, asyncio.get_running_loop()
        place = ("g", "first", TOPIC, 0)
        assert await consumer.lock(*place)
        late = {"group": "g", "client": "first", "topic": TOPIC, "queueId": 0}
        late["askedAt"] = int(loop.time() * 1_000_000)
        await consumer.unlock(*place)
        until = await consumer.lock(*place)
        await sailor.client.calls.ask(fleet.address(master), Op.UNLOCK_QUEUE, late)
        assert not await consumer.lock("g", "second", TOPIC, 0)
        await consumer.unlock(*place)
        assert await consumer.lock("g", "second", TOPIC, 0)
        assert loop.time() < until

    fleet.sail(scenario)
