"""Share groups of Kafka: consumers that take records of a partition and acknowledge each by itself.

A consumer joins its group at the group's coordinator, and goes on sending it heartbeats. It
takes records from the leader of a partition, in a session that lasts as long as the connection, and
acknowledges them there. What is not acknowledged while its lock lasts, or when the session ends, is
given to the next that fetches. All of these requests are compact.
"""

import struct
from collections.abc import Callable, Sequence

from clusters.systems.kafka.records import entries_in
from clusters.systems.kafka.wire import (
    NO_TAGS,
    AnswerReader,
    KafkaError,
    array,
    compact_array,
    compact_string,
    string,
)

OF_GROUP = 32  # the kind of a configuration
ACCEPT = 1
JOIN, FIRST = 0, 0  # epochs of a member that joins, and of a session that begins
FROM = "share.auto.offset.reset"
NAMED_NONE = b"\x00"


def heartbeat(group: str, member: str, epoch: int, topic: str) -> bytes:
    topics = compact_array([compact_string(topic)]) if epoch == JOIN else NAMED_NONE
    head = compact_string(group) + compact_string(member) + struct.pack(">i", epoch)
    return head + NAMED_NONE + topics + NO_TAGS


def heartbeat_epoch(found: AnswerReader) -> int:
    """Return the member's epoch. Raises KafkaError."""
    found.i32()
    code = found.i16()
    found.compact_data()
    found.compact_data()
    if code:
        raise KafkaError(code)
    return found.i32()


def share_fetch(
    group: str, member: str, session: int, topic: bytes, partition: int, limit: int, wait_ms: int
) -> bytes:
    """`session`: the number of the request in its session; `topic`: its identifier."""
    head = compact_string(group) + compact_string(member)
    head += struct.pack(">iiiiii", session, wait_ms, 1, 1 << 20, limit, limit)
    one = struct.pack(">i", partition) + compact_array([]) + NO_TAGS
    asked = [topic + compact_array([one]) + NO_TAGS] if session == FIRST else []
    return head + compact_array(asked) + compact_array([]) + NO_TAGS


def acquired(found: AnswerReader) -> list[tuple[int, bytes]]:
    """Return the records that were acquired: offset and value. Raises KafkaError."""
    records: list[tuple[int, bytes]] = []

    def partition() -> int:
        found.i32()
        code = found.i16()
        found.compact_data()
        found.i16()
        found.compact_data()
        found.raw(8)  # the leader
        found.tags()
        batches = found.compact_data()
        found_ranges = found.compact_array(offsets)
        found.tags()
        own = {at for first, last in found_ranges for at in range(first, last + 1)}
        records.extend(
            (e.offset, e.value) for e in entries_in(batches, verify=False) if e.offset in own
        )
        return code

    def offsets() -> tuple[int, int]:
        first, last, _ = found.i64(), found.i64(), found.i16()
        found.tags()
        return first, last

    _raise_first(found, partition)
    return records


def acknowledge(
    group: str, member: str, session: int, topic: bytes, partition: int, offsets: Sequence[int]
) -> bytes:
    batches = (
        struct.pack(">qq", at, at) + compact_array([bytes([ACCEPT])]) + NO_TAGS for at in offsets
    )
    one = struct.pack(">i", partition) + compact_array(batches) + NO_TAGS
    head = compact_string(group) + compact_string(member) + struct.pack(">i", session)
    return head + compact_array([topic + compact_array([one]) + NO_TAGS]) + NO_TAGS


def acknowledged(found: AnswerReader) -> None:
    """Raises KafkaError."""

    def partition() -> int:
        found.i32()
        code = found.i16()
        found.compact_data()
        found.raw(8)
        found.tags()
        return code

    _raise_first(found, partition, with_lock=False)


def _raise_first(found: AnswerReader, partition: Callable[[], int], with_lock: bool = True) -> None:
    found.i32()
    code = found.i16()
    found.compact_data()
    if code:
        raise KafkaError(code)
    if with_lock:
        found.i32()

    def topic() -> list[int]:
        found.raw(16)
        codes = found.compact_array(partition)
        found.tags()
        return codes

    for codes in found.compact_array(topic):
        for each in codes:
            if each:
                raise KafkaError(each)


# where a group without a position begins: at the end of a partition by default


def begin_at_first(group: str) -> bytes:
    one = string(FROM) + b"\x00" + string("earliest")
    resource = bytes([OF_GROUP]) + string(group) + array([one])
    return array([resource]) + b"\x00"


def altered(found: AnswerReader) -> None:
    """Raises KafkaError."""
    found.i32()

    def resource() -> int:
        code = found.i16()
        found.string()
        found.i8()
        found.string()
        return code

    if code := found.array(resource)[0]:
        raise KafkaError(code)


def describe_begin(group: str) -> bytes:
    return array([bytes([OF_GROUP]) + string(group) + array([string(FROM)])]) + b"\x00"


def begins_at_first(found: AnswerReader) -> bool:
    """Return whether a broker knows by now that a group begins with the first record."""
    found.i32()

    def config() -> str:
        found.string()
        value = found.string()
        found.raw(3)
        found.array(lambda: (found.string(), found.string(), found.i8()))
        return value

    def resource() -> list[str]:
        code = found.i16()
        found.string()
        found.i8()
        found.string()
        if code:
            raise KafkaError(code)
        return found.array(config)

    return found.array(resource) == [["earliest"]]
