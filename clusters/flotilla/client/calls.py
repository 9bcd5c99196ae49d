"""Questions and orders to masters, in JSON: who is asked, how long, and what comes back.

A call waits for a master to be known, within its timeout, and raises when it does not work out:
Unreachable, ConnectionLost or CallTimeout from the network, Refused from the broker. What has no
effect certainly did not happen then; of the rest, `outcome_of` tells. Every failure asks for a
fresh route, because a route that is wrong is only found out by using it.
"""

import asyncio
from collections.abc import Mapping

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status, from_json, to_json
from clusters.flotilla.world.timers import Signal

from .links import Links
from .outcomes import Outcome, of_error, of_status
from .place import Place
from .routes import Routes
from .settings import Settings


class Refused(Exception):
    """The broker answered, and not with what was asked for."""

    def __init__(self, address: str, status: Status, remark: str = "") -> None:
        super().__init__(f"{address}: {status.name} {remark}".rstrip())
        self.status, self.remark = status, remark


ERRORS = (Unreachable, ConnectionLost, CallTimeout, Refused)


class Calls:
    """Asks the master of a queue, or of a broker set."""

    def __init__(self, settings: Settings, routes: Routes, links: Links) -> None:
        self.timeout_s = settings.request_timeout_s
        self._routes = routes
        self._links = links
        self._changed = Signal()
        routes.on_change.append(self._changed.give)

    async def of_queue(self, topic: str, queue: int, op: Op, fields: Json) -> Json:
        place = await self.place(topic, queue)
        return await self.ask(place.address, op, {"topic": topic, "queueId": place.queue, **fields})

    async def ask(self, address: str, op: Op, fields: Json) -> Json:
        body = await self.call(address, op, to_json(fields), self.timeout_s)
        try:
            reply = from_json(body)
            status = Status(reply["code"])
        except (ValueError, KeyError) as e:
            raise malformed(address, e) from e
        if status != Status.SUCCESS:
            self._routes.refresh()
            raise Refused(address, status, str(reply.get("remark", "")))
        return reply

    async def call(self, address: str, op: Op, body: bytes, timeout_s: float) -> bytes:
        try:
            return await self._links.call(address, op, body, timeout_s)
        except Exception:
            self._routes.refresh()
            raise

    async def place(self, topic: str, queue: int) -> Place:
        """Where the queue is. Unreachable when no master is known in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while (place := self._routes.place(topic, queue)) is None:
                    await self._change()
        except TimeoutError as e:
            raise Unreachable(f"no master is known for {topic}-{queue}") from e
        return place

    async def masters(self) -> Mapping[str, str]:
        """The master of each broker set that has one. Unreachable when none is known in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while not (masters := self._routes.masters()):
                    await self._change()
        except TimeoutError as e:
            raise Unreachable("no master is known") from e
        return masters

    async def all_masters(self) -> Mapping[str, str]:
        """The master of every broker set. Unreachable when one has none for all that time."""
        await self.masters()
        try:
            async with asyncio.timeout(self.timeout_s):
                while headless := self._routes.headless():
                    await self._change()
        except TimeoutError as e:
            raise Unreachable(f"no master is known of {', '.join(headless)}") from e
        return self._routes.masters()

    async def _change(self) -> None:
        """Wait until a route may have changed."""
        self._routes.refresh()
        await self._changed.wait()


def malformed(address: str, error: Exception) -> Refused:
    return Refused(address, Status.SYSTEM_ERROR, f"a malformed answer: {error}")


def outcome_of(error: Exception) -> Outcome:
    """What a failed call that has an effect leaves behind."""
    return of_status(error.status) if isinstance(error, Refused) else of_error(error)
