"""`seatrial run`: raise, load, break, heal, judge, show."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harness.cli.commands._names import names_of
from harness.cli.options import (
    SPARK,
    Duration,
    Latency,
    Pairs,
    Request,
    Seeds,
    Words,
    Zones,
    merged,
    request,
    runs_option,
)
from harness.cli.settings_file import FILE
from harness.errors import BadRequest
from harness.text.trial_lines import Written
from harness.trial import DEMANDS, Rhythm, Trial

Command = Callable[..., Any]

NONE = "none"
NOTHING = ("none", "nothing", "no")


def _faults(context: click.Context, option: click.Parameter, kinds: tuple[str, ...] | None) -> Any:
    """No kind of fault is called none: who wants none names none."""
    if none := [kind for kind in kinds or () if kind in NOTHING]:
        raise BadRequest(
            f"there is no fault {none[0]!r}: leave --faults out for a trial without faults, or "
            "write --faults '' where a trial file names some"
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
    click.option("--profile", show_default=PROFILES, help="A named configuration of the system."),
    click.option(
        "--hosts",
        show_default=Trial.hosts,
        shell_complete=names_of("hosts"),
        help="Where its nodes run.",
    ),
    click.option(
        "--bed", type=Pairs(), multiple=True, show_default=NONE, help="An option of the hosts."
    ),
    click.option(
        "--nodes",
        type=Pairs(),
        show_default=PROFILES,
        help="How many of each role: broker=3,controller=3.",
    ),
    click.option(
        "--zones",
        type=Zones(),
        show_default=NONE,
        help="How many, or which node is in which: broker-1=a,...",
    ),
    click.option(
        "--zone-latency",
        type=Latency(),
        show_default=NONE,
        help="From zone to zone: 5ms, 5ms+1ms jitter.",
    ),
    click.option(
        "--faults",
        type=Words(),
        callback=_faults,
        show_default=NONE,
        shell_complete=names_of("fault"),
        help="Kinds that a drawn plan uses: kill,pause.",
    ),
    click.option(
        "--targets",
        type=Words(),
        show_default="each fault's own",
        help="Selectors that a drawn plan picks from.",
    ),
    click.option(
        "--plan",
        metavar="FILES",
        show_default="drawn from the seed",
        help="A plan, instead of a drawn one.",
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
        help="Of the load: 60s, 2m.",
    ),
    click.option(
        "--rhythm",
        type=Pairs(),
        show_default=", ".join(f"{k}={v:g}" for k, v in vars(Rhythm()).items()),
        help="How a drawn plan spaces its faults.",
    ),
    click.option("--short-faults", is_flag=True, default=None, help="Allow undetectable faults."),
    click.option(
        "--recover-within",
        "recover_within_s",
        type=Duration(),
        show_default=f"{Trial.recover_within_s:g}s",
        help="How long recovery may take after all faults are healed.",
    ),
    click.option(
        "--compare-replicas",
        is_flag=True,
        default=None,
        help="Compare replicas between faults, not only at the end.",
    ),
    click.option(
        "--set",
        "settings",
        type=Pairs(),
        multiple=True,
        show_default=NONE,
        help="A setting of the system.",
    ),
    click.option(
        "--load", type=Pairs(), multiple=True, show_default=NONE, help="An option of the workload."
    ),
    click.option(
        "--checkers",
        type=Words(),
        show_default="the workload's",
        shell_complete=names_of("checker"),
        help="Checkers to run.",
    ),
    click.option(
        "--contract",
        type=Words(),
        show_default=", ".join(DEMANDS),
        help="Demands that decide the verdict.",
    ),
    click.option(
        "--claims",
        type=Pairs(),
        show_default="the profile's",
        help="Override the profile's claims: kill=all,power=one.",
    ),
    click.option(
        "--survives",
        type=Words(),
        show_default="the claims",
        help="Deprecated: claim these kinds only; use --claims.",
    ),
    click.option(
        "--name",
        show_default="of the trial or plan file",
        help="Name at the end of the run's folder.",
    ),
)


def trial_flags(command: Command) -> Command:
    """One flag for each field of a trial."""
    for flag in reversed(TRIAL_FLAGS):
        command = flag(command)
    return command


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The options on the command line, as fields of a trial."""
    return _fields({name: value for name, value in flags.items() if not _is_default(name)})


def defaults(flags: dict[str, Any]) -> Written:
    """Those that seatrial.toml sets, as fields of a trial."""
    table = _fields({name: value for name, value in flags.items() if _is_default(name)})
    return Written(table, source=str(FILE))


def _is_default(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.DEFAULT_MAP


def _fields(flags: dict[str, Any]) -> dict[str, Any]:
    tables = {key: merged(flags.get(key, ())) for key in ("bed", "settings", "load")}
    return {k: v for k, v in {**flags, **tables}.items() if v is not None and v != {}}


@click.command("run", short_help="Run a trial: cluster, load, faults, verdict.")
@click.argument(
    "what", default="", metavar="[TRIAL | WORKLOAD]", shell_complete=names_of("workload")
)
@trial_flags
@click.option(
    "--seeds", type=Seeds(), show_default="the one of --seed", help="Run once for each: 1..10."
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="How often to run each.")
@click.option("--fail-fast", is_flag=True, help="Stop after the first run that is not valid.")
@click.option(
    "--dry-run", is_flag=True, help="Print the plan, as TOML for --plan, and run nothing."
)
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
    runs: Path,
    as_json: bool,
    junit: Path | None,
    no_report: bool,
    spark: str,
    **flags: Any,
) -> int:
    """Run a trial and judge it.

    TRIAL is a trial file, or the name of one that comes with Seatrial, such as demo; WORKLOAD is
    what the clients do (`seatrial list` names both). Flags override the file. The exit code is
    0 for valid, 1 for invalid, 2 for unknown.
    """
    from harness.cli.session import Several, Shown, run_all

    if seeds and flags["seed"] is not None:
        raise BadRequest("--seed and --seeds both name seeds; write all of them after --seeds")
    asked = request(what, given(flags), defaults=defaults(flags))
    chosen = seeds or (asked.trial.seed,)
    if dry_run:
        return _dry_run(asked, chosen)
    shown = Shown(as_json=as_json, page=not no_report, junit=junit)
    return run_all(asked, Several(chosen, repeat, fail_fast), runs, shown, spark)


def _dry_run(asked: Request, seeds: Sequence[int]) -> int:
    """Print the plan that a run would carry out."""
    from harness.run.launch import planned
    from harness.run.preflight import refuse_impossible

    if len(seeds) > 1:
        raise BadRequest("--dry-run prints one plan; name one seed with --seed")
    asked = replace(asked, trial=replace(asked.trial, seed=seeds[0]))
    refuse_impossible(asked)
    click.echo(f"# Plan of seed {seeds[0]}. Times are seconds since the load began.")
    click.echo(planned(asked.trial, asked.plan_text), nl=False)
    return 0
