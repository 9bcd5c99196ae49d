"""A process belongs to one fault until that fault's healing was observed."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.contracts import PlannedFault
from harness.errors import NodeGone
from nemesis import carry_out, open_entries
from nemesis._plan import plan as _plan
from nemesis._process.victims import ProcessHold


def carried_out(
    world: Any, folder: Path, *faults: PlannedFault, later: Callable[[], None] | None = None
) -> None:
    """Carry out the faults; after 4 s something happens."""
    plan = _plan.load(_plan.dump(faults)).faults

    async def story(world: Any) -> None:
        if later:
            asyncio.get_running_loop().call_later(4.0, later)
        await carry_out(plan, world.bed, folder / "ledger", asyncio.Event(), Random(1), 0)

    world.run(story)


def slow_to_look_at(world: Any, node: str) -> None:
    """Whoever asks for its state waits longer than others wait before they aim again."""
    agent = world.agents[node]
    do = agent._do

    async def slowly(verb: str) -> None:
        await asyncio.sleep(0.2 if verb == "state" else 0)
        await do(verb)

    agent._do = slowly


@pytest.mark.parametrize("first", ["pause", "kill"])
@pytest.mark.parametrize("second", ["pause", "kill"])
def test_the_next_fault_waits_until_healing_was_seen(
    world: Any, tmp_path: Path, first: str, second: str
) -> None:
    """Both faults, and the healing of both, are seen, though both want the same node."""
    slow_to_look_at(world, "broker-1")
    faults = (PlannedFault(first, 1, 2, "broker-1"), PlannedFault(second, 2, 9, "broker-1"))
    carried_out(world, tmp_path, *faults)
    one, other = world.last(0), world.last(1)
    assert one["state"] == other["state"] == "installed"
    assert other["healed"]
    assert one["heal"] < one["healed"] <= other["applied"]


@pytest.mark.parametrize("target", ["broker-1", "master"])
def test_a_fault_without_targets_names_the_faults_that_hold_them(
    world: Any, tmp_path: Path, target: str
) -> None:
    """The reason is not that there is no node."""
    faults = (PlannedFault("kill", 1, 8, "broker-1"), PlannedFault("pause", 2, 3, target))
    carried_out(world, tmp_path, *faults)
    assert world.last(1)["state"] == "failed"
    why = json.loads(world.last(1)["observation"])["error"]
    assert why == "broker-1 had no process to spare: fault 0 (kill on broker-1) held it"


def test_a_fault_without_links_gives_that_reason(world: Any, tmp_path: Path) -> None:
    """The only master has none to itself."""
    carried_out(world, tmp_path, PlannedFault("loss", 1, 3, "master", {"from": "master"}))
    why = json.loads(world.last(0)["observation"])["error"]
    assert why == "there is no link between its targets"


def test_a_healing_that_fails_lets_go(world: Any, tmp_path: Path) -> None:
    """After its failed healing was observed, another fault may hold the node."""
    agent = world.agents["broker-1"]
    signal = agent.signal

    async def fails(name: str, number: int) -> None:
        if 2e9 < world.bed.now_ns() < 8e9:
            raise NodeGone("broker-1 did not answer")
        await signal(name, number)

    agent.signal = fails
    faults = (PlannedFault("pause", 1, 2, "broker-1"), PlannedFault("pause", 8, 9, "broker-1"))
    carried_out(world, tmp_path, *faults)
    assert world.last(0)["healed"] is None
    assert world.last(1)["healed"]


def test_letting_go_twice() -> None:
    """The second release takes nothing from the fault that holds it by then."""
    held: set[str] = set()
    one, other = ProcessHold(held, ["a", "b"]), ProcessHold(held, ["a"])
    one.take()
    one.release()
    other.take()
    one.release()
    assert held == {"a"}


KINDS = (
    *("kill", "pause", "clock", "restart"),
    *("starve-cpu", "starve-descriptors", "starve-memory"),
)
ROLLING = {"order": "rolling"}


@pytest.mark.parametrize(
    ("kind", "params"), [*((kind, {}) for kind in KINDS), ("restart", ROLLING)], ids=str
)
def test_an_exited_process_is_not_a_target(
    world: Any, tmp_path: Path, kind: str, params: Any
) -> None:
    """The fault was never in force: nothing is healed, no node is held, no alarm is raised."""
    world.agents["broker-1"].end(70)
    carried_out(world, tmp_path, PlannedFault(kind, 1, 30, "broker-1", params))
    row = world.last(0)
    assert (row["state"], row["applied"]) == ("failed", None)
    assert "broker-1 did not run" in json.loads(row["observation"])["error"]
    assert row["begin"] < row["healed"] < 2e9
    assert (world.alarms, world.log) == ([], [])
    assert open_entries(tmp_path / "ledger") == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_node_is_hit_though_another_has_exited(
    world: Any, tmp_path: Path, kind: str
) -> None:
    """In part, and only that part is held and healed."""
    world.agents["broker-1"].end(70)
    faults = (
        PlannedFault(kind, 1, 20, "broker-1, broker-2"),
        PlannedFault("pause", 5, 5, "broker-1"),
        PlannedFault("pause", 5, 5, "broker-2"),
    )

    def someone_starts_it() -> None:
        world.agents["broker-1"].process = "running"

    carried_out(world, tmp_path, *faults, later=someone_starts_it)
    assert [world.last(number)["state"] for number in range(3)] == [
        "partial",
        "installed",
        "failed",
    ]
    assert [bool(world.last(number)["healed"]) for number in range(3)] == [True] * 3
    assert "start broker-1" not in world.log
    assert world.alarms == []
    assert world.sound


@pytest.mark.parametrize("kind", ["pause", "clock", "starve-cpu"])
def test_a_process_that_exits_meanwhile_needs_no_healing(
    world: Any, tmp_path: Path, kind: str
) -> None:
    """What was done to a process is gone with it."""
    one = PlannedFault(kind, 1, 20, "broker-1", {"period_s": 0.02} if kind == "starve-cpu" else {})
    carried_out(world, tmp_path, one, later=partial(world.agents["broker-1"].end, 70))
    assert world.last(0)["state"] == "installed"
    assert world.last(0)["healed"]
    assert world.alarms == []
