"""TCP between simulated kernels, as far as a process can tell it from Linux's.

A lost piece, whether by chance or by a cut, holds up everything behind it until a retransmission
gets through: first after the round trip plus 200 ms, then after twice that, up to two minutes. So
bytes outlast a cut and arrive late, by about as long again as the cut lasted. After `retries` the
sender gives up with ETIMEDOUT, which it cannot tell its peer. If only the way back is cut, bytes
arrive and the sender gives up nevertheless. A dialler repeats its SYN after 1 s, 2 s, 4 s.

A kernel sends what it has taken and then the end (FIN), even for a process that is dead. It resets
instead (RST, never repeated) when the process left unread data, when bytes arrive for a connection
that no process has open, and when no process listens. A machine that lost power answers nothing,
though what it had put on the wire arrives; once it has power again it resets unknown connections.
So a peer that is idle, or behind a cut, can be gone for good without anyone noticing: there are no
keep-alives.

Bytes that the other process has not read count against the window; when it is full, writing stops.
On a link with limited bandwidth about a second's worth is sent ahead. Not simulated: any other
congestion control, Nagle, urgent data, and the time that orphans and probes of a closed window take
to end.
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from clusters.hosts._world.world import SECOND

if TYPE_CHECKING:
    from clusters.hosts._world.network import Listener, SimLink, Stack

Address = tuple[str, int]


@dataclass(frozen=True)
class Kernel:
    """Settings of a host's TCP, with Linux's defaults."""

    syn_retries: int = 6
    retries: int = 15  # tcp_retries2
    syn_rto_ns: int = SECOND
    rto_min_ns: int = SECOND // 5
    rto_max_ns: int = 120 * SECOND
    window_bytes: int = 1 << 20  # what the kernels of both ends hold together, per direction

    def gives_up_after_ns(self) -> int:
        """Return how long a piece may stay unacknowledged (`tcp_model_timeout`)."""
        doublings = (self.rto_max_ns // self.rto_min_ns).bit_length() - 1
        if self.retries <= doublings:
            return ((2 << self.retries) - 1) * self.rto_min_ns
        steady = (self.retries - doublings) * self.rto_max_ns
        return ((2 << doublings) - 1) * self.rto_min_ns + steady


class Flag(Enum):
    """A signal that travels in the order of the bytes."""

    ACK = "the dialler has heard the answer"
    FIN = "nothing follows"


Payload = bytes | Flag
FIN: Final = Flag.FIN
ACK: Final = Flag.ACK


class Socket:
    """One kernel's end of one connection. `peer` is the other end; sending is done here."""

    __slots__ = (
        "_answer",
        "_back",
        "_blocked",
        "_expected_by",
        "_flight",
        "_inbox",
        "_last_ns",
        "_link",
        "_rto_ns",
        "_since_ns",
        "_target",
        "_unheard",
        "_window",
        "closed",
        "dialled",
        "ended",
        "error",
        "flow",
        "gone",
        "local",
        "loop",
        "notified",
        "on_ready",
        "on_room",
        "outstanding",
        "peer",
        "remote",
        "stack",
        "unread",
        "wants_room",
        "world",
    )  # fmt: skip

    def __init__(self, stack: "Stack", loop: Any, local: Address, remote: Address) -> None:
        self.stack, self.world, self.loop = stack, stack.world, loop
        self.local, self.remote = local, remote
        self.peer: Socket | None = None
        self.dialled = False
        self.gone = False  # the kernel has forgotten it
        self.closed = False  # the process has closed it, or is dead
        self.ended = False  # the peer has sent its end
        self.error = 0  # an errno that the process has not got yet
        self.unread = 0
        self.outstanding = 0  # bytes sent, and not read as far as we know
        self.wants_room = False
        self.on_ready: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None
        network = stack.network
        self.flow = network.next_flow()
        ours, theirs = stack.address, stack.address if local[0] == remote[0] else remote[0]
        self._link: SimLink = network.link(ours, theirs)
        self._back: SimLink = network.link(theirs, ours)
        self._inbox: deque[bytes] = deque()
        self._flight: deque[tuple[int, Payload]] = deque()
        self._last_ns = 0
        self._blocked = False  # the first piece in flight was lost
        self._rto_ns = 0  # the retransmission timer runs
        self._since_ns = 0
        self._window = stack.kernel.window_bytes
        self._unheard = 0  # bytes that the peer has read but could not report to us
        self.notified = False
        self._target: Stack | None = None
        self._answer: Callable[[int], None] | None = None
        self._expected_by: Listener | None = None

    # calls of a process

    def send(self, data: bytes) -> int:
        """Return how many of the bytes the kernel took. Raises OSError as `socket.send`."""
        if self.closed:
            return len(data)  # the process has ended itself, and unwinds
        if self.error or self.gone:
            raise self._complaint(errno.EPIPE)
        size, room = len(data), self._open_window() - self.outstanding
        if room <= 0:
            if self._unheard:
                self._start_retrying()
            return 0
        if size > room:
            data, size = data[:room], room
        self.outstanding += size
        self._transmit(data)
        return size

    def receive(self, limit: int) -> bytes | None:
        """Return bytes, b"" at the end, None if there are none. Raises OSError as `socket.recv`."""
        inbox = self._inbox
        if inbox:
            if len(inbox) == 1 and self.unread <= limit:
                data = inbox.popleft()
            else:
                data = self._take(limit)
            size = len(data)
            self.unread -= size
            self._tell_read(size)
            return data
        if self.error:
            raise self._complaint(0)
        return b"" if self.ended or self.gone else None

    @property
    def room(self) -> int:
        """How many bytes the kernel would take."""
        return max(0, self._open_window() - self.outstanding)

    @property
    def readable(self) -> bool:
        return bool(self._inbox) or self.ended or self.error != 0

    def end(self) -> None:
        """Do what shutdown(SHUT_WR) does."""
        if not self.gone and not self.closed:
            self._transmit(FIN)

    def close(self, ended: bool = False) -> None:
        """Close; `ended`: the end was sent before."""
        if self.closed:
            return
        self.closed = True
        self.on_ready = self.on_room = None
        if self.gone:
            return
        if self.peer is None or self._answer is not None:
            self._forget()  # still dialling
        elif self.unread:
            self.refuse()
        elif not ended:
            self._transmit(FIN)
        elif self.ended:
            self._forget()

    def refuse(self) -> None:
        """Drop the connection and reset the peer; what is on the wire arrives before."""
        self.closed = True
        self._send_nothing_more()
        self._reset_peer()
        self._forget()

    def vanish(self) -> None:
        """The machine lost power. What is on the wire goes on; what is queued is lost."""
        self.closed = self.gone = True
        self.on_ready = self.on_room = None
        link, flight = self._link, self._flight
        if link.narrow:
            on_wire_ns = self.world.now_ns + link.latency_ns + link.jitter_ns
            while flight and flight[-1][0] > on_wire_ns:
                flight.pop()
        self._send_nothing_more()
        self._forget()

    def _send_nothing_more(self) -> None:
        """A lost piece is not sent again, and what is behind it is not delivered."""
        if self._blocked:
            self._flight.clear()

    # connecting

    def dial(self, target: "Stack | None", answer: Callable[[int], None]) -> None:
        self.dialled = True
        self._target, self._answer = target, answer
        self._syn(0)

    def _syn(self, attempt: int) -> None:
        kernel = self.stack.kernel
        if self._answer is None or self.gone:
            return
        if attempt > kernel.syn_retries:
            self._answered(errno.ETIMEDOUT)
            return
        self.world.after(self._link.latency_ns, self._syn_arrives)
        self.world.after(kernel.syn_rto_ns << attempt, self._syn, attempt + 1)

    def _syn_arrives(self) -> None:
        target = self._target
        if target is None or not target.up or not self._link.passes():
            return
        if self._answer is None:
            return  # a repetition; the first one got through
        if self.peer is None or self.peer.gone:  # the machine may have lost power since
            listener = target.listener(self.remote)
            if listener is None:
                self.world.after(self._back.latency_ns, self._refused)
                return
            if listener.full:
                return
            self.peer = target.network.make_socket(target, None, self.remote, self.local)
            listener.expect(self.peer)
            self.peer.peer, self.peer._expected_by = self, listener
            target.sockets[self.peer] = None
        self.world.after(self._back.latency_ns, self._syn_ack_arrives)

    def _refused(self) -> None:
        if self._reached_back() and self._answer is not None and not self.gone:
            self._answered(errno.ECONNREFUSED)

    def _syn_ack_arrives(self) -> None:
        if not self._reached_back():
            return
        if self.gone:
            self._reset_peer()
        elif self._answer is not None:
            self._transmit(ACK)
            self._answered(0)

    def _answered(self, error: int) -> None:
        answer, self._answer = self._answer, None
        outcome = errno.errorcode[error] if error else "open"
        self.world.record(f"{self._label}: {outcome}")
        if error:
            self._forget()
        self.loop.enter(answer, error)

    def _acknowledged(self) -> None:
        """The third packet of the handshake arrived: the connection can be accepted."""
        listener, self._expected_by = self._expected_by, None
        if listener is not None:
            del listener.half_open[self]
        if listener is not None and self.stack.listeners.get(listener.address) is listener:
            listener.arrived(self)
        else:
            self.refuse()

    # sending

    def _transmit(self, payload: Payload) -> None:
        link, world = self._link, self.world
        arrives_ns = world.now_ns + link.way_ns()
        if isinstance(payload, bytes):
            if link.narrow:
                arrives_ns += link.queued_ns(world.now_ns, len(payload))
            if link.split or link.join:
                luck = link.luck()
                if luck < link.split and len(payload) > 1:
                    payload = self._sent_ahead(payload, arrives_ns)
                elif luck > 1 - link.join:
                    payload = self._joined(payload)
        if arrives_ns < self._last_ns:
            arrives_ns = self._last_ns
        self._last_ns = arrives_ns
        self._flight.append((arrives_ns, payload))
        world.at_in_loop(arrives_ns, self._arrives)

    def _sent_ahead(self, data: bytes, arrives_ns: int) -> bytes:
        """Send a part of it; return the rest, which arrives a little later."""
        link = self._link
        at = 1 + int(link.luck() * (len(data) - 1))
        arrives_ns = max(arrives_ns, self._last_ns)
        self._flight.append((arrives_ns, data[:at]))
        self.world.at_in_loop(arrives_ns, self._arrives)
        self._last_ns = arrives_ns + int(link.luck() * link.latency_ns)
        return data[at:]

    def _joined(self, data: bytes) -> bytes:
        """Take back the piece before, if it is under way, to send both as one."""
        if self._flight and not self._blocked:
            before = self._flight[-1][1]
            if isinstance(before, bytes):
                self._flight.pop()
                return before + data
        return data

    def _arrives(self) -> None:
        """The first piece in flight reaches the peer's kernel, or is lost."""
        flight, peer = self._flight, self.peer
        if self._blocked or not flight or flight[0][0] > self.world.now_ns:
            return  # it arrived with a retransmission, or was joined with a later piece
        if not peer.stack.up or not self._link.passes():  # type: ignore[union-attr]
            self._blocked = True
            self._start_retrying()
            return
        payload = flight.popleft()[1]
        if self._back.cut:
            self._start_retrying()  # it cannot be acknowledged
        peer._received(payload)  # type: ignore[union-attr]
        if payload is FIN and self.closed and self.ended:
            self._forget()

    def _start_retrying(self) -> None:
        if not self._rto_ns:
            round_trip_ns = self._link.latency_ns + self._back.latency_ns
            self._rto_ns = self.stack.kernel.rto_min_ns + round_trip_ns
            self._since_ns = self.world.now_ns
            self.world.after(self._rto_ns, self._retry)

    def _retry(self) -> None:
        if self.gone:
            return
        kernel = self.stack.kernel
        if self._blocked and self.peer.stack.up and self._link.passes():  # type: ignore[union-attr]
            self._blocked = False
            self._catch_up()
        if not self._blocked and not self._back.cut:
            self._rto_ns = 0
            self._heard(0)
        elif self.world.now_ns - self._since_ns >= kernel.gives_up_after_ns():
            self._give_up()
        else:
            self._rto_ns = min(2 * self._rto_ns, kernel.rto_max_ns)
            self.world.after(self._rto_ns, self._retry)

    def _give_up(self) -> None:
        """Fail with ETIMEDOUT, unless nothing was sent since the handshake: then there is nothing
        to wait for."""
        if len(self._flight) == 1 and self._flight[0][1] is ACK:
            self._flight.clear()
            self._blocked, self._rto_ns = False, 0
            self.peer._forget()  # type: ignore[union-attr]
        else:
            self._dies(errno.ETIMEDOUT)

    def _catch_up(self) -> None:
        """A retransmission got through: everything that was held up arrives with it."""
        flight, now_ns, held = self._flight, self.world.now_ns, bytearray()
        while flight and flight[0][0] <= now_ns:
            payload = flight.popleft()[1]
            if isinstance(payload, bytes):
                held += payload
                continue
            self._hand_over(held)
            held.clear()
            self.peer._received(payload)  # type: ignore[union-attr]
        self._hand_over(held)

    def _hand_over(self, held: bytearray) -> None:
        if held:
            self.peer._received(bytes(held))  # type: ignore[union-attr]

    # receiving

    def _received(self, payload: Payload) -> None:
        if self.gone:
            self._reset_peer()
        elif isinstance(payload, bytes):
            if self.closed:
                self.refuse()
                return
            world = self.world
            world.transcript.moved(world.now_ns, self.flow, payload)
            self._inbox.append(payload)
            self.unread += len(payload)
            self._tell_ready()
        elif payload is ACK:
            self._acknowledged()
        else:
            self.ended = True
            if self.closed:
                self._forget()
            self._tell_ready()

    def _take(self, limit: int) -> bytes:
        inbox = self._inbox
        waiting = b"".join(inbox)
        inbox.clear()
        if len(waiting) > limit:
            inbox.append(waiting[limit:])
        return waiting[:limit]

    def _tell_read(self, size: int) -> None:
        """The window moves: report it to the sender, if a packet can reach it."""
        sender = self.peer
        if sender is None or sender.gone:
            return
        if self._link.cut:
            sender._unheard += size
            if sender.wants_room:
                sender._start_retrying()
            return
        sender.outstanding -= size + sender._unheard
        sender._unheard = 0
        if sender.wants_room:
            self.world.after(self._link.latency_ns, sender._heard, 0)

    def _heard(self, size: int) -> None:
        """The peer reports what it has read."""
        self.outstanding -= size + self._unheard
        self._unheard = 0
        if self.wants_room and not self.gone and self.on_room is not None:
            self.wants_room = False
            self.loop.enter(self.on_room)

    def _open_window(self) -> int:
        """Return how many bytes may be under way. A link with limited bandwidth would lose more."""
        link, window = self._link, self._window
        return min(window, link.window_bytes) if link.narrow else window

    def _tell_ready(self) -> None:
        if self.on_ready is not None and not self.notified:
            self.notified = True
            self.loop.enter(self.on_ready)

    # endings

    def _reset_peer(self) -> None:
        arrives_ns = max(self.world.now_ns + self._link.latency_ns, self._last_ns)
        self._last_ns = arrives_ns
        self.world.at(arrives_ns, self._reset_arrives)

    def _reset_arrives(self) -> None:
        peer = self.peer
        if peer is not None and peer.stack.up and not peer.gone and self._link.passes():
            peer._dies(errno.EPIPE if peer.ended else errno.ECONNRESET)

    def _dies(self, error: int) -> None:
        self.world.record(f"{self._label}: {errno.errorcode[error]}")
        self.error = error
        self._flight.clear()
        self._forget()
        if not self.closed:
            self._tell_ready()

    def _forget(self) -> None:
        self.gone = True
        if self._expected_by is not None:
            del self._expected_by.half_open[self]
            self._expected_by = None
        self.stack.forget(self)

    def _reached_back(self) -> bool:
        """Return whether a packet to us gets through."""
        return self.stack.up and self._back.passes()

    def _complaint(self, otherwise: int) -> OSError:
        error, self.error = self.error or otherwise, 0
        return OSError(error, os.strerror(error))

    @property
    def _label(self) -> str:
        ours, theirs = self.local, self.remote
        return f"{ours[0]}:{ours[1]} to {theirs[0]}:{theirs[1]}"
