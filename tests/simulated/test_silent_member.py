"""A slave that replicates, and that the controllers do not hear, holds no other one in the set."""

import pytest
from quorum_stage import Stage
from simulated_fleet import Fleet, Sailor, eventually

from clusters.flotilla.wire import Status


@pytest.mark.parametrize("member", [True, False])
def test_the_dead_leave_beside_one_that_the_controllers_do_not_hear(member: bool) -> None:
    """Whether that one is in the set, or would come in with the same change: it is in step, and
    sends are acknowledged again."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        silent, dying = stage.slaves
        with stage.parted((silent,), stage.controllers):
            if not member:
                with stage.parted((silent,), [stage.master]):
                    await stage.until_members(stage.master, dying)
            number = (await stage.describe(silent))["controllerBrokerId"]

            async def taken_for_dead() -> bool:
                told = [row for c in stage.controllers for row in stage.fleet.events(c, "expired")]
                return any(row["brokerId"] == number for row in told)

            async def may_not_enter() -> bool:
                return bool(stage.fleet.events(stage.master, "set-refused"))

            await eventually(taken_for_dead if member else may_not_enter)
            await sailor.kill(dying)

            async def acknowledged() -> bool:
                return (await stage.send()).status is Status.SUCCESS

            await eventually(acknowledged)
            left = {stage.master, silent} if member else {stage.master}
            await stage.until_members(*left)

    Fleet(3, profile="allack-min1").sail(scenario)
