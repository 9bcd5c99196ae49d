"""A set whose only member lost its disk: this does not become final by accident, and there is a way
out.
"""

import asyncio

import pytest
from quorum_stage import Stage
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.net.wire import Json, Op, Status

NEVER_ELECTED_S = 5.0  # of the virtual clock, and a tenth of all times


async def known(sailor: Sailor) -> Json:
    rows: Json = (await sailor.admin.sync_state_data(BROKER_SET))[BROKER_SET]
    return rows


async def cleaned(sailor: Sailor, broker_id: int, *, living: bool) -> Json:
    fields = {"brokerName": BROKER_SET, "brokerIds": [broker_id], "cleanLiving": living}
    return await sailor.admin.order(Op.CLEAN_BROKER_DATA, fields)


async def elected(stage: Stage) -> str:
    """Return the new master, at the moment of its election, when its set has no other member."""
    while True:
        for name in stage.slaves:
            if any(row["role"] == "master" for row in stage.fleet.events(name, "role")):
                return name
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
def test_the_last_member_is_forgotten_only_where_others_may_be_elected(flavour: str) -> None:
    """Its disk is gone, and with it the only broker that may be elected: removing it is refused
    with a hint, which gives the set a master again, and then the dead one can be removed."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        sent = acknowledged(await sailor.send(20))
        await stage.abreast()
        await sailor.kill(stage.master)
        wiped = await elected(stage)
        number = (await stage.describe(wiped))["controllerBrokerId"]
        await sailor.kill(wiped)
        stage.fleet.empty(wiped)
        await sailor.start(stage.master)
        await sailor.start(wiped)
        await asyncio.sleep(NEVER_ELECTED_S)
        stuck = await known(sailor)
        assert (stuck["masterId"], stuck["set"]) == (None, [number])
        for living in (False, True):
            refused = await cleaned(sailor, number, living=living)
            assert refused["code"] == Status.INVALID_CLEAN_BROKER_METADATA
            assert "enableElectUncleanMaster = true" in refused["remark"]
        for controller in stage.controllers:
            stage.fleet.reconfigure(controller, enableElectUncleanMaster=True)
            await sailor.kill(controller)
            await sailor.start(controller)
        await sailor.healthy()
        assert number not in (await known(sailor))["set"]

        async def forgotten() -> bool:
            return (await cleaned(sailor, number, living=False))["code"] == Status.SUCCESS

        await eventually(forgotten)
        assert sent <= set(await sailor.read_all())

    Fleet(3, settings={"controllerType": flavour}).sail(scenario)
