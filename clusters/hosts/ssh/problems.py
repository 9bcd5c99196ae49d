"""Why no SSH trial can run with this inventory: for each host, the first step that fails.

`seatrial doctor --hosts ssh` shows it, and `seatrial run` refuses with the same sentences. It is
found by doing what a run does first: read the inventory, connect to all hosts, ask what they have.
"""

from collections.abc import Mapping
from typing import Any

from clusters.hosts.local.requirements import Problem
from clusters.hosts.ssh.config import resolved, ssh_config
from clusters.hosts.ssh.connections import Fleet
from clusters.hosts.ssh.inventory import Inventory, load
from harness.errors import BadRequest

INVENTORY = "inventory.toml"
OPTIONS = ("inventory", "accept_new_host_keys")


def problems(bed: Mapping[str, Any]) -> list[Problem]:
    """Each host that no node can live on, and what mends it. BadRequest: the inventory is wrong."""
    listed = inventory(bed)
    with Fleet(accept_new_host_keys=accepts_new_host_keys(bed)) as fleet:
        return [each for each in fleet.attempt(listed.hosts) if isinstance(each, Problem)]


def inventory(bed: Mapping[str, Any]) -> Inventory:
    """The hosts that the options name, each with its address. BadRequest otherwise."""
    for key in bed:
        if key not in OPTIONS:
            raise BadRequest(f"ssh hosts have no option bed.{key}; known: {', '.join(OPTIONS)}")
    path = bed.get("inventory", INVENTORY)
    if not isinstance(path, str) or not path:
        raise BadRequest(f"bed.inventory must be the path of a file, not {path!r}")
    return resolved(load(path), ssh_config())


def accepts_new_host_keys(bed: Mapping[str, Any]) -> bool:
    """Whether unknown host keys may be written down; never changed ones."""
    accept = bed.get("accept_new_host_keys", False)
    if not isinstance(accept, bool):
        raise BadRequest(f"bed.accept_new_host_keys must be true or false, not {accept!r}")
    return accept
