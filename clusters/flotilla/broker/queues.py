"""The desk of queues: how far each reaches, how far groups have come, and the copy for slaves.

A group's offset is committed forwards only; a reset takes it anywhere within the queue. An offset
behind the queue's end is refused: it was read from a fork (apache/rocketmq#4771). One behind what
is confirmed has to wait.
"""

from collections.abc import Callable

from ..net.connection import Connection, refusal
from ..net.wire import Json, Op, Senseless, Status
from ..world.timers import LONGEST_WAIT_S
from . import catalog, topic_limits
from .catalog import Place, Version
from .handler import Desk, Table, not_master


class Queues:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._store, self._catalog = desk.replica.store, desk.replica.catalog

    def table(self) -> Table:
        return {
            Op.QUEUE_RANGE: self._range,
            Op.OFFSET_QUERY: self._query,
            Op.OFFSET_COMMIT: self._commit,
            Op.OFFSET_RESET: self._reset,
            Op.METADATA: self._metadata,
            Op.METADATA_SYNC: self._sync,
        }

    async def _range(self, connection: Connection, fields: Json) -> Json:
        topic, queue = str(fields["topic"]), int(fields["queueId"])
        if refused := self._refused(topic, queue):
            return refused
        low, high = self._store.range((topic.encode(), queue))
        return {"minOffset": low, "maxOffset": high}

    async def _query(self, connection: Connection, fields: Json) -> Json:
        place = _place(fields)
        if refused := self._refused(place[1], place[2]):
            return refused
        return self._unsettled() or {"offset": self._catalog.offset(place)}

    async def _commit(self, connection: Connection, fields: Json) -> Json:
        return await self._move(fields, catalog.commit)

    async def _reset(self, connection: Connection, fields: Json) -> Json:
        return await self._move(fields, catalog.reset)

    async def _move(self, fields: Json, change: Callable[[Place, int], catalog.Change]) -> Json:
        place, offset = _place(fields), int(fields["offset"])
        if refused := self._refused(place[1], place[2]) or self._beyond(place, offset):
            return refused
        if why := topic_limits.why_not_group(place[0]):
            return refusal(Status.MESSAGE_ILLEGAL, why)
        return await self._desk.make(change(place, offset))

    async def _sync(self, connection: Connection, fields: Json) -> Json:
        reign = self._desk.changes()
        if "version" not in fields:  # a slave of the first edition takes the offsets out of all
            return not_master() if reign is None else self._catalog.copy()
        if missing := [name for name in ("brokerId", "addr", "waitMs") if name not in fields]:
            raise Senseless(f"{missing[0]} is missing")
        slave, held = int(fields["brokerId"]), Version.of(fields["version"])
        wait_s = min(float(fields["waitMs"]) / 1000, LONGEST_WAIT_S)
        news = (
            None
            if reign is None
            else await reign.news_for(slave, str(fields["addr"]), held, wait_s)
        )
        return not_master() if news is None else news

    async def _metadata(self, connection: Connection, fields: Json) -> Json:
        return self._unsettled() or self._catalog.copy()

    def _unsettled(self) -> Json | None:
        """Why nobody may be told what we know."""
        reign = self._desk.changes()
        if reign is None:
            return not_master()
        if not reign.settled:
            return refusal(Status.SERVICE_NOT_AVAILABLE, "the set does not hold our metadata yet")
        return None

    def _refused(self, topic: str, queue: int) -> Json | None:
        if not self._desk.is_master():
            return not_master()
        queues = self._catalog.topics.get(topic)
        if queues is None:
            return refusal(Status.TOPIC_NOT_EXIST, topic)
        if not 0 <= queue < queues:
            return refusal(Status.MESSAGE_ILLEGAL, f"{topic} has {queues} queues")
        return None

    def _beyond(self, place: Place, offset: int) -> Json | None:
        """Behind its end there is nothing that anybody was given."""
        _, topic, queue = place
        key = topic.encode(), queue
        known = self._store.queues().get(key)
        end = known.end if known else 0
        if 0 <= offset <= self._store.range(key)[1]:
            return None
        if 0 <= offset <= end:
            return refusal(Status.SERVICE_NOT_AVAILABLE, "what is before it is not confirmed yet")
        return refusal(Status.PULL_OFFSET_MOVED, f"{topic}-{queue} ends at {end}, not {offset}")


def _place(fields: Json) -> Place:
    return str(fields["group"]), str(fields["topic"]), int(fields["queueId"])
