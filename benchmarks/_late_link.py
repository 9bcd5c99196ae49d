"""A link on which what a node sends arrives late, also where the kernel has no netem.

The node's end at the bridge is taken off it, and a new pair of virtual links is put there instead.
Between the two this process carries the frames: what the node sends after the delay, what it is
sent at once. Each frame travels with what the kernel has noted of its checksum and segments
(PACKET_VNET_HDR), since between virtual links both are left to whoever comes last. Connections that
were open stay open. Only for local hosts, from within their namespaces.
"""

import asyncio
import socket
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from clusters.hosts.local import BRIDGE

OURS, THEIRS = "late-ours", "late-bridge"
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
ETH_P_ALL = 3
LONGEST = 1 << 17  # bytes; a frame that is not yet cut into segments has 64 KiB


@asynccontextmanager
async def late(number: int, delay_s: float) -> AsyncIterator[None]:
    """What the `number`th node of the local hosts sends arrives this much later."""
    wire = f"node{number}"
    _ip(
        f"link add {THEIRS} type veth peer name {OURS}",
        f"link set {THEIRS} master {BRIDGE} up",
        f"link set {OURS} arp off promisc on up",
        f"link set {wire} nomaster",
        f"link set {wire} arp off promisc on",
    )
    node, bridge = _Port(wire), _Port(OURS)
    node.carry_to(bridge, delay_s)
    bridge.carry_to(node, 0.0)
    try:
        yield
    finally:
        node.close()
        bridge.close()
        _ip(
            f"link set {wire} arp on promisc off",
            f"link set {wire} master {BRIDGE}",
            f"link del {THEIRS}",
        )


class _Port:
    """All frames of one link, in and out."""

    def __init__(self, link: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self._socket.setblocking(False)
        self._socket.bind((link, ETH_P_ALL))
        self._due: deque[tuple[float, bytes]] = deque()

    def carry_to(self, other: "_Port", delay_s: float) -> None:
        self._loop.add_reader(self._socket, self._take, other, delay_s)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _take(self, other: "_Port", delay_s: float) -> None:
        with suppress(BlockingIOError):
            while frame := self._socket.recv(LONGEST):
                other.put(frame, delay_s)

    def put(self, frame: bytes, delay_s: float) -> None:
        """Send it later, after all that was put before."""
        if not delay_s:
            self._send(frame)
            return
        self._due.append((self._loop.time() + delay_s, frame))
        if len(self._due) == 1:
            self._loop.call_at(self._due[0][0], self._send_due)

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= self._loop.time():
            self._send(self._due.popleft()[1])
        if self._due:
            self._loop.call_at(self._due[0][0], self._send_due)

    def _send(self, frame: bytes) -> None:
        with suppress(OSError):  # full, or closed meanwhile: networks lose frames
            self._socket.send(frame)


def _ip(*script: str) -> None:
    done = _run(["ip", "-batch", "-"], "\n".join([*script, ""]))
    if done.returncode:
        raise SystemExit(f"the late link could not be made: ip says {done.stderr.strip()}")


def _run(argv: Sequence[str], text: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, input=text, text=True, capture_output=True, check=False)
