"""Commands on topics, as the masters of all broker sets know them (spec 10.4)."""

from .answer import Answer
from .command import Command, Options, argument
from .reach import Reach

_TOPIC = argument("topic", metavar="TOPIC")


async def list_topics(reach: Reach, options: Options) -> Answer:
    found = await reach.client.topics.all()
    return Answer({"topics": [{"topic": t, "queues": q} for t, q in sorted(found.items())]})


async def create(reach: Reach, options: Options) -> Answer:
    await reach.client.topics.create(options.topic, options.queues)
    return Answer(says=f"the topic {options.topic} is there, with {options.queues} queues or more")


async def delete(reach: Reach, options: Options) -> Answer:
    await reach.client.topics.delete(options.topic)
    return Answer(says=f"the topic {options.topic} is deleted")


COMMANDS = (
    Command("topics list", "all topics and their queues", "namesrv", list_topics),
    Command(
        "topics create",
        "make a topic on all broker sets, or give it more queues",
        "namesrv",
        create,
        (
            _TOPIC,
            argument("--queues", type=int, default=8, metavar="N", help="on all sets together (8)"),
        ),
    ),
    Command("topics delete", "delete a topic from all broker sets", "namesrv", delete, (_TOPIC,)),
)
