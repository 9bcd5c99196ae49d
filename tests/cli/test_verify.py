"""`seatrial list faults --verify`, by the real command, on real nodes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import run_command

from clusters.hosts.local.requirements import why_no_own_disks
from harness import registry
from harness.run.preflight import refuse_impossible
from harness.selftest.faults import verification_plan
from harness.trial import Trial

KINDS = ("kill", "pause", "loss", "delay", "unsynced")


def verify(*arguments: object, runs: Path) -> run_command.FinishedCommand:
    return run_command.seatrial("list", "faults", "--verify", "--runs", runs, *arguments, runs=runs)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some faults of every sort, and one that these hosts can not do, on one local cluster."""
    done = verify(
        "--json", "--faults", ",".join((*KINDS, "power")), runs=tmp_path_factory.mktemp("verify")
    )
    assert done.out.startswith("{"), done.words
    answer: dict[str, Any] = json.loads(done.out)
    return {**answer, "code": done.code}


@pytest.mark.bed
def test_faults_work_on_local_hosts(told: dict[str, Any]) -> None:
    """Applied, seen in effect, measured, healed and seen healed; the rest is named."""
    assert not [fault for fault in told["faults"] if not fault["works"]], told["error"]
    assert (told["works"], told["code"]) == (True, 0)
    kinds = {fault["kind"] for fault in told["faults"]}
    assert kinds == set(KINDS)
    ways = {fault["params"]["by"] for fault in told["faults"] if fault["kind"] == "unsynced"}
    if why_no_own_disks(try_it=True):
        assert ways == {"calls"}
        by_disk = "unsynced, by disk, keeps nothing"
        assert told["lacking"].pop(by_disk) == "local hosts lack: own-disk"
    else:
        assert ways == {"calls", "disk"}
    assert told["lacking"] == {"power": "local hosts lack: power"}
    assert not [fault["kind"] for fault in told["faults"] if not fault["measured"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--faults", "power"), "power: local hosts lack: power"),
        (("--faults", "pwoer"), "did you mean power"),
        (("--hosts", "lokal"), "did you mean local"),
    ],
)
def test_what_can_not_be_verified_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    """In one sentence, before anything is raised."""
    done = verify(*arguments, runs=tmp_path)
    assert done.code == 254, done.words
    assert words in done.err, done.words


@pytest.mark.parametrize(
    "system",
    [
        "etcd",
        "nats",
        "zookeeper",
        "redis",
        "redis-cluster",
        "valkey",
        "rabbitmq",
        "kafka",
        "flotilla",
    ],
)
def test_every_system_has_a_plan_of_its_own_targets(system: str) -> None:
    """A target of brokers becomes one of servers where there are none."""
    request, lacking = verification_plan(Trial(system=system), ())
    refuse_impossible(request)
    assert "power" in lacking


def test_a_system_without_messages_is_verified_by_another_workload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = replace(registry.system("zookeeper"), calls=lambda trial: ["acquire", "release"])
    monkeypatch.setattr(registry, "system", lambda name: only)
    request, _ = verification_plan(Trial(system="zookeeper"), ("kill",))
    assert request.trial.workload == "lock"


def test_only_faults_are_verified(tmp_path: Path) -> None:
    """Other plug-ins do nothing to anybody; --faults alone means nothing."""
    for arguments in (("list", "checkers", "--verify"), ("list", "--faults", "kill")):
        done = run_command.seatrial(*arguments, runs=tmp_path)
        assert done.code == 254, done.words
        assert "seatrial list faults --verify" in done.err
