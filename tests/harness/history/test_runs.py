"""The folder of all runs: names never collide, `latest` leads to the newest, old runs make room."""

import fcntl
import json
import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import BadRequest, BedFailed
from harness.history import runs as runs_module
from harness.history.rundir import RunDir
from harness.history.runs import (
    BALLAST,
    LOCK,
    cap_bytes,
    drop_ballast,
    is_running,
    locked,
    make_room,
    start_run,
    write_run,
)
from harness.trial import Trial


def old_run(runs: Path, name: str, size: int) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "trial.toml").write_text("")
    (folder / "data").write_bytes(b"x" * size)
    return folder


def test_a_run_begins_with_its_trial_its_plan_and_its_state(tmp_path: Path) -> None:
    """Whatever happens later, the folder says what was to be run, by what, and that it began."""
    with start_run(Trial(name="first"), "# a plan\n", tmp_path) as run:
        assert run.trial() == Trial(name="first")
        assert run.plan_file.read_text() == "# a plan\n"
        state = run.state()
    assert (state["ended"], state["interrupted"], state["phase"]) == (False, False, "starting")
    assert {"python", "kernel", "seatrial"} <= state["versions"].keys()
    assert state["machine"]["cores"] >= 1


def test_runs_of_the_same_second_get_names_of_their_own(tmp_path: Path) -> None:
    """Three at once are three folders, and `latest` leads to the last."""
    with (
        start_run(Trial(), "", tmp_path) as a,
        start_run(Trial(), "", tmp_path) as b,
        start_run(Trial(), "", tmp_path) as c,
    ):
        assert len({a.path, b.path, c.path}) == 3
        assert (tmp_path / "latest").resolve() == c.path


@pytest.mark.parametrize("name", ["../../etc", "a b\n", "", "x" * 300, ".hidden", "Größe"])
def test_any_trial_name_makes_a_folder_below_runs(tmp_path: Path, name: str) -> None:
    """A name is never a path."""
    with start_run(Trial(name=name), "", tmp_path) as run:
        assert run.path.parent == tmp_path.resolve()
        assert tomllib.loads(run.trial_file.read_text())["name"] == name


def test_the_oldest_runs_make_room_but_nothing_else_does(tmp_path: Path) -> None:
    """Until the rest fits; folders that are no runs stay, and so does a run in progress."""
    first = old_run(tmp_path, "20260101-000000-a", 400_000)
    second = old_run(tmp_path, "20260102-000000-b", 400_000)
    third = old_run(tmp_path, "20260103-000000-c", 400_000)
    foreign = tmp_path / "00-notes"
    foreign.mkdir()
    make_room(tmp_path, 900_000)
    assert not first.exists()
    assert second.exists()
    assert third.exists()
    assert foreign.exists()
    with start_run(Trial(), "", tmp_path) as running:
        make_room(tmp_path, 0)
        assert running.trial_file.exists()
        assert not second.exists()
    make_room(tmp_path, 0)
    assert not running.path.exists()


def test_what_a_suite_found_wrong_makes_no_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not while the suite is under way, nor after it was summed up; and that is said."""
    names = [f"2026010{n}-000000-{n}" for n in range(1, 5)]
    for name in names:
        old_run(tmp_path, name, 400_000)
    rows = [{"run": name, "outcome": code} for name, code in zip(names, (1, 0, 2, 0), strict=True)]
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "night.json").write_text(json.dumps({"rows": rows[:2]}))
    lines = [json.dumps({"done": "x", "row": row}) for row in rows[2:]]
    (tmp_path / "suites" / "day-0.jsonl").write_text("\n".join(["{torn", "[]", *lines]))
    (tmp_path / "suites" / "torn.json").write_text('{"rows": [1')
    make_room(tmp_path, 1_300_000)
    assert [name for name in names if (tmp_path / name).exists()] == [names[0], *names[2:]]
    assert capsys.readouterr().err == ""
    make_room(tmp_path, 500_000)
    assert [name for name in names if (tmp_path / name).exists()] == [names[0], names[2]]
    assert "CAP_GB allows; 2 runs with an unexpected verdict" in capsys.readouterr().err


def test_a_run_is_held_before_its_folder_is_a_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nobody who makes room, or looks, ever finds one that is not."""
    seen = []

    def looking(trial: Trial, plan: str, folder: Path) -> RunDir:
        seen.append(is_running(folder))
        return write_run(trial, plan, folder)

    monkeypatch.setattr(runs_module, "write_run", looking)
    with start_run(Trial(), "", tmp_path) as run:
        assert seen == [True]
        assert is_running(run.path)
    assert not is_running(run.path)


def test_who_only_looks_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who look take neither for a run, and who begins one waits for them."""
    look = os.open(tmp_path / LOCK, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(look, fcntl.LOCK_SH)
    assert not is_running(tmp_path)
    ended = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: os.close(look))
    monkeypatch.setattr(runs_module, "time", ended)
    with locked(RunDir(tmp_path)):
        assert is_running(tmp_path)


def test_a_run_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever was first; the other is told."""
    monkeypatch.setattr(runs_module, "PROBE_LASTS_S", 0.0)
    with locked(RunDir(tmp_path)), pytest.raises(BlockingIOError), locked(RunDir(tmp_path)):
        pass


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/null"), os.mkfifo])
def test_a_lock_that_is_none_holds_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Whatever lies there in its stead; nobody waits for it, and nothing is made."""
    assert not is_running(tmp_path)
    assert not (tmp_path / LOCK).exists()
    make(tmp_path / LOCK)
    assert not is_running(tmp_path)


def test_a_file_named_latest_is_left_alone(tmp_path: Path) -> None:
    """Only a link of ours is replaced."""
    (tmp_path / "latest").mkdir()
    with start_run(Trial(), "", tmp_path):
        assert not (tmp_path / "latest").is_symlink()


def test_the_cap_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """In gigabytes; anything else is refused by name."""
    monkeypatch.setenv("SEATRIAL_RUNS_CAP_GB", "0.5")
    assert cap_bytes() == 5e8
    for text in ("much", "nan", "-1"):
        monkeypatch.setenv("SEATRIAL_RUNS_CAP_GB", text)
        with pytest.raises(BadRequest, match="SEATRIAL_RUNS_CAP_GB must be a number"):
            cap_bytes()


def test_runs_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """A sentence with the way out, not a trace."""
    (tmp_path / "runs").write_text("a file where the folder should be")
    with (
        pytest.raises(BedFailed, match="choose another folder with --runs"),
        start_run(Trial(), "", tmp_path / "runs"),
    ):
        pass


def test_ballast_is_there_while_a_run_lasts_and_can_be_dropped(tmp_path: Path) -> None:
    """Room for the last words on a full disk; nothing of it stays."""
    with start_run(Trial(), "", tmp_path) as run:
        assert (run.path / BALLAST).stat().st_size > 1_000_000
        drop_ballast(run)
        drop_ballast(run)
    assert not (run.path / BALLAST).exists()


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_damaged_state_is_a_bad_request(tmp_path: Path, text: str) -> None:
    """Whoever asks about a run whose small files are damaged is told which one."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadRequest, match=r"run\.json .* restore it from a copy"):
        RunDir(tmp_path).state()
