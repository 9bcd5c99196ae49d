"""Other systems as they are, on local hosts: one short trial of each, valid while a minority is
killed and cut off. etcd, NATS and Patroni come from PyPI, ZooKeeper's jars from PySpark, Kafka's
and RocketMQ's from Maven, RabbitMQ and PostgreSQL from Debian. Three trials are under way at once,
since they mostly wait.
"""

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import run_command

pytestmark = pytest.mark.bed

LOADS = {
    "etcd": "append",
    "rabbitmq": "queue",
    "postgres": "register",
    "nats": "log",
    "zookeeper": "lock",
    "kafka": "messages",
    "rocketmq": "messages",
    "nats, watched": "watch",
}
PACKAGES = {
    "rabbitmq": "rabbitmq-server",
    "postgres": "postgresql",
    "kafka": "maven",
    "rocketmq": "maven",
}
PROGRAMS = {"rabbitmq": "rabbitmq-server", "kafka": "mvn", "rocketmq": "mvn"}
WORDS = ("--faults", "kill,partition", "--targets", "one follower", "--short-faults")
LIGHT = ("--load", "rate=20", "--no-report")
AT_ONCE = 3
RECOVERS = ("--recover-within", "90s")  # JVMs start slowly beside two other trials
# RocketMQ's topics are there when the slaves have asked the master for them, and the first
# acknowledgements of others may take seconds beside two other trials
TIMES = ("--duration", "31s", "--rhythm", "quiet_s=10,fault_s=15,recovery_s=5")
Commands = Mapping[str, "Future[run_command.FinishedCommand]"]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("systems")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(
                run_command.seatrial,
                *("run", workload, "--system", name.partition(",")[0], *WORDS, *LIGHT, *RECOVERS),
                *TIMES,
                runs=folder / name,
            )
            for name, workload in LOADS.items()
            if is_here(name)
        }


def is_here(system: str) -> bool:
    """Whether the packages of a system are installed, where it needs any."""
    if system == "postgres":
        return any(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return system not in PROGRAMS or bool(shutil.which(PROGRAMS[system]))


@pytest.mark.parametrize("system", LOADS)
def test_a_minority_that_fails_breaks_nothing(commands: Commands, system: str) -> None:
    if system not in commands:
        pytest.skip(f"{system} is missing; apt-get install {PACKAGES[system]}")
    done = commands[system].result()
    assert done.code == 0, done.words
    assert (done.verdict["verdict"], done.verdict["reasons"]) == ("valid", [])
    assert {fault["state"] for fault in run_command.faults(done.run)} == {"installed"}


def test_the_program_that_ran_is_recorded(commands: Commands) -> None:
    """Version, where it came from, and its digest."""
    run = commands["nats"].result().run
    program = run_command.state(run)["healthy"]["programs"]["nats-server"]
    assert program["version"].count(".") == 2
    assert len(program["sha256"]) == 64


def test_replicas_are_compared_by_their_own_files(commands: Commands) -> None:
    for system in {"nats", "kafka", "rocketmq"} & {*commands}:
        done = commands[system].result()
        stats = {row["checker"]: row["stats"] for row in done.verdict["checkers"]}
        assert stats["replicas"]["compared"] >= 50, system


def test_replicas_are_compared_by_their_digests(commands: Commands) -> None:
    done = commands["etcd"].result()
    stats = {row["checker"]: row["stats"] for row in done.verdict["checkers"]}
    assert stats["replicas"]["digests"] == 1
