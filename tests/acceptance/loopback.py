"""Servers on this machine's loopback addresses: ports that stay free, and waiting for what they do.

A port is chosen before the process that will listen on it is started, so three things could take it
in between: a connection that the kernel gives a port of its own choice, another choice in this
process, and another test process. The first never looks outside the kernel's local port range; the
second never happens, because no port is handed out twice; against the third, each process takes
ports by the slice, and a slice belongs to whoever listens on its first port.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

PATIENCE_S = 30.0
LEAST, MOST = 10_000, 65_535
SLICE = 100
KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")
T = TypeVar("T")

_held: list[socket.socket] = []  # as long as this process lives


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on and that nobody else will be given."""
    for port in _PORTS:
        if probe := _bound(host, port):
            probe.close()
            return port
    raise AssertionError("no port is left for tests")


async def stop_serving(server: asyncio.Server) -> None:
    """Close a server when the connections that it has accepted have begun. Python 3.11 cannot begin
    one whose server was closed after it had been accepted, and leaves its socket open."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await asyncio.sleep(0)  # what was accepted begins in the loop's next pass
    server.close()


async def eventually(find: Callable[[], Awaitable[T | None]]) -> T:
    """What `find` gives once it gives something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := await find():
                return found
            await asyncio.sleep(0.02)


async def until(holds: Callable[[], object]) -> None:
    """Return once it is so, by the doing of another task."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - whoever brings it about tells nobody
            await asyncio.sleep(0.001)


def never_given(lowest: int, highest: int) -> range:
    """The ports that the kernel gives to no connection, when it gives these; the longer part."""
    below, above = range(LEAST, lowest), range(highest + 1, MOST + 1)
    return max(below, above, key=len)


def _ports() -> Iterator[int]:
    lowest, highest = (int(word) for word in KERNELS.read_text().split())
    ports = never_given(lowest, highest)
    for first in range(ports.start, ports.stop - SLICE + 1, SLICE):
        if mark := _bound("127.0.0.1", first):
            mark.listen()
            _held.append(mark)
            yield from range(first + 1, first + SLICE)


def _bound(host: str, port: int) -> socket.socket | None:
    bound = socket.socket()
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        return None
    return bound


_PORTS = _ports()
