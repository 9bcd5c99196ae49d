"""A client of several broker sets, in a simulated world (spec 10.1, 10.3, 10.4)."""

import asyncio
from contextlib import suppress

import pytest
from simulated_fleet import TOPIC, Fleet, Sailor, eventually

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient
from clusters.flotilla.client.calls import CALL_ERRORS, CallRefused, outcome_of_failure
from clusters.flotilla.net.connection import Unreachable
from clusters.flotilla.net.wire import Op


def two_sets() -> Fleet:
    """Of two brokers each."""
    return Fleet(3, settings={"brokerSets": 2, "strictMetadata": True}, nodes={"broker": 4})


async def heard_of_masters(sailor: Sailor, *sets: str) -> None:
    """Wait until the client knows the masters of these sets and no others."""

    async def known() -> bool:
        return tuple(await sailor.client.calls.masters()) == sets

    await eventually(known)


def test_a_topic_is_ordered_of_every_set_or_of_none() -> None:
    """A set without a master would not make the topic, or would keep it: so nothing is ordered, and
    the caller gets a definite failure."""

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        topics, controllers = sailor.client.topics, sailor.fleet.nodes("controller")
        await topics.create("old", 4)
        for name in (*controllers, now.masters["set-2"]):
            await sailor.kill(name)
        await heard_of_masters(sailor, "set-1")
        for order in (topics.create("new", 4), topics.delete("old")):
            with pytest.raises(Unreachable, match="no master is known of set-2"):
                await order
        assert await topics.list_queues() == {TOPIC: 2, "old": 2}, "set-1 was asked for nothing"
        for name in (*controllers, now.masters["set-2"]):
            await sailor.start(name)
        await heard_of_masters(sailor, "set-1", "set-2")
        for name, queues in (("new", 5), ("one", 1)):
            await topics.create(name, queues)
        assert await topics.list_queues() == {TOPIC: 4, "old": 4, "new": 5, "one": 1}
        await topics.delete("one")
        assert "one" not in await topics.list_queues()

    two_sets().sail(scenario)


def test_an_order_that_only_one_set_took_is_given_again() -> None:
    """The other died without an answer: the outcome is unknown, and repeating it completes it."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        topics = sailor.client.topics
        await sailor.client.calls.all_masters()
        for name in ("broker-3", "broker-4"):
            await sailor.kill(name)
        with pytest.raises(CallRefused, match="it is done on another set, but not here") as half:
            await topics.create("new", 4)
        assert outcome_of_failure(half.value) is CallOutcome.UNKNOWN
        for name in ("broker-3", "broker-4"):
            await sailor.start(name)
        await sailor.healthy()

        async def again() -> bool:
            with suppress(*CALL_ERRORS):
                await topics.create("new", 4)
                return True
            return False

        await eventually(again)
        assert (await topics.list_queues())["new"] == 4

    two_sets().sail(scenario)


def test_members_of_a_group_believe_the_same_set() -> None:
    """set-2 knows a member that set-1 does not: queues are assigned as set-1 says. Once set-1 is
    gone, set-2 knows all members, since all sets are informed, whichever answers."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        masters = await sailor.client.calls.all_masters()
        ghost = {"group": "g", "client": "0", "topics": [TOPIC]}
        members = [sailor.client.member("g", name, {TOPIC: 4}) for name in ("a", "b")]
        for member in members:
            member.start()

        async def shared() -> bool:
            await sailor.client.calls.ask(masters["set-2"], Op.GROUP_HEARTBEAT, ghost)
            return len({queue for member in members for queue in member.queues}) == 4

        await eventually(shared)
        await asyncio.sleep(2.0)
        assert await shared()
        for name in ("broker-1", "broker-2"):
            await sailor.kill(name)
        members[1].close()

        async def taken_over() -> bool:
            return len(members[0].queues) == 4

        await eventually(taken_over)
        members[0].close()

    two_sets().sail(scenario)


def test_a_topic_that_one_set_has_lost_already_is_deleted() -> None:
    """An order that only one set has carried out is repeated until it is done; what no set has is
    refused."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        client = sailor.client
        await client.topics.create("old", 4)
        masters = await client.calls.all_masters()
        await client.calls.ask(masters["set-1"], Op.TOPIC_DELETE, {"topic": "old"})
        await client.topics.delete("old")
        assert "old" not in await client.topics.list_queues()
        with pytest.raises(CallRefused, match="TOPIC_NOT_EXIST"):
            await client.topics.delete("old")

    two_sets().sail(scenario)


def test_queues_have_the_same_numbers_for_a_client_that_starts_late() -> None:
    """The nameserver has forgotten the first set: its queues have no place, and those of the other
    set keep their numbers."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        for name in ("broker-1", "broker-2"):
            await sailor.kill(name)
        late = ClusterClient(ClientSettings.of(sailor.fleet.client_settings))
        nameserver = sailor.fleet.address("nameserver-1")

        async def forgotten() -> bool:
            route = await sailor.client.calls.ask(nameserver, Op.ROUTE, {"topic": TOPIC})
            return list(route["brokers"]) == ["set-2"]

        assert await eventually(forgotten)
        late.start()
        place = await late.calls.place(TOPIC, 2)
        assert (place.broker_name, place.queue, place.number) == ("set-2", 0, 2)
        with pytest.raises(Unreachable, match="no master is known for orders-0"):
            await late.calls.place(TOPIC, 0)
        late.close()

    two_sets().sail(scenario)
