"""One kind of hosts in the tests: how `seatrial` is started there, and what a run leaves behind.

A host lab wraps a lab of tests/labs. Its commands run in the lab's network, without the user's own
keys and configuration; the files that they write are in the usual places.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker
import leftovers
import run_command
from docker_lab import DockerLab
from ssh_lab import LabHost, SshLab

SETTLED_WITHIN_S = 30.0
NODES = {"label": "seatrial=node"}
LEFT = """
iptables -S | grep -e SEATRIAL -e DROP
ls -A /tmp /var/tmp
ls /run | grep seatrial
ps axo args=
"""
NOBODYS = ("sshd", "ps axo", "sh -c")  # of the lab, and of the question itself


@dataclass(frozen=True)
class HostLab:
    """`bed`: the options that every trial needs there. `left`: what is there now, of whomever."""

    kind: str
    bed: Mapping[str, object]
    inside: Callable[[Sequence[str]], list[str]]
    env: Mapping[str, str]
    left: Callable[[], Any]
    cuts: Callable[[], Any]  # rules that drop packets, anywhere

    def seatrial(self, *words: object, runs: Path, **bed: object) -> run_command.FinishedCommand:
        """One command to its end. `bed`: more options."""
        asked = (*words, *self._flags(words, bed))
        return run_command.seatrial(*asked, runs=runs, wrapper=self.inside([]), env=self.env)

    def under_way(self, *words: object, runs: Path, **bed: object) -> "MarkedCommand":
        return MarkedCommand(self, (*words, *self._flags(words, bed)), runs)

    def is_as(self, before: Any) -> None:
        """Wait until nothing more is there than before; AssertionError when something stays."""
        deadline = time.monotonic() + SETTLED_WITHIN_S
        while (now := self.left()) != before:
            assert time.monotonic() < deadline, f"{before} became {now}"
            time.sleep(0.1)

    def _flags(self, words: Sequence[object], bed: Mapping[str, object]) -> list[object]:
        if words[0] == "run" or words[:2] in (("cluster", "up"), ("list", "faults")):
            options = ",".join(f"{key}={value}" for key, value in {**self.bed, **bed}.items())
            return ["--hosts", self.kind, *(["--bed", options] if options else [])]
        return []


class MarkedCommand(run_command.RunningCommand):
    """A command under way whose processes on this machine are known."""

    def __init__(self, host_lab: HostLab, words: Sequence[object], runs: Path) -> None:
        mark = os.urandom(16).hex()
        env = {**host_lab.env, leftovers.MARK: mark}
        super().__init__(*words, runs=runs, wrapper=host_lab.inside([]), **env)
        self.belongings = leftovers.Belongings(self.process.pid, mark)

    def runner(self) -> int:
        """The pid of the process that carries the trial out."""
        self.belongings.look()
        self.belongings.own.clear()  # the network is the lab's
        found = [p for p, _ in self.belongings.seen if "harness.run.runner" in leftovers.command(p)]
        assert len(found) == 1, found
        return found[0]

    def gone(self) -> None:
        """Wait until no process of it is there."""
        left = self.belongings.left
        run_command.wait(lambda: not left(), SETTLED_WITHIN_S, f"{left()} ending")


def docker_host_lab(lab: DockerLab, home: Path) -> HostLab:
    """`home`: of whoever starts commands."""
    left, cuts = partial(_engine, lab), partial(_cuts, lab)
    return HostLab("docker", {}, lab.inside, _env(home, lab.environment), left, cuts)


def ssh_host_lab(lab: SshLab, home: Path) -> HostLab:
    return HostLab(
        "ssh",
        {"inventory": lab.inventory()},
        lab.inside,
        _env(home, {k: v for k, v in os.environ.items() if k != "SSH_AUTH_SOCK"}),
        lambda: {host.name: left_on(host) for host in lab.standing},
        lambda: [line for host in lab.standing for line in left_on(host) if "-j DROP" in line],
    )


def local_host_lab(lab: None, home: Path) -> HostLab:
    """This machine itself, of which no run may touch anything."""
    left, env = leftovers.machine, _env(home, os.environ)
    return HostLab("local", {}, list, env, left, list)


BY_KIND: Mapping[str, Callable[[Any, Path], HostLab]] = {
    "local": local_host_lab,
    "docker": docker_host_lab,
    "ssh": ssh_host_lab,
}


def _env(home: Path, env: Mapping[str, str]) -> Mapping[str, str]:
    """With another home, but the same cache: a Java machine starts faster with it."""
    cache = env.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    return {**env, "HOME": str(home), "XDG_CACHE_HOME": cache}


def left_on(host: LabHost) -> list[str]:
    """Rules, files, sockets and processes."""
    said = host.run("sh", "-c", LEFT).splitlines()
    return sorted(line for line in said if not line.startswith(NOBODYS))


def _engine(lab: DockerLab) -> dict[str, Any]:
    """Images aside, which are meant to stay."""
    client = docker.DockerClient(base_url=lab.host)
    try:
        api = client.api
        rules = (line.split(" [")[0] for line in lab.rules().splitlines() if line[:1] != "#")
        return {
            "containers": [one["Names"] for one in api.containers(all=True)],
            "networks": sorted(one["Name"] for one in api.networks()),
            "volumes": [one["Name"] for one in api.volumes()["Volumes"] or ()],
            "rules": sorted(rules),
        }
    finally:
        client.close()


def _cuts(lab: DockerLab) -> list[str]:
    client = docker.DockerClient(base_url=lab.host)
    try:
        found = []
        for node in client.containers.list(filters=NODES):
            shown: bytes = node.exec_run(["iptables", "-S"]).output
            found += [line for line in shown.decode().splitlines() if "-j DROP" in line]
        return found
    finally:
        client.close()
