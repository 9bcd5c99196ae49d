"""A cluster in two rooms: copies in both (`ackZones`), routes by zone, and closed zones."""

import asyncio

import pytest
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client import SendResult
from clusters.flotilla.net.wire import Json

A, B = ("broker-1", "broker-2"), "broker-3"


def two_rooms(seed: int) -> Fleet:
    fleet = Fleet(seed, "two-rooms")
    for name, zone in ((A[0], "a"), (A[1], "a"), (B, "b")):
        fleet.reconfigure(name, zone=zone)
    return fleet


async def lead_from_room_a(sailor: Sailor) -> str:
    master = (await sailor.healthy()).masters[BROKER_SET]
    if master == B:
        await sailor.admin.drill(BROKER_SET)
        master = (await sailor.new_master(B)).masters[BROKER_SET]
        await sailor.healthy()
    assert master in A
    return master


def test_nothing_is_acknowledged_in_one_room() -> None:
    """While the other room is gone sends are refused, and its member stays in the set."""
    fleet = two_rooms(1)

    async def scenario(sailor: Sailor) -> None:
        master = await lead_from_room_a(sailor)
        first = acknowledged(await sailor.send(50))
        assert len(first) == 50
        await sailor.kill(B)

        async def out_of_step() -> Json | None:
            now = (await sailor.cluster_state()).detail[master]
            return now if len(now["slaves"]) == 1 else None

        await eventually(out_of_step)
        results = await sailor.send(20)
        assert not acknowledged(results)
        assert any("IN_SYNC_REPLICAS_NOT_ENOUGH" in r.error for r in results.values())
        now = (await sailor.cluster_state()).detail[master]
        assert len(now["set"]) == 3
        await sailor.start(B)
        await sailor.healthy()
        second = acknowledged(await sailor.send(50))
        assert len(second) == 50
        assert first | second <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_the_other_room_goes_on_with_all_that_was_acknowledged() -> None:
    """The only broker there is elected when both of room a are gone. It acknowledges nothing alone,
    and has all when they return with empty disks."""
    fleet = two_rooms(2)

    async def scenario(sailor: Sailor) -> None:
        await lead_from_room_a(sailor)
        sent = acknowledged(await sailor.send(50))
        assert len(sent) == 50
        for name in A:
            await sailor.kill(name)

        async def elected() -> bool:
            return (await sailor.cluster_state()).masters.get(BROKER_SET) == B

        await eventually(elected)
        assert not acknowledged(await sailor.send(10))
        for name in A:
            fleet.empty(name)
            await sailor.start(name)
        await sailor.healthy()
        assert len(acknowledged(await sailor.send(20))) == 20
        assert sent <= set(await sailor.read_all())

    fleet.sail(scenario)


def two_sets(seed: int, **client: object) -> Fleet:
    """Two sets, each with a broker in room a and one in b."""
    fleet = Fleet(seed, "allack-min1", {"brokerSets": 2}, nodes={"broker": 4, "controller": 3})
    for number in (1, 2, 3, 4):
        fleet.reconfigure(f"broker-{number}", zone="ab"[number % 2 == 0])
    fleet.client_settings = {**fleet.client_settings, **client}
    return fleet


def zone_of(broker: str) -> str:
    return "ab"[int(broker.removeprefix("broker-")) % 2 == 0]


async def lead(sailor: Sailor, name: str, zone: str) -> None:
    """Have the set's master in a zone."""
    if zone_of((await sailor.healthy()).masters[name]) != zone:
        await sailor.admin.drill(name)
        await sailor.healthy()


async def sent_to(sailor: Sailor) -> set[str]:
    """Send to queues that the client selects; return the zones of the brokers that answered."""
    name_of = {sailor.fleet.address(f"broker-{n}"): f"broker-{n}" for n in (1, 2, 3, 4)}
    results: list[SendResult] = []
    for _ in range(8):
        sailor.client.producer.send(TOPIC, None, b"k", b"body", results.append)

    async def all_ended() -> bool:
        return len(results) == 8

    await eventually(all_ended)
    assert {result.error for result in results} == {""}
    return {zone_of(name_of[result.address]) for result in results}


@pytest.mark.parametrize("beside", [2, 3, 4])
def test_the_next_master_is_in_the_same_rack(beside: int) -> None:
    """With `electPolicy = "zone"`. Each of the other brokers shares the old master's rack once, so
    a choice without racks would fail for two of them."""
    racks = {f"broker-{n}": "r1" if n in (1, beside) else "r2" for n in (1, 2, 3, 4)}
    fleet = Fleet(6, "allack-min2", {"electPolicy": "zone", "racks": racks}, nodes={"broker": 4})

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        await sailor.send(20)
        await asyncio.sleep(1)  # until all logs are as long in heartbeats
        await sailor.kill(old)
        new = (await sailor.new_master(old)).masters[BROKER_SET]
        assert racks[new] == racks[old]

    fleet.sail(scenario)


def test_a_client_sends_to_its_zone_as_long_as_a_set_is_led_there() -> None:
    """Then to the other one, and to its own again as soon as there is a master in it."""
    fleet = two_sets(3, zoneMode=True, zoneName="a")

    async def until_sent_to(sailor: Sailor, *zones: str) -> None:
        async def only() -> bool:
            return await sent_to(sailor) == set(zones)

        await eventually(only)

    async def scenario(sailor: Sailor) -> None:
        await lead(sailor, "set-1", "a")
        await lead(sailor, "set-2", "b")
        await until_sent_to(sailor, "a")
        assert (await sailor.admin.drill_zone("a"))["left"] == {}
        await until_sent_to(sailor, "b")
        await sailor.admin.return_zone("a")
        await lead(sailor, "set-1", "a")
        await until_sent_to(sailor, "a")
        assert len(set(sailor.client.routes.masters())) == 2, "consumers reach both"

    fleet.sail(scenario)


def test_a_closed_zone_has_no_master_until_it_is_returned() -> None:
    """Not when the only other broker dies, nor when brokers and controllers restart."""
    fleet = two_sets(4)

    async def masters(sailor: Sailor) -> dict[str, str]:
        return dict((await sailor.cluster_state()).masters)

    async def scenario(sailor: Sailor) -> None:
        await lead(sailor, "set-1", "a")
        await lead(sailor, "set-2", "a")
        sending = asyncio.ensure_future(sailor.send(100))
        reply = await sailor.admin.drill_zone("a")
        assert (len(reply["masters"]), reply["left"]) == (2, {})
        assert len(acknowledged(await sending)) == 100, "no send fails in a drill"
        await sailor.healthy()
        for name in [*fleet.nodes("controller"), "broker-1"]:
            await sailor.kill(name)
        for name in [*fleet.nodes("controller"), "broker-1"]:
            await sailor.start(name)
        now = await sailor.healthy()
        assert {zone_of(name) for name in now.masters.values()} == {"b"}
        refused = await sailor.admin.drill("set-1")
        assert "outside the closed zones (a)" in refused["remark"]
        await sailor.kill(now.masters["set-1"])

        async def headless() -> bool:
            return "set-1" not in await masters(sailor)

        await eventually(headless)
        for _ in range(3):
            await sailor.admin.sync_state_data()
        assert "set-1" not in await masters(sailor)
        await sailor.admin.return_zone("a")

        async def led_in_a() -> bool:
            return (await masters(sailor)).get("set-1") == "broker-1"

        await eventually(led_in_a)

    fleet.sail(scenario)
    rows = [row for name in fleet.nodes("controller") for row in fleet.events(name, "zone")]
    assert {(row["zone"], row["closed"]) for row in rows} == {("a", True), ("a", False)}
