"""The folder of all runs: names never collide, `latest` leads to the newest, old runs make room."""

import tomllib
from pathlib import Path

import pytest

from harness.errors import BadRequest, BedFailed
from harness.rundir import RunDir
from harness.runs import BALLAST, cap_bytes, drop_ballast, make_room, start_run
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


def test_a_file_named_latest_is_left_alone(tmp_path: Path) -> None:
    """Only a link of ours is replaced."""
    (tmp_path / "latest").mkdir()
    with start_run(Trial(), "", tmp_path):
        assert not (tmp_path / "latest").is_symlink()


def test_the_cap_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """In gigabytes; anything else is refused by name."""
    monkeypatch.setenv("SEATRIAL_RUNS_CAP_GB", "0.5")
    assert cap_bytes() == 5e8
    monkeypatch.setenv("SEATRIAL_RUNS_CAP_GB", "much")
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
