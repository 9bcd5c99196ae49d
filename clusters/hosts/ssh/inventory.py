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
from typing import Any, NoReturn

from harness.contracts import Node
from harness.errors import BadRequest
from harness.text.parsing import parse_toml

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
        known = self.address and self.address != self.host
        return f"{self.host} ({self.address})" if known else self.host

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
    section = _SourceLines(str(path), text)
    for key in table:
        if key not in ("defaults", "host"):
            section.refuse(key, f"unknown table {key!r}; known: [defaults], [[host]]")
    defaults, listed = table.get("defaults", {}), table.get("host", [])
    if not isinstance(defaults, dict):
        section.refuse("defaults", f"defaults must be a table, [defaults], not {defaults!r}")
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        section.refuse("host", "each host must be a table of its own: [[host]]")
    if not listed:
        raise BadRequest(f'{path} names no host; add [[host]] and host = "NAME" for each machine')
    shared = _checked(section, -1, defaults)
    hosts = [_host(section, at, shared, entry) for at, entry in enumerate(listed)]
    _refuse_duplicates(section, hosts)
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
            f"{_hosts(len(inventory.hosts))}; add hosts there, or take nodes away with --nodes"
        )
    roles = {node.role, *(holder[at].role for at in seen)}
    wanted = sum(1 for node in nodes if node.role in roles)
    return (
        f"this trial has {wanted} nodes of role {' or '.join(sorted(roles))}, and "
        f"{inventory.source} has {_hosts(len(seen))} whose roles allow them; add hosts or roles"
    )


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


# ----------------------------------------------------------------------------- reading the file


class _SourceLines:
    """The lines of keys in the text: TOML's reader returns values without lines."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self._lines: dict[tuple[int, str], int] = {}
        self._headers: dict[int, int] = {}
        at, hosts = -2, 0
        for number, line in enumerate(text.splitlines(), start=1):
            if header := re.match(r"\s*(\[+)\s*([\w\"'.-]+)\s*\]", line):
                at = hosts if header[1] == "[[" else -1
                hosts += header[1] == "[["
                self._headers.setdefault(at, number)
                self._lines.setdefault((-2, header[2].strip("\"'").split(".")[0]), number)
            elif key := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*[.=]", line):
                self._lines.setdefault((at, key[1]), number)

    def where(self, at: int, key: str) -> str:
        """Return `FILE line 7` of a key of host number `at`, of the defaults (-1), or of the file
        (-2)."""
        line = self._lines.get((at, key)) or self._lines.get((-1, key)) or self._headers.get(at)
        return f"{self.source} line {line}" if line else self.source

    def refuse(self, key: str, what: str, at: int = -2) -> NoReturn:
        raise BadRequest(f"{self.where(at, key)}: {what}")


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


def _host(
    section: _SourceLines, at: int, defaults: Mapping[str, Any], entry: Mapping[str, Any]
) -> InventoryHost:
    values = {**defaults, **_checked(section, at, entry)}
    if not values.get("host"):
        section.refuse("", f'host number {at + 1} has no name; add host = "NAME"', at)
    if not values.get("address") and _is_ipv4(values["host"]):
        values["address"] = values["host"]
    return InventoryHost(**values)


def _checked(section: _SourceLines, at: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's values as fields of a Host."""
    known = {field.name: field for field in fields(InventoryHost)}
    values: dict[str, Any] = {}
    for key, raw in entry.items():
        if key not in known:
            section.refuse(key, f"unknown key {key!r}; known: {', '.join(known)}", at)
        if at < 0 and key in ("host", "address"):
            section.refuse(key, f"{key} is each host's own, it cannot be a default", at)
        for what in _expected_value(key, raw):
            section.refuse(key, f"{key} must be {what}, not {raw!r}", at)
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


def _refuse_duplicates(section: _SourceLines, hosts: Sequence[InventoryHost]) -> None:
    for key in ("host", "address"):
        counts = Counter(value for host in hosts if (value := getattr(host, key)))
        for at, host in reversed(list(enumerate(hosts))):
            value = getattr(host, key)
            if counts[value] > 1:
                section.refuse(key, f"{key} {value!r} is there twice; list each host once", at)
