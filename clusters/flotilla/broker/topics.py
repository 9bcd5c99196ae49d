"""The desk of topics: made and deleted while the cluster runs, durably before it is answered.

A topic's queues are counted for each broker set. A topic may get more queues later, never fewer:
messages in them would be out of reach. What is known of the others, their own masters know.
"""

from ..net.connection import Connection, refusal
from ..net.wire import Json, Op, Status
from . import catalog, topic_limits
from .handler import Desk, Table, not_master


class Topics:
    def __init__(self, desk: Desk) -> None:
        self._desk, self._catalog = desk, desk.replica.catalog

    def table(self) -> Table:
        return {Op.TOPIC_CREATE: self._create, Op.TOPIC_DELETE: self._delete}

    async def _create(self, connection: Connection, fields: Json) -> Json:
        name, queues = str(fields["topic"]), int(fields["queues"])
        if not self._desk.is_master():
            return not_master()
        if why := self._illegal(name, queues):
            return refusal(Status.MESSAGE_ILLEGAL, why)
        return await self._desk.make(catalog.topic(name, queues))

    async def _delete(self, connection: Connection, fields: Json) -> Json:
        name = str(fields["topic"])
        if not self._desk.is_master():
            return not_master()
        if name not in self._catalog.topics:
            return refusal(Status.TOPIC_NOT_EXIST, name)
        return await self._desk.make(catalog.topic(name, None))

    def _illegal(self, name: str, queues: int) -> str:
        if why := topic_limits.why_not(name, queues):
            return why
        if queues < (known := self._catalog.topics.get(name, 0)):
            return f"{name} has {known} queues, and cannot have fewer"
        return ""
