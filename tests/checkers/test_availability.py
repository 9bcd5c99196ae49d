"""Availability: numbers, told both ways, and never a conviction."""

import math
from dataclasses import replace
from typing import Any

import pytest

from checkers import availability, coverage
from harness.campaign.simulation import counts_of
from harness.history.faults_and_events import TimeWindow
from harness.judge.verdict import Judgement, Result, Verdict
from harness.operation import DELIVERIES, SENDS, F, Type
from harness.run.broker_sets import BrokerSetData
from harness.suite.figures import figures
from reports import _format

S = 1_000_000_000
Sketch = Any  # tests/checkers/conftest.py


def judged(sketch: Sketch) -> Result:
    return availability.judge(sketch.facts())


def test_numbers_of_a_sound_run(sound: Sketch) -> None:
    """Counts are exact, latencies near, and it never convicts or doubts."""
    result = judged(sound)
    assert result.judgement is Judgement.VALID
    assert result.stats["sends"] == {"invoke": 600, "ok": 584, "fail": 0, "info": 0}
    assert result.stats["delivered"] == 584
    assert result.stats["read"] == 1
    assert result.stats["latency_ms"]["all"]["p50"] == pytest.approx(2.0, rel=0.05)
    assert result.stats["latency_ms"]["all"]["max"] == pytest.approx(2.0)


@pytest.mark.parametrize("sent", SENDS)
@pytest.mark.parametrize("given", DELIVERIES)
def test_messages_of_all_kinds_count(sketch: Sketch, sent: F, given: F) -> None:
    """Delayed and prepared messages are sent, and popped ones delivered, wherever it is counted:
    in the tiles, in a fault, in the lanes, and in what campaigns and suites add up."""
    for i in range(600):
        sketch.op(sent, 1 + i / 20, kind=Type.FAIL if i % 6 == 5 else Type.OK)
        sketch.op(given, 1.01 + i / 20, brings=2)
    sketch.fault("delay", 10, 20)
    result = judged(sketch)
    assert result.stats["sends"] == {"invoke": 600, "ok": 500, "fail": 100, "info": 0}
    assert result.stats["delivered"] == 1200
    assert result.stats["sends_in_faults"]["ok"] > 100
    assert result.stats["success"]["quiet"] == pytest.approx(5 / 6, abs=0.01)
    assert result.stats["latency_ms"]["all"]["max"] == 2.0
    assert result.stats["faults"][0]["to_ack_s"] < 0.2
    assert sum(map(int, result.stats["lanes"]["ok"].split())) == 500
    assert sum(map(int, result.stats["lanes"]["delivered"].split())) == 1200
    checked = coverage.judge(sketch.facts())
    verdict = Verdict(Judgement.VALID, "Valid: all of it.", (), (result, checked))
    assert verdict.acknowledged == counts_of(verdict)["acknowledged"] == 500
    assert figures(verdict)["acknowledged"] == 500
    lossy = Result("loss", stats={"acknowledged": 7})
    both = replace(verdict, checkers=(*verdict.checkers, lossy))
    assert both.acknowledged == (7 if sent is F.SEND else 507)


def test_no_latency_is_above_the_worst(sketch: Sketch) -> None:
    """Though buckets tell their middle, the worst is known exactly."""
    sketch.ops(1, 31, took=0.00205)
    sketch.fault("delay", 10, 20)
    found = judged(sketch).stats["latency_ms"]
    assert found["all"]["max"] == 2.05
    assert all(found[name]["p999"] <= 2.05 for name in ("all", "in_faults", "quiet"))


def test_latencies_of_short_faults_in_a_long_run(sketch: Sketch) -> None:
    """Faults shorter than a bin of the report's lanes, two of them at once."""
    sketch.load = TimeWindow(1 * S, 3590 * S)
    sketch.phases = {"load": 1, "healed": 3500, "drain": 3590, "ended": 3600}
    for begin in range(103, 2103, 100):
        sketch.ops(begin - 2, begin, every=0.1)
        sketch.ops(begin, begin + 4, every=0.1, took=0.5)
        sketch.ops(begin + 5, begin + 8, every=0.1)
        sketch.fault("delay", begin, begin + 4.5)
        sketch.fault("loss", begin + 1, begin + 4.5)
    stats = judged(sketch).stats
    assert stats["lanes"]["bin_s"] == 10
    assert stats["latency_ms"]["in_faults"]["p50"] == pytest.approx(500, rel=0.05)
    assert stats["latency_ms"]["quiet"]["p999"] == pytest.approx(2, rel=0.05)


def test_fault_applied_to_first_acknowledgement(sound: Sketch) -> None:
    """Only a send invoked after the fault applied can end the wait."""
    sound.op(F.SEND, 9.9, took=0.3)  # invoked before, acknowledged after: proves nothing
    (times,) = judged(sound).stats["faults"]
    assert times["to_ack_s"] == pytest.approx(0.802)
    assert times["only_after_healing"] is False
    assert times["failed"] is False
    assert times["failure_to_success_s"] is None


def test_fault_applied_to_first_read(sketch: Sketch) -> None:
    """Polls have a time of their own: a set may take sends long before it gives its messages, or
    give none at all. A run without polls has no such time."""
    sketch.ops(1, 10)
    for at in range(10, 31):
        sketch.op(F.SEND, at)
        sketch.op(F.POLL, at + 0.5, kind=Type.FAIL if at < 14 else Type.OK)
    sketch.fault("kill", 10, 16)

    def times(result: Result) -> list[float | None]:
        found = figures(Verdict(Judgement.VALID, "", (), (result,)))
        return [found[f"{name}_s_p50"] for name in ("to_ack", "to_read")]

    assert times(judged(sketch)) == pytest.approx([0.002, 4.502])
    sketch.rows = [row for row in sketch.rows if row["t"] < 10 * S or row["f"] == F.SEND]
    assert times(judged(sketch)) == [0.002, math.inf]
    sketch.rows = [row for row in sketch.rows if row["f"] == F.SEND]
    assert times(judged(sketch)) == [0.002, None]


def test_no_recovery_as_long_as_the_fault_lasts(sketch: Sketch) -> None:
    """An acknowledgement that had to wait for the healing is told apart."""
    sketch.ops(1, 10)
    sketch.ops(10, 16, kind=Type.FAIL)
    sketch.ops(16.1, 31)
    sketch.fault("pause", 10, 16)
    (times,) = judged(sketch).stats["faults"]
    assert times["only_after_healing"] is True


def test_first_failure_to_first_success(sound: Sketch) -> None:
    """The published meaning: from the failed send's invocation to the next success."""
    sound.op(F.SEND, 10.1, took=0.2, kind=Type.INFO)
    sound.op(F.SEND, 10.05, took=0.4, kind=Type.FAIL)
    (times,) = judged(sound).stats["faults"]
    assert times["failed"] is True
    assert times["failure_to_success_s"] == pytest.approx(10.802 - 10.1)


def test_silence_is_the_longest_stretch_without_acknowledgement(sound: Sketch) -> None:
    """It may begin long after the fault did."""
    (times,) = judged(sound).stats["faults"]
    assert times["silence_s"] == pytest.approx(0.802, abs=0.001)


def test_the_end_of_the_load_is_no_silence(sketch: Sketch) -> None:
    """Nobody waits once nobody sends."""
    sketch.ops(1, 20)
    sketch.fault("pause", 15, 16)
    stats = judged(sketch).stats
    assert stats["faults"][0]["silence_s"] < 0.1
    assert stats["availability"]["outages"] == 0


@pytest.mark.parametrize("how", [{"kind": None}, {"kind": Type.INFO, "took": 3}])
def test_waiting_in_vain_is_silence(sketch: Sketch, how: dict[str, Any]) -> None:
    """Where every slot hangs nobody sends, and everybody waits."""
    sketch.ops(1, 28)
    for slot in range(32):
        sketch.op(F.SEND, 28 + slot * 0.002, **how)
    sketch.fault("kill", 28, 30.9)
    stats = judged(sketch).stats
    assert stats["faults"][0]["silence_s"] == pytest.approx(3, abs=0.02)
    assert stats["availability"]["outages"] == 1
    assert stats["availability"]["down_s"] == pytest.approx(3.05, abs=0.02)


def test_one_that_hangs_while_others_are_served_is_no_silence(sketch: Sketch) -> None:
    """Nor is one whose end a torn record lost."""
    sketch.op(F.SEND, 19, kind=None)
    sketch.op(F.SEND, 19, kind=Type.INFO, took=6)
    sketch.ops(1, 20)
    sketch.fault("pause", 15, 16)
    assert judged(sketch).stats["availability"]["outages"] == 0
    sketch.op(F.SEND, 20, kind=None)
    sketch.complete = False
    assert judged(sketch).stats["availability"]["outages"] == 0


def test_never_acknowledged_again_is_not_zero(sketch: Sketch) -> None:
    """What never happened has no time."""
    sketch.ops(1, 10)
    sketch.ops(10, 31, kind=Type.FAIL)
    sketch.fault("kill", 10, 16)
    stats = judged(sketch).stats
    assert stats["faults"][0]["to_ack_s"] is None
    assert stats["faults"][0]["failed"] is True
    assert stats["faults"][0]["failure_to_success_s"] is None
    assert stats["times"]["never_acknowledged"] == 1
    assert stats["times"]["to_ack_s"] == {"p50": None, "max": None, "faults": 0}


def test_never_is_the_worst(sketch: Sketch) -> None:
    """A fault that nobody recovered from is not left out beside two that were short; in the words
    of the report as in the bounds of a suite."""
    sketch.ops(1, 10)
    for at in (10, 14, 18):
        sketch.ops(at, at + 0.3, kind=Type.FAIL)
        sketch.ops(at + 0.3, at + 4)
        sketch.fault("kill", at, at + 1)
    sketch.ops(22, 31, kind=Type.FAIL)
    sketch.fault("kill", 22, 27)
    result = judged(sketch)
    for name in ("to_ack_s", "failure_to_success_s"):
        summary = result.stats["times"][name]
        assert (summary["max"], summary["faults"]) == (None, 3)
        assert 0.2 < summary["p50"] < 0.5
    told = {number.name: number.note for number in _format._times(result.stats)}
    assert told["fault to next acknowledgement"] == "median; worst never"
    found = figures(Verdict(Judgement.VALID, "", (), (result,)))
    assert found["to_ack_s_p50"] < 0.5
    assert found["to_ack_s_p99"] == found["failure_to_success_s_p99"] == math.inf


def test_where_nothing_failed_nothing_had_to_succeed_again(sketch: Sketch) -> None:
    """Clients that retry in silence have no failure, which is not one without an end."""
    sketch.ops(1, 31)
    sketch.fault("kill", 10, 16)
    result = judged(sketch)
    assert "failure_to_success_s" not in result.stats["times"]
    found = figures(Verdict(Judgement.VALID, "", (), (result,)))
    assert found["failure_to_success_s_p99"] is None


def test_time_to_full_set(sound: Sketch) -> None:
    """From the healing to the full SyncStateSet."""
    (times,) = judged(sound).stats["faults"]
    assert times["to_full_set_s"] == pytest.approx(1.0)


def test_availability_is_uptime_by_time(sound: Sketch) -> None:
    """MTBF / (MTBF + MTTR) equals the share of the load without outage."""
    found = judged(sound).stats["availability"]
    assert found["outages"] == 0  # 0.8 s is within twenty times the load's own rhythm
    sound.rows = [r for r in sound.rows if not 10e9 <= r["t"] < 13e9]
    found = judged(sound).stats["availability"]
    assert found["outages"] == 1
    assert found["mttr_s"] == pytest.approx(3.05, abs=0.001)
    assert found["share"] == pytest.approx(found["mtbf_s"] / (found["mtbf_s"] + found["mttr_s"]))
    assert found["nines"] == pytest.approx(0.99, abs=0.01)


def test_nothing_acknowledged_is_not_available(sketch: Sketch) -> None:
    """However short the load was against its rhythm."""
    for at in (1, 2, 3):
        sketch.op(F.SEND, at, kind=Type.INFO)
    found = judged(sketch).stats["availability"]
    assert (found["share"], found["outages"], found["mtbf_s"]) == (0, 1, 0)
    assert found["nines"] is None


def test_an_outage_does_not_hide_itself(sketch: Sketch) -> None:
    """How long a silence must be follows from what is asked, not from what is answered."""
    sketch.ops(1, 2.5, every=0.1)
    sketch.ops(2.5, 31, every=0.1, kind=Type.INFO)
    found = judged(sketch).stats["availability"]
    assert found["outages"] == 1
    assert found["share"] == pytest.approx(0.05, abs=0.01)


def test_half_of_a_slow_load_unanswered_is_half_available(sketch: Sketch) -> None:
    """Eight sends a second; three times 4.5 s are answered, and 4.5 s are not."""
    for begin in (1, 10, 19):
        sketch.ops(begin, begin + 4.5, every=0.125)
        sketch.ops(begin + 4.5, begin + 9, every=0.125, kind=Type.FAIL)
    found = judged(sketch).stats["availability"]
    assert found["outages"] == 3
    assert found["share"] == pytest.approx(0.5, abs=0.02)


def test_no_quantile_is_above_the_maximum(sketch: Sketch) -> None:
    """A bucket of latencies is told by its middle, and none may have been as long."""
    sketch.ops(1, 31, took=0.00205)
    sketch.fault("kill", 10, 16)
    for latency in judged(sketch).stats["latency_ms"].values():
        assert latency["p50"] <= latency["p999"] <= 2.05


def test_interval_needs_several_cycles_and_contains_the_share(sketch: Sketch) -> None:
    """Resampled over fault cycles, the same every time."""
    sketch.ops(1, 31)
    for number in range(5):
        begin = 4 + 5 * number
        sketch.fault("pause", begin, begin + 2)
        sketch.rows = [r for r in sketch.rows if not begin * 1e9 <= r["t"] < (begin + 1.5) * 1e9]
    first, second = judged(sketch).stats["availability"], judged(sketch).stats["availability"]
    assert first == second
    low, high = first["interval"]
    assert low <= first["share"] <= high


def test_lanes_hold_every_send_in_words(sound: Sketch) -> None:
    """The report's series add up to the counts."""
    stats = judged(sound).stats
    lanes = stats["lanes"]
    assert lanes["bin_s"] == 0.1
    assert sum(map(int, lanes["ok"].split())) == stats["sends"]["ok"]
    assert "-" in lanes["p50_ms"].split()
    assert len({len(lanes[name].split()) for name in ("ok", "fail", "info", "p99_ms")}) == 1


def test_two_broker_sets_are_told_apart(sketch: Sketch) -> None:
    """A success on one set does not end the other's wait."""
    sketch.sets = ("a", "b")
    sketch.ops(1, 10)
    sketch.ops(10, 31)
    sketch.fault("kill", 10, 16)
    stats = judged(sketch).stats
    assert [(t["set"], t["to_ack_s"]) for t in stats["faults"]] == [("a", 0.002), ("b", None)]


def test_times_are_of_the_broker_set_that_was_hit(sketch: Sketch) -> None:
    """The other one served all the time, and was full all the time; a fault of controllers is a
    matter of both."""
    sketch.deal(a=3, b=3)
    for name in ("a", "b"):
        sketch.event(0.7, "c", "set", brokerName=name, set=[1, 2, 3], setEpoch=2)
    sketch.event(10.2, "c", "set", brokerName="b", set=[2, 3], setEpoch=3)
    sketch.event(26, "c", "set", brokerName="b", set=[1, 2, 3], setEpoch=4)
    sketch.ops(1, 31)
    sketch.ops(1, 10, key=1)
    sketch.ops(14, 31, key=1)
    sketch.fault("kill", 10, 16, targets={"master": ("broker-4",)}, selector="master")
    sketch.fault("kill", 28, 29, targets={"controller": ("controller-1",)})
    hit, *both = judged(sketch).stats["faults"]
    assert (hit["set"], hit["to_ack_s"], hit["to_full_set_s"]) == ("b", 4.002, 10.0)
    assert [row["set"] for row in both] == ["a", "b"]


def test_a_container_takes_time_from_the_set_that_it_leads(sketch: Sketch) -> None:
    """The set of which it has a slave needs no recovery, and was served all the time. Its master is
    the node that last called itself so; where no node did, each set of the container counts."""
    one, two = "broker-1", "broker-2"
    sketch.sets = ("a", "b")
    sketch.dealt = {name: BrokerSetData((one, two), 2, (f"{name}-0",)) for name in "ab"}
    sketch.ops(1, 10)
    sketch.ops(14, 31)
    sketch.ops(1, 31, key=1)
    sketch.fault("kill", 10, 13, targets={one: (one,)}, selector=one)
    assert [row["set"] for row in judged(sketch).stats["faults"]] == ["a", "b"]
    for at, node, name, role in (
        *((0.5, two, "a", "master"), (0.5, two, "b", "master"), (0.5, one, "b", "slave")),
        *((2, two, "a", "slave"), (2, one, "a", "master"), (13, two, "a", "master")),
    ):
        sketch.event(at, node, "role", inner=name, brokerName=name, role=role)
    (hit,) = judged(sketch).stats["faults"]
    assert (hit["set"], hit["to_ack_s"]) == ("a", 4.002)
    sketch.event(3, one, "role", inner="a", brokerName="a", role="slave")
    assert [row["set"] for row in judged(sketch).stats["faults"]] == ["a", "b"]


def test_of_a_killed_run_silence_outage_and_coverage_say_the_same(sketch: Sketch) -> None:
    """All slots waited from 12 s on; the run was killed at 20 s, so its record ends about there."""
    sketch.ops(1, 12)
    for slot in range(32):
        sketch.op(F.SEND, 12 + slot * 0.002, kind=None)
    for tenth in range(120, 200):
        sketch.op(F.POLL, tenth / 10)
    sketch.fault("kill", 12, None, targets={"master": ("broker-1",)}, selector="master")
    sketch.interrupted, sketch.gaps = True, ("ops",)
    sketch.phases = {"raised": 0.5, "load": 1}
    sketch.load = TimeWindow(1 * S, 20 * S)
    facts = sketch.facts()
    found = availability.judge(facts).stats
    [fault] = found["faults"]
    assert fault["to_ack_s"] is None
    assert not fault["failed"]
    assert fault["silence_s"] == pytest.approx(8, abs=0.3)
    assert found["availability"]["outages"] == 1
    assert found["availability"]["down_s"] == pytest.approx(8, abs=0.3)
    worth = coverage.judge(facts)
    assert [reason.code for reason in worth.reasons if "MASTER" in reason.code] == []
