"""Each fault of disks on real nodes, shown by diarists who know nothing of gates or agents.

One scene (disk_scene.py) carries out every fault on one of three nodes. What its diarist meets on
its own disk must be what the fault is for, and nothing of it after healing; the others never
notice.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from fault_stage import seen_by

pytestmark = pytest.mark.bed

SCENE = Path(__file__).with_name("disk_scene.py")
HIT, OTHERS = "broker-1", ("broker-2", "broker-3")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of every fault."""
    return seen_by(SCENE, tmp_path_factory.mktemp("disks"))


def sound(told: Any) -> bool:
    return bool(told) and told["write"] == told["sync"] == "" and told["sync_s"] >= 0


def during(scene: dict[str, Any], name: str) -> Any:
    """What the one that was hit met, if all else was as it should be."""
    seen = scene[name]
    assert seen["row"]["state"] == "installed", seen["row"]["observation"]
    assert seen["row"]["healed"] is not None, seen["row"]["observation"]
    assert all(sound(seen["during"][node]) for node in OTHERS)
    assert all(map(sound, seen["after"].values()))
    return seen["during"][HIT]


def measured(scene: dict[str, Any], name: str) -> str:
    return str(json.loads(scene[name]["row"]["observation"])["measured"])


@pytest.mark.parametrize(("name", "error"), [("full", "ENOSPC"), ("read-only", "EROFS")])
def test_writes_are_refused(scene: dict[str, Any], name: str, error: str) -> None:
    """With the error of that very misfortune, which the nemesis met as well."""
    assert during(scene, name)["write"] == error
    assert measured(scene, name) == f"a write fails with {error}"


def test_syncs_are_slow(scene: dict[str, Any]) -> None:
    """Each by as much as was asked for."""
    met = during(scene, "slow")
    assert (met["write"], met["sync"]) == ("", "")
    assert met["sync_s"] >= 0.2


def test_syncs_fail(scene: dict[str, Any]) -> None:
    """With EIO, while writes go through."""
    met = during(scene, "failing")
    assert (met["write"], met["sync"]) == ("", "EIO")
    assert measured(scene, "failing") == "a sync fails with EIO"


def test_a_node_whose_syncs_hang_still_answers(scene: dict[str, Any]) -> None:
    """The disk hangs, the process does not: it writes, and reports that its sync never ended."""
    met = during(scene, "hanging")
    assert (met["write"], met["sync_s"]) == ("", -1)


def test_an_end_is_cut_off(scene: dict[str, Any]) -> None:
    """It starts again on a shorter diary; others lost nothing."""
    met = during(scene, "cut")
    assert met["lines"] < min(scene["cut"]["during"][node]["lines"] for node in OTHERS)
    assert measured(scene, "cut").startswith("100 bytes changed; all started")


def test_a_node_that_refuses_damaged_files_gets_an_empty_disk(scene: dict[str, Any]) -> None:
    """It does not run while the damage is there; after healing it starts a new diary."""
    assert during(scene, "flipped") is None
    assert measured(scene, "flipped") == "5 bytes changed; broker-1 refused to start"
    lines = {node: told["lines"] for node, told in scene["flipped"]["after"].items()}
    assert lines[HIT] < min(lines[node] for node in OTHERS)


def test_a_wiped_node_is_dead_and_comes_back_without_a_memory(scene: dict[str, Any]) -> None:
    """Its files are gone, and counted."""
    assert during(scene, "wiped") is None
    lines = {node: told["lines"] for node, told in scene["wiped"]["after"].items()}
    assert lines[HIT] < min(lines[node] for node in OTHERS)
    assert measured(scene, "wiped").endswith(" bytes of data are gone")


def test_a_node_that_forgets_comes_back_with_what_was_synced(scene: dict[str, Any]) -> None:
    """What it never synced was the name of its diary, which these dice take away."""
    assert during(scene, "unsynced") is None
    files = json.loads(scene["unsynced"]["row"]["observation"])["effect"]["files"]
    assert set(files) == {HIT}
    assert (files[HIT]["names"], files[HIT]["lost_names"]) == (1, 1)
    lines = {node: told["lines"] for node, told in scene["unsynced"]["after"].items()}
    assert lines[HIT] < min(lines[node] for node in OTHERS)
