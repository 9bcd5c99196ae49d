"""Local hosts: isolated from the machine, for any user, and nothing stays behind.

Each test runs a scene (scenes.py) in a process that enters its own namespaces, as the user who runs
the tests; if that is root, two run as an ordinary user, too.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters.hosts._agent import agent as _agent
from clusters.hosts.local import hosts as local
from harness.history.rundir import RunDir

pytestmark = pytest.mark.bed

SCENES = Path(__file__).with_name("scenes.py")
NOBODY = 65534
Play = Callable[[str], dict[str, Any]]


def play_as(command: list[str], name: str, folder: Path, path: str) -> dict[str, Any]:
    argv = [*command, str(SCENES), name, str(folder)]
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)[name]
    return seen


@pytest.fixture
def play(tmp_path: Path, root: Path) -> Play:
    return lambda name: play_as([sys.executable], name, tmp_path, str(root))


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
    """The check finds no problem where the scenes run."""
    assert local.problems({}) == []


@pytest.mark.parametrize("scene", ["cut", "pause"])
def test_an_ordinary_user_needs_no_root(scene: str, root: Path, strangers: Path) -> None:
    """The same scenes run for a user without any privilege."""
    python = _python_for_nobody(strangers)
    drop = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    command = [*drop, "--no-new-privs", python] if os.geteuid() == 0 else [sys.executable]
    seen = play_as(command, scene, strangers / "run", str(strangers))
    assert seen.get("a to b", 0) == 0
    assert seen.get("all stopped", True) is True


@pytest.fixture
def strangers(root: Path) -> Iterator[Path]:
    """A folder that every user may use, with our packages and the one that they need."""
    import tomli_w

    folder = Path(tempfile.mkdtemp(prefix="seatrial-"))
    for package in ("clusters", "harness", "nemesis"):
        shutil.copytree(root / package, folder / package)
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
    """What a run must not change, without counters, which live traffic changes."""
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


@pytest.mark.parametrize("apart", [True, False])
def test_a_shell_enters_the_user_namespace_where_there_is_one(tmp_path: Path, apart: bool) -> None:
    """Root without the right to make one goes on without; a process cannot enter its own
    namespace."""
    address = "198.18.0.9"
    (tmp_path / "run.json").write_text(json.dumps({"keeper": os.getpid()}))
    (tmp_path / "names.json").write_text(json.dumps({"addresses": {"broker-1": address}}))
    program = "print('there', flush=True); input()"
    enter = ["unshare", "--user", "--map-root-user"] if apart else []
    with subprocess.Popen(
        [*enter, sys.executable, "-c", program, _agent.__file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        words = local.shell(RunDir(tmp_path), "broker-1", ["true"])
        agent.communicate(b"\n")
    assert ("--user" in words) is apart
