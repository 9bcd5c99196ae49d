"""Commands on metadata: topics, and the offsets of consumer groups.

A reset is for a group that does not run: a running group continues where it is and commits that.
The command checks all queues before it resets the first, so if some queue does not have the offset,
no queue is changed.
"""

import argparse

from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.wire import Json, Op, Status

from .cluster_access import ClusterAccess
from .command import AdminCommand, Options, argument
from .output import CommandOutput

_TOPIC = argument("topic", metavar="TOPIC")
ENDS = ("earliest", "latest")


async def list_topics(cluster: ClusterAccess, options: Options) -> CommandOutput:
    found = await cluster.client.topics.list_queues()
    return CommandOutput({"topics": [{"topic": t, "queues": q} for t, q in sorted(found.items())]})


async def create_topic(cluster: ClusterAccess, options: Options) -> CommandOutput:
    await cluster.client.topics.create(options.topic, options.queues)
    return CommandOutput(
        message=f"the topic {options.topic} exists, with {options.queues} queues or more"
    )


async def delete_topic(cluster: ClusterAccess, options: Options) -> CommandOutput:
    await cluster.client.topics.delete(options.topic)
    return CommandOutput(message=f"the topic {options.topic} is deleted")


async def list_offsets(cluster: ClusterAccess, options: Options) -> CommandOutput:
    rows = []
    for name, address in (await cluster.client.calls.masters()).items():
        metadata = await cluster.client.calls.ask(address, Op.METADATA, {})
        broker = await cluster.client.calls.ask(address, Op.DESCRIBE, {})
        rows += offset_rows(name, metadata["offsets"], broker["queues"])
    return CommandOutput({"offsets": [row for row in rows if _wanted(row, options)]})


def offset_rows(
    name: str, offsets: list[tuple[str, str, int, int]], queues: dict[str, tuple[int, int]]
) -> list[Json]:
    """Return the rows of a broker set. `queues`: "topic-queue" -> first offset, end offset."""
    rows = []
    for group, topic, queue, offset in offsets:
        end = queues.get(f"{topic}-{queue}", (0, 0))[1]
        queue_row = {"group": group, "topic": topic, "brokerName": name, "queueId": queue}
        rows.append({**queue_row, "offset": offset, "maxOffset": end, "lag": max(0, end - offset)})
    return rows


def _wanted(row: Json, options: Options) -> bool:
    return options.group in (None, row["group"]) and options.topic in (None, row["topic"])


async def reset_offsets(cluster: ClusterAccess, options: Options) -> CommandOutput:
    consumer, group, topic = cluster.client.consumer, options.group, options.topic
    count = (await cluster.client.topics.list_queues()).get(topic)
    if count is None:
        raise CallRefused("", Status.TOPIC_NOT_EXIST, topic)
    targets = {}
    for queue in range(count):
        low, high = await consumer.range(topic, queue)
        targets[queue] = target_offset(f"{topic}-{queue}", options.to, low, high)
    rows = []
    for queue, offset in targets.items():
        before = await consumer.committed(group, topic, queue)
        await consumer.reset(group, topic, queue, offset)
        was = None if before < 0 else before
        rows.append({"topic": topic, "queue": queue, "before": was, "offset": offset})
    return CommandOutput({"offsets": rows})


def target_offset(queue: str, to: str, low: int, high: int) -> int:
    """Return the offset to reset to. Raises CallRefused if the queue does not have it."""
    if to in ENDS:
        return low if to == "earliest" else high
    if not low <= int(to) <= high:
        why = f"{queue} has the offsets from {low} to {high}, not {to}; nothing was reset"
        raise CallRefused("", Status.PULL_OFFSET_MOVED, why)
    return int(to)


def target(text: str) -> str:
    if text not in ENDS and not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest or an offset")
    return text


COMMANDS = (
    AdminCommand("topics list", "all topics and their queues", "namesrv", list_topics),
    AdminCommand(
        "topics create",
        "create a topic on all broker sets, or give it more queues",
        "namesrv",
        create_topic,
        (
            _TOPIC,
            argument("--queues", type=int, default=8, metavar="N", help="on all sets together (8)"),
        ),
    ),
    AdminCommand(
        "topics delete", "delete a topic from all broker sets", "namesrv", delete_topic, (_TOPIC,)
    ),
    AdminCommand(
        "offsets list",
        "the offset and the lag of each group in each queue",
        "namesrv",
        list_offsets,
        (argument("--group", metavar="GROUP"), argument("--topic", metavar="TOPIC")),
    ),
    AdminCommand(
        "offsets reset",
        "move a group that does not run to another offset in all queues of a topic",
        "namesrv",
        reset_offsets,
        (
            argument("group", metavar="GROUP"),
            argument("topic", metavar="TOPIC"),
            argument("--to", type=target, required=True, metavar="earliest|latest|OFFSET"),
        ),
    ),
)
