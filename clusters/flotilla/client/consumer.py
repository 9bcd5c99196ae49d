"""The pull consumer: reads a queue of the master by offset, and keeps a group's offset on it.

Calls wait for a master to be known, within their timeout, and raise when it does not work out:
Unreachable, ConnectionLost or CallTimeout from the network, Refused from the broker. Reading has
no effect, so every error of a read means that it did not happen; only a commit can be uncertain.
"""

import asyncio
import struct

from clusters.flotilla.net import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.wire import Json, Op, Pull, Pulled, Status, from_json, to_json

from .links import Links
from .outcomes import Outcome, of_error, of_status
from .routes import Place, Routes
from .settings import Settings


class Refused(Exception):
    """The broker answered, and not with what was asked for."""

    def __init__(self, address: str, status: Status, remark: str = "") -> None:
        super().__init__(f"{address}: {status.name} {remark}".rstrip())
        self.status = status


ERRORS = (Unreachable, ConnectionLost, CallTimeout, Refused)


class Consumer:
    """Reads queues and keeps group offsets."""

    def __init__(self, settings: Settings, routes: Routes, links: Links) -> None:
        self._timeout_s = settings.request_timeout_s
        self._routes = routes
        self._links = links
        self._changed: list[asyncio.Future[None]] = []
        routes.on_change.append(self._wake)

    async def pull(self, topic: str, queue: int, offset: int, limit: int, wait_s: float) -> Pulled:
        """Messages from `offset` on, waiting up to `wait_s` for the first."""
        place = await self._place(topic, queue)
        request = Pull(topic, place.queue, offset, limit, round(wait_s * 1000))
        reply = await self._call(place, Op.PULL, request.pack(), self._timeout_s + wait_s)
        try:
            pulled = Pulled.unpack(reply)
        except (ValueError, struct.error) as e:
            raise _malformed(place, e) from e
        if pulled.status in (Status.SUCCESS, Status.PULL_NOT_FOUND, Status.PULL_OFFSET_MOVED):
            return pulled
        self._routes.refresh()
        raise Refused(place.address, pulled.status)

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """The queue's minimum offset and the offset after its last readable message."""
        fields = await self._ask(topic, queue, Op.QUEUE_RANGE, {})
        return int(fields["minOffset"]), int(fields["maxOffset"])

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """The group's offset; -1 when it has none."""
        fields = await self._ask(topic, queue, Op.OFFSET_QUERY, {"group": group})
        return int(fields["offset"])

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        await self._ask(topic, queue, Op.OFFSET_COMMIT, {"group": group, "offset": offset})

    async def _ask(self, topic: str, queue: int, op: Op, fields: Json) -> Json:
        place = await self._place(topic, queue)
        request = {"topic": topic, "queueId": place.queue, **fields}
        body = await self._call(place, op, to_json(request), self._timeout_s)
        try:
            reply = from_json(body)
            status = Status(reply["code"])
        except (ValueError, KeyError) as e:
            raise _malformed(place, e) from e
        if status != Status.SUCCESS:
            self._routes.refresh()
            raise Refused(place.address, status, str(reply.get("remark", "")))
        return reply

    async def _call(self, place: Place, op: Op, body: bytes, timeout_s: float) -> bytes:
        try:
            return await self._links.call(place.address, op, body, timeout_s)
        except Exception:
            self._routes.refresh()
            raise

    async def _place(self, topic: str, queue: int) -> Place:
        """Where the queue is. Unreachable when no master is known in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while (place := self._routes.place(topic, queue)) is None:
                    self._routes.refresh()
                    await self._change()
        except TimeoutError as e:
            raise Unreachable(f"no master is known for {topic}-{queue}") from e
        return place

    async def _change(self) -> None:
        """Wait until a route may have changed."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed.append(changed)
        await changed

    def _wake(self) -> None:
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)


def _malformed(place: Place, error: Exception) -> Refused:
    return Refused(place.address, Status.SYSTEM_ERROR, f"a malformed answer: {error}")


def outcome_of(error: Exception) -> Outcome:
    """What a failed call that has an effect leaves behind."""
    return of_status(error.status) if isinstance(error, Refused) else of_error(error)
