"""Undoing what a crashed run left in the world.

A run's ledger holds an intent for each fault, closed when it was observed healed; what is still
open when the run is over has to be undone. Hosts that outlive a run offer `heal(run, entries)` in
their module: it undoes the faults, removes whatever the run made, and gives the words for what it
found. Hosts that die with their run (local: the kernel takes their namespaces away) have nothing
left, and their entries are only closed.

A run that ended by itself has taken everything down, so its hosts are asked again only when it is
named: old runs may speak of machines that nobody has any more.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import registry
from harness.cluster import FOLDER as CLUSTERS
from harness.errors import EXIT_VALID, BadRequest, SeatrialError
from harness.rundir import RunDir
from harness.runs import is_running

Undo = Callable[[RunDir, Sequence[Any]], Sequence[str]]


def heal(folder: Path | None, runs: Path) -> int:
    """Heal one run, or every run below `runs`; says what was done."""
    chosen = [RunDir.open(folder)] if folder else list(_stored(runs))
    if folder and is_running(chosen[0].path):
        print(f"Nothing to heal yet: {chosen[0].path.name} goes on, and undoes its own faults.")
        return EXIT_VALID
    exit_code, done = EXIT_VALID, False
    for run in chosen:
        if is_running(run.path):
            continue
        try:
            said = _heal(run, named=folder is not None)
        except SeatrialError as e:
            print(f"seatrial: {run.path.name}: {e}", file=sys.stderr)
            exit_code = max(exit_code, e.exit_code)
        else:
            done = done or bool(said)
            print(said, end="")
    if not done and exit_code == EXIT_VALID:
        which = f"{chosen[0].path.name}; --all looks at all" if folder else "these runs"
        print(f"Nothing to heal: every fault was undone, and nothing is left of {which}.")
    return exit_code


def _stored(runs: Path) -> Iterator[RunDir]:
    if not runs.is_dir():
        raise BadRequest(f"there is no folder {runs} with runs in it: name it with --runs")
    for pattern in ("*/trial.toml", f"{CLUSTERS}/*/trial.toml"):
        for path in sorted(runs.glob(pattern)):
            if not path.parent.is_symlink():
                yield RunDir(path.parent.resolve())


def _heal(run: RunDir, named: bool) -> str:
    """Undo it; a line that says what was undone, or nothing."""
    entries = registry.nemesis().open_entries(run.ledger)
    hosts = run.trial().hosts
    undo: Undo | None = getattr(registry.module("hosts", hosts), "heal", None)
    over = run.state().get("ended") and not entries
    removed = undo(run, entries) if undo and (named or not over) else ()
    if entries:
        _close(run, entries)
    parts = [_undone(entries, hosts, dies=undo is None)] if entries else []
    parts += [f"removed {_listed(removed)}"] if removed else []
    return f"{run.path.name}: {'; '.join(parts)}\n" if parts else ""


def _close(run: RunDir, entries: Sequence[Any]) -> None:
    with closing(registry.nemesis().Ledger(run.ledger)) as ledger:
        for entry in entries:
            ledger.close_entry(entry.id)


def _undone(entries: Sequence[Any], hosts: str, dies: bool) -> str:
    left = f"{hosts} hosts die with their run, so nothing is left of them" if dies else "undone"
    faults = ", ".join(f"{entry.kind} of {' '.join(entry.nodes) or 'nobody'}" for entry in entries)
    return f"{faults}: {left}"


def _listed(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
