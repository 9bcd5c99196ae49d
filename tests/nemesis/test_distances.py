"""Delays between zones in a world in memory and virtual time, and trials that cannot have them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.cli.options import Latency
from harness.contracts import LinkRule, PlannedFault
from harness.errors import BadRequest, BedFailed, UnknownName
from harness.trial import Trial
from harness.zones import assign_zones, distances
from nemesis import carry_out, delay_zones
from nemesis._plan import plan as _plan

ZONES = {"broker-1": "east", "broker-2": "west"}
FAR = {"delay_s": 0.02, "jitter_s": 0.001}
EAST, WEST = "10.0.2.1", "10.0.2.2"  # two brokers
DELAY = PlannedFault("delay", 1.0, 3.0, "broker-1", {"delay_s": 0.1, "direction": "both"})
CUT = PlannedFault("partition", 1.0, 3.0, "broker-1", {"shape": "isolate"})
LOSS = PlannedFault("loss", 1.0, 3.0, "broker-1", {"probability": 0.5})
NARROW = PlannedFault("bandwidth", 1.0, 3.0, "broker-1", {"bytes_per_s": 20_000.0})


@pytest.fixture
def apart(world: Any) -> Any:
    """A world whose nodes stand east and west."""
    nodes = assign_zones(world.bed.nodes, ZONES)
    world.bed = replace(world.bed, nodes=nodes, distances=distances(nodes, FAR))
    return world


def rule(world: Any, source: str) -> LinkRule:
    """What broker-1 does to packets from there."""
    rules = {rule.source: rule for rule in world.agents["broker-1"].rules}
    return rules.get(source, LinkRule(source, 0.0))


def carried_out(
    world: Any, folder: Path, *faults: PlannedFault, look: Callable[[], Awaitable[None]]
) -> dict[str, Any]:
    """What was measured between the zones before the faults."""
    plan = _plan.load(_plan.dump(faults)).faults

    async def story(world: Any) -> Any:
        seen = await delay_zones(world.bed)
        looking = asyncio.ensure_future(look())
        await carry_out(plan, world.bed, folder / "ledger", asyncio.Event(), Random(1), 0)
        await looking
        return seen

    seen: dict[str, Any] = world.run(story)
    return seen


@pytest.mark.parametrize("one", [DELAY, CUT, LOSS, NARROW], ids=lambda one: one.kind)
def test_faults_come_on_top_of_the_distance_and_leave_it(
    apart: Any, tmp_path: Path, one: PlannedFault
) -> None:
    """Each is seen, and seen healed; then zones are as far apart as before."""
    during: list[LinkRule] = []

    async def look() -> None:
        await asyncio.sleep(3.0 - apart.bed.now_ns() / 1e9)
        during.extend((rule(apart, WEST), rule(apart, "10.0.2.3")))

    seen = carried_out(apart, tmp_path, one, look=look)
    row = apart.last(0)
    assert row["state"] == "installed", row["observation"]
    assert row["healed"], row["observation"]
    far, near = during
    assert far.delay_s == pytest.approx(0.12 if one is DELAY else 0.02)
    assert near.delay_s == (0.1 if one is DELAY else 0.0)
    assert far.drop == {"partition": 1.0, "loss": 0.5}.get(one.kind, 0.0)
    assert rule(apart, WEST) == LinkRule(WEST, 0.0, 0.02, 0.001)
    assert rule(apart, "10.0.2.3") == LinkRule("10.0.2.3", 0.0)
    assert seen["added_ms"][0] >= 20


def test_a_delay_is_measured_without_the_distance(apart: Any, tmp_path: Path) -> None:
    """What it adds is its own, on links within a zone and between zones."""

    async def look() -> None: ...

    carried_out(apart, tmp_path, DELAY, look=look)
    effect = json.loads(apart.last(0)["observation"])["effect"]
    assert effect["added_ms"] == pytest.approx([100] * 3, abs=2)


def test_zones_that_are_not_apart_are_no_bed(apart: Any) -> None:
    """Rules that are accepted and not kept, and a kernel without a queue, are found out."""
    links = apart.agents["broker-1"].links

    async def nothing(_rules: Any) -> None:
        await links(())

    apart.agents["broker-1"].links = nothing
    with pytest.raises(BedFailed, match="broker-2 to broker-1"):
        apart.run(lambda world: delay_zones(world.bed))

    async def lacks(_ability: str) -> str:
        return "broker-2: its kernel has no queue"

    apart.agents["broker-2"].lacks = lacks
    with pytest.raises(BedFailed, match="its kernel has no queue; leave zone_latency out"):
        apart.run(lambda world: delay_zones(world.bed))


@pytest.mark.parametrize(
    ("latency", "sentence"),
    [
        ({"delay_s": 0.0001}, "seconds from 0.001 to 0.5, not 0.0001"),
        ({"delay_s": 3}, "seconds from 0.001 to 0.5"),
        ({"delay_s": "5ms"}, "seconds from 0.001"),
        ({"delay_s": True}, "seconds from 0.001"),
        ({"jitter_s": 0.1}, "needs delay_s"),
        ({"delay": 0.1}, "unknown key in zone_latency 'delay'"),
    ],
)
def test_latencies_that_make_no_sense_are_refused(
    world: Any, latency: dict[str, Any], sentence: str
) -> None:
    """With what would; and so is one where all nodes stand together."""
    with pytest.raises((BadRequest, UnknownName), match=sentence):
        distances(assign_zones(world.bed.nodes, ZONES), latency)
    with pytest.raises(BadRequest, match="needs nodes in several zones"):
        distances(world.bed.nodes, FAR)


def test_every_link_between_zones_is_far_and_no_other(world: Any) -> None:
    """Also those of clients."""
    nodes = assign_zones(world.bed.nodes, ZONES)
    zone = {node.name: node.zone for node in nodes}
    far = distances(nodes, FAR)
    assert {zone[a] != zone[b] for a, b in far} == {True}
    assert len(far) == sum(zone[a] != zone[b] for a in zone for b in zone)
    assert ("client-1", "client-2") in far
    assert distances(nodes, {}) == {}


def test_files_and_flags_say_the_same() -> None:
    """As a table, or as 5ms+1ms; and a saved trial is the same one."""
    trial = Trial.from_toml("zone_latency = { delay_s = 0.005, jitter_s = 0.001 }")
    assert trial.zone_latency == Latency().convert("5ms+1ms", None, None)
    assert Latency().convert("5ms", None, None) == {"delay_s": 0.005}
    assert Trial.from_toml(trial.to_toml()) == trial
