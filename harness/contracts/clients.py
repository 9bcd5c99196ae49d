"""What a client of a message system offers to the workload.

Calls never raise for what the system did: one table in the driver maps its errors to ok, fail and
info.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.operation import Completion


@dataclass(frozen=True)
class ReceivedMessage:
    """A message that a client received. `key`: None if the client does not know it; `stored_ms`:
    when the record was stored, by the clock of the node that stored it."""

    offset: int
    epoch: int
    body: bytes
    key: bytes | None = None
    stored_ms: int = -1


@dataclass(frozen=True)
class PollResult:
    """A poll's result: completion, messages in order, and the offset to read next."""

    completion: Completion
    messages: Sequence[ReceivedMessage] = ()
    next_offset: int = 0
    max_offset: int = 0


class MessageClient(Protocol):
    """A client of a message system. Calls never raise for what the system did: one table in the
    driver maps its errors to ok, fail and info."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        """Send one message; `done` is called exactly once, in the event loop. Sends are
        pipelined."""
        ...

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult: ...

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the queue's minimum offset and high-water mark. Raises ConnectionError if it
        cannot be reached now."""
        ...

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """Return the group's offset, -1 if it has none. Raises ConnectionError if it cannot be
        reached now."""
        ...

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...


class SelectingClient(MessageClient, Protocol):
    """A client that can select the queue of each message itself."""

    def send_to_any(
        self, topic: str, queues: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        """Send one message to one of the topic's first `queues` queues, each attempt perhaps to
        another one; the completion of an acknowledged send names the queue."""
        ...

    def selections(self) -> Mapping[str, int]:
        """Return how often it selected a queue other than the next one in turn, by reason."""
        ...


class MetadataClient(MessageClient, Protocol):
    """A client that also changes what a message system stores besides messages."""

    async def create_topic(self, topic: str, queues: int) -> Completion: ...

    async def delete_topic(self, topic: str) -> Completion: ...

    async def topics(self) -> Mapping[str, int]:
        """Return all topics with their number of queues. Raises ConnectionError if it cannot be
        reached now."""
        ...

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...

    async def lock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        """Take the queue's lock; if ok, `offset` is the lease in milliseconds since this call."""
        ...

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> Completion: ...


class GroupConsumer(Protocol):
    """A consumer that belongs to a group once it is started. `queues`: topic and number of those
    allocated to it; `members`: all of the group, as it last heard."""

    queues: Sequence[tuple[str, int]]
    members: Sequence[str]

    def start(self) -> None: ...

    async def leave(self) -> None:
        """Leave the group, and notify the cluster as far as it can be reached."""
        ...


class GroupClient(MetadataClient, Protocol):
    """A client whose consumers share the queues of topics."""

    def member(self, group: str, me: str, topics: Mapping[str, int]) -> GroupConsumer:
        """Return a consumer named `me`, of topics with so many queues each."""
        ...
