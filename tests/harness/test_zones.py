"""Zones: where nodes stand, and how faults aim at them."""

from random import Random
from typing import Any

import pytest

from harness.cli.options import Zones, request
from harness.contracts import ClusterState, Node, PlannedFault
from harness.errors import BadRequest
from harness.trial import Trial
from harness.zones import assign_zones
from nemesis._plan import plan as _plan
from nemesis._plan import targets as _targets

NODES = (
    Node("nameserver-1", "nameserver"),
    *(Node(f"controller-{n}", "controller") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker") for n in (1, 2, 3)),
    *(Node(f"client-{n}", "client") for n in (1, 2)),
)
STANDING = ClusterState(masters={"set-1": "broker-1"}, slaves=("broker-2", "broker-3"))


def stand(zones: dict[str, Any]) -> dict[str, str]:
    return {node.name: node.zone for node in assign_zones(NODES, zones)}


def test_each_role_is_dealt_in_turn() -> None:
    """With two zones the first has two of three, with three each has one."""
    two, three = stand({"count": 2}), stand({"count": 3})
    assert [two[f"broker-{n}"] for n in (1, 2, 3)] == ["a", "b", "a"]
    assert [three[f"controller-{n}"] for n in (1, 2, 3)] == ["a", "b", "c"]
    assert [three[f"client-{n}"] for n in (1, 2)] == ["a", "b"]


def test_nodes_may_be_placed_by_name() -> None:
    """The others take turns in the zones that are named."""
    zones = stand({"broker-1": "east", "broker-2": "east", "broker-3": "west"})
    assert [zones[f"broker-{n}"] for n in (1, 2, 3)] == ["east", "east", "west"]
    assert [zones[f"controller-{n}"] for n in (1, 2, 3)] == ["east", "west", "east"]


def test_without_zones_nothing_changes() -> None:
    """Nobody stands anywhere."""
    assert assign_zones(NODES, {}) is NODES


@pytest.mark.parametrize(
    ("zones", "sentence"),
    [
        ({"count": 0}, "whole number from 1 to 26, not 0"),
        ({"count": True}, "whole number"),
        ({"count": 2, "broker-1": "a"}, "a number or a table of nodes, not both"),
        ({"brokr-1": "a"}, "unknown node in zones 'brokr-1'"),
        ({"broker-1": "A 1"}, r"zones\.broker-1 must be a word"),
        ({"broker-1": 1}, r"zones\.broker-1 must be a word"),
    ],
)
def test_zones_that_make_no_sense_are_refused(zones: dict[str, Any], sentence: str) -> None:
    """With what would."""
    with pytest.raises(BadRequest, match=sentence):
        assign_zones(NODES, zones)


def test_a_trial_says_them_in_a_number_or_a_table() -> None:
    """Both are saved, and read back the same; the command line knows both."""
    for text, table in (
        ("zones = 2", {"count": 2}),
        ('zones = { broker-1 = "x" }', {"broker-1": "x"}),
    ):
        trial = Trial.from_toml(text)
        assert trial.zones == table
        assert Trial.from_toml(trial.to_toml()) == trial
    assert Zones().convert("3", None, None) == {"count": 3}
    assert Zones().convert("broker-1=x", None, None) == {"broker-1": "x"}
    assert request("messages", {"zones": {"count": 3}}).trial.zones == {"count": 3}


def names(selector: str, seed: int = 1, count: int = 2) -> list[str]:
    nodes = assign_zones(NODES, {"count": count})
    _targets.check(selector, nodes)
    return [node.name for node in _targets.resolve(selector, nodes, STANDING, Random(seed))]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("zone-b", ["controller-2", "broker-2"]),
        ("broker in zone-a", ["broker-1", "broker-3"]),
        ("slave in zone-a", ["broker-3"]),
        ("client in zone-b", ["client-2"]),
        ("zone-a but master", ["nameserver-1", "controller-1", "controller-3", "broker-3"]),
        ("broker but zone-a", ["broker-2"]),
        ("broker but broker in zone-a", ["broker-2"]),
        ("zone-b, client in zone-b", ["controller-2", "broker-2", "client-2"]),
        ("primaries", ["broker-1"]),
    ],
)
def test_a_zone_is_a_selector(selector: str, expected: list[str]) -> None:
    """Its servers and nameservers; with `in` those of a part or role that stand there."""
    assert names(selector) == expected


def test_one_zone_is_drawn_whole() -> None:
    """All of one zone, and each has its chance."""
    drawn = {tuple(names("one zone", seed, 3)) for seed in range(30)}
    assert drawn == {tuple(names(f"zone-{zone}", 1, 3)) for zone in "abc"}


@pytest.mark.parametrize(
    "selector", ["zone-c", "zone", "one zone but master", "broker in master", "broker in zone-c"]
)
def test_zones_that_are_not_there_are_refused(selector: str) -> None:
    """Before anything starts."""
    with pytest.raises(BadRequest):
        names(selector)
    with pytest.raises(BadRequest, match="unknown target"):
        _targets.check("zone-a", NODES)


def test_a_zone_does_not_die_twice() -> None:
    """Zones last, so a fault that overlaps itself on one is refused."""
    nodes = assign_zones(NODES, {"count": 2})
    plan = tuple(PlannedFault("kill", at_s, 5.0, "zone-a") for at_s in (1.0, 3.0))
    with pytest.raises(BadRequest, match="breaks again"):
        _plan.check(plan, Trial(plan="p.toml", short_faults=True), 1.5, nodes)
