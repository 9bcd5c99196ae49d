"""`seatrial heal`: undoes what a crashed run left on its hosts.

A run's ledger has an entry for each fault, which is closed when the fault was observed healed;
entries that are still open when the run has ended must be undone. Hosts that outlive a run have
`heal(run, entries)` in their plug-in: it undoes the faults, removes what the run made, and returns
names for what it found. Hosts that end with their run (local: the kernel removes their namespaces)
have nothing left, so their entries are only closed.

A run's folder may come from another person, so it does not determine where to heal: SSH hosts come
from the registry of this user, containers from labels that name this machine and the run's folder.

A run that ended by itself has removed everything, so its hosts are contacted only if it is named:
old runs may name machines that no longer exist.
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
from harness.history.run_files import open_untrusted
from harness.history.rundir import RunDir
from harness.history.runs import LATEST, is_running
from harness.text.parsing import parse_toml, read_text
from harness.text.plurals import and_list, quantity

Undo = Callable[[RunDir, Sequence[Any]], Sequence[str]]


def heal(folder: Path | None, runs: Path, every: bool = False) -> int:
    """Heal the run in a folder, every run below `runs`, or the newest; print what was done."""
    chosen = list(_stored_runs(runs)) if every else [open_untrusted(folder or runs / LATEST)]
    if not every and is_running(chosen[0].path):
        print(f"Nothing to heal: {chosen[0].path.name} is running, and undoes its own faults.")
        return EXIT_VALID
    done, failures = False, _Failures()
    for run in chosen:
        if is_running(run.path):
            continue
        try:
            line = _heal(open_untrusted(run.path), named=not every)
            done = done or bool(line)
            print(line, end="")
            _refuse_doubt(run)
        except SeatrialError as e:
            failures.add(run, e)
    failures.show()
    if not done and not failures.exit_code:
        which = "these runs" if every else chosen[0].path.name
        print(f"Nothing to heal: every fault was undone, and nothing is left of {which}.")
    if not every and not folder:
        print(f"Only the newest run was checked; to check all runs: {seatrial()} heal --all")
    return failures.exit_code


class _Failures:
    """What could not be healed; an error of several runs is printed once."""

    def __init__(self) -> None:
        self.exit_code = EXIT_VALID
        self._runs: dict[str, list[str]] = {}  # by sentence

    def add(self, run: RunDir, error: SeatrialError) -> None:
        self.exit_code = max(self.exit_code, error.exit_code)
        for sentence in str(error).splitlines():
            self._runs.setdefault(sentence, []).append(run.path.name)

    def show(self) -> None:
        for sentence, runs in self._runs.items():
            more = f" and {quantity(len(runs) - 1, 'other run')}" if len(runs) > 1 else ""
            print(f"seatrial: {runs[0]}{more}: {sentence}", file=sys.stderr)


def _stored_runs(runs: Path) -> Iterator[RunDir]:
    if not runs.is_dir():
        raise BadRequest(f"there is no folder {runs} with runs; name one with --runs")
    for pattern in ("*/trial.toml", f"{CLUSTERS}/*/trial.toml"):
        for path in sorted(runs.glob(pattern)):
            if not path.parent.is_symlink():
                yield RunDir(path.parent.resolve())


def _heal(run: RunDir, named: bool) -> str:
    """Undo what a run left, and return a line about it, or nothing."""
    nemesis = registry.nemesis()
    entries = nemesis.open_entries(run.ledger)
    hosts = _hosts(run)
    undo = registry.hosts(hosts).heal
    over = run.state().get("ended") and not entries and not nemesis.ledger_damage(run.ledger)
    removed = undo(run, entries) if undo and (named or not over) else ()
    if entries:
        _close(run, entries)
    parts = [_undone_text(entries, hosts, dies=undo is None)] if entries else []
    parts += [f"removed {and_list(removed)}"] if removed else []
    return f"{run.path.name}: {'; '.join(parts)}\n" if parts else ""


def _hosts(run: RunDir) -> str:
    """Return the kind of hosts of a run. Raises BadRequest if its trial file is truncated."""
    table = parse_toml(read_text(run.trial_file, "the trial"), str(run.trial_file))
    if "hosts" not in table:
        raise BadRequest(f"{run.trial_file} does not name the hosts of the run; restore the file")
    return run.trial().hosts


def _refuse_doubt(run: RunDir) -> None:
    """Raise BadRequest if the ledger is damaged, so that entries may be missing."""
    if damage := registry.nemesis().ledger_damage(run.ledger):
        raise BadRequest(
            f"{damage}, so it is unknown whether every fault was undone; check the hosts of this "
            "run, then remove the damaged file"
        )


def _close(run: RunDir, entries: Sequence[Any]) -> None:
    with closing(registry.nemesis().FaultLedger(run.ledger)) as ledger:
        for entry in entries:
            ledger.close_entry(entry.id)


def _undone_text(entries: Sequence[Any], hosts: str, dies: bool) -> str:
    left = f"{hosts} hosts end with their run, so nothing is left of them" if dies else "undone"
    faults = ", ".join(f"{entry.kind} of {' '.join(entry.nodes) or 'no node'}" for entry in entries)
    return f"{faults}: {left}"
