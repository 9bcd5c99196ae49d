"""What a topic or a group may be called, and how many queues and topics they may have: pure.

Asked where they are made while the cluster runs, and where a configuration names the first ones.
"""

from collections.abc import Sequence

MOST_QUEUES = 10_000
LONGEST_NAME = 127  # bytes; RocketMQ's limit
LONGEST_GROUP = 255  # bytes; RocketMQ's limit
MOST_TOPICS = 1000  # of a group


def why_not(name: str, queues: int) -> str:
    """What is wrong with such a topic; empty: nothing."""
    if not 0 < len(name.encode()) <= LONGEST_NAME or not name.isprintable():
        return f"a topic's name has 1 to {LONGEST_NAME} printable bytes"
    if not 0 < queues <= MOST_QUEUES:
        return f"a topic has 1 to {MOST_QUEUES:,} queues, not {queues}"
    return ""


def why_not_group(name: str, topics: Sequence[str] = ()) -> str:
    """What is wrong with such a group; empty: nothing."""
    if not 0 < len(name.encode()) <= LONGEST_GROUP or not name.isprintable():
        return f"a group's name has 1 to {LONGEST_GROUP} printable bytes"
    if len(topics) > MOST_TOPICS:
        return f"a group reads {MOST_TOPICS:,} topics at most, not {len(topics):,}"
    return next((why for topic in topics if (why := why_not(topic, 1))), "")
