"""What the node agent does to the network of its node, and how that is seen.

*Links.* A cut is a set of rules by source address in one chain of ours, SEATRIAL, which INPUT jumps
to first. Declaring the chain in `iptables-restore --noflush` empties and refills it in one step and
touches nothing else.

*Pace.* What is late or narrow waits in a queue of the kernel, NFQUEUE, until a helper process of
the agent (`nfqueue`) lets it go on. It must be the receiver that holds packets back: what a
sender holds back still counts as not sent, so that its TCP sends hardly anything. The rules have
`--queue-bypass`, so a helper that dies leaves a link as it is without a fault, and it dies with us.
A packet that waited is accepted: rules of others in the table `filter` do not see it.

*Probes* are datagrams between agents: whether they arrive shows that a link is open or cut.
*Flights* are probes that tell when they were sent: they show how late a link is. Anybody can send
to a UDP port, so datagrams carry a secret of the run, which the driver gives to its agents when it
greets them; all others are dropped, and so is what has another form than ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

PROBE_PORT = 61007
PROBE_BURST = 50  # datagrams sent before the receiver gets a chance to empty its buffer
BUFFER_BYTES = 4 << 20  # for probes that all arrive at once; the kernel gives what it may
YOUNG = 256  # tokens that are remembered
MAX_FLIGHTS = 16_384  # of a token
QUEUE = 61007  # its number, in the node's network namespace
QUEUE_WITHIN_S = 10.0
CHAIN, TRIAL = "SEATRIAL", "SEATRIAL-TRIAL"
PACES = ("delay_s", "jitter_s", "reorder", "bytes_per_s", "node_bytes_per_s")

Json = dict[str, Any]
Run = Callable[[list[str], bytes, float], Awaitable[tuple[int, str, str]]]
Start = Callable[[list[str], Callable[[str], None]], Awaitable[Any]]  # a process that talks
TRIED: Json = {"source": "192.0.2.1", "drop": 0.0, "delay_s": 1.0}  # an address that nobody has


class Refused(Exception):
    """A command that cannot be done; the text goes back to the driver."""

    kind = "failed"


class NoAnswer(Refused):
    """The process that was asked did not answer: a fact about the node, not about us."""

    kind = "no-answer"


class Links:
    """The SEATRIAL chain of this node."""

    def __init__(self, run: Run, start: Start) -> None:
        self.run = run
        self.pace = Pace(start)
        self.hooked = False
        self.turn = asyncio.Lock()  # the last set of rules asked for is the one that stays

    async def make(self, rules: list[Json]) -> None:
        async with self.turn:
            await self.pace.keep([rule for rule in rules if is_paced(rule)])
            hook = [] if self.hooked else await self._hook()
            lines = [line for rule in rules for line in lines_of(rule)]
            await self._restore([*hook, *lines])
            self.hooked = True

    async def lacks_pace(self) -> str:
        """Why packets cannot be held back here; nothing when they can: it is tried, and undone."""
        async with self.turn:
            try:
                await self.pace.keep([TRIED])
                text = "\n".join(["*filter", f":{TRIAL} - [0:0]", _queued(TRIAL, ""), "COMMIT", ""])
                await self._iptables("iptables-restore", "-w", "--noflush", stdin=text.encode())
                await self._iptables("iptables", "-w", "-F", TRIAL)
                await self._iptables("iptables", "-w", "-X", TRIAL)
                await self.pace.keep([])
            except Refused as e:
                return f"this node's kernel does not let packets be held back (NFQUEUE): {e}"
            return ""

    async def remove(self) -> None:
        async with self.turn:
            if self.hooked:
                await self._restore([f"-D INPUT -j {CHAIN}", f"-X {CHAIN}"])
                self.hooked = False

    async def dropped(self) -> dict[str, int]:
        out = await self._iptables("iptables-save", "-c", "-t", "filter")
        counts: dict[str, int] = {}
        for line in out.splitlines():
            words = line.split()
            if words[1:3] == ["-A", CHAIN] and words[-2:] == ["-j", "DROP"]:
                source = words[words.index("-s") + 1].split("/")[0]
                packets = int(words[0].strip("[]").split(":")[0])
                counts[source] = counts.get(source, 0) + packets
        return counts

    async def _hook(self) -> list[str]:
        """The lines that make INPUT jump to our chain; none if it does so already."""
        code, _, _ = await self.run(["iptables", "-w", "-C", "INPUT", "-j", CHAIN], b"", 10.0)
        return [] if code == 0 else [f"-I INPUT -j {CHAIN}"]

    async def _restore(self, lines: list[str]) -> None:
        text = "\n".join(["*filter", f":{CHAIN} - [0:0]", *lines, "COMMIT", ""])
        await self._iptables("iptables-restore", "-w", "--noflush", stdin=text.encode())

    async def _iptables(self, *argv: str, stdin: bytes = b"") -> str:
        code, out, err = await self.run(list(argv), stdin, 10.0)
        if code != 0:
            raise Refused(f"{argv[0]} failed: {' '.join(err.split()) or code}")
        return out


class Pace:
    """The helper that holds packets back, started when it is first needed."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.child: Any = None
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def keep(self, rules: list[Json]) -> None:
        """Hold back what comes from these sources, by their rules, and let go of all else."""
        if self.child is None or self.child.ended.done():
            if not rules:
                return
            await self._begin()
        table = [{"source": _address(rule["source"]), **_pace(rule)} for rule in rules]
        self.child.stdin.write(json.dumps(table).encode() + b"\n")
        await self._hear("done")

    async def _begin(self) -> None:
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nfqueue.py")
        self.heard = asyncio.Queue()
        argv = [sys.executable, "-I", "-S", program, str(QUEUE)]
        heard = self.heard
        self.child = await self.start(argv, heard.put_nowait)
        self.child.ended.add_done_callback(lambda _: heard.put_nowait("it ended"))
        await self._hear("ready")

    async def _hear(self, word: str) -> None:
        try:
            said = await asyncio.wait_for(self.heard.get(), QUEUE_WITHIN_S)
        except TimeoutError:
            said = f"nothing was heard of it within {QUEUE_WITHIN_S:g} s"
        if said != word:
            child, self.child = self.child, None
            child.signal(signal.SIGKILL)
            raise Refused(f"the helper that holds packets back does not work: {said}")


class Probes(asyncio.DatagramProtocol):
    """Datagrams between agents: the proof that a link is cut, or open."""

    MARK, FLIGHT = b"seatrial probe ", b"seatrial flight "

    def __init__(self, port: int = PROBE_PORT) -> None:
        self.port = port
        self.secret = b""  # of the run
        self.counts: dict[str, int] = {}
        self.flights: dict[str, list[tuple[int, int, int]]] = {}  # number, sent, arrived
        self.transport: asyncio.DatagramTransport | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # another agent on this address: no probes here
            await loop.create_datagram_endpoint(lambda: self, ("0.0.0.0", self.port))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        kind = next((kind for kind in (self.MARK, self.FLIGHT) if data.startswith(kind)), b"")
        secret, _, text = data[len(kind) :].partition(b" ")
        if not self.secret or not hmac.compare_digest(secret, self.secret):
            return
        if kind == self.MARK:
            token = text.decode(errors="replace")
            _make_room(self.counts, token)
            self.counts[token] = self.counts.get(token, 0) + 1
        elif kind == self.FLIGHT:
            with contextlib.suppress(ValueError):
                self.land(text, time.monotonic_ns())

    def land(self, data: bytes, now_ns: int) -> None:
        """A datagram that tells its token, its number and when it was sent. ValueError: another."""
        token, number, sent_ns, *_ = data.decode(errors="replace").split(" ")
        flight = int(number), int(sent_ns), now_ns
        _make_room(self.flights, token)
        flights = self.flights.setdefault(token, [])
        if len(flights) < MAX_FLIGHTS:
            flights.append(flight)

    async def send(self, target: str, token: str, count: int) -> None:
        await self._send(target, count, lambda _: self._marked(self.MARK, token))

    async def fly(self, target: str, token: str, count: int, size_bytes: int) -> None:
        def flight(number: int) -> bytes:
            text = f"{token} {number} {time.monotonic_ns()} "
            return self._marked(self.FLIGHT, text).ljust(size_bytes)

        await self._send(target, count, flight)

    def _marked(self, kind: bytes, text: str) -> bytes:
        return kind + self.secret + b" " + text.encode()

    async def _send(self, target: str, count: int, datagram: Callable[[int], bytes]) -> None:
        if not self.transport:
            raise Refused(f"UDP port {self.port} of this node is taken, so it cannot probe")
        for number in range(count):
            self.transport.sendto(datagram(number), (target, self.port))
            if number % PROBE_BURST == PROBE_BURST - 1:
                await asyncio.sleep(0.001)


def _make_room(kept: dict[str, Any], token: str) -> None:
    """Forget the oldest token, if a new one would be too many."""
    if token not in kept and len(kept) >= YOUNG:
        del kept[next(iter(kept))]


def is_paced(rule: Json) -> bool:
    """Whether packets have to wait for it."""
    return any(_pace(rule).values())


def _pace(rule: Json) -> dict[str, float]:
    return {name: float(rule.get(name, 0.0)) for name in PACES}


def lines_of(rule: Json) -> list[str]:
    """The lines of a rule in our chain: what is lost is not late."""
    chance = float(rule["drop"])
    source = f" -s {_address(rule['source'])}"
    dice = "" if chance >= 1.0 else f" -m statistic --mode random --probability {chance:.6f}"
    dropped = [f"-A {CHAIN}{source}{dice} -j DROP"] if chance > 0 else []
    return [*dropped, *([_queued(CHAIN, source)] if is_paced(rule) and chance < 1.0 else [])]


def _queued(chain: str, source: str) -> str:
    return f"-A {chain}{source} -j NFQUEUE --queue-num {QUEUE} --queue-bypass"


def _address(source: str) -> str:
    """Nothing but an address gets into a rule."""
    return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, source))
