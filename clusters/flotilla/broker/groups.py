"""The desk of consumer groups: who belongs to one, by heartbeats (spec 10.3).

Membership is in memory: a consumer belongs to its group from its first heartbeat until it leaves,
its connection ends, or `brokerChannelExpiredTime` has passed. Each answer names the members, so
that every one of them deals the queues in the same way. What outlives everything, also a failover,
is that the group exists and what it reads: that is metadata.
"""

import asyncio
from dataclasses import dataclass, replace

from ..net.connection import Connection, refusal
from ..net.wire import Json, Op, Status
from . import catalog, topic_limits
from .handler import Desk, Table, not_master


@dataclass(frozen=True)
class _Member:
    connection: Connection
    heard_at: float
    left: bool = False  # by request, or because its connection ended


class Groups:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, dict[str, _Member]] = {}

    def table(self) -> Table:
        return {Op.GROUP_HEARTBEAT: self._heartbeat, Op.GROUP_LEAVE: self._leave}

    def __len__(self) -> int:
        """How many groups have members."""
        return len(self._members)

    def closed(self, connection: Connection) -> None:
        for group, members in list(self._members.items()):
            for client in [c for c, m in members.items() if m.connection is connection]:
                self._gone(group, client)

    async def _leave(self, connection: Connection, fields: Json) -> Json:
        self._gone(str(fields["group"]), str(fields["client"]))
        return {}

    def _gone(self, group: str, client: str) -> None:
        members = self._members.get(group, {})
        if client in members:
            members[client] = replace(members[client], left=True)
            self._living(group)

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
        """Forget who does not belong to the group any more; the others, in order."""
        since = self._loop.time() - self._desk.config.channel_expired_s
        is_member = self._desk.rules.is_member
        living = {
            client: member
            for client, member in self._members[group].items()
            if is_member(member.heard_at, since, member.left)
        }
        self._members[group] = living
        if not living:
            del self._members[group]
        return sorted(living)
