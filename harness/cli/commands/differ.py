"""`seatrial differ`: runs trials on two systems and tells where they are apart."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harness.cli.commands._names import names_of
from harness.cli.commands.run import default_fields, given_fields, trial_flags
from harness.cli.commands.suite import suite_selection
from harness.cli.options import SPARK, Seeds, request, runs_option
from harness.errors import BadRequest

OF_ONE = ("system", "profile", "version")  # flags that are refused: --systems names two


@click.command("differ", short_help="Run a trial on two systems and compare them.")
@click.argument(
    "what",
    default="",
    metavar="[TRIAL | WORKLOAD | SUITE]",
    shell_complete=names_of("workload"),
)
@click.option(
    "--systems",
    required=True,
    help="The two, with profile and version if need be: flotilla,rocketmq:published@5.3.3.",
)
@trial_flags
@suite_selection
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
    only: tuple[str, ...],
    scale: float | None,
    share: float | None,
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

    SUITE is a file, or the name of a bundled one: each of its trials is run on both, instead of on
    its own system and profile.
    """
    from harness.cli.differ import (
        ComparedTrial,
        comparisons_of_suite,
        differ,
        parse_systems,
        suite_of,
    )
    from harness.cli.session import ReportOptions

    if flags["seed"] is not None:
        raise BadRequest("--seed is for one run of each; give all seeds to --seeds")
    for name in OF_ONE:
        if flags[name] is not None:
            raise BadRequest(f"--{name} is for one system, and here are two; write it in --systems")
    if len(set(seeds)) < len(seeds):
        raise BadRequest("--seeds names a seed twice; its runs would count as independent ones")
    compared, fields = parse_systems(systems), given_fields(flags)
    if suite := suite_of(what):
        if fields:
            raise BadRequest(
                f"{', '.join(_written(fields))}: {suite} is a suite, whose trials have their own; "
                "with a suite only --only, --scale, --share and --seeds select what is run"
            )
        pairs = comparisons_of_suite(compared, suite, only, scale, share)
    elif flags_of_suites := _written(("only", "scale", "share")):
        raise BadRequest(f"{', '.join(flags_of_suites)}: for the trials of a suite; name a suite")
    else:
        defaults = default_fields(flags)
        requests = [request(what, {**fields, **of.fields}, defaults=defaults) for of in compared]
        pairs = [ComparedTrial.of(compared, requests)]
    shown = ReportOptions(as_json=as_json, page=not no_report)
    return differ(pairs, seeds, runs, shown, spark)


def _written(names: Iterable[str]) -> list[str]:
    """Return the flags of these parameters that the command line has."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


for parameter in command.params:
    if isinstance(parameter, click.Option) and parameter.name in (*OF_ONE, "seed"):
        parameter.hidden = True
