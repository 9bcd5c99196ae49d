"""Coverage: a run that proved nothing must never look valid."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from checkers import coverage
from harness.history.reader import ClientErrors
from harness.judge.verdict import Judgement, Reason, Result
from harness.operation import F, Type

Sketch = Any  # tests/checkers/conftest.py


def judged(sketch: Sketch) -> Result:
    return coverage.judge(sketch.facts())


def codes(sketch: Sketch) -> set[str]:
    return {reason.code for reason in judged(sketch).reasons}


def test_a_sound_run_counts(sound: Sketch) -> None:
    """Load, an observed and noticed fault, answers around it and a final read: nothing to say."""
    result = judged(sound)
    assert result.judgement is Judgement.VALID
    assert result.stats["counted"] == result.stats["planned"] == 1


def test_no_faults_planned_needs_load_and_final_phase(sketch: Sketch) -> None:
    """Without a plan, load and a final read are enough, and both are needed."""
    sketch.ops(1, 31)
    assert codes(sketch) == {"NO_FINAL_READ"}
    sketch.op(F.READ, 32)
    assert codes(sketch) == set()


@pytest.mark.parametrize(("write", "read"), [(F.ADD, F.LIST), (F.ADD, F.COUNT), (F.APPEND, F.LIST)])
def test_what_was_put_into_objects_is_read_at_the_end(sketch: Sketch, write: F, read: F) -> None:
    """As messages are."""
    sketch.op(write, 10)
    assert codes(sketch) == {"NO_FINAL_READ"}
    sketch.op(read, 32)
    assert codes(sketch) == set()


def test_interrupted(sound: Sketch) -> None:
    """A run that did not end is unknown."""
    sound.interrupted = True
    assert codes(sound) == {"INTERRUPTED"}


def test_a_run_that_the_bed_cut_short(sound: Sketch) -> None:
    """Unknown for that one reason: faults that were not reached are no reason of their own."""
    sound.interrupted, sound.cut_short = True, (Reason("NODE_GONE", "broker-2 is gone"),)
    sound.planned.append("pause")
    assert judged(sound).judgement is Judgement.UNKNOWN
    assert judged(sound).reasons == sound.cut_short


def test_no_load(sketch: Sketch) -> None:
    """The load never began."""
    sketch.load = None
    assert codes(sketch) == {"NO_LOAD"}


def test_no_operations(sketch: Sketch) -> None:
    """Nobody invoked anything."""
    assert codes(sketch) == {"NO_OPERATIONS"}


def test_a_client_whose_calls_of_one_kind_never_work_proves_nothing(sound: Sketch) -> None:
    """Mistakes in its code are the cause, and the first is named; errors of the network are not."""
    for at in range(20):
        sound.op(F.CAS, 10 + at / 10, kind=Type.INFO)
    known = sound.facts()
    text = "'Client' object has no attribute 'got' (driver.py:51)"
    broken = coverage.judge(known, {"AttributeError": ClientErrors(20, text)})
    assert [reason.code for reason in broken.reasons] == ["CLIENT_BROKEN"]
    assert text in broken.reasons[0].message
    assert not coverage.judge(known, {"ConnectionError": ClientErrors(20)}).reasons
    assert not coverage.judge(known, {"AttributeError": ClientErrors(3, text)}).reasons


def test_errors_of_clients_are_read_from_the_history(
    sound: Sketch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(20):
        sound.op(F.CAS, 10 + at / 10, kind=Type.FAIL)
    known = sound.facts()
    monkeypatch.setattr(coverage, "facts", lambda *_: known)
    history: Any = SimpleNamespace(client_errors={"TypeError": ClientErrors(20, "wrong")})
    result = coverage.check(history, known.outline.trial, None)
    assert [reason.code for reason in result.reasons] == ["CLIENT_BROKEN"]


def test_nothing_acknowledged(sketch: Sketch) -> None:
    """A load of which nothing succeeded proves nothing."""
    sketch.op(F.CAS, 1, kind=Type.FAIL)
    assert "NO_OPERATIONS" in codes(sketch)
    sketch.op(F.CAS, 2)
    assert "NO_OPERATIONS" not in codes(sketch)
    sketch.ops(2, 31, kind=Type.FAIL)
    sketch.op(F.READ, 32)
    assert "NO_OPERATIONS" in codes(sketch)


@pytest.mark.parametrize("state", ["partial", "failed"])
def test_a_fault_that_nobody_saw(sound: Sketch, state: str) -> None:
    """Only an installed fault counts; a command that returned is not an effect."""
    sound.faults[0] = replace(sound.faults[0], state=state)
    assert codes(sound) == {"FAULT_NOT_OBSERVED"}


def test_the_reason_has_the_error_of_a_fault_that_failed(sound: Sketch) -> None:
    error = {"error": "controller-1 run dledger already"}
    sound.faults[0] = replace(sound.faults[0], state="failed", observation=error)
    [reason] = judged(sound).reasons
    assert "kill (0); fault 0 failed: controller-1 run dledger already; see" in reason.message


def test_a_planned_fault_without_outcome(sound: Sketch) -> None:
    """The plan had two faults and the history knows of one."""
    sound.planned.append("pause")
    assert codes(sound) == {"FAULTS_MISSING"}


def test_a_fault_that_never_left_its_plan(sound: Sketch) -> None:
    """A row that still says `planned` is no outcome."""
    sound.fault("pause", 20, 22, state="planned")
    assert "FAULTS_MISSING" in codes(sound)


def test_nothing_invoked_inside_a_fault(sketch: Sketch) -> None:
    """A fault under no load tests nothing."""
    sketch.ops(1, 10)
    sketch.ops(16, 31)
    sketch.op(F.READ, 31.5)
    sketch.fault("pause", 11, 15)
    assert codes(sketch) == {"IDLE_FAULTS"}


@pytest.mark.parametrize(
    ("selector", "kind", "params", "needed"),
    [
        ("master", "kill", {}, True),
        ("master", "pause", {}, True),
        ("master", "restart", {"order": "together"}, True),
        ("master", "restart", {"order": "rolling"}, False),
        ("master", "starve-cpu", {}, False),
        ("master", "partition", {"shape": "isolate"}, True),
        ("master", "partition", {"shape": "isolate", "from": "slave, controller"}, True),
        ("master", "partition", {"shape": "isolate", "from": "slave"}, False),
        ("master", "partition", {"shape": "one-way", "direction": "in"}, False),
        ("master", "partition", {"shape": "one-way", "direction": "out"}, True),
        ("master", "partition", {"shape": "isolate", "on_s": 1.0, "off_s": 1.0}, False),
        ("master", "partition", {"shape": "answers"}, False),
        ("master", "partition", {"shape": "answers", "from": "controller"}, True),
        ("master", "partition", {"shape": "clients"}, False),
        ("master", "delay", {"delay_s": 0.1}, False),
        ("master", "bandwidth", {"bytes_per_s": 1e6}, False),
        ("master", "loss", {"probability": 0.8}, False),
        ("server", "partition", {"shape": "halves"}, False),
    ],
)
def test_a_silent_master_must_be_noticed(
    sound: Sketch, selector: str, kind: str, params: dict[str, Any], needed: bool
) -> None:
    """A fault that silences a master counts only if an election or expiry was seen."""
    sound.faults[0] = replace(sound.faults[0], selector=selector, kind=kind, params=params)
    sound.planned[0] = kind
    assert codes(sound) == set()
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    assert codes(sound) == ({"MASTER_FAULT_UNSEEN"} if needed else set())


@pytest.mark.parametrize(
    ("killed", "until", "excused"),
    [
        (("controller-1", "controller-2"), 1.0, True),
        (("controller-1", "controller-2"), 0.4, False),  # the controllers had time enough
        (("controller-1",), 1.0, False),
        (("broker-2",), 1.0, False),
        (("broker-2", "broker-3"), 1.0, True),  # nobody is left to elect
    ],
)
def test_nobody_can_be_elected(
    sound: Sketch, killed: tuple[str, ...], until: float, excused: bool
) -> None:
    """A silent master may go unnoticed while others keep the controllers from electing."""
    silent = sound.faults[0] = replace(sound.faults[0], selector="master", kind="pause")
    assert silent.applied
    assert silent.heal
    sound.roles |= dict.fromkeys(("controller-1", "controller-2", "controller-3"), "controller")
    sound.planned[0] = "pause"
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    begin, end = silent.applied / 1e9, silent.applied / 1e9
    end += until * (silent.heal - silent.applied) / 1e9
    sound.fault("kill", begin, end, targets={"server": killed})
    assert codes(sound) == (set() if excused else {"MASTER_FAULT_UNSEEN"})


C1, C2, C3 = CONTROLLERS = ("controller-1", "controller-2", "controller-3")
SLAVES = ("broker-2", "broker-3")


@pytest.mark.parametrize(
    ("shape", "sides", "both_ways", "excused"),
    [
        ("between", [("client-1",), CONTROLLERS], True, False),  # they elect without clients
        ("one", [(C1,), (C2, C3, *SLAVES)], True, False),
        ("halves", [(C1, *SLAVES), (C2, C3)], True, True),  # slaves speak with one of three
        ("halves", [(C1,), (C2, C3)], True, False),
        ("ring", [(C1,), (C3,)], True, False),  # each has a majority by way of the second
        ("isolate", [(C1,), (C2,), (C3,)], True, True),
        ("isolate", [(C1,), (C2,), (C3,)], False, True),  # who is not answered gets no votes
        ("between", [SLAVES, CONTROLLERS], True, True),  # nobody is heard who may be elected
        ("between", [SLAVES[:1], CONTROLLERS], True, False),
    ],
)
def test_partitions_keep_controllers_from_electing_by_what_they_cut(
    sound: Sketch,
    shape: str,
    sides: list[tuple[str, ...]],
    both_ways: bool,
    excused: bool,
) -> None:
    """Not by whom they name: of most shapes that is everybody who takes part."""
    sound.roles |= dict.fromkeys(CONTROLLERS, "controller")
    sound.faults[0] = replace(sound.faults[0], selector="master", kind="pause")
    sound.planned[0] = "pause"
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    cut: dict[str, list[str]] = {}
    for number, here in enumerate(sides):
        there = sides[number + 1 :] + (sides[:number] if both_ways else [])
        for sink in here:
            cut[sink] = [source for side in there for source in side]
    seen = {"effect": {"cut": cut}}
    targets = {"server": tuple(node for side in sides for node in side)}
    sound.fault("partition", 9, 17, params={"shape": shape}, targets=targets, observation=seen)
    assert codes(sound) == (set() if excused else {"MASTER_FAULT_UNSEEN"})


@pytest.mark.parametrize(("controllers", "excused"), [(2, True), (1, False)])
def test_one_fault_may_take_the_master_and_its_judges(
    sound: Sketch, controllers: int, excused: bool
) -> None:
    """Whoever would notice is as dead as the master: more than half of brokers and controllers."""
    names = tuple(f"controller-{n}" for n in (1, 2, 3))
    sound.roles |= dict.fromkeys(names, "controller")
    hit = {"master": ("broker-1",), "controller": names[:controllers]}
    sound.faults[0] = replace(
        sound.faults[0], selector="majority server", kind="pause", targets=hit
    )
    sound.planned[0] = "pause"
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    assert codes(sound) == (set() if excused else {"MASTER_FAULT_UNSEEN"})


@pytest.mark.parametrize(
    ("kind", "fields", "enough"),
    [
        ("expired", {"brokerId": 1, "why": "closed"}, True),
        ("expired", {"brokerId": 0, "why": "silent"}, True),  # as a nameserver says it
        ("expired", {"brokerId": 3, "why": "closed"}, False),  # a slave's
        ("election", {"epoch": 2, "masterId": 2}, True),
        ("set", {"set": [1, 2]}, False),
    ],
)
def test_what_notices_a_master(
    sound: Sketch, kind: str, fields: dict[str, Any], enough: bool
) -> None:
    """The master itself must be missed, or another elected."""
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9 or e.kind == "exit"]
    sound.event(12, "controller-1", kind, brokerName="a", **fields)
    assert codes(sound) == (set() if enough else {"MASTER_FAULT_UNSEEN"})


@pytest.mark.parametrize("fails_over", [True, False])
def test_where_no_other_is_elected_nothing_is_to_be_noticed(
    sound: Sketch, fails_over: bool
) -> None:
    """Brokers whose master is the master for good elect no other one."""
    sound.events, sound.fails_over = [], fails_over
    assert codes(sound) == ({"MASTER_FAULT_UNSEEN"} if fails_over else set())


@pytest.mark.parametrize("survivors", [0, 1])
def test_nobody_is_elected_where_all_are_silent(sound: Sketch, survivors: int) -> None:
    """All brokers at once lose their power: there is nobody to elect, nothing to notice."""
    brokers = [node for node, role in sound.roles.items() if role == "broker"][survivors:]
    all_of_them = {"master": (brokers[0],), "slave": tuple(brokers[1:])}
    sound.faults[0] = replace(
        sound.faults[0], selector="all broker", kind="power", targets=all_of_them
    )
    sound.planned[0] = "power"
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    assert codes(sound) == ({"MASTER_FAULT_UNSEEN"} if survivors else set())


def test_four_of_five_are_enough_when_each_kind_is_there(sketch: Sketch) -> None:
    """At least 80 % of the faults, and one of each kind."""
    sketch.ops(1, 31)
    sketch.op(F.READ, 31.5)
    for number in range(5):
        sketch.fault("pause", 3 + 5 * number, 4 + 5 * number)
    sketch.faults[2] = replace(sketch.faults[2], state="failed")
    assert codes(sketch) == set()
    sketch.faults[3] = replace(sketch.faults[3], state="failed")
    assert codes(sketch) == {"FAULT_NOT_OBSERVED"}


def test_a_kind_of_its_own_must_count(sketch: Sketch) -> None:
    """Five of six are installed, but the only kill is not."""
    sketch.ops(1, 31)
    sketch.op(F.READ, 31.5)
    for number in range(5):
        sketch.fault("pause", 3 + 4 * number, 4 + 4 * number)
    sketch.fault("kill", 24, 25, state="failed")
    assert codes(sketch) == {"FAULT_NOT_OBSERVED"}


def test_answers_before_after_and_between(sketch: Sketch) -> None:
    """Something is acknowledged before the first fault, after the last, and in each long gap."""
    sketch.op(F.READ, 31.5)
    sketch.op(F.SEND, 0.5)
    for begin, end in ((4, 6), (14, 16), (18, 20)):
        sketch.ops(begin, end, kind=None)
        sketch.fault("pause", begin, end)
    assert codes(sketch) == {"NO_OK_BEFORE", "NO_OK_BETWEEN", "NO_OK_AFTER"}
    sketch.op(F.SEND, 2)
    sketch.op(F.SEND, 10)
    sketch.op(F.SEND, 30)
    assert codes(sketch) == set()  # the gap from 16 to 18 s is too short to recover in


def test_nothing_was_in_progress_after_the_last_fault(sketch: Sketch) -> None:
    """It ended just before the load did: the cluster did not stand still."""
    sketch.op(F.SEND, 2)
    sketch.op(F.SEND, 29.8)
    sketch.op(F.READ, 31.5)
    sketch.fault("pause", 10, 29.9)
    assert codes(sketch) == {"IDLE_AFTER"}
    sketch.op(F.LOCK, 29.85, kind=None)
    assert codes(sketch) == {"IDLE_AFTER"}
    assert "Nothing was tried" in judged(sketch).reasons[0].message
    sketch.op(F.SEND, 29.85, kind=None)
    assert codes(sketch) == {"NO_OK_AFTER"}


def test_a_load_that_had_nothing_to_send_blames_no_cluster(sketch: Sketch) -> None:
    """Not even if the time after the last fault was long. A send that hangs is a standstill."""
    sketch.ops(2, 12)
    sketch.op(F.READ, 31.5)
    sketch.fault("pause", 10, 12)
    [reason] = judged(sketch).reasons
    assert reason.code == "IDLE_AFTER"
    assert "not known whether the cluster serves again; increase the load's rate" in reason.message
    sketch.op(F.SEND, 11.5, kind=None)
    assert codes(sketch) == {"NO_OK_AFTER"}


def test_polls_are_not_acknowledgements(sketch: Sketch) -> None:
    """Empty polls that succeed do not show that the cluster takes writes."""
    sketch.op(F.SEND, 2)
    sketch.op(F.READ, 31.5)
    sketch.ops(10, 12, kind=None)
    sketch.fault("pause", 10, 12)
    sketch.op(F.POLL, 20)
    assert codes(sketch) == {"NO_OK_AFTER"}


# ------------------------------------------------------------------------- several broker sets


@pytest.mark.parametrize(
    ("kind", "fields", "seen"),
    [
        ("expired", {"brokerName": "a", "brokerId": 1}, True),
        ("expired", {"brokerName": "b", "brokerId": 1}, False),
        ("expired", {"brokerName": "a", "brokerId": 2}, False),
        ("election", {"brokerName": "a", "epoch": 2, "masterId": 2}, True),
        ("election", {"brokerName": "b", "epoch": 2, "masterId": 3}, False),
    ],
)
def test_a_masters_own_set_must_notice(
    sound: Sketch, kind: str, fields: dict[str, Any], seen: bool
) -> None:
    """Each set numbers its brokers from 1, and the other one has another master."""
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    sound.deal(a=3, b=3)
    sound.event(0.6, "controller-1", "election", brokerName="b", epoch=1, masterId=2, set=[1, 2])
    sound.event(11, "controller-1", kind, **fields)
    assert codes(sound) == (set() if seen else {"MASTER_FAULT_UNSEEN"})


@pytest.mark.parametrize(
    ("others", "excused"),
    [(("broker-2", "broker-3"), True), (("broker-2", "broker-4"), False)],
)
def test_nobody_of_a_set_is_left_to_elect(
    sound: Sketch, others: tuple[str, ...], excused: bool
) -> None:
    """Brokers of another set are no candidates."""
    sound.events = [e for e in sound.events if e.t < 9e9 or e.t > 17e9]
    sound.deal(a=3, b=3)
    sound.faults[0] = replace(sound.faults[0], selector="master", kind="pause")
    sound.planned[0] = "pause"
    sound.fault("kill", 10, 16, targets={"server": others})
    assert codes(sound) == (set() if excused else {"MASTER_FAULT_UNSEEN"})


# ------------------------------------------------------------------------ runs that were killed


@pytest.mark.parametrize(
    ("interrupted", "healed", "gaps", "seen"),
    [
        (True, False, (), True),  # it was still to be noticed
        (True, True, ("events",), True),  # what nodes logged of it was not collected
        (True, True, (), False),
        (False, True, ("events",), False),
    ],
)
def test_what_a_killed_run_did_not_live_to_see_is_not_unseen(
    sound: Sketch, interrupted: bool, healed: bool, gaps: tuple[str, ...], seen: bool
) -> None:
    """A master's fault that lasted when the run was killed, or whose events it never collected."""
    sound.interrupted, sound.gaps = interrupted, gaps
    sound.events = [e for e in sound.events if e.t < 9e9]
    if not healed:
        sound.faults[0] = replace(sound.faults[0], heal=None, healed=None)
    assert ("MASTER_FAULT_UNSEEN" in codes(sound)) is not seen


# ----------------------------------------------------------------- loads in which nothing succeeded


def warning(sketch: Sketch) -> str:
    return str(judged(sketch).stats.get("warning", ""))


@pytest.mark.parametrize(
    ("ended", "said"),
    [(12.0, "no send was acknowledged for 13 of 24 s"), (14.0, "")],
)
def test_most_of_the_load_without_an_acknowledgement_is_said(
    sketch: Sketch, ended: float, said: str
) -> None:
    """More than half of the load, up to where its recovery is waited for; polls do not count."""
    sketch.ops(1, ended)
    sketch.ops(ended, 31, kind=Type.FAIL)
    for second in range(1, 31):
        sketch.op(F.POLL, second)
    assert warning(sketch) == said


def test_a_load_that_asks_rarely_is_not_silent(sketch: Sketch) -> None:
    """Three sends in 24 s, all acknowledged; and none at all says nothing of sends."""
    assert warning(sketch) == ""
    for second in (2, 10, 20):
        sketch.op(F.SEND, second)
    assert warning(sketch) == ""


def test_without_sends_any_operation_counts(sketch: Sketch) -> None:
    for tenth in range(10, 250):
        sketch.op(F.PUT, tenth / 10, kind=Type.OK if tenth < 60 else Type.INFO)
    assert warning(sketch) == "no operation succeeded for 19 of 24 s"
