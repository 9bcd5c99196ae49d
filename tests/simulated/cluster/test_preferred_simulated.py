"""The mastership returns to a preferred broker (`preferredMaster`)."""

from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged

BEST = "broker-1"


def test_a_preferred_broker_that_died_twice_is_master_again_once() -> None:
    """After it was in the set for preferredStable, and not again before preferredPause is over."""
    fleet = Fleet(1, "preferred", {"preferredPause": 200_000})  # 20 s, here

    async def until_master_again(sailor: Sailor) -> float:
        if (await sailor.healthy()).masters[BROKER_SET] == BEST:
            await sailor.kill(BEST)
            await sailor.new_master(BEST)
            await sailor.start(BEST)
        other = (await sailor.healthy()).masters[BROKER_SET]
        assert other != BEST
        began_ns = fleet.world.now_ns
        assert (await sailor.new_master(other)).masters[BROKER_SET] == BEST
        return (fleet.world.now_ns - began_ns) / 1e9

    async def scenario(sailor: Sailor) -> None:
        await until_master_again(sailor)
        assert await until_master_again(sailor) > 15
        assert len(acknowledged(await sailor.send(50))) == 50

    fleet.sail(scenario)
    told = [row for n in (1, 2, 3) for row in fleet.events(f"controller-{n}", "election")]
    assert [row["trigger"] for row in told].count("preferred") == 2
