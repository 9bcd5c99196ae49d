"""`--attach FILE`: tests a cluster that exists already, after a confirmation.

What faults may hit comes from the file on the command line and from nowhere else: a trial file, a
suite or a stored run that names attached hosts is refused by the preflight. Nothing is asked before
everything was checked that can be checked without touching the cluster.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from harness import registry
from harness.cli.options import Command, Request
from harness.contracts import AttachedCluster
from harness.errors import BadRequest, Unsupported
from harness.plans import planned_kinds
from harness.text.plurals import and_list
from harness.text.sanitize import sanitize
from harness.trial import Trial


def attach_options(function: Command) -> Command:
    """Add `--attach` and `--yes`."""
    file = click.option(
        "--attach",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        show_default="nodes of our own",
        help="Test the cluster that exists already and that FILE names.",
    )
    yes = click.option(
        "--yes", is_flag=True, help="Do not ask before faults hit what --attach names."
    )
    return file(yes(function))


def attached_fields(given: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return fields of a trial, on the hosts of an inventory. Raises BadRequest if they name other
    hosts."""
    hosts = next(name for name in registry.names("hosts") if registry.hosts(name).attach)
    if given.get("hosts", hosts) != hosts:
        raise BadRequest("--attach and --hosts exclude each other; omit one of them")
    bed = {**given.get("bed", {}), "inventory": str(file)}
    return {**given, "hosts": hosts, "bed": bed}


def attached_request(request: Request) -> tuple[Request, AttachedCluster]:
    """Return the request with as many nodes as the inventory names, and the cluster, with the names
    of its nodes. Raises BadRequest if the system cannot be attached to."""
    trial = request.trial
    refuse_unattachable(trial)
    look = registry.hosts(trial.hosts).attach
    if look is None:
        raise BadRequest(
            f"--attach is for a run that was attached, and this one has {trial.hosts} hosts"
        )
    for name in ("version", "supply", "mixed"):
        if getattr(trial, name) != getattr(Trial(), name):
            raise BadRequest(
                f"{name} is for clusters whose programs Seatrial installs; leave it out"
            )
    cluster = look(trial)
    nodes = registry.load("system", trial.system)(trial).nodes()
    counts = _counts(cluster, nodes[0].role)
    if clash := [role for role, n in trial.nodes.items() if counts.get(role, n) != n]:
        raise BadRequest(
            f"nodes.{clash[0]} is {trial.nodes[clash[0]]}, and {trial.bed['inventory']} names "
            f"{counts[clash[0]]}; leave it out"
        )
    sized = replace(trial, nodes={**trial.nodes, **counts})
    names = [n.name for n in registry.load("system", sized.system)(sized).nodes()]
    targets = [f"{name}: {what}" for name, what in zip(names, cluster.targets, strict=False)]
    return replace(request, trial=sized, attached=True), replace(cluster, targets=targets)


def _counts(cluster: AttachedCluster, first: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for role, count in cluster.counts.items():
        counts[role or first] = counts.get(role or first, 0) + count
    return counts


def refuse_unattachable(trial: Trial) -> None:
    """Raise BadRequest if the system can only test clusters that it has started itself."""
    if registry.system(trial.system).attachable:
        return
    able = [name for name in registry.names("system") if registry.system(name).attachable]
    raise BadRequest(
        f"{trial.system} tests only clusters that it has started itself; with --attach name one of "
        f"the systems {', '.join(able)}"
    )


def ask_consent(
    request: Request, seeds: Sequence[int], cluster: AttachedCluster, yes: bool
) -> None:
    """Show what faults may hit, and return if the user agrees. Raises BadRequest if a trial is
    impossible, if the user does not agree, or if there is no terminal to ask on."""
    from harness.run.launch import make_plan
    from harness.run.preflight import refuse_impossible

    try:
        for seed in seeds:
            refuse_impossible(replace(request, trial=replace(request.trial, seed=seed)))
    except Unsupported as e:
        raise Unsupported(f"{e}: {cluster.limits}") from e
    planned = planned_kinds(make_plan(request.trial, request.plan_text))
    kinds = sorted({*request.trial.faults} or {*planned})
    faults = and_list(kinds) if kinds else "the load alone, without faults"
    if not yes and not sys.stdin.isatty():
        raise BadRequest(
            "--attach needs your consent, and there is no terminal to ask on; add --yes to hit "
            f"this with {faults}: {'; '.join(cluster.targets)}"
        )
    click.echo(f"This cluster exists already, and will be hit with {faults}:", err=True)
    for line in cluster.targets:
        click.echo(f"  {sanitize(line)}", err=True)
    if not yes and not click.confirm("Continue?", err=True):
        raise BadRequest("nothing was touched, because you did not agree")
