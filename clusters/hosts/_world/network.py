"""The network between simulated hosts: directed links with an effect each, and listening ports.

Each direction of a link has its own latency, jitter, chance of loss, optional bandwidth and random
stream, and can be cut. It can be slowed down alone or with all links to the same host; packets that
are not delayed overtake others, as far as TCP's order permits. A cut is a rule at the receiver that
drops what arrives (`iptables -A INPUT -s ... -j DROP`): packets that were under way when it was
made are dropped too, and no host is informed. `tcp.py` has TCP's reaction. The bytes of one
direction of a connection arrive in order, now and then split in two or joined with the next, which
a parser must handle.
"""

import errno
import ipaddress
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from clusters.hosts._world.tcp import Address, Kernel, Socket
from clusters.hosts._world.world import SECOND, World

LOOPBACK = "127.0.0.1"
ANYWHERE = "0.0.0.0"
FIRST_PORT, LAST_PORT = 32768, 60999
NANOS_LOOPBACK = 15_000
MIN_WINDOW_BYTES = 16_384
FULL_NS = 2 * SECOND
HALF_OPEN_NS = 63 * SECOND  # a kernel waits so long for the third packet of a handshake


@dataclass(frozen=True)
class Wire:
    """Properties of a link without faults."""

    latency_ns: int = 200_000
    jitter_ns: int = 100_000
    split: float = 0.02  # chance that a piece arrives as two
    join: float = 0.02  # chance that a piece waits for the next
    spread: float = 1.0  # each link is up to so many times slower


class Bottleneck:
    """A bandwidth limit: pieces pass one after another.

    Waiting pieces go on at the present rate, whatever the rate was when they arrived. Probes wait
    like other pieces, and take no bandwidth from them.
    """

    __slots__ = ("_bytes_per_s", "_looked_at_ns", "_looked_free_ns", "free_ns")

    def __init__(self) -> None:
        self.free_ns = 0
        self._bytes_per_s = 0  # the rate that `free_ns` is based on
        self._looked_at_ns, self._looked_free_ns = -1, 0

    def pass_ns(self, at_ns: int, size: int, bytes_per_s: int) -> int:
        """Return when a piece that arrives at `at_ns` has passed."""
        self._keep_pace(at_ns, bytes_per_s)
        self.free_ns = max(self.free_ns, at_ns) + size * SECOND // bytes_per_s
        return self.free_ns

    def probe_ns(self, at_ns: int, now_ns: int, size: int, bytes_per_s: int) -> int | None:
        """Return the same for a probe, or None if the queue is full."""
        self._keep_pace(now_ns, bytes_per_s)
        before_ns = max(self.free_ns, now_ns)
        if self._looked_at_ns != now_ns:
            self._looked_at_ns, self._looked_free_ns = now_ns, before_ns
        free_ns = max(self._looked_free_ns, before_ns)
        if free_ns - before_ns > FULL_NS:
            return None
        self._looked_free_ns = max(free_ns, at_ns) + size * SECOND // bytes_per_s
        return self._looked_free_ns

    def _keep_pace(self, at_ns: int, bytes_per_s: int) -> None:
        before, self._bytes_per_s = self._bytes_per_s, bytes_per_s
        if before != bytes_per_s:
            self._looked_at_ns = -1
            self.free_ns = at_ns + max(self.free_ns - at_ns, 0) * before // bytes_per_s


class SimLink:
    """One direction between two hosts.

    host_bottleneck: the bandwidth limit of all links to the same host
    """

    __slots__ = (
        "_natural",
        "_own",
        "bytes_per_s",
        "cut",
        "dropped",
        "host_bottleneck",
        "host_bytes_per_s",
        "jitter_ns",
        "join",
        "latency_ns",
        "loss",
        "luck",
        "overtaking",
        "split",
    )

    def __init__(
        self, wire: Wire, luck: Callable[[], float], door: Bottleneck | None = None
    ) -> None:
        slower = wire.spread ** luck() if wire.spread > 1 else 1.0
        self.latency_ns, self.jitter_ns = int(wire.latency_ns * slower), wire.jitter_ns
        self._natural = self.latency_ns, self.jitter_ns
        self._own, self.host_bottleneck = Bottleneck(), door or Bottleneck()
        self.overtaking = 0.0  # the share of packets that is not slowed down
        self.host_bytes_per_s = 0
        self.split, self.join = wire.split, wire.join
        self.loss = 0.0
        self.bytes_per_s = 0  # 0: unlimited
        self.cut = False
        self.dropped = 0  # packets in total
        self.luck = luck

    def slow_down(self, delay_ns: int, jitter_ns: int, overtaking: float) -> None:
        """Set a delay and a jitter in addition to the link's own."""
        latency_ns, own_jitter_ns = self._natural
        self.latency_ns, self.jitter_ns = latency_ns + delay_ns, own_jitter_ns + jitter_ns
        self.overtaking = overtaking

    @property
    def narrow(self) -> bool:
        return self.bytes_per_s > 0 or self.host_bytes_per_s > 0

    @property
    def window_bytes(self) -> int:
        """The bytes that a connection may have under way on a link with limited bandwidth."""
        rates = [rate for rate in (self.bytes_per_s, self.host_bytes_per_s) if rate]
        return max(MIN_WINDOW_BYTES, min(rates))

    def way_ns(self) -> int:
        """Return how long the next piece is under way, without waiting for others."""
        latency_ns, jitter_ns = self.latency_ns, self.jitter_ns
        if self.overtaking and self.luck() < self.overtaking:
            latency_ns, jitter_ns = self._natural
        return latency_ns + int(self.luck() * jitter_ns) if jitter_ns else latency_ns

    def pass_all(self, count: int) -> int:
        """Return how many of these packets get through now."""
        if self.cut:
            passed = 0
        elif self.loss:
            luck, loss = self.luck, self.loss
            passed = sum(luck() >= loss for _ in range(count))
        else:
            passed = count
        self.dropped += count - passed
        return passed

    def passes(self) -> bool:
        """Return whether one packet gets through now."""
        if self.cut or (self.loss and self.luck() < self.loss):
            self.dropped += 1
            return False
        return True

    def queued_ns(self, now_ns: int, size: int) -> int:
        """Return how long a piece waits for limited bandwidth, and uses it."""
        at_ns = now_ns
        if self.bytes_per_s:
            at_ns = self._own.pass_ns(at_ns, size, self.bytes_per_s)
        if self.host_bytes_per_s:
            at_ns = self.host_bottleneck.pass_ns(at_ns, size, self.host_bytes_per_s)
        return at_ns - now_ns

    @property
    def natural_ns(self) -> int:
        """The shortest latency of a piece without faults."""
        return self._natural[0]

    def flights_ns(self, now_ns: int, count: int, size: int) -> list[tuple[int, int]]:
        """Return when packets that are sent now would arrive, with their numbers: only those that
        arrive, in that order. They are probes, and delay no other packet."""
        arrivals: list[tuple[int, int]] = []
        last_ns = 0
        for number in range(count):
            through_ns = self._probe_ns(now_ns, size) if self.passes() else None
            if through_ns is not None:
                way_ns = self.way_ns()
                at_ns = through_ns + way_ns
                if self.latency_ns > self._natural[0] and way_ns >= self.latency_ns:
                    # delayed packets stay in order; others may overtake them
                    at_ns = last_ns = max(last_ns, at_ns)
                arrivals.append((at_ns, number))
        return sorted(arrivals)

    def _probe_ns(self, now_ns: int, size: int) -> int | None:
        """Return when a probe has passed the bandwidth limits, or None if it is dropped."""
        at_ns: int | None = now_ns
        for way, rate in (
            (self._own, self.bytes_per_s),
            (self.host_bottleneck, self.host_bytes_per_s),
        ):
            if rate and at_ns is not None:
                at_ns = way.probe_ns(at_ns, now_ns, size, rate)
        return at_ns


class Listener:
    """A listening port. `ready` is called in the listening process's loop."""

    def __init__(self, stack: "Stack", loop: Any, address: Address, backlog: int) -> None:
        self.stack, self.loop, self.address = stack, loop, address
        self.flow = stack.network.next_flow()
        self.waiting: deque[Socket] = deque()
        self.ready: Callable[[], None] | None = None
        self.half_open: dict[Socket, int] = {}  # half-open connections, with the time of their SYN
        self._backlog = backlog

    @property
    def full(self) -> bool:
        """Whether new connections are refused. A dialler that gave up takes no place.

        Linux answers with SYN cookies when too many handshakes are half open, so many diallers that
        were cut off from their answers keep no other out, neither then nor later.
        """
        if len(self.waiting) + len(self.half_open) <= self._backlog:
            return False
        too_late_ns = self.stack.world.now_ns - HALF_OPEN_NS
        for socket, since_ns in list(self.half_open.items()):
            if since_ns < too_late_ns or socket.peer is None or socket.peer.gone:
                socket.vanish()
        return len(self.waiting) + len(self.half_open) > self._backlog

    def expect(self, socket: Socket) -> None:
        self.half_open[socket] = self.stack.world.now_ns

    def arrived(self, socket: Socket) -> None:
        self.waiting.append(socket)
        if self.ready is not None:
            self.loop.enter(self.ready)

    def close(self) -> None:
        """Stop listening, and refuse the connections that wait to be accepted."""
        if self.stack.listeners.get(self.address) is self:
            del self.stack.listeners[self.address]
        self.ready = None
        while self.waiting:
            self.waiting.popleft().refuse()


class Stack:
    """One host's end of the network: its kernel's sockets."""

    def __init__(self, network: "SimNetwork", address: str) -> None:
        self.network, self.world, self.address = network, network.world, address
        self.kernel: Kernel = network.kernel
        self.up = True
        self.listeners: dict[Address, Listener] = {}
        self.sockets: dict[Socket, None] = {}
        self._next_port = FIRST_PORT
        self._ports: set[int] = set()

    def listen(self, loop: Any, host: str, port: int, backlog: int) -> Listener:
        """Listen on a port. Raises OSError as a real kernel does: the port is taken, the address is
        not ours."""
        self._check(host)
        if host not in (self.address, LOOPBACK, ANYWHERE):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        address = (host, port or self._free_port())
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[address] = Listener(self, loop, address, backlog)
        return listener

    def connect(self, loop: Any, host: str, port: int, answer: Callable[[int], None]) -> Socket:
        """Connect; `answer` is called in the loop with 0 or the errno."""
        self._check(host)
        inward = host in (LOOPBACK, self.address)
        source = host if inward else self.address
        ours = (source, self._free_port())
        socket = self.network.make_socket(self, loop, ours, (host, port))
        self._ports.add(socket.local[1])
        self.sockets[socket] = None
        socket.dial(self.network.stacks.get(self.address if inward else host), answer)
        return socket

    def listener(self, address: Address) -> Listener | None:
        listener = self.listeners.get(address)
        return listener or self.listeners.get((ANYWHERE, address[1]))

    def forget(self, socket: Socket) -> None:
        if socket in self.sockets:
            del self.sockets[socket]
            if socket.dialled:
                self._ports.discard(socket.local[1])

    def abandon(self, loop: Any) -> None:
        """A process ended: close what it had open, the newest first, as Linux does."""
        ends: list[Listener | Socket] = [
            *(listener for listener in self.listeners.values() if listener.loop is loop),
            *(socket for socket in self.sockets if socket.loop is loop),
        ]
        for end in sorted(ends, key=lambda end: -end.flow):
            end.close()

    def power_cut(self) -> None:
        """Remove all sockets without telling any peer."""
        self.up = False
        self.listeners.clear()
        for socket in list(self.sockets):
            socket.vanish()

    def power_on(self) -> None:
        self.up = True

    def _free_port(self) -> int:
        while True:
            port = self._next_port
            self._next_port = FIRST_PORT if port == LAST_PORT else port + 1
            taken = port in self._ports or any(port == used for _, used in self.listeners)
            if not taken:
                return port

    def _check(self, host: str) -> None:
        """Names can be resolved in the real world only."""
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise self.world.not_simulated(
                f"looking up {host!r}, which is no IPv4 address,"
            ) from None


class SimNetwork:
    """All links, and the network stacks of all hosts."""

    def __init__(self, world: World, wire: Wire = Wire(), kernel: Kernel | None = None) -> None:
        self.world = world
        self.wire, self.kernel = wire, kernel or Kernel()
        self.stacks: dict[str, Stack] = {}
        self.make_socket: Callable[..., Socket] = Socket
        self._links: dict[tuple[str, str], SimLink] = {}
        self._host_bottlenecks: dict[str, Bottleneck] = {}
        self._flows = 0

    def attach(self, address: str) -> Stack:
        if address in self.stacks:
            raise ValueError(f"{address} is given to two hosts")
        stack = self.stacks[address] = Stack(self, address)
        return stack

    def link(self, source: str, target: str) -> SimLink:
        """Return the link from one address to another, which is made when it is first used."""
        link = self._links.get((source, target))
        if link is None:
            inward = source == target
            inside = replace(self.wire, latency_ns=NANOS_LOOPBACK, jitter_ns=0, spread=1.0)
            wire = inside if inward else self.wire
            luck = self.world.random(f"link/{source}/{target}").random
            door = self._host_bottlenecks.setdefault(target, Bottleneck())
            link = self._links[source, target] = SimLink(wire, luck, door)
        return link

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from `source` to `target`."""
        self.world.record(f"{source} is cut from {target}")
        self.link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        self.world.record(f"{source} reaches {target} again")
        self.link(source, target).cut = False

    def next_flow(self) -> int:
        self._flows += 1
        return self._flows
