"""Limits of topics and groups: names, numbers of queues and topics. Pure.

They apply to requests while the cluster runs and to the topics of a configuration.
"""

from collections.abc import Sequence

MAX_QUEUES = 10_000
MAX_TOPIC_BYTES = 127  # bytes; RocketMQ's limit
SYSTEM_PREFIX = "%"  # of the broker's own topics
MAX_GROUP_BYTES = 255  # bytes; RocketMQ's limit
MAX_GROUP_TOPICS = 1000  # of a group


def check_topic(name: str, queues: int) -> str:
    """Return what is wrong with a topic, "" if it is valid."""
    if not 0 < len(name.encode()) <= MAX_TOPIC_BYTES or not name.isprintable():
        return f"a topic's name has 1 to {MAX_TOPIC_BYTES} printable bytes"
    if name.startswith(SYSTEM_PREFIX):
        return f"topics whose names begin with {SYSTEM_PREFIX} are the brokers' own"
    if not 0 < queues <= MAX_QUEUES:
        return f"a topic has 1 to {MAX_QUEUES:,} queues, not {queues}"
    return ""


def check_group(name: str, topics: Sequence[str] = ()) -> str:
    """Return what is wrong with a group, "" if it is valid."""
    if not 0 < len(name.encode()) <= MAX_GROUP_BYTES or not name.isprintable():
        return f"a group's name has 1 to {MAX_GROUP_BYTES} printable bytes"
    if len(topics) > MAX_GROUP_TOPICS:
        return f"a group reads at most {MAX_GROUP_TOPICS:,} topics, not {len(topics):,}"
    return next((why for topic in topics if (why := check_topic(topic, 1))), "")
