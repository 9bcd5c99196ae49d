"""Masters that serve only while their lease lasts (`enableMasterLease`)."""

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.net.wire import Status

CONTROLLERS = ("controller-1", "controller-2", "controller-3")


@pytest.mark.parametrize("kind", ["dledger", "jraft"])
def test_a_master_without_controllers_refuses_sends(kind: str) -> None:
    """When its lease is over, and until they grant it one again; it stays the master."""
    fleet = Fleet(1, "leases", {"controllerType": kind})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        first = acknowledged(await sailor.send(50))
        assert len(first) == 50
        for name in CONTROLLERS:
            await sailor.kill(name)

        async def refused() -> bool:
            results = await sailor.send(1)
            return any("lease is over" in result.error for result in results.values())

        assert await eventually(refused)
        assert not acknowledged(await sailor.send(20))
        for name in CONTROLLERS:
            await sailor.start(name)
        assert (await sailor.healthy()).masters[BROKER_SET] == master

        async def served() -> bool:
            return bool(acknowledged(await sailor.send(1)))

        assert await eventually(served)
        assert len(acknowledged(await sailor.send(50))) == 50
        assert first <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_an_operator_elects_no_other_master_within_the_lease() -> None:
    """A handover moves it at once, with all sends; the new master has a lease of its own."""
    fleet = Fleet(2, "leases")

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        described = (await sailor.cluster_state()).detail
        ids = {name: described[name]["controllerBrokerId"] for name in fleet.nodes("broker")}
        other = next(name for name in ids if name != old)
        refused = await sailor.admin.elect_master(BROKER_SET, ids[other])
        assert refused["code"] == Status.ELECT_MASTER_FAILED
        assert "the master's lease lasts for" in refused["remark"]
        assert (await sailor.cluster_state()).masters[BROKER_SET] == old
        await sailor.admin.drill(BROKER_SET, ids[other])
        assert (await sailor.new_master(old)).masters[BROKER_SET] == other
        assert len(acknowledged(await sailor.send(50))) == 50

    fleet.sail(scenario)


def test_a_master_that_died_is_replaced_before_its_lease_is_over() -> None:
    """Its process is known to have ended. One whose host is off is not, and takes longer."""
    fleet = Fleet(3, "leases")

    async def replaced_within_s(sailor: Sailor, *, power: bool) -> float:
        old = (await sailor.healthy()).masters[BROKER_SET]
        await (sailor.power_cut if power else sailor.kill)(old)
        began_ns = fleet.world.now_ns
        await sailor.new_master(old)
        took_s = (fleet.world.now_ns - began_ns) / 1e9
        await (sailor.power_on if power else sailor.start)(old)
        return took_s

    async def scenario(sailor: Sailor) -> None:
        assert await replaced_within_s(sailor, power=False) < 1.0
        assert await replaced_within_s(sailor, power=True) >= 1.8

    fleet.sail(scenario)


def test_a_new_leader_of_the_controllers_waits_for_the_lease() -> None:
    """It does not know what the former leader granted."""
    fleet = Fleet(4, "leases")

    async def scenario(sailor: Sailor) -> None:
        for _ in range(3):
            now = await sailor.healthy()
            old, leader = now.masters[BROKER_SET], now.controller_leader
            assert leader
            await sailor.power_cut(old)
            await sailor.kill(leader)
            led_ns = fleet.world.now_ns
            await sailor.new_master(old)
            assert fleet.world.now_ns - led_ns >= 2e9
            await sailor.start(leader)
            await sailor.power_on(old)

    fleet.sail(scenario)
