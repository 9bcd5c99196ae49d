"""The route to a host: the inventory's settings, completed from ~/.ssh/config, as ssh would do it.

HostName, Port, User, IdentityFile, ProxyJump and UserKnownHostsFile apply, to jump hosts too. A
jump host has the settings of its own entry, else the key and the known hosts of the host behind it.
ProxyCommand is refused: TCP_NODELAY cannot be set through another program, and its failures cannot
be distinguished from those of the host.
"""

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import paramiko

from clusters.hosts.ssh.inventory import Inventory, InventoryHost, with_addresses
from harness.errors import BadRequest

SSH_PORT = 22
CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
KNOWN_HOSTS = ("~/.ssh/known_hosts",)
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
LOOKUPS_AT_ONCE = 16


@dataclass(frozen=True)
class Route:
    """One leg: address and user, and the leg before it.

    name: as the user wrote it keys: requested by name; empty: the default keys and the agent's
    known_hosts: new host keys are written to the first file
    """

    name: str
    hostname: str
    port: int
    user: str
    keys: tuple[str, ...]
    known_hosts: tuple[str, ...]
    jump: "Route | None" = None

    @property
    def known_as(self) -> str:
        """The host's name in known_hosts."""
        return self.hostname if self.port == SSH_PORT else f"[{self.hostname}]:{self.port}"

    @property
    def shorthand(self) -> str:
        return f"{self.user}@{self.hostname}" + ("" if self.port == SSH_PORT else f":{self.port}")


def ssh_config() -> paramiko.SSHConfig:
    """Return the user's configuration of ssh, then the machine's. Raises BadRequest if one is
    malformed."""
    config = paramiko.SSHConfig()
    for path in CONFIGS:
        file = Path(path).expanduser()
        if not file.is_file():
            continue
        try:
            config.parse(file.read_text().splitlines())
        except (paramiko.ConfigParseError, OSError, UnicodeDecodeError) as e:
            raise BadRequest(f"{path} cannot be used: {e}") from None
    return config


def route(host: InventoryHost, config: paramiko.SSHConfig) -> Route:
    """Return the route to a host of the inventory."""
    entry = _lookup(host.host, config)
    keys = (host.key,) if host.key else tuple(entry.get("identityfile", ()))
    known_hosts = (host.known_hosts,) if host.known_hosts else _known_hosts(entry)
    return Route(
        host.host,
        str(entry["hostname"]),
        host.port or int(entry.get("port", SSH_PORT)),
        host.user or entry.get("user") or getpass.getuser(),
        _expand(keys),
        _expand(known_hosts),
        _jumps(host, entry, config, keys, known_hosts),
    )


def with_resolved_addresses(inventory: Inventory, config: paramiko.SSHConfig) -> Inventory:
    """Return the inventory with an address for each host. Raises BadRequest if a host has none."""
    missing = [host for host in inventory.hosts if not host.address]
    with ThreadPoolExecutor(LOOKUPS_AT_ONCE) as pool:
        addresses = dict(
            zip(missing, pool.map(lambda h: _address(h, config), missing), strict=True)
        )
    for host, address in addresses.items():
        if why := _unusable(address):
            raise BadRequest(
                f'{inventory.source}: {host.host} {why}; add address = "IPv4" to it, the one that '
                "the other hosts reach it by"
            )
    return with_addresses(inventory, [host.address or addresses[host] for host in inventory.hosts])


def _jumps(
    host: InventoryHost,
    entry: Mapping[str, str],
    config: paramiko.SSHConfig,
    keys: Sequence[str],
    known_hosts: Sequence[str],
) -> Route | None:
    """Return the legs before the last one, each behind the one before."""
    hops = host.jump or tuple(h for h in entry.get("proxyjump", "none").split(",") if h != "none")
    leg: Route | None = None
    for hop in hops:
        user, name, port = _parse_hop(hop)
        own = _lookup(name, config)
        leg = Route(
            hop,
            str(own["hostname"]),
            port or int(own.get("port", SSH_PORT)),
            user or own.get("user") or getpass.getuser(),
            _expand(own.get("identityfile", ()) or keys),
            _expand(_known_hosts(own) if "userknownhostsfile" in own else known_hosts),
            leg,
        )
    return leg


def _lookup(name: str, config: paramiko.SSHConfig) -> Mapping[str, str]:
    try:
        entry: Mapping[str, str] = config.lookup(name)
    except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize, ImportError) as e:
        raise BadRequest(f"~/.ssh/config cannot be used for {name}: {e}") from None
    if entry.get("proxycommand", "none") != "none":
        raise BadRequest(
            f"~/.ssh/config reaches {name} by ProxyCommand, which cannot be used here; write "
            "ProxyJump there, or jump = ... in the inventory"
        )
    return entry


def _parse_hop(hop: str) -> tuple[str, str, int]:
    """Parse `user@host:port`, in which user and port are optional."""
    match = re.fullmatch(r"(?:(.+)@)?([^@:]+|\[.+\])(?::(\d+))?", hop)
    if not match:
        raise BadRequest(f"the jump host {hop!r} must look like user@host:port")
    return match[1] or "", match[2].strip("[]"), int(match[3] or 0)


def _known_hosts(entry: Mapping[str, str]) -> tuple[str, ...]:
    return (
        tuple(entry["userknownhostsfile"].split())
        if "userknownhostsfile" in entry
        else (KNOWN_HOSTS)
    )


def _expand(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(os.path.expanduser(path) for path in paths)


def _address(host: InventoryHost, config: paramiko.SSHConfig) -> str:
    hostname = str(_lookup(host.host, config)["hostname"])
    try:
        addresses = socket.getaddrinfo(hostname, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(addresses[0][4][0])


def _unusable(address: str) -> str:
    if not address:
        return "has no IPv4 address that this machine knows"
    if ipaddress.IPv4Address(address).is_loopback:
        return f"resolves to {address}, which other hosts cannot reach"
    return ""
