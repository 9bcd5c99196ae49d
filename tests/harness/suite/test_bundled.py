"""Trials, plans and suites that come with Seatrial are found by name; files of the user win."""

from pathlib import Path

import pytest

from harness import registry
from harness.cli.commands.list import describe
from harness.cli.options import request
from harness.errors import BadRequest, UnknownName
from harness.suite import bundled
from harness.suite.suite_file import read_suite


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_are_found_from_any_folder() -> None:
    """A trial, a plan, a plan in a folder, a mutant's plan, a suite."""
    assert request("demo", {}).trial.name == "demo"
    plans = ("isolate-then-kill", "rocketmq-2024/kill-both", "mutants/double-vote")
    for name in (*plans, "suites/plans/one-way.toml"):
        assert request("", {"plan": name}).plan_text
    assert request("", {"plan": plans[0]}).trial.plan == "suites/plans/isolate-then-kill.toml"
    assert request("five-brokers", {}).plan_text, "the trial names a plan beside it"
    assert read_suite(bundled.path_of("suite", "pull-request"))


def test_every_bundled_file_has_a_name_and_a_sentence() -> None:
    for kind in bundled.KINDS:
        assert all(sentence.strip(".") for _, sentence in bundled.describe(kind))
        paths = {bundled.locate(bundled.path_of(kind, name)) for name in bundled.names(kind)}
        assert len(paths) == len(bundled.names(kind)) > 5


def test_the_name_of_a_workload_means_the_workload() -> None:
    """Trials that share one are asked for, and listed, by their paths."""
    shared = set(bundled.names("trial")) & set(registry.names("workload"))
    assert shared == {"lock", "log", "register", "set"}
    assert not request("lock", {}).trial.faults
    assert request("suites/trials/lock.toml", {}).trial.faults
    listed = {name for name, _ in describe("trial")}
    assert {"demo", "suites/trials/lock.toml"} <= listed
    assert not shared & listed


def test_a_file_of_the_user_wins(elsewhere: Path) -> None:
    """By its path in the clone, and by a bare name."""
    (elsewhere / "suites" / "trials").mkdir(parents=True)
    (elsewhere / "suites" / "trials" / "demo.toml").write_text("seed = 77\n")
    assert request("suites/trials/demo.toml", {}).trial.seed == 77
    assert request("demo", {}).trial.seed == 77, "the bundled trial would have seed 1"


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: request("dmeo", {}), r"unknown workload or trial 'dmeo' \(did you mean demo"),
        (
            lambda: request("", {"plan": "one-wya"}),
            r"unknown plan 'one-wya' \(did you mean one",
        ),
        (lambda: request("nightly", {}), r"is a suite; run it with: .*suite suites/nightly.toml"),
        (lambda: request("one-way", {}), r"is a plan; run it with: .*--plan suites/plans/one-way"),
        (lambda: read_suite(bundled.path_of("suite", "demo")), r"is a trial, not a suite; run it"),
        (lambda: request("suites/trials/none.toml", {}), r"none\.toml does not exist"),
    ],
)
def test_other_names_are_refused_with_what_helps(ask: object, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        ask()  # type: ignore[operator]


def test_an_unknown_suite_names_those_that_there_are() -> None:
    with pytest.raises(UnknownName, match="nightly, profiles, published, pull-request"):
        bundled.path_of("suite", "nothing-like-it")
