"""Recovery: a healed cluster comes back by itself, and nodes do not die."""

from dataclasses import replace
from typing import Any

import pytest

from checkers import recovery
from checkers._run.timeline import NO_SET
from harness.history.faults_and_events import TimeWindow
from harness.judge.verdict import Finding, Judgement, Result
from harness.operation import F, Type
from harness.trial import Trial

Sketch = Any  # tests/checkers/conftest.py
S = 1_000_000_000


def judged(sketch: Sketch) -> Result:
    return recovery.judge(sketch.facts())


def only(sketch: Sketch) -> Finding:
    (finding,) = judged(sketch).findings
    return finding


def test_a_sound_run_recovers(sound: Sketch) -> None:
    """Master, full set, send and read come back: valid, and the times are told."""
    result = judged(sound)
    assert result.judgement is Judgement.VALID
    assert result.stats["full_set_s"] == pytest.approx(0.95)
    assert result.stats["send_s"] < 0.1


def test_the_set_stays_small(sound: Sketch) -> None:
    """A slave that never enters the set again convicts."""
    sound.events = [e for e in sound.events if e.t < 17 * S]
    finding = only(sound)
    assert finding.code == "NOT_RECOVERED"
    assert "full SyncStateSet" in finding.message
    assert finding.demand == "recovers"


def test_the_set_is_full_too_late(sound: Sketch) -> None:
    """In time means within recover_within_s of the last observed healing."""
    sound.trial = Trial(recover_within_s=0.5)
    assert only(sound).evidence[0]["came_at_s"] == 17.0


def test_every_broker_set_must_be_full(sound: Sketch) -> None:
    """One set that stays small convicts, though another is full; and it is named."""
    sound.sets = ("a", "b")
    sound.event(18, "controller-1", "set", brokerName="b", set=[4], setEpoch=1)
    sound.roles = sound.roles | {f"broker-{n}": "broker" for n in (4, 5, 6)}
    assert [row["set"] for row in only(sound).evidence if "full" in row["missing"]] == ["b"]


def test_the_runner_saw_no_redundancy(sound: Sketch) -> None:
    """CellKind the runner asked the nodes themselves outweighs what they once told."""
    sound.event(30, "", "recovery", redundant=False, took_s=30.0, within_s=30.0)
    assert only(sound).code == "NOT_RECOVERED"


def test_without_events_the_runner_is_believed(sound: Sketch) -> None:
    """Where no event log could be collected, the runner's word decides."""
    sound.events = []
    sound.event(30, "", "recovery", redundant=True, took_s=0.2, within_s=30.0)
    assert judged(sound).judgement is Judgement.VALID


def test_no_send_is_acknowledged_after_healing(sketch: Sketch) -> None:
    """Redundant, but nobody can write."""
    sketch.ops(1, 10)
    sketch.ops(10, 31, kind=None)
    sketch.fault("pause", 10, 16)
    sketch.event(0.7, "controller-1", "set", brokerName="a", set=[1, 2, 3], setEpoch=3)
    missing = {row["missing"] for row in only(sketch).evidence}
    assert missing == {"acknowledged send", "message read"}


def test_clients_that_hang_have_tried(sketch: Sketch) -> None:
    """Each waits for an answer to what it asked during the fault, so nothing was invoked after it.
    Sends that were answered in the end, or that nobody tried, convict nobody."""
    sketch.ops(1, 10)
    sketch.fault("pause", 10, 16)
    sketch.op(F.READ, 31.5)
    sketch.event(0.7, "controller-1", "set", brokerName="a", set=[1, 2, 3], setEpoch=3)
    assert not judged(sketch).findings
    sketch.op(F.SEND, 11, took=6)
    assert not judged(sketch).findings
    sketch.op(F.SEND, 11, kind=None)
    (row,) = only(sketch).evidence
    assert row["missing"] == "acknowledged send"
    sketch.complete = False
    assert not judged(sketch).findings, "its answer may be in the part that is missing"


def test_clients_that_never_succeed_prove_nothing(sketch: Sketch) -> None:
    """They may have a wrong address. After one success, the cluster has to answer."""
    sketch.fault("pause", 10, 16)
    sketch.event(0.7, "controller-1", "set", brokerName="a", set=[1, 2, 3], setEpoch=3)
    for at in range(1, 31):
        sketch.op(F.CAS, at, kind=Type.FAIL)
    result = judged(sketch)
    assert (result.findings, dict(result.decided)) == ((), {"recovers": 0})
    assert "proved" not in result.stats
    sketch.op(F.CAS, 0.8)
    (row,) = only(sketch).evidence
    assert row["missing"] == "acknowledged operation"


def test_healing_that_nobody_saw_is_unknown(sound: Sketch) -> None:
    """Only then can nothing be said."""
    sound.faults[0] = replace(sound.faults[0], healed=None)
    result = judged(sound)
    assert result.judgement is Judgement.UNKNOWN
    (reason,) = result.reasons
    assert reason.code == "HEALING_NOT_OBSERVED"
    assert reason.message.startswith("Healing of fault 0 was not observed")


def test_a_cluster_that_stays_down_though_a_healing_was_not_seen(sound: Sketch) -> None:
    """It had to come back once everything was undone, and what was not seen is said too."""
    sound.faults[0] = replace(sound.faults[0], healed=None)
    sound.events = [e for e in sound.events if e.t < 17 * S]
    result = judged(sound)
    assert [finding.code for finding in result.findings] == ["NOT_RECOVERED"]
    assert result.findings[0].evidence[0]["healed_s"] == 25.0
    assert [reason.code for reason in result.reasons] == ["HEALING_NOT_OBSERVED"]


def test_a_fault_that_could_not_be_undone_convicts_nobody(sound: Sketch) -> None:
    """It may be there still; nor does a run that never got so far."""
    failed = {"healing": {"state": "failed", "error": "broker-1 did not answer"}}
    sound.faults[0] = replace(sound.faults[0], healed=None, observation=failed)
    sound.events = [e for e in sound.events if e.t < 17 * S]
    assert judged(sound).findings == ()
    sound.faults[0] = replace(sound.faults[0], observation={})
    del sound.phases["healed"]
    assert judged(sound).findings == ()


def test_an_interrupted_run_does_not_convict(sound: Sketch) -> None:
    """Cut short, the cluster had no time to recover; a crash is a crash all the same."""
    sound.interrupted = True
    sound.events = [e for e in sound.events if e.t < 17 * S]
    assert judged(sound).findings == ()
    sound.event(12, "broker-2", "fatal", why="fsync failed")
    assert only(sound).code == "NODE_CRASHED"


def test_a_killed_node_convicts_only_in_a_whole_record(sound: Sketch) -> None:
    """With gaps, the fault that killed it may be what is missing; a crash is a crash still."""
    sound.faults, sound.complete = [], False
    assert judged(sound).findings == ()
    sound.complete = True
    assert only(sound).code == "NODE_CRASHED"
    sound.events, sound.complete = [e for e in sound.events if e.kind != "exit"], False
    sound.event(20, "broker-3", "exit", code=70)
    assert only(sound).code == "NODE_CRASHED"


@pytest.mark.parametrize(
    ("kind", "fields", "at", "node"),
    [
        ("fatal", {"why": "fsync failed"}, 20, "broker-3"),
        ("exit", {"code": 70}, 20, "broker-3"),
        ("exit", {"code": -11}, 20, "broker-3"),
        ("exit", {"code": -9}, 20, "broker-3"),  # nobody of ours killed it
        ("exit", {"code": -9}, 12, "broker-3"),  # the kill was aimed at another node
        ("exit", {"code": 69}, 16.02, "broker-1"),  # restarted, it refused to start
        ("exit", {"code": 0}, 20, "broker-3"),  # it ended by itself
    ],
)
def test_a_node_that_dies_by_itself(
    sound: Sketch, kind: str, fields: dict[str, Any], at: float, node: str
) -> None:
    """Any end that nobody planned convicts, with the node and its code."""
    sound.event(at, node, kind, **fields)
    finding = only(sound)
    assert finding.code == "NODE_CRASHED"
    assert finding.count == 1
    assert finding.evidence[0]["node"] == node


@pytest.mark.parametrize(
    ("kind", "at", "excused"),
    [
        ("disk-full", 12, True),
        ("fsync", 12, True),
        ("read-only", 12, True),
        ("corrupt", 12, True),
        ("corrupt", 20, True),  # damage that nobody repaired may be met at any time after
        ("fsync", 20, False),
        ("wipe", 12, False),  # an empty disk is a sound one
        ("pause", 12, False),
        ("starve-memory", 12, True),
        ("starve-descriptors", 20, False),
    ],
)
def test_a_node_may_end_on_a_disk_that_fails_it(
    sound: Sketch, kind: str, at: float, excused: bool
) -> None:
    """That is no crash, on that node and in that time; on another node it is one."""
    sound.fault(kind, 10, 16, targets={"slave": ("broker-3",)})
    sound.event(at, "broker-3", "fatal", why="sync: Input/output error")
    assert bool(judged(sound).findings) is not excused
    sound.event(at, "broker-2", "exit", code=70)
    assert "broker-2" in {row["node"] for row in only(sound).evidence}


def test_a_fatal_event_and_its_exit_are_one_crash(sound: Sketch) -> None:
    """One root cause, one finding."""
    sound.event(20, "broker-3", "fatal", why="fsync failed")
    sound.event(20.1, "broker-3", "exit", code=70)
    sound.event(28, "broker-3", "exit", code=70)
    assert only(sound).count == 2


@pytest.mark.parametrize(
    ("at", "node", "code", "planned"),
    [
        (12, "broker-3", 0, True),
        (12, "broker-3", -15, True),
        (12, "broker-3", -9, True),  # it did not end when it was asked
        (12, "broker-3", 70, False),
        (18, "broker-3", 0, False),
        (12, "broker-1", 0, False),  # somebody else was asked
    ],
)
def test_a_restarted_node_ends_when_it_is_asked(
    sound: Sketch, at: float, node: str, code: int, planned: bool
) -> None:
    """With whatever exit code is an answer to that, and at no other time."""
    sound.fault("restart", 10, 16, targets={"slave": ("broker-3",)})
    sound.event(at, node, "exit", code=code)
    assert bool(judged(sound).findings) is not planned


def test_planned_ends_are_no_crash(sound: Sketch) -> None:
    """Killed by the nemesis (in `sound`), or stopped by us after the load."""
    sound.event(32, "broker-2", "exit", code=0)
    sound.event(32, "broker-3", "exit", code=-9)
    assert judged(sound).findings == ()


@pytest.mark.parametrize(
    ("at", "node", "lost", "convicted"),
    [
        (20, "broker-3", "gone", False),  # its host went down, processes first
        (20.5, "broker-3", "full", False),  # it had to stop
        (29, "broker-3", "gone", False),  # after it was lost
        (20, "broker-2", "gone", True),  # it is another node that was lost
    ],
)
def test_what_the_bed_lost_is_nobodys_crash(
    sound: Sketch, at: float, node: str, lost: str, convicted: bool
) -> None:
    """The end of a node that was lost, shortly before or at any time after, convicts nobody."""
    sound.event(at, node, "exit", code=70)
    sound.event(25, "broker-3", lost, why="its agent ended")
    assert bool(judged(sound).findings) == convicted


def test_a_crash_long_before_its_node_was_lost_is_a_crash(sound: Sketch) -> None:
    """More than a minute before, the host was well."""
    sound.event(20, "broker-3", "exit", code=70)
    sound.event(81, "broker-3", "gone", why="its agent ended")
    assert only(sound).code == "NODE_CRASHED"


# ------------------------------------------------------------------------- several broker sets


def two_sets(sketch: Sketch, served: bool) -> None:
    """Brokers 1 to 3 with key 0 are untouched; the master of the others, with key 1, is killed."""
    sketch.deal(a=3, b=3)
    for name in ("a", "b"):
        sketch.event(0.7, "controller-1", "set", brokerName=name, set=[1, 2, 3], setEpoch=2)
    sketch.ops(1, 31)
    sketch.ops(1, 10, key=1)
    sketch.ops(10, 31, key=1, kind=None)
    if served:
        sketch.ops(20, 31, key=1)
    sketch.op(F.READ, 31.5)
    sketch.fault("kill", 10, 16, targets={"master": ("broker-4",)}, selector="master")


def test_every_broker_set_must_serve(sketch: Sketch) -> None:
    """CellKind another set answered says nothing of the one that was hit."""
    two_sets(sketch, served=False)
    finding = only(sketch)
    assert {row["set"] for row in finding.evidence} == {"b"}
    assert {row["missing"] for row in finding.evidence} == {"acknowledged send", "message read"}


def test_all_broker_sets_are_back_when_the_last_is(sketch: Sketch) -> None:
    """Of the times of the sets, the longest."""
    two_sets(sketch, served=True)
    sketch.event(10.2, "controller-1", "set", brokerName="b", set=[2, 3], setEpoch=3)
    sketch.event(26.05, "controller-1", "set", brokerName="b", set=[1, 2, 3], setEpoch=4)
    stats = judged(sketch).stats
    assert (stats["full_set_s"], stats["send_s"]) == (10.0, 3.952)


def test_a_set_that_nobody_sends_to_owes_no_answer(sketch: Sketch) -> None:
    """Fewer queues than sets: it must be full, that is all."""
    two_sets(sketch, served=True)
    sketch.rows = [row for row in sketch.rows if row["key"] == 0]
    assert not judged(sketch).findings


# ----------------------------------------------------------------------- when a set was full


def semi_synchronous(sketch: Sketch, back: float) -> None:
    """Of three brokers two are the whole set. All is healed at 16 s; the load, and with it the
    plan, goes on until the runner looks at 90 s."""
    sketch.load = TimeWindow(1 * S, 91 * S)
    sketch.phases = {"load": 1, "healed": 90, "drain": 91, "ended": 93}
    sketch.ops(1, 91, every=0.2)
    sketch.deal(full=2, a=3)
    sketch.event(0.7, "c", "set", brokerName="a", set=[1, 2], setEpoch=2)
    sketch.event(10.2, "c", "set", brokerName="a", set=[1], setEpoch=3)
    sketch.event(back, "c", "set", brokerName="a", set=[1, 3], setEpoch=4)
    sketch.fault("kill", 10, 16)
    sketch.event(90.1, "", "recovery", redundant=True, took_s=0.1)


@pytest.mark.parametrize(("back", "codes"), [(80, ["NOT_RECOVERED"]), (20.05, [])])
def test_a_set_is_full_when_it_has_what_it_must_have(
    sketch: Sketch, back: float, codes: list[str]
) -> None:
    """A semi-synchronous set is never larger than two; full again at 80 s is too late."""
    semi_synchronous(sketch, back)
    result = judged(sketch)
    assert [finding.code for finding in result.findings] == codes
    assert result.stats["full_set_s"] == back - 16.05


def test_how_soon_it_was_full_is_not_known_without_events(sketch: Sketch) -> None:
    """The runner looks when the whole plan is over, which says nothing of how early it was."""
    semi_synchronous(sketch, 20)
    sketch.events = [event for event in sketch.events if event.kind == "recovery"]
    result = judged(sketch)
    assert not result.findings
    assert result.stats["full_set_s"] is None


# ------------------------------------------------------------------------------- too much load


def overloaded(sketch: Sketch) -> None:
    """A slave never catches up with what clients send; once they stop it does."""
    sketch.load = TimeWindow(1 * S, 48 * S)
    sketch.phases = {"load": 1, "healed": 17, "drain": 50, "ended": 52}
    sketch.ops(1, 48, every=0.2)
    sketch.deal(full=2, a=2)
    sketch.event(0.7, "c", "set", brokerName="a", set=[1, 2], setEpoch=2)
    sketch.event(10.2, "c", "set", brokerName="a", set=[1], setEpoch=3)
    sketch.fault("kill", 10, 16)
    for second in range(17, 48):
        acks, end = {"2": 1000 * second}, 1000 * second + 5000
        sketch.event(second, "broker-1", "replication", acks=acks, end=end)
    sketch.event(47, "", "recovery", redundant=False, took_s=30.0)
    sketch.event(49, "c", "set", brokerName="a", set=[1, 2], setEpoch=4)
    sketch.event(49.1, "", "recovery", redundant=True, took_s=1.1, without_load=True)


def test_a_replica_that_gains_but_can_not_keep_pace_convicts_nobody(sketch: Sketch) -> None:
    """It was in step once the load had ended: the run shows nothing, and says so."""
    overloaded(sketch)
    result = judged(sketch)
    assert not result.findings
    assert [reason.code for reason in result.reasons] == ["TOO_MUCH_LOAD"]
    assert "proved" not in result.stats


@pytest.mark.parametrize("why", ["stands still", "is not let in", "never catches up"])
def test_a_replica_that_is_stuck_convicts(sketch: Sketch, why: str) -> None:
    """It copies nothing, or it had caught up and did not become a member, or not even the end of
    the load helps."""
    overloaded(sketch)
    for number, event in enumerate(sketch.events):
        if event.kind == "replication":
            acks = {"stands still": 3, "is not let in": event.fields["end"]}
            told = {**event.fields, "acks": {"2": acks.get(why, event.fields["acks"]["2"])}}
            sketch.events[number] = replace(event, fields=told)
        elif event.fields.get("without_load") and why == "never catches up":
            sketch.events[number] = replace(event, fields={**event.fields, "redundant": False})
    assert only(sketch).code == "NOT_RECOVERED"


# ------------------------------------------------------------------------- who asked, and when


def unserved(sketch: Sketch, *fs: F, kind: Type, until: float) -> None:
    """A workload of its own operations, of which none succeeds from 10 s on; all is healed at
    16 s."""
    sketch.load = TimeWindow(1 * S, 91 * S)
    sketch.phases = {"load": 1, "healed": 90, "drain": 91, "ended": 93}
    for n in range(450):
        at = 1 + n * 0.2
        for f in fs:
            sketch.op(f, at, kind=kind if 10 <= at < until else Type.OK)
    sketch.event(0.7, "c", "set", brokerName="a", set=[1, 2, 3], setEpoch=2)
    sketch.fault("partition", 10, 16)


@pytest.mark.parametrize(
    "fs", [(F.GET, F.PUT), (F.ADD, F.LIST), (F.APPEND,)], ids=["registers", "sets", "logs"]
)
@pytest.mark.parametrize(("until", "codes"), [(80, ["NOT_RECOVERED"]), (20, [])])
def test_a_workload_without_sends_must_be_served_too(
    sketch: Sketch, fs: tuple[F, ...], until: float, codes: list[str]
) -> None:
    """Any acknowledged operation of its own will do, in time."""
    unserved(sketch, *fs, kind=Type.INFO, until=until)
    result = judged(sketch)
    assert [finding.code for finding in result.findings] == codes
    assert result.stats["operation_s"] == pytest.approx(until - 16.05, abs=0.01)
    if codes:
        assert result.findings[0].evidence[0]["missing"] == "acknowledged operation"


def test_a_lock_that_somebody_holds_convicts_nobody(sketch: Sketch) -> None:
    """Its lease may be longer than the time to recover in; one that nobody answers is no such."""
    unserved(sketch, F.ACQUIRE, kind=Type.FAIL, until=80)
    assert not judged(sketch).findings


def test_locks_that_nobody_answers(sketch: Sketch) -> None:
    unserved(sketch, F.ACQUIRE, kind=Type.INFO, until=80)
    assert only(sketch).code == "NOT_RECOVERED"


def test_a_load_slower_than_the_time_to_recover_convicts_nobody(sketch: Sketch) -> None:
    """The first send after the healing was answered at once, and nobody asked before the deadline
    but a consumer, who waited for it."""
    sketch.trial = Trial(recover_within_s=2)
    sketch.ops(1, 10)
    sketch.fault("kill", 10, 16)
    sketch.event(0.7, "c", "set", brokerName="a", set=[1, 2, 3], setEpoch=3)
    sketch.op(F.POLL, 16.1, took=6)
    sketch.op(F.SEND, 22)
    sketch.op(F.READ, 31.5)
    assert not judged(sketch).findings
    sketch.op(F.SEND, 17, took=3)
    missing = {row["missing"] for row in only(sketch).evidence}
    assert missing == {"acknowledged send", "message read"}


def test_what_lives_in_no_broker_set_must_be_served_too(sketch: Sketch) -> None:
    """Registers, of a cluster of two sets: each set must be full, and somebody must answer."""
    unserved(sketch, F.GET, kind=Type.INFO, until=80)
    sketch.deal(a=3, b=3)
    sketch.event(0.7, "c", "set", brokerName="b", set=[1, 2, 3], setEpoch=2)
    sketch.set_of_key = (NO_SET,)
    (row,) = only(sketch).evidence
    assert (row["set"], row["missing"]) == ("none", "acknowledged operation")
    sketch.ops(16.2, 90, key=1)
    sketch.set_of_key = (NO_SET, 1)
    result = judged(sketch)
    assert not result.findings, "there are sends, so the rest is a matter of other checkers"
    assert result.stats["send_s"] < 1


def test_only_the_set_that_was_not_whole_is_blamed(sketch: Sketch) -> None:
    """The runner's question is about all sets; their events tell them apart."""
    two_sets(sketch, served=True)
    sketch.event(10.2, "controller-1", "set", brokerName="b", set=[2, 3], setEpoch=3)
    sketch.event(30, "", "recovery", redundant=False, took_s=30.0)
    (row,) = only(sketch).evidence
    assert (row["set"], only(sketch).count) == ("b", 1)
