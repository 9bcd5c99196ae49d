"""`seatrial selftest`: checks that all planted bugs are detected, and no others."""

import json
import os
from pathlib import Path

import click

from harness.cli.options import runs_option

SIMULATED_S, REAL_S = 25.0, 150.0  # estimates for one mutant and the correct build


@click.command("selftest", short_help="Check that all planted bugs are detected.")
@click.argument("names", nargs=-1, metavar="[MUTANT]...")
@click.option("--quick", is_flag=True, help="Run only the fastest cases.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, help="Worker processes.")
@click.option(
    "--hosts",
    show_default="all kinds",
    help="Run only plans for this kind of hosts: simulated, local.",
)
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the table, as JSON.")
def command(
    names: tuple[str, ...], quick: bool, jobs: int, hosts: str | None, runs: Path, as_json: bool
) -> int:
    """Run each known-bad variant (mutant) of the system under the plan written against it.

    Seeds are tried until one gives the expected finding; then the correct build runs with the same
    plan and seed, and must be valid. The default is all mutants.

    Plans are suites/mutants/MUTANT.toml on simulated hosts, and MUTANT.HOSTS.toml on real ones.
    Exit code 0 if every mutant was caught and every correct build was valid, 1 otherwise, 2 if
    undecided. Ctrl-C ends the command; the run in progress does not count.
    """
    from harness.cli.console import announce
    from harness.cli.doctor import refuse_unready
    from harness.history.runs import check_writable
    from harness.run.interrupts import on_stop_signal
    from harness.selftest.mutants import SelftestState, cases, cheapest, conduct, of_hosts
    from harness.selftest.mutants_view import SelftestScreen, show

    chosen = cases(names)
    chosen = of_hosts(chosen, hosts) if hosts else chosen
    chosen = cheapest(chosen) if quick else chosen
    for kind in sorted({case.hosts for case in chosen}):
        refuse_unready(kind, {}, runs)
    check_writable(runs)
    real = sum(case.is_real for case in chosen)
    workers = min(jobs, os.cpu_count() or 1)
    announce(SIMULATED_S * (len(chosen) - real) / workers + REAL_S * real)
    state = SelftestState(chosen)
    with on_stop_signal(state.interrupt):
        conduct(state, jobs, runs, SelftestScreen())
    if as_json:
        answers = [answer.plain() for answer in state.answers]
        print(json.dumps({"answers": answers, "exit_code": state.exit_code}, indent=2))
    else:
        show(state)
    return state.exit_code
