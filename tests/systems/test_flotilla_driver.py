"""The driver on a real cluster: processes in namespaces of their own, and what it says of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.bed

SCENE = Path(__file__).with_name("flotilla_scene.py")
Play = Callable[[str], dict[str, Any]]


@pytest.fixture
def play(tmp_path: Path, root: Path) -> Play:
    def played(name: str) -> dict[str, Any]:
        argv = [sys.executable, str(SCENE), name, str(tmp_path)]
        env = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, env=env)
        assert done.returncode == 0, done.stderr
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    return played


def test_a_cluster_from_start_to_its_history(play: Play) -> None:
    """Healthy means serving with everybody; nothing acknowledged is missing from any log."""
    seen = play("life")
    brokers = ["broker-1", "broker-2", "broker-3"]
    assert seen["healthy"]["in_set"] == brokers
    assert seen["healthy"]["masters"].keys() == {"set-1"}
    assert [end.split()[0] for end in seen["sent"]] == ["OK"], "all by one and the same master"
    assert (seen["group before"], seen["group after"]) == (-1, 7)
    assert seen["read"], "what was read is what was acknowledged"
    assert seen["paused"] == [True, False], "a paused master is the master, and nobody is whole"
    assert seen["elected"], "a later epoch"
    assert "OK" in seen["sent after the kill"]
    assert seen["designated"], "an operator's choice becomes master"
    assert seen["notes"] == []
    assert seen["missing"] == dict.fromkeys(brokers, 0)
    assert seen["repeated"].keys() == set(brokers)
    assert {"start", "role", "election", "set", "raft"} <= set(seen["kinds"])
    assert seen["in order"]
    assert seen["in time"]


def test_a_node_that_does_not_start_is_named_with_its_last_words(play: Play) -> None:
    """The bed failed, and the sentence says which node, and why in its own words."""
    said = play("refusal")["said"]
    assert said.startswith("controller-1 did not start: it ended; its last output: ")
    assert "role" in said


def test_zookeeper_in_the_place_of_coordinators(play: Play) -> None:
    """A real ensemble is asked who leads; its leader may die, lose its disk and come back."""
    seen = play("ensemble")
    assert seen["healthy"]["in_set"] == ["broker-1", "broker-2"]
    assert seen["leader"].startswith("coordinator-")
    assert seen["sent"] == ["OK"], "coordinators are not in the path of a send"
    assert seen["is back"] == "follower"
    assert seen["notes"] == [], "no events are asked of servers that write none"
    assert seen["missing"] == {"broker-1": 0, "broker-2": 0}
