"""On every kind of hosts, the world shows what an agent reports.

The scenes (scenes.py) run once for each kind, one after another on the same three nodes, and each
test checks the observations of one of them.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.bed

SCENES = Path(__file__).with_name("scenes.py")
PLAYED = ("cut", "loss", "late", "pause", "processes", "commands", "asking", "strained", "lost")
Play = Callable[[str], dict[str, Any]]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module", params=["local", "docker", "ssh"])
def play(request: pytest.FixtureRequest, tmp_path_factory: Any, root: Path) -> Play:
    """Return the observations of a scene on this kind of hosts."""
    run: Run = on_this_machine
    if request.param == "docker":
        run = request.getfixturevalue("docker_lab").run
    bed: dict[str, str] = {}
    if request.param == "ssh":
        lab = request.getfixturevalue("ssh_lab")
        run, bed = lab.run, {"inventory": str(lab.inventory())}
    folder = tmp_path_factory.mktemp(request.param)
    argv = [sys.executable, str(SCENES), ",".join(PLAYED), str(folder), request.param]
    argv.append(json.dumps(bed))
    done = run(argv, env={"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/")
    assert done.returncode == 0, done.stderr
    seen: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return seen.__getitem__


def on_this_machine(
    argv: list[str], *, env: dict[str, str], cwd: str
) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **env}
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=600, env=environment, cwd=cwd
    )


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


def test_a_link_is_late_or_narrow_and_no_other(play: Play) -> None:
    """A delayed link delays all packets, in order, except those that overtake; a narrow one takes
    the time of its rate; packets that are still held when it is healed are released."""
    seen = play("late")
    assert seen["lacks"] == ""
    assert [number for number, _ in seen["a to b"]] == list(range(20))
    assert min(late_s for _, late_s in seen["a to b"]) > 0.29
    assert max(late_s for _, late_s in seen["c to b"]) > 0.38  # 20 packets of 1000 bytes
    assert min(late_s for _, late_s in seen["b to a"]) < 0.15
    assert [number for number, _ in seen["overtaking"]] != list(range(20))
    assert sorted(number for number, _ in seen["overtaking"]) == list(range(20))
    assert seen["let go"]
    for name in ("before", "healed"):
        assert len(seen[name]) == 20, name
        assert min(late_s for _, late_s in seen[name]) < 0.15, name


def test_a_signal_reaches_the_whole_group(play: Play) -> None:
    """SIGSTOP stops parent and child, SIGCONT resumes them, SIGKILL kills both."""
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
    """Every line arrives before the end is known; refusals are sentences."""
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
    """Bytes come back unchanged, whatever their number; a command that takes too long is ended."""
    seen = play("commands")
    assert seen["same"]
    assert seen["empty"] == 0
    assert seen["cat"] == [3, 300_000, "oops\n"]
    assert seen["missing"] == 127
    assert "took longer than 0.1 s" in seen["late"]
    assert "No such file" in seen["no file"]


def test_a_node_can_be_asked_though_it_is_cut_off(play: Play) -> None:
    """The agent asks from inside; a refused or silent process is a ConnectionError."""
    seen = play("asking")
    assert seen["answer"] == seen["again"] == "HELLO"
    assert "port 7001 gave no answer" in seen["refused"]
    assert "port 7000 gave no answer within 0.1 s" in seen["paused"]


def test_a_dead_agent_fails_calls_instead_of_hanging_them(play: Play) -> None:
    """The open call and the next one name the agent that is gone; other agents go on."""
    seen = play("lost")
    assert seen["open"] == seen["next"]
    assert "a is gone: its agent ended" in seen["open"]
    assert seen["others"] == "absent"


def test_a_running_process_gets_a_wrong_clock_and_few_files(play: Play) -> None:
    """It notices both, goes on, and has its own clock and limits again afterwards."""
    seen = play("strained")
    (before, files), (ahead, few), (after, many) = seen["before"], seen["strained"], seen["after"]
    assert abs(before) < 60
    assert abs(ahead - 10_000) < 60
    assert abs(after) < 60
    assert (files, few, many) == (10, 3, 10)
    assert seen["alive"]
