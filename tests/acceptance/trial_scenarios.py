"""Scenarios of trials on hosts that outlive the command, with failures of users and machines: one
function each.

A scenario takes a host lab and a folder, checks what must hold in any case, and returns what it
observed. When it returns, the host lab is in the state in which it was before.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker
import kills
import outside_systems
import run_command
from docker_lab import DockerLab
from host_labs import HostLab, MarkedCommand
from ssh_lab import LabHost, SshLab

from clusters.supply import resolve
from clusters.systems import etcd, nats

SMOKE = run_command.ROOT / "suites" / "trials" / "smoke.toml"
BRIEF = (
    *("--duration", "36s", "--rhythm", "quiet_s=2,fault_s=5,recovery_s=7"),
    *("--load", "rate=100"),  # a busy machine takes seconds to elect
)
CUT = """
[[fault]]
kind = "partition"
at_s = 0.5
for_s = 55.0
target = "master"
params = { shape = "isolate" }
"""
CUT_OFF = r"fault 0: partition on .*: observed"
ENDS_WITHIN_S = 60.0  # a lease is 20 s
FEW = ("--nodes", "controller=1,broker=2")  # quicker to raise
SPLIT = run_command.PLANS / "redis-split.toml"
CLUSTER_SPLIT = run_command.PLANS / "redis-cluster-split.toml"
REDIS: Mapping[str, tuple[object, ...]] = {
    # nothing is broken, so nobody may be taken for dead, however busy the machine is
    "redis-quiet": (
        *("run", "messages", "--system", "redis", "--duration", "8s", "--load", "rate=200"),
        *("--set", "down-after-milliseconds=20000"),
    ),
    "redis-split": ("run", "messages", "--plan", SPLIT, "--duration", "24s"),
    "redis-streams-split": (
        *("run", "consume", "--plan", SPLIT, "--duration", "24s", "--profile", "streams"),
        *("--load", "rate=100"),
    ),
    # the driver of Redis Cluster, with a program from PyPI
    "valkey-cluster-split": (
        *("run", "messages", "--plan", CLUSTER_SPLIT, "--system", "valkey-cluster"),
        *("--duration", "20s"),
    ),
}
OTHERS = {  # system, or system:profile -> workload
    "etcd": "append",
    "nats": "log",
    "zookeeper": "lock",
    "rabbitmq": "queue",
    "postgres": "register",
    "rabbitmq:streams": "log",
    "kafka": "messages",
    "rocketmq": "messages",
    "dledger": "log",
    **dict.fromkeys(("redis-cluster", "valkey", "valkey-cluster"), "messages"),
}
OUTSIDE: Mapping[str, tuple[object, ...]] = {
    # a killed leader of NATS would have to be down for three times its detection time
    "docker": (
        *("run", "register", "--system", outside_systems.OWN_ETCD, "--duration", "12s"),
        *("--faults", "kill", "--targets", "one follower", "--short-faults"),
        *("--rhythm", "quiet_s=4,fault_s=3,recovery_s=4"),
    ),
    "ssh": ("run", "messages", "--system", outside_systems.OWN_NATS, "--duration", "4s"),
}
ORIGINAL = {"docker": etcd.PROGRAM, "ssh": nats.PROGRAM}  # of the copies
KILLS = 3
BESIDE_TESTS_MS = 3000.0  # how late a row may be recorded while other tests run
SMALL = "/tmp/small"
LITTLE_MB, ENOUGH_MB = 32, 250
HEAVY = (
    *("messages", "--duration", "60s", *FEW, "--set", "mappedFileSizeCommitLog=4194304"),
    *("--load", "rate=1000,body_bytes=2000"),
)


@dataclass(frozen=True)
class Left:
    """What was seen of a run that was killed or ended early, and of what cleaned up after it."""

    done: run_command.FinishedCommand
    healed: run_command.FinishedCommand
    again: run_command.FinishedCommand


def smoke(host_lab: HostLab, folder: Path, *flags: object) -> run_command.FinishedCommand:
    """The trial that is the same on every kind of hosts."""
    before = host_lab.left()
    done = host_lab.seatrial("run", SMOKE, *(flags or BRIEF), runs=folder)
    host_lab.is_as(before)
    return done


def losing(
    host_lab: HostLab, folder: Path, plan: str, profile: str, *flags: object
) -> run_command.FinishedCommand:
    """A plan that aims at the acknowledgement rule."""
    before = host_lab.left()
    asked = ("--profile", profile, "--plan", run_command.PLANS / f"{plan}.toml", *flags)
    done = host_lab.seatrial("run", "messages", *asked, runs=folder)
    host_lab.is_as(before)
    return done


def foreign(host_lab: HostLab, folder: Path, name: str) -> run_command.FinishedCommand:
    """A trial of Redis, by its name in `REDIS`."""
    before = host_lab.left()
    done = host_lab.seatrial(*REDIS[name], runs=folder)
    host_lab.is_as(before)
    return done


def outside(host_lab: HostLab, folder: Path) -> run_command.FinishedCommand:
    """A trial of a system whose driver belongs to a package outside the repository: etcd in
    containers, NATS over SSH. Its program is on this machine alone; from inside a host lab it
    could not be fetched."""
    resolve(ORIGINAL[host_lab.kind])
    before = host_lab.left()
    found = outside_systems.install(folder / "site")
    lab = replace(host_lab, env={**host_lab.env, **found})
    command = (*OUTSIDE[lab.kind], "--load", "rate=100", "--no-report")
    done = lab.seatrial(*command, runs=folder / "runs")
    host_lab.is_as(before)
    return done


def other_system(host_lab: HostLab, folder: Path, name: str) -> run_command.FinishedCommand:
    """A trial of another system, by its name in the tables above, in which a follower is killed."""
    before = host_lab.left()
    faults = ("--faults", "kill", "--targets", "one follower", "--short-faults")
    times = ("--duration", "29s", "--rhythm", "quiet_s=8,fault_s=15,recovery_s=5")
    times += ("--recover-within", "90s")  # JVMs start slowly
    system, _, profile = name.partition(":")
    what = ("run", OTHERS[name], "--system", system, "--load", "rate=100")
    what += ("--profile", profile) if profile else ()
    what += ("--load", "objects=1") if system == "dledger" else ()  # it has one log
    done = host_lab.seatrial(*what, *faults, *times, "--no-report", runs=folder)
    host_lab.is_as(before)
    return done


def faults(host_lab: HostLab, folder: Path) -> run_command.FinishedCommand:
    """Every fault, one after the other."""
    before = host_lab.left()
    done = host_lab.seatrial("list", "faults", "--verify", runs=folder)
    host_lab.is_as(before)
    return done


def killed(host_lab: HostLab, folder: Path) -> Left:
    """kill -9 of the command and its runner while a master is cut off. The cut ends by itself."""
    before = host_lab.left()
    command = cut_off(host_lab, folder)
    try:
        runner = command.runner()
        assert host_lab.cuts()
        os.kill(runner, signal.SIGKILL)
        command.signal(signal.SIGKILL)
        run_command.wait(lambda: not host_lab.cuts(), ENDS_WITHIN_S, "the end of the partition")
        command.gone()
    finally:
        command.close()
    healed, again = heal(host_lab, folder), heal(host_lab, folder)
    host_lab.is_as(before)
    return Left(host_lab.seatrial("check", folder / "latest", runs=folder), healed, again)


def stopped(host_lab: HostLab, folder: Path) -> run_command.FinishedCommand:
    """The runner is stopped until its agents have given it up; then it goes on."""
    before = host_lab.left()
    command = cut_off(host_lab, folder)
    try:
        runner = command.runner()
        os.kill(runner, signal.SIGSTOP)
        assert host_lab.cuts()
        run_command.wait(lambda: not host_lab.cuts(), ENDS_WITHIN_S, "the end of the partition")
        os.kill(runner, signal.SIGCONT)
        done = command.end()
        command.gone()
    finally:
        command.close()
    host_lab.is_as(before)
    return done


def removed(host_lab: HostLab, folder: Path, lab: DockerLab) -> run_command.FinishedCommand:
    """Somebody removes the container of a slave while the master is cut off."""
    before = host_lab.left()
    command = cut_off(host_lab, folder)
    try:
        client = docker.DockerClient(base_url=lab.host)
        label = f"seatrial.node={slave(folder)}"
        (node,) = client.containers.list(filters={"label": [label, "seatrial=node"]})
        node.remove(force=True)
        client.close()
        done = command.end()
    finally:
        command.close()
    host_lab.is_as(before)
    return done


def hung(host_lab: HostLab, folder: Path, lab: SshLab) -> Left:
    """Every sshd process of the cut-off master's host is stopped; after the run they go on."""
    before = host_lab.left()
    command = cut_off(host_lab, folder)
    try:
        host = host_of(lab, folder, master(folder))
        host.signal_sshd("STOP")
        try:
            done = command.end()
            assert not host_lab.cuts()
        finally:
            host.signal_sshd("CONT")
    finally:
        command.close()
    healed, again = heal(host_lab, folder), heal(host_lab, folder)
    host_lab.is_as(before)
    return Left(done, healed, again)


def full_containers(host_lab: HostLab, folder: Path) -> run_command.FinishedCommand:
    """Every node has little room, and the load wants more."""
    before = host_lab.left()
    done = host_lab.seatrial("run", *HEAVY, runs=folder, disk=f"{LITTLE_MB}m")
    host_lab.is_as(before)
    return done


def full_host(host_lab: HostLab, folder: Path, lab: SshLab) -> run_command.FinishedCommand:
    """Somebody else fills the disk of the first broker's host."""
    before = host_lab.left()
    with small_disks(lab):
        command = host_lab.under_way(
            "run", *HEAVY, runs=folder, inventory=lab.inventory(folder=SMALL)
        )
        try:
            command.until("phase: load")
            host = host_of(lab, folder, "broker-1")
            host.run("sh", "-c", f"cat /dev/zero > {SMALL}/filler || :")
            done = command.end()
            host.run("rm", f"{SMALL}/filler")
        finally:
            command.close()
        for host in lab.standing:
            assert host.run("ls", "-A", SMALL) == ""
    host_lab.is_as(before)
    return done


@contextmanager
def small_disks(lab: SshLab) -> Iterator[None]:
    """On every host, room for a run and not much more."""
    for host in lab.standing:
        host.run("mkdir", SMALL)
        host.run("mount", "-t", "tmpfs", "-o", f"size={ENOUGH_MB}m", "none", SMALL)
    yield
    for host in lab.standing:
        host.run("umount", SMALL)
        host.run("rmdir", SMALL)


def random_kills(host_lab: HostLab, folder: Path) -> list[str]:
    """A few kills at random moments, what was seen of each. `kills.py` does hundreds."""
    seen = []
    for number, moment in enumerate(kills.moments(KILLS, seed=7)):
        place = folder / str(number)
        place.mkdir(parents=True)
        seen.append(kills.killed_at_random(host_lab, moment, place, BESIDE_TESTS_MS))
    return seen


def kept(host_lab: HostLab, folder: Path) -> dict[str, run_command.FinishedCommand]:
    """A cluster that is raised, looked at, and taken down: what each verb said."""
    before = host_lab.left()
    said = {"up": host_lab.seatrial("cluster", "up", "--runs", folder, runs=folder)}

    def ask(verb: str, *words: str) -> run_command.FinishedCommand:
        return host_lab.seatrial("cluster", verb, "--runs", folder, *words, runs=folder)

    def whole() -> bool:
        said["status"] = ask("status")
        return "with full redundancy" in said["status"].out

    try:
        run_command.wait(whole, run_command.LONGEST_S, "full redundancy")
        said["logs"] = ask("logs", "broker-2", "--lines", "2")
        said["shell"] = ask("shell", "broker-2", "--", "ip", "-4", "-br", "addr")
        said["heal"] = host_lab.seatrial("heal", "--all", "--runs", folder, runs=folder)
        run_command.wait(whole, run_command.LONGEST_S, "full redundancy")
    finally:
        said["down"] = ask("down")
    host_lab.is_as(before)
    return said


# -------------------------------------------------------------------------------------- the parts


def cut_off(host_lab: HostLab, folder: Path) -> MarkedCommand:
    """A trial whose master is cut off, and stays so for a minute unless somebody heals it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cut.toml").write_text(CUT)
    plan = ("--plan", folder / "cut.toml", "--duration", "60s", "--load", "rate=100")
    command = host_lab.under_way("run", "messages", *plan, *FEW, runs=folder)
    try:
        command.until(CUT_OFF)
    except BaseException:
        command.close()
        raise
    return command


def heal(host_lab: HostLab, folder: Path) -> run_command.FinishedCommand:
    return host_lab.seatrial("heal", "--all", "--runs", folder, runs=folder)


def master(folder: Path) -> str:
    """Whom the partition cut off: what the ledger holds an intent for."""
    intent = json.loads((folder / "latest" / "ledger.jsonl").read_text().splitlines()[0])
    (node,) = intent["nodes"]
    return str(node)


def slave(folder: Path) -> str:
    """A broker that is not cut off."""
    names = json.loads((folder / "latest" / "names.json").read_text())
    brokers = [node for node, role in names["roles"].items() if role == "broker"]
    return next(node for node in brokers if node != master(folder))


def host_of(lab: SshLab, folder: Path, node: str) -> LabHost:
    names = json.loads((folder / "latest" / "names.json").read_text())
    address = names["addresses"][node]
    return next(host for host in lab.standing if host.address == address)


BY_NAME: Mapping[str, Callable[[HostLab, Path, Any], Any]] = {
    "smoke": lambda host_lab, folder, lab: smoke(host_lab, folder),
    "killed": lambda host_lab, folder, lab: killed(host_lab, folder),
    "stopped": lambda host_lab, folder, lab: stopped(host_lab, folder),
    "kept": lambda host_lab, folder, lab: kept(host_lab, folder),
    "outside": lambda host_lab, folder, lab: outside(host_lab, folder),
    "random_kills": lambda host_lab, folder, lab: random_kills(host_lab, folder),
    "removed": removed,
    "hung": hung,
    "full_host": full_host,
}
