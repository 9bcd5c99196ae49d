"""Attached hosts: containers and processes that exist already are hit and healed, and are otherwise
left as they were; also after kill -9 of the driver."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker as sdk
import pytest
import tomli_w
from docker_lab import DockerLab
from ssh_lab import LabHost, SshLab

from clusters.hosts.docker import image
from harness.history.rundir import RunDir
from harness.history.runs import start_run
from harness.trial import Trial

pytestmark = pytest.mark.bed

DRIVER = Path(__file__).with_name("attach_driver.py")
MOST_S = 120.0
LEASE_S, SHORT_LEASE_S = 20.0, 8.0
TOY = "/tmp/toyd 100000"
RUNS = "cp /bin/sleep /tmp/toyd && { /tmp/toyd 100000 >/dev/null 2>&1 & }"
FOUND = """
for process in /proc/[0-9]*; do
  words=$(tr '\\0' ' ' < $process/cmdline 2>/dev/null) || continue
  case $words in /tmp/toyd*)
    stat=$(cat $process/stat); rest=${stat##*) }; echo ${process#/proc/} ${rest%% *};; esac
done
"""
EXPECTED = {
    "killed": "exited",
    "started": "running",
    "new pid": True,
    "paused": "stopped",
    "threads": "T",
    "resumed": "running",
    "open": 20,
    "cut": 0,
    "cut after its start": 0,
    "client": 20,
    "healed": 20,
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run's folder as its command makes it; `heal` finds that the run is over."""
    trial = Trial(name="attached", hosts="attached", bed={"inventory": "cluster.toml"})
    with start_run(trial, "", tmp_path / "runs") as made:
        return made


def driver(
    lab: DockerLab | SshLab,
    scene: str,
    run: RunDir,
    inventory: Path,
    root: Path,
    lease_s: float = LEASE_S,
) -> "subprocess.Popen[str]":
    argv = [sys.executable, str(DRIVER), scene, str(run.path), str(inventory), str(lease_s)]
    inherited = dict(lab.environment) if isinstance(lab, DockerLab) else {"PATH": _PATH}
    with (run.path.parent / "driver.log").open("a") as log:
        return subprocess.Popen(
            lab.inside(argv),
            stdout=subprocess.PIPE,
            stderr=log,
            env={**inherited, **_ENVIRONMENT, "PYTHONPATH": str(root), "HOME": str(run.path)},
            text=True,
        )


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1"}


def play(
    lab: DockerLab | SshLab, scene: str, run: RunDir, inventory: Path, root: Path
) -> dict[str, Any]:
    """Run a scene to its end; return its observations."""
    with driver(lab, scene, run, inventory, root) as process:
        out, _ = process.communicate(timeout=MOST_S)
    assert process.returncode == 0, (run.path.parent / "driver.log").read_text()
    seen: dict[str, Any] = json.loads(out)
    return seen


@contextmanager
def holding(
    lab: DockerLab | SshLab, run: RunDir, inventory: Path, root: Path
) -> Iterator["subprocess.Popen[str]"]:
    """The scene `held`, until it is killed."""
    with driver(lab, "held", run, inventory, root, SHORT_LEASE_S) as process:
        try:
            assert process.stdout
            assert process.stdout.readline(), (run.path.parent / "driver.log").read_text()
            yield process
        finally:
            process.kill()


# ------------------------------------------------------------------------------------ containers


@pytest.fixture
def containers(docker_lab: DockerLab) -> Iterator[list[Any]]:
    """Three containers on a network of their own, which were started by hand; nothing of ours may
    be beside them at the end."""
    client = sdk.DockerClient(base_url=docker_lab.host)
    tag = image.image(client, "", print)
    network = client.networks.create("shop")
    made = [
        client.containers.run(
            tag,
            ["sleep", "infinity"],
            name=f"shop-etcd-{n}",
            network="shop",
            detach=True,
            init=True,
            restart_policy={"Name": "always"},
            labels={
                "com.docker.compose.project": "shop",
                "com.docker.compose.service": "etcd",
                "com.docker.compose.container-number": str(n),
            },
        )
        for n in (1, 2, 3)
    ]
    try:
        yield made
        assert {one.id for one in client.containers.list(all=True)} == {one.id for one in made}
    finally:
        for one in made:
            one.remove(force=True)
        network.remove()
        client.close()


@pytest.fixture
def named(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    nodes = [{"container": f"shop-etcd-{n}"} for n in (1, 2, 3)]
    path.write_text(tomli_w.dumps({"node": nodes}))
    return path


def test_containers_are_hit_and_stay_as_they_were(
    docker_lab: DockerLab, containers: list[Any], named: Path, run: RunDir, root: Path
) -> None:
    """The same containers run at the end; only the killed ones have another process; a restart
    policy brings none back before the fault is over; a cut outlives a restart."""
    before = [facts(one) for one in containers]
    seen = play(docker_lab, "faults", run, named, root)
    assert seen == {**EXPECTED, "code": 137, "network": False}
    after = [facts(one) for one in containers]
    assert [one["restarts"] for one in after] == [0, 0, 0]
    assert [was["started"] == now["started"] for was, now in zip(before, after, strict=True)] == [
        False,
        True,
        False,
    ]
    assert all(one["running"] for one in after)
    assert all(one["policy"] == "always" for one in after)
    for one in containers:
        assert "SEATRIAL" not in rules(docker_lab, one)


def test_containers_of_a_killed_driver_are_healed(
    docker_lab: DockerLab, containers: list[Any], tmp_path: Path, run: RunDir, root: Path
) -> None:
    """The agents resume and open links by themselves; `heal` starts what was killed, and removes
    the helper and the clients. The containers are named by their compose project."""
    path = tmp_path / "cluster.toml"
    path.write_text('[compose]\nproject = "shop"\nservice = "etcd"\n')
    with holding(docker_lab, run, path, root) as process:
        one, two, three = containers
        assert not facts(one)["running"]
        assert states(docker_lab, two) == {"T"}
        assert "-j DROP" in rules(docker_lab, three)
        process.kill()
    eventually(lambda: "T" not in states(docker_lab, two))
    eventually(lambda: "SEATRIAL" not in rules(docker_lab, three))
    argv = [str(Path(sys.executable).with_name("seatrial")), "heal"]
    done = docker_lab.run(argv, cwd=run.path.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the stop of server-1 (shop-etcd-1)" in done.stdout
    assert facts(one)["running"]


def facts(container: Any) -> dict[str, Any]:
    container.reload()
    found = container.attrs
    return {
        "running": found["State"]["Running"],
        "started": found["State"]["StartedAt"],
        "restarts": found["RestartCount"],
        "policy": found["HostConfig"]["RestartPolicy"]["Name"],
        "pid": found["State"]["Pid"],
    }


def rules(lab: DockerLab, container: Any) -> str:
    """The link rules in the network of a container."""
    pid = facts(container)["pid"]
    inside = ["nsenter", f"--pid=/proc/{lab.pid}/ns/pid", f"--mount=/proc/{lab.pid}/ns/mnt"]
    argv = [*inside, "nsenter", f"--net=/proc/{pid}/ns/net", "iptables-save"]
    return subprocess.run(
        argv, capture_output=True, text=True, check=True, env={"PATH": _PATH}
    ).stdout


def states(lab: DockerLab, container: Any) -> set[str]:
    """The states of a container's processes, as the engine's machine has them."""
    titles, rows = (found := container.top(ps_args="-o pid,stat"))["Titles"], found["Processes"]
    return {row[titles.index("STAT")][0] for row in rows}


# -------------------------------------------------------------------------------------- machines


@pytest.fixture
def machines(ssh_lab: SshLab) -> Iterator[list[LabHost]]:
    """Three machines on which a process was started by hand, and one for the load."""
    hosts = [ssh_lab.host(f"h{n}") for n in (1, 2, 3, 4)]
    for host in hosts[:3]:
        host.run("sh", "-c", RUNS)
    yield hosts
    for host in hosts:
        for line in host.run("sh", "-c", FOUND).splitlines():
            host.run("kill", "-KILL", line.split()[0])
        host.run("rm", "-f", "/tmp/toyd")
        assert "seatrial" not in host.run("ls", "/var/tmp")
        assert "SEATRIAL" not in host.run("iptables-save")


@pytest.fixture
def by_name(tmp_path: Path, ssh_lab: SshLab, machines: list[LabHost]) -> Path:
    path = tmp_path / "cluster.toml"
    nodes = [ssh_lab.entry(host, process="toyd", start=TOY) for host in machines[:3]]
    path.write_text(tomli_w.dumps({"node": nodes, "client": [ssh_lab.entry(machines[3])]}))
    return path


def test_processes_of_machines_are_hit_and_stay_as_they_were(
    ssh_lab: SshLab, machines: list[LabHost], by_name: Path, run: RunDir, root: Path
) -> None:
    """Killed ones are started by their command, and go on after the run; another process of the
    machine is never touched."""
    machines[0].run("sh", "-c", "cp /bin/sleep /tmp/other && { /tmp/other 99 >/dev/null 2>&1 & }")
    before = [toys(host) for host in machines[:3]]
    seen = play(ssh_lab, "faults", run, by_name, root)
    assert seen == {**EXPECTED, "code": -9, "network": True}
    after = [toys(host) for host in machines[:3]]
    assert [len(each) for each in after] == [1, 1, 1]
    assert (before[0] != after[0], before[1] == after[1], before[2] != after[2]) == (True,) * 3
    assert "/tmp/other" in machines[0].run("ps", "axo", "args")
    machines[0].run("sh", "-c", "pkill other; rm /tmp/other")


def test_machines_of_a_killed_driver_heal_by_themselves(
    ssh_lab: SshLab, machines: list[LabHost], by_name: Path, run: RunDir, root: Path
) -> None:
    """After the lease the agents resume, open links, and start what was killed; `heal` removes
    their folders."""
    with holding(ssh_lab, run, by_name, root) as process:
        assert toys(machines[0]) == {}
        assert set(toys(machines[1]).values()) == {"T"}
        assert "-j DROP" in machines[2].run("iptables-save")
        process.kill()
    eventually(lambda: len(toys(machines[0])) == 1)
    eventually(lambda: "T" not in toys(machines[1]).values())
    eventually(lambda: "SEATRIAL" not in machines[2].run("iptables-save"))
    argv = [str(Path(sys.executable).with_name("seatrial")), "heal"]
    done = ssh_lab.run(argv, cwd=run.path.parents[1], env={"HOME": str(run.path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(toys(machines[0])) == 1  # it is not of the run


def toys(host: LabHost) -> dict[str, str]:
    """The pids and states of the process that the inventory names."""
    lines = [line.split() for line in host.run("sh", "-c", FOUND).splitlines()]
    return {pid: state for pid, state in lines if state != "Z"}


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.1)
