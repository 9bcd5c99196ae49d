"""The inventory of a cluster that exists already, which `--attach` names.

    [[node]]
    container = "etcd-1"      # a container of the engine, by name or id
    role = "server"           # default: the system's first role

or a project of Docker Compose, whose containers of one service are the nodes:

    [compose]
    project = "shop"
    service = "etcd"

or machines that are reached by SSH, with the keys of an SSH inventory, and [defaults] as there:

    [[node]]
    host = "db1"
    unit = "etcd.service"     # of systemd
    [[node]]
    host = "db2"
    process = "etcd"          # a name, or a regular expression for the command line
    start = "su etcd -c /opt/etcd/run"   # starts it again, as root; default: that of the unit
    [[client]]                # where the load runs
    host = "load1"

The first node of a role is `server-1` in the trial, and so on. Containers get client containers on
their network.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from clusters.hosts.ssh.inventory import InventoryHost, SourceFile, checked, host_of
from clusters.hosts.ssh.inventory import refuse_duplicates as refuse_same_hosts
from harness.contracts import CLIENT, Node
from harness.errors import BadRequest
from harness.text.parsing import parse_toml, read_text

TABLES = ("node", "client", "compose", "defaults")
OWN_KEYS = ("role", "container", "unit", "process", "start")
COMPOSE_KEYS = ("project", "service", "role")
WORD = re.compile(r"[\w.@:\\-]+")


class HasRole(Protocol):
    """Something that is a node of this role; empty: of the system's first one."""

    @property
    def role(self) -> str: ...


Target = TypeVar("Target", bound=HasRole)


@dataclass(frozen=True)
class ExistingContainer:
    """A node that is a container. `role`: empty for the system's first one."""

    container: str
    role: str = ""


@dataclass(frozen=True)
class ComposeService:
    """Nodes that are the containers of a service of a compose project."""

    project: str
    service: str
    role: str = ""


@dataclass(frozen=True)
class ExistingMachineProcess:
    """A node that is a process on a machine: of a unit, or found by `process`."""

    host: InventoryHost
    role: str = ""
    unit: str = ""
    process: str = ""
    start: str = ""

    def __str__(self) -> str:
        return f"unit {self.unit}" if self.unit else f"process {self.process!r}"

    @property
    def startable(self) -> bool:
        return bool(self.unit or self.start)


@dataclass(frozen=True)
class AttachInventory:
    """What a file names: containers or machines, never both."""

    source: str
    containers: tuple[ExistingContainer, ...] = ()
    compose: ComposeService | None = None
    machines: tuple[ExistingMachineProcess, ...] = ()
    clients: tuple[InventoryHost, ...] = ()


def load(path: str | Path) -> AttachInventory:
    """Return the inventory in a file. Raises BadRequest that names file, line and key."""
    text = read_text(Path(path).expanduser(), "the inventory of --attach")
    table = parse_toml(text, str(path))
    file = SourceFile(str(path), text)
    for key in table:
        if key not in TABLES:
            file.refuse(f"unknown table {key!r}; known: [[node]], [[client]], [compose]", key)
    nodes, clients = _tables(file, table, "node"), _tables(file, table, CLIENT)
    compose = _compose(file, table["compose"]) if "compose" in table else None
    for at, entry in enumerate(nodes):
        _check_node(file, at, entry)
    containers = [entry for entry in nodes if "container" in entry]
    if compose and nodes:
        file.refuse("name the nodes by [compose] or by [[node]], not both", "compose")
    if containers and len(containers) < len(nodes):
        file.refuse("nodes must all be containers, or all be hosts", "node")
    if not nodes and not compose:
        file.refuse('it names no node; add [[node]] with container = "NAME" or host = "NAME"')
    if containers or compose:
        if clients:
            file.refuse("containers get client containers of their own; leave it out", CLIENT)
        found = [ExistingContainer(e["container"], e.get("role", "")) for e in containers]
        return AttachInventory(str(path), tuple(found), compose)
    return _machines(file, table, nodes, clients)


def pair(nodes: Sequence[Node], targets: Sequence[Target], source: str) -> Mapping[str, Target]:
    """Return what each node of the cluster is, by its name: the nodes of a role are the targets of
    this role, in order. Raises BadRequest if there are more of one than of the other."""
    first = next(node.role for node in nodes)
    of_role: dict[str, list[Target]] = {}
    for target in targets:
        of_role.setdefault(target.role or first, []).append(target)
    paired: dict[str, Target] = {}
    for node in nodes:
        if node.role == CLIENT:
            continue
        if not of_role.get(node.role):
            raise BadRequest(f"{source} has too few nodes of the role {node.role} for this trial")
        paired[node.name] = of_role[node.role].pop(0)
    if left := [role for role, rest in of_role.items() if rest]:
        raise BadRequest(f"{source} has nodes of the role {left[0]} that the trial has not")
    return paired


def _machines(
    file: SourceFile,
    table: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]],
    clients: Sequence[Mapping[str, Any]],
) -> AttachInventory:
    if not clients:
        file.refuse('it has no [[client]]; add one with host = "NAME", where the load runs')
    defaults = checked(file, ("defaults",), table.get("defaults", {}))
    machines = []
    for at, entry in enumerate(nodes):
        own = {key: entry[key] for key in OWN_KEYS if key in entry}
        rest = {key: value for key, value in entry.items() if key not in OWN_KEYS}
        host = host_of(file, ("node", at), defaults, rest)
        machines.append(ExistingMachineProcess(host, **own))
    loads = [host_of(file, (CLIENT, at), defaults, entry) for at, entry in enumerate(clients)]
    every: list[tuple[tuple[str | int, ...], InventoryHost]] = [
        *((("node", at), each.host) for at, each in enumerate(machines)),
        *(((CLIENT, at), host) for at, host in enumerate(loads)),
    ]
    refuse_same_hosts(file, every)
    return AttachInventory(file.name, machines=tuple(machines), clients=tuple(loads))


def _tables(file: SourceFile, table: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        file.refuse(f"each {key} must be a table of its own: [[{key}]]", key)
    return list(found)


def _compose(file: SourceFile, table: Any) -> ComposeService:
    if not isinstance(table, dict):
        file.refuse(f"compose must be a table, [compose], not {table!r}", "compose")
    for key in table:
        if key not in COMPOSE_KEYS:
            known = ", ".join(COMPOSE_KEYS)
            file.refuse(f"unknown key {key!r}; known: {known}", "compose", key)
    for key in ("project", "service"):
        if key not in table:
            file.refuse(f'it has no {key}; add {key} = "NAME"', "compose")
    for key, value in table.items():
        _check_word(file, value, "compose", key)
    return ComposeService(**table)


def _check_node(file: SourceFile, at: int, entry: Mapping[str, Any]) -> None:
    """Raise BadRequest if a node's own keys are wrong, or do not belong together."""
    for key in ("role", "container", "unit"):
        if key in entry:
            _check_word(file, entry[key], "node", at, key)
    for key in ("process", "start"):
        value = entry.get(key, "x")
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            file.refuse(f"{key} must be a string of one line, not {value!r}", "node", at, key)
    if "container" in entry:
        for key in entry:
            if key not in ("role", "container"):
                file.refuse(f"{key} is not for a container", "node", at, key)
        return
    if "host" not in entry:
        file.refuse('it has no container = "NAME" and no host = "NAME"', "node", at)
    if ("unit" in entry) == ("process" in entry):
        what = 'it needs either unit = "NAME.service" or process = "NAME"'
        file.refuse(f"{what}, which says what faults hit there", "node", at)
    try:
        re.compile(entry.get("process", ""))
    except re.error as e:
        file.refuse(f"process is not a regular expression: {e}", "node", at, "process")


def _check_word(file: SourceFile, value: Any, *path: str | int) -> None:
    if not isinstance(value, str) or not WORD.fullmatch(value) or value.startswith("-"):
        file.refuse(f"{path[-1]} must be one word, not {value!r}", *path)
