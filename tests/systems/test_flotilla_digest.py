"""Digests of running brokers' logs: the same for the same bytes, wherever segments end."""

import subprocess
import sys
from pathlib import Path

import pytest

from clusters.systems.flotilla import log_digest
from clusters.systems.flotilla.cluster_state import BrokerSetLayout, common_range
from clusters.systems.flotilla.log_digest import digest
from harness.contracts import ClusterState

SET = BrokerSetLayout("broker-a", ("broker-1", "broker-2"), {})


def log(folder: Path, *segments: tuple[int, bytes]) -> Path:
    """A folder of segments."""
    folder.mkdir()
    for base, content in segments:
        (folder / f"{base:020d}").write_bytes(content)
    return folder


def test_a_difference_of_one_byte_is_seen(tmp_path: Path) -> None:
    """Within what is asked for; beyond it a log may hold whatever it likes."""
    one = log(tmp_path / "one", (0, b"abcd"), (4, b"efgh"), (8, b"ijxx"))
    other = log(tmp_path / "other", (0, b"abcd"), (4, b"efgh"), (8, b"ijyyyyyy"))
    forked = log(tmp_path / "forked", (0, b"abcd"), (4, b"eFgh"), (8, b"ijxx"))
    assert digest(one, 0, 10) == digest(other, 0, 10)
    assert digest(one, 0, 11) != digest(other, 0, 11)
    assert digest(one, 0, 10) != digest(forked, 0, 10)
    assert digest(one, 6, 10) == digest(forked, 6, 10)


def test_a_log_that_begins_later_holds_the_same_from_there(tmp_path: Path) -> None:
    """A copy may lack what is oldest."""
    whole = log(tmp_path / "whole", (0, b"abcd"), (4, b"efgh"))
    later = log(tmp_path / "later", (4, b"efgh"))
    assert digest(whole, 4, 8) == digest(later, 4, 8)


def test_what_is_not_there_has_no_digest(tmp_path: Path) -> None:
    """A gap, an end that comes too early, and no log at all."""
    short = log(tmp_path / "short", (0, b"abcd"), (4, b"ef"))
    gap = log(tmp_path / "gap", (0, b"abcd"), (8, b"ijkl"))
    for folder, end in ((short, 8), (gap, 10), (log(tmp_path / "empty"), 1)):
        with pytest.raises(EOFError):
            digest(folder, 0, end)


def test_it_is_a_program_of_its_own(tmp_path: Path) -> None:
    """Nodes have the standard library and nothing else."""
    folder = log(tmp_path / "log", (0, b"abcd"))
    argv = [sys.executable, "-S", "-s", log_digest.__file__, str(folder), "1", "3"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == digest(folder, 1, 3)


def test_the_common_range_of_replicas() -> None:
    """Confirmed, and in everybody's files; nothing when somebody does not answer."""
    said = {"minOffset": 0, "flushedOffset": 900, "confirmOffset": 800}
    other = {"minOffset": 100, "flushedOffset": 700, "confirmOffset": 600}
    masters = {"broker-a": "broker-1"}
    both = ClusterState(masters=masters, detail={"broker-1": said, "broker-2": other})
    assert common_range(both, SET) == (100, 700)
    behind = {**said, "confirmOffset": 500}
    waits = ClusterState(masters=masters, detail={"broker-1": behind, "broker-2": other})
    assert common_range(waits, SET) == (100, 500)
    silent = ClusterState(masters=masters, detail={"broker-1": said, "broker-2": None})
    headless = ClusterState(detail={"broker-1": said, "broker-2": other})
    assert common_range(silent, SET) == common_range(headless, SET) == (0, 0)
