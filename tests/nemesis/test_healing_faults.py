"""Healing in memory and virtual time: failures are retried, and reported if they persist."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from carried import carried_out, planned

from harness.contracts import PlannedFault
from harness.errors import BedFailed
from nemesis import carry_out, open_entries

S = 1_000_000_000
ISOLATED = {"shape": "isolate"}


def fails_at(world: Any, node: str, verb: str, at_s: float, times: int) -> None:
    """From then on the agent fails at this verb, so often."""
    agent, left = world.agents[node], [None] * times
    do = agent._do

    async def failing(called: str) -> None:
        if called == verb and world.bed.now_ns() >= at_s * S and left:
            left.pop()
            raise BedFailed(f"the agent of {node} has much to do")
        await do(called)

    agent._do = failing


@pytest.mark.parametrize(
    ("one", "verb"),
    [
        (PlannedFault("partition", 1.0, 5.0, "broker-1", ISOLATED), "links"),
        (PlannedFault("pause", 1.0, 5.0, "broker-1"), "signal"),
    ],
    ids=["partition", "pause"],
)
def test_a_healing_that_fails_is_tried_again(
    world: Any, tmp_path: Path, one: PlannedFault, verb: str
) -> None:
    """After 0.1, 0.5 and 2 s; the fourth attempt succeeds, and no alarm is raised."""
    fails_at(world, "broker-1", verb, 5.0, times=3)
    ledger = carried_out(world, planned(one), tmp_path)
    row = world.last(0)
    assert row["healed"] - row["heal"] == pytest.approx(2.6 * S, abs=0.1 * S)
    assert json.loads(row["observation"])["healing"]["state"] == "installed"
    assert world.alarms == []
    assert world.sound
    assert open_entries(ledger) == ()


def test_what_could_not_be_applied_is_undone_at_once(world: Any, tmp_path: Path) -> None:
    """A part of it proves nothing, and the nodes that were hit are healed at once."""
    fails_at(world, "broker-2", "signal", 0.0, times=1)
    carried_out(world, planned(PlannedFault("kill", 1.0, 50.0, "broker-1, broker-2")), tmp_path)
    row = world.last(0)
    assert (row["state"], row["applied"]) == ("failed", None)
    assert row["healed"]
    assert row["heal"] < 1.1 * S
    assert world.log == ["start broker-1"]
    assert world.sound


def test_a_node_stays_its_faults_until_that_was_tried_often_enough(
    world: Any, tmp_path: Path
) -> None:
    """Another fault does not get hold of what is being healed, to be undone with it."""
    fails_at(world, "broker-1", "signal", 3.0, times=3)
    plan = planned(
        PlannedFault("pause", 1.0, 2.0, "broker-1"), PlannedFault("pause", 2.5, 9.0, "broker-1")
    )
    carried_out(world, plan, tmp_path)
    first, second = world.last(0), world.last(1)
    assert first["healed"] <= second["applied"]
    assert (first["state"], second["state"]) == ("installed", "installed")
    assert world.sound


def test_a_failed_healing_raises_an_alarm_and_delays_no_other(world: Any, tmp_path: Path) -> None:
    """`healed` stays empty, the ledger keeps the entry open, and the others are healed before
    that one is tried again."""
    plan = planned(
        PlannedFault("kill", 1.0, 50.0, "broker-2"),
        PlannedFault("partition", 2.0, 50.0, "broker-1", ISOLATED),
    )

    async def lose_the_agent(stop: asyncio.Event) -> None:
        await asyncio.sleep(5.0)
        world.agents["broker-1"].broken.add("links")
        stop.set()

    ledger = carried_out(world, plan, tmp_path, lose_the_agent)
    kill, cut = world.last(0), world.last(1)
    assert kill["healed"], "whatever becomes of the cut"
    assert kill["heal"] < 5.1 * S
    assert (cut["state"], cut["healed"]) == ("installed", None)
    why = "the agent of broker-1 is gone"
    assert json.loads(cut["observation"])["healing"]["error"] == why
    assert world.alarms == [f"NOT HEALED: fault 1 (partition on broker-1): {why}"]
    assert [entry.kind for entry in open_entries(ledger)] == ["partition"]


def test_a_mistake_of_ours_in_one_healing_does_not_end_the_others(
    world: Any, tmp_path: Path
) -> None:
    """All others are healed; then the error is raised."""
    plan = planned(
        PlannedFault("kill", 1.0, 50.0, "broker-2"),
        PlannedFault("partition", 2.0, 50.0, "broker-1", ISOLATED),
    )
    agent = world.agents["broker-1"]

    async def story(world: Any) -> None:
        stop = asyncio.Event()
        work = asyncio.ensure_future(
            carry_out(plan, world.bed, tmp_path / "ledger", stop, Random(1), 0)
        )
        await asyncio.sleep(5.0)
        agent.links = None
        stop.set()
        with pytest.raises(TypeError):
            await work

    world.run(story)
    assert world.last(0)["healed"]
    alarm = "NOT HEALED: fault 1 (partition on broker-1): Seatrial itself failed at "
    assert world.alarms[0].startswith(alarm)
    assert "timing.py:" in world.alarms[0]
    assert "TypeError" in world.alarms[0]


def test_healing_that_was_broken_off_is_recorded(world: Any, tmp_path: Path) -> None:
    """Nobody may take such a fault for one that was undone."""
    agent = world.agents["broker-1"]
    links = agent.links

    async def endless(rules: Any) -> None:
        await links(rules)
        await asyncio.sleep(0 if rules else 1e6)

    async def story(world: Any) -> None:
        agent.links = endless
        plan = planned(PlannedFault("partition", 1.0, 2.0, "broker-1", ISOLATED))
        stop = asyncio.Event()
        work = asyncio.ensure_future(
            carry_out(plan, world.bed, tmp_path / "ledger", stop, Random(1), 0)
        )
        for _ in range(2):  # the second time it is the last healing that is broken off
            await asyncio.sleep(5.0)
            work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    world.run(story)
    healing = json.loads(world.last(0)["observation"])["healing"]
    assert healing["error"] == "its undoing was broken off"


@pytest.mark.parametrize("dies_with_the_run", [True, False])
@pytest.mark.parametrize(
    "one",
    [
        PlannedFault("kill", 2.0, 5.0, "broker"),
        PlannedFault("pause", 2.0, 5.0, "broker"),
        PlannedFault("partition", 2.0, 5.0, "broker-2", ISOLATED),
    ],
    ids=lambda one: one.kind,
)
def test_a_node_that_is_gone_delays_no_other_healing(
    world: Any, tmp_path: Path, one: PlannedFault, dies_with_the_run: bool
) -> None:
    """The rest is healed. The fault on that node is closed, unless the node may come back."""
    world.bed.hosts.shares_files = dies_with_the_run
    victim = world.agents["broker-2"]

    async def lose(stop: asyncio.Event) -> None:
        await asyncio.sleep(4.0)
        victim.gone = True
        stop.set()

    ledger = carried_out(world, planned(one), tmp_path, lose)
    others = [agent for agent in world.agents.values() if agent is not victim]
    assert all(agent.process == "running" and not agent.rules for agent in others)
    assert world.last(0)["healed"] is None
    assert "broker-2 is gone" in json.loads(world.last(0)["observation"])["healing"]["error"]
    assert [entry.id for entry in open_entries(ledger)] == ([] if dies_with_the_run else [0])


def test_a_cut_that_another_fault_is_just_lifting_spoils_no_look(
    world: Any, tmp_path: Path
) -> None:
    """What is wanted changed already, and the old rules were still in force when it was looked
    for."""
    agent = world.agents["controller-1"]
    install = agent.links

    async def slowly(rules: Any) -> None:
        await asyncio.sleep(0.02)
        await install(rules)

    agent.links = slowly
    loss = PlannedFault("loss", 1.0, 5.0, "controller-1", {"probability": 0.8})
    cut = PlannedFault("partition", 1.0, 5.015, "broker-1", {**ISOLATED, "direction": "out"})
    carried_out(world, planned(loss, cut), tmp_path)
    healing = json.loads(world.last(0)["observation"])["healing"]
    assert (healing["state"], world.alarms) == ("installed", [])
