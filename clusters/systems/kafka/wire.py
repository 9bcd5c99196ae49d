"""Kafka's protocol: frames of requests and answers, as values.

A frame is an i32 of its length, then a header: i16 kind of request, i16 version of it, i32 number,
client. The answer has the number of its request. From some version of each kind on, strings and
lists have their length plus one as an unsigned varint ("compact"), and each structure ends with
fields that may be skipped ("tagged"). Versions here are those that Kafka 4.0 to 4.3 have.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from clusters.systems.kafka.records import read_unsigned_varint, unsigned_varint

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, CREATE_TOPICS = 8, 9, 10, 19
INIT_PRODUCER, ADD_PARTITIONS, END_TRANSACTION = 22, 24, 26
DESCRIBE_CONFIGS, CREATE_PARTITIONS, ELECT_LEADERS, ALTER_CONFIGS = 32, 37, 43, 44
SHARE_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE = 76, 78, 79
VERSIONS: Mapping[int, int] = {
    PRODUCE: 7,
    FETCH: 11,
    LIST_OFFSETS: 5,
    METADATA: 12,
    OFFSET_COMMIT: 7,
    OFFSET_FETCH: 5,
    FIND_COORDINATOR: 2,
    CREATE_TOPICS: 4,
    INIT_PRODUCER: 1,
    ADD_PARTITIONS: 2,
    END_TRANSACTION: 2,
    DESCRIBE_CONFIGS: 1,
    CREATE_PARTITIONS: 1,
    ELECT_LEADERS: 1,
    ALTER_CONFIGS: 0,
    SHARE_HEARTBEAT: 1,
    SHARE_FETCH: 1,
    SHARE_ACKNOWLEDGE: 1,
}
FLEXIBLE = frozenset(
    {METADATA, SHARE_HEARTBEAT, SHARE_FETCH, SHARE_ACKNOWLEDGE}
)  # kinds whose version here is compact
QUORUM_FETCH = 13  # the version in which a controller tells the leader of the quorum
QUORUM_TOPIC = (1).to_bytes(16)  # the identifier of the topic of the metadata
CLIENT_ID = "seatrial"
OF_GROUP, OF_TRANSACTIONS = 0, 1  # kinds of coordinators
LATEST = -1  # as a timestamp: the offset behind the last record
NO_TAGS = b"\x00"
T = TypeVar("T")
ERRORS = {
    -1: "UNKNOWN_SERVER_ERROR",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    5: "LEADER_NOT_AVAILABLE",
    6: "NOT_LEADER_OR_FOLLOWER",
    7: "REQUEST_TIMED_OUT",
    9: "REPLICA_NOT_AVAILABLE",
    10: "MESSAGE_TOO_LARGE",
    13: "NETWORK_EXCEPTION",
    14: "COORDINATOR_LOAD_IN_PROGRESS",
    15: "COORDINATOR_NOT_AVAILABLE",
    16: "NOT_COORDINATOR",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    19: "NOT_ENOUGH_REPLICAS",
    20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    21: "INVALID_REQUIRED_ACKS",
    25: "UNKNOWN_MEMBER_ID",
    29: "TOPIC_AUTHORIZATION_FAILED",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    41: "NOT_CONTROLLER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    51: "CONCURRENT_TRANSACTIONS",
    56: "KAFKA_STORAGE_ERROR",
    74: "FENCED_LEADER_EPOCH",
    78: "OFFSET_NOT_AVAILABLE",
    87: "INVALID_RECORD",
    90: "PRODUCER_FENCED",
    110: "FENCED_MEMBER_EPOCH",
    121: "INVALID_RECORD_STATE",
    122: "SHARE_SESSION_NOT_FOUND",
    123: "INVALID_SHARE_SESSION_EPOCH",
}


class KafkaError(Exception):
    """An error code of a broker. `appended`: it comes with the offset of the record."""

    def __init__(self, code: int, appended: bool = False) -> None:
        super().__init__(f"{ERRORS.get(code, 'error')} ({code}{', appended' if appended else ''})")
        self.code, self.appended = code, appended


class PartitionState(NamedTuple):
    """A partition, as a broker knows it. `leader`: the number of the broker that leads, -1 if there
    is none."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class Metadata(NamedTuple):
    """What a broker knows of the cluster: the addresses of the brokers that are up, by number; the
    partitions, by topic and number, and the topics' identifiers."""

    brokers: Mapping[int, str]
    partitions: Mapping[tuple[str, int], PartitionState]
    topic_ids: Mapping[str, bytes]


class AnswerReader:
    """Reads the fields of an answer in their order."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, form: str) -> int:
        (number,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(number)

    def i8(self) -> int:
        return self._take("b")

    def i16(self) -> int:
        return self._take("h")

    def i32(self) -> int:
        return self._take("i")

    def i64(self) -> int:
        return self._take("q")

    def raw(self, size: int) -> bytes:
        found = self._data[self._at : self._at + max(size, 0)]
        self._at += len(found)
        return found

    def string(self) -> str:
        return self.raw(self.i16()).decode()

    def data(self) -> bytes:
        return self.raw(self.i32())

    def array(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self.i32())]

    def varint(self) -> int:
        number, self._at = read_unsigned_varint(self._data, self._at)
        return number

    def compact_data(self) -> bytes:
        return self.raw(self.varint() - 1)

    def compact_string(self) -> str:
        return self.compact_data().decode()

    def compact_array(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self.varint() - 1)]

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields at the end of a structure, by tag."""
        return {self.varint(): self.raw(self.varint()) for _ in range(self.varint())}


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(data := text.encode())) + data


def array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return struct.pack(">i", len(parts)) + b"".join(parts)


def compact_string(text: str | None) -> bytes:
    return compact_data(None if text is None else text.encode())


def compact_data(data: bytes | None) -> bytes:
    return b"\x00" if data is None else unsigned_varint(len(data) + 1) + data


def compact_array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return unsigned_varint(len(parts) + 1) + b"".join(parts)


def request(kind: int, number: int, body: bytes, version: int | None = None) -> bytes:
    """Return the frame of a request. `version`: one that is compact, instead of VERSIONS'."""
    tags = NO_TAGS if version is not None or kind in FLEXIBLE else b""
    version = VERSIONS[kind] if version is None else version
    head = struct.pack(">hhi", kind, version, number) + string(CLIENT_ID) + tags
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer(kind: int, number: int, frame: bytes, compact: bool = False) -> AnswerReader:
    """Return the answer in a frame without its length. Raises ConnectionError if it is another
    request's."""
    found = AnswerReader(frame)
    if (got := found.i32()) != number:
        raise ConnectionError(f"answer {got} to request {number}")
    if compact or kind in FLEXIBLE:
        found.tags()
    return found


def of_one(topic: str, partition: bytes) -> bytes:
    """Return a list of one topic with a list of one partition."""
    return array([string(topic) + array([partition])])


# ------------------------------------------------------------------------------ requests, answers


def produce(
    topic: str,
    partition: int,
    records: bytes,
    acks: int,
    within_ms: int,
    transaction: str | None = None,
) -> bytes:
    one = struct.pack(">ii", partition, len(records)) + records
    return string(transaction) + struct.pack(">hi", acks, within_ms) + of_one(topic, one)


def produced(found: AnswerReader) -> int:
    """Return the offset of the first record. Raises KafkaError."""

    def partition() -> tuple[int, int]:
        found.i32()
        code, base = found.i16(), found.i64()
        found.raw(16)  # time and begin of the log
        return code, base

    code, base = one_of(found, partition)
    if code:
        raise KafkaError(code, appended=base >= 0)
    return base


def one_of(found: AnswerReader, partition: Callable[[], T]) -> T:
    """Return the only partition of the only topic of an answer."""

    def topic() -> list[T]:
        found.string()
        return found.array(partition)

    return found.array(topic)[0][0]


def fetch(
    topic: str, partition: int, offset: int, max_bytes: int, committed: bool = False
) -> bytes:
    """A fetch of what there is, from a leader in any epoch. `committed`: up to the last stable
    offset, behind which transactions are open, with those that were aborted."""
    one = struct.pack(">iiqqi", partition, -1, offset, -1, max_bytes)
    head = struct.pack(">iiiibii", -1, 0, 0, max_bytes, committed, 0, -1)
    return head + of_one(topic, one) + array([]) + string("")


def fetched(found: AnswerReader) -> tuple[int, bytes]:
    """Return the high watermark, and batches of records. Raises KafkaError."""
    end, _, records = fetched_transactions(found)
    return end, records


def fetched_transactions(found: AnswerReader) -> tuple[int, list[tuple[int, int]], bytes]:
    """Return the high watermark, the aborted transactions, as number of the producer and first
    offset, and batches of records. Raises KafkaError."""
    found.i32()
    code = found.i16()
    found.i32()

    def partition() -> tuple[int, int, list[tuple[int, int]], bytes]:
        found.i32()
        code, end = found.i16(), found.i64()
        found.raw(16)  # last stable offset, begin of the log
        aborted = found.array(lambda: (found.i64(), found.i64()))
        found.i32()
        return code, end, aborted, found.data()

    if code:
        raise KafkaError(code)
    code, end, aborted, records = one_of(found, partition)
    if code:
        raise KafkaError(code)
    return end, aborted, records


def list_offsets(topic: str, partition: int) -> bytes:
    """Ask for the high watermark."""
    return struct.pack(">ib", -1, 0) + of_one(topic, struct.pack(">iiq", partition, -1, LATEST))


def listed_offset(found: AnswerReader) -> int:
    """Return the offset. Raises KafkaError."""
    found.i32()

    def partition() -> tuple[int, int]:
        found.i32()
        code, _, offset = found.i16(), found.i64(), found.i64()
        found.i32()
        return code, offset

    code, offset = one_of(found, partition)
    if code:
        raise KafkaError(code)
    return offset


def metadata(topics: Iterable[str] | None) -> bytes:
    """Ask for some topics; None: for all."""
    wanted = (bytes(16) + compact_string(name) + NO_TAGS for name in topics or ())
    listed = b"\x00" if topics is None else compact_array(wanted)
    return listed + b"\x00\x00" + NO_TAGS


def metadata_in(found: AnswerReader) -> Metadata:
    """Return what a broker knows. Topics of which it knows nothing are left out."""
    found.i32()
    partitions: dict[tuple[str, int], PartitionState] = {}
    topic_ids: dict[str, bytes] = {}

    def broker() -> tuple[int, str]:
        number, host = found.i32(), found.compact_string()
        found.i32()
        found.compact_data()
        found.tags()
        return number, host

    def partition() -> tuple[int, PartitionState]:
        found.i16()
        number, leader, epoch = found.i32(), found.i32(), found.i32()
        replicas, in_sync, _ = (tuple(found.compact_array(found.i32)) for _ in range(3))
        found.tags()
        return number, PartitionState(leader, epoch, replicas, in_sync)

    def topic() -> None:
        code, name, identifier = found.i16(), found.compact_string(), found.raw(16)
        found.i8()
        states = found.compact_array(partition)
        found.i32()
        found.tags()
        if not code:
            topic_ids[name] = identifier
            partitions.update({(name, number): state for number, state in states})

    brokers = dict(found.compact_array(broker))
    found.compact_data()
    found.i32()
    found.compact_array(topic)
    return Metadata(brokers, partitions, topic_ids)


def create_topic(
    topic: str, partitions: int, replicas: int, config: Mapping[str, str], within_ms: int
) -> bytes:
    pairs = array(string(key) + string(value) for key, value in config.items())
    one = string(topic) + struct.pack(">ih", partitions, replicas) + array([]) + pairs
    return array([one]) + struct.pack(">ib", within_ms, 0)


def created_topic(found: AnswerReader) -> None:
    """Raises KafkaError."""
    found.i32()

    def topic() -> int:
        found.string()
        code = found.i16()
        found.string()
        return code

    if code := found.array(topic)[0]:
        raise KafkaError(code)


def find_coordinator(name: str, kind: int = OF_GROUP) -> bytes:
    return string(name) + struct.pack(">b", kind)


def coordinator(found: AnswerReader) -> str:
    """Return the address of a coordinator. Raises KafkaError."""
    found.i32()
    code = found.i16()
    found.string()
    found.i32()
    if code:
        raise KafkaError(code)
    return found.string()


def commit_offset(group: str, topic: str, partition: int, offset: int) -> bytes:
    """A commit of a consumer that has assigned the partition to itself."""
    one = struct.pack(">iqi", partition, offset, -1) + string("")
    return string(group) + struct.pack(">i", -1) + string("") + string(None) + of_one(topic, one)


def committed_offset(found: AnswerReader) -> None:
    """Raises KafkaError."""
    found.i32()

    def partition() -> int:
        found.i32()
        return found.i16()

    if code := one_of(found, partition):
        raise KafkaError(code)


def fetch_offset(group: str, topic: str, partition: int) -> bytes:
    return string(group) + of_one(topic, struct.pack(">i", partition))


def fetched_offset(found: AnswerReader) -> int:
    """Return the offset that a group has committed, -1 if none. Raises KafkaError."""
    found.i32()

    def partition() -> tuple[int, int]:
        found.i32()
        offset = found.i64()
        found.i32()
        found.string()
        return found.i16(), offset

    topics: list[list[tuple[int, int]]] = []

    def topic() -> None:
        found.string()
        topics.append(found.array(partition))

    found.array(topic)
    if code := found.i16():
        raise KafkaError(code)
    code, offset = topics[0][0]
    if code:
        raise KafkaError(code)
    return offset


def fetch_quorum() -> bytes:
    """A fetch of the metadata's log, which a controller answers with the leader of the quorum."""
    one = struct.pack(">iiqiqi", 0, 1, 0, 0, -1, 1) + NO_TAGS
    topic = QUORUM_TOPIC + compact_array([one]) + NO_TAGS
    head = struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1)
    return head + compact_array([topic]) + compact_array([]) + compact_string("") + NO_TAGS


def quorum_leader(found: AnswerReader) -> tuple[int, int]:
    """Return the number of the controller that leads, -1 if there is none, and its epoch."""
    found.i32()
    code = found.i16()
    found.i32()

    def partition() -> bytes:
        found.i32()
        found.i16()
        found.raw(24)
        found.compact_array(lambda: (found.raw(16), found.tags()))
        found.i32()
        found.compact_data()
        return found.tags().get(1, b"")

    def topic() -> list[bytes]:
        found.raw(16)
        partitions = found.compact_array(partition)
        found.tags()
        return partitions

    if code:
        raise KafkaError(code)
    current = AnswerReader(found.compact_array(topic)[0][0])
    return current.i32(), current.i32()
