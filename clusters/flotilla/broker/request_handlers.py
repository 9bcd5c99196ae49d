"""Handlers of JSON requests: topics, queues and offsets, consumer groups, locks, queries by key.

**Topics.** The queues of a topic are counted for each broker set. A topic may get more queues,
never fewer, because the messages in them would be out of reach.

**Offsets.** A commit moves a group's offset forwards only; a reset moves it anywhere within the
queue. An offset beyond the end of the queue is refused: it was read from a log that has been
truncated since (apache/rocketmq#4771). An offset beyond the confirm offset has to wait.

**Groups.** Membership is in memory: a consumer belongs to its group from its first heartbeat until
it leaves, its connection ends, or `brokerChannelExpiredTime` has passed. Each answer lists the
members, so all of them allocate the queues in the same way. That the group exists and which topics
it reads is metadata, which survives a failover.

**Locks.** A lock gives a queue to one consumer of a group. It is a lease in memory that ends
`rebalanceLockMaxLiveTime` after it was last taken, which is longer than its holder relies on it.
RocketMQ forgets all locks when another master is elected, so two consumers may own a queue until
the first one's lease ends. With `lockInStrictMode` a lock needs a majority of the `totalReplicas`
brokers of the set, so the next master cannot grant it without a broker that knows of it. A broker
that has just started has forgotten what it granted, and grants nothing until that has expired.
Requests say when the client asked, by its own clock: a release that arrives after its client has
taken the lock again changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ..controllers.leases import Leases
from ..net.connection import (
    CallTimeout,
    ConnectionLost,
    FrameConnection,
    Pool,
    Unreachable,
    refusal,
)
from ..net.wire import Json, Op, ProtocolError, Status
from ..store.message_store import KeyMatch
from ..world.timers import MAX_WAIT_S
from . import catalog, topic_limits
from .catalog import GroupQueue, Version
from .handler import HandlerContext, HandlerTable, not_master

MAX_MATCHES = 64  # of a query by key, as in RocketMQ
_MAX_QUERY_BYTES = 1024 * 1024
_LOCK_PEER_TIMEOUT_S = 1.0  # as in RocketMQ; scaled


class TopicHandler:
    """Creates and deletes topics, durably before it answers."""

    def __init__(self, context: HandlerContext) -> None:
        self._context, self._catalog = context, context.replica.catalog

    def table(self) -> HandlerTable:
        return {Op.TOPIC_CREATE: self._create, Op.TOPIC_DELETE: self._delete}

    async def _create(self, connection: FrameConnection, fields: Json) -> Json:
        name, queues = str(fields["topic"]), int(fields["queues"])
        if not self._context.is_master():
            return not_master()
        if why := topic_limits.check_topic(name, queues):
            return refusal(Status.MESSAGE_ILLEGAL, why)
        if queues < (present := self._catalog.topics.get(name, 0)):
            why = f"{name} has {present} queues, and cannot have fewer"
            return refusal(Status.MESSAGE_ILLEGAL, why)
        return await self._context.make(catalog.topic(name, queues))

    async def _delete(self, connection: FrameConnection, fields: Json) -> Json:
        name = str(fields["topic"])
        if not self._context.is_master():
            return not_master()
        if name not in self._catalog.topics:
            return refusal(Status.TOPIC_NOT_EXIST, name)
        return await self._context.make(catalog.topic(name, None))


class QueueHandler:
    """Serves queue ranges, group offsets, and the copy of the metadata for slaves."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        self._store, self._catalog = context.replica.store, context.replica.catalog

    def table(self) -> HandlerTable:
        return {
            Op.QUEUE_RANGE: self._range,
            Op.OFFSET_QUERY: self._query,
            Op.OFFSET_COMMIT: self._commit,
            Op.OFFSET_RESET: self._reset,
            Op.METADATA: self._metadata,
            Op.METADATA_SYNC: self._sync,
        }

    async def _range(self, connection: FrameConnection, fields: Json) -> Json:
        topic, queue = str(fields["topic"]), int(fields["queueId"])
        if refused := self._refusal(topic, queue):
            return refused
        low, high = self._store.range((topic.encode(), queue))
        return {"minOffset": low, "maxOffset": high}

    async def _query(self, connection: FrameConnection, fields: Json) -> Json:
        group_queue = _group_queue(fields)
        if refused := self._refusal(*group_queue[1:]):
            return refused
        return self._unsettled() or {"offset": self._catalog.offset(group_queue)}

    async def _commit(self, connection: FrameConnection, fields: Json) -> Json:
        return await self._move(fields, catalog.commit)

    async def _reset(self, connection: FrameConnection, fields: Json) -> Json:
        return await self._move(fields, catalog.reset)

    async def _move(
        self, fields: Json, change: Callable[[GroupQueue, int], catalog.MetadataChange]
    ) -> Json:
        group_queue, offset = _group_queue(fields), int(fields["offset"])
        group, topic, queue = group_queue
        if refused := self._refusal(topic, queue) or self._beyond_end(topic, queue, offset):
            return refused
        if why := topic_limits.check_group(group):
            return refusal(Status.MESSAGE_ILLEGAL, why)
        return await self._context.make(change(group_queue, offset))

    async def _sync(self, connection: FrameConnection, fields: Json) -> Json:
        changes = self._context.changes()
        if "version" not in fields:  # a slave of the first edition; it takes only the offsets
            return not_master() if changes is None else self._catalog.copy()
        if missing := [name for name in ("brokerId", "addr", "waitMs") if name not in fields]:
            raise ProtocolError(f"{missing[0]} is missing")
        slave, version = int(fields["brokerId"]), Version.of(fields["version"])
        wait_s = min(float(fields["waitMs"]) / 1000, MAX_WAIT_S)
        news = (
            None
            if changes is None
            else await changes.news_for(slave, str(fields["addr"]), version, wait_s)
        )
        return not_master() if news is None else news

    async def _metadata(self, connection: FrameConnection, fields: Json) -> Json:
        return self._unsettled() or self._catalog.copy()

    def _unsettled(self) -> Json | None:
        """Return the refusal of a metadata read, None if the metadata may be read."""
        acting, changes = self._context.acting(), self._context.changes()
        if acting is not None and acting.knows_all:
            return None
        if changes is None:
            return not_master()
        if not changes.settled:
            return refusal(Status.SERVICE_NOT_AVAILABLE, "the set does not hold our metadata yet")
        return None

    def _refusal(self, topic: str, queue: int) -> Json | None:
        if not self._context.serves():
            return not_master()
        queues = self._catalog.topics.get(topic)
        if queues is None and not self._context.is_master():
            return not_master()  # which may have it
        if queues is None:
            return refusal(Status.TOPIC_NOT_EXIST, topic)
        if not 0 <= queue < queues:
            return refusal(Status.MESSAGE_ILLEGAL, f"{topic} has {queues} queues")
        return None

    def _beyond_end(self, topic: str, queue: int, offset: int) -> Json | None:
        """Return the refusal of an offset that no consumer can have reached, None if valid."""
        key = topic.encode(), queue
        consume_queue = self._store.queues().get(key)
        end = consume_queue.end if consume_queue else 0
        if 0 <= offset <= self._store.range(key)[1]:
            return None
        if 0 <= offset <= end:
            return refusal(Status.SERVICE_NOT_AVAILABLE, "what is before it is not confirmed yet")
        return refusal(Status.PULL_OFFSET_MOVED, f"{topic}-{queue} ends at {end}, not {offset}")


@dataclass(frozen=True)
class _Member:
    connection: FrameConnection
    heard_at: float
    left: bool = False  # by request, or because its connection ended


class GroupHandler:
    """Keeps the members of consumer groups by their heartbeats."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, dict[str, _Member]] = {}

    def table(self) -> HandlerTable:
        return {Op.GROUP_HEARTBEAT: self._heartbeat, Op.GROUP_LEAVE: self._leave}

    def __len__(self) -> int:
        """Return the number of groups that have members."""
        return len(self._members)

    def closed(self, connection: FrameConnection) -> None:
        for group, members in list(self._members.items()):
            for client in [c for c, m in members.items() if m.connection is connection]:
                self._remove(group, client)

    async def _leave(self, connection: FrameConnection, fields: Json) -> Json:
        self._remove(str(fields["group"]), str(fields["client"]))
        return {}

    def _remove(self, group: str, client: str) -> None:
        members = self._members.get(group, {})
        if client in members:
            members[client] = replace(members[client], left=True)
            self._living(group)

    async def _heartbeat(self, connection: FrameConnection, fields: Json) -> Json:
        group, client = str(fields["group"]), str(fields["client"])
        topics = tuple(sorted(str(topic) for topic in fields["topics"]))
        if not self._context.serves():
            return not_master()
        if why := topic_limits.check_group(group, topics):
            return refusal(Status.MESSAGE_ILLEGAL, why)
        if self._context.replica.catalog.groups.get(group) != topics:
            answer = await self._context.make(catalog.group(group, topics))
            if answer.get("code", Status.SUCCESS) != Status.SUCCESS:
                return answer
        self._members.setdefault(group, {})[client] = _Member(connection, self._loop.time())
        return {"members": self._living(group)}

    def _living(self, group: str) -> list[str]:
        """Remove clients that no longer belong to the group; return the others, sorted."""
        since = self._loop.time() - self._context.config.channel_expired_s
        is_member = self._context.rules.is_member
        living = {
            client: member
            for client, member in self._members[group].items()
            if is_member(member.heard_at, since, member.left)
        }
        self._members[group] = living
        if not living:
            del self._members[group]
        return sorted(living)


class LockHandler:
    """Grants queue locks to consumers of a group."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context
        config = context.config
        self._leases = Leases(config.lock_max_live_s, context.rules.may_unlock)
        self._peer_timeout_s = _LOCK_PEER_TIMEOUT_S * config.time_scale
        self._pool = Pool(self._peer_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._forgetful_until = self._loop.time() + config.lock_max_live_s

    def table(self) -> HandlerTable:
        return {
            Op.LOCK_QUEUE: self._lock,
            Op.UNLOCK_QUEUE: self._unlock,
            Op.LOCK_PEER: self._grant,
        }

    async def _lock(self, connection: FrameConnection, fields: Json) -> Json:
        strict = self._context.config.lock_in_strict_mode
        if not (self._context.is_master() if strict else self._context.serves()):
            return not_master()
        if not strict:
            return {"locked": self._take(fields)}
        granted = (await self._grant(connection, fields))["locked"]
        peers = await self._ask_peers(Op.LOCK_PEER, fields) if granted else []
        votes = 1 + sum(bool(reply.get("locked")) for reply in peers)
        enough = votes >= self._context.config.total_replicas // 2 + 1
        return {"locked": granted and enough and self._context.is_master()}

    async def _unlock(self, connection: FrameConnection, fields: Json) -> Json:
        """Release a lock here and, on a master in strict mode, at the peers. A peer that cannot be
        reached keeps the lease until it expires."""
        self._leases.give_back(_group_queue(fields), str(fields["client"]), _asked_at(fields))
        if self._context.is_master() and self._context.config.lock_in_strict_mode:
            await self._ask_peers(Op.UNLOCK_QUEUE, fields)
        return {}

    async def _grant(self, connection: FrameConnection, fields: Json) -> Json:
        """Grant a lock as one of a majority."""
        whole = self._context.rules.memory_is_whole(self._loop.time(), self._forgetful_until)
        return {"locked": whole and self._take(fields)}

    def _take(self, fields: Json) -> bool:
        client, asked_at = str(fields["client"]), _asked_at(fields)
        return self._leases.take(_group_queue(fields), client, self._loop.time(), asked_at)

    async def _ask_peers(self, op: Op, fields: Json) -> list[Json]:
        changes = self._context.changes()
        calls: list[Awaitable[Json]] = []
        if changes is not None:
            addresses = {*changes.addresses.values()}  # a broker may have had another id before
            calls = [self._ask_peer(address, op, fields) for address in sorted(addresses)]
        return list(await asyncio.gather(*calls))

    async def _ask_peer(self, address: str, op: Op, fields: Json) -> Json:
        try:
            return await self._pool.ask(address, op, fields, self._peer_timeout_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            self._pool.drop(address)
            return {"code": Status.SYSTEM_ERROR}


class KeyQueryHandler:
    """Finds the messages of a topic that carry a key."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def table(self) -> HandlerTable:
        return {Op.QUERY_BY_KEY: self._query}

    async def _query(self, connection: FrameConnection, fields: Json) -> Json:
        if not self._context.serves():
            return not_master()
        try:
            key, limit = bytes.fromhex(fields["key"]), int(fields.get("maxNum", MAX_MATCHES))
        except ValueError:
            return refusal(Status.INVALID_REQUEST, "the key must be hex")
        matches = await self._context.replica.store.find(
            str(fields["topic"]).encode(), key, max(1, min(limit, MAX_MATCHES))
        )
        return {"messages": [_match_row(match) for match in _matches_that_fit(matches)]}


def _matches_that_fit(matches: list[KeyMatch]) -> list[KeyMatch]:
    """Return the first matches whose bodies fit into an answer, at least one."""
    room, fit = _MAX_QUERY_BYTES, list[KeyMatch]()
    for match in matches:
        room -= len(match.payload.body)
        if fit and room < 0:
            break
        fit.append(match)
    return fit


def _match_row(match: KeyMatch) -> Json:
    entry, payload = match
    return {
        "queueId": entry.queue,
        "queueOffset": entry.queue_offset,
        "physicalOffset": entry.offset,
        "epoch": entry.epoch,
        "body": payload.body.hex(),
    }


def _asked_at(fields: Json) -> int | None:
    """Return when the client asked; older clients omit it."""
    return fields.get("askedAt")


def _group_queue(fields: Json) -> GroupQueue:
    return str(fields["group"]), str(fields["topic"]), int(fields["queueId"])
