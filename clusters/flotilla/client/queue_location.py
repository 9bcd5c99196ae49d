"""The location of a queue."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueLocation:
    """The master's address; `queue`: the number there, `number`: among all queues of the topic."""

    broker_name: str
    address: str
    queue: int
    number: int
