"""What a crashed run left open is undone once, and a run in progress is left alone."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from harness.runs import start_run
from harness.trial import Trial
from nemesis import Entry, Ledger, open_entries

Script = Callable[..., "CompletedProcess[str]"]


def crashed(runs: Path) -> Path:
    """A run that ended between a fault's intent and its closing."""
    with start_run(Trial(name="crashed"), "", runs) as run:
        ledger = Ledger(run.ledger)
        ledger.intend(Entry(0, "pause", ("broker-1",)))
        ledger.intend(Entry(1, "kill", ("broker-2",)))
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
    assert "Nothing to heal" in seatrial("heal").stdout


def test_heal_spares_a_run_in_progress(seatrial: Script, tmp_path: Path) -> None:
    """Its own nemesis heals it."""
    with start_run(Trial(name="going"), "", tmp_path / "runs") as run:
        ledger = Ledger(run.ledger)
        ledger.intend(Entry(0, "pause", ("broker-1",)))
        assert "Nothing to heal" in seatrial("heal", str(run.path)).stdout
        assert open_entries(run.ledger)
        ledger.close()
