"""The desk of consumer groups: who belongs to one, by heartbeats (spec 10.3).

Membership is in memory: a consumer belongs to its group from its first heartbeat until its
connection ends or `brokerChannelExpiredTime` has passed. Each answer names the members, so that
every one of them deals the queues in the same way. What outlives everything, also a failover, is
that the group exists and what it reads: that is metadata.
"""

import asyncio
from dataclasses import dataclass

from . import catalog, topic_limits
from .desk import Desk, Table, not_master
from .net import Connection, refusal
from .wire import Json, Op, Status


@dataclass(frozen=True)
class _Member:
    connection: Connection
    heard_at: float


class Groups:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, dict[str, _Member]] = {}

    def table(self) -> Table:
        return {Op.GROUP_HEARTBEAT: self._heartbeat}

    def __len__(self) -> int:
        """How many groups have members."""
        return len(self._members)

    def closed(self, connection: Connection) -> None:
        for group, members in list(self._members.items()):
            for client in [c for c, m in members.items() if m.connection is connection]:
                del members[client]
            if not members:
                del self._members[group]

    async def _heartbeat(self, connection: Connection, fields: Json) -> Json:
        group, client = str(fields["group"]), str(fields["client"])
        topics = tuple(sorted(str(topic) for topic in fields["topics"]))
        if not self._desk.is_master():
            return not_master()
        if why := topic_limits.why_not_group(group, topics):
            return refusal(Status.MESSAGE_ILLEGAL, why)
        if self._desk.replica.catalog.groups.get(group) != topics:
            answer = await self._desk.make(catalog.group(group, topics))
            if answer.get("code", Status.SUCCESS) != Status.SUCCESS:
                return answer
        self._members.setdefault(group, {})[client] = _Member(connection, self._loop.time())
        return {"members": self._living(group)}

    def _living(self, group: str) -> list[str]:
        since = self._loop.time() - self._desk.config.channel_expired_s
        living = {c: m for c, m in self._members[group].items() if m.heard_at >= since}
        self._members[group] = living
        return sorted(living)
