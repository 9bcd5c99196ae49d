"""Undoing what a crashed run left in the world.

A run's ledger holds an intent for each fault, closed when it was observed healed; what is still
open when the run is over has to be undone. Hosts that outlive a run offer `heal(run, entries)` in
their module: it undoes the faults, removes whatever the run made, and gives the words for what it
found. Hosts that die with their run (local: the kernel takes their namespaces away) have nothing
left, and their entries are only closed.

A run's folder may come from another person, so it does not say where to heal: SSH hosts come from
the registry of this user, containers from labels that name this machine and the run's folder.

A run that ended by itself has taken everything down, so its hosts are asked again only when it is
named: old runs may speak of machines that nobody has any more.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness import registry
from harness.cli.cluster import FOLDER as CLUSTERS
from harness.cli.prog_name import seatrial
from harness.errors import EXIT_VALID, BadRequest, SeatrialError
from harness.history.run_files import opened
from harness.history.rundir import RunDir
from harness.history.runs import LATEST, is_running
from harness.text.parsing import parsed, text_of

Undo = Callable[[RunDir, Sequence[Any]], Sequence[str]]


def heal(folder: Path | None, runs: Path, every: bool = False) -> int:
    """Heal the run in a folder, every run below `runs`, or the newest there; says what was done."""
    chosen = list(_stored(runs)) if every else [opened(folder or runs / LATEST)]
    if not every and is_running(chosen[0].path):
        print(f"Nothing to heal yet: {chosen[0].path.name} goes on, and undoes its own faults.")
        return EXIT_VALID
    done, failures = False, _Failures()
    for run in chosen:
        if is_running(run.path):
            continue
        try:
            said = _heal(opened(run.path), named=not every)
            done = done or bool(said)
            print(said, end="")
            _refuse_doubt(run)
        except SeatrialError as e:
            failures.add(run, e)
    failures.show()
    if not done and not failures.exit_code:
        which = "these runs" if every else chosen[0].path.name
        print(f"Nothing to heal: every fault was undone, and nothing is left of {which}.")
    if not every and not folder:
        print(f"Only the newest run was looked at; {seatrial()} heal --all looks at all.")
    return failures.exit_code


class _Failures:
    """What could not be healed: a sentence that is said of several runs is said once."""

    def __init__(self) -> None:
        self.exit_code = EXIT_VALID
        self._runs: dict[str, list[str]] = {}  # by sentence

    def add(self, run: RunDir, error: SeatrialError) -> None:
        self.exit_code = max(self.exit_code, error.exit_code)
        for sentence in str(error).splitlines():
            self._runs.setdefault(sentence, []).append(run.path.name)

    def show(self) -> None:
        for sentence, runs in self._runs.items():
            more = f" and {_counted(len(runs) - 1, 'other run')}" if len(runs) > 1 else ""
            print(f"seatrial: {runs[0]}{more}: {sentence}", file=sys.stderr)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _stored(runs: Path) -> Iterator[RunDir]:
    if not runs.is_dir():
        raise BadRequest(f"there is no folder {runs} with runs in it: name it with --runs")
    for pattern in ("*/trial.toml", f"{CLUSTERS}/*/trial.toml"):
        for path in sorted(runs.glob(pattern)):
            if not path.parent.is_symlink():
                yield RunDir(path.parent.resolve())


def _heal(run: RunDir, named: bool) -> str:
    """Undo it; a line that says what was undone, or nothing."""
    nemesis = registry.nemesis()
    entries = nemesis.open_entries(run.ledger)
    hosts = _hosts(run)
    undo = registry.hosts(hosts).heal
    over = run.state().get("ended") and not entries and not nemesis.ledger_damage(run.ledger)
    removed = undo(run, entries) if undo and (named or not over) else ()
    if entries:
        _close(run, entries)
    parts = [_undone(entries, hosts, dies=undo is None)] if entries else []
    parts += [f"removed {_listed(removed)}"] if removed else []
    return f"{run.path.name}: {'; '.join(parts)}\n" if parts else ""


def _hosts(run: RunDir) -> str:
    """The kind of hosts it ran on. BadRequest when its trial was cut off before it says so."""
    table = parsed(text_of(run.trial_file, "the trial"), str(run.trial_file))
    if "hosts" not in table:
        raise BadRequest(f"{run.trial_file} does not say on which hosts it ran; restore it")
    return run.trial().hosts


def _refuse_doubt(run: RunDir) -> None:
    """BadRequest when its ledger may have told of more than can be read there."""
    if damage := registry.nemesis().ledger_damage(run.ledger):
        raise BadRequest(
            f"{damage}, so it is not known whether every fault was undone; look at the hosts of "
            "this run, then remove what is damaged"
        )


def _close(run: RunDir, entries: Sequence[Any]) -> None:
    with closing(registry.nemesis().FaultLedger(run.ledger)) as ledger:
        for entry in entries:
            ledger.close_entry(entry.id)


def _undone(entries: Sequence[Any], hosts: str, dies: bool) -> str:
    left = f"{hosts} hosts die with their run, so nothing is left of them" if dies else "undone"
    faults = ", ".join(f"{entry.kind} of {' '.join(entry.nodes) or 'no node'}" for entry in entries)
    return f"{faults}: {left}"


def _listed(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
