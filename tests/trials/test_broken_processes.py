"""Restarts, wrong clocks, starvation and crashed clients, on a whole cluster in simulated worlds:
each is seen, and the sound Flotilla comes through it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Unsupported
from harness.history import History
from harness.operation import F, Type
from harness.registry import load
from harness.rundir import RunDir
from harness.simulation import Outcome, simulated
from harness.trial import Trial
from nemesis import dump, planned
from nemesis import load as plan_of

PLAN = """
[[fault]]
kind = "restart"
at_s = 1.0
for_s = 25.0
target = "all broker"
params = { order = "rolling" }
until = "next"
[[fault]]
kind = "clock"
at_s = 2.0
for_s = 8.0
target = "controller-leader"
params = { skew_s = -3600.0, rate = 2.0 }
[[fault]]
kind = "crash"
at_s = 3.0
for_s = 2.0
target = "client-2"
after = "previous is healed within 30 s"
[[fault]]
kind = "starve-cpu"
at_s = 4.0
for_s = 4.0
target = "one slave"
after = "previous is healed within 30 s"
[[fault]]
kind = "restart"
at_s = 5.0
for_s = 3.0
target = "controller-leader"
after = "previous is healed within 30 s"
"""
MEMBERS = """
[[fault]]
kind = "membership"
at_s = 1.0
for_s = 2.0
target = "controller-leader"
[[fault]]
kind = "membership"
at_s = 5.0
for_s = 2.0
target = "controller but controller-leader"
[[fault]]
kind = "restart"
at_s = 9.0
for_s = 1.5
target = "all controller"
"""
CRASHES = """
[[fault]]
kind = "crash"
at_s = 2.0
for_s = 1.0
target = "client-1"
[[fault]]
kind = "crash"
at_s = 5.0
for_s = 0.5
target = "client-2"
"""


def played(folder: Path, plan: str, **fields: Any) -> Outcome:
    trial = Trial(hosts="simulated", short_faults=True).with_(fields)
    return simulated(trial, dump(plan_of(plan).faults), folder / "run")


def rows(run: RunDir, table: str) -> list[Mapping[str, Any]]:
    return History.open(run).read(table).to_pylist()


def faults(run: RunDir) -> list[Mapping[str, Any]]:
    last = {row["id"]: row for row in rows(run, "faults")}
    return [last[number] for number in sorted(last)]


@pytest.fixture(scope="module")
def voyage(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    load = {"rate": 25.0, "groups": 2}
    return played(tmp_path_factory.mktemp("broken"), PLAN, duration_s=24.0, load=load)


def test_a_sound_cluster_comes_through_it(voyage: Outcome) -> None:
    """Nothing is lost, nobody's restart is taken for a crash, and every fault was seen at work."""
    assert voyage.verdict
    assert voyage.failure == (), voyage.why
    assert voyage.verdict.verdict == "valid", voyage.verdict.sentence
    assert [(row["state"], bool(row["healed"])) for row in faults(voyage.run)] == [
        ("installed", True)
    ] * 5


def test_a_rolling_restart_ends_every_broker_in_order(voyage: Outcome) -> None:
    """One after the other, each with a clean exit, by the time that it is over."""
    rolling = faults(voyage.run)[0]
    exits = [
        (row["t"], row["node"], json.loads(row["fields"])["code"])
        for row in rows(voyage.run, "events")
        if row["kind"] == "exit" and rolling["begin"] <= row["t"] <= rolling["healed"]
    ]
    assert [code for _, _, code in exits] == [0] * 3
    assert sorted(node for _, node, _ in exits) == ["broker-1", "broker-2", "broker-3"]


def test_a_wrong_clock_is_what_its_node_writes(voyage: Outcome) -> None:
    """The victim's event log: an hour behind while it lasts, and right before and after."""
    clock = faults(voyage.run)[1]
    [victim] = [name for names in json.loads(clock["targets"]).values() for name in names]
    lines = (voyage.run.node(victim) / "events.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines if line]
    skews = [round(row["t"] / 1000 - row["mono"] - told[0]["t"] / 1000) for row in told]
    assert skews[0] == skews[-1] == 0
    during = [skew for skew in skews if skew < -3000]
    assert all(-3601 <= skew <= -3580 for skew in during)


def test_nobody_is_called_as_before_who_crashed(voyage: Outcome) -> None:
    """Numbers of one life end with it, and the load goes on; what was open has no outcome."""
    crash = faults(voyage.run)[2]
    ops = rows(voyage.run, "ops")
    total = len(voyage.run.names()["processes"])
    own = [row for row in ops if row["process"] % 2 == 1]  # client-2's are the odd ones
    first = {row["process"] for row in own if row["t"] < crash["begin"]}
    second = {row["process"] for row in own if row["t"] > crash["healed"]}
    assert total % 2 == 0
    assert first
    assert max(first) < total <= min(second)
    begun = {row["op"] for row in own if row["type"] == Type.INVOKE and row["process"] < total}
    ended = {row["op"] for row in ops if row["type"] != Type.INVOKE and row["pos"] is None}
    assert begun - ended
    sent = [row["value"] for row in ops if row["type"] == Type.INVOKE and row["f"] == F.SEND]
    assert len(sent) == len(set(sent))


def test_controllers_leave_and_join(tmp_path: Path) -> None:
    """The leader, then both others at once, by the operator's command and with nothing on their
    disks when they come back; then all of them remember together."""
    outcome = played(tmp_path, MEMBERS, duration_s=13.0, load={"rate": 20.0})
    assert outcome.verdict
    assert outcome.failure == (), outcome.why
    assert outcome.verdict.verdict == "valid", outcome.verdict.sentence
    rows = faults(outcome.run)
    assert [(row["state"], bool(row["healed"])) for row in rows] == [("installed", True)] * 3
    for row, count in zip(rows, (1, 2), strict=False):
        told = json.loads(row["observation"])
        assert told["measured"] == f"{count} of {count} are no members any more"
        assert {said["left"] for said in told["effect"]["files"].values()} == {0}


def test_a_system_without_members_that_change_is_told(tmp_path: Path) -> None:
    """Before anything is started, in a sentence."""
    trial = Trial(short_faults=True, duration_s=13.0)
    nodes = load("system", "flotilla")(trial).nodes()
    with pytest.raises(Unsupported, match="lack: members"):
        planned(trial, MEMBERS, 1.0, nodes, load("hosts", "local")(trial, tmp_path).can)


@pytest.mark.parametrize("workload", ["register", "set", "log", "lock", "topics"])
def test_every_workload_has_clients_that_crash(workload: str, tmp_path: Path) -> None:
    """One, and later the other; no checker takes the living for the dead."""
    load = {} if workload == "topics" else {"rate": 30.0}
    outcome = played(tmp_path, CRASHES, workload=workload, duration_s=8.0, load=load)
    assert outcome.verdict
    assert outcome.failure == (), outcome.why
    assert outcome.verdict.verdict == "valid", outcome.verdict.sentence
    assert [row["state"] for row in faults(outcome.run)] == ["installed"] * 2


def test_the_same_seed_crashes_alike(tmp_path: Path) -> None:
    digests = {
        played(tmp_path / name, CRASHES, duration_s=7.0, load={"rate": 40.0}).digest
        for name in ("one", "two")
    }
    assert len(digests) == 1
