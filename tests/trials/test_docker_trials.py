"""Whole trials on a Docker engine by the real command, and an engine that is left as it was.

The trials are sailed in the background, one after another, in the Docker lab; each checks itself
that `docker ps -a`, networks, volumes and the engine's iptables rules are as before.
"""

import re
from pathlib import Path

import docker
import laws
import passages
import pytest
import sailing
from docker_lab import DockerLab
from harbours import Harbour

pytestmark = [pytest.mark.bed, pytest.mark.spark, pytest.mark.timeout(900)]

MADE = "12 containers, 1 network and 6 volumes"
TAKEN = "198.19.77.0/24"


def test_the_trial_of_all_hosts_is_valid_in_containers(smoke: sailing.Voyage) -> None:
    """All four kinds of faults at work, all that was recorded judged, the nodes' files here."""
    laws.weathered(smoke)
    laws.came_home(smoke)


def test_defaults_lose_what_was_acknowledged(losing: sailing.Voyage) -> None:
    """As on local hosts, and as many as the naive count."""
    laws.lost_what_was_acknowledged(losing, least=1000)


def test_kills_at_random_moments_leave_nothing(random_kills: list[str]) -> None:
    """Processes, rules and folders are gone after `heal`, and what was recorded up to 50 ms before
    the kill is there: `kills.py` asserts it of each."""
    assert len(random_kills) == passages.KILLS


def test_a_killed_driver_leaves_no_fault_and_heal_removes_the_rest(killed: passages.Left) -> None:
    """kill -9 of command and runner during a partition: the agents undo it as their streams end;
    `heal --all` removes the containers; the run can be judged."""
    laws.healed(killed, removed=MADE)
    laws.interrupted(killed.voyage)


def test_a_container_removed_by_hand_ends_the_run(removed: sailing.Voyage) -> None:
    """Unknown, and it says which node; the cut was healed, the rest was read and removed."""
    laws.ended_early(removed, "NODE_GONE", r"broker-\d is gone for good \(its agent ended\)")
    (fault,) = sailing.faults(removed.run)
    assert fault["heal"] is not None
    assert sailing.state(removed.run)["ended"]


def test_a_full_disk_ends_the_run(full_containers: sailing.Voyage) -> None:
    """Unknown, and it says where no space was left; no broker is convicted for it."""
    laws.ended_early(full_containers, "DISK_FULL", "no space was left for broker-")
    assert full_containers.findings["NODE_CRASHED"] == 0


def test_a_cluster_can_be_kept_and_looked_at(kept: dict[str, sailing.Voyage]) -> None:
    """cluster up, status, logs, shell and down."""
    laws.could_be_looked_at(kept)


@pytest.mark.parametrize(
    ("engine", "code", "says"),
    [
        ("unix:///nowhere/docker.sock", 255, "no Docker engine runs at unix:///nowhere.*start"),
        ("tcp://127.0.0.1:9", 255, "connection was refused"),
        ("ftp://engine", 255, "DOCKER_HOST=ftp://engine is not the address of a Docker engine"),
    ],
)
def test_an_engine_that_is_not_there_is_one_sentence(
    harbour: Harbour, tmp_path: Path, engine: str, code: int, says: str
) -> None:
    """What and where, before anything is begun."""
    env = {**harbour.env, "DOCKER_HOST": engine}
    asked = ("run", passages.SMOKE, "--hosts", "docker")
    voyage = sailing.seatrial(*asked, runs=tmp_path / "runs", wrapper=harbour.inside([]), env=env)
    laws.refused(voyage, code, says)


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
    harbour: Harbour,
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
        voyage = harbour.seatrial("run", passages.SMOKE, runs=tmp_path / "runs", **bed)
    finally:
        taken.remove()
        client.close()
    laws.refused(voyage, code, says)


def test_a_subnet_with_too_few_addresses_is_one_sentence(harbour: Harbour, tmp_path: Path) -> None:
    """254 before anything is begun: whether the nodes find a place needs no engine."""
    asked = ("run", passages.SMOKE, "--nodes", "broker=9")
    voyage = harbour.seatrial(*asked, runs=tmp_path / "runs", subnet="198.19.78.0/28")
    laws.refused(voyage, 254, "198.19.78.0/28 has no room for 15 nodes")


def test_an_image_that_cannot_be_had_is_one_sentence(harbour: Harbour, tmp_path: Path) -> None:
    """Whether a registry has it is known when it was asked: nothing was made on the engine then."""
    voyage = harbour.seatrial("run", passages.SMOKE, runs=tmp_path / "runs", base="nosuch:1")
    assert voyage.code == 255, voyage.words
    said = voyage.err.strip().splitlines()[-1]
    assert re.match(r"seatrial: the image nosuch:1 .* cannot be pulled: .*; to fix it: ", said)
    assert not (voyage.run / "verdict.json").exists()
    assert not [
        name for names in harbour.left()["containers"] for name in names if voyage.run.name in name
    ]
