"""The desk of locks: whose a queue is, among the consumers of a group (spec 10.3).

A lock is a lease in memory. It ends `rebalanceLockMaxLiveTime` after it was last taken, which is
longer than its holder believes in it. The original forgets all locks when another master is
elected, so two consumers may own a queue until the first one's belief ends.

`lockInStrictMode`: a lock counts once a majority of `totalReplicas` brokers of the set has granted
it, so the next master can not give it away without one of those who know. A broker that has just
started has forgotten what it granted, and grants nothing until that has run out.
"""

import asyncio
from collections.abc import Awaitable

from ..controllers.leases import Leases
from ..net.connection import CallTimeout, Connection, ConnectionLost, Pool, Unreachable
from ..net.wire import Json, Op, Status
from .catalog import Place
from .handler import Desk, Table, not_master


class Locks:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        config = desk.config
        self._leases = Leases(config.lock_max_live_s, desk.rules.may_unlock)
        self._pool = Pool(config.lock_rpc_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._forgetful_until = self._loop.time() + config.lock_max_live_s

    def table(self) -> Table:
        return {
            Op.LOCK_QUEUE: self._lock,
            Op.UNLOCK_QUEUE: self._unlock,
            Op.LOCK_PEER: self._grant,
        }

    async def _lock(self, connection: Connection, fields: Json) -> Json:
        if not self._desk.is_master():
            return not_master()
        if not self._desk.config.lock_in_strict_mode:
            return {"locked": self._take(fields)}
        granted = (await self._grant(connection, fields))["locked"]
        peers = await self._peers(Op.LOCK_PEER, fields) if granted else []
        votes = 1 + sum(bool(reply.get("locked")) for reply in peers)
        enough = votes >= self._desk.config.total_replicas // 2 + 1
        return {"locked": granted and enough and self._desk.is_master()}

    async def _unlock(self, connection: Connection, fields: Json) -> Json:
        """Given back here, and by a master everywhere; a peer that can not be told, waits."""
        self._leases.give_back(_place(fields), str(fields["client"]))
        if self._desk.is_master() and self._desk.config.lock_in_strict_mode:
            await self._peers(Op.UNLOCK_QUEUE, fields)
        return {}

    async def _grant(self, connection: Connection, fields: Json) -> Json:
        """As one of a majority."""
        whole = self._desk.rules.memory_is_whole(self._loop.time(), self._forgetful_until)
        return {"locked": whole and self._take(fields)}

    def _take(self, fields: Json) -> bool:
        return self._leases.take(_place(fields), str(fields["client"]), self._loop.time())

    async def _peers(self, op: Op, fields: Json) -> list[Json]:
        reign = self._desk.changes()
        asked: list[Awaitable[Json]] = []
        if reign is not None:
            there = {*reign.addresses.values()}  # one may have had another id before
            asked = [self._peer(address, op, fields) for address in sorted(there)]
        return list(await asyncio.gather(*asked))

    async def _peer(self, address: str, op: Op, fields: Json) -> Json:
        try:
            timeout_s = self._desk.config.lock_rpc_timeout_s
            return await self._pool.ask(address, op, fields, timeout_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            self._pool.drop(address)
            return {"code": Status.SYSTEM_ERROR}


def _place(fields: Json) -> Place:
    return str(fields["group"]), str(fields["topic"]), int(fields["queueId"])
