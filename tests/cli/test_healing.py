"""What a crashed run left open is undone once, and a run in progress is left alone."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from harness.cli.healing import heal
from harness.history.runs import start_run
from harness.trial import Trial
from nemesis import FaultLedger, LedgerEntry, open_entries

Script = Callable[..., "CompletedProcess[str]"]


def crashed(runs: Path, hosts: str = "local") -> Path:
    """A run that ended between a fault's intent and its closing."""
    with start_run(Trial(name=f"crashed-on-{hosts}", hosts=hosts), "", runs) as run:
        ledger = FaultLedger(run.ledger)
        ledger.intend(LedgerEntry(0, "pause", ("broker-1",)))
        ledger.intend(LedgerEntry(1, "kill", ("broker-2",)))
        ledger.close_entry(0)
        ledger.close()
    return run.path


def test_heal_closes_what_a_crashed_run_left(seatrial: Script, tmp_path: Path) -> None:
    """Local hosts die with their run, so the fault is gone and only its entry is closed."""
    folder = crashed(tmp_path / "runs")
    healed = seatrial("heal", "--all")
    assert healed.returncode == 0
    assert "kill of broker-2" in healed.stdout
    assert "pause" not in healed.stdout
    assert not open_entries(folder / "ledger.jsonl")
    again = seatrial("heal").stdout
    assert f"nothing is left of {folder.name}" in again
    assert re.search(
        r"Only the newest run was checked; to check all runs: \S*seatrial heal --all", again
    )


def test_heal_spares_a_run_in_progress(seatrial: Script, tmp_path: Path) -> None:
    """Its own nemesis heals it."""
    with start_run(Trial(name="going"), "", tmp_path / "runs") as run:
        ledger = FaultLedger(run.ledger)
        ledger.intend(LedgerEntry(0, "pause", ("broker-1",)))
        assert "Nothing to heal" in seatrial("heal", str(run.path)).stdout
        assert open_entries(run.ledger)
        ledger.close()


def test_hosts_that_cannot_be_reached_keep_nobody_else_from_being_healed(
    seatrial: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run whose engine is away gets a sentence and keeps its entry; the others are done."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    away, here = crashed(tmp_path / "runs", "docker"), crashed(tmp_path / "runs")
    healed = seatrial("heal", "--all")
    assert healed.returncode == 255
    assert (
        f"seatrial: {away.name}: no Docker engine runs at unix:///no/such/socket" in healed.stderr
    )
    assert open_entries(away / "ledger.jsonl")
    assert f"{here.name}: kill of broker-2" in healed.stdout
    assert not open_entries(here / "ledger.jsonl")


def test_what_keeps_several_runs_from_being_healed_is_said_once(
    seatrial: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first of them and how many more there are."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    first, *_ = sorted(crashed(tmp_path / "runs", "docker").name for _ in range(3))
    said = seatrial("heal", "--all").stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"seatrial: {first} and 2 other runs: no Docker engine runs at")


def test_hosts_of_a_run_that_ended_by_itself_are_asked_only_by_name(
    seatrial: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took everything down, and its engine may be long gone."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with start_run(Trial(hosts="docker"), "", tmp_path / "runs") as run:
        run.update_state(ended=True)
    assert "Nothing to heal" in seatrial("heal", "--all").stdout
    assert "no Docker engine" in seatrial("heal", str(run.path)).stderr


def test_a_folder_without_runs_is_a_bad_request(seatrial: Script) -> None:
    """Perhaps it was mistyped: nothing was healed there."""
    refused = seatrial("heal", "--all", "--runs", "nope")
    assert refused.returncode == 254
    assert "there is no folder nope" in refused.stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (b"\xff\xfe\0", "is not text in UTF-8"),
        (b"", "does not name the hosts of the run"),
        (b'name = "torn', "is not valid TOML"),
    ],
    ids=["bytes", "empty", "torn"],
)
def test_a_run_whose_trial_is_damaged_keeps_nobody_else_from_being_healed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: bytes, says: str
) -> None:
    """It has a sentence of its own, and nobody says that every fault was undone."""
    damaged, sound = crashed(tmp_path), crashed(tmp_path)
    (damaged / "trial.toml").write_bytes(damage)
    assert heal(None, tmp_path, every=True) == 254
    told = capsys.readouterr()
    assert f"{sound.name}: kill of broker-2" in told.out
    assert says in told.err
    assert "every fault was undone" not in told.out
    assert open_entries(damaged / "ledger.jsonl")


@pytest.mark.parametrize("line", [b"\xff\xfe\0\n", b"[1, 2]\n", b'"x"\n', b"garbage\n"])
def test_a_damaged_ledger_is_healed_as_far_as_it_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    """It may have told of more faults, so it is not said that all were undone."""
    folder = crashed(tmp_path)
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(line + ledger.read_bytes())
    assert heal(folder, tmp_path) == 254
    told = capsys.readouterr()
    assert "kill of broker-2" in told.out
    assert "ledger.jsonl line 1 is neither an intent nor a closing" in told.err
    assert heal(folder, tmp_path) == 254
    assert "every fault was undone" not in capsys.readouterr().out
