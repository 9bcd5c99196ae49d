"""The wire format: frames, operations, statuses, and the packed bodies.

    frame     u32 length of the rest | u8 op | u32 request id | body
    reply     the same, with REPLY set in op and the request's id
    one-way   request id 0; no reply

All numbers are big-endian. `struct` packs the bodies of hot paths (SEND, PULL, HA_*, RAFT); every
other body is a JSON object, and every JSON reply has `code` (a `Status`) and, unless that is
SUCCESS, `remark`. A frame longer than MAX_FRAME, an unknown operation or a body that does not parse
ends the connection with a logged reason: the peer is broken or not a Flotilla node.

Codes and their meanings are those of RocketMQ's ResponseCode and ControllerResponseCode.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any, NamedTuple, TypeVar

MAX_FRAME = 16 * 1024 * 1024
HEADER = struct.Struct(">IBI")
REPLY = 0x80

Json = dict[str, Any]
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder().decode

# Raised by a body that does not parse, or whose fields are missing, of another type, or absurd
# (1e999 as an integer, lists nested too deeply).
DECODE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
T = TypeVar("T")


class ProtocolError(ValueError):
    """A peer sent what no Flotilla node sends. The peer is refused; this node continues."""


def decode(read: Callable[[bytes], T], body: bytes) -> T:
    """Parse a body. Raises ProtocolError."""
    try:
        return read(body)
    except DECODE_ERRORS as e:
        raise ProtocolError(f"{type(e).__name__}: {e}") from e


@unique
class Op(IntEnum):
    """Operations by sender and receiver. Fields of JSON bodies are listed as `request -> reply`."""

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
    LOCK_QUEUE = 10  # group, client, topic, queueId, askedAt (µs, client's clock) -> locked
    UNLOCK_QUEUE = 11  # as LOCK_QUEUE -> (nothing); also master -> slave
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
    #                       topics: {name: queues}, life, beat, acts, zone (both optional)
    #                       -> masterAddr, masterHaAddr
    # anyone -> nameserver
    ROUTE = 34  # topic (null: all), topicsAsOf, part (from 0, of all topics),
    #             zoneMode, zoneName (both optional: only sets near the client) ->
    #             topics: {name: [{brokerName, queues}]}, parts (how many),
    #             brokers: {brokerName: {cluster, addrs: {brokerId: addr}, stateVersion,
    #             readOnly (optional)}},
    #             topicsAsOf; no topics if the request's topicsAsOf is current;
    #             leftOut: [brokerName] in other zones, if zoneMode
    MEMBER_GROUP = 35  # brokerName -> members: {brokerId: addr}, masterHaAddr, stateVersion: newest
    # nameserver -> broker
    NOTIFY_MIN_BROKER_ID = 36  # one-way: brokerName, minBrokerId, minBrokerAddr, stateVersion
    # broker -> nameserver, between registrations
    NAMESERVER_HEARTBEAT = 37  # brokerName, brokerId, addr, life, beat -> known
    # broker -> broker of its set, where brokers elect their master (see replication/ballot.py)
    VOTE = 38  # brokerName, from, term, lastEpoch, maxOffset, pre -> term, granted
    BEAT = 39  # brokerName, from, haAddr, term, commit -> term
    # operator -> broker, see conversion/handler.py
    CONVERT = 42  # step: status, prepare, commit or abort; its fields -> as status
    # broker and operator -> controller
    CONTROLLER_METADATA = 48  # -> leaderId, leaderAddr (null: unknown), isLeader,
    #                           peers: {id: addr}, learners: {id: addr}
    NEXT_BROKER_ID = 49  # cluster, brokerName -> brokerId
    APPLY_BROKER_ID = 50  # cluster, brokerName, brokerId, addr, haAddr, checkCode -> (nothing)
    REGISTER_TO_CONTROLLER = 51  # cluster, brokerName, brokerId, addr, haAddr, checkCode
    #                              -> ReplicaInfo; sent by a process that starts: a master that
    #                              sends it is replaced
    BROKER_HEARTBEAT = 52  # cluster, brokerName, brokerId, addr, timeoutMs, epoch, maxOffset,
    #                        confirmOffset, priority, zone, resources, learner, life, beat,
    #                        rack (optional)
    #                        -> controllers: [addr], asOf: index in their log
    ALTER_SYNC_STATE_SET = 53  # brokerName, masterId, masterEpoch, set, setEpoch -> set, setEpoch
    ELECT_MASTER = 54  # brokerName, brokerId, designate, masterEpoch (optional: only instead of it)
    #                    -> ReplicaInfo
    REPLICA_INFO = 55  # brokerName -> ReplicaInfo
    SYNC_STATE_DATA = 56  # brokerNames -> sets: {brokerName: ReplicaInfo + each member's log}
    CLEAN_BROKER_DATA = 57  # brokerName, brokerIds, cleanLiving -> (nothing)
    # controller -> broker
    NOTIFY_ROLE = 58  # one-way: ReplicaInfo
    # operator -> controller
    DRILL = 60  # brokerName, to (null: the best one) -> ReplicaInfo
    DRILL_ZONE = 59  # zone -> masters: [ReplicaInfo] that have moved, left: {brokerName: why}
    RETURN_ZONE = 69  # zone -> (nothing)
    # anyone -> controller
    KV_GET = 61  # namespace, key -> value (null: none)
    KV_PUT = 62  # namespace, key, value (null: delete) -> (nothing)
    KV_CAS = 63  # namespace, key, expected, value -> value, the present one
    # controller <-> controller
    RAFT = 64  # one-way, packed by raft
    # operator -> controller
    CHANGE_CONTROLLERS = 65  # add: {id: addr} or remove: id -> voters, learners: {id: addr}
    CONVERT_SET = 75  # brokerName, cluster, mode, generation, attempt, master, epoch
    #                   -> masterEpoch; see conversion/coordinator.py
    # operator -> container
    ADD_INNER = 66  # config: {key: value} -> brokerName, brokerId, addr
    REMOVE_INNER = 67  # cluster, brokerName, brokerId -> (nothing)
    LIST_INNER = 68  # -> brokers: [{cluster, brokerName, brokerId, addr, haAddr, storePath,
    # serving}]
    # controller -> broker
    HAND_OVER = 70  # masterEpoch, to, timeoutMs -> maxOffset; sends are held from then on
    RESUME = 71  # one-way: masterEpoch; the handover is cancelled
    # master -> slave
    METADATA_NEWS = 72  # -> (nothing); METADATA_SYNC is due at once
    # master that starts -> slave
    REVERSE_SYNC = 73  # brokerName -> as METADATA, and acted: [[group, topic, queueId, offset]]
    # anyone -> any node
    DESCRIBE = 80  # -> see role.describe() and each node's _describe()
    PING = 81  # -> (nothing)
    # operator -> any node
    GET_CONFIG = 82  # -> config: {key: value}, live: the keys that may change
    UPDATE_CONFIG = 83  # values: {key: value} -> as GET_CONFIG


class Status(IntEnum):
    """The status of an answer. client/outcomes.py has what a producer may conclude from each."""

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
    IN_SYNC_REPLICAS_NOT_ENOUGH = 22  # RocketMQ answers SYSTEM_ERROR with a remark
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


# Packed bodies. A NamedTuple's leading fields are the fields of its struct, in the same order.

_SEND_REQUEST = struct.Struct(">BHH")  # topic size, queue, key size; then topic, key, body
_SEND_REPLY = struct.Struct(">Bqqi")  # status, queue offset, physical offset, epoch; then remark
_PULL_REQUEST = struct.Struct(">BHqII")  # topic size, queue, offset, max count, wait; then topic
_PULL_REPLY = struct.Struct(">BqqqI")  # status, next, min and max offset, count; then messages
_MESSAGE = struct.Struct(">qiIHI")  # queue offset, epoch, CRC, key size, body size; then key, body
_SUGGESTED = struct.Struct(">I")  # the broker to pull from next


@dataclass(frozen=True)
class SendRequest:
    """A message for a queue. `key` is the sharding key, kept beside the body; both opaque."""

    topic: str
    queue: int
    key: bytes
    body: bytes

    def pack(self) -> bytes:
        topic = self.topic.encode()
        head = _SEND_REQUEST.pack(len(topic), self.queue, len(self.key))
        return b"".join((head, topic, self.key, self.body))

    @classmethod
    def unpack(cls, body: bytes) -> "SendRequest":
        topic_size, queue, key_size = _SEND_REQUEST.unpack_from(body)
        topic_at = _SEND_REQUEST.size
        key_at = topic_at + topic_size
        body_at = key_at + key_size
        if body_at > len(body):
            raise ValueError("a SEND body ends inside its key")
        return cls(body[topic_at:key_at].decode(), queue, body[key_at:body_at], body[body_at:])


class SendReply(NamedTuple):
    """The answer to SEND. Offsets are -1 if nothing was appended."""

    status: Status
    queue_offset: int = -1
    physical_offset: int = -1
    epoch: int = -1
    remark: str = ""

    def pack(self) -> bytes:
        *numbers, remark = self
        return _SEND_REPLY.pack(*numbers) + remark.encode()

    @classmethod
    def unpack(cls, body: bytes) -> "SendReply":
        status, *offsets = _SEND_REPLY.unpack_from(body)
        remark = bytes(body[_SEND_REPLY.size :]).decode()
        return cls._make((Status(status), *offsets, remark))


class PullRequest(NamedTuple):
    """Asks for messages of a queue from `offset` on; the broker waits up to `wait_ms` for one.

    `times`: asks for store times, too; brokers of the first edition ignore it.
    """

    topic: str
    queue: int
    offset: int
    max_count: int
    wait_ms: int
    times: bool = False

    def pack(self) -> bytes:
        _, *numbers, times = self
        topic = self.topic.encode()
        return _PULL_REQUEST.pack(len(topic), *numbers) + topic + b"\1" * times

    @classmethod
    def unpack(cls, body: bytes) -> "PullRequest":
        topic_size, *numbers = _PULL_REQUEST.unpack_from(body)
        end = _PULL_REQUEST.size + topic_size
        topic = bytes(body[_PULL_REQUEST.size : end]).decode()
        return cls._make((topic, *numbers, len(body) > end))


class Message(NamedTuple):
    """A message as a consumer sees it. `crc` is the CRC-32 of key and body in the log's record;
    `stored_ms` its store time, -1 when the consumer did not ask for it."""

    queue_offset: int
    epoch: int
    crc: int
    key: bytes
    body: bytes
    stored_ms: int = -1


class PullReply(NamedTuple):
    """The answer to PULL: SUCCESS with messages, PULL_NOT_FOUND, or PULL_OFFSET_MOVED.

    `suggested`: the broker id to pull from next; 0 means the master and is not sent. Clients of the
    first edition ignore it. `times`: the messages' store times follow, as the pull asked for.
    """

    status: Status
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()
    suggested: int = 0
    times: bool = False

    def pack(self) -> bytes:
        *numbers, messages, suggested, times = self
        parts = [_PULL_REPLY.pack(*numbers, len(messages))]
        for m in messages:
            parts += (
                _MESSAGE.pack(m.queue_offset, m.epoch, m.crc, len(m.key), len(m.body)),
                m.key,
                m.body,
            )
        if suggested or times:
            parts.append(_SUGGESTED.pack(suggested))
        if times:
            parts.append(struct.pack(f">{len(messages)}q", *(m.stored_ms for m in messages)))
        return b"".join(parts)

    @classmethod
    def unpack(cls, body: bytes) -> "PullReply":
        status, *offsets, count = _PULL_REPLY.unpack_from(body)
        at = _PULL_REPLY.size
        found = []
        for _ in range(count):
            *numbers, key_size, body_size = _MESSAGE.unpack_from(body, at)
            at += _MESSAGE.size
            key_end, body_end = at + key_size, at + key_size + body_size
            if body_end > len(body):
                raise ValueError("a PULL reply ends inside a message")
            found.append((*numbers, bytes(body[at:key_end]), bytes(body[key_end:body_end])))
            at = body_end
        (suggested,) = _SUGGESTED.unpack_from(body, at) if at < len(body) else (0,)
        at += _SUGGESTED.size
        timed = at < len(body)
        times = struct.unpack(f">{count}q", body[at:]) if timed else (-1,) * count
        messages = tuple(Message._make((*m, ms)) for m, ms in zip(found, times, strict=True))
        return cls._make((Status(status), *offsets, messages, suggested, timed))


def frame(op: int, request: int, body: bytes = b"") -> bytes:
    """Return a frame."""
    return HEADER.pack(len(body) + 5, op, request) + body


def to_json(fields: Json) -> bytes:
    return _to_json(fields).encode()


def nested(value: Any, levels: int) -> bool:
    """Return whether a JSON value has more levels of lists and objects than `levels`."""
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and (levels == 0 or any(nested(v, levels - 1) for v in value))


def from_json(body: bytes) -> Json:
    fields = _from_json(body.decode())
    if not isinstance(fields, dict):
        raise ValueError("a JSON body must be an object")
    return fields
