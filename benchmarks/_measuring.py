"""Runs the experiments of a suite with claims, and records each result at once.

Shared by claims.py and modes.py. Trials run as `seatrial suite FILE` runs them. Commands print a
JSON object with their figures as the last line. What failed is reported, and not recorded.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.suite.claims import (
    ClaimsFile,
    CommandRun,
    Measurement,
    PublishedClaim,
    read_record,
    record_text,
    trial_key,
    valid_measurements,
)
from harness.suite.execution import SuiteBudget, SuiteRun, SuiteState, conduct
from harness.suite.log import SuiteLog
from harness.suite.store import SuiteRow, locked, replace_file
from harness.suite.view import sentence

ROOT = Path(__file__).resolve().parents[1]
CODE = ("harness", "nemesis", "checkers", "clusters")


def edition() -> str:
    """Return the commit, with + if code differs from it."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run(
        (*git, "rev-parse", "--short=10", "HEAD"), capture_output=True, text=True
    )
    changed = subprocess.run((*git, "diff", "--quiet", "HEAD", "--", *CODE), check=False).returncode
    return commit.stdout.strip() + "+" * bool(changed)


@dataclass(frozen=True)
class ClaimMeasuring:
    """The suite file with claims, and the file in which its measurements are."""

    suite: Path
    record: Path

    def add(self, rows: Sequence[Measurement]) -> None:
        """Record measurements, in the place of earlier ones of the same name and seed."""
        with locked(self.record.parent):
            known = {(row.name, row.seed): row for row in read_record(self.record)}
            known |= {(row.name, row.seed): row for row in rows}
            replace_file(self.record, record_text(known.values()))

    def measure_trials(
        self, turns: Sequence[SuiteRun], runs: Path, budget_s: float | None
    ) -> list[str]:
        """Run trials, record each at once, and return the names of those that failed."""
        state, failed = SuiteState(self.suite, tuple(turns), command=tuple(sys.argv[1:])), []
        by_key = {(turn.cell.title, turn.cell.request.trial.seed): turn for turn in turns}
        now, suite = edition(), self.suite.relative_to(ROOT)

        def watch(row: SuiteRow) -> None:
            print(f"{len(state.rows)}/{len(turns)} {sentence(row)}", flush=True)
            if row.error or not row.figures:
                failed.append(row.name)
                return
            cell = by_key[row.name, row.seed].cell
            measured = Measurement(
                *(row.name, trial_key(cell), dict(row.figures), row.seed, row.when),
                load=round(os.getloadavg()[0], 1),
                edition=now,
                command=f"seatrial suite {suite} --only {shlex.quote(row.name)}",
                word=row.word,
                codes=row.codes,
            )
            self.add([measured])

        with SuiteLog(self.suite, [turn.key for turn in turns], runs) as log:
            for row in log.rows.values():
                watch(row)
            conduct(state, runs, log, SuiteBudget(time_s=budget_s), watch, page=False)
            if state.complete:
                log.finish()
        if state.early:
            print(f"ended early: {state.early}")
        return failed

    def measure_command(self, command: CommandRun) -> str:
        """Run a command and record its figures; return why it failed, or nothing."""
        when = datetime.now(UTC).isoformat(timespec="seconds")
        asked = [sys.executable, *shlex.split(command.run)]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
        try:
            figures = json.loads(done.stdout.splitlines()[-1])
            kept = {name: float(figures[name]) for name in command.figures}
        except (ValueError, LookupError, TypeError) as e:
            said = f"{done.stdout[-300:]}{done.stderr[-300:]}"
            return f"{command.name}: no figures ({e!r}): {said}"
        line = f"python {command.run}"
        load = round(os.getloadavg()[0], 1)
        self.add([Measurement(command.name, command.key, kept, 0, when, load, edition(), line)])
        print(f"{command.name}: {', '.join(f'{name} {value:.4g}' for name, value in kept.items())}")
        return ""

    def measure(
        self, file: ClaimsFile, names: Collection[str], options: argparse.Namespace
    ) -> list[str]:
        """Measure those of these experiments that have no record (with --again: all), or list them.
        Return what failed."""
        recorded = [] if options.again else read_record(self.record)
        known = valid_measurements(file, recorded, ROOT).of
        seeds = {(row.name, row.seed) for rows in known.values() for row in rows}
        turns = [
            SuiteRun(cell)
            for name in names
            for cell in file.cells
            if cell.title == name and (name, cell.request.trial.seed) not in seeds
        ]
        commands = [c for c in file.commands if c.name in names and c.name not in known]
        commands = [c for c in commands if options.quiet or options.only or not c.quiet]
        if options.list:
            print("\n".join([*(turn.cell.title for turn in turns), *(c.name for c in commands)]))
            return []
        failed = list(filter(None, map(self.measure_command, commands)))
        if turns:
            failed += self.measure_trials(turns, options.runs, options.budget_time)
        return failed


def parsed(title: str, page: str) -> argparse.Namespace:
    """Return the options of a script that measures claims and writes this page."""
    parser = argparse.ArgumentParser(description=title)
    switch = partial(parser.add_argument, action="store_true")
    parser.add_argument("--only", default="", metavar="IDS", help="claims, such as H10,H12")
    switch("--again", help="measure again what is recorded, too")
    switch("--quiet", help="also what needs a machine without other load, as with --only")
    parser.add_argument(
        "--budget-time", type=float, metavar="S", help="start no trial that will end later"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="the folder for runs")
    switch("--page", help=f"measure nothing, write {page}")
    switch("--list", help="measure nothing, list the experiments that have no record")
    return parser.parse_args()


def chosen(claims: Sequence[PublishedClaim], only: str, suite: Path) -> set[str]:
    """Return the ids that --only names; a part before a slash names all below it. Exits with code 2
    at a strange word."""
    found: set[str] = set()
    for word in filter(None, only.split(",")):
        ids = {claim.id for claim in claims if f"{claim.id}/".startswith(f"{word}/")}
        if not ids:
            where = suite.relative_to(ROOT)
            print(f"error: no claim is called {word}; see {where}", file=sys.stderr)
            raise SystemExit(2)
        found |= ids
    return found


def wanted(file: ClaimsFile, only: Collection[str]) -> list[str]:
    """Return the names of the experiments of these claims, in the order of the file."""
    modes = {f"availability/{mode.name}": mode for mode in file.modes}
    names: dict[str, None] = {}
    for claim in file.claims:
        if not only or claim.id in only:
            names |= dict.fromkeys(claim.experiments)
    if not only:
        names |= dict.fromkeys(modes)
    for name in list(names):
        if mode := modes.get(name):
            extra = [mode.outage] if mode.outage else []
            names |= dict.fromkeys((*mode.trials.values(), *extra))
    return list(names)
