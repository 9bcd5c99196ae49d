"""Where a queue lives."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """The master's address, and the queue's number there and among all of its topic's queues."""

    broker_name: str
    address: str
    queue: int
    number: int
