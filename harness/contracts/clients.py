"""What a client of a system offers to the workload.

A client runs in a client process on a client node, which has the standard library of Python and the
packages of Seatrial, but no libraries of other projects. It needs the methods that the trial's
workload calls (`WorkloadPlugin.client`), and `open` and `close`. Calls never raise for what the
system did: they return a `Completion`, or call `done` with one. One table in the driver maps the
system's errors to OK (it took effect), FAIL (it certainly did not, and never will) and INFO
(unknown: it may take effect at any later time).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.operation import Completion


@dataclass(frozen=True)
class ReceivedMessage:
    """A message that a client received.

    offset     in the queue
    epoch      of the master that stored it; 0 if the system has none
    body       as it was sent
    key        as it was sent; None if the client does not know it
    stored_ms  when the record was stored, by the clock of the node that stored it, in ms since
               1970; -1 if it is not known
    """

    offset: int
    epoch: int
    body: bytes
    key: bytes | None = None
    stored_ms: int = -1


@dataclass(frozen=True)
class PollResult:
    """The result of a poll.

    completion   OK, also if there was no message; FAIL if there was no answer
    messages     in the order of their offsets
    next_offset  the offset to read next
    max_offset   the offset after the queue's last readable message
    """

    completion: Completion
    messages: Sequence[ReceivedMessage] = ()
    next_offset: int = 0
    max_offset: int = 0


class MessageClient(Protocol):
    """A client of a message system. Calls never raise for what the system did, `range` and
    `committed` aside. `queue`: a number from 0."""

    async def open(self) -> None:
        """Prepare the client; called once, before any other method. It need not connect: the
        system may not be reachable yet."""
        ...

    async def close(self) -> None:
        """Close its connections; called once, after every operation has completed."""
        ...

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        """Send one message, and return at once; `done` is called exactly once, later, in the event
        loop. Sends are pipelined. The completion of an acknowledged send has its `offset`."""
        ...

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        """Read at most `limit` messages from `offset` on; wait up to `wait_s` if there is none."""
        ...

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the queue's minimum offset and high-water mark. Raises ConnectionError if it
        cannot be reached now."""
        ...

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """Return the group's offset, -1 if it has none. Raises ConnectionError if it cannot be
        reached now."""
        ...

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        """Set the group's offset: that of the message to read next."""
        ...


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


class DelayClient(MessageClient, Protocol):
    """A client whose messages can be delivered later."""

    def send_delayed(
        self,
        topic: str,
        queue: int,
        key: bytes,
        body: bytes,
        delay_ms: int,
        done: Callable[[Completion], None],
    ) -> None:
        """Send one message that readers get `delay_ms` after this call, and return at once, as
        `send` does. OK: it was accepted."""
        ...


@dataclass(frozen=True)
class PopDelivery:
    """A message that a group was given. `handle`: the system's name for this delivery."""

    message: ReceivedMessage
    handle: str


@dataclass(frozen=True)
class PopResult:
    """The result of a POP. `completion`: OK, also if there was no message; FAIL if there was no
    answer."""

    completion: Completion
    messages: Sequence[PopDelivery] = ()


class PopClient(MessageClient, Protocol):
    """A client whose system gives each message to one consumer of a group, for a limited time."""

    async def pop(
        self, group: str, topic: str, queue: int, limit: int, invisible_ms: int, wait_s: float
    ) -> PopResult:
        """Take up to `limit` messages of a queue, which no other consumer of the group is given for
        `invisible_ms`; wait up to `wait_s` if there is none."""
        ...

    async def acknowledge(self, group: str, topic: str, queue: int, handle: str) -> Completion:
        """Acknowledge a message: the group is not given it again. FAIL: its time is over."""
        ...

    async def hide(
        self, group: str, topic: str, queue: int, handle: str, invisible_ms: int
    ) -> tuple[Completion, str]:
        """Let a message be invisible for so long from now on; return its new handle, too."""
        ...


@dataclass(frozen=True)
class HalfQuestion:
    """A prepared message whose decision the system asks for. `id`: as the completion of `prepare`
    has it as its offset."""

    id: int
    key: bytes
    body: bytes


class HalfClient(MessageClient, Protocol):
    """A client whose messages readers get only if they are committed."""

    def prepare(
        self,
        topic: str,
        queue: int,
        key: bytes,
        body: bytes,
        group: str,
        done: Callable[[Completion], None],
    ) -> None:
        """Send one message that readers do not get yet, and return at once, as `send` does. OK:
        `offset` is its id. `group`: of the producers that may be asked for its decision."""
        ...

    def decide(
        self,
        topic: str,
        queue: int,
        half: int,
        key: bytes,
        commit: bool,
        done: Callable[[Completion], None],
    ) -> None:
        """Commit or roll back a message that was prepared for this queue, with this key.
        `half`: its id."""
        ...

    async def questions(
        self, group: str, topic: str, queue: int, wait_s: float
    ) -> Sequence[HalfQuestion]:
        """Return messages, of this queue or others, for whose decision the system asks this group;
        none if it asked for none within `wait_s`. Raises ConnectionError if it cannot be reached
        now."""
        ...


class MetadataClient(MessageClient, Protocol):
    """A client that also changes what a message system stores besides messages."""

    async def create_topic(self, topic: str, queues: int) -> Completion:
        """Create a topic with so many queues; OK also if it has them already."""
        ...

    async def delete_topic(self, topic: str) -> Completion:
        """Delete a topic; OK also if there is none."""
        ...

    async def topics(self) -> Mapping[str, int]:
        """Return all topics with their number of queues. Raises ConnectionError if it cannot be
        reached now."""
        ...

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> Completion: ...

    async def lock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        """Take the queue's lock; if ok, `offset` is the lease in milliseconds since this call, and
        `arg` its fencing token, if there is one."""
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


class RegisterAccess(Protocol):
    """One client's access to registers: values are whole numbers from 0, keys are names. Calls
    never raise for what the system did."""

    async def get(self, key: str) -> tuple[Completion, int]:
        """Return a completion, OK or FAIL, and the value; -1 if the register has none. A read has
        no effect, so its outcome is never unknown: one without an answer is a FAIL."""
        ...

    async def put(self, key: str, value: int) -> Completion: ...

    async def cas(self, key: str, expected: int, value: int) -> Completion:
        """Set the value if the register has the `expected` one; -1: if it has none. FAIL with
        `pos` 0: the comparison itself refused it."""
        ...


class RegisterClient(MessageClient, Protocol):
    """A client of a system that has registers. For the workload `register` alone it needs no
    method of `MessageClient` but `open` and `close`."""

    def registers(self, client: int) -> RegisterAccess:
        """Return the access of one client, with connections of its own; they end with `close` of
        this client."""
        ...
