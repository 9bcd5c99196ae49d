"""`unsynced` on real nodes, by the disk: what was never synced is gone, however it was written.

The scene (mapped_scene.py) needs root and loop devices. Elsewhere, its refusal is tested.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fault_stage
import pytest
from fault_stage import loops, seen_by

from clusters.hosts._faults import own_disk
from clusters.hosts.local.requirements import why_no_own_disks
from harness.contracts import Unsupported
from harness.run.launch import make_plan
from harness.trial import Trial

pytestmark = pytest.mark.bed
SCENE, PAGE = Path(__file__).with_name("mapped_scene.py"), 4096
WHY = why_no_own_disks(try_it=True)
GONE_WITHIN_S = 60.0
BY_DISK = """
[[fault]]
kind = "unsynced"
at_s = 1.0
for_s = 5.0
target = "all broker"
params = { keeps = "nothing", by = "disk" }
"""


def refused() -> str:
    with pytest.raises(Unsupported) as error:
        make_plan(Trial(short_faults=True), BY_DISK)
    return str(error.value)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of the fault by each way; empty where it is impossible."""
    return {} if WHY else seen_by(SCENE, tmp_path_factory.mktemp("mapped"))


def test_the_disk_loses_what_was_written_through_memory_and_not_flushed(
    scene: dict[str, Any],
) -> None:
    """And keeps what msync covered. The interposer sees neither, so it takes nothing."""
    if WHY:
        assert WHY in refused()
        return
    for by in ("disk", "calls"):
        assert scene[by]["before"] == {"flushed": True, "unflushed": True}
        assert scene[by]["row"]["healed"] is not None
    assert scene["disk"]["after"] == {"flushed": True, "unflushed": False}
    assert scene["calls"]["after"] == {"flushed": True, "unflushed": True}


def test_what_the_disk_lost_is_measured(scene: dict[str, Any]) -> None:
    """One page of one file; the interposer took nothing, which is no power cut."""
    if WHY:
        assert WHY in refused()
        return
    assert scene["disk"]["row"]["state"] == "installed"
    effect = json.loads(scene["disk"]["row"]["observation"])["effect"]
    lost = effect["files"]["broker-1"]
    assert (lost["by"], lost["lost_bytes"], lost["lost_files"], lost["lost_names"]) == (
        *("disk", PAGE),
        *(1, 0),
    )
    assert scene["calls"]["row"]["state"] == "partial"


def test_a_disk_whose_power_is_on_takes_files(tmp_path: Path, monkeypatch: Any) -> None:
    """A shutdown that has no effect is no power cut, whatever the kernel answers."""
    monkeypatch.setattr(own_disk.fcntl, "ioctl", lambda *_: 0)
    with pytest.raises(OSError, match="can be written to, though its power was cut"):
        own_disk.shut_down(str(tmp_path))


def test_at_the_end_the_data_is_in_the_folder_of_the_node(scene: dict[str, Any]) -> None:
    """As without a file system of its own, and no image or loop device is left."""
    if WHY:
        assert WHY in refused()
        return
    assert scene["left"] == ["data", "log"]
    assert scene["files"] == ["flushed", "unflushed", "written"]
    assert scene["loops"] == []


@contextmanager
def waiting(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The scene, while its node's disk is in use."""
    labs = Path(fault_stage.__file__).parent
    paths = os.pathsep.join([str(labs.parents[2]), str(labs.parent), str(labs)])
    env = {**os.environ, "PYTHONPATH": paths}
    argv = [sys.executable, str(SCENE), str(folder), "wait"]
    with subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE) as running:
        assert running.stdout
        assert running.stdout.readline() == "in use\n"
        yield running
        running.kill()


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    """kill -9 of the outermost process: within 5 s the kernel has removed mount and loop device.
    The image with the node's data stays, and takes little room."""
    if WHY:
        assert WHY in refused()
        return
    with waiting(tmp_path) as running:
        assert len(loops(tmp_path)) == 1
        assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
        running.kill()
        deadline = time.monotonic() + GONE_WITHIN_S
        while loops(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert loops(tmp_path) == []
    image = tmp_path / "nodes" / "broker-1" / "data.img"
    assert image.stat().st_blocks * 512 < 64 << 20 < image.stat().st_size
