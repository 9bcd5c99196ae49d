"""Options of Docker hosts: the table `bed` of a trial, checked before anything starts.

    subnet   the nodes' addresses, such as 198.18.7.0/24; default: a free /24
    base     the base of the nodes' image; default: python:3.11-slim, or this machine
    memory   memory of a node, such as 512m; the kernel kills a node that needs more
    cpus     number of processors of a node, such as 1.5
    disk     size of a node's folder, such as 256m, which is then kept in memory

Without limits a node has what the engine's machine has, as on local hosts.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from harness.errors import BadRequest

MIN_MEMORY_BYTES = 64 << 20  # a node process and the agent, both Python
MIN_DISK_BYTES = 1 << 20
MAX_PREFIX_LENGTH = 28
UNUSABLE = ("unspecified", "loopback", "multicast", "link_local", "reserved")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?")


@dataclass(frozen=True)
class DockerOptions:
    """The options. Zero or empty: no limit, or the engine's choice."""

    subnet: IPv4Network | None = None
    base: str = ""
    memory: int = 0
    cpus: float = 0.0
    disk: int = 0


def options(bed: Mapping[str, Any]) -> DockerOptions:
    """Return the options. Raises BadRequest that names the key."""
    for key in bed:
        if key not in _CHECKS:
            names = ", ".join(sorted(_CHECKS))
            raise BadRequest(f"bed.{key} is not an option of docker hosts; there are: {names}")
    checked = DockerOptions(**{key: _CHECKS[key](f"bed.{key}", raw) for key, raw in bed.items()})
    if checked.memory and checked.disk >= checked.memory:
        raise BadRequest(
            "bed.disk must be smaller than bed.memory, because a limited disk is kept in memory"
        )
    return checked


def _subnet(key: str, raw: Any) -> IPv4Network:
    try:
        network = IPv4Network(raw if isinstance(raw, str) else "")
    except ValueError as e:
        why = str(e) if raw else "it is empty"
        raise BadRequest(
            f"{key} must be an IPv4 network such as 198.18.7.0/24, not {raw!r}: {why}"
        ) from None
    if network.prefixlen > MAX_PREFIX_LENGTH:
        raise BadRequest(f"{key} is too small: {raw} must be a /{MAX_PREFIX_LENGTH} or larger")
    if why := next((word for word in UNUSABLE if getattr(network, f"is_{word}")), ""):
        raise BadRequest(f"{key} must be a network that hosts may have, but {raw} is {why}")
    return network


def _image(key: str, raw: Any) -> str:
    if not isinstance(raw, str) or not raw or raw != "".join(raw.split()):
        raise BadRequest(f"{key} must be the name of an image, such as debian:12, not {raw!r}")
    return raw


def _size(least: int) -> Callable[[str, Any], int]:
    def check(key: str, raw: Any) -> int:
        match = SIZE.fullmatch(str(raw).lower())
        if isinstance(raw, bool) or not match:
            raise BadRequest(f"{key} must be a size such as 512m or 2g, not {raw!r}")
        size = int(match[1]) * UNITS[match[2]]
        if size < least:
            raise BadRequest(f"{key} must be at least {least >> 20}m, not {raw!r}")
        return size

    return check


def _number(key: str, raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0.01 <= raw <= 1024:
        raise BadRequest(f"{key} must be a number of processors such as 0.5 or 2, not {raw!r}")
    return float(raw)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "subnet": _subnet,
    "base": _image,
    "memory": _size(MIN_MEMORY_BYTES),
    "cpus": _number,
    "disk": _size(MIN_DISK_BYTES),
}
