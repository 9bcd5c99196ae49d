"""Docker hosts: cuts outlive containers, one privilege is enough, and the engine is left as it was.

`test_every_kind.py` has what every kind of hosts must do. Each test here runs a scene
(docker_scenes.py) in the Docker lab, whose engine must look the same afterwards.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker as sdk
import pytest
from docker_lab import DockerLab

from clusters.hosts.docker import hosts as docker
from clusters.hosts.docker import labels as _docker_marks
from harness.history.rundir import RunDir
from harness.history.runs import locked, start_run
from harness.trial import Trial

pytestmark = pytest.mark.bed

SCENES = Path(__file__).with_name("docker_scenes.py")
NET_ADMIN = 1 << 12
MOST_S = 30.0  # a scene's own deadlines; far more than any needs

Play = Callable[..., dict[str, Any]]


@pytest.fixture
def engine(docker_lab: DockerLab) -> Iterator[sdk.DockerClient]:
    """The lab's engine, seen from outside; a test must leave it as it was."""
    client = sdk.DockerClient(base_url=docker_lab.host)
    before = everything(client, docker_lab)
    yield client
    assert everything(client, docker_lab) == before
    client.close()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run's folder as its command makes it; `heal` finds that the run is over."""
    with start_run(Trial(name="docker", hosts="docker"), "", tmp_path / "runs") as made:
        return made


@pytest.fixture
def play(docker_lab: DockerLab, engine: sdk.DockerClient, run: RunDir, root: Path) -> Play:
    """Run a scene to its end; return its observations."""

    def one(name: str, **bed: Any) -> dict[str, Any]:
        done = docker_lab.run(scene(name, run, bed), env=environment(root), cwd=run.path)
        assert done.returncode == 0, done.stderr
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    return one


def test_a_restarted_container_cannot_talk_through_the_cut(play: Play) -> None:
    """The other side's rule counts each packet of the restarted node and none arrives; the node's
    own rule counts what the other sends; nodes that are not cut off are reachable."""
    seen = play("restarted")
    assert seen["shouted"] == 0
    assert seen["dropped by a"] == {seen["addresses"]["b"]: 50}
    assert seen["arrived at a"] == 0
    assert "[50:" in rule_against(seen["addresses"]["a"], seen["rules of b"])
    assert "b is gone" in seen["agent of b"]


def test_a_container_removed_by_hand_is_a_node_that_is_gone(play: Play, run: RunDir) -> None:
    """Open and new calls report it; other nodes go on; its files are copied."""
    seen = play("removed")
    assert seen["open call"] == seen["next call"]
    assert "b is gone" in seen["next call"]
    assert seen["others"] == 200
    assert (run.node("b") / "log").read_text() == "last words"


def test_a_node_has_one_privilege_and_the_limits_it_was_given(play: Play) -> None:
    """NET_ADMIN and nothing else, no way to gain more, an init, no IPv6, no way out."""
    seen = play("inside", memory="256m", cpus=0.5, disk="32m", subnet="198.18.77.0/24")
    assert int(seen["capabilities"].split()[1], 16) == NET_ADMIN
    assert seen["process 1"].strip() in ("docker-init", "tini")
    assert seen["ipv6 off"].strip() == "1"
    assert seen["internal"]
    assert seen["address"].startswith("198.18.77.")
    assert "No space left" in seen["filling"]
    config = seen["config"]
    assert (config["Memory"], config["NanoCpus"]) == (256 << 20, 500_000_000)
    assert config["CapAdd"] == ["NET_ADMIN"]
    assert not seen["holder"]["CapAdd"]
    for part in (config, seen["holder"]):
        assert part["CapDrop"] == ["ALL"]
        assert part["SecurityOpt"] == ["no-new-privileges"]
        assert not part["Privileged"]


def test_what_nodes_wrote_is_brought_home(play: Play, run: RunDir) -> None:
    """From running and stopped nodes; a file above 64 MB is left out."""
    play("written")
    logs = {node: (run.node(node) / "logs" / "log").read_text() for node in "abc"}
    assert logs == {"a": "aaa", "b": "bbb", "c": "ccc"}
    assert not (run.node("a") / "large").exists()


def test_agents_undo_all_when_the_driver_is_killed_and_heal_removes_the_rest(
    docker_lab: DockerLab,
    engine: sdk.DockerClient,
    run: RunDir,
    root: Path,
) -> None:
    """After kill -9 rule and process end by themselves; containers are removed by `heal`, once."""
    with begun("held", docker_lab, run, root) as driver:
        a = engine.containers.get(_docker_marks.name(run.path, "a"))
        assert "-j DROP" in ran(a, "iptables-save")
        assert "sleep 1000" in ran(a, "ps", "axo", "args")
        driver.kill()
    eventually(lambda: "SEATRIAL" not in ran(a, "iptables-save"))
    eventually(lambda: "sleep 1000" not in ran(a, "ps", "axo", "args"))
    healed = seatrial(docker_lab, run, "heal", "--all")
    assert "removed 6 containers, 1 network and 3 volumes" in healed
    assert "Nothing to heal" in seatrial(docker_lab, run, "heal", "--all")
    assert "Nothing to heal" in seatrial(docker_lab, run, "heal")


def test_the_next_run_removes_what_a_killed_one_left(
    docker_lab: DockerLab,
    engine: sdk.DockerClient,
    run: RunDir,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the folder of the killed run is gone; never what a running trial has. A subnet that
    will be free by then is no reason to refuse a run."""
    monkeypatch.setenv("DOCKER_HOST", docker_lab.host)
    going = RunDir(tmp_path / "going")
    going.path.mkdir()
    with begun("held", docker_lab, run, root) as driver:
        driver.kill()
    assert docker.problems({"subnet": "198.18.0.0/24"}) == []
    with locked(going), begun("held", docker_lab, going, root) as driver:
        done = docker_lab.run(
            scene("nothing", RunDir(tmp_path / "next"), {}), env=environment(root)
        )
        assert done.returncode == 0, done.stderr
        assert docker.problems({"subnet": "198.18.0.0/24"})
        left = {one.labels[_docker_marks.RUN] for one in engine.containers.list()}
        assert left == {str(going.path)}
        driver.kill()
    going.path.joinpath(".lock").unlink()
    going.path.rmdir()
    done = docker_lab.run(scene("nothing", RunDir(tmp_path / "next"), {}), env=environment(root))
    assert f"removed what {going.path} left: 6 containers" in done.stderr


def test_a_raising_that_is_interrupted_leaves_nothing(play: Play) -> None:
    """Containers that are being made in threads are waited for and removed."""
    seen = play("interrupted")
    assert seen["begun"]
    assert seen["cancelled"]
    assert seen["left"] == 0


def test_a_raising_that_fails_leaves_nothing_and_says_why(play: Play) -> None:
    """The engine refuses a limit above its machine's."""
    failed = play("nothing", cpus=1000)["failed"]
    assert failed.startswith("the containers of ")
    assert "CPUs" in failed


def test_a_subnet_in_use_is_refused_before_the_run_and_in_it(
    play: Play, engine: sdk.DockerClient, docker_lab: DockerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence each, with the remedy; without the option another subnet is chosen."""
    monkeypatch.setenv("DOCKER_HOST", docker_lab.host)
    pool = sdk.types.IPAMPool(subnet="198.18.0.0/24")
    taken = engine.networks.create("taken", ipam=sdk.types.IPAMConfig(pool_configs=[pool]))
    try:
        [problem] = docker.problems({"subnet": "198.18.0.128/25"})
        assert "overlaps 198.18.0.0/24" in problem.what
        assert "to fix it: choose a free one" in play("nothing", subnet="198.18.0.128/25")["failed"]
        assert play("nothing")["address"].startswith("198.18.1.")
    finally:
        taken.remove()
    assert docker.problems({"subnet": "198.18.0.128/25"}) == []


def test_an_engine_that_hangs_holds_nobody_up(
    docker_lab: DockerLab, engine: sdk.DockerClient, run: RunDir, root: Path
) -> None:
    """Leaving ends within its deadlines and says what to do; that then removes everything."""
    dockerd = engine_pid(docker_lab)
    with begun("slow", docker_lab, run, root) as driver, stopped(dockerd):
        seen = driver.finished()
    assert seen["took_s"] < MOST_S
    assert f"seatrial heal {run.path}" in seen["failed"]
    assert "removed 6 containers" in seatrial(docker_lab, run, "heal")


@dataclass(frozen=True)
class Driver:
    """A running scene, whose first output has been read."""

    process: "subprocess.Popen[str]"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finished(self) -> dict[str, Any]:
        """Tell it to go on; what it saw."""
        out, _ = self.process.communicate("go on\n", timeout=MOST_S)
        seen: dict[str, Any] = json.loads(out)
        return seen


@contextmanager
def begun(name: str, lab: DockerLab, run: RunDir, root: Path) -> Iterator[Driver]:
    """A scene in a process of its own, which a test may kill."""
    with (run.path.parent / "driver.log").open("a") as log:
        process = subprocess.Popen(
            lab.inside(scene(name, run, {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**lab.environment, **environment(root)},
            text=True,
        )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline(), (run.path.parent / "driver.log").read_text()
            yield Driver(process)
        finally:
            process.kill()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def scene(name: str, run: RunDir, bed: dict[str, Any]) -> list[str]:
    return [sys.executable, str(SCENES), name, str(run.path), json.dumps(bed)]


def environment(root: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def everything(client: sdk.DockerClient, lab: DockerLab) -> dict[str, Any]:
    """What is on the engine, without images, which stay."""
    api = client.api
    rules = (line.split(" [")[0] for line in lab.rules().splitlines() if line[:1] != "#")
    return {
        "containers": [one["Id"] for one in api.containers(all=True)],
        "networks": sorted(one["Id"] for one in api.networks()),
        "volumes": [one["Name"] for one in api.volumes()["Volumes"] or ()],
        "rules": sorted(rules),
    }


def engine_pid(lab: DockerLab) -> int:
    """dockerd itself, a child of the lab's process 1."""
    children = Path(f"/proc/{lab.pid}/task/{lab.pid}/children").read_text().split()
    return next(
        int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "dockerd\n"
    )


def ran(container: Any, *argv: str) -> str:
    output: bytes = container.exec_run(list(argv)).output
    return output.decode()


def rule_against(source: str, rules: str) -> str:
    return next(line for line in rules.splitlines() if f"-A SEATRIAL -s {source}" in line)


def seatrial(lab: DockerLab, run: RunDir, *words: str) -> str:
    """The command, in the folder that holds `runs`."""
    argv = [str(Path(sys.executable).with_name("seatrial")), *words]
    done = lab.run(argv, cwd=run.path.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.05)
