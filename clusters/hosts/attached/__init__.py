"""Nodes of a cluster that exists already: containers or machines by SSH, from `--attach FILE`.

Nothing of the system is installed, started, configured or stopped. Faults hit the processes that
the inventory names, and the links of their nodes; a process that a fault ended is started again by
its engine, its unit, or the start command. Files, disks, limits and clocks of the nodes are not
ours, so faults that change them are refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from clusters.hosts._problems import Problem, Unready
from clusters.hosts.attached.containers import AttachedContainers, find
from clusters.hosts.attached.inventory import AttachInventory, load
from clusters.hosts.attached.machines import AttachedMachines
from clusters.hosts.docker import engine, labels
from clusters.hosts.docker.engine import translate_errors
from clusters.hosts.docker.hosts import remove_run
from clusters.hosts.ssh import claims
from clusters.hosts.ssh import hosts as ssh
from clusters.hosts.ssh.connections import HostConnections
from harness.contracts import CLIENT, KEY_PREFIX, AttachedCluster, HostsPlugin
from harness.errors import BadRequest
from harness.history.rundir import RunDir
from harness.trial import Trial

OPTIONS = ("inventory", "base", "accept_new_host_keys", KEY_PREFIX)
NOT_OURS = "files, disks, limits and clocks of nodes that exist already are never changed"
NEEDS = ("an inventory of what runs already", "its engine, or SSH to its machines")


def hosts(trial: Trial, folder: Path) -> AttachedContainers | AttachedMachines:
    listed, run = inventory_of(trial.bed), Path(folder).resolve()
    kind = AttachedMachines if listed.machines else AttachedContainers
    return kind(trial, run, listed)


def inventory_of(bed: Mapping[str, Any]) -> AttachInventory:
    """Return the inventory that the options name. Raises BadRequest."""
    for key in bed:
        if key not in OPTIONS:
            known = ", ".join(OPTIONS)
            raise BadRequest(f"attached hosts have no option bed.{key}; known: {known}")
    path = bed.get("inventory")
    if not isinstance(path, str) or not path:
        raise BadRequest(
            "attached hosts need an inventory; name it with --attach FILE of `run` or `replay`"
        )
    return load(path)


def attach(trial: Trial) -> AttachedCluster:
    """Return what the inventory names. Containers are looked up on their engine."""
    listed = inventory_of(trial.bed)
    if listed.machines:
        counts = Counter(each.role for each in listed.machines)
        counts[CLIENT] = len(listed.clients)
        targets = [f"{each} on {each.host}" for each in listed.machines]
        ends = [
            f"the {words} has neither unit nor start, so nothing may end it"
            for words, each in zip(targets, listed.machines, strict=True)
            if not each.startable
        ]
        return AttachedCluster(counts, targets, "; ".join([*ends, NOT_OURS]))
    with closing(engine.connect()) as client:
        found = find(client, listed)
    counts = Counter(each.role for each in found)
    return AttachedCluster(counts, list(map(str, found)), NOT_OURS)


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    listed = inventory_of(bed)
    if not listed.machines:
        return engine.problems()
    every = [*(each.host for each in listed.machines), *listed.clients]
    accept = ssh.accepts_new_host_keys(bed)
    with HostConnections(accept_new_host_keys=accept) as connections:
        return [each for each in connections.attempt(every) if isinstance(each, Problem)]


def heal(run: RunDir, entries: Sequence[Any]) -> list[str]:
    """Undo what a finished run left: on machines, by the registry of this user; on an engine, by
    labels. Containers that a fault had killed are started again."""
    if claims.read(run.path):
        return ssh.heal(run, entries)
    try:
        client = engine.connect()
    except Unready:
        if entries:
            raise
        return []
    with closing(client):
        with translate_errors("the containers of this run cannot be started again"):
            started = labels.start_stopped(client, run.path)
        removed = remove_run(client, run.path)
    return [*removed, *(f"the stop of {each}" for each in started)]


PLUGIN = HostsPlugin(
    hosts=hosts,
    problems=problems,
    needs=NEEDS,
    heal=heal,
    must_name=("inventory",),
    attach=attach,
)
