"""`seatrial replay`: runs a stored run's trial and plan again."""

from pathlib import Path
from typing import Any

import click

from harness.cli.attaching import ask_consent, attach_options, attached_request
from harness.cli.options import merge_tables, runs_option, trust_options
from harness.contracts import KEY_PREFIX


@click.command("replay", short_help="Run a stored run's trial and plan again.")
@click.argument("folder", type=click.Path(), metavar="DIR")
@trust_options
@attach_options
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the verdict, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
def command(
    folder: str,
    bed: tuple[dict[str, Any], ...],
    client: tuple[str, ...] | None,
    trust_run: bool,
    attach: Path | None,
    yes: bool,
    runs: Path,
    as_json: bool,
    no_report: bool,
) -> int:
    """Run the trial of the run in DIR again, with its stored plan.

    Times, kinds and selectors are the stored ones; `master` selects the master at the time of the
    fault. On simulated hosts the new run has exactly the same events.

    A run may come from another person, so its inventory and other options of docker and SSH hosts
    are refused unless you name them with --bed or add --trust-run: an inventory decides which
    machines are accessed with your keys, and what runs there as root. A run that was attached to a
    cluster needs --attach again.
    """
    from harness.cli.session import HostTrust, ReportOptions, replay, replay_request
    from harness.history.run_files import open_run

    with open_run(folder) as run:
        named = [*bed, {"inventory": str(attach), KEY_PREFIX: ""}] if attach else bed
        request = replay_request(run, HostTrust(merge_tables(named), trust_run, client))
        if attach:
            request, cluster = attached_request(request)
            ask_consent(request, (request.trial.seed,), cluster, yes)
        return replay(run, runs, ReportOptions(as_json=as_json, page=not no_report), request)
