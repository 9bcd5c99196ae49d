"""Restarts, wrong clocks, starvation and crashed clients, on a whole cluster in simulated worlds:
each is seen, and the sound Flotilla comes through it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.simulation import SeedOutcome, simulate
from harness.errors import Unsupported
from harness.history.faults_and_events import fault_intervals
from harness.history.reader import History
from harness.history.rundir import RunDir
from harness.operation import F, Type
from harness.registry import load
from harness.trial import Trial
from nemesis import dump, plan_for_trial
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
REPLACED = """
[[fault]]
kind = "membership"
at_s = 1.0
for_s = 2.0
target = "one slave"
[[fault]]
kind = "membership"
at_s = 5.0
for_s = 2.0
target = "master"
params = { disk = "kept" }
[[fault]]
kind = "membership"
at_s = 9.0
for_s = 2.0
target = "master"
"""
LEFT_ALONE = """
[[fault]]
kind = "membership"
at_s = 1.0
for_s = 4.0
target = "master"
"""
ALL_AT_ONCE = """
[[fault]]
kind = "membership"
at_s = 1.0
for_s = 2.0
target = "all broker"
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


def played(folder: Path, plan: str, **fields: Any) -> SeedOutcome:
    trial = Trial(hosts="simulated", short_faults=True).with_(fields)
    return simulate(trial, dump(plan_of(plan).faults), folder / "run")


def rows(run: RunDir, table: str) -> list[Mapping[str, Any]]:
    return History.open(run).read(table).to_pylist()


def faults(run: RunDir) -> list[Mapping[str, Any]]:
    last = {row["id"]: row for row in rows(run, "faults")}
    return [last[number] for number in sorted(last)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    load = {"rate": 25.0, "groups": 2}
    return played(tmp_path_factory.mktemp("broken"), PLAN, duration_s=24.0, load=load)


def test_a_sound_cluster_comes_through_it(done: SeedOutcome) -> None:
    """Nothing is lost, nobody's restart is taken for a crash, and every fault was seen at work."""
    assert done.verdict
    assert done.failure == (), done.why
    assert done.verdict.verdict == "valid", done.verdict.sentence
    assert [(row["state"], bool(row["healed"])) for row in faults(done.run)] == [
        ("installed", True)
    ] * 5


def test_a_rolling_restart_ends_every_broker_in_order(done: SeedOutcome) -> None:
    """One after the other, each with a clean exit, by the time that it is over."""
    rolling = faults(done.run)[0]
    exits = [
        (row["t"], row["node"], json.loads(row["fields"])["code"])
        for row in rows(done.run, "events")
        if row["kind"] == "exit" and rolling["begin"] <= row["t"] <= rolling["healed"]
    ]
    assert [code for _, _, code in exits] == [0] * 3
    assert sorted(node for _, node, _ in exits) == ["broker-1", "broker-2", "broker-3"]


def test_a_wrong_clock_is_what_its_node_writes(done: SeedOutcome) -> None:
    """The victim's event log: an hour behind while it lasts, and right before and after."""
    clock = faults(done.run)[1]
    [victim] = [name for names in json.loads(clock["targets"]).values() for name in names]
    lines = (done.run.node(victim) / "events.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines if line]
    skews = [round(row["t"] / 1000 - row["mono"] - told[0]["t"] / 1000) for row in told]
    assert skews[0] == skews[-1] == 0
    during = [skew for skew in skews if skew < -3000]
    assert all(-3601 <= skew <= -3580 for skew in during)


def test_nobody_is_called_as_before_who_crashed(done: SeedOutcome) -> None:
    """Numbers of one life end with it, and the load goes on; what was open has no outcome."""
    crash = faults(done.run)[2]
    ops = rows(done.run, "ops")
    total = len(done.run.names()["processes"])
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
        assert told["measured"] == f"{count} of {count} are no longer members"
        assert {said["left"] for said in told["effect"]["files"].values()} == {0}


def test_brokers_leave_and_come_back_as_new_members(tmp_path: Path) -> None:
    """A slave and a master with empty disks, under ids that nobody had, between them a master that
    keeps its disk, and its id; each forgotten by the controllers first. Nothing is lost."""
    outcome = played(tmp_path, REPLACED, duration_s=13.0, load={"rate": 50.0})
    assert outcome.verdict
    assert (outcome.verdict.verdict, outcome.failure) == ("valid", ()), outcome.why
    left = faults(outcome.run)
    assert [(row["state"], bool(row["healed"])) for row in left] == [("installed", True)] * 3
    hit = [next(iter(json.loads(row["targets"]).values())) for row in left]
    told = [json.loads(row["observation"])["effect"] for row in left]
    assert [said["lost_copies"] for said in told] == [hit[0], [], hit[2]]
    assert told[1]["files"] == {hit[1][0]: {"kept": True}}
    events = [row | json.loads(row["fields"]) for row in rows(outcome.run, "events")]
    ids: dict[int, str] = {}  # in the order of their coming
    for row in events:
        if row["kind"] == "role":
            ids.setdefault(row["brokerId"], row["node"])
    assert [ids[one] for one in sorted(ids)[3:]] == [hit[0][0], hit[2][0]]
    cleaned = [row["brokerIds"] for row in events if row["kind"] == "cleaned"]
    assert [ids[one] for (one,) in cleaned] == [node for (node,) in hit]


def test_nobody_gives_the_only_copy_away(tmp_path: Path) -> None:
    """A broker that is alone in its set is not dismissed: the fault has failed, the broker is back
    at once with all that it had."""
    load = {"rate": 20.0}
    fields = {"nodes": {"broker": 1}, "profile": "allack-min1", "recover_within_s": 30.0}
    outcome = played(tmp_path, LEFT_ALONE, duration_s=12.0, load=load, **fields)
    assert outcome.failure == (), outcome.why
    assert outcome.acknowledged > 0
    (row,) = faults(outcome.run)
    assert row["state"] == "failed"
    assert "there is no other member in the SyncStateSet of set-1" in row["observation"]
    started = [row["t"] for row in rows(outcome.run, "events") if row["kind"] == "start"]
    again = [t for t in started if t > row["begin"]]
    assert len(again) == 1
    assert again[0] < row["begin"] + row["planned_for"]


@pytest.fixture(scope="module")
def all_at_once(tmp_path_factory: pytest.TempPathFactory) -> SeedOutcome:
    """Both brokers of a set are to leave it, and both are in its SyncStateSet."""
    fields = {"nodes": {"broker": 2}, "profile": "allack-min1", "recover_within_s": 30.0}
    folder = tmp_path_factory.mktemp("all-at-once")
    outcome = played(folder, ALL_AT_ONCE, duration_s=18.0, load={"rate": 10.0}, **fields)
    assert outcome.failure == (), outcome.why
    return outcome


def cleaned(run: RunDir) -> list[str]:
    """The brokers that the controllers were made to forget."""
    events = [row | json.loads(row["fields"]) for row in rows(run, "events")]
    ids = {row["brokerId"]: row["node"] for row in events if row["kind"] == "role"}
    return [ids[one] for row in events if row["kind"] == "cleaned" for one in row["brokerIds"]]


def test_who_leaves_together_does_not_give_the_whole_set_away(all_at_once: SeedOutcome) -> None:
    """One is forgotten; the other sees then that nobody else is left, and stays."""
    (row,) = faults(all_at_once.run)
    gone = cleaned(all_at_once.run)
    assert len(gone) == 1, gone
    (stays,) = {"broker-1", "broker-2"} - {*gone}
    assert (row["state"], bool(row["healed"])) == ("failed", True)
    alone = "there is no other member in the SyncStateSet of set-1"
    why = f"the controllers did not remove {stays}: {alone}"
    assert json.loads(row["observation"])["error"] == why


def test_a_disk_emptied_before_a_failure_counts_as_lost(all_at_once: SeedOutcome) -> None:
    """Nobody saw the effect of a fault that failed halfway; its healing tells whose copies went."""
    (row,) = faults(all_at_once.run)
    told = json.loads(row["observation"])
    assert "effect" not in told
    assert told["healing"]["lost_copies"] == cleaned(all_at_once.run)
    (fault,) = fault_intervals(History.open(all_at_once.run).read("faults"))
    assert list(fault.destroyed_on) == cleaned(all_at_once.run)


def test_a_system_without_members_that_change_is_told(tmp_path: Path) -> None:
    """Before anything is started, in a sentence."""
    trial = Trial(short_faults=True, duration_s=13.0)
    nodes = load("system", "flotilla")(trial).nodes()
    with pytest.raises(Unsupported, match="which lacks nodes that can join"):
        plan_for_trial(trial, MEMBERS, 1.0, nodes, load("hosts", "local")(trial, tmp_path).can)


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
