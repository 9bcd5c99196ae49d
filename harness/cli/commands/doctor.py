"""`seatrial doctor`: checks what trials need, and prints the commands that install it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from harness.cli.options import BED, merge_tables, runs_option

HOSTS, RUNS = "local", Path("runs")


@click.command("doctor", short_help="Check this machine; print commands that fix it.")
@click.option("--hosts", default=HOSTS, help="The kind of hosts to check.")
@click.option(
    "--system", default="", show_default="none", help="A system whose programs to look for, too."
)
@BED
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    hosts: str, system: str, bed: tuple[dict[str, Any], ...], runs: Path, as_json: bool
) -> int:
    """Check what trials need on this machine; with --system, list every way to get its programs.
    Exit code 0 if a trial on these hosts can run, else 255."""
    from harness.cli.doctor import ending, examine, show
    from harness.run.preflight import fitting_workloads
    from harness.trial import Trial

    options = merge_tables(bed)
    capabilities = examine(hosts, options, runs, system)
    if as_json:
        print(json.dumps([{**asdict(one), "ready": one.ready} for one in capabilities], indent=2))
        return ending(capabilities)
    fitting = fitting_workloads(Trial(system=system)) if system else []
    trial = fitting[0] if fitting else "demo"
    return show(capabilities, trial, shlex.join(_as_typed(hosts, system, options, runs)))


def _as_typed(hosts: str, system: str, bed: Mapping[str, Any], runs: Path) -> Iterator[str]:
    """Yield the same options for `seatrial run`."""
    if system:
        yield from ("--system", system)
    if hosts != HOSTS:
        yield from ("--hosts", hosts)
    for key, value in bed.items():
        yield from ("--bed", f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    if runs != RUNS:
        yield from ("--runs", str(runs))
