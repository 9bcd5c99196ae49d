"""Undoing what a crashed run left in the world.

A run's ledger holds an intent for each fault, closed when it was observed healed; what is still
open when the run is over has to be undone. Hosts that outlive a run offer `heal(run, entries)` in
their module; those that die with it (local: the kernel takes their namespaces away) have nothing
left, and their entries are only closed.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import registry
from harness.errors import EXIT_VALID
from harness.rundir import RunDir
from harness.runs import is_running


def heal(folder: Path | None, runs: Path) -> int:
    """Heal one run, or every run below `runs`; says what was done."""
    chosen = [RunDir.open(folder)] if folder else list(_stored(runs))
    open_runs = [
        run
        for run in chosen
        if registry.nemesis().open_entries(run.ledger) and not is_running(run.path)
    ]
    for run in open_runs:
        print(_heal(run))
    if not open_runs:
        print("Nothing to heal: every fault was undone.")
    return EXIT_VALID


def _stored(runs: Path) -> Iterator[RunDir]:
    for path in sorted(runs.glob("*/trial.toml")):
        if not path.parent.is_symlink():
            yield RunDir(path.parent.resolve())


def _heal(run: RunDir) -> str:
    entries = registry.nemesis().open_entries(run.ledger)
    hosts = run.trial().hosts
    undo = getattr(registry.module("hosts", hosts), "heal", None)
    if undo is not None:
        undo(run, entries)
    _close(run, entries)
    left = "undone" if undo else f"{hosts} hosts die with their run, so nothing is left of them"
    return f"{run.path.name}: {_words(entries)}: {left}"


def _close(run: RunDir, entries: Sequence[Any]) -> None:
    with closing(registry.nemesis().Ledger(run.ledger)) as ledger:
        for entry in entries:
            ledger.close_entry(entry.id)


def _words(entries: Sequence[Any]) -> str:
    return ", ".join(f"{entry.kind} of {' '.join(entry.nodes) or 'nobody'}" for entry in entries)
