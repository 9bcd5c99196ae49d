"""Trials on hosts that outlive them, and what people and machines do to them: one function each.

A passage takes a harbour and a folder, checks what must hold whoever asks, and gives what it saw.
Whatever it began, the harbour is as it was when it returns.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import kills
import sailing
from docker_lab import DockerLab
from harbours import Harbour, Marked
from ssh_lab import LabHost, SshLab

SMOKE = sailing.ROOT / "suites" / "trials" / "smoke.toml"
BRIEF = (
    *("--duration", "36s", "--rhythm", "quiet_s=2,fault_s=5,recovery_s=7"),
    *("--load", "rate=100"),  # a busy machine takes seconds to elect
)
UNSAFE = ("isolate-then-kill", "unsafe-default", "--duration", "20s")
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
SPLIT = sailing.PLANS / "redis-split.toml"
REDIS: Mapping[str, tuple[object, ...]] = {
    # nothing is broken, so nobody may be taken for dead, however busy the machine is
    "redis-quiet": (
        *("run", "messages", "--system", "redis", "--duration", "8s", "--load", "rate=200"),
        *("--set", "down-after-milliseconds=20000"),
    ),
    "redis-split": ("run", "messages", "--plan", SPLIT, "--duration", "24s"),
}
KILLS = 3
SMALL = "/tmp/small"
LITTLE_MB, ENOUGH_MB = 32, 250
HEAVY = (
    *("messages", "--duration", "60s", *FEW, "--set", "mappedFileSizeCommitLog=4194304"),
    *("--load", "rate=1000,body_bytes=2000"),
)


@dataclass(frozen=True)
class Left:
    """What was seen of a run that was killed or ended early, and of what cleaned up after it."""

    voyage: sailing.Voyage
    healed: sailing.Voyage
    again: sailing.Voyage


def smoke(harbour: Harbour, folder: Path, *flags: object) -> sailing.Voyage:
    """The trial that is the same on every kind of hosts."""
    before = harbour.left()
    voyage = harbour.seatrial("run", SMOKE, *(flags or BRIEF), runs=folder)
    harbour.is_as(before)
    return voyage


def losing(
    harbour: Harbour, folder: Path, plan: str, profile: str, *flags: object
) -> sailing.Voyage:
    """A plan that aims at the acknowledgement rule."""
    before = harbour.left()
    asked = ("--profile", profile, "--plan", sailing.PLANS / f"{plan}.toml", *flags)
    voyage = harbour.seatrial("run", "messages", *asked, runs=folder)
    harbour.is_as(before)
    return voyage


def foreign(harbour: Harbour, folder: Path, name: str) -> sailing.Voyage:
    """A trial of Redis, by its name in `REDIS`."""
    before = harbour.left()
    voyage = harbour.seatrial(*REDIS[name], runs=folder)
    harbour.is_as(before)
    return voyage


def faults(harbour: Harbour, folder: Path) -> sailing.Voyage:
    """Every fault, one after the other."""
    before = harbour.left()
    voyage = harbour.seatrial("list", "faults", "--verify", runs=folder)
    harbour.is_as(before)
    return voyage


def killed(harbour: Harbour, folder: Path) -> Left:
    """kill -9 of the command and its runner while a master is cut off. The cut ends by itself."""
    before = harbour.left()
    command = cut_off(harbour, folder)
    try:
        runner = command.runner()
        assert harbour.cuts()
        os.kill(runner, signal.SIGKILL)
        command.signal(signal.SIGKILL)
        sailing.wait(lambda: not harbour.cuts(), ENDS_WITHIN_S, "the end of the partition")
        command.gone()
    finally:
        command.close()
    healed, again = heal(harbour, folder), heal(harbour, folder)
    harbour.is_as(before)
    return Left(harbour.seatrial("check", folder / "latest", runs=folder), healed, again)


def stopped(harbour: Harbour, folder: Path) -> sailing.Voyage:
    """The runner is stopped until its agents have given it up; then it goes on."""
    before = harbour.left()
    command = cut_off(harbour, folder)
    try:
        runner = command.runner()
        os.kill(runner, signal.SIGSTOP)
        assert harbour.cuts()
        sailing.wait(lambda: not harbour.cuts(), ENDS_WITHIN_S, "the end of the partition")
        os.kill(runner, signal.SIGCONT)
        voyage = command.end()
        command.gone()
    finally:
        command.close()
    harbour.is_as(before)
    return voyage


def removed(harbour: Harbour, folder: Path, lab: DockerLab) -> sailing.Voyage:
    """Somebody removes the container of a slave while the master is cut off."""
    before = harbour.left()
    command = cut_off(harbour, folder)
    try:
        client = docker.DockerClient(base_url=lab.host)
        label = f"seatrial.node={slave(folder)}"
        (node,) = client.containers.list(filters={"label": [label, "seatrial=node"]})
        node.remove(force=True)
        client.close()
        voyage = command.end()
    finally:
        command.close()
    harbour.is_as(before)
    return voyage


def hung(harbour: Harbour, folder: Path, lab: SshLab) -> Left:
    """Every sshd process of the cut-off master's host is stopped; after the run they go on."""
    before = harbour.left()
    command = cut_off(harbour, folder)
    try:
        host = host_of(lab, folder, master(folder))
        host.signal_sshd("STOP")
        try:
            voyage = command.end()
            assert not harbour.cuts()
        finally:
            host.signal_sshd("CONT")
    finally:
        command.close()
    healed, again = heal(harbour, folder), heal(harbour, folder)
    harbour.is_as(before)
    return Left(voyage, healed, again)


def full_containers(harbour: Harbour, folder: Path) -> sailing.Voyage:
    """Every node has little room, and the load wants more."""
    before = harbour.left()
    voyage = harbour.seatrial("run", *HEAVY, runs=folder, disk=f"{LITTLE_MB}m")
    harbour.is_as(before)
    return voyage


def full_host(harbour: Harbour, folder: Path, lab: SshLab) -> sailing.Voyage:
    """Somebody else fills the disk of the first broker's host."""
    before = harbour.left()
    with small_disks(lab):
        command = harbour.under_way(
            "run", *HEAVY, runs=folder, inventory=lab.inventory(folder=SMALL)
        )
        try:
            command.until("phase: load")
            host = host_of(lab, folder, "broker-1")
            host.run("sh", "-c", f"cat /dev/zero > {SMALL}/filler || :")
            voyage = command.end()
            host.run("rm", f"{SMALL}/filler")
        finally:
            command.close()
        for host in lab.standing:
            assert host.run("ls", "-A", SMALL) == ""
    harbour.is_as(before)
    return voyage


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


def random_kills(harbour: Harbour, folder: Path) -> list[str]:
    """A few kills at random moments, what was seen of each. `kills.py` does hundreds."""
    seen = []
    for number, moment in enumerate(kills.moments(KILLS, seed=7)):
        place = folder / str(number)
        place.mkdir(parents=True)
        seen.append(kills.killed_at_random(harbour, moment, place))
    return seen


def kept(harbour: Harbour, folder: Path) -> dict[str, sailing.Voyage]:
    """A cluster that is raised, looked at, and taken down: what each verb said."""
    before = harbour.left()
    said = {"up": harbour.seatrial("cluster", "up", "--runs", folder, runs=folder)}

    def ask(verb: str, *words: str) -> sailing.Voyage:
        return harbour.seatrial("cluster", verb, "--runs", folder, *words, runs=folder)

    try:
        said["status"] = ask("status")
        said["logs"] = ask("logs", "broker-2", "--lines", "2")
        said["shell"] = ask("shell", "broker-2", "--", "ip", "-4", "-br", "addr")
        said["heal"] = harbour.seatrial("heal", "--all", "--runs", folder, runs=folder)
        said["still"] = ask("status")
    finally:
        said["down"] = ask("down")
    harbour.is_as(before)
    return said


# -------------------------------------------------------------------------------------- the parts


def cut_off(harbour: Harbour, folder: Path) -> Marked:
    """A trial whose master is cut off, and stays so for a minute unless somebody heals it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cut.toml").write_text(CUT)
    plan = ("--plan", folder / "cut.toml", "--duration", "60s")
    command = harbour.under_way("run", "messages", *plan, *FEW, runs=folder)
    try:
        command.until(CUT_OFF)
    except BaseException:
        command.close()
        raise
    return command


def heal(harbour: Harbour, folder: Path) -> sailing.Voyage:
    return harbour.seatrial("heal", "--all", "--runs", folder, runs=folder)


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


BY_NAME: Mapping[str, Callable[[Harbour, Path, Any], Any]] = {
    "smoke": lambda harbour, folder, lab: smoke(harbour, folder),
    "losing": lambda harbour, folder, lab: losing(harbour, folder, *UNSAFE),
    "killed": lambda harbour, folder, lab: killed(harbour, folder),
    "stopped": lambda harbour, folder, lab: stopped(harbour, folder),
    "kept": lambda harbour, folder, lab: kept(harbour, folder),
    "random_kills": lambda harbour, folder, lab: random_kills(harbour, folder),
    "removed": removed,
    "hung": hung,
    "full_containers": lambda harbour, folder, lab: full_containers(harbour, folder),
    "full_host": full_host,
}
