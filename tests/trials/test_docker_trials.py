"""Whole trials on a Docker engine by the real command, which leave the engine as it was.

The trials run in the background, one after another, in the Docker lab; each checks itself
that `docker ps -a`, networks, volumes and the engine's iptables rules are as before. Trials that
depend little on the kind of hosts run on SSH hosts alone (test_ssh_trials.py); the nightly job runs
all of them on both (tests/acceptance/host_trials.py).
"""

import re
from pathlib import Path

import docker
import pytest
import run_command
import trial_assertions
import trial_scenarios
from docker_lab import DockerLab
from host_labs import HostLab

pytestmark = pytest.mark.bed

MADE = "12 containers, 1 network and 6 volumes"
TAKEN = "198.19.77.0/24"


def test_the_trial_of_all_hosts_is_valid_in_containers(smoke: run_command.FinishedCommand) -> None:
    """All four kinds of faults at work, all that was recorded judged, the nodes' files here."""
    trial_assertions.took_effect(smoke)
    trial_assertions.was_cleaned_up(smoke)


def test_a_killed_driver_leaves_no_fault_and_heal_removes_the_rest(
    killed: trial_scenarios.Left,
) -> None:
    """kill -9 of command and runner during a partition: the agents undo it as their streams end;
    `heal --all` removes the containers; the run can be judged."""
    trial_assertions.healed(killed, removed=MADE)
    trial_assertions.interrupted(killed.done)


def test_a_container_removed_by_hand_ends_the_run(removed: run_command.FinishedCommand) -> None:
    """Unknown, and it says which node; the cut was healed, the rest was read and removed."""
    trial_assertions.ended_early(
        removed, "NODE_GONE", r"broker-\d is gone for good \(its agent ended\)"
    )
    (fault,) = run_command.faults(removed.run)
    assert fault["heal"] is not None
    assert run_command.state(removed.run)["ended"]


def test_a_cluster_can_be_kept_and_looked_at(kept: dict[str, run_command.FinishedCommand]) -> None:
    """cluster up, status, logs, shell and down."""
    trial_assertions.was_inspected(kept)


def test_a_driver_of_another_package_and_its_program_reach_containers(
    outside: run_command.FinishedCommand,
) -> None:
    """etcd: neither the driver nor the program is in the image of nodes before."""
    trial_assertions.ran_outside(outside, "etcd")
    assert run_command.faults(outside.run)


@pytest.mark.parametrize(
    ("engine", "code", "says"),
    [
        ("unix:///nowhere/docker.sock", 255, "no Docker engine runs at unix:///nowhere.*start"),
        ("tcp://127.0.0.1:9", 255, "connection was refused"),
        ("ftp://engine", 255, "DOCKER_HOST=ftp://engine is not the address of a Docker engine"),
    ],
)
def test_an_engine_that_is_not_there_is_one_sentence(
    host_lab: HostLab, tmp_path: Path, engine: str, code: int, says: str
) -> None:
    """What and where, before anything is begun."""
    env = {**host_lab.env, "DOCKER_HOST": engine}
    asked = ("run", trial_scenarios.SMOKE, "--hosts", "docker")
    done = run_command.seatrial(
        *asked, runs=tmp_path / "runs", wrapper=host_lab.inside([]), env=env
    )
    trial_assertions.refused(done, code, says)


@pytest.mark.parametrize(
    ("bed", "code", "says"),
    [
        (
            {"subnet": "198.19.77.128/25"},
            255,
            f"overlaps {TAKEN}.*to fix it: leave out bed.subnet",
        ),
        ({"subnet": "somewhere"}, 254, "bed.subnet must be an IPv4 network"),
        ({"room": "large"}, 254, "bed.room is not an option of docker hosts; there are: base"),
    ],
)
def test_options_that_cannot_be_are_one_sentence(
    docker_lab: DockerLab,
    host_lab: HostLab,
    tmp_path: Path,
    bed: dict[str, str],
    code: int,
    says: str,
) -> None:
    """254 for what makes no sense, 255 for what this engine lacks; nothing is begun."""
    client = docker.DockerClient(base_url=docker_lab.host)
    pool = docker.types.IPAMPool(subnet=TAKEN)
    taken = client.networks.create("taken", ipam=docker.types.IPAMConfig(pool_configs=[pool]))
    try:
        done = host_lab.seatrial("run", trial_scenarios.SMOKE, runs=tmp_path / "runs", **bed)
    finally:
        taken.remove()
        client.close()
    trial_assertions.refused(done, code, says)


def test_a_subnet_with_too_few_addresses_is_one_sentence(host_lab: HostLab, tmp_path: Path) -> None:
    """254 before anything is begun: whether the nodes find a place needs no engine."""
    asked = ("run", trial_scenarios.SMOKE, "--nodes", "broker=9")
    done = host_lab.seatrial(*asked, runs=tmp_path / "runs", subnet="198.19.78.0/28")
    trial_assertions.refused(done, 254, "198.19.78.0/28 has no room for 15 nodes")


def test_an_image_that_cannot_be_had_is_one_sentence(host_lab: HostLab, tmp_path: Path) -> None:
    """Whether a registry has it is known when it was asked: nothing was made on the engine then."""
    done = host_lab.seatrial("run", trial_scenarios.SMOKE, runs=tmp_path / "runs", base="nosuch:1")
    assert done.code == 255, done.words
    said = done.err.strip().splitlines()[-1]
    assert re.match(r"seatrial: the image nosuch:1 .* cannot be pulled: .*; to fix it: ", said)
    assert not (done.run / "verdict.json").exists()
    assert not [
        name for names in host_lab.left()["containers"] for name in names if done.run.name in name
    ]
