"""A broker's part in a planned handover (spec 5.1, the operator's election): nobody notices it.

    the controllers ask the master     it holds the sends that come, appends nothing, and answers as
                                       soon as its successor has everything and all sends are told;
                                       the same goes for metadata, of which it tells the successor
                                       that there may be news
    they elect the successor           the old master becomes its slave; what it holds it goes on
                                       holding, and whatever else comes
    the new master takes us for slave  it serves, then: once the nameservers know it, held sends are
                                       refused, and clients, which ask for a route, find it there

Nothing that is held is in any log or catalog, so to refuse it is the truth. A successor that does
not catch up in time is not elected, and the held sends are appended as if they had come just now.
The same happens when the controllers fall silent. All this decides nothing: the election is an
ordinary one out of the SyncStateSet, safe whenever it comes.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from ..net.connection import (
    CallTimeout,
    Connection,
    ConnectionLost,
    Pool,
    Tasks,
    Unreachable,
    refusal,
)
from ..net.wire import Json, Op, Send, Sent, Status
from ..world.timers import Bell
from .handler import Desk, Table
from .sends import MOST_WAITING

LONGEST_S = 60.0  # sends are held meanwhile
Serve = Callable[[Connection, int, Send], None]


class Handover:
    """`acks`: what each slave holds; `waiting`: sends without an answer; `serve`: take a send."""

    def __init__(
        self,
        desk: Desk,
        epoch: Callable[[], int],
        acks: Callable[[], Mapping[int, int | None]],
        waiting: Callable[[], int],
        serve: Serve,
    ) -> None:
        self._desk, self._epoch, self._acks = desk, epoch, acks
        self._waiting, self._serve = waiting, serve
        self._loop = asyncio.get_running_loop()
        self._held: list[tuple[Connection, int, Send]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news = Bell()
        self._tasks = Tasks()

    def table(self) -> Table:
        return {Op.HAND_OVER: self._hand_over, Op.RESUME: self._resume}

    def holds(self, connection: Connection, request: int, send: Send) -> bool:
        """Is a handover under way? Then the send waits here."""
        if self._held is None:
            return False
        if len(self._held) < MOST_WAITING:
            self._held.append((connection, request, send))
        else:
            busy = Sent(Status.SYSTEM_BUSY, remark="too many sends wait for a new master")
            connection.reply(Op.SEND, request, busy.pack())
        return True

    def look(self) -> None:
        """A slave has come further."""
        if self._held is not None:
            self._news.ring()

    def connected(self, master: str) -> None:
        """We are its slave now, so it serves; nothing is refused before clients can find it."""
        if self._held is not None:
            self._tasks.start(self._end_when_known(master))

    def close(self) -> None:
        self.end()
        self._tasks.cancel()

    def end(self) -> None:
        """Serve what was held, as what we are now."""
        held, self._held = self._held, None
        self._desk.may_change.set()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        for connection, request, send in held or ():
            self._serve(connection, request, send)

    async def _hand_over(self, connection: Connection, fields: Json) -> Json:
        epoch, to = int(fields["masterEpoch"]), int(fields["to"])
        timeout_s = float(fields["timeoutMs"]) / 1000
        if not 0 < timeout_s <= LONGEST_S:  # which nan is not
            remark = f"timeoutMs must be above 0 and at most {LONGEST_S * 1000:g}"
            return refusal(Status.INVALID_REQUEST, remark)
        if not self._desk.is_master() or epoch != self._epoch():
            return refusal(Status.FENCED_MASTER_EPOCH, f"not the master of epoch {epoch}")
        if self._held is not None:
            return refusal(Status.SYSTEM_BUSY, "another handover is under way")
        self._held = []
        self._desk.may_change.clear()
        self._tasks.start(self._tell_news(to))
        if await self._caught_up(to, self._loop.time() + timeout_s):
            self._timer = self._loop.call_later(timeout_s, self.end)  # whoever wins must come soon
            return {"maxOffset": self._desk.replica.store.log.max_offset}
        self.end()
        return refusal(Status.FLUSH_SLAVE_TIMEOUT, f"broker {to} does not have everything in time")

    async def _caught_up(self, to: int, deadline: float) -> bool:
        may, log = self._desk.rules.may_hand_over, self._desk.replica.store.log
        while self._held is not None and (reign := self._desk.changes()) is not None:
            ready = may(self._acks().get(to), log.max_offset, self._waiting())
            if ready and reign.has_all(to):
                return True
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return False
            await self._news.wait(left_s)
        return False

    async def _tell_news(self, to: int) -> None:
        """Slaves ask now and then, this one at once. If it does not hear of it, time will tell."""
        reign, timeout_s = self._desk.changes(), self._desk.config.heartbeat_rpc_timeout_s
        address = reign.addresses.get(to) if reign else None
        if address is None:
            return
        pool = Pool(timeout_s)
        with suppress(Unreachable, ConnectionLost, CallTimeout):
            await pool.ask(address, Op.METADATA_NEWS, {}, timeout_s)
        pool.close()

    async def _resume(self, connection: Connection, fields: Json) -> Json:
        if self._desk.is_master() and int(fields["masterEpoch"]) == self._epoch():
            self.end()
        return {}

    async def _end_when_known(self, master: str) -> None:
        pool = Pool(self._desk.config.heartbeat_rpc_timeout_s)
        nameservers = self._desk.config.nameservers
        try:
            await asyncio.gather(*(self._known(pool, address, master) for address in nameservers))
        finally:
            pool.close()
        self.end()

    async def _known(self, pool: Pool, nameserver: str, master: str) -> None:
        """Until this nameserver routes to the master, or can not be asked."""
        config = self._desk.config
        pause_s = config.broker_heartbeat_interval_s / 100
        wanted = {"brokerName": config.broker_name}
        while self._held is not None:
            try:
                reply = await pool.ask(
                    nameserver, Op.MEMBER_GROUP, wanted, config.heartbeat_rpc_timeout_s
                )
            except (Unreachable, ConnectionLost, CallTimeout):
                return
            if reply.get("members", {}).get("0") == master:
                return
            await Bell().wait(pause_s)
