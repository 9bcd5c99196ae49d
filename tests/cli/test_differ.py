"""Two systems beside each other: what counts as apart, and the command on simulated hosts."""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
import run_command

from harness.cli.differ import (
    ComparedSystem,
    Difference,
    SystemResult,
    as_json,
    chance,
    conclusion,
    differences,
    exit_code,
    parse_systems,
)
from harness.cli.session import RunEnd
from harness.errors import BadRequest
from harness.judge.verdict import Judgement, Verdict

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


def test_the_exit_code_and_the_last_words() -> None:
    none, some = result("a", lost(0, 0, 0)), result("b", lost(31, 31, 32))
    found = differences(none, some)
    assert exit_code(none, some, found) == 1
    assert next(iter(conclusion(none, some, found))) == "apart: lost"
    alike = result("b", lost(0, 1, 0))
    found = differences(none, alike)
    assert exit_code(none, alike, found) == 0
    assert "10 %" in list(conclusion(none, alike, found))[1]
    few = result("b", lost(31))
    found = differences(none, few)
    assert exit_code(none, few, found) == 2
    assert "too few" in next(iter(conclusion(none, few, found)))
    failed = SystemResult(ComparedSystem("b"), [RunEnd(1, error="no cluster")], [{}])
    assert exit_code(none, failed, differences(none, failed)) == 255


def test_verdicts_that_have_none_in_common_are_apart() -> None:
    valid, invalid = result("a", lost(0, 0, 0)), result("b", lost(0, 0, 0), Judgement.INVALID)
    assert exit_code(valid, invalid, differences(valid, invalid)) == 1


def test_a_time_without_an_end_is_null() -> None:
    ends = [{"to_ack_s_p50": inf}] * 3
    first, second = result("a", ends), result("b", ends)
    (figure,) = as_json(first, second, differences(first, second))["figures"]
    assert figure == {"name": "to_ack_s_p50", "values": [[None] * 3] * 2, "apart": False}


def test_two_profiles_in_simulated_worlds(tmp_path: Path) -> None:
    """One loses what it acknowledged alone; the other waits for its slaves."""
    done = run_command.seatrial(
        *("differ", "--systems", "flotilla:allack-min2,flotilla:unsafe-default"),
        *("--plan", PLAN, "--hosts", "simulated", "--load", "rate=300", "--json", "--no-report"),
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
