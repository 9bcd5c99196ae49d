"""Local hosts: what an agent says it did is what the world shows; nothing of ours stays behind.

Each test plays a scene (scenes.py) in a process that enters its own namespaces, as the user who
runs the tests; when that is root, two are played as an ordinary user too.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts import local

pytestmark = pytest.mark.bed

SCENES = Path(__file__).with_name("scenes.py")
NOBODY = 65534
Play = Callable[[str], dict[str, Any]]


def play_as(command: list[str], name: str, folder: Path, path: str) -> dict[str, Any]:
    argv = [*command, str(SCENES), name, str(folder)]
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture
def play(tmp_path: Path, root: Path) -> Play:
    return lambda name: play_as([sys.executable], name, tmp_path, str(root))


def test_a_cut_stops_one_direction_of_one_link_and_nothing_else(play: Play) -> None:
    """A rule at b against a: nothing from a arrives, all of it is counted, the rest flows."""
    seen = play("cut")
    probes = seen["probes"]
    assert seen["before"] == probes
    assert seen["a to b"] == 0
    assert seen["dropped by b"] == {seen["a"]: probes}
    assert seen["b to a"] == seen["c to b"] == probes
    assert seen["healed"] == probes
    assert seen["dropped when healed"] == {}


def test_loss_is_near_its_probability_and_every_packet_is_accounted_for(play: Play) -> None:
    """Arrived plus dropped is sent; dropped lies in the binomial interval of one in a million."""
    seen = play("loss")
    assert seen["arrived"] + seen["dropped"] == seen["sent"]
    sigma = math.sqrt(seen["sent"] * 0.3 * 0.7)
    assert abs(seen["dropped"] - seen["sent"] * 0.3) < 4.9 * sigma


def test_a_signal_reaches_the_whole_group(play: Play) -> None:
    """SIGSTOP stops parent and child, SIGCONT resumes, SIGKILL leaves nobody."""
    assert play("pause") == {
        "forked": True,
        "running": "running",
        "all stopped": True,
        "stopped": "stopped",
        "runs again": True,
        "code": -9,
        "all gone": True,
        "exited": "exited",
    }


def test_processes_talk_end_and_start_again(play: Play) -> None:
    """Every line is heard before the end is known; refusals are sentences."""
    seen = play("processes")
    assert seen["code"] == 7
    assert seen["heard"] == ["hello", "ahoy!", "last"]
    assert seen["log"] == "trouble\n"
    assert seen["absent"] == "absent"
    assert seen["again"] == 0
    assert seen["again log"] == "x\n/tmp\n"
    assert "is running already" in seen["twice"]
    assert "no process 'nobody' was started" in seen["unknown"]
    assert "x did not start: /no/such/program: No such file" in seen["no program"]


def test_commands_and_files(play: Play) -> None:
    """Bytes come back as they went, whatever their number; a late command is ended."""
    seen = play("commands")
    assert seen["same"]
    assert seen["empty"] == 0
    assert seen["cat"] == [3, 300_000, "oops\n"]
    assert seen["missing"] == 127
    assert "took longer than 0.1 s" in seen["late"]
    assert "No such file" in seen["no file"]


def test_a_node_can_be_asked_though_it_is_cut_off(play: Play) -> None:
    """The agent asks from within; a refused or silent process is a ConnectionError."""
    seen = play("asking")
    assert seen["answer"] == seen["again"] == "HELLO"
    assert "port 7001 gave no answer" in seen["refused"]
    assert "port 7000 gave no answer within 0.1 s" in seen["paused"]


def test_a_dead_agent_fails_calls_instead_of_hanging_them(play: Play) -> None:
    """The open call and the next say which agent is gone; the other agents serve on."""
    seen = play("lost")
    assert seen["open"] == seen["next"]
    assert "a is gone: its agent ended" in seen["open"]
    assert seen["others"] == "absent"


def test_the_inside_is_apart(play: Play) -> None:
    """Process 1, root inside, no IPv6, and our chain in front of INPUT."""
    seen = play("apart")
    assert (seen["pid"], seen["uid"], seen["ipv6 off"]) == (1, 0, "1")
    assert "-A INPUT -j SEATRIAL" in seen["chain"]


def test_the_machine_is_left_as_it_was(play: Play) -> None:
    """Rules, links, addresses, forwarding and mounts of the machine are untouched by a scene."""
    before = _machine()
    play("cut")
    assert _machine() == before


def test_this_machine_can_raise_local_nodes() -> None:
    """The probe finds nothing wrong where the scenes play."""
    assert local.problems({}) == []


@pytest.mark.parametrize("scene", ["cut", "pause"])
def test_an_ordinary_user_needs_no_root(scene: str, root: Path, strangers: Path) -> None:
    """The same scenes play for a user without any privilege."""
    python = _python_for_nobody(strangers)
    drop = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    command = [*drop, "--no-new-privs", python] if os.geteuid() == 0 else [sys.executable]
    seen = play_as(command, scene, strangers / "run", str(strangers))
    assert seen.get("a to b", 0) == 0
    assert seen.get("all stopped", True) is True


@pytest.fixture
def strangers(root: Path) -> Iterator[Path]:
    """A folder that anybody may use, with our packages and the one that they need."""
    import tomli_w

    folder = Path(tempfile.mkdtemp(prefix="seatrial-"))
    shutil.copytree(root / "clusters", folder / "clusters")
    shutil.copytree(root / "harness", folder / "harness")
    shutil.copytree(Path(tomli_w.__file__).parent, folder / "tomli_w")
    (folder / "run").mkdir()
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)
    yield folder
    shutil.rmtree(folder)


def _python_for_nobody(folder: Path) -> str:
    """An interpreter that an ordinary user can start: ours, or the system's."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        able = "sys.version_info >= (3, 11) and os.access(sys.executable, os.X_OK)"
        test = f"import os, sys; sys.exit(not ({able}))"
        argv = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", python, "-c", test]
        if os.geteuid() != 0 or subprocess.run(argv, capture_output=True).returncode == 0:
            return python
    pytest.skip("no Python 3.11 that an ordinary user can start")


def _machine() -> dict[str, str]:
    """What a run must not touch. Counters aside, which live traffic moves."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    commands = {
        "links": ["ip", "-o", "link"],
        "addresses": ["ip", "-o", "-4", "addr"],
        "routes": ["ip", "route"],
        "mounts": ["cat", "/proc/self/mounts"],
        "forwarding": ["cat", "/proc/sys/net/ipv4/ip_forward"],
    }
    if os.geteuid() == 0:
        commands["rules"] = ["iptables", "-S"]
    env = {**os.environ, "PATH": path}
    return {
        name: subprocess.run(argv, capture_output=True, text=True, env=env).stdout
        for name, argv in commands.items()
    }
