"""A slave serves for its absent master (RIP-32): consumers, and special messages that are due. It
appends nothing."""

import asyncio
from collections import Counter

import pytest
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client import CallOutcome, SendResult
from clusters.flotilla.client.calls import CALL_ERRORS, CallRefused

MASTER, SLAVE = "broker-1", "broker-2"
GROUP = "readers"


def acting(fleet: Fleet, broker: str = SLAVE) -> list[bool]:
    """When the broker began and ended to serve for its master."""
    return [row["on"] for row in fleet.events(broker, "acting")]


async def whole(sailor: Sailor) -> None:
    async def look() -> bool:
        return (await sailor.cluster_state()).redundant

    await eventually(look)


async def commit(sailor: Sailor, offset: int) -> None:
    """Commit, as often as it takes."""

    async def attempt() -> bool:
        try:
            await sailor.client.consumer.commit(GROUP, TOPIC, 0, offset)
        except CALL_ERRORS:
            return False
        return True

    await eventually(attempt)


async def committed(sailor: Sailor) -> int:
    async def attempt() -> int | None:
        try:
            return await sailor.client.consumer.committed(GROUP, TOPIC, 0) + 1
        except CALL_ERRORS:
            return None

    return await eventually(attempt) - 1


async def absent(sailor: Sailor, fleet: Fleet) -> None:
    """End the master, and wait until a slave serves and clients know it."""
    await sailor.kill(MASTER)

    async def look() -> bool:
        return any(acting(fleet)[-1:]) and sailor.client.routes.place(TOPIC, 0) is not None

    await eventually(look)


def test_consumers_read_on_and_nothing_is_sent() -> None:
    """What was confirmed is read from the slave with the lowest id, and groups commit there."""
    fleet = Fleet(1, "switchless-acting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        sent = acknowledged(await sailor.send(60))
        await asyncio.sleep(2)  # until slaves know that all of it is confirmed
        await absent(sailor, fleet)
        before = (await sailor.cluster_state()).detail[SLAVE]
        assert before["acting"]
        assert sent <= set(await sailor.read_all())
        await commit(sailor, 5)
        assert await committed(sailor) == 5
        assert not acknowledged(await sailor.send(20))
        with pytest.raises(CallRefused):
            await sailor.client.topics.create("new", 4)
        with pytest.raises(CallRefused):
            await sailor.client.consumer.reset(GROUP, TOPIC, 0, 1)
        after = (await sailor.cluster_state()).detail[SLAVE]
        assert after["maxOffset"] == before["maxOffset"]
        await sailor.start(MASTER)
        await whole(sailor)
        later = acknowledged(await sailor.send(20))
        assert len(later) == 20
        assert sent | later <= set(await sailor.read_all())

    fleet.sail(scenario)
    assert acting(fleet) == [True, False]
    assert not acting(fleet, "broker-3")


@pytest.mark.parametrize(("skipped", "kept"), [(False, 9), (True, 3)])
def test_a_master_takes_back_what_was_committed(skipped: bool, kept: int) -> None:
    """Also from a slave that has started again meanwhile. RocketMQ's without pre-online forgets it
    (apache/rocketmq#1094)."""
    fleet = Fleet(2, "switchless-acting", {"skipPreOnline": skipped})

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await sailor.send(60)
        await commit(sailor, 3)
        await asyncio.sleep(2)  # until slaves have the commit, and know what is confirmed
        await absent(sailor, fleet)
        await commit(sailor, 9)
        await sailor.kill(SLAVE)
        await sailor.start(SLAVE)

        async def serves_again() -> bool:
            return acting(fleet) == [True, True]

        await eventually(serves_again)
        assert await committed(sailor) == 9
        await sailor.start(MASTER)
        await whole(sailor)
        assert await committed(sailor) == kept

    fleet.sail(scenario)


def test_a_master_waits_for_a_slave_that_served() -> None:
    """Until it answers, or the nameservers no longer know it."""
    fleet = Fleet(3, "switchless-acting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await sailor.send(60)
        await asyncio.sleep(2)
        await absent(sailor, fleet)
        await commit(sailor, 9)
        process = fleet.process(SLAVE)
        assert process is not None
        process.pause()
        await sailor.start(MASTER)

        async def asked() -> bool:
            return bool(fleet.events(MASTER, "preonline"))

        await eventually(asked)
        assert len(fleet.events(MASTER, "role")) == 1  # of its first start
        process.resume()
        await whole(sailor)
        assert await committed(sailor) == 9

    fleet.sail(scenario)
    assert [row["done"] for row in fleet.events(MASTER, "preonline")][-1]


def test_a_master_alone_in_its_set_starts_at_once() -> None:
    """No nameserver knows a slave, so there is nothing to take back."""
    fleet = Fleet(4, "switchless-acting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        for broker in (MASTER, SLAVE, "broker-3"):
            await sailor.kill(broker)

        async def forgotten() -> bool:
            now = await sailor.cluster_state()
            return not now.detail["nameserver-1"]["brokers"].get(BROKER_SET)

        await eventually(forgotten)
        await sailor.start(MASTER)

        async def serves() -> bool:
            return bool(acknowledged(await sailor.send(1)))

        await eventually(serves)

    fleet.sail(scenario)
    assert not [row for row in fleet.events(MASTER, "preonline") if row["done"]]


@pytest.mark.parametrize(
    ("profile", "nodes", "acting_node"),
    [("switchless-escape", {"broker": 4}, "broker-2"), ("container-cross", {}, "container-2")],
)
def test_delayed_messages_escape_to_another_set(
    profile: str, nodes: dict[str, int], acting_node: str
) -> None:
    """To the other set's master, in the same process or elsewhere, while the own one is away. The
    slave's log stays as it is, and the master does not put them again when it returns."""
    fleet = Fleet(5, profile, nodes=nodes)
    bodies = {b"late %d" % number for number in range(20)}
    stopped = {"container-2": "container-1"}.get(acting_node, MASTER)

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        accepted = set[bytes]()
        for body in sorted(bodies):

            def done(result: SendResult, body: bytes = body) -> None:
                if result.outcome is CallOutcome.HAPPENED:
                    accepted.add(body)

            sailor.client.producer.send_delayed(TOPIC, 0, b"k", body, 5000, done)

        async def all_accepted() -> bool:
            return accepted == bodies

        await eventually(all_accepted)
        await asyncio.sleep(2)  # until slaves know that all of it is confirmed
        before = fleet.events(acting_node, "escaped")
        await sailor.kill(stopped)

        async def escaped() -> bool:
            rows = fleet.events(acting_node, "escaped")
            return sum(len(row["records"]) for row in rows if not row["status"]) == len(bodies)

        await eventually(escaped)
        assert not before
        await sailor.start(stopped)
        await whole(sailor)
        await asyncio.sleep(2)  # in which a scan would put what it has to
        assert Counter(await sailor.read_all()) == Counter(bodies)

    fleet.sail(scenario)
    assert {row["to"] for row in fleet.events(acting_node, "escaped")} == {"set-2"}
