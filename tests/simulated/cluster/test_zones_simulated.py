"""A cluster in two rooms that waits for copies in both (`ackZones`)."""

from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

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
