"""The pull consumer: reads a queue of the master by offset, and keeps a group's offset on it.

Errors are those of `calls`. Reading has no effect, so every error of a read means that it did not
happen; only a commit, a reset or a lock can be uncertain.

A *lock* makes a queue one consumer's own, for ordered consumption: the broker keeps it 60 s from
the last time that it was taken, its holder believes in it for 30 s from when he asked, and takes it
again every 20 s (spec 10.3), so a holder that can not reach its broker stops before another begins.
"""

import asyncio
import struct
from typing import NamedTuple

from clusters.flotilla.net.wire import Op, Pull, Pulled, Status

from .calls import Calls, Refused, malformed
from .routes import Routes
from .settings import Settings


class Keyed(NamedTuple):
    """A message that was found by its key. `queue`: the broker's own number."""

    address: str
    queue: int
    queue_offset: int
    epoch: int
    body: bytes


class Consumer:
    """Reads queues and keeps group offsets.

    Of a master, unless it suggests a slave, which then holds for one pull: whatever goes wrong with
    a slave, the next pull is the master's again; one that a slave can not serve, even this one.
    """

    def __init__(self, settings: Settings, routes: Routes, calls: Calls) -> None:
        self._lease_s = settings.lock_lease_s
        self._routes = routes
        self._calls = calls
        self._read_from: dict[tuple[str, int], int] = {}  # the slave that was suggested

    async def pull(self, topic: str, queue: int, offset: int, limit: int, wait_s: float) -> Pulled:
        """Messages from `offset` on, waiting up to `wait_s` for the first."""
        calls = self._calls
        place = await calls.place(topic, queue)
        request = Pull(topic, place.queue, offset, limit, round(wait_s * 1000), times=True)
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
        raise Refused(address, pulled.status)

    async def _pull(self, address: str, request: Pull) -> Pulled:
        timeout_s = self._calls.timeout_s + request.wait_ms / 1000
        reply = await self._calls.call(address, Op.PULL, request.pack(), timeout_s)
        try:
            return Pulled.unpack(reply)
        except (ValueError, struct.error) as e:
            raise malformed(address, e) from e

    async def find(self, topic: str, key: bytes, limit: int = 64) -> list[Keyed]:
        """The messages that carry a key, of each broker set the oldest ones, in log order."""
        found = []
        fields = {"topic": topic, "key": key.hex(), "maxNum": limit}
        for address in (await self._calls.masters()).values():
            reply = await self._calls.ask(address, Op.QUERY_BY_KEY, fields)
            for row in reply["messages"]:
                place = (address, int(row["queueId"]), int(row["queueOffset"]), int(row["epoch"]))
                found.append(Keyed(*place, bytes.fromhex(row["body"])))
        return found

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        """The queue's minimum offset and the offset after its last readable message."""
        fields = await self._calls.of_queue(topic, queue, Op.QUEUE_RANGE, {})
        return int(fields["minOffset"]), int(fields["maxOffset"])

    async def committed(self, group: str, topic: str, queue: int) -> int:
        """The group's offset; -1 when it has none."""
        fields = await self._calls.of_queue(topic, queue, Op.OFFSET_QUERY, {"group": group})
        return int(fields["offset"])

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Never backwards: an offset that is lower than the group's changes nothing."""
        fields = {"group": group, "offset": offset}
        await self._calls.of_queue(topic, queue, Op.OFFSET_COMMIT, fields)

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Take the group to this offset, wherever it is; for groups that do not run now."""
        fields = {"group": group, "offset": offset}
        await self._calls.of_queue(topic, queue, Op.OFFSET_RESET, fields)

    async def lock(self, group: str, client: str, topic: str, queue: int) -> float:
        """Take a lock, or take it again; until when it is ours, by the loop's time; 0: it is
        another's."""
        asked_at = asyncio.get_running_loop().time()
        fields = {"group": group, "client": client}
        reply = await self._calls.of_queue(topic, queue, Op.LOCK_QUEUE, fields)
        return asked_at + self._lease_s if reply["locked"] else 0.0

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> None:
        fields = {"group": group, "client": client}
        await self._calls.of_queue(topic, queue, Op.UNLOCK_QUEUE, fields)
