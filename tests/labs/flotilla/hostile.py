"""Peers that send what no sound peer sends, for `tests/flotilla/net/test_hostile_peers.py`.

Every input goes to the handler of a living node by a connection of its own, as its socket would
hand it over, in pieces or whole. `Input.fate` is what must become of it:

    dropped    the connection is closed, and the node's event log says why
    answered   a reply that is no success, or the connection is closed as above
    quiet      nothing: a frame that has not ended yet, a reply to no request
    free       any of these: a message that was changed at random may still make sense
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clusters.flotilla.net.schemas import SCHEMAS
from clusters.flotilla.net.wire import HEADER, MAX_FRAME, REPLY, Op, PullRequest, SendRequest, frame
from clusters.flotilla.raft.messages import Append, LogEntry, VoteRequest
from clusters.flotilla.raft.messages import pack as pack_raft
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_protocol import HandshakeRequest, pack_ack

ABSURD: tuple[Any, ...] = (
    *(None, True, "", "x", "9" * 400, -1, -(2**63), 2**31, 2**63, 2**64, 10**30, 0.5),
    *(float("inf"), float("-inf"), float("nan"), [], [None], ["1"], [[[]]], {}, {"a": []}),
)
SHAPED: tuple[Any, ...] = (
    *(0, 1, 2, "t", "b", "g", "00", "10.6.6.6:1"),
    *([1], [1, 2], [2**63, 0], ["t"], {"t": 4}),
)
NAMES = "cluster brokerName brokerId addr haAddr checkCode timeoutMs epoch maxOffset priority"
NAMES += " confirmOffset life beat masterId masterEpoch set setEpoch topic queueId group offset"
NAMES += " client topics queues key maxNum version waitMs brokerNames brokerIds to namespace value"
NAMES += " expected add remove stateVersion minBrokerId minBrokerAddr masterAddr masterHaAddr"
FIELDS = NAMES.split()
UNKNOWN = [op for op in range(128) if op not in list(Op)]
PACKED = (Op.SEND, Op.PULL, Op.HA_HANDSHAKE, Op.HA_DATA, Op.HA_ACK, Op.RAFT)
JSON_OPS = [op for op in Op if op not in PACKED]


@dataclass(frozen=True)
class Input:
    """The bytes of one connection, piece by piece."""

    what: str
    pieces: tuple[bytes, ...]
    fate: str


class Malice:
    """Endless inputs, drawn from a seed."""

    def __init__(self, seed: int, log_end: Callable[[], int]) -> None:
        self._luck = random.Random(seed)
        self._log_end = log_end

    def draw(self, role: str) -> Input:
        """Return an input for a handler of this role: nameserver, controller, broker or
        replication."""
        kinds = [self.oversized, self.cut, self.unknown, self.stray_reply, self.garbage]
        own = {
            "broker": [self.bad_json, self.absurd, self.absurd, self.absurd, self.message],
            "replication": [self.hello, self.liar, self.liar, self.not_replication],
            "controller": [self.bad_json, self.absurd, self.absurd, self.absurd, self.raft],
            "nameserver": [self.bad_json, self.absurd, self.absurd],
        }
        return self._luck.choice([*kinds, *own[role]])()

    # frames

    def garbage(self) -> Input:
        return Input("garbage", self._pieces(self._bytes(64)), "free")

    def oversized(self) -> Input:
        size = self._luck.choice([0, 1, 4, MAX_FRAME + 1, 2**31, 2**32 - 1])
        return Input("oversized", self._pieces(HEADER.pack(size, Op.PING, 1)), "dropped")

    def cut(self) -> Input:
        whole = frame(self._luck.choice(list(Op)), 1, self._bytes(64))
        return Input("cut", (whole[: self._luck.randrange(len(whole))],), "quiet")

    def unknown(self) -> Input:
        data = frame(self._luck.choice(UNKNOWN), 1, self._bytes(32))
        return Input("unknown op", self._pieces(data), "dropped")

    def stray_reply(self) -> Input:
        op = self._luck.choice(list(Op)) | REPLY
        return Input("stray reply", (frame(op, self._luck.getrandbits(32), b"{}"),), "quiet")

    # JSON

    def bad_json(self) -> Input:
        bodies = (b"", b"{", b"[]", b"1", b"\xff{}", b'{"a":}', b"[" * 5000, b"null")
        body = self._luck.choice(bodies)
        return Input("bad JSON", (frame(self._luck.choice(JSON_OPS), 1, body),), "dropped")

    def absurd(self) -> Input:
        """Fields of the wrong type or size, without a correct name among them."""
        names = self._luck.sample(FIELDS, self._luck.randrange(len(FIELDS)))
        fields = {name: self._luck.choice(ABSURD) for name in names}
        body = json.dumps(fields).encode()
        return Input("absurd fields", (frame(self._luck.choice(JSON_OPS), 1, body),), "free")

    def shaped(self) -> Input:
        """All fields that the handler accepts, each of its type, so that it must process them. Not
        a controller's ReplicaInfo: a broker may stop at a contradictory one."""
        op = self._luck.choice([op for op in JSON_OPS if op != Op.NOTIFY_ROLE])
        shape = {name.rstrip("?"): fits for name, fits in SCHEMAS[op].items()}
        choices = {n: [*filter(fits, ABSURD + SHAPED)] for n, fits in shape.items()}
        fields = {name: self._luck.choice(fitting) for name, fitting in choices.items()}
        return Input("shaped", (frame(op, 1, json.dumps(fields).encode()),), "free")

    # clients

    def message(self) -> Input:
        whole = self._luck.choice(
            [
                SendRequest("t", self._luck.randrange(6), b"k", self._bytes(40)).pack(),
                PullRequest("t", 0, self._number(), self._luck.getrandbits(32), 0).pack(),
            ]
        )
        op = Op.SEND if self._luck.random() < 0.5 else Op.PULL
        return Input("message", (frame(op, 1, self._damaged(whole)),), "free")

    # slaves

    def hello(self) -> Input:
        low, high = sorted(abs(self._number()) % 2**63 for _ in range(2))
        rows = tuple((self._luck.getrandbits(32), self._luck.getrandbits(60)) for _ in range(3))
        shape = LogShape(high, low, EpochTable(rows))
        hello = HandshakeRequest(self._luck.getrandbits(32), 1, 0, shape).pack()
        return Input("hello of no log", (frame(Op.HA_HANDSHAKE, 1, hello),), "dropped")

    def liar(self) -> Input:
        """A correct handshake, then a lie: an ack of what is not there, that goes back, or that
        begins inside a record; or a second handshake."""
        slave, end = self._luck.randrange(1, 9), self._log_end()
        hello = frame(
            Op.HA_HANDSHAKE, 1, HandshakeRequest(slave, 1, 0, LogShape(0, 0, EpochTable())).pack()
        )
        lies: tuple[tuple[bytes, ...], ...] = (
            (pack_ack(end + 1 + self._luck.getrandbits(62)),),
            (pack_ack(end), pack_ack(self._luck.randrange(end))),
            (pack_ack(self._luck.choice([1, 7, end - 1])),),
            (self._bytes(7),),
        )
        if self._luck.random() < 0.2:
            return Input("two handshakes", (hello, hello), "dropped")
        acks = (frame(Op.HA_ACK, 0, body) for body in self._luck.choice(lies))
        return Input("lying slave", (hello, *acks), "dropped")

    def not_replication(self) -> Input:
        op = self._luck.choice([op for op in Op if op != Op.HA_HANDSHAKE])
        return Input("not replication", (frame(op, 1, self._bytes(32)),), "dropped")

    # controllers

    def raft(self) -> Input:
        term = self._luck.choice([2**40, 2**63 - 1, 2**63, 2**64 - 1])
        source = self._luck.choice(["n2", "n3"])
        entries = (LogEntry(term, b"{}"),) * self._luck.randrange(2)
        message: VoteRequest | Append = VoteRequest(
            term=term, source=source, last_index=2**60, last_term=term, pre=False
        )
        if self._luck.random() < 0.5:
            message = Append(
                term=term, source=source, prev_index=2**60, prev_term=term, commit=2**60,
                stamp=0.0, entries=entries,
            )  # fmt: skip
        body = pack_raft(message)
        if self._luck.random() < 0.5:
            body = body[: self._luck.randrange(len(body))]
        return Input("absurd term", (frame(Op.RAFT, 0, body),), "dropped")

    # inside

    def _bytes(self, most: int) -> bytes:
        return self._luck.randbytes(self._luck.randrange(most))

    def _number(self) -> int:
        return self._luck.choice([0, 1, -1, 2**31, 2**62, -(2**63), 2**63 - 1])

    def _damaged(self, whole: bytes) -> bytes:
        match self._luck.randrange(3):
            case 0:
                return whole[: self._luck.randrange(len(whole))]
            case 1:
                at = self._luck.randrange(len(whole))
                return whole[:at] + self._luck.randbytes(1) + whole[at + 1 :]
        return whole

    def _pieces(self, data: bytes) -> tuple[bytes, ...]:
        at = self._luck.randrange(len(data) + 1)
        return tuple(piece for piece in (data[:at], data[at:]) if piece)
