"""What a client of a message system offers to the workload.

Calls never raise for what the system did: the mapping from its errors to ok, fail and info is one
table in the driver.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.operation import Completion


@dataclass(frozen=True)
class Received:
    """A message that a client was given. `key`: None when its client does not know it; `stored_ms`:
    when its record was stored, by the clock of the node that stored it."""

    offset: int
    epoch: int
    body: bytes
    key: bytes | None = None
    stored_ms: int = -1


@dataclass(frozen=True)
class Batch:
    """A poll's result: completion, messages in order, and where to read next."""

    completion: Completion
    messages: Sequence[Received] = ()
    next_offset: int = 0
    max_offset: int = 0


class MessageClient(Protocol):
    """A client of a message system. Calls never raise for what the system did: the mapping from
    its errors to ok, fail and info is one table in the driver."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        """Send one message; `done` is called exactly once, in the event loop. Pipelined."""
        ...

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> Batch: ...

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """The queue's minimum offset and high-water mark. ConnectionError: not reachable now."""
        ...

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """The group's offset, -1 when it has none. ConnectionError: not reachable now."""
        ...

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...


class SelectingClient(MessageClient, Protocol):
    """A client that can select the queue of each message itself."""

    def send_to_any(
        self, topic: str, queues: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        """Send one message to one of the topic's first `queues` queues, each attempt perhaps to
        another one; the completion of an acknowledged send says to which."""
        ...

    def selections(self) -> Mapping[str, int]:
        """Return how often it selected a queue other than the next one in turn, by reason."""
        ...


class MetadataClient(MessageClient, Protocol):
    """A client that also changes what a message system knows besides its messages."""

    async def create_topic(self, topic: str, queues: int) -> Completion: ...

    async def delete_topic(self, topic: str) -> Completion: ...

    async def topics(self) -> Mapping[str, int]:
        """All topics and their queues. ConnectionError: not reachable now."""
        ...

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...

    async def lock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        """Ok with the milliseconds, since this was called, for which it is ours as `offset`."""
        ...

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> Completion: ...


class GroupMember(Protocol):
    """A consumer that belongs to a group, once started. `queues`: topic and number of those that
    are allocated to it; `members`: all of the group, as it last heard."""

    queues: Sequence[tuple[str, int]]
    members: Sequence[str]

    def start(self) -> None: ...

    async def leave(self) -> None:
        """Belong to it no longer, and tell the cluster as far as it can be reached."""
        ...


class GroupClient(MetadataClient, Protocol):
    """A client whose consumers share the queues of a topic among them."""

    def member(self, group: str, me: str, topics: Mapping[str, int]) -> GroupMember:
        """A consumer called `me`, of topics with so many queues each."""
        ...
