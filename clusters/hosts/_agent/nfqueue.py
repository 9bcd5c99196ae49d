"""Holds packets back: the node agent's helper for links with latency or limited bandwidth.

    python3 -I -S nfqueue.py NUMBER

It reads the packets of the kernel's queue NUMBER (NFQUEUE) in this network namespace, tells the
kernel when each may go on, and never changes one. On standard input it takes tables, one JSON line
each: `[{"source": "198.18.1.11", "delay_s": 0.1, ...}]`, the fields of `LinkRule` that make packets
wait; it answers `done`. Held packets of a source whose rule was changed or removed are released at
once, in order. When standard input ends it exits, and the packets that it held are lost. So are
packets that arrive faster than it can read them: a packet may be lost here, but is never early.

*When is a packet due?* First it passes the bandwidth limits, one packet after another, each taking
its size divided by the rate; a packet that finds more than a second's worth of data waiting there
is dropped. Then the delay and a random jitter are added, but it is never due before an earlier
packet of its link. A share of the packets gets no delay, and so overtakes others.

The kernel hands over packets of up to 64 KB that a network card would split, which is cheap. If the
bandwidth is limited it has to split them first, or a single one would take seconds.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from typing import Any

NETLINK_NETFILTER, SOL_NETLINK, NETLINK_NO_ENOBUFS = 12, 270, 5
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 8 << 20
HEAD = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
FAMILY = struct.Struct("!BBH")  # nfgenmsg: family, version, queue
REQUEST, ACK = 1, 4
ERROR, DONE = 2, 3  # types of netlink's own messages
PACKET, VERDICT, CONFIG = 0x300, 0x301, 0x302
COMMAND, PARAMETERS, MAX_LENGTH, MASK, FLAGS = 1, 2, 3, 4, 5  # attributes of CONFIG
BIND = struct.pack("!BBH", 1, 0, socket.AF_INET)
COPIED_BYTES = 20  # of each packet: the IP header
WHOLE = 4  # flag NFQA_CFG_F_GSO: large packets are not split
MAX_QUEUE_PACKETS = 1 << 16
PACKET_HEAD, VERDICT_HEAD, PAYLOAD, FULL_SIZE = 1, 2, 10, 13  # attributes of PACKET
DROPPED, ACCEPTED = 0, 1
AT_ONCE = 200  # verdicts per message to the kernel, packets per read
FULL_S, MIN_FULL_BYTES = 1.0, 16_384

Rule = dict[str, Any]


class RateLimit:
    """A bandwidth limit: packets pass one after another."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def full(self, now_s: float, rate: float) -> bool:
        return (self.free_s - now_s) * rate > max(FULL_S * rate, MIN_FULL_BYTES)

    def pass_s(self, at_s: float, size: int, rate: float) -> float:
        """Return when the last byte of a packet that arrives at `at_s` has passed."""
        self.free_s = max(self.free_s, at_s) + size / rate
        return self.free_s


class SourceDelay:
    """The delay of packets from one source. `shared`: the limit of the whole node."""

    def __init__(self, rule: Rule, shared: RateLimit, luck: random.Random) -> None:
        self.rule, self.luck = rule, luck
        stretches = ((RateLimit(), rule["bytes_per_s"]), (shared, rule["node_bytes_per_s"]))
        self.limits = [(stretch, rate) for stretch, rate in stretches if rate]
        self.last_s = 0.0

    def due_s(self, now_s: float, size: int) -> float | None:
        """Return when a packet that arrives now may go on, or None if it is dropped."""
        if any(stretch.full(now_s, rate) for stretch, rate in self.limits):
            return None
        at_s = now_s
        for stretch, rate in self.limits:
            at_s = stretch.pass_s(at_s, size, rate)
        rule, luck = self.rule, self.luck
        if rule["reorder"] and luck.random() < rule["reorder"]:
            return at_s
        at_s += rule["delay_s"] + (luck.random() * rule["jitter_s"] if rule["jitter_s"] else 0.0)
        self.last_s = max(self.last_s, at_s)
        return self.last_s


class HeldPackets:
    """The delays of all sources, and the packets held."""

    def __init__(self) -> None:
        self.shared = RateLimit()
        self.luck = random.Random()
        self.sources: dict[bytes, SourceDelay] = {}
        self.held: list[tuple[float, int, int, bytes]] = []  # due, turn, packet, source
        self.turns = 0

    @property
    def whole(self) -> bool:
        """Whether packets may arrive unsplit, however large."""
        return not any(way.limits for way in self.sources.values())

    def keep(self, rules: list[Rule]) -> list[int]:
        """Replace the rules; return the packets that need not wait any more, in order."""
        wanted = {socket.inet_aton(rule["source"]): rule for rule in rules}
        same = {s: way for s, way in self.sources.items() if wanted.get(s) == way.rule}
        self.sources = {
            source: same.get(source) or SourceDelay(rule, self.shared, self.luck)
            for source, rule in wanted.items()
        }
        free = [packet for packet in sorted(self.held) if packet[3] not in same]
        self.held = [packet for packet in self.held if packet[3] in same]
        heapq.heapify(self.held)
        return [number for _, _, number, _ in free]

    def take(self, number: int, source: bytes, size: int, now_s: float) -> int | None:
        """Take a packet; return its verdict, if it is known yet."""
        way = self.sources.get(source)
        due_s = way.due_s(now_s, size) if way else now_s
        if due_s is None:
            return DROPPED
        if due_s <= now_s:
            return ACCEPTED
        self.turns += 1
        heapq.heappush(self.held, (due_s, self.turns, number, source))
        return None

    def due(self, now_s: float) -> list[int]:
        """Return the packets that may go on now."""
        numbers = []
        while self.held and self.held[0][0] <= now_s:
            numbers.append(heapq.heappop(self.held)[2])
        return numbers

    def wait_s(self, now_s: float) -> float | None:
        return max(0.0, self.held[0][0] - now_s) if self.held else None


class NetfilterQueue:
    """The kernel's queue, over netlink."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self.socket.bind((0, 0))
        for option in (socket.SO_RCVBUF, SO_RCVBUFFORCE):  # the second needs root
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        self._configure(attribute(COMMAND, BIND))
        self._configure(
            attribute(PARAMETERS, struct.pack("!IB", COPIED_BYTES, 2))
            + attribute(MAX_LENGTH, struct.pack("!I", MAX_QUEUE_PACKETS))
        )
        self.whole(True)
        self.socket.setblocking(False)

    def whole(self, wanted: bool) -> None:
        """Set whether large packets arrive unsplit."""
        flags, mask = (struct.pack("!I", bits) for bits in (WHOLE if wanted else 0, WHOLE))
        self._send(CONFIG, attribute(FLAGS, flags) + attribute(MASK, mask))

    def answer(self, verdict: int, numbers: list[int]) -> None:
        """Send the verdict on these packets."""
        for first in range(0, len(numbers), AT_ONCE):
            some = numbers[first : first + AT_ONCE]
            verdicts = (struct.pack("!II", verdict, number) for number in some)
            self.socket.send(
                b"".join(self._message(VERDICT, attribute(VERDICT_HEAD, text)) for text in verdicts)
            )

    def packets(self) -> list[tuple[int, bytes, int]]:
        """Return the packets that have arrived: number, source, size."""
        packets: list[tuple[int, bytes, int]] = []
        for _ in range(AT_ONCE):
            try:
                packets += packets_in(self.socket.recv(1 << 16))
            except OSError:  # nothing more for now
                break
        return packets

    def _configure(self, attributes: bytes) -> None:
        """Send a configuration. Raises OSError if the kernel refuses it."""
        self._send(CONFIG, attributes, ACK)
        while True:
            for kind, body in messages(self.socket.recv(1 << 16)):
                if kind == ERROR:
                    (code,) = struct.unpack_from("=i", body)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return

    def _send(self, kind: int, attributes: bytes, flags: int = 0) -> None:
        self.socket.send(self._message(kind, attributes, flags))

    def _message(self, kind: int, attributes: bytes, flags: int = 0) -> bytes:
        size = HEAD.size + FAMILY.size + len(attributes)
        head = HEAD.pack(size, kind, REQUEST | flags, 0, 0)
        return head + FAMILY.pack(socket.AF_UNSPEC, 0, self.number) + attributes


def attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + bytes(-size % 4)


def messages(data: bytes) -> list[tuple[int, bytes]]:
    """Return types and bodies of netlink messages."""
    messages: list[tuple[int, bytes]] = []
    at = 0
    while at + HEAD.size <= len(data):
        size, kind, *_ = HEAD.unpack_from(data, at)
        if size < HEAD.size:
            break
        messages.append((kind, data[at + HEAD.size : at + size]))
        at += size + (-size % 4)
    return messages


def attributes_in(data: bytes) -> dict[int, bytes]:
    attributes: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4:
            break
        attributes[kind & 0x3FFF] = data[at + 4 : at + size]
        at += size + (-size % 4)
    return attributes


def packets_in(data: bytes) -> list[tuple[int, bytes, int]]:
    """Return number, source and size of the packets in a message of the kernel."""
    packets = []
    for kind, body in messages(data):
        if kind != PACKET:
            continue
        attributes = attributes_in(body[FAMILY.size :])
        (number,) = struct.unpack_from("!I", attributes[PACKET_HEAD])
        header = attributes.get(PAYLOAD, b"")
        if FULL_SIZE in attributes:
            (size,) = struct.unpack("!I", attributes[FULL_SIZE])
        else:
            size = len(header)
        packets.append((number, header[12:16], size))
    return packets


def serve(queue: NetfilterQueue, orders: int) -> None:
    """Serve until standard input ends."""
    ways, rest = HeldPackets(), b""
    watched: list[Any] = [queue.socket, orders]
    while True:
        now_s = time.monotonic()
        ready, _, _ = select.select(watched, [], [], ways.wait_s(now_s))
        if orders in ready:
            data = os.read(orders, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                queue.answer(ACCEPTED, ways.keep(json.loads(line)))
                queue.whole(ways.whole)
                print("done", flush=True)
        if queue.socket in ready:
            _take_all(queue, ways)
        queue.answer(ACCEPTED, ways.due(time.monotonic()))


def _take_all(queue: NetfilterQueue, ways: HeldPackets) -> None:
    verdicts: dict[int, list[int]] = {ACCEPTED: [], DROPPED: []}
    now_s = time.monotonic()
    for number, source, size in queue.packets():
        verdict = ways.take(number, source, size, now_s)
        if verdict is not None:
            verdicts[verdict].append(number)
    for verdict, numbers in verdicts.items():
        queue.answer(verdict, numbers)


def main() -> None:
    try:
        queue = NetfilterQueue(int(sys.argv[1]))
    except OSError as e:
        print(f"the kernel refuses the queue: {e.strerror or e}", flush=True)
        sys.exit(1)
    print("ready", flush=True)
    serve(queue, sys.stdin.fileno())


if __name__ == "__main__":
    main()
