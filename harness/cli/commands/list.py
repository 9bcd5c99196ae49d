"""`seatrial list`: names of plug-ins and bundled files; with --verify, a test of all faults."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from harness import registry
from harness.cli.console import wrap_lines
from harness.cli.options import BED, SETTINGS, NameList, merge_tables, request, runs_option
from harness.errors import BadRequest, UnknownName
from harness.suite import bundled

FAULT = "fault"
WIDEST = 34  # columns of names
KINDS = (*registry.KINDS, *bundled.KINDS)


def parse_kind(word: str) -> str:
    """Return the kind for `fault` or `faults`. Raises UnknownName with all kinds."""
    for kind in KINDS:
        if word in (kind, f"{kind}s"):
            return kind
    raise UnknownName("kind", word, [_plural(kind) for kind in KINDS])


@click.command("list", short_help="List plug-ins, trials, plans and suites.")
@click.argument("kinds", nargs=-1)
@click.option("--verify", is_flag=True, help="Inject and heal each fault, on a small cluster.")
@click.option("--faults", type=NameList(), show_default="all", help="With --verify: only these.")
@click.option("--hosts", default="local", help="With --verify: where nodes run.")
@BED
@click.option("--system", default="flotilla", help="System under test.")
@SETTINGS
@runs_option()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(kinds: tuple[str, ...], verify: bool, as_json: bool, **flags: Any) -> int:
    """List the names of KINDS (default: all), each with one sentence.

    KINDS are plug-ins (`systems`, `hosts`, `workloads`, `faults`, `checkers`, `reports`,
    `importers`), and the `trials`, `plans` and `suites` that come with Seatrial.

    `seatrial list faults --verify --hosts docker` starts a small cluster, injects every fault, and
    prints when each was applied, observed in effect and healed, and what was measured. Exit code 1
    if a fault that these hosts support was not observed in effect or not observed healed, 2 if the
    command was stopped early, 255 if the test bed failed.
    """
    named = [parse_kind(word) for word in kinds]
    if verify:
        if named != [FAULT]:
            raise BadRequest("only faults can be verified: seatrial list faults --verify")
        return _verify(as_json=as_json, **flags)
    if flags["faults"]:
        raise BadRequest("--faults is for seatrial list faults --verify")
    chosen = named or list(KINDS)
    if as_json:
        click.echo(json.dumps({kind: list(_plain(kind)) for kind in chosen}, indent=2))
        return 0
    for kind in chosen:
        click.secho(_plural(kind), bold=True)
        entries = list(_entries(kind))
        width = min(WIDEST, max((len(name) for name, _ in entries), default=0))
        for name, about in entries:
            click.echo("\n".join(wrap_lines([f"{name:<{width}}  {about}"], width + 2)))
    return 0


def _plural(kind: str) -> str:
    return kind if kind == "hosts" else f"{kind}s"


def _entries(kind: str) -> Iterator[tuple[str, str]]:
    """Yield the indented names of a kind, and of what belongs to each, with a sentence."""
    for name, sentence in describe(kind):
        yield f"  {name}", sentence
        if fitting := workloads(kind, name):
            yield "    workloads", ", ".join(fitting)
        yield from ((f"    {profile}", about) for profile, about in profiles(kind, name))
        yield from ((f"    mutant={mutant}", about) for mutant, about in mutants(kind, name))


def describe(kind: str) -> Iterator[tuple[str, str]]:
    """Yield each name of a kind, with a sentence about it."""
    if kind not in bundled.KINDS:
        yield from registry.descriptions(kind)
        return
    for name, about in bundled.describe(kind):
        means_workload = kind == "trial" and name in registry.names("workload")
        yield f"suites/trials/{name}.toml" if means_workload else name, about


def _plain(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the plug-ins of a kind for JSON."""
    for name, sentence in describe(kind):
        below = {
            "workloads": workloads(kind, name),
            "profiles": dict(profiles(kind, name)),
            "mutants": dict(mutants(kind, name)),
        }
        yield {"name": name, "about": sentence, **{key: at for key, at in below.items() if at}}


def _verify(faults: tuple[str, ...] | None, runs: Path, as_json: bool, **flags: Any) -> int:
    if faults is not None and not faults:
        raise BadRequest("--faults names no fault; name some, or omit it to verify all")
    from harness.cli.console import announce
    from harness.cli.live_view import TrialScreen
    from harness.cli.session import likely_s
    from harness.selftest.faults import show, verification_plan, verify_faults

    tables = {name: merge_tables(flags.pop(name)) for name in ("bed", "settings")}
    trial = request("", {"name": "verify", **flags, **tables}).trial
    verification, _ = verification_plan(trial, faults or ())  # refused before anything is shown
    announce(likely_s(verification.trial))
    with TrialScreen(trial) as live:
        seen = verify_faults(trial, faults or (), runs, live.update)
    if as_json:
        click.echo(json.dumps(seen.plain(), indent=2))
    else:
        show(seen)
    return seen.exit_code


def workloads(kind: str, name: str) -> list[str]:
    """Return the workloads whose calls a system's clients have, in one of its profiles."""
    from harness.run.preflight import fitting_workloads
    from harness.trial import Trial

    if kind != "system":
        return []
    trials = [Trial(system=name, profile=profile) for profile, _ in profiles(kind, name)]
    return sorted({workload for trial in trials for workload in fitting_workloads(trial)})


def profiles(kind: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield a system's named configurations."""
    return _named(registry.system(name).profiles if kind == "system" else dict)


def mutants(kind: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield a system's known-bad variants."""
    return _named(registry.system(name).mutants if kind == "system" else dict)


def _named(of: Callable[[], Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for each in of().values():
        yield each.name, each.about
