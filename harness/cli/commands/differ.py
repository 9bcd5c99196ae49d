"""`seatrial differ`: runs a trial on two systems and tells where they are apart."""

from pathlib import Path
from typing import Any

import click

from harness.cli.commands._names import names_of
from harness.cli.commands.run import default_fields, given_fields, trial_flags
from harness.cli.options import SPARK, Seeds, request, runs_option
from harness.errors import BadRequest

OF_ONE = ("system", "profile", "version")  # flags that are refused: --systems names two


@click.command("differ", short_help="Run a trial on two systems and compare them.")
@click.argument(
    "what", default="", metavar="[TRIAL | WORKLOAD]", shell_complete=names_of("workload")
)
@click.option(
    "--systems",
    required=True,
    help="The two, with profile and version if need be: flotilla,rocketmq:published@5.3.3.",
)
@trial_flags
@click.option(
    "--seeds",
    type=Seeds(),
    default="1..3",
    show_default=True,
    help="The seeds that both are run with.",
)
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print the comparison only, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@SPARK
def command(
    what: str,
    systems: str,
    seeds: tuple[int, ...],
    runs: Path,
    as_json: bool,
    no_report: bool,
    spark: str,
    **flags: Any,
) -> int:
    """Run the same trial with the same seeds on two systems, in turn, and print the figures of
    both: verdicts, what was acknowledged and lost, elections, and how long outages were.

    A figure is apart if the values of the one do not overlap with those of the other. All flags are
    for both; a plan that is drawn from a seed is drawn for each. The exit code is 0 if nothing is
    apart, 1 if something is, 2 if there are too few runs to tell.
    """
    from harness.cli.differ import differ, parse_systems
    from harness.cli.session import ReportOptions

    if flags["seed"] is not None:
        raise BadRequest("--seed is for one run of each; give all seeds to --seeds")
    for name in OF_ONE:
        if flags[name] is not None:
            raise BadRequest(f"--{name} is for one system, and here are two; write it in --systems")
    fields, defaults = given_fields(flags), default_fields(flags)
    requests = [
        (of, request(what, {**fields, **of.fields}, defaults=defaults))
        for of in parse_systems(systems)
    ]
    shown = ReportOptions(as_json=as_json, page=not no_report)
    return differ(requests, seeds, runs, shown, spark)


for parameter in command.params:
    if isinstance(parameter, click.Option) and parameter.name in (*OF_ONE, "seed"):
        parameter.hidden = True
