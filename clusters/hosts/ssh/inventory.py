"""The inventory: the machines that an SSH trial may use, and how each is reached.

    [defaults]            # any key of a host; optional
    user = "ops"
    key = "~/.ssh/id_ed25519"

    [[host]]
    host = "db1.example"      # a name, an address, or an alias of ~/.ssh/config
    address = "10.0.0.11"     # IPv4, as the other nodes see it; default: what `host` is
    port = 22
    jump = "ops@bastion:22"   # or a list: the first is reached from here
    known_hosts = "~/.ssh/known_hosts"
    python = "python3"        # Python 3.11 or later there
    folder = "/var/tmp"       # where a run makes its folder
    zone = "a"
    roles = ["broker"]        # which nodes may run here; default: any

What a host leaves out comes from the defaults, then from ~/.ssh/config, then from ssh's own. Links
are cut by address, so each host carries one node of a trial, and no two hosts may share an address.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from harness.contracts import Node
from harness.errors import BadRequest
from harness.text.parsing import parse_toml
from harness.text.plurals import quantity
from harness.text.toml_lines import line_suffix

MAX_PORT = 65535


@dataclass(frozen=True)
class InventoryHost:
    """A machine of the inventory. Empty or 0: left to ~/.ssh/config, then to ssh."""

    host: str
    address: str = ""
    user: str = ""
    port: int = 0
    key: str = ""
    known_hosts: str = ""
    jump: tuple[str, ...] = ()
    python: str = "python3"
    folder: str = "/var/tmp"
    zone: str = ""
    roles: tuple[str, ...] = ()

    def __str__(self) -> str:
        address_differs = self.address and self.address != self.host
        return f"{self.host} ({self.address})" if address_differs else self.host

    def takes(self, role: str) -> bool:
        return not self.roles or role in self.roles


@dataclass(frozen=True)
class Inventory:
    """The hosts of a file, in its order."""

    source: str
    hosts: tuple[InventoryHost, ...]


def load(path: str | Path) -> Inventory:
    """Return the inventory in a file. Raises BadRequest that names file, line and key."""
    text = _read(Path(path))
    table = parse_toml(text, str(path))
    file = SourceFile(str(path), text)
    for key in table:
        if key not in ("defaults", "host"):
            file.refuse(f"unknown table {key!r}; known: [defaults], [[host]]", key)
    defaults, listed = table.get("defaults", {}), table.get("host", [])
    if not isinstance(defaults, dict):
        file.refuse(f"defaults must be a table, [defaults], not {defaults!r}", "defaults")
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        file.refuse("each host must be a table of its own: [[host]]", "host")
    if not listed:
        raise BadRequest(f'{path} names no host; add [[host]] and host = "NAME" for each machine')
    shared = checked(file, ("defaults",), defaults)
    hosts = [host_of(file, ("host", at), shared, entry) for at, entry in enumerate(listed)]
    refuse_duplicates(file, [(("host", at), host) for at, host in enumerate(hosts)])
    return Inventory(str(path), tuple(hosts))


def with_addresses(inventory: Inventory, addresses: Sequence[str]) -> Inventory:
    """Return the inventory with an address for each host. Raises BadRequest if two hosts have the
    same one."""
    hosts = tuple(
        replace(host, address=address)
        for host, address in zip(inventory.hosts, addresses, strict=True)
    )
    for at, host in enumerate(hosts):
        if twin := next((h for h in hosts[:at] if h.address == host.address), None):
            raise BadRequest(
                f"{inventory.source}: {twin.host} and {host.host} both have the address "
                f"{host.address}; links are cut by address, so each host needs one of its own"
            )
    return Inventory(inventory.source, hosts)


def assign(inventory: Inventory, nodes: Sequence[Node]) -> Mapping[str, InventoryHost]:
    """Assign a host to each node, by name: one node per host, roles respected, and always the same.

    A node prefers a host that is listed for its role to one for any role. If the only host for it
    is taken, the holder moves to another host if it can (augmenting paths).
    """
    holder: dict[int, Node] = {}
    for node in nodes:
        seen: set[int] = set()
        if not _place(node, inventory.hosts, holder, seen):
            raise BadRequest(_too_few(inventory, nodes, node, holder, seen))
    by_name = {node.name: inventory.hosts[at] for at, node in holder.items()}
    return {node.name: by_name[node.name] for node in nodes}


# ------------------------------------------------------------------------------- placing nodes


def _place(
    node: Node, hosts: Sequence[InventoryHost], holder: dict[int, Node], seen: set[int]
) -> bool:
    fitting = [at for at, host in enumerate(hosts) if host.takes(node.role)]
    fitting.sort(key=lambda at: (at in holder, not hosts[at].roles, at))
    for at in fitting:
        if at in seen:
            continue
        seen.add(at)
        if at not in holder or _place(holder[at], hosts, holder, seen):
            holder[at] = node
            return True
    return False


def _too_few(
    inventory: Inventory,
    nodes: Sequence[Node],
    node: Node,
    holder: Mapping[int, Node],
    seen: set[int],
) -> str:
    """Return which nodes compete for too few hosts, in numbers (Hall's condition)."""
    if len(inventory.hosts) < len(nodes):
        return (
            f"this trial has {len(nodes)} nodes, one host each, and {inventory.source} lists "
            f"{quantity(len(inventory.hosts), 'host')}; add hosts there, or take nodes away with "
            "--nodes"
        )
    roles = {node.role, *(holder[at].role for at in seen)}
    wanted = sum(1 for node in nodes if node.role in roles)
    return (
        f"this trial has {wanted} nodes of role {' or '.join(sorted(roles))}, and "
        f"{inventory.source} has {quantity(len(seen), 'host')} whose roles allow them; add hosts "
        "or roles"
    )


# ----------------------------------------------------------------------------- reading the file


class SourceFile(NamedTuple):
    """The file and its text."""

    name: str
    text: str

    def refuse(self, what: str, *path: str | int) -> NoReturn:
        """Raise BadRequest with the line of a value."""
        raise BadRequest(f"{self.name}{line_suffix(self.text, *path)}: {what}")


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(
            f'the inventory {path} does not exist; write it ([[host]] and host = "NAME" for each '
            "machine), or name another with --bed inventory=FILE"
        ) from None
    except UnicodeDecodeError:
        raise BadRequest(f"the inventory {path} is not text in UTF-8") from None
    except OSError as e:
        raise BadRequest(f"the inventory {path} cannot be read: {e.strerror}") from None


def host_of(
    file: SourceFile,
    table: tuple[str, int],
    defaults: Mapping[str, Any],
    entry: Mapping[str, Any],
) -> InventoryHost:
    """Return the host that a table of the file describes."""
    values = {**defaults, **checked(file, table, entry)}
    if not values.get("host"):
        kind, at = table
        file.refuse(f'{kind} number {at + 1} has no name; add host = "NAME"', *table)
    if not values.get("address") and _is_ipv4(values["host"]):
        values["address"] = values["host"]
    return InventoryHost(**values)


def checked(
    file: SourceFile, table: tuple[str | int, ...], entry: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a table of the file as fields of an InventoryHost."""
    known = {field.name: field for field in fields(InventoryHost)}
    values: dict[str, Any] = {}
    for key, raw in entry.items():
        if key not in known:
            file.refuse(f"unknown key {key!r}; known: {', '.join(known)}", *table, key)
        if table == ("defaults",) and key in ("host", "address"):
            file.refuse(f"{key} is each host's own, it cannot be a default", *table, key)
        for what in _expected_value(key, raw):
            file.refuse(f"{key} must be {what}, not {raw!r}", *table, key)
        values[key] = _as_field(key, raw)
    return values


def _expected_value(key: str, raw: Any) -> Iterator[str]:
    """Yield what the value must be, if it is not."""
    if key == "port":
        if type(raw) is not int or not 0 < raw <= MAX_PORT:
            yield f"a port from 1 to {MAX_PORT}"
    elif key in ("jump", "roles"):
        items = [raw] if isinstance(raw, str) and key == "jump" else raw
        if not isinstance(items, list) or not all(_is_word(item) for item in items):
            yield "a list of words" if key == "roles" else 'like "user@host:22", or a list of such'
    elif not isinstance(raw, str) or not raw.strip():
        yield "a string that says something"
    elif key == "address" and not _is_ipv4(raw):
        yield "an IPv4 address"
    elif key == "folder" and not raw.startswith("/"):
        yield "an absolute path"
    elif key in ("host", "user") and not _is_word(raw):
        yield "one word of letters, digits and . : _ - @ % + [ ]"
    elif any(not char.isprintable() for char in raw):
        yield "a string without control characters"


def _as_field(key: str, raw: Any) -> Any:
    if key in ("jump", "roles"):
        return (raw,) if isinstance(raw, str) else tuple(raw)
    return raw


def _is_word(raw: Any) -> bool:
    """Return whether the text is safe on command lines and in known_hosts: no white space, nothing
    that a shell interprets, and no option."""
    return isinstance(raw, str) and bool(re.fullmatch(r"[\w.:@%+\[\]][\w.:@%+\[\]-]*", raw))


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def refuse_duplicates(
    file: SourceFile, hosts: Sequence[tuple[tuple[str | int, ...], InventoryHost]]
) -> None:
    """Raise BadRequest if two of these hosts, each with its table, are one machine."""
    for key in ("host", "address"):
        counts = Counter(value for _, host in hosts if (value := getattr(host, key)))
        for table, host in reversed(hosts):
            value = getattr(host, key)
            if counts[value] > 1:
                file.refuse(f"{key} {value!r} is there twice; list each host once", *table, key)
