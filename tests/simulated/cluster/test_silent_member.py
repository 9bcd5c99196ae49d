"""A slave that replicates, and that the controllers do not hear, keeps no other slave in the set or
out of it.
"""

import pytest
from quorum_stage import Stage
from simulated_fleet import Fleet, Sailor, eventually

from clusters.flotilla.net.wire import Status
from clusters.flotilla.replication.sync_state import NewcomerQueue


@pytest.mark.parametrize("member", [True, False])
def test_the_dead_leave_beside_one_that_the_controllers_do_not_hear(member: bool) -> None:
    """Whether that one is in the set or would enter with the same change: it is in step, and sends
    are acknowledged again."""

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


def test_others_enter_beside_one_that_the_controllers_do_not_hear() -> None:
    """Both slaves of a lone master are ready, and one of them may not enter: the other one does."""

    async def scenario(sailor: Sailor) -> None:
        stage = await Stage.of(sailor)
        silent, other = stage.slaves

        async def may_not_enter() -> bool:
            return bool(stage.fleet.events(stage.master, "set-refused"))

        with stage.parted((silent,), stage.controllers):
            with stage.parted((silent,), [stage.master]):
                await stage.until_members(stage.master, other)
            await eventually(may_not_enter)
            await sailor.kill(other)
            await stage.until_members(stage.master)
            await sailor.start(other)
            await stage.until_members(stage.master, other)
            assert (await stage.send()).status is Status.SUCCESS
        await stage.until_members(stage.master, silent, other)

    Fleet(3, profile="allack-min2").sail(scenario)


def test_whose_turn_it_is() -> None:
    """All together, until a refusal; then whoever was not refused, and at last one at a time."""
    newcomers = NewcomerQueue()
    assert newcomers.next_proposed([2, 3]) == [2, 3]
    newcomers.refuse([2, 3])
    assert newcomers.next_proposed([2, 3, 4, 5]) == [4, 5]
    assert newcomers.next_proposed([2, 3]) == [2]
    newcomers.refuse([2])
    assert newcomers.next_proposed([2, 3]) == [3]
    assert newcomers.next_proposed([2]) == [2]
    newcomers.admit([1, 3])
    newcomers.refuse([2])
    assert newcomers.next_proposed([2, 3]) == [3]
    assert newcomers.next_proposed([]) == []
