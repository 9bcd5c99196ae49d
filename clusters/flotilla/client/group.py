"""A member of a consumer group: makes itself known, and works out which queues are its own.

Every member hears who the others are and deals the queues by the same rule, so they agree as soon
as they have heard the same (spec 10.3). Until then two may read one queue: messages come twice, and
whoever needs them once and in order locks the queue first (`Consumer.lock`). Every broker set is
told, and where they differ, the first by its name that answers is believed.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusters.flotilla.net.connection import Tasks
from clusters.flotilla.net.wire import Json, Op

from .calls import ERRORS, Calls
from .settings import Settings

Queue = tuple[str, int]


def allocate(queues: Sequence[Queue], members: Sequence[str], me: str) -> tuple[Queue, ...]:
    """The queues of a member: blocks of equal size, the first ones one longer (the original's
    AllocateMessageQueueAveragely)."""
    if me not in members:
        return ()
    at, count = sorted(members).index(me), len(members)
    size, longer = divmod(len(queues), count)
    start = at * size + min(at, longer)
    return tuple(sorted(queues)[start : start + size + (at < longer)])


class GroupMember:
    """One consumer; `queues` are its own at present, and `members` all of the group, as it last
    heard. `topics`: name -> number of queues."""

    def __init__(
        self, settings: Settings, calls: Calls, group: str, client: str, topics: Mapping[str, int]
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
        self._tasks.start(self._belong())

    def close(self) -> None:
        """Stop. The others take the queues over once the brokers have missed this member."""
        self._tasks.cancel()
        self.queues = self.members = ()

    async def leave(self) -> None:
        """Stop, and say so to every master that answers, so that the others need not wait."""
        self.close()
        try:
            masters = await self._calls.masters()
        except ERRORS:
            return
        fields = {"group": self._group, "client": self._client}
        await asyncio.gather(*(self._say(address, fields) for address in masters.values()))

    async def _say(self, address: str, fields: Json) -> None:
        with suppress(*ERRORS):
            await self._calls.ask(address, Op.GROUP_LEAVE, fields)

    async def _belong(self) -> None:
        while True:
            await self._beat()
            await asyncio.sleep(self._period_s)

    async def _beat(self) -> None:
        """To every master; when none is reached, what is ours stays ours."""
        try:
            masters = await self._calls.masters()
        except ERRORS:
            return
        told = await asyncio.gather(*(self._members(address) for address in masters.values()))
        if known := [members for members in told if members is not None]:
            self.members = tuple(known[0])
            self.queues = allocate(self._all, self.members, self._client)

    async def _members(self, address: str) -> Sequence[str] | None:
        """Of the group, as a master knows them."""
        fields = {"group": self._group, "client": self._client, "topics": self._topics}
        try:
            reply = await self._calls.ask(address, Op.GROUP_HEARTBEAT, fields)
        except ERRORS:
            return None
        members: Sequence[str] = reply["members"]
        return members
