"""JSON requests to masters: finding the master, time limits, errors.

A call waits, within its time limit, until a master is known. It raises Unreachable, ConnectionLost
or CallTimeout for the network, and CallRefused for a status other than SUCCESS. A failed call
without an effect certainly did not happen; `outcome_of_failure` tells for the others. Every failure
asks for a fresh route, because only its use shows that a route is wrong.
"""

import asyncio
from collections.abc import Mapping

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import Json, Op, Status, from_json, to_json
from clusters.flotilla.world.timers import Notifier

from .broker_connections import BrokerConnections
from .outcomes import CallOutcome, outcome_of_error, outcome_of_status
from .route_cache import QueueLocation, RouteCache
from .settings import ClientSettings


class CallRefused(Exception):
    """The broker refused the request."""

    def __init__(self, address: str, status: Status, remark: str = "") -> None:
        super().__init__(f"{address}: {status.name} {remark}".rstrip())
        self.status, self.remark = status, remark


CALL_ERRORS = (Unreachable, ConnectionLost, CallTimeout, CallRefused)


class Calls:
    """Sends requests to the master of a queue, or of a broker set."""

    def __init__(
        self, settings: ClientSettings, routes: RouteCache, connections: BrokerConnections
    ) -> None:
        self.timeout_s = settings.request_timeout_s
        self._routes = routes
        self._connections = connections
        self._route_changed = Notifier()
        routes.on_change.append(self._route_changed.notify_all)

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
            raise CallRefused(address, status, str(reply.get("remark", "")))
        return reply

    async def call(self, address: str, op: Op, body: bytes, timeout_s: float) -> bytes:
        try:
            return await self._connections.call(address, op, body, timeout_s)
        except Exception:
            self._routes.refresh()
            raise

    async def place(self, topic: str, queue: int) -> QueueLocation:
        """Return the location of a queue. Raises Unreachable if no master is known in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while (place := self._routes.place(topic, queue)) is None:
                    await self._change()
        except TimeoutError as e:
            raise Unreachable(f"no master is known for {topic}-{queue}") from e
        return place

    async def masters(self) -> Mapping[str, str]:
        """Return the master of each broker set that has one. Raises Unreachable if none in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                while not (masters := self._routes.masters()):
                    await self._change()
        except TimeoutError as e:
            raise Unreachable("no master is known") from e
        return masters

    async def all_masters(self) -> Mapping[str, str]:
        """Return the master of every broker set. Raises Unreachable if one has none in time."""
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
        await self._route_changed.wait()


def malformed(address: str, error: Exception) -> CallRefused:
    return CallRefused(address, Status.SYSTEM_ERROR, f"a malformed answer: {error}")


def outcome_of_failure(error: Exception) -> CallOutcome:
    """Return the outcome of a failed call that has an effect."""
    return (
        outcome_of_status(error.status)
        if isinstance(error, CallRefused)
        else outcome_of_error(error)
    )
