"""What travels between processes: frames, operations, statuses, and the packed bodies.

    frame     u32 length of the rest | u8 op | u32 request id | body
    reply     the same, with REPLY set in op and the request's id
    one-way   request id 0; nobody answers

Big-endian. Hot paths (SEND, PULL, HA_*) are packed by `struct`; every other body is a JSON object,
and every JSON reply carries `code` (a `Status`) and, when that is not SUCCESS, `remark`. A frame
longer than MAX_FRAME, an unknown op or a body that does not parse ends the connection with a
logged reason: the peer is broken or not one of us.

Codes and their meanings are RocketMQ's (ResponseCode, ControllerResponseCode), so that an
operator of the original can read them.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

MAX_FRAME = 16 * 1024 * 1024
HEADER = struct.Struct(">IBI")
REPLY = 0x80

Json = dict[str, Any]

# What a body raises that is taken apart and does not parse, or whose fields are missing, of another
# type, or absurd (1e999 is no integer, and a list in a list in a list has an end).
NONSENSE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
T = TypeVar("T")


class Senseless(ValueError):
    """A peer sent what nobody of ours sends. It is refused; the node is sound."""


def understood(read: Callable[[bytes], T], body: bytes) -> T:
    """What a body says. Senseless: nothing."""
    try:
        return read(body)
    except NONSENSE as e:
        raise Senseless(f"{type(e).__name__}: {e}") from e


class Op(IntEnum):
    """Operations by who asks whom. Fields of JSON bodies are listed as `request -> reply`."""

    # client -> broker
    SEND = 1  # packed: Send -> Sent
    PULL = 2  # packed: Pull -> Pulled
    QUEUE_RANGE = 3  # topic, queueId -> minOffset, maxOffset
    OFFSET_QUERY = 4  # group, topic, queueId -> offset (-1 when the group has none)
    OFFSET_COMMIT = 5  # group, topic, queueId, offset -> (nothing)
    TOPIC_CREATE = 6  # topic, queues (of this broker set) -> (nothing)
    TOPIC_DELETE = 7  # topic -> (nothing)
    GROUP_HEARTBEAT = 8  # group, client, topics -> members: their names, in order
    OFFSET_RESET = 9  # group, topic, queueId, offset -> (nothing)
    LOCK_QUEUE = 10  # group, client, topic, queueId -> locked
    UNLOCK_QUEUE = 11  # group, client, topic, queueId -> (nothing); also master -> slave
    METADATA = 12  # (nothing) -> version, topics, groups, offsets
    LOCK_PEER = 13  # master -> slave, as LOCK_QUEUE: one vote of a majority
    GROUP_LEAVE = 14  # group, client -> (nothing)
    # slave -> master, and the stream back (packed, see ha_protocol.py)
    HA_HANDSHAKE = 16
    HA_DATA = 17  # one-way
    HA_ACK = 18  # one-way
    # slave -> master, metadata that the log does not carry
    METADATA_SYNC = 19  # brokerId, addr, version: [epoch, counter], waitMs -> version, and changes
    #                     since base, or all: topics, groups, offsets: [[group, topic, queueId,
    #                     offset]]
    # client -> broker
    QUERY_BY_KEY = 27  # topic, key (hex), maxNum -> messages: [{queueId, queueOffset,
    #                    physicalOffset, epoch, body (hex)}], the oldest first
    # broker -> nameserver
    REGISTER_BROKER = 32  # cluster, brokerName, brokerId, addr, haAddr, stateVersion, timeoutMs,
    #                       topics: {name: queues}, life, beat -> masterAddr, masterHaAddr
    # anyone -> nameserver
    ROUTE = 34  # topic (null: all), topicsAsOf, part (from 0, of all topics) ->
    #             topics: {name: [{brokerName, queues}]}, parts (how many),
    #             brokers: {brokerName: {cluster, addrs: {brokerId: addr}, stateVersion}},
    #             topicsAsOf; no topics for who asks for all and has them as of now
    MEMBER_GROUP = 35  # brokerName -> members: {brokerId: addr}
    # nameserver -> broker
    NOTIFY_MIN_BROKER_ID = 36  # one-way: brokerName, minBrokerId, minBrokerAddr, stateVersion
    # broker -> nameserver, between registrations
    NAMESERVER_HEARTBEAT = 37  # brokerName, brokerId, addr, life, beat -> known
    # broker and operator -> controller
    CONTROLLER_METADATA = 48  # -> leaderId, leaderAddr (null: unknown), isLeader,
    #                           peers: {id: addr}, learners: {id: addr}
    NEXT_BROKER_ID = 49  # cluster, brokerName -> brokerId
    APPLY_BROKER_ID = 50  # cluster, brokerName, brokerId, addr, haAddr, checkCode -> (nothing)
    REGISTER_TO_CONTROLLER = 51  # cluster, brokerName, brokerId, addr, haAddr, checkCode
    #                              -> ReplicaInfo; said by a process that starts: a master that
    #                              does is replaced
    BROKER_HEARTBEAT = 52  # cluster, brokerName, brokerId, addr, timeoutMs, epoch, maxOffset,
    #                        confirmOffset, priority, zone, resources, learner, life, beat
    #                        -> controllers: [addr], asOf: index in their log
    ALTER_SYNC_STATE_SET = 53  # brokerName, masterId, masterEpoch, set, setEpoch -> set, setEpoch
    ELECT_MASTER = 54  # brokerName, brokerId, designate, masterEpoch (if only instead of it)
    #                    -> ReplicaInfo
    REPLICA_INFO = 55  # brokerName -> ReplicaInfo
    SYNC_STATE_DATA = 56  # brokerNames -> sets: {brokerName: ReplicaInfo + each member's log}
    CLEAN_BROKER_DATA = 57  # brokerName, brokerIds, cleanLiving -> (nothing)
    # controller -> broker
    NOTIFY_ROLE = 58  # one-way: ReplicaInfo
    # operator -> controller
    DRILL = 60  # brokerName, to (null: whoever is best) -> ReplicaInfo
    # anyone -> controller
    KV_GET = 61  # namespace, key -> value (null: none)
    KV_PUT = 62  # namespace, key, value (null: none any more) -> (nothing)
    KV_CAS = 63  # namespace, key, expected, value -> value, the one that is there now
    # controller <-> controller
    RAFT = 64  # one-way, packed by raft
    # operator -> controller
    CHANGE_CONTROLLERS = 65  # add: {id: addr} or remove: id -> voters, learners: {id: addr}
    # controller -> broker
    HAND_OVER = 70  # masterEpoch, to, timeoutMs -> maxOffset; sends are held from then on
    RESUME = 71  # one-way: masterEpoch; the handover came to nothing
    # master -> slave
    METADATA_NEWS = 72  # -> (nothing); METADATA_SYNC is due at once
    # anyone -> any node
    DESCRIBE = 80  # -> see each node's describe()
    PING = 81  # -> (nothing)
    # operator -> any node
    GET_CONFIG = 82  # -> config: {key: value}, live: the keys that may change
    UPDATE_CONFIG = 83  # values: {key: value} -> as GET_CONFIG


class Status(IntEnum):
    """The answer's meaning. What a producer may conclude from each is in client/outcomes.py."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_OFFSET_MOVED = 21
    IN_SYNC_REPLICAS_NOT_ENOUGH = (
        22  # RocketMQ answers SYSTEM_ERROR with a remark; ours is told apart
    )
    FENCED_MASTER_EPOCH = 2000
    FENCED_SYNC_STATE_SET_EPOCH = 2001
    INVALID_MASTER = 2002
    INVALID_REPLICAS = 2003
    MASTER_NOT_AVAILABLE = 2004
    INVALID_REQUEST = 2005
    BROKER_NOT_ALIVE = 2006
    NOT_LEADER = 2007
    BROKER_METADATA_NOT_EXIST = 2008
    INVALID_CLEAN_BROKER_METADATA = 2009
    BROKER_NEED_TO_BE_REGISTERED = 2010
    MASTER_STILL_EXIST = 2011
    ELECT_MASTER_FAILED = 2012
    ALTER_SYNC_STATE_SET_FAILED = 2013
    BROKER_ID_INVALID = 2014
    KV_VALUE_DIFFERS = 2100  # ours


@dataclass(frozen=True)
class Send:
    """A message for a queue. `key` is the sharding key, kept beside the body; both opaque."""

    topic: str
    queue: int
    key: bytes
    body: bytes

    _HEAD = struct.Struct(">BHH")

    def pack(self) -> bytes:
        topic = self.topic.encode()
        return b"".join(
            (self._HEAD.pack(len(topic), self.queue, len(self.key)), topic, self.key, self.body)
        )

    @classmethod
    def unpack(cls, body: bytes) -> "Send":
        topic_size, queue, key_size = cls._HEAD.unpack_from(body)
        start = cls._HEAD.size
        key_at = start + topic_size
        body_at = key_at + key_size
        if body_at > len(body):
            raise ValueError("a SEND body ends inside its key")
        return cls(body[start:key_at].decode(), queue, body[key_at:body_at], body[body_at:])


@dataclass(frozen=True)
class Sent:
    """What became of a SEND. Offsets are -1 where nothing was appended."""

    status: Status
    queue_offset: int = -1
    physical_offset: int = -1
    epoch: int = -1
    remark: str = ""

    _BODY = struct.Struct(">Bqqi")

    def pack(self) -> bytes:
        head = self._BODY.pack(self.status, self.queue_offset, self.physical_offset, self.epoch)
        return head + self.remark.encode()

    @classmethod
    def unpack(cls, body: bytes) -> "Sent":
        status, queue_offset, physical_offset, epoch = cls._BODY.unpack_from(body)
        remark = bytes(body[cls._BODY.size :]).decode()
        return cls(Status(status), queue_offset, physical_offset, epoch, remark)


@dataclass(frozen=True)
class Pull:
    """Messages of a queue from `offset` on; the broker may wait `wait_ms` for the first."""

    topic: str
    queue: int
    offset: int
    max_count: int
    wait_ms: int
    times: bool = False  # store times are wanted as well; a broker of an older edition has none

    _HEAD = struct.Struct(">BHqII")

    def pack(self) -> bytes:
        topic = self.topic.encode()
        head = (len(topic), self.queue, self.offset, self.max_count, self.wait_ms)
        return self._HEAD.pack(*head) + topic + b"\1" * self.times

    @classmethod
    def unpack(cls, body: bytes) -> "Pull":
        topic_size, queue, offset, max_count, wait_ms = cls._HEAD.unpack_from(body)
        end = cls._HEAD.size + topic_size
        topic = bytes(body[cls._HEAD.size : end]).decode()
        return cls(topic, queue, offset, max_count, wait_ms, times=len(body) > end)


@dataclass(frozen=True)
class Message:
    """A message as a consumer sees it. `crc` is the CRC-32 of key and body in the log's record;
    `stored_ms` its store time, -1 when the consumer did not ask for it."""

    queue_offset: int
    epoch: int
    crc: int
    key: bytes
    body: bytes
    stored_ms: int = -1


@dataclass(frozen=True)
class Pulled:
    """An answer to PULL: SUCCESS with messages, PULL_NOT_FOUND, or PULL_OFFSET_MOVED.

    `suggested`: the broker id to pull from next; 0: the master, and not sent. The first edition
    ignores it. `times`: the store times of the messages follow, because the pull asked for them.
    """

    status: Status
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()
    suggested: int = 0
    times: bool = False

    _HEAD = struct.Struct(">BqqqI")
    _ITEM = struct.Struct(">qiIHI")
    _SUGGESTED = struct.Struct(">I")

    def pack(self) -> bytes:
        offsets = (self.next_offset, self.min_offset, self.max_offset)
        parts = [self._HEAD.pack(self.status, *offsets, len(self.messages))]
        for m in self.messages:
            parts += (
                self._ITEM.pack(m.queue_offset, m.epoch, m.crc, len(m.key), len(m.body)),
                m.key,
                m.body,
            )
        if self.suggested or self.times:
            parts.append(self._SUGGESTED.pack(self.suggested))
        if self.times:
            parts.append(struct.pack(f">{len(self.messages)}q", *self._stored_ms()))
        return b"".join(parts)

    def _stored_ms(self) -> list[int]:
        return [m.stored_ms for m in self.messages]

    @classmethod
    def unpack(cls, body: bytes) -> "Pulled":
        status, next_offset, low, high, count = cls._HEAD.unpack_from(body)
        at = cls._HEAD.size
        found = []
        for _ in range(count):
            queue_offset, epoch, crc, key_size, body_size = cls._ITEM.unpack_from(body, at)
            at += cls._ITEM.size
            key_end, body_end = at + key_size, at + key_size + body_size
            if body_end > len(body):
                raise ValueError("a PULL reply ends inside a message")
            key, content = bytes(body[at:key_end]), bytes(body[key_end:body_end])
            found.append((queue_offset, epoch, crc, key, content))
            at = body_end
        (suggested,) = cls._SUGGESTED.unpack_from(body, at) if at < len(body) else (0,)
        at += cls._SUGGESTED.size
        timed = at < len(body)
        times = struct.unpack(f">{count}q", body[at:]) if timed else (-1,) * count
        messages = tuple(Message(*m, ms) for m, ms in zip(found, times, strict=True))
        return cls(Status(status), next_offset, low, high, messages, suggested, timed)


def frame(op: int, request: int, body: bytes = b"") -> bytes:
    """One frame, ready to write."""
    return HEADER.pack(len(body) + 5, op, request) + body


def to_json(fields: Json) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def nested(value: Any, levels: int) -> bool:
    """Whether JSON has more levels of lists and objects than that."""
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and (levels == 0 or any(nested(v, levels - 1) for v in value))


def from_json(body: bytes) -> Json:
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError("a JSON body must be an object")
    return fields
