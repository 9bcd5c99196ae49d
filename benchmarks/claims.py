"""Measures the claims of suites/claims.toml: `python benchmarks/claims.py [--only H10,H12]`.

Trials run as `seatrial suite suites/claims.toml` runs them, and each result is recorded in
docs/claims.json at once, so the command may be interrupted and repeated. Commands print a JSON
object with their figures as the last line. A trial whose test bed failed is reported, and not
recorded. The page docs/claims.md is written from both files when the command ends; the exit code
is 1 if an experiment failed.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from _claims_page import page

from harness.errors import SeatrialError
from harness.suite.claims import (
    ClaimsFile,
    CommandRun,
    Measurement,
    read_claims,
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
CLAIMS, RECORD, PAGE = (
    ROOT / "suites/claims.toml",
    ROOT / "docs/claims.json",
    ROOT / "docs/claims.md",
)
CODE = ("harness", "nemesis", "checkers", "clusters")


def edition() -> str:
    """Return the commit, with + if code differs from it."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.run(
        (*git, "rev-parse", "--short=10", "HEAD"), capture_output=True, text=True
    )
    changed = subprocess.run((*git, "diff", "--quiet", "HEAD", "--", *CODE), check=False).returncode
    return commit.stdout.strip() + "+" * bool(changed)


def add(rows: Sequence[Measurement]) -> None:
    """Record measurements, in the place of earlier ones of the same name and seed."""
    with locked(RECORD.parent):
        known = {(row.name, row.seed): row for row in read_record(RECORD)}
        known |= {(row.name, row.seed): row for row in rows}
        replace_file(RECORD, record_text(known.values()))


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


def measure_trials(turns: Sequence[SuiteRun], runs: Path, budget_s: float | None) -> list[str]:
    """Run trials, record each at once, and return the names of those that failed."""
    state, failed = SuiteState(CLAIMS, tuple(turns), command=tuple(sys.argv[1:])), []
    by_key = {(turn.cell.title, turn.cell.request.trial.seed): turn for turn in turns}
    now = edition()

    def watch(row: SuiteRow) -> None:
        print(f"{len(state.rows)}/{len(turns)} {sentence(row)}", flush=True)
        if row.error or not row.figures:
            failed.append(row.name)
            return
        cell = by_key[row.name, row.seed].cell
        command = f"seatrial suite suites/claims.toml --only {shlex.quote(row.name)}"
        measured = Measurement(
            *(row.name, trial_key(cell), dict(row.figures), row.seed, row.when),
            load=round(os.getloadavg()[0], 1),
            edition=now,
            command=command,
            word=row.word,
            codes=row.codes,
        )
        add([measured])

    with SuiteLog(CLAIMS, [turn.key for turn in turns], runs) as log:
        for row in log.rows.values():
            watch(row)
        conduct(state, runs, log, SuiteBudget(time_s=budget_s), watch, page=False)
        if state.complete:
            log.finish()
    if state.early:
        print(f"ended early: {state.early}")
    return failed


def measure_command(command: CommandRun) -> str:
    """Run a command and record its figures; return why it failed, or nothing."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    asked = [sys.executable, *shlex.split(command.run)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    try:
        figures = json.loads(done.stdout.splitlines()[-1])
        kept = {name: float(figures[name]) for name in command.figures}
    except (ValueError, LookupError, TypeError) as e:
        return f"{command.name}: no figures ({e!r}): {done.stderr[-500:]}"
    line = f"python {command.run}"
    load = round(os.getloadavg()[0], 1)
    add([Measurement(command.name, command.key, kept, 0, when, load, edition(), line)])
    print(f"{command.name}: {', '.join(f'{name} {value:.4g}' for name, value in kept.items())}")
    return ""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    switch = partial(parser.add_argument, action="store_true")
    parser.add_argument("--only", default="", metavar="IDS", help="claims, such as H10,H12")
    switch("--again", help="measure again what is recorded, too")
    switch("--quiet", help="also what needs a machine without other load, as with --only")
    parser.add_argument(
        "--budget-time", type=float, metavar="S", help="start no trial that will end later"
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="the folder for runs")
    switch("--page", help="measure nothing, write docs/claims.md")
    switch("--list", help="measure nothing, list the experiments that have no record")
    return parser.parse_args()


def main() -> int:
    options = parsed()
    file = read_claims(CLAIMS)
    only = {word for word in options.only.split(",") if word}
    if strange := only - {claim.id for claim in file.claims}:
        print(f"error: no claim is called {min(strange)}; see suites/claims.toml", file=sys.stderr)
        return 2
    known = {} if options.again else valid_measurements(file, read_record(RECORD), ROOT).of
    names = wanted(file, only)
    seeds = {(row.name, row.seed) for rows in known.values() for row in rows}
    missing = [
        SuiteRun(cell)
        for name in names
        for cell in file.cells
        if cell.title == name and (name, cell.request.trial.seed) not in seeds
    ]
    commands = [c for c in file.commands if c.name in names and c.name not in known]
    commands = [c for c in commands if options.quiet or only or not c.quiet]
    failed: list[str] = []
    if options.list:
        print("\n".join([*(turn.cell.title for turn in missing), *(c.name for c in commands)]))
        return 0
    if not options.page:
        failed += filter(None, map(measure_command, commands))
        if missing:
            failed += measure_trials(missing, options.runs, options.budget_time)
    PAGE.write_text(page(file, read_record(RECORD), ROOT), encoding="utf-8")
    for why in failed:
        print(f"not measured: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SeatrialError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(e.exit_code)
