"""Where a queue lives."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """The master's address and the queue's number there."""

    broker_name: str
    address: str
    queue: int
