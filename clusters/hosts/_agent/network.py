"""What the node agent does to the network of its node, and how that is observed.

*Links.* A cut is a set of rules by source address in the chain SEATRIAL, which INPUT jumps to
first. Declaring the chain in `iptables-restore --noflush` empties and refills it in one step and
changes nothing else.

*Pace.* Packets that a rule delays or limits wait in a queue of the kernel, NFQUEUE, until a helper
process of the agent (`nfqueue`) releases them. The receiver must hold packets back: what a sender
holds back still counts as not sent, so its TCP would send hardly anything. The rules have
`--queue-bypass`, so a link whose helper has died works as without a fault, and the helper dies with
the agent. A packet that waited is accepted without meeting other rules of the table `filter`.

*Probes* are datagrams between agents: whether they arrive shows if a link is open or cut. *Flights*
are probes with the time at which they were sent: they show the latency of a link. Any process can
send to a UDP port, so datagrams carry a secret of the run, which the driver gives its agents in
`hello`; datagrams without it or of another form are dropped.
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
BUFFER_BYTES = 4 << 20  # for probes that all arrive at once; the kernel may grant less
MAX_TOKENS = 256  # tokens whose probes are counted
MAX_FLIGHTS = 16_384  # per token
QUEUE = 61007  # its number, in the node's network namespace
QUEUE_WITHIN_S = 10.0
CHAIN, TRIAL = "SEATRIAL", "SEATRIAL-TRIAL"
PACES = ("delay_s", "jitter_s", "reorder", "bytes_per_s", "node_bytes_per_s")

Json = dict[str, Any]
Run = Callable[[list[str], bytes, float], Awaitable[tuple[int, str, str]]]
Start = Callable[[list[str], Callable[[str], None]], Awaitable[Any]]  # of a process with pipes
TRIAL_RULE: Json = {
    "source": "192.0.2.1",
    "drop": 0.0,
    "delay_s": 1.0,
}  # TEST-NET-1 (RFC 5737): no packets come from it


class CommandFailed(Exception):
    """A request that cannot be carried out; the driver gets the text."""

    kind = "failed"


class ProcessNoAnswer(CommandFailed):
    """The node's process did not answer: a fact about the node, not an error of the test
    environment."""

    kind = "no-answer"


class LinkChain:
    """The SEATRIAL chain of this node."""

    def __init__(self, run: Run, start: Start) -> None:
        self.run = run
        self.pace = PacketHolder(start)
        self.hooked = False
        self.turn = asyncio.Lock()  # rules are applied in the order of the requests

    async def make(self, rules: list[Json]) -> None:
        async with self.turn:
            await self.pace.hold([rule for rule in rules if is_paced(rule)])
            hook = [] if self.hooked else await self._hook()
            lines = [line for rule in rules for line in chain_rules(rule)]
            await self._restore([*hook, *lines])
            self.hooked = True

    async def why_no_pace(self) -> str:
        """Return why this node cannot hold packets back, or an empty string; a rule is tried and
        removed."""
        async with self.turn:
            try:
                await self.pace.hold([TRIAL_RULE])
                text = "\n".join(["*filter", f":{TRIAL} - [0:0]", _queued(TRIAL, ""), "COMMIT", ""])
                await self._iptables("iptables-restore", "-w", "--noflush", stdin=text.encode())
                await self._iptables("iptables", "-w", "-F", TRIAL)
                await self._iptables("iptables", "-w", "-X", TRIAL)
                await self.pace.hold([])
            except CommandFailed as e:
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
        """Return the lines that make INPUT jump to our chain, or none if it does already."""
        code, _, _ = await self.run(["iptables", "-w", "-C", "INPUT", "-j", CHAIN], b"", 10.0)
        return [] if code == 0 else [f"-I INPUT -j {CHAIN}"]

    async def _restore(self, lines: list[str]) -> None:
        text = "\n".join(["*filter", f":{CHAIN} - [0:0]", *lines, "COMMIT", ""])
        await self._iptables("iptables-restore", "-w", "--noflush", stdin=text.encode())

    async def _iptables(self, *argv: str, stdin: bytes = b"") -> str:
        code, out, err = await self.run(list(argv), stdin, 10.0)
        if code != 0:
            raise CommandFailed(f"{argv[0]} failed: {' '.join(err.split()) or code}")
        return out


class PacketHolder:
    """The helper that holds packets back, started when it is first needed."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.child: Any = None
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def hold(self, rules: list[Json]) -> None:
        """Hold back packets from these sources by their rules, and release all others."""
        if self.child is None or self.child.ended.done():
            if not rules:
                return
            await self._begin()
        table = [{"source": _address(rule["source"]), **_pace(rule)} for rule in rules]
        self.child.stdin.write(json.dumps(table).encode() + b"\n")
        await self._expect("done")

    async def _begin(self) -> None:
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nfqueue.py")
        self.heard = asyncio.Queue()
        argv = [sys.executable, "-I", "-S", program, str(QUEUE)]
        heard = self.heard
        self.child = await self.start(argv, heard.put_nowait)
        self.child.ended.add_done_callback(lambda _: heard.put_nowait("it ended"))
        await self._expect("ready")

    async def _expect(self, word: str) -> None:
        try:
            line = await asyncio.wait_for(self.heard.get(), QUEUE_WITHIN_S)
        except TimeoutError:
            line = f"it printed nothing within {QUEUE_WITHIN_S:g} s"
        if line != word:
            child, self.child = self.child, None
            child.signal(signal.SIGKILL)
            raise CommandFailed(f"the helper that holds packets back does not work: {line}")


class Probes(asyncio.DatagramProtocol):
    """Datagrams between agents, which prove that a link is cut or open."""

    MARK, FLIGHT = b"seatrial probe ", b"seatrial flight "

    def __init__(self, port: int = PROBE_PORT) -> None:
        self.port = port
        self.secret = b""  # of the run
        self.counts: dict[str, int] = {}
        self.flights: dict[str, list[tuple[int, int, int]]] = {}  # number, sent, arrived
        self.transport: asyncio.DatagramTransport | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # another agent has the port: no probes here
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
            _forget_oldest(self.counts, token)
            self.counts[token] = self.counts.get(token, 0) + 1
        elif kind == self.FLIGHT:
            with contextlib.suppress(ValueError):
                self.land(text, time.monotonic_ns())

    def land(self, data: bytes, now_ns: int) -> None:
        """Take a datagram with token, number and time of sending. Raises ValueError if it is
        malformed."""
        token, number, sent_ns, *_ = data.decode(errors="replace").split(" ")
        flight = int(number), int(sent_ns), now_ns
        _forget_oldest(self.flights, token)
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
            raise CommandFailed(f"UDP port {self.port} of this node is taken, so it cannot probe")
        for number in range(count):
            self.transport.sendto(datagram(number), (target, self.port))
            if number % PROBE_BURST == PROBE_BURST - 1:
                await asyncio.sleep(0.001)


def _forget_oldest(kept: dict[str, Any], token: str) -> None:
    """Remove the oldest token if a new one would exceed the limit."""
    if token not in kept and len(kept) >= MAX_TOKENS:
        del kept[next(iter(kept))]


def is_paced(rule: Json) -> bool:
    """Return whether packets wait because of this rule."""
    return any(_pace(rule).values())


def _pace(rule: Json) -> dict[str, float]:
    return {name: float(rule.get(name, 0.0)) for name in PACES}


def chain_rules(rule: Json) -> list[str]:
    """Return the lines of a rule in our chain; a packet that is dropped does not wait before."""
    chance = float(rule["drop"])
    source = f" -s {_address(rule['source'])}"
    dice = "" if chance >= 1.0 else f" -m statistic --mode random --probability {chance:.6f}"
    dropped = [f"-A {CHAIN}{source}{dice} -j DROP"] if chance > 0 else []
    return [*dropped, *([_queued(CHAIN, source)] if is_paced(rule) and chance < 1.0 else [])]


def _queued(chain: str, source: str) -> str:
    return f"-A {chain}{source} -j NFQUEUE --queue-num {QUEUE} --queue-bypass"


def _address(source: str) -> str:
    """Return the address in canonical form. Raises OSError for anything else, so that no other text
    can get into a rule."""
    return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, source))
