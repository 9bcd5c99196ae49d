"""`seatrial simulate`: runs thousands of seeds in simulated worlds."""

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.commands.run import default_fields, given_fields, show_defaults, trial_flags
from harness.cli.options import Duration, Seeds, looks_like_file, request, runs_option

if TYPE_CHECKING:
    from harness.campaign.run import Campaign

DURATION_S = 40.0
# set by a campaign, or without meaning in it: its invariants check every byte
FIXED = {"hosts", "client", "seed", "name", "short_faults", "rhythm", "compare_replicas"}


@click.command("simulate", short_help="Run thousands of seeds in simulated worlds.")
@click.argument("what", default="", metavar="[TRIAL.toml | WORKLOAD]")
@click.option("--seeds", type=Seeds(), default="1..100", help="The seeds: 1..100.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=2, help="Worker processes.")
@click.option(
    "--mutant",
    show_default="none",
    help="A known-bad variant of the system, which must be caught.",
)
@click.option(
    "--guided/--drawn",
    default=None,
    show_default="guided if there are more than 16 seeds, no gaps and no plan",
    help="Keep plans that showed something new, and change them; or draw all.",
)
@click.option("--all", "to_the_end", is_flag=True, help="Continue after the mutant is caught.")
@click.option(
    "--time",
    "within_s",
    type=Duration(),
    show_default="no limit",
    help="Stop after this time: 10m.",
)
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as JSON.")
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    show_default="none",
    help="Append the summary to this file, as Markdown.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    show_default="none",
    help="Write the summary to this file, as an HTML page.",
)
@trial_flags
def command(
    what: str,
    seeds: tuple[int, ...],
    jobs: int,
    mutant: str | None,
    guided: bool | None,
    to_the_end: bool,
    within_s: float | None,
    runs: Path,
    as_json: bool,
    summary: Path | None,
    page: Path | None,
    **flags: Any,
) -> int:
    """Run many trials in simulated worlds, with random clusters, loads and faults, and check them.

    What TRIAL.toml or an option sets is the same for all seeds; the rest is drawn. Seeds that fail
    are kept as runs. Exit code 0 if no seed failed (with --mutant: if one failed with the finding
    expected of the mutant), 1 otherwise, 2 if undecided: the command was stopped, seeds were lost
    or abandoned, or too many prove nothing. After kill -9 the same command resumes with the seeds
    that were not finished.

    A guided campaign draws its first 16 seeds and makes the others from those whose runs showed
    something new. The workload is drawn, too, if none is named (nor --contract or --checkers), and
    so is the duration without --duration. If it was stopped, or its --time was over, the same
    command continues it. With --drawn, a trial and a plan are drawn from every seed by itself.
    """
    from harness.campaign.checkpoint import open_checkpoint
    from harness.campaign.run import conduct, edition
    from harness.campaign.view import CampaignScreen, open_page, open_summary, show
    from harness.cli.console import announce
    from harness.cli.session import likely_s
    from harness.history.runs import check_writable
    from harness.judge.campaign_evidence import record_campaign, sum_campaigns
    from harness.run.interrupts import stop_requested
    from harness.text.plurals import quantity

    campaign = _campaign(what, mutant, flags, seeds, jobs, within_s, to_the_end, guided)
    campaign.refuse()
    each_s = likely_s(replace(campaign.base, hosts="simulated"))
    total_s = len(campaign.seeds) * each_s / min(jobs, os.cpu_count() or 1)
    with (
        open_summary(summary) as append,
        open_page(page) as write_page,
        stop_requested() as stopped,
        ExitStack() as at_last,
    ):
        check_writable(runs)
        checkpoint = at_last.enter_context(open_checkpoint(campaign.key, edition(), runs))
        announce(min(total_s, within_s or total_s), quantity(len(campaign.seeds), "seed"))
        with CampaignScreen() as watch:
            state = conduct(campaign, runs, watch, checkpoint=checkpoint, stopped=stopped)
        total = sum_campaigns(state, runs)
        # also after a second stop, or without a terminal
        kept = campaign.guided and state.continues and (state.rows or state.beside)
        at_last.callback(record_campaign, state, runs, None if kept else checkpoint)
        at_last.callback(append, state, total)
        at_last.callback(write_page, state, total)
        if as_json:
            print(json.dumps({**state.plain(), "total": total.plain()}, indent=2))
        else:
            show(state, total)
    return state.exit_code


def _campaign(
    what: str,
    mutant: str | None,
    flags: dict[str, Any],
    seeds: tuple[int, ...],
    jobs: int,
    within_s: float | None,
    to_the_end: bool,
    guided: bool | None,
) -> "Campaign":
    """Return the campaign that is asked for. Raises BadRequest."""
    from harness.campaign.guided import DRAWN_FIRST
    from harness.campaign.run import DURATION, RECOVERY, WORKLOAD, Campaign, without_gaps
    from harness.campaign.swarm import recover_within_s

    fields, beneath = given_fields(flags), default_fields(flags)
    by_hand = looks_like_file(what)
    given = {**fields, **beneath.table}
    # demands and checkers are those of a workload: others would not look at them
    free = set() if what or {"contract", "checkers"} & given.keys() else {WORKLOAD}
    if not by_hand and DURATION not in given:
        free.add(DURATION)
    if not by_hand and DURATION not in beneath.table:
        fields = {"duration_s": DURATION_S, **fields}
    if mutant:
        fields["settings"] = {**fields.get("settings", {}), "mutant": mutant}
    fixed = {"hosts": "simulated", "name": "campaign"}
    asked = request(what, {**fields, **fixed}, defaults=beneath)
    trial = asked.trial
    seeds = tuple(dict.fromkeys(seeds))
    planned = asked.plan_text is not None or bool(trial.plan)
    if guided is None:
        guided = len(seeds) > DRAWN_FIRST and not planned and without_gaps(seeds)
    if not (by_hand or planned or RECOVERY in given):
        trial = replace(trial, recover_within_s=recover_within_s(trial))
        free.add(RECOVERY)
    return Campaign(
        trial,
        seeds,
        jobs,
        asked.plan_text,
        within_s,
        to_the_end,
        guided,
        free=frozenset(free) if guided else frozenset(),
    )


command.params = [option for option in command.params if option.name not in FIXED]
show_defaults(
    command,
    {
        "duration_s": f"{DURATION_S:g}s; if guided, drawn",
        "recover_within_s": "five times what it takes to notice a silent node; rebalance: 30s",
    },
)
