"""Flotilla without controllers: the configuration decides who is master, for good."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from simulated_fleet import (
    BROKER_SET,
    HOME,
    QUEUES,
    TOPIC,
    Fleet,
    Sailor,
    acknowledged,
    eventually,
)

from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.net.wire import Op, PullReply, PullRequest

MASTER, SLAVES = "broker-1", ("broker-2", "broker-3")


async def whole(sailor: Sailor) -> int:
    """Wait until all replicas are in step; return the epoch."""

    async def look() -> int:
        now = await sailor.cluster_state()
        return now.epochs[BROKER_SET] if now.redundant else 0

    return await eventually(look)


def reigns(fleet: Fleet) -> list[int]:
    """The epochs in which the master reigned, one after the other."""
    return [row["epoch"] for row in fleet.events(MASTER, "role") if row["role"] == "master"]


def test_the_first_broker_is_master_for_good() -> None:
    """While it is gone nothing is sent; it returns with all that it had, in its next epoch."""
    fleet = Fleet(1, "switchless-sync")

    async def scenario(sailor: Sailor) -> None:
        assert await whole(sailor) == 1
        first = acknowledged(await sailor.send(100))
        assert len(first) == 100
        await sailor.kill(MASTER)
        assert not acknowledged(await sailor.send(20))
        await sailor.start(MASTER)
        assert await whole(sailor) == 2
        second = acknowledged(await sailor.send(100))
        assert len(second) == 100
        assert first | second <= set(await sailor.read_all())

    fleet.sail(scenario)
    assert not fleet.nodes("controller")
    assert reigns(fleet) == [1, 2]
    roles = [row["role"] for slave in SLAVES for row in fleet.events(slave, "role")]
    assert set(roles) == {"slave"}


def test_slaves_are_read_while_the_master_is_gone() -> None:
    """Also by one that has started meanwhile."""
    fleet = Fleet(2, "switchless-sync", {"slaveReadEnable": True})

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        sent = acknowledged(await sailor.send(40))
        await asyncio.sleep(2)  # until slaves know that all of it is confirmed
        await sailor.kill(SLAVES[0])
        await sailor.kill(MASTER)
        await sailor.start(SLAVES[0])
        calls, address = sailor.client.calls, fleet.address(SLAVES[0])

        async def described() -> bool:
            with suppress(*CALL_ERRORS):
                return (await sailor.admin.describe(address))["role"] == "slave"
            return False

        assert await eventually(described)
        found = Counter[bytes]()
        for queue in range(QUEUES):
            packed = PullRequest(TOPIC, queue, 0, 32, 0).pack()
            pulled = PullReply.unpack(await calls.call(address, Op.PULL, packed, 1.0))
            found.update(message.body for message in pulled.messages)
        assert set(found) == sent

    fleet.sail(scenario)


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({}, False),  # a SYNC_MASTER that wants two copies
        ({"enableAutoInSyncReplicas": True}, True),  # as many as are in step
        ({"enableAutoInSyncReplicas": True, "minInSyncReplicas": 2}, False),
        ({"brokerRole": "ASYNC_MASTER"}, True),
    ],
)
def test_a_master_without_slaves(settings: dict[str, object], accepted: bool) -> None:
    """It appends nothing that it would wait for in vain (RIP-34)."""
    fleet = Fleet(3, "switchless-sync", settings)

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        for slave in SLAVES:
            await sailor.kill(slave)
        await asyncio.sleep(2)
        results = await sailor.send(10)
        assert len(acknowledged(results)) == (10 if accepted else 0)
        if not accepted:
            assert all("IN_SYNC_REPLICAS_NOT_ENOUGH" in r.error for r in results.values())
            assert not await sailor.read_all()

    fleet.sail(scenario)


def test_a_slave_cuts_what_its_master_has_lost() -> None:
    """The master's disk had not synced it. In RocketMQ the slave keeps its bytes."""
    fleet = Fleet(4, "switchless-async", {"flushIntervalCommitLog": 60_000})

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await sailor.send(100)
        await whole(sailor)
        await sailor.power_cut(MASTER)
        await asyncio.sleep(1)
        await sailor.power_on(MASTER)
        await whole(sailor)
        later = acknowledged(await sailor.send(100))
        assert len(later) == 100
        await whole(sailor)
        now = await sailor.cluster_state()
        ends = {now.detail[name]["maxOffset"] for name in (MASTER, *SLAVES)}
        assert len(ends) == 1
        assert later <= set(await sailor.read_all())

    fleet.sail(scenario)
    assert any(fleet.events(slave, "truncate") for slave in SLAVES)


def test_an_emptied_master_never_leads() -> None:
    """Its slaves would cut all that they have. Nameservers know that there was a master."""
    fleet = Fleet(5, "switchless-async", {"slaveReadEnable": True}, nodes={"nameserver": 1})

    async def scenario(sailor: Sailor) -> None:
        assert await whole(sailor) == 1
        await sailor.send(20)
        await whole(sailor)
        await sailor.kill(MASTER)
        fleet.empty(MASTER)
        await sailor.kill("nameserver-1")
        await sailor.start(MASTER)
        await asyncio.sleep(5)
        assert not fleet.events(MASTER, "halted")
        await sailor.start("nameserver-1")

        async def halted() -> bool:
            return bool(fleet.events(MASTER, "halted"))

        await eventually(halted)
        await asyncio.sleep(5)
        now = await sailor.cluster_state()
        assert "copy the store of a slave" in now.detail[MASTER]["needsOperator"]
        assert all(now.detail[slave]["maxOffset"] > 0 for slave in SLAVES)

    fleet.sail(scenario)
    assert reigns(fleet) == [1]


def test_an_epoch_is_on_the_disk_before_it_is_used() -> None:
    """A master that dies at the moment when it becomes one never has that epoch again."""
    fleet = Fleet(6, "switchless-sync")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        for number in range(10):
            before = len(reigns(fleet))
            await sailor.power_cut(MASTER)
            await sailor.power_on(MASTER)
            for _ in range(10_000):
                if len(reigns(fleet)) > before:
                    break
                await asyncio.sleep(0.0002)
            assert len(reigns(fleet)) == number + 2
        await whole(sailor)

    fleet.sail(scenario)
    assert reigns(fleet) == sorted(set(reigns(fleet)))


def test_a_damaged_number_stops_the_master() -> None:
    """With what to write there."""
    fleet = Fleet(7, "switchless-sync")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await sailor.kill(MASTER)
        fleet.aboard[MASTER].disk.put(f"{HOME}/store/life", b"\xff7")
        await sailor.start(MASTER)
        await asyncio.sleep(1)
        assert fleet.process(MASTER) is None

    fleet.sail(scenario)
    [*_, said] = fleet.latest[MASTER].error_lines
    assert "life is damaged" in said
    assert "write the largest epoch" in said


def test_the_nameservers_tell_where_the_master_is() -> None:
    """`MEMBER_GROUP` has the address for replication, and the newest epoch."""
    fleet = Fleet(8, "switchless-sync")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        asked = {"brokerName": BROKER_SET}
        nameserver = fleet.address("nameserver-1")
        reply = await sailor.client.calls.ask(nameserver, Op.MEMBER_GROUP, asked)
        assert reply["members"]["0"] == fleet.address(MASTER)
        assert reply["masterHaAddr"].endswith(":10912")
        assert reply["stateVersion"] == 1

    fleet.sail(scenario)


@pytest.mark.parametrize("epochs", [True, False])
def test_what_a_slave_holds_beyond_its_masters_end(epochs: bool) -> None:
    """Without epochs, as in RocketMQ, it counts as a copy of what the master writes there."""
    settings = {"switchlessEpochs": epochs, "flushIntervalCommitLog": 60_000}
    fleet = Fleet(9, "switchless-reference", settings)

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await sailor.send(100)
        await whole(sailor)
        await sailor.power_cut(MASTER)
        await sailor.power_on(MASTER)

        async def copied() -> bool:
            now = await sailor.cluster_state()
            return now.detail[MASTER] is not None and bool(now.detail[MASTER]["slaves"])

        await eventually(copied)
        assert len(acknowledged(await sailor.send(5))) == 5
        now = await sailor.cluster_state()
        end = now.detail[MASTER]["maxOffset"]
        beyond = [now.detail[slave]["maxOffset"] > end for slave in SLAVES]
        assert beyond == [not epochs] * 2

    fleet.sail(scenario)
