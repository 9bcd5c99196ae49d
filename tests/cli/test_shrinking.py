"""`seatrial shrink`, by the real command, on a run that really failed."""

import json
import os
import shutil
import signal
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import run_command
import sinking

from harness.history.rundir import RunDir
from harness.judge.verdict import Verdict

CALM = """\
[[fault]]
kind = "kill"
at_s = 1.0
for_s = 0.5
target = "nameserver"
"""


@pytest.fixture(scope="module")
def sunk(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that lost messages, by two of its five faults."""
    outcome = sinking.sunk(tmp_path_factory.mktemp("sunk") / "run")
    assert "LOST_ACKED" in outcome.failure
    run: RunDir = outcome.run
    return run


@pytest.fixture(scope="module")
def shrunk(sunk: RunDir, tmp_path_factory: pytest.TempPathFactory) -> run_command.FinishedCommand:
    """The command that shrank it."""
    done = shrink(sunk.path, "--luck", 1, runs=tmp_path_factory.mktemp("shrunk"))
    assert done.code == 0, done.words
    return done


@pytest.fixture
def copy(sunk: RunDir, tmp_path: Path) -> RunDir:
    """The same, to be damaged."""
    shutil.copytree(sunk.path, tmp_path / "copy")
    return RunDir(tmp_path / "copy")


def shrink(run: Path, *arguments: Any, runs: Path) -> run_command.FinishedCommand:
    return run_command.seatrial("shrink", run, "--runs", runs, *arguments, runs=runs)


def faults(run: RunDir) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(run.plan_file.read_text()).get("fault", [])
    return found


@pytest.mark.bed
def test_a_shrunk_run_fails_with_less_and_tells_why(
    sunk: RunDir, shrunk: run_command.FinishedCommand
) -> None:
    """Fewer faults, nodes and seconds, the same finding; a run of its own, with page and story."""
    done = shrunk
    run = RunDir(done.run)
    assert run.path.name.endswith("-shrunk-sinking")
    assert '<svg class="spacetime"' in run.report_file.read_text()
    assert 1 <= len(faults(run)) <= 3
    assert run.trial().duration_s < sunk.trial().duration_s
    assert run.trial().load["rate"] < 60
    assert Verdict.read(run.verdict_file).convicting[0] == "LOST_ACKED"
    assert f"5 faults in 4 s of load on 6 nodes became {len(faults(run))} fault" in done.out
    for words in (" sends the message to orders-0", " acknowledges the message: offset "):
        assert words in done.out
    assert "In the end no log holds the message, of " in done.out
    assert "Violated: an acknowledged message stays in the log." in done.out
    assert f"replay {run.path}" in done.out
    assert len(done.out.splitlines()) <= 60


@pytest.mark.bed
def test_a_shrunk_run_can_be_replayed(shrunk: run_command.FinishedCommand, tmp_path: Path) -> None:
    """It fails again, event by event."""
    again = run_command.seatrial("replay", shrunk.run, runs=tmp_path)
    assert again.code == 1, again.words
    assert ": the same events" in again.err
    assert "LOST_ACKED" in again.findings
    assert '<svg class="spacetime"' in RunDir(again.run).report_file.read_text()


@pytest.mark.bed
@pytest.mark.parametrize(
    "requests",
    [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGHUP)],
)
def test_a_stopped_search_keeps_the_best_so_far(
    sunk: RunDir, tmp_path: Path, requests: tuple[signal.Signals, ...]
) -> None:
    """Ctrl-C, SIGTERM or a closed terminal, once the run is known to fail: what there is becomes
    the run."""
    with closing(
        run_command.RunningCommand("shrink", sunk.path, "--jobs", 1, runs=tmp_path)
    ) as command:
        command.until("LOST_ACKED: 5 faults")
        for number in requests:
            command.signal(number)
        done = command.end()
    assert done.code == 0, done.words
    assert "The search was stopped early" in done.out
    assert "LOST_ACKED" in Verdict.read(RunDir(done.run).verdict_file).convicting


# --------------------------------------------------------------------------------- refusals


def refused(run: RunDir, words: str, runs: Path) -> None:
    """One sentence, exit code 254, and no new run."""
    done = shrink(run.path, runs=runs)
    assert done.code == 254, done.words
    assert words in done.err, done.words
    assert "Traceback" not in done.words
    assert not (runs / "latest").exists()


def test_a_real_run_must_have_been_convicted(copy: RunDir, tmp_path: Path) -> None:
    """Of something that is to be kept: nothing else can be told from luck."""
    copy.trial_file.write_text(copy.trial_file.read_text().replace('"simulated"', '"local"'))
    copy.verdict_file.unlink()
    refused(copy, "has no verdict yet", tmp_path / "runs")


def test_hosts_that_are_not_to_be_had_are_told_as_such(copy: RunDir, tmp_path: Path) -> None:
    """In their own sentence, with the exit code of a test bed, and before anything is tried."""
    copy.trial_file.write_text(copy.trial_file.read_text().replace('"simulated"', '"docker"'))
    nowhere = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no-engine.sock"}
    runs = tmp_path / "runs"
    done = run_command.seatrial("shrink", copy.path, "--runs", runs, runs=runs, env=nowhere)
    assert done.code == 255, done.words
    assert "no-engine.sock" in done.err
    assert "does not fail" not in done.words


def test_another_edition_means_another_run(copy: RunDir, tmp_path: Path) -> None:
    copy.update_state(edition="0ld")
    refused(copy, "another version of the code (edition 0ld", tmp_path / "runs")


def test_what_is_missing_is_named(copy: RunDir, tmp_path: Path) -> None:
    copy.plan_file.unlink()
    refused(copy, "has no plan.toml", tmp_path / "runs")
    copy.trial_file.unlink()
    refused(copy, "is not a run: there is no trial.toml in it", tmp_path / "runs")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("verdict.json", "{}", "verdict.json cannot be read"),
        ("verdict.json", "[1", "verdict.json cannot be read"),
        ("run.json", "{", "run.json cannot be read"),
        ("plan.toml", "[[fault", "is not valid TOML"),
        ("plan.toml", '[[fault]]\nkind = "kill"', "at_s: is missing"),
        ("trial.toml", "name = 3", "name must be a string"),
    ],
)
def test_damage_is_named(copy: RunDir, tmp_path: Path, name: str, content: str, words: str) -> None:
    (copy.path / name).write_text(content)
    refused(copy, words, tmp_path / "runs")


@pytest.mark.bed
def test_what_did_not_fail_is_left_alone(tmp_path: Path) -> None:
    """By its verdict, and without one as soon as it was simulated again."""
    run = sinking.sunk(tmp_path / "calm", CALM).run
    refused(run, "did not fail", tmp_path / "runs")
    fields = json.loads(run.verdict_file.read_text())
    assert fields["verdict"] == "valid"
    run.verdict_file.unlink()
    refused(run, "does not fail when it is simulated again", tmp_path / "runs")
