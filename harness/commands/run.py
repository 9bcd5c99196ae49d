"""`seatrial run`: raise, load, break, heal, judge, show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harness.errors import BadRequest
from harness.options import (
    SPARK,
    Duration,
    Latency,
    Pairs,
    Seeds,
    Words,
    Zones,
    merged,
    request,
)

Command = Callable[..., Any]

NOTHING = ("none", "nothing", "no")


def _faults(context: click.Context, option: click.Parameter, kinds: tuple[str, ...] | None) -> Any:
    """No kind of fault is called none: who wants none names none."""
    if none := [kind for kind in kinds or () if kind in NOTHING]:
        raise BadRequest(
            f"there is no fault {none[0]!r}: leave --faults out for a trial without faults, or "
            "write --faults '' where a trial file names some"
        )
    return kinds


TRIAL_FLAGS: tuple[Command, ...] = (
    click.option("--system", help="What is tested."),
    click.option("--profile", help="A named configuration of the system."),
    click.option("--hosts", help="Where its nodes run."),
    click.option("--bed", type=Pairs(), multiple=True, help="An option of the hosts."),
    click.option("--nodes", type=Pairs(), help="How many of each role: broker=3,controller=3."),
    click.option("--zones", type=Zones(), help="How many, or who stands where: broker-1=a,..."),
    click.option("--zone-latency", type=Latency(), help="From zone to zone: 5ms, 5ms+1ms jitter."),
    click.option(
        "--faults",
        type=Words(),
        callback=_faults,
        help="Kinds that a drawn plan uses: kill,pause.",
    ),
    click.option("--targets", type=Words(), help="Selectors that a drawn plan picks from."),
    click.option("--plan", metavar="FILES", help="A plan, instead of one drawn from the seed."),
    click.option("--seed", type=click.IntRange(min=0), help="Every random choice comes from it."),
    click.option("--duration", "duration_s", type=Duration(), help="Of the load: 60s, 2m."),
    click.option("--rhythm", type=Pairs(), help="quiet_s=4,fault_s=6,recovery_s=6."),
    click.option("--short-faults", is_flag=True, default=None, help="Allow undetectable faults."),
    click.option("--recover-within", "recover_within_s", type=Duration(), help="After all healed."),
    click.option(
        "--compare-replicas",
        is_flag=True,
        default=None,
        help="Between faults too, not only at the end.",
    ),
    click.option("--set", "settings", type=Pairs(), multiple=True, help="A setting of the system."),
    click.option("--load", type=Pairs(), multiple=True, help="An option of the workload."),
    click.option("--checkers", type=Words(), help="Who judges; else the workload's own."),
    click.option("--contract", type=Words(), help="What the trial demands."),
    click.option(
        "--claims",
        type=Pairs(),
        help="What it claims to survive, over its profile: kill=all,power=minority,wipe=none.",
    ),
    click.option("--survives", type=Words(), help="Older: claims these kinds, and no others."),
    click.option("--name", help="In the name of the run's folder."),
)


def trial_flags(command: Command) -> Command:
    """One flag for each field of a trial."""
    for flag in reversed(TRIAL_FLAGS):
        command = flag(command)
    return command


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, as fields of a trial."""
    tables = {key: merged(flags.pop(key)) for key in ("bed", "settings", "load")}
    return {k: v for k, v in {**flags, **tables}.items() if v is not None and v != {}}


@click.command("run", short_help="Raise a cluster, load it, break it, judge it.")
@click.argument("what", default="", metavar="[TRIAL | WORKLOAD]")
@trial_flags
@click.option("--seeds", type=Seeds(), help="Run once for each: 1..10.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="Run each so many times.")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), help="Where to.")
@click.option("--json", "as_json", is_flag=True, help="Only the verdict, as JSON.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@SPARK
def command(
    what: str,
    seeds: tuple[int, ...] | None,
    repeat: int,
    runs: Path,
    as_json: bool,
    no_report: bool,
    spark: str,
    **flags: Any,
) -> int:
    """Run a trial and judge it.

    TRIAL is a trial file, or the name of one that comes with Seatrial, such as demo; WORKLOAD is
    what the clients do (`seatrial list` names both). Flags are laid over the file. The exit code is
    0 for valid, 1 for invalid, 2 for unknown.
    """
    from harness.session import Shown, run_all

    if seeds and flags["seed"] is not None:
        raise BadRequest("--seed and --seeds both name seeds; write all of them after --seeds")
    asked = request(what, given(flags))
    shown = Shown(as_json=as_json, page=not no_report)
    return run_all(asked, seeds or (asked.trial.seed,), repeat, runs, shown, spark)
