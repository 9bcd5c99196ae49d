"""`seatrial hunt`: searches for faults that break a real system."""

import json
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from harness.cli.commands._names import names_of
from harness.cli.commands.run import default_fields, given_fields, show_defaults, trial_flags
from harness.cli.options import SPARK, FiniteNumber, request, runs_option
from harness.errors import BadRequest

DURATION_S = 20.0
# set by a hunt: what it draws, and how
FIXED = {"system", "plan", "name", "rhythm", "short_faults", "compare_replicas"}


@click.command("hunt", short_help="Search for faults that break a real system.")
@click.argument("system", shell_complete=names_of("system"))
@click.argument("workload", default="", metavar="[WORKLOAD]", shell_complete=names_of("workload"))
@click.option(
    "--hours",
    type=FiniteNumber(0, min_open=True),
    default=1.0,
    help="Start no trial later than this.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    show_default="no limit",
    help="Number of trials, repetitions not counted.",
)
@click.option("--first", "first_only", is_flag=True, help="End with the first invalid trial.")
@click.option(
    "--repeat",
    type=click.IntRange(0, 100),
    default=3,
    help="How often to repeat a trial that is invalid.",
)
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as JSON.")
@SPARK
@trial_flags
def command(
    system: str,
    workload: str,
    hours: float,
    trials: int | None,
    first_only: bool,
    repeat: int,
    runs: Path,
    as_json: bool,
    spark: str,
    **flags: Any,
) -> int:
    """Run trials of SYSTEM whose plans are made from those that showed something new.

    A run shows something new if leaders, roles, lines of logs or the outcomes of operations came in
    a combination that no run before it had. Such a plan is kept, and changed to find more. Without
    WORKLOAD, the workloads that the system's clients can do are drawn. A trial that is invalid is
    repeated, to see how often it is. Exit code 0 if no trial was invalid, 1 if one was, 2 if no
    trial was done, one proved nothing, a test bed failed, or the hunt was stopped. The same command
    continues a hunt that has ended, for as many hours again; another --seed begins another one.
    """
    from harness import registry
    from harness.campaign.checkpoint import open_checkpoint
    from harness.campaign.hunt import EDITION, Hunt, conduct
    from harness.campaign.swarm import HOSTS
    from harness.campaign.view import report_trial, show_hunt
    from harness.cli.session import Engines
    from harness.history.runs import check_writable
    from harness.run.preflight import drawable_workloads

    registry.system(system)  # raises here, with the names of systems
    fields, beneath = {"system": system, **given_fields(flags)}, default_fields(flags)
    if "duration_s" not in beneath.table:
        fields = {"duration_s": DURATION_S, **fields}
    fixed = {"name": "hunt", "short_faults": True}
    base = request(workload, {**fields, **fixed}, defaults=beneath).trial
    if base.plan or base.workload != (workload or base.workload):
        raise BadRequest(
            f"a hunt makes its own trials, so it cannot take {workload or base.plan}; name a "
            "workload, and give the rest as options"
        )
    if base.hosts == HOSTS:
        raise BadRequest("simulated hosts are searched by seatrial simulate; name other hosts")
    workloads = (base.workload,) if workload else tuple(drawable_workloads(base, base.hosts))
    if not workloads:
        raise BadRequest(f"no workload can be drawn for {system}; name one")
    base = replace(base, workload=workloads[0])
    hunt = Hunt(base, workloads, 3600 * hours, trials, first_only, repeat)
    hunt.refuse(runs, spark)
    check_writable(runs)
    with ExitStack() as stack:
        checkpoint = stack.enter_context(open_checkpoint(hunt.key, EDITION, runs))
        engines = stack.enter_context(closing(Engines(spark, at_once=False)))
        state = conduct(hunt, runs, report_trial, engines, checkpoint)
    if as_json:
        print(json.dumps(state.plain(), indent=2))
    else:
        show_hunt(state)
    return state.exit_code


command.params = [
    each for each in command.params if each.name not in FIXED or isinstance(each, click.Argument)
]
show_defaults(command, {"duration_s": f"{DURATION_S:g}s"})
