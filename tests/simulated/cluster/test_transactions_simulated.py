"""Transactional messages: who sees them when, and what becomes of them in a failover."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from simulated_fleet import BROKER_SET, QUEUES, TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client import CallOutcome, SendResult
from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.client.producer import Done
from clusters.flotilla.net.wire import Message

GROUP = "payments"
SETTINGS = {"transactionTimeOut": 2000, "transactionCheckInterval": 3000}


async def ended(call: Callable[[Done], None]) -> SendResult:
    """Return the result of a call with a callback."""
    result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    call(result.set_result)
    return await result


async def prepare(sailor: Sailor, body: bytes, queue: int = 0) -> int:
    """Prepare a message; return its id."""
    producer = sailor.client.producer
    result = await ended(lambda done: producer.prepare(TOPIC, queue, body, body, GROUP, done))
    assert result.outcome is CallOutcome.HAPPENED, result.error
    return result.queue_offset


async def decide(
    sailor: Sailor, body: bytes, half: int, commit: bool, queue: int = 0
) -> SendResult:
    producer = sailor.client.producer
    return await ended(lambda done: producer.decide(TOPIC, queue, half, body, commit, done))


async def questions(sailor: Sailor, queue: int = 0) -> Sequence[Message]:
    """Wait until the broker asks; return what it asks about."""

    async def ask() -> Sequence[Message] | None:
        try:
            return await sailor.client.consumer.questions(GROUP, TOPIC, queue, 1.0) or None
        except CALL_ERRORS:
            return None

    return await eventually(ask)


async def read(sailor: Sailor) -> Counter[bytes]:
    return Counter(await sailor.read_all())


def test_a_message_is_seen_once_it_is_committed() -> None:
    """And never if it is rolled back. A second decision is refused, as is one with another key."""
    fleet = Fleet(1, settings=SETTINGS)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        ids = [await prepare(sailor, body, n % QUEUES) for n, body in enumerate((b"one", b"two"))]
        assert not await read(sailor)
        wrong = await decide(sailor, b"two", ids[0], commit=True)
        assert wrong.outcome is CallOutcome.REFUSED
        for body, half, commit in ((b"one", ids[0], True), (b"two", ids[1], False)):
            first = await decide(sailor, body, half, commit)
            again = await decide(sailor, body, half, commit)
            assert first.outcome is CallOutcome.HAPPENED
            assert again.outcome is CallOutcome.REFUSED
        assert await read(sailor) == Counter([b"one"])

    fleet.sail(scenario)


@pytest.mark.parametrize("strict", [True, False])
def test_the_next_master_knows_what_is_decided_and_asks_about_the_rest(strict: bool) -> None:
    """Without strictSpecialMessages it may ask about a decision that the last one had in memory."""
    fleet = Fleet(2, settings={**SETTINGS, "strictSpecialMessages": strict})

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        bodies = [b"m%d" % n for n in range(10)]
        ids = {body: await prepare(sailor, body) for body in bodies}
        for body in bodies[:5]:
            done = await decide(sailor, body, ids[body], commit=True)
            assert done.outcome is CallOutcome.HAPPENED
        await sailor.kill(old)
        await sailor.new_master(old)
        asked: dict[bytes, int] = {}
        while not set(bodies[5:]) <= asked.keys():
            asked |= {m.body: m.queue_offset for m in await questions(sailor)}
        assert asked.items() <= ids.items()
        assert strict is (asked.keys() == set(bodies[5:]))
        for body, half in asked.items():
            assert (await decide(sailor, body, half, commit=True)).error == ""
        found = await read(sailor)
        assert found.keys() == set(bodies)
        assert set(found.values()) <= ({1} if strict else {1, 2})

    fleet.sail(scenario)


def test_a_message_that_is_never_decided_is_discarded() -> None:
    """After so many questions; a decision after that is refused."""
    fleet = Fleet(3, settings={**SETTINGS, "transactionCheckMax": 3})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        half = await prepare(sailor, b"open")
        for _ in range(3):
            [asked] = await questions(sailor)
            assert (asked.queue_offset, asked.key, asked.body) == (half, b"open", b"open")

        async def discarded() -> bool:
            return bool(fleet.events(master, "half-discarded"))

        await eventually(discarded)
        late = await decide(sailor, b"open", half, commit=True)
        assert late.outcome is CallOutcome.REFUSED
        assert "is not open" in late.error
        assert not await read(sailor)
        with pytest.raises(CALL_ERRORS):
            await sailor.client.consumer.pull("%dead", 0, 0, 1, 0.0)

    fleet.sail(scenario)


@pytest.mark.parametrize("profile", ["sync-flush", "switchless-sync"])
def test_questions_are_counted_across_a_restart(profile: str) -> None:
    """By the next master, or by the one that starts again: three in all, although one more message
    was decided after the first two, and progress was noted."""
    rare = {"transactionCheckInterval": 30_000, "transactionCheckMax": 3}
    fleet = Fleet(7, profile, settings={**SETTINGS, **rare})
    brokers = fleet.nodes("broker")

    async def scenario(sailor: Sailor) -> None:
        async def asked() -> int:
            try:
                return len(await sailor.client.consumer.questions(GROUP, TOPIC, 0, 1.0))
            except CALL_ERRORS:
                await asyncio.sleep(0.05)
                return 0

        async def whole() -> str:
            now = await sailor.cluster_state()
            return now.masters.get(BROKER_SET) or "" if now.redundant else ""

        master, count = await eventually(whole), 0
        half = await prepare(sailor, b"open")
        while count < 2:
            count += await asked()
        other = await prepare(sailor, b"decided")
        assert other > half
        assert (await decide(sailor, b"decided", other, commit=True)).error == ""
        await asyncio.sleep(2)  # until progress is noted, and before the next question
        assert count == 2
        await sailor.kill(master)
        if profile == "sync-flush":
            await sailor.new_master(master)
        else:
            await sailor.start(master)
        while not any(fleet.events(broker, "half-discarded") for broker in brokers):
            count += await asked()
        assert count == 3
        assert await read(sailor) == Counter([b"decided"])

    fleet.sail(scenario)


def test_nothing_is_discarded_without_a_question() -> None:
    """A message waits until a producer of its group is there."""
    fleet = Fleet(4, settings={**SETTINGS, "transactionCheckMax": 1})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        half = await prepare(sailor, b"patient")
        await asyncio.sleep(20)  # twenty times the interval
        [asked] = await questions(sailor)
        assert asked.queue_offset == half
        assert (await decide(sailor, b"patient", half, commit=True)).error == ""
        assert await read(sailor) == Counter([b"patient"])

    fleet.sail(scenario)


def test_an_acting_master_lets_another_set_ask() -> None:
    """What was open when the master died is asked about and committed there, and is closed for the
    master that returns; what was decided is not."""
    profile, there = "switchless-escape", 2  # the first queue of the other set
    fleet = Fleet(6, profile, settings=SETTINGS, nodes={"broker": 4})

    async def scenario(sailor: Sailor) -> None:
        async def whole() -> bool:
            return (await sailor.cluster_state()).redundant

        await eventually(whole)
        ids = {body: await prepare(sailor, body) for body in (b"open", b"committed", b"dropped")}
        for body in (b"committed", b"dropped"):
            await decide(sailor, body, ids[body], commit=body == b"committed")
        await asyncio.sleep(2)  # until the slave knows that all of it is confirmed
        await sailor.kill("broker-1")
        asked = await questions(sailor, there)
        assert [message.key for message in asked] == [b"open"]
        done = await decide(sailor, b"open", asked[0].queue_offset, commit=True, queue=there)
        assert done.outcome is CallOutcome.HAPPENED
        await sailor.start("broker-1")
        await eventually(whole)

        async def closed() -> bool:
            refused = await decide(sailor, b"open", ids[b"open"], commit=True)
            assert refused.outcome is CallOutcome.REFUSED
            return "is not open" in refused.error

        await eventually(closed)
        assert await read(sailor) == Counter([b"open", b"committed"])

    fleet.sail(scenario)
    assert [row["records"] for row in fleet.events("broker-2", "escaped")] == [[[1, 0]]]
