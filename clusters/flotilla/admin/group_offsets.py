"""Commands on consumer groups: how far they have come, and taking them elsewhere (spec 10.4).

A reset is for a group that does not run now: one that runs goes on where it is, and commits that.
All queues are looked at before the first is reset, so an offset that some queue does not have is
refused with nothing done.
"""

import argparse

from clusters.flotilla.client.calls import Refused
from clusters.flotilla.net.wire import Json, Op, Status

from .answer import Answer
from .command import Command, Options, argument
from .reach import Reach

ENDS = ("earliest", "latest")


async def list_offsets(reach: Reach, options: Options) -> Answer:
    rows = []
    for name, address in (await reach.client.calls.masters()).items():
        metadata = await reach.client.calls.ask(address, Op.METADATA, {})
        told = await reach.client.calls.ask(address, Op.DESCRIBE, {})
        rows += offset_rows(name, metadata["offsets"], told["queues"])
    return Answer({"offsets": [row for row in rows if _wanted(row, options)]})


def offset_rows(
    name: str, offsets: list[tuple[str, str, int, int]], queues: dict[str, tuple[int, int]]
) -> list[Json]:
    """A broker set's. `queues`: "topic-queue" -> its first offset, and the one after its last."""
    rows = []
    for group, topic, queue, offset in offsets:
        end = queues.get(f"{topic}-{queue}", (0, 0))[1]
        place = {"group": group, "topic": topic, "brokerName": name, "queueId": queue}
        rows.append({**place, "offset": offset, "maxOffset": end, "lag": max(0, end - offset)})
    return rows


def _wanted(row: Json, options: Options) -> bool:
    return options.group in (None, row["group"]) and options.topic in (None, row["topic"])


async def reset(reach: Reach, options: Options) -> Answer:
    consumer, group, topic = reach.client.consumer, options.group, options.topic
    count = (await reach.client.topics.all()).get(topic)
    if count is None:
        raise Refused("", Status.TOPIC_NOT_EXIST, topic)
    goals = {}
    for queue in range(count):
        low, high = await consumer.range(topic, queue)
        goals[queue] = goal(f"{topic}-{queue}", options.to, low, high)
    rows = []
    for queue, offset in goals.items():
        before = await consumer.committed(group, topic, queue)
        await consumer.reset(group, topic, queue, offset)
        was = None if before < 0 else before
        rows.append({"topic": topic, "queue": queue, "before": was, "offset": offset})
    return Answer({"offsets": rows})


def goal(queue: str, to: str, low: int, high: int) -> int:
    """The offset in a queue that has these. Refused: it has no such offset."""
    if to in ENDS:
        return low if to == "earliest" else high
    if not low <= int(to) <= high:
        why = f"{queue} has the offsets from {low} to {high}, not {to}; nothing was reset"
        raise Refused("", Status.PULL_OFFSET_MOVED, why)
    return int(to)


def place(text: str) -> str:
    if text not in ENDS and not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not earliest, latest or an offset")
    return text


COMMANDS = (
    Command(
        "offsets list",
        "how far groups have come in each queue, and how far they lag",
        "namesrv",
        list_offsets,
        (argument("--group", metavar="GROUP"), argument("--topic", metavar="TOPIC")),
    ),
    Command(
        "offsets reset",
        "take a group that does not run to another place in all queues of a topic",
        "namesrv",
        reset,
        (
            argument("group", metavar="GROUP"),
            argument("topic", metavar="TOPIC"),
            argument("--to", type=place, required=True, metavar="earliest|latest|OFFSET"),
        ),
    ),
)
