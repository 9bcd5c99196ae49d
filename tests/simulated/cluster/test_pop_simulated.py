"""POP: each message is given to one consumer at a time, until it is acknowledged."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client import CallOutcome, SendResult
from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.client.consumer import PoppedMessage
from clusters.flotilla.client.producer import Done
from clusters.flotilla.special.pop_records import PopHandle

GROUP, INVISIBLE_MS = "billing", 2000
Bodies = list[bytes]


async def ended(call: Callable[[Done], None]) -> SendResult:
    """Return the result of a call with a callback."""
    result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    call(result.set_result)
    return await result


async def send(sailor: Sailor, bodies: Sequence[bytes]) -> None:
    for body in bodies:
        result = await sailor.client.producer.send_and_wait(TOPIC, body, body, queue=0)
        assert result.outcome is CallOutcome.HAPPENED, result.error


async def pop(
    sailor: Sailor, limit: int = 32, wait_s: float = 0.0, group: str = GROUP, queue: int = 0
) -> Sequence[PoppedMessage]:
    """Pop as soon as a master answers."""

    async def take() -> list[Sequence[PoppedMessage]] | None:
        consumer = sailor.client.consumer
        try:
            return [await consumer.pop(group, TOPIC, queue, limit, INVISIBLE_MS, wait_s)]
        except CALL_ERRORS:
            return None

    return (await eventually(take))[0]


async def pop_all(sailor: Sailor, count: int) -> list[PoppedMessage]:
    """Pop until so many messages came."""
    found: list[PoppedMessage] = []
    while len(found) < count:
        found += await pop(sailor, wait_s=5.0)
    return found


async def acknowledge(sailor: Sailor, handle: PopHandle, queue: int = 0) -> SendResult:
    producer = sailor.client.producer
    return await ended(lambda done: producer.acknowledge(TOPIC, queue, GROUP, handle, done))


async def hide(sailor: Sailor, handle: PopHandle, invisible_ms: int) -> PopHandle:
    producer = sailor.client.producer
    result = await ended(lambda done: producer.hide(TOPIC, 0, GROUP, handle, invisible_ms, done))
    assert result.outcome is CallOutcome.HAPPENED, result.error
    return PopHandle(result.queue_offset, result.epoch, 0)


def bodies_of(popped: Sequence[PoppedMessage]) -> Bodies:
    return [each.message.body for each in popped]


def test_a_message_is_given_to_one_consumer_until_its_time_is_over() -> None:
    """Then to the next one, with the number of tries; once acknowledged, never again. Other groups
    are given it as well."""
    fleet = Fleet(1)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        loop = asyncio.get_running_loop()
        await send(sailor, [b"one", b"two", b"three"])
        first = await pop(sailor, limit=2)
        began_s = loop.time()
        assert bodies_of(first) == [b"one", b"two"]
        assert bodies_of(await pop(sailor)) == [b"three"]
        assert not await pop(sailor)
        assert bodies_of(await pop(sailor, group="audit")) == [b"one", b"two", b"three"]
        assert (await acknowledge(sailor, first[0].handle)).outcome is CallOutcome.HAPPENED
        again = await pop_all(sailor, 2)
        assert loop.time() - began_s >= INVISIBLE_MS / 1000 - 0.1
        assert bodies_of(again) == [b"two", b"three"]
        assert [(each.tries, each.message.queue_offset) for each in again] == [(1, 1), (1, 2)]
        late = await acknowledge(sailor, first[1].handle)
        assert late.outcome is CallOutcome.REFUSED
        assert "is not invisible" in late.error
        for each in again:
            assert (await acknowledge(sailor, each.handle)).outcome is CallOutcome.HAPPENED
        assert not await pop(sailor, wait_s=3 * INVISIBLE_MS / 1000)

    fleet.sail(scenario)


def test_a_consumer_that_waits_is_given_the_next_message() -> None:
    fleet = Fleet(2)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        waiting = asyncio.create_task(pop(sailor, wait_s=20.0))
        await asyncio.sleep(1)
        await send(sailor, [b"news"])
        assert bodies_of(await waiting) == [b"news"]

    fleet.sail(scenario)


def test_a_message_can_be_hidden_for_longer() -> None:
    """Its old handle counts no longer, its new one does."""
    fleet = Fleet(3)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        loop = asyncio.get_running_loop()
        await send(sailor, [b"slow", b"slower"])
        popped = await pop_all(sailor, 2)
        handles = [await hide(sailor, each.handle, 5 * INVISIBLE_MS) for each in popped]
        began_s = loop.time()
        assert (await acknowledge(sailor, popped[0].handle)).outcome is CallOutcome.REFUSED
        assert (await acknowledge(sailor, handles[0])).outcome is CallOutcome.HAPPENED
        assert bodies_of(await pop_all(sailor, 1)) == [b"slower"]
        assert loop.time() - began_s >= 5 * INVISIBLE_MS / 1000 - 0.1

    fleet.sail(scenario)


def test_the_next_master_knows_what_is_invisible() -> None:
    """It gives none of it too soon, nothing that was acknowledged, and the rest in time."""
    fleet = Fleet(4, "allack-min2")

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        bodies = [b"m%d" % n for n in range(8)]
        await send(sailor, bodies)
        popped = await pop(sailor, limit=6)
        for each in popped[:3]:
            assert (await acknowledge(sailor, each.handle)).outcome is CallOutcome.HAPPENED
        hidden = await hide(sailor, popped[3].handle, 60_000)
        await sailor.kill(old)
        await sailor.new_master(old)
        assert bodies_of(await pop(sailor, wait_s=1.0)) in (bodies[6:], [*bodies[4:6], *bodies[6:]])
        assert (await acknowledge(sailor, hidden)).outcome is CallOutcome.HAPPENED
        again = set(bodies_of(await pop_all(sailor, 2)))
        while not {*bodies[4:6]} <= again:
            again |= set(bodies_of(await pop_all(sailor, 1)))
        assert again <= {*bodies[4:]}

    fleet.sail(scenario)


def test_impossible_requests_are_refused_by_name() -> None:
    fleet = Fleet(6)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        consumer = sailor.client.consumer
        for group, limit, invisible_ms in (
            ("a\nb", 1, 1000),
            ("", 1, 1000),
            ("g" * 130, 1, 1000),
            (GROUP, 0, 1000),
            (GROUP, 1, 0),
        ):
            with pytest.raises(CALL_ERRORS, match="MESSAGE_ILLEGAL"):
                await consumer.pop(group, TOPIC, 0, limit, invisible_ms, 0.0)
        unknown = await acknowledge(sailor, PopHandle(7, 1, 0))
        assert unknown.outcome is CallOutcome.REFUSED
        for topic in ("%revive", "%pop:orders:g"):
            with pytest.raises(CALL_ERRORS):
                await sailor.client.topics.create(topic, 1)

    fleet.sail(scenario)


def test_what_is_not_acknowledged_comes_again_from_another_set() -> None:
    """While the master is away; what is acknowledged there is not given again when it returns."""
    there = 2  # the first queue of the other set
    fleet = Fleet(7, "switchless-escape", nodes={"broker": 4})

    async def scenario(sailor: Sailor) -> None:
        async def whole() -> bool:
            return (await sailor.cluster_state()).redundant

        await eventually(whole)
        await send(sailor, [b"one", b"two", b"three"])
        first = await pop(sailor, limit=2, wait_s=5.0)
        assert bodies_of(first) == [b"one", b"two"]
        done = await acknowledge(sailor, first[0].handle)
        assert done.outcome is CallOutcome.HAPPENED
        await asyncio.sleep(1)  # until the slave knows that all of it is confirmed
        await sailor.kill("broker-1")
        again = await pop(sailor, wait_s=10.0, queue=there)
        assert [(each.message.body, each.tries) for each in again] == [(b"two", 1)]
        done = await acknowledge(sailor, again[0].handle, there)
        assert done.outcome is CallOutcome.HAPPENED
        await sailor.start("broker-1")
        await eventually(whole)
        assert bodies_of(await pop(sailor, wait_s=5.0)) == [b"three"]
        assert not await pop(sailor, wait_s=1.0)

    fleet.sail(scenario)
