"""The way to a host: what the inventory says, filled up from ~/.ssh/config, as ssh would do it.

HostName, Port, User, IdentityFile, ProxyJump and UserKnownHostsFile are honoured, for jump hosts
too. A jump host has what its own entry says, else the key and the known hosts of the host behind
it. ProxyCommand is refused: a program of somebody's own can neither be asked for TCP_NODELAY nor
be told apart from the host that it leads to.
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

from clusters.hosts.ssh.inventory import Host, Inventory, with_addresses
from harness.errors import BadRequest

SSH_PORT = 22
CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
KNOWN_HOSTS = ("~/.ssh/known_hosts",)
KNOWN_TO_ALL = "/etc/ssh/ssh_known_hosts"
USUAL_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
LOOKUPS_AT_ONCE = 16


@dataclass(frozen=True)
class Route:
    """One leg: where to connect and as whom, and the leg before it.

    `name` is as its author wrote it. `keys` were asked for by name; none: the usual ones, and the
    agent's. New host keys are written to the first of `known_hosts`.
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
        """What known_hosts calls it."""
        return self.hostname if self.port == SSH_PORT else f"[{self.hostname}]:{self.port}"

    @property
    def shorthand(self) -> str:
        return f"{self.user}@{self.hostname}" + ("" if self.port == SSH_PORT else f":{self.port}")


def ssh_config() -> paramiko.SSHConfig:
    """The user's configuration of ssh, then the machine's. BadRequest when one is no such thing."""
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


def route(host: Host, config: paramiko.SSHConfig) -> Route:
    """How to reach a host of the inventory."""
    entry = _lookup(host.host, config)
    keys = (host.key,) if host.key else tuple(entry.get("identityfile", ()))
    known = (host.known_hosts,) if host.known_hosts else _known_hosts(entry)
    return Route(
        host.host,
        str(entry["hostname"]),
        host.port or int(entry.get("port", SSH_PORT)),
        host.user or entry.get("user") or getpass.getuser(),
        _expanded(keys),
        _expanded(known),
        _jumps(host, entry, config, keys, known),
    )


def resolved(inventory: Inventory, config: paramiko.SSHConfig) -> Inventory:
    """The inventory with an address for each host that names none. BadRequest: it has none."""
    missing = [host for host in inventory.hosts if not host.address]
    with ThreadPoolExecutor(LOOKUPS_AT_ONCE) as pool:
        found = dict(zip(missing, pool.map(lambda h: _address(h, config), missing), strict=True))
    for host, address in found.items():
        if why := _unfit(address):
            raise BadRequest(
                f'{inventory.source}: {host.host} {why}; add address = "IPv4" to it, the one that '
                "the other hosts reach it by"
            )
    return with_addresses(inventory, [host.address or found[host] for host in inventory.hosts])


def _jumps(
    host: Host,
    entry: Mapping[str, str],
    config: paramiko.SSHConfig,
    keys: Sequence[str],
    known: Sequence[str],
) -> Route | None:
    """The legs before the last one, each behind the one before."""
    hops = host.jump or tuple(h for h in entry.get("proxyjump", "none").split(",") if h != "none")
    leg: Route | None = None
    for hop in hops:
        user, name, port = _parts(hop)
        own = _lookup(name, config)
        leg = Route(
            hop,
            str(own["hostname"]),
            port or int(own.get("port", SSH_PORT)),
            user or own.get("user") or getpass.getuser(),
            _expanded(own.get("identityfile", ()) or keys),
            _expanded(_known_hosts(own) if "userknownhostsfile" in own else known),
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


def _parts(hop: str) -> tuple[str, str, int]:
    """`user@host:port`; the user and the port may be missing."""
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


def _expanded(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(os.path.expanduser(path) for path in paths)


def _address(host: Host, config: paramiko.SSHConfig) -> str:
    hostname = str(_lookup(host.host, config)["hostname"])
    try:
        found = socket.getaddrinfo(hostname, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(found[0][4][0])


def _unfit(address: str) -> str:
    if not address:
        return "has no IPv4 address that this machine knows"
    if ipaddress.IPv4Address(address).is_loopback:
        return f"resolves to {address}, which other hosts cannot reach"
    return ""
