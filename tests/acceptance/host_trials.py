"""Run all trial scenarios on Docker and SSH hosts of the labs, which outlive the command.

    python tests/acceptance/host_trials.py                   both kinds of hosts
    python tests/acceptance/host_trials.py docker            one kind
    python tests/acceptance/host_trials.py --only smoke      one scenario
    python tests/acceptance/host_trials.py --times 5         each scenario five times

The scenarios: the smoke trial for its whole 90 s; each fault, verified; each unsafe plan, with as
many lost messages as the naive count; Redis, without faults and with a partition; a driver of
another package; etcd, NATS, ZooKeeper, Kafka, RocketMQ, DLedger, RabbitMQ, PostgreSQL, Redis
Cluster and Valkey; killed and stopped drivers; nodes that die, full disks, clusters that are kept.
The exit code is 1 at the first deviation.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lab_paths  # noqa: F401 - the labs below are found by it

# isort: split

import docker_lab
import host_labs
import ssh_lab
import trial_assertions
import trial_scenarios
from host_labs import HostLab
from losses import LEAST

LABS: Mapping[str, Callable[[], Any]] = {
    "docker": docker_lab.raised,
    "ssh": lambda: ssh_lab.raised(ssh_lab.HOSTS),
}
UNSAFE = {**dict.fromkeys(LEAST, "unsafe-default"), "shrink-then-kill": "unclean"}
MADE = {"docker": "12 containers, 1 network and 6 volumes", "ssh": "6 folders"}
PROGRAMS = {
    "nats": "nats-server",
    **dict.fromkeys(("rabbitmq", "rabbitmq:streams"), "rabbitmqctl"),
    "redis-cluster": "redis-server",
    **dict.fromkeys(("valkey", "valkey-cluster"), "valkey-server"),
}
Shown = tuple[str, Callable[[Path], str]]


def shown(host_lab: HostLab, lab: Any) -> Iterator[Shown]:
    """A name, and what shows it: AssertionError at a deviation, else what was seen."""

    def smoke(folder: Path) -> str:
        done = trial_scenarios.smoke(host_lab, folder, "--duration", "90s")
        trial_assertions.took_effect(done)
        trial_assertions.was_cleaned_up(done)
        return f"valid of {done.verdict['events']['ops']:,} events"

    def faults(folder: Path) -> str:
        done = trial_scenarios.faults(host_lab, folder)
        assert done.code == 0, done.words
        return f"each was seen, and seen healed\n{done.out}"

    def losing(plan: str, profile: str) -> Callable[[Path], str]:
        def lost(folder: Path) -> str:
            done = trial_scenarios.losing(host_lab, folder, plan, profile)
            trial_assertions.lost_what_was_acknowledged(done, LEAST.get(plan, 1))
            return f"{done.findings['LOST_ACKED']:,} lost, by both counts"

        return lost

    def redis_quiet(folder: Path) -> str:
        done = trial_scenarios.foreign(host_lab, folder, "redis-quiet")
        trial_assertions.whole(done, least=100)
        return str(done.verdict["sentence"])

    def redis_split(folder: Path) -> str:
        done = trial_scenarios.foreign(host_lab, folder, "redis-split")
        trial_assertions.lost_what_was_acknowledged(done, least=100)
        return f"{done.findings['LOST_ACKED']:,} lost, by both counts"

    def outside(folder: Path) -> str:
        done = trial_scenarios.outside(host_lab, folder)
        trial_assertions.ran_outside(done, {"docker": "etcd", "ssh": "nats-server"}[host_lab.kind])
        return str(done.verdict["sentence"])

    def other(name: str) -> Callable[[Path], str]:
        def valid(folder: Path) -> str:
            done = trial_scenarios.other_system(host_lab, folder, name)
            trial_assertions.ran_outside(done, PROGRAMS.get(name, name))
            return str(done.verdict["sentence"])

        return valid

    def killed(folder: Path) -> str:
        left = trial_scenarios.killed(host_lab, folder)
        trial_assertions.healed(left, MADE[host_lab.kind])
        trial_assertions.interrupted(left.done)
        return left.healed.out.strip()

    def kept(folder: Path) -> str:
        trial_assertions.was_inspected(trial_scenarios.kept(host_lab, folder))
        return "up, looked at, down"

    yield "smoke", smoke
    yield "faults", faults
    yield from ((plan, losing(plan, profile)) for plan, profile in UNSAFE.items())
    yield "redis-quiet", redis_quiet
    yield "redis-split", redis_split
    yield "outside", outside
    yield from ((name, other(name)) for name in trial_scenarios.OTHERS)
    yield "killed", killed
    yield "kept", kept
    yield from (of_docker if host_lab.kind == "docker" else of_ssh)(host_lab, lab)


def of_docker(host_lab: HostLab, lab: docker_lab.DockerLab) -> Iterator[Shown]:
    def removed(folder: Path) -> str:
        done = trial_scenarios.removed(host_lab, folder, lab)
        trial_assertions.ended_early(done, "NODE_GONE", "its agent ended")
        return str(done.verdict["sentence"])

    def full(folder: Path) -> str:
        done = trial_scenarios.full_containers(host_lab, folder)
        trial_assertions.ended_early(done, "DISK_FULL", "no space was left for broker-")
        return str(done.verdict["sentence"])

    yield "removed", removed
    yield "full", full


def of_ssh(host_lab: HostLab, lab: ssh_lab.SshLab) -> Iterator[Shown]:
    def stopped(folder: Path) -> str:
        done = trial_scenarios.stopped(host_lab, folder)
        trial_assertions.ended_early(done, "NODE_GONE", "no driver was heard")
        return str(done.verdict["sentence"])

    def hung(folder: Path) -> str:
        left = trial_scenarios.hung(host_lab, folder, lab)
        trial_assertions.ended_early(left.done, "NODE_GONE", "was not heard")
        trial_assertions.healed(left, "1 folder")
        return f"{left.done.verdict['sentence']}; {left.healed.out.strip()}"

    def full(folder: Path) -> str:
        done = trial_scenarios.full_host(host_lab, folder, lab)
        trial_assertions.ended_early(done, "DISK_FULL", "no space was left for broker-1")
        return str(done.verdict["sentence"])

    yield "stopped", stopped
    yield "hung", hung
    yield "full", full


def show_all(kind: str, only: str, folder: Path) -> bool:
    (folder / "home").mkdir(parents=True)
    with LABS[kind]() as lab:
        for name, show in shown(host_labs.BY_KIND[kind](lab, folder / "home"), lab):
            if only not in ("", name):
                continue
            began = time.monotonic()
            print(f"{kind:6}  {name:24}  ", end="", flush=True)
            try:
                said = show(folder / name)
            except AssertionError as deviation:
                print(f"DEVIATION: {deviation}\nkept in {folder / name}")
                return False
            print(f"{time.monotonic() - began:4.0f} s  {said}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=LABS)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=1)
    asked = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="seatrial-host_trials-"))
    sound = all(
        show_all(kind, asked.only, base / f"{kind}-{number}")
        for number in range(asked.times)
        for kind in ([asked.kind] if asked.kind else LABS)
    )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
