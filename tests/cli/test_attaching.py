"""`--attach`: what is refused before an existing cluster is touched, and what is asked."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.kit.clients import PrefixedCalls, ServiceClient
from harness import registry
from harness.cli import attaching
from harness.cli.options import Request, request
from harness.cli.session import HostTrust, replay_request
from harness.contracts import KEY_PREFIX, AttachedCluster
from harness.contracts.calls import MicroOperation
from harness.errors import BadRequest, Unsupported
from harness.history.rundir import RunDir
from harness.history.runs import start_run
from harness.run import launch
from harness.run.preflight import refuse_impossible
from harness.trial import Trial

MACHINES = """
[[node]]
host = "192.0.2.1"
unit = "etcd.service"
[[node]]
host = "192.0.2.2"
process = "etcd"
{start}
[[client]]
host = "192.0.2.3"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, 'start = "/opt/etcd/run"')


def written(folder: Path, start: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(MACHINES.format(start=start))
    return path


def attached(file: Path, **fields: Any) -> tuple[Request, AttachedCluster]:
    given = attaching.attached_fields({"system": "etcd", **fields}, file)
    return attaching.attached_request(request("register", given))


def test_there_are_as_many_nodes_as_the_file_names(file: Path) -> None:
    found, cluster = attached(file)
    assert found.trial.nodes == {"server": 2, "client": 1}
    assert cluster.targets == [
        "server-1: unit etcd.service on 192.0.2.1",
        "server-2: process 'etcd' on 192.0.2.2",
    ]
    with pytest.raises(BadRequest, match=r"nodes\.server is 5, and .* names 2"):
        attached(file, nodes={"server": 5})


@pytest.mark.parametrize("kind", ["wipe", "corrupt", "unsynced", "disk-full", "clock"])
def test_faults_of_files_disks_and_clocks_are_refused(file: Path, kind: str) -> None:
    found, _ = attached(file, faults=(kind,))
    with pytest.raises(Unsupported, match=f"{kind}.*attached hosts"):
        refuse_impossible(found)


def test_kill_is_refused_where_a_process_cannot_be_started_again(tmp_path: Path) -> None:
    """The reason names the ability, and what gives it; other faults are possible."""
    file = written(tmp_path, "")
    found, cluster = attached(file, faults=("kill",))
    why = r"lack: restart.*the process 'etcd' on 192\.0\.2\.2 has neither unit nor start"
    with pytest.raises(Unsupported, match=why):
        attaching.ask_consent(found, (1,), cluster, yes=True)
    refuse_impossible(attached(file, faults=("pause", "partition"))[0])


@pytest.mark.parametrize("system", ["flotilla", "rabbitmq"])
def test_a_system_that_starts_its_clusters_itself_is_refused(file: Path, system: str) -> None:
    """One with clients of its own, and one that is asked by a file that its driver installs."""
    with pytest.raises(BadRequest, match=rf"{system} tests only clusters that .* etcd"):
        attached(file, system=system, workload="queue")


def test_only_the_command_line_names_a_cluster(file: Path) -> None:
    """A trial file, a suite or a stored run that names attached hosts is refused."""
    trial = Trial(
        system="etcd", workload="register", hosts="attached", bed={"inventory": str(file)}
    )
    with pytest.raises(BadRequest, match="only the command line may name"):
        refuse_impossible(Request(trial))
    found, _ = attached(file)
    with pytest.raises(BadRequest, match="only the command line may name"):
        refuse_impossible(replace(found, attached=False))


def test_other_hosts_exclude_it(file: Path) -> None:
    with pytest.raises(BadRequest, match="--attach and --hosts exclude each other"):
        attached(file, hosts="ssh")


def test_without_a_terminal_and_without_yes_it_is_refused_with_one_sentence(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    found, cluster = attached(file, faults=("pause",))
    with pytest.raises(BadRequest) as refused:
        attaching.ask_consent(found, (1,), cluster, yes=False)
    assert "\n" not in str(refused.value)
    assert "add --yes to hit this with pause: server-1: unit etcd.service" in str(refused.value)
    attaching.ask_consent(found, (1,), cluster, yes=True)
    assert "server-2: process 'etcd' on 192.0.2.2" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal_the_user_is_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: answer)
    found, cluster = attached(file, faults=("pause",))
    if answer:
        attaching.ask_consent(found, (1,), cluster, yes=False)
        return
    with pytest.raises(BadRequest, match="nothing was touched"):
        attaching.ask_consent(found, (1,), cluster, yes=False)


def test_an_impossible_trial_is_refused_before_the_user_is_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.confirm", lambda *_, **__: pytest.fail("asked"))
    found, cluster = attached(file, faults=("wipe",))
    with pytest.raises(Unsupported):
        attaching.ask_consent(found, (1,), cluster, yes=False)


def test_a_stored_run_needs_the_file_again(file: Path, tmp_path: Path) -> None:
    """Neither its own inventory nor --trust-run is enough."""
    trial = attached(file)[0].trial
    with start_run(trial, "", tmp_path / "runs") as run:
        run.plan_file.write_text("")
    with pytest.raises(BadRequest, match="name them yourself, --bed inventory="):
        replay_request(run)
    trusted = replay_request(run, HostTrust(run=True))
    with pytest.raises(BadRequest, match="only the command line may name"):
        refuse_impossible(trusted)


def test_each_run_has_a_prefix_of_its_own(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing that an earlier run left in the cluster is taken for the run's."""
    made: list[Trial] = []

    class Stopped(Exception):
        pass

    def started(trial: Trial, plan: str, runs: Path) -> RunDir:
        made.append(trial)
        raise Stopped

    monkeypatch.setattr(launch, "start_run", started)
    trial = attached(file)[0].trial
    for _ in range(2):
        with pytest.raises(Stopped):
            launch.run(trial, None, runs=tmp_path)
    one, two = (each.bed[KEY_PREFIX] for each in made)
    assert one != two
    assert one.startswith("seatrial-")


class PlayedCalls:
    """A client that returns what it was called with."""

    async def append(self, key: str, body: bytes) -> Any:
        return key, body

    async def transact(self, operations: list[MicroOperation]) -> list[MicroOperation]:
        assert all(each.key.startswith("p-") for each in operations)
        return operations


async def prefixed() -> None:
    calls = PrefixedCalls(PlayedCalls(), "p-")
    assert await calls.append("orders-0", b"x") == ("p-orders-0", b"x")
    read = [MicroOperation("read", "list-1")]
    assert await calls.transact(read) == read
    assert not hasattr(calls, "set_up")


def test_the_prefix_is_before_every_key_and_in_no_answer() -> None:
    asyncio.run(prefixed())


def test_the_prefix_of_a_run_reaches_its_clients(file: Path) -> None:
    """Keys get it in the client, and topics in its settings."""
    trial = attached(file)[0].trial
    trial = replace(trial, workload="messages", bed={**trial.bed, KEY_PREFIX: "p-"})
    driver = registry.load("system", "etcd")(trial)
    settings = driver.client_settings([])
    assert settings["topics"]
    assert all(topic.startswith("p-") for topic in settings["topics"])
    client = ServiceClient(lambda *_: PlayedCalls(), settings)
    assert asyncio.run(client.calls(0)._client.append("orders-0", b"")) == ("p-orders-0", b"")


@pytest.mark.parametrize(
    ("field", "value"),
    [("mixed", {"server-1": "3.5.0"}), ("version", "3.5.0"), ("supply", "/opt/etcd")],
)
def test_programs_of_an_attached_cluster_are_not_selected(
    file: Path, field: str, value: Any
) -> None:
    with pytest.raises(BadRequest, match=f"{field} is for clusters whose programs Seatrial"):
        attached(file, **{field: value})


@pytest.mark.parametrize(
    ("system", "bed", "compared"),
    [
        ("nats", {KEY_PREFIX: "seatrial-1-"}, False),
        ("nats", {}, True),
        ("redis", {KEY_PREFIX: "seatrial-1-"}, True),
    ],
)
def test_copies_that_are_files_of_attached_nodes_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, system: str, bed: dict[str, str], compared: bool
) -> None:
    """Else no run of such a system could be valid. What the nodes answer is compared. Client nodes
    ask this, which cannot load the module of hosts."""
    monkeypatch.setattr(registry, "hosts", None)
    trial = Trial(system=system, workload="messages", hosts="docker", bed=bed)
    checkers = registry.load("workload", "messages")(trial).checkers
    assert ("replicas" in checkers) is compared
