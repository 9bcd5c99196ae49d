"""Two systems beside each other: what counts as apart, and the command on simulated hosts."""

import json
import signal
from collections.abc import Sequence
from contextlib import closing
from math import inf
from pathlib import Path

import pytest
import run_command

from harness.cli.differ import (
    ComparedSystem,
    ComparedTrial,
    Difference,
    SystemResult,
    as_json,
    chance,
    comparisons_of_suite,
    conclusion,
    exit_code,
    parse_systems,
)
from harness.cli.options import Request
from harness.cli.session import RunEnd
from harness.errors import BadRequest
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.judge.verdict import Judgement, Verdict
from harness.run.preflight import refuse_impossible
from harness.suite.bundled import path_of
from harness.suite.figures import of_events, struck
from harness.trial import Trial

REQUEST = Request(Trial(), None)
PLAN = run_command.PLANS / "isolate-then-kill.toml"


def result(
    name: str, figures: Sequence[dict[str, float]], word: Judgement = Judgement.VALID
) -> SystemResult:
    ends = [RunEnd(n, verdict=Verdict(word, "", (), ())) for n in range(len(figures))]
    return SystemResult(ComparedSystem(name), ends, list(figures))


def lost(*counts: float) -> list[dict[str, float]]:
    return [{"lost": count} for count in counts]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("flotilla,rocketmq", ("flotilla", "", ""), ("rocketmq", "", "")),
        ("a:b , c:d@5.3.3", ("a", "b", ""), ("c", "d", "5.3.3")),
        ("a@1,a@2", ("a", "", "1"), ("a", "", "2")),
    ],
)
def test_systems_with_profile_and_version(
    text: str, first: tuple[str, str, str], second: tuple[str, str, str]
) -> None:
    assert parse_systems(text) == (ComparedSystem(*first), ComparedSystem(*second))


@pytest.mark.parametrize("text", ["", "flotilla", "a,b,c", "a,", ":x,b", "a:b,a:b"])
def test_what_are_not_two_systems_is_one_sentence(text: str) -> None:
    with pytest.raises(BadRequest, match="--systems"):
        parse_systems(text)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ((1, 2, 3), (4, 5, 6), True),
        ((4, 5, 6), (1, 2, 3), True),
        ((1, 2, 4), (4, 5, 6), False),
        ((1, 2, 9), (4, 5, 6), False),
        ((1, 2, 3), (inf, inf, inf), True),
        ((0, 0, 0), (0, 0, 0), False),
        ((1, 2), (4, 5, 6), None),
    ],
)
def test_values_that_do_not_overlap_are_apart(
    first: Sequence[float], second: Sequence[float], apart: bool | None
) -> None:
    assert Difference("lost", first, second).apart is apart


def test_how_often_chance_alone_sets_values_apart() -> None:
    assert chance(3, 3) == pytest.approx(0.1)
    assert chance(5, 5) == pytest.approx(2 / 252)
    assert chance(1, 1) == 1.0


def compared(first: SystemResult, second: SystemResult, name: str = "") -> ComparedTrial:
    return ComparedTrial((REQUEST, REQUEST), first, second, name)


def test_the_exit_code_and_the_last_words() -> None:
    none, some = result("a", lost(0, 0, 0)), result("b", lost(31, 31, 32))
    apart = compared(none, some)
    assert exit_code([apart]) == 1
    assert next(iter(conclusion([apart]))) == "apart: lost"
    alike = compared(none, result("b", lost(0, 1, 0)))
    assert exit_code([alike]) == 0
    assert "of 1 figures, 0 of them equal" in list(conclusion([alike]))[1]
    assert "would set 0.1 apart" in list(conclusion([alike]))[1]
    few = compared(none, result("b", lost(31)))
    assert exit_code([few]) == 2
    assert "too few" in next(iter(conclusion([few])))
    failed = compared(none, SystemResult(ComparedSystem("b"), [RunEnd(1, error="no")] * 3, [{}]))
    assert (exit_code([failed]), failed.apart) == (255, [])  # no verdict is none to be apart by
    assert exit_code([failed, apart]) == 1  # what was found stays found
    assert exit_code([alike], complete=False) == 2
    assert exit_code([], complete=False) == 2


def test_trials_of_a_suite_are_concluded_on_one_by_one() -> None:
    none, some = result("a", lost(0, 0, 0)), result("b", lost(31, 31, 32))
    trials = [compared(none, some, "cut"), compared(none, none, "kill")]
    first, second, last = conclusion(trials)
    assert (first, second) == ("cut: apart: lost", "kill: apart: nothing")
    assert "of 2 figures, 1 of them equal in all runs" in last
    assert exit_code(trials) == 1
    assert exit_code(trials[1:]) == 0


def test_verdicts_that_have_none_in_common_are_apart() -> None:
    valid, invalid = result("a", lost(0, 0, 0)), result("b", lost(0, 0, 0), Judgement.INVALID)
    assert exit_code([compared(valid, invalid)]) == 1
    assert as_json(compared(valid, invalid))["verdicts_apart"] is True
    assert as_json(compared(valid, valid))["verdicts_apart"] is False


def test_a_time_without_an_end_is_null() -> None:
    ends = [{"to_ack_s_p50": inf}] * 3
    (figure,) = as_json(compared(result("a", ends), result("b", ends)))["figures"]
    assert figure == {"name": "to_ack_s_p50", "values": [[None] * 3] * 2, "apart": False}


def test_what_nodes_did_counts_only_where_they_log_who_is_in_sync() -> None:
    def event(kind: str, **fields: object) -> ClusterEvent:
        return ClusterEvent(1, "broker-1", kind, {"brokerName": "a", **fields})

    won = [event("election", masterId=1, epoch=epoch, set=[1]) for epoch in (1, 3)]
    grown = event("set", set=[1, 2], setEpoch=2)
    cut = event("truncate", point=5, before=9)
    known = {"elections": 2, "set_changes": 3, "truncations": 2, "last_epoch": 3}
    assert of_events([won[0], grown, grown, won[1], cut, cut]) == known
    bare = event("election", masterId=1, epoch=1)
    assert of_events([bare]) == {"elections": 1}


def test_faults_are_counted_by_the_state_in_which_a_pair_was() -> None:
    """By the numbers of states: the events of two nodes may be read in any order."""

    def event(t: int, seq: int, state: str) -> ClusterEvent:
        return ClusterEvent(t, "n", "machine", {"brokerName": "a", "seq": seq, "state": state})

    events = [event(30, 4, "SYNC"), event(10, 1, "SINGLE"), event(20, 3, "SEMI")]
    faults = [FaultInterval(n, "kill", applied=at) for n, at in enumerate((5, 20, 29, 35, None))]
    counted = {"struck_single": 0, "struck_async": 0, "struck_semi": 2, "struck_sync": 1}
    assert struck(events, faults) == counted
    assert struck([], faults) == {}


def test_a_figure_with_too_few_values_is_named_and_not_expected_by_chance() -> None:
    one = SystemResult(ComparedSystem("a"), result("a", lost(0, 0, 0)).ends, lost(0))
    alike = result("a", lost(0, 0, 1))
    first, _, last = conclusion([compared(one, one), compared(alike, alike)])
    assert first == "apart: nothing"
    assert "of 1 figures" in last
    assert "1 more have too few values to tell" in last


def test_a_run_that_was_broken_off_is_not_compared(tmp_path: Path) -> None:
    with closing(
        run_command.RunningCommand(
            *("differ", "--systems", "flotilla:allack-min2,flotilla:unsafe-default"),
            *("--faults", "kill", "--duration", "60s", "--hosts", "simulated", "--json"),
            *("--load", "rate=150", "--no-report"),
            runs=tmp_path,
        )
    ) as command:
        command.until("flotilla:allack-min2 seed 1: valid")
        command.until("fault 0: .*applied")  # in the second run
        command.signal(signal.SIGINT)
        done = command.end()
    assert (done.code, bool(done.out)) == (2, True), done.words
    found = json.loads(done.out)
    assert found["complete"] is False
    assert [each["verdicts"] for each in found["systems"]] == [{"valid": 1}, {}]


def test_a_comparison_that_is_stopped_at_once_is_empty(tmp_path: Path) -> None:
    with closing(
        run_command.RunningCommand(
            *("differ", "--systems", "flotilla:allack-min2,flotilla:unsafe-default"),
            *("--faults", "kill", "--duration", "60s", "--hosts", "simulated", "--json"),
            runs=tmp_path,
        )
    ) as command:
        command.until("this takes a while")
        command.signal(signal.SIGINT)
        done = command.end()
    assert done.code == 2, done.words
    assert [each["verdicts"] for each in json.loads(done.out)["systems"]] == [{}, {}]


def test_trials_that_differ_only_in_what_is_replaced_are_compared_once(tmp_path: Path) -> None:
    suite = tmp_path / "some.toml"
    entry = '[[trial]]\nrun = "messages"\nexpect = "valid"\nname = "one"\n'
    suite.write_text(
        f'{entry}with = {{ seed = 1, faults = ["kill"] }}\n'
        f'{entry}with = {{ seed = 2, faults = ["pause"] }}\n'
        f'{entry}with = {{ seed = 3, faults = ["kill"], profile = "safe", system = "rocketmq" }}\n'
    )
    systems = parse_systems("flotilla,flotilla:allack-min2")
    found = comparisons_of_suite(systems, suite, (), None, None)
    kinds = [(each.name, each.requests[0].trial.faults) for each in found]
    assert kinds == [("one", ("kill",)), ("one #2", ("pause",))]
    profiles = [each.trial.profile for each in found[0].requests]
    assert profiles == ["", "allack-min2"]


@pytest.mark.parametrize("other", ["flotilla:allack-min2", "rocketmq:published"])
def test_replicas_are_compared_between_faults_where_both_can(
    other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """RocketMQ's driver cannot, and its trial would be refused."""
    systems = parse_systems(f"flotilla:allack-min1,{other}")
    suite = path_of("suite", "rocketmq-2024")
    (found,) = comparisons_of_suite(systems, suite, ["kill-both/pool/dledger"], None, 0.03)
    both = other.startswith("flotilla")
    assert [each.trial.compare_replicas for each in found.requests] == [both, both]
    assert ("compared only at the end" in capsys.readouterr().err) is not both
    for request in found.requests:
        refuse_impossible(request)


def test_a_trial_that_is_wrong_is_not_called_unable(capsys: pytest.CaptureFixture[str]) -> None:
    """Its profile is unknown, and the refusal names it."""
    systems = parse_systems("flotilla:allack-min1,flotilla:nope")
    suite = path_of("suite", "rocketmq-2024")
    (found,) = comparisons_of_suite(systems, suite, ["kill-both/pool/dledger"], None, 0.03)
    assert all(each.trial.compare_replicas for each in found.requests)
    assert "compared only at the end" not in capsys.readouterr().err


def test_the_trials_of_a_suite_on_both(tmp_path: Path) -> None:
    """Their own system and profile make way for those that are compared."""
    suite = tmp_path / "some.toml"
    suite.write_text(
        '[[trial]]\nrun = "messages"\nexpect = "valid"\n'
        'with = { system = "rocketmq", profile = "safe", hosts = "simulated", duration_s = 16.0,'
        ' load = { rate = 50.0 } }\n[trial.matrix.kind]\nkill = { faults = ["kill"] }\n'
        'pause = { faults = ["pause"] }\ncut = { faults = ["partition"] }\n'
    )
    done = run_command.seatrial(
        *("differ", "--systems", "flotilla:allack-min2,flotilla:allack-min1", suite),
        *("--only", "kill,pause", "--seeds", "1", "--json", "--no-report"),
        runs=tmp_path,
    )
    assert done.code == 2, done.words  # one run of each tells nothing
    trials = json.loads(done.out)["trials"]
    assert [each["name"] for each in trials] == ["kill", "pause"]
    assert [each["profile"] for each in trials[0]["systems"]] == ["allack-min2", "allack-min1"]
    figures = {each["name"]: each["values"] for each in trials[0]["figures"]}
    assert all(len(values) == 1 for values in figures["truncations"])
    assert len([*tmp_path.glob("2*")]) == 4


def test_two_profiles_in_simulated_worlds(tmp_path: Path) -> None:
    """One loses what it acknowledged alone; the other waits for its slaves."""
    done = run_command.seatrial(
        *("differ", "--systems", "flotilla:allack-min2,flotilla:unsafe-default"),
        *("--plan", PLAN, "--hosts", "simulated", "--load", "rate=40", "--json", "--no-report"),
        runs=tmp_path,
    )
    assert done.code == 1, done.words
    found = json.loads(done.out)
    assert [each["verdicts"] for each in found["systems"]] == [{"valid": 3}, {"invalid": 3}]
    figures = {each["name"]: each for each in found["figures"]}
    assert figures["lost"]["apart"] is True
    assert figures["lost"]["values"][0] == [0, 0, 0]
    assert len([*tmp_path.glob("2*")]) == 6


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--system", "etcd"), "--system is for one system"),
        (("--seed", "4"), "--seed is for one run of each"),
        (("--seeds", "1,1"), "--seeds names a seed twice"),
        (("--only", "kill"), "--only: for the trials of a suite"),
        (("pull-request", "--duration", "40s"), "--duration: suites/pull-request.toml is a suite"),
        (
            ("redis", "--only", "streams"),
            "redis-split streams on flotilla: the clients",
        ),
        (("--systems", "flotilla,nothing"), "unknown system 'nothing'"),
    ],
)
def test_flags_of_one_system_are_refused(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    two = () if "--systems" in flags else ("--systems", "flotilla,flotilla:unsafe-default")
    done = run_command.seatrial("differ", *two, *flags, runs=tmp_path)
    assert (done.code, done.out) == (254, "")
    assert words in done.err
