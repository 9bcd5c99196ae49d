"""The network between simulated hosts: directed links with an effect each, and who listens where.

A link has a latency, jitter, a chance of loss, perhaps a rate, and can be cut; each direction by
itself, and each with luck of its own. It may be made late and narrow, alone or with all links to
the same host; what is not late overtakes, as far as TCP's order lets it. A cut is a rule at the
receiver that drops whatever arrives (`iptables -A INPUT -s ... -j DROP`): what was under way when
it was made is dropped too, and nobody is told. What TCP makes of that is in `tcp.py`. Bytes of one
direction of a connection arrive in their order, now and then cut in two or joined with the next, as
a parser must bear.
"""

import errno
import ipaddress
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .tcp import Address, Kernel, Socket
from .world import SECOND, World

LOOPBACK = "127.0.0.1"
ANYWHERE = "0.0.0.0"
FIRST_PORT, LAST_PORT = 32768, 60999
NANOS_LOOPBACK = 15_000
LEAST_BEARABLE_BYTES = 16_384
FULL_NS = 2 * SECOND
HALF_OPEN_NS = 63 * SECOND  # how long a kernel waits for the third packet of a handshake


@dataclass(frozen=True)
class Wire:
    """What a link is like while nothing is wrong."""

    latency_ns: int = 200_000
    jitter_ns: int = 100_000
    split: float = 0.02  # chance that a piece arrives as two
    join: float = 0.02  # chance that a piece waits for the next
    spread: float = 1.0  # each link is up to so many times slower


class Stretch:
    """A part of the way that carries one piece after the other.

    What waits goes on at the rate in force, whatever that was when it came. Pieces that are only
    looked at wait like others, and take nobody's room but that of what is looked at with them.
    """

    __slots__ = ("_bytes_per_s", "_looked_at_ns", "_looked_free_ns", "free_ns")

    def __init__(self) -> None:
        self.free_ns = 0
        self._bytes_per_s = 0  # at which what waits would be through by then
        self._looked_at_ns, self._looked_free_ns = -1, 0

    def passed_ns(self, at_ns: int, size: int, bytes_per_s: int) -> int:
        """When a piece that comes then is through."""
        self._keep_pace(at_ns, bytes_per_s)
        self.free_ns = max(self.free_ns, at_ns) + size * SECOND // bytes_per_s
        return self.free_ns

    def looked_ns(self, at_ns: int, now_ns: int, size: int, bytes_per_s: int) -> int | None:
        """The same of a piece that is only looked at; None: it finds no room."""
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


class Link:
    """One direction between two hosts. `door`: the last stretch, of all links to the same host."""

    __slots__ = (
        "_natural",
        "_own",
        "bytes_per_s",
        "cut",
        "door",
        "door_bytes_per_s",
        "dropped",
        "jitter_ns",
        "join",
        "latency_ns",
        "loss",
        "luck",
        "overtaking",
        "split",
    )

    def __init__(self, wire: Wire, luck: Callable[[], float], door: Stretch | None = None) -> None:
        slower = wire.spread ** luck() if wire.spread > 1 else 1.0
        self.latency_ns, self.jitter_ns = int(wire.latency_ns * slower), wire.jitter_ns
        self._natural = self.latency_ns, self.jitter_ns
        self._own, self.door = Stretch(), door or Stretch()
        self.overtaking = 0.0  # the share that is not later than by nature
        self.door_bytes_per_s = 0
        self.split, self.join = wire.split, wire.join
        self.loss = 0.0
        self.bytes_per_s = 0  # 0: as fast as you like
        self.cut = False
        self.dropped = 0  # packets, since ever
        self.luck = luck

    def slow_down(self, delay_ns: int, jitter_ns: int, overtaking: float) -> None:
        """So much later than by nature, from now on."""
        latency_ns, own_jitter_ns = self._natural
        self.latency_ns, self.jitter_ns = latency_ns + delay_ns, own_jitter_ns + jitter_ns
        self.overtaking = overtaking

    @property
    def narrow(self) -> bool:
        return self.bytes_per_s > 0 or self.door_bytes_per_s > 0

    @property
    def bearable_bytes(self) -> int:
        """What a connection may have under way on a narrow link."""
        rates = [rate for rate in (self.bytes_per_s, self.door_bytes_per_s) if rate]
        return max(LEAST_BEARABLE_BYTES, min(rates))

    def way_ns(self) -> int:
        """How long the next piece is under way, when nothing is before it."""
        latency_ns, jitter_ns = self.latency_ns, self.jitter_ns
        if self.overtaking and self.luck() < self.overtaking:
            latency_ns, jitter_ns = self._natural
        return latency_ns + int(self.luck() * jitter_ns) if jitter_ns else latency_ns

    def pass_all(self, count: int) -> int:
        """How many of these packets get through now."""
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
        """Whether one packet gets through now."""
        if self.cut or (self.loss and self.luck() < self.loss):
            self.dropped += 1
            return False
        return True

    def queued_ns(self, now_ns: int, size: int) -> int:
        """How long a piece waits for, and occupies, a slow link."""
        at_ns = now_ns
        if self.bytes_per_s:
            at_ns = self._own.passed_ns(at_ns, size, self.bytes_per_s)
        if self.door_bytes_per_s:
            at_ns = self.door.passed_ns(at_ns, size, self.door_bytes_per_s)
        return at_ns - now_ns

    @property
    def natural_ns(self) -> int:
        """The quickest that a piece can be while nothing is wrong."""
        return self._natural[0]

    def flights_ns(self, now_ns: int, count: int, size: int) -> list[tuple[int, int]]:
        """When packets that are sent now would arrive, with their numbers: those that do, in the
        order in which they do. They are looked at, and nobody else has to wait for them."""
        arrivals: list[tuple[int, int]] = []
        last_ns = 0
        for number in range(count):
            through_ns = self._looked_ns(now_ns, size) if self.passes() else None
            if through_ns is not None:
                way_ns = self.way_ns()
                at_ns = through_ns + way_ns
                if self.latency_ns > self._natural[0] and way_ns >= self.latency_ns:
                    # what is held back stays in order; by nature anybody may be quicker
                    at_ns = last_ns = max(last_ns, at_ns)
                arrivals.append((at_ns, number))
        return sorted(arrivals)

    def _looked_ns(self, now_ns: int, size: int) -> int | None:
        """When a packet that is looked at is through what is narrow; None: it is lost there."""
        at_ns: int | None = now_ns
        for way, rate in ((self._own, self.bytes_per_s), (self.door, self.door_bytes_per_s)):
            if rate and at_ns is not None:
                at_ns = way.looked_ns(at_ns, now_ns, size, rate)
        return at_ns


class Listener:
    """A port that is listened on. `ready` is called in the listening process's loop."""

    def __init__(self, stack: "Stack", loop: Any, address: Address, backlog: int) -> None:
        self.stack, self.loop, self.address = stack, loop, address
        self.flow = stack.network.next_flow()
        self.waiting: deque[Socket] = deque()
        self.ready: Callable[[], None] | None = None
        self.expected: dict[Socket, int] = {}  # half way through their handshake, since when
        self._backlog = backlog

    @property
    def full(self) -> bool:
        """Whether nobody is let in. Who gave up dialling stands in nobody's way.

        Linux answers with SYN cookies when too many handshakes are half way, so a crowd that was
        cut off from its answers keeps nobody out, neither meanwhile nor when it is over.
        """
        if len(self.waiting) + len(self.expected) <= self._backlog:
            return False
        too_late_ns = self.stack.world.now_ns - HALF_OPEN_NS
        for socket, since_ns in list(self.expected.items()):
            if since_ns < too_late_ns or socket.peer is None or socket.peer.gone:
                socket.vanish()
        return len(self.waiting) + len(self.expected) > self._backlog

    def expect(self, socket: Socket) -> None:
        self.expected[socket] = self.stack.world.now_ns

    def arrived(self, socket: Socket) -> None:
        self.waiting.append(socket)
        if self.ready is not None:
            self.loop.enter(self.ready)

    def close(self) -> None:
        """Nobody listens any more; whoever waits to be accepted is turned away."""
        if self.stack.listeners.get(self.address) is self:
            del self.stack.listeners[self.address]
        self.ready = None
        while self.waiting:
            self.waiting.popleft().refuse()


class Stack:
    """One host's end of the network: its kernel's sockets."""

    def __init__(self, network: "Network", address: str) -> None:
        self.network, self.world, self.address = network, network.world, address
        self.kernel: Kernel = network.kernel
        self.up = True
        self.listeners: dict[Address, Listener] = {}
        self.sockets: dict[Socket, None] = {}
        self._next_port = FIRST_PORT
        self._ports: set[int] = set()

    def listen(self, loop: Any, host: str, port: int, backlog: int) -> Listener:
        """OSError where the real one would be: the port is taken, the address is not ours."""
        self._check(host)
        if host not in (self.address, LOOPBACK, ANYWHERE):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        address = (host, port or self._free_port())
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self.listeners[address] = Listener(self, loop, address, backlog)
        return listener

    def connect(self, loop: Any, host: str, port: int, answer: Callable[[int], None]) -> Socket:
        """Dial; `answer` is called in the loop with 0 or the errno."""
        self._check(host)
        inward = host in (LOOPBACK, self.address)
        source = host if inward else self.address
        socket = Socket(self, loop, (source, self._free_port()), (host, port))
        self._ports.add(socket.local[1])
        self.sockets[socket] = None
        socket.dial(self.network.stacks.get(self.address if inward else host), answer)
        return socket

    def listener(self, address: Address) -> Listener | None:
        found = self.listeners.get(address)
        return found or self.listeners.get((ANYWHERE, address[1]))

    def forget(self, socket: Socket) -> None:
        if socket in self.sockets:
            del self.sockets[socket]
            if socket.dialled:
                self._ports.discard(socket.local[1])

    def abandon(self, loop: Any) -> None:
        """A process ended: close what it had open, the youngest first as Linux does."""
        ends: list[Listener | Socket] = [
            *(listener for listener in self.listeners.values() if listener.loop is loop),
            *(socket for socket in self.sockets if socket.loop is loop),
        ]
        for end in sorted(ends, key=lambda end: -end.flow):
            end.close()

    def power_cut(self) -> None:
        """All sockets are gone, and nobody is told."""
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
        """Names are looked up in the real world only."""
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise self.world.trespass(f"looking up {host!r}, which is no IPv4 address,") from None


class Network:
    """All links and all hosts' ends of them."""

    def __init__(self, world: World, wire: Wire = Wire(), kernel: Kernel | None = None) -> None:
        self.world = world
        self.wire, self.kernel = wire, kernel or Kernel()
        self.stacks: dict[str, Stack] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._doors: dict[str, Stretch] = {}
        self._flows = 0

    def attach(self, address: str) -> Stack:
        if address in self.stacks:
            raise ValueError(f"{address} is given to two hosts")
        stack = self.stacks[address] = Stack(self, address)
        return stack

    def link(self, source: str, target: str) -> Link:
        """The direction from one address to another; made when it is first asked for."""
        link = self._links.get((source, target))
        if link is None:
            inward = source == target
            inside = replace(self.wire, latency_ns=NANOS_LOOPBACK, jitter_ns=0, spread=1.0)
            wire = inside if inward else self.wire
            luck = self.world.random(f"link/{source}/{target}").random
            door = self._doors.setdefault(target, Stretch())
            link = self._links[source, target] = Link(wire, luck, door)
        return link

    def cut(self, source: str, target: str) -> None:
        """What `source` sends does not reach `target` any more."""
        self.world.record(f"{source} is cut from {target}")
        self.link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        self.world.record(f"{source} reaches {target} again")
        self.link(source, target).cut = False

    def next_flow(self) -> int:
        self._flows += 1
        return self._flows
