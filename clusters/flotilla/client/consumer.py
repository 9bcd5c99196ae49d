"""The pull consumer and members of consumer groups.

`Consumer` reads a queue by offset and keeps a group's offset on the broker. Errors are those of
`calls`. Reading has no effect, so a read that raises did not happen; only a commit, a reset or a
lock can be uncertain.

A *lock* gives a queue to one consumer, for ordered consumption. The broker keeps it for 60 s from
the last time it was taken; its holder relies on it for 30 s from the time of its request and renews
it every 20 s, so a holder that cannot reach its broker stops before another consumer begins.

`ConsumerGroupMember` sends heartbeats and allocates queues. Every member learns the other members
and allocates by the same rule, so they agree once they know the same members. Until then two of
them may read one queue: messages are delivered twice, and a consumer that needs them once and in
order locks the queue first. Members send heartbeats to every broker set; if the answers differ, the
first set by name that answers counts.
"""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from clusters.flotilla.net.connection import Tasks
from clusters.flotilla.net.wire import Json, Message, Op, PullReply, PullRequest, Status
from clusters.flotilla.special.envelope import ASK_TOPIC, GROUP_FOLLOWS, POP_TOPIC
from clusters.flotilla.special.pop_records import PopHandle

from .calls import CALL_ERRORS, CallRefused, Calls, malformed
from .route_cache import RouteCache
from .settings import ClientSettings


class KeyedMessage(NamedTuple):
    """A message that was found by its key. `queue`: the broker's number of it."""

    address: str
    queue: int
    queue_offset: int
    epoch: int
    body: bytes


class PoppedMessage(NamedTuple):
    """A message that a group was given, and what it is acknowledged with. `tries`: how often it
    was given before."""

    message: Message
    handle: PopHandle
    tries: int


class Consumer:
    """Reads queues and keeps group offsets.

    It reads from the master unless the master suggests a slave. A suggestion counts for one pull:
    if the slave fails, the next pull goes to the master, and this one too if it is refused.
    """

    def __init__(self, settings: ClientSettings, routes: RouteCache, calls: Calls) -> None:
        self._lease_s = settings.lock_lease_s
        self._routes = routes
        self._calls = calls
        self._read_from: dict[tuple[str, int], int] = {}  # the slave that was suggested

    async def pull(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PullReply:
        """Return messages from `offset` on; wait up to `wait_s` for the first."""
        calls = self._calls
        place = await calls.place(topic, queue)
        request = PullRequest(topic, place.queue, offset, limit, round(wait_s * 1000), times=True)
        suggested = self._read_from.pop((topic, queue), 0)
        address = self._routes.slave(place.broker_name, suggested) or place.address
        pulled = await self._pull(address, request)
        if pulled.status is Status.SERVICE_NOT_AVAILABLE and address != place.address:
            address = place.address
            pulled = await self._pull(address, request)
        if pulled.suggested:
            self._read_from[topic, queue] = pulled.suggested
        if pulled.status in (Status.SUCCESS, Status.PULL_NOT_FOUND, Status.PULL_OFFSET_MOVED):
            return pulled
        self._routes.refresh()
        raise CallRefused(address, pulled.status)

    async def _pull(self, address: str, request: PullRequest) -> PullReply:
        timeout_s = self._calls.timeout_s + request.wait_ms / 1000
        reply = await self._calls.call(address, Op.PULL, request.pack(), timeout_s)
        try:
            return PullReply.unpack(reply)
        except (ValueError, struct.error) as e:
            raise malformed(address, e) from e

    async def questions(
        self, group: str, topic: str, queue: int, wait_s: float
    ) -> Sequence[Message]:
        """Return half messages for whose decision the broker asks this group of producers, none if
        it asked for none within `wait_s`. The offset of each is the id with which it is decided.

        Asks the master of this queue, which asks for all queues that it has.
        """
        place = await self._calls.place(topic, queue)
        request = PullRequest(f"{ASK_TOPIC}{group}", 0, 0, 1, round(wait_s * 1000))
        pulled = await self._pull(place.address, request)
        if pulled.status not in (Status.SUCCESS, Status.PULL_NOT_FOUND):
            self._routes.refresh()
            raise CallRefused(place.address, pulled.status)
        return pulled.messages

    async def pop(
        self, group: str, topic: str, queue: int, limit: int, invisible_ms: int, wait_s: float
    ) -> Sequence[PoppedMessage]:
        """Return up to 32 messages of a queue that no other consumer of the group is given for
        `invisible_ms`; none if there is none within `wait_s`.

        A broker that does not know POP refuses it with TOPIC_NOT_EXIST.
        """
        place = await self._calls.place(topic, queue)
        wait_ms = round(wait_s * 1000)
        name = f"{POP_TOPIC}{topic}{GROUP_FOLLOWS}{group}"
        if len(name.encode()) > 255:
            raise CallRefused(place.address, Status.MESSAGE_ILLEGAL, "the group's name is too long")
        request = PullRequest(name, place.queue, invisible_ms, limit, wait_ms)
        pulled = await self._pull(place.address, request)
        if pulled.status not in (Status.SUCCESS, Status.PULL_NOT_FOUND):
            self._routes.refresh()
            raise CallRefused(place.address, pulled.status)
        checkpoint, epoch, tries = pulled.next_offset, pulled.min_offset, pulled.max_offset
        return [
            PoppedMessage(message, PopHandle(checkpoint, epoch, number), tries)
            for number, message in enumerate(pulled.messages)
        ]

    async def find(self, topic: str, key: bytes, limit: int = 64) -> list[KeyedMessage]:
        """Return the oldest messages with a key of each broker set, in log order."""
        found = []
        fields = {"topic": topic, "key": key.hex(), "maxNum": limit}
        for address in (await self._calls.masters()).values():
            reply = await self._calls.ask(address, Op.QUERY_BY_KEY, fields)
            for row in reply["messages"]:
                position = (
                    address,
                    int(row["queueId"]),
                    int(row["queueOffset"]),
                    int(row["epoch"]),
                )
                found.append(KeyedMessage(*position, bytes.fromhex(row["body"])))
        return found

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the queue's minimum offset and the offset after its last readable message."""
        fields = await self._calls.of_queue(topic, queue, Op.QUEUE_RANGE, {})
        return int(fields["minOffset"]), int(fields["maxOffset"])

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """Return the group's offset, -1 if it has none."""
        fields = await self._calls.of_queue(topic, queue, Op.OFFSET_QUERY, {"group": group})
        return int(fields["offset"])

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Commit an offset; one that is lower than the group's changes nothing."""
        fields = {"group": group, "offset": offset}
        await self._calls.of_queue(topic, queue, Op.OFFSET_COMMIT, fields)

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Move the group to any offset of the queue; for groups that do not run."""
        fields = {"group": group, "offset": offset}
        await self._calls.of_queue(topic, queue, Op.OFFSET_RESET, fields)

    async def lock(self, group: str, client: str, topic: str, queue: int) -> float:
        """Take or renew a lock; return until when it is held, in loop time, 0 if another client
        holds it."""
        asked_at = asyncio.get_running_loop().time()
        fields = {"group": group, "client": client, "askedAt": _micros(asked_at)}
        reply = await self._calls.of_queue(topic, queue, Op.LOCK_QUEUE, fields)
        return asked_at + self._lease_s if reply["locked"] else 0.0

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> None:
        """Release a lock; one that this client takes after this call is not released, however late
        the request arrives."""
        asked_at = asyncio.get_running_loop().time()
        fields = {"group": group, "client": client, "askedAt": _micros(asked_at)}
        await self._calls.of_queue(topic, queue, Op.UNLOCK_QUEUE, fields)


def _micros(loop_time: float) -> int:
    return int(loop_time * 1_000_000)


Queue = tuple[str, int]


def allocate(queues: Sequence[Queue], members: Sequence[str], me: str) -> tuple[Queue, ...]:
    """Return the queues of a member: blocks of equal size, the first ones one longer (RocketMQ's
    AllocateMessageQueueAveragely)."""
    if me not in members:
        return ()
    at, count = sorted(members).index(me), len(members)
    size, longer = divmod(len(queues), count)
    start = at * size + min(at, longer)
    return tuple(sorted(queues)[start : start + size + (at < longer)])


class ConsumerGroupMember:
    """One consumer of a group. `queues`: those allocated to it; `members`: all of the group, by the
    last answer; `topics`: name -> number of queues."""

    def __init__(
        self,
        settings: ClientSettings,
        calls: Calls,
        group: str,
        client: str,
        topics: Mapping[str, int],
    ) -> None:
        self.queues: tuple[Queue, ...] = ()
        self.members: tuple[str, ...] = ()
        self._period_s = settings.group_heartbeat_s
        self._calls = calls
        self._group, self._client = group, client
        self._all = [(topic, queue) for topic, count in topics.items() for queue in range(count)]
        self._topics = sorted(topics)
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.start(self._run())

    def close(self) -> None:
        """Stop. Other members take the queues over when the brokers have missed this one."""
        self._tasks.cancel()
        self.queues = self.members = ()

    async def leave(self) -> None:
        """Stop, and tell every master, so that other members need not wait."""
        self.close()
        try:
            masters = await self._calls.masters()
        except CALL_ERRORS:
            return
        fields = {"group": self._group, "client": self._client}
        await asyncio.gather(*(self._leave_master(address, fields) for address in masters.values()))

    async def _leave_master(self, address: str, fields: Json) -> None:
        with suppress(*CALL_ERRORS):
            await self._calls.ask(address, Op.GROUP_LEAVE, fields)

    async def _run(self) -> None:
        while True:
            await self._beat()
            await asyncio.sleep(self._period_s)

    async def _beat(self) -> None:
        """Send a heartbeat to every master; if none answers, the allocation stays."""
        try:
            masters = await self._calls.masters()
        except CALL_ERRORS:
            return
        answers = await asyncio.gather(*(self._members(address) for address in masters.values()))
        if received := [members for members in answers if members is not None]:
            self.members = tuple(received[0])
            self.queues = allocate(self._all, self.members, self._client)

    async def _members(self, address: str) -> Sequence[str] | None:
        """Send a heartbeat to a master; return the members of the group, None without an answer."""
        fields = {"group": self._group, "client": self._client, "topics": self._topics}
        try:
            reply = await self._calls.ask(address, Op.GROUP_HEARTBEAT, fields)
        except CALL_ERRORS:
            return None
        members: Sequence[str] = reply["members"]
        return members
