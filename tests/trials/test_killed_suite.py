"""A suite that is killed in the middle goes on: nothing counts twice, nothing is left behind."""

import json
import signal
import uuid
from pathlib import Path
from typing import Any

import leftovers
import pytest
import run_command

pytestmark = [pytest.mark.bed, pytest.mark.spark]

SUITE = """
[[trial]]
run = "messages"
name = "first"
with = { name = "first", duration_s = 6.0, load = { rate = 20 }, hosts = "simulated" }
expect = "valid"

[[trial]]
run = "messages"
with = { name = "second", plan = "PLAN", compare_replicas = true }
expect = "valid"

[[trial]]
run = "messages"
name = "third"
with = { name = "third", duration_s = 6.0, load = { rate = 20 }, hosts = "simulated" }
expect = "invalid"
"""
PLAN = """
[trial]
duration_s = 25.0
load = { rate = 100 }
settings = { timeScale = 0.1 }

[[fault]]
kind = "kill"
at_s = 8.0
for_s = 5.0
target = "one slave"
"""
GONE_WITHIN_S = 30.0


def told(runs: Path) -> Any:
    return json.loads((runs / "suites" / "night.json").read_text())


def folders(runs: Path) -> list[str]:
    """Of runs, by the names of their trials."""
    return sorted(p.parent.name.split("-", 2)[2] for p in runs.glob("2*/trial.toml"))


def test_a_killed_suite_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """kill -9 in the second run, under a fault: what was done is kept, what had begun is cleared
    away and made again, and the night has three runs."""
    suite, runs = tmp_path / "night.toml", tmp_path / "runs"
    (tmp_path / "plan.toml").write_text(PLAN)
    suite.write_text(SUITE.replace("PLAN", str(tmp_path / "plan.toml")))
    mark = uuid.uuid4().hex
    command = run_command.RunningCommand("suite", suite, runs=runs, **{leftovers.MARK: mark})
    try:
        command.until("first seed 1: valid, as expected")
        command.until("kill on .*: (applied|observed)")
        belongings = leftovers.Belongings(command.process.pid, mark)
        belongings.look()
        command.signal(signal.SIGKILL)
        run_command.wait(
            lambda: not belongings.left(), GONE_WITHIN_S, f"{belongings.left()} ending"
        )
    finally:
        command.close()
    assert folders(runs) == ["first", "second"]

    again = run_command.RunningCommand("suite", suite, runs=runs).end()
    assert again.code == 1, again.words
    night = told(runs)
    assert [(row["name"], row["word"]) for row in night["rows"]] == [
        *(("first", "valid"), ("second", "valid"), ("third", "valid"))
    ]
    assert night["resumed"] == 1
    assert night["rows"][1]["figures"]["compared"] >= 2, "before the fault, and after it"
    assert 0 < night["rows"][1]["around_s"] < night["rows"][1]["took_s"]
    assert folders(runs) == ["first", "second", "third"], "the one that was cut off is gone"
    assert "third seed 1: valid, but invalid was expected" in again.err
    nights = (runs / "suites" / "nights.jsonl").read_text().splitlines()
    assert len(nights) == 1
    assert not list((runs / "suites").glob("night-*")), "the next one is another night"
