"""A broker's part in a planned handover (docs/flotilla-design.md, Handover): no send fails.

    the controllers ask the master    it holds new sends, appends nothing, and answers when its
                                      successor has the whole log and metadata and all earlier sends
                                      are answered
    they elect the successor          the old master becomes its slave and goes on holding sends
    the new master accepts the slave  once the nameservers know the new master, the held sends are
                                      refused, and clients ask for the route and find it there

A held send is in no log, so its refusal is definite. If the successor does not catch up in time it
is not elected, and the held sends are appended. The same happens when the controllers fall silent.
The handover itself decides nothing: the election is an ordinary one from the SyncStateSet and safe
at any time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ..net.connection import (
    CallTimeout,
    ConnectionLost,
    FrameConnection,
    Pool,
    Tasks,
    Unreachable,
    refusal,
)
from ..net.wire import Json, Op, SendReply, SendRequest, Status
from ..world.timers import WakeEvent
from .handler import HandlerContext, HandlerTable
from .sends import MAX_WAITING_SENDS, Replier

MAX_HANDOVER_S = 60.0  # the longest time for which sends are held
Serve = Callable[[Replier, int, SendRequest], None]
HeldSend = tuple[Replier, int, SendRequest]


class HandoverHandler:
    """`acks`: the position of each slave; `waiting`: number of unanswered sends; `serve`: serves a
    send; `renounce`: ends the master's lease, at a time."""

    def __init__(
        self,
        context: HandlerContext,
        epoch: Callable[[], int],
        acks: Callable[[], Mapping[int, int | None]],
        waiting: Callable[[], int],
        serve: Serve,
        renounce: Callable[[float], None],
    ) -> None:
        self._context, self._epoch, self._acks = context, epoch, acks
        self._waiting, self._serve, self._renounce = waiting, serve, renounce
        self._loop = asyncio.get_running_loop()
        self._held: list[HeldSend] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._news = WakeEvent()
        self._tasks = Tasks()

    def table(self) -> HandlerTable:
        return {Op.HAND_OVER: self._hand_over, Op.RESUME: self._resume}

    def holds(self, connection: Replier, request: int, send: SendRequest) -> bool:
        """Hold a send while a handover is under way; return whether it is held."""
        if self._held is None:
            return False
        if len(self._held) < MAX_WAITING_SENDS:
            self._held.append((connection, request, send))
        else:
            busy = SendReply(Status.SYSTEM_BUSY, remark="too many sends wait for a new master")
            connection.reply(Op.SEND, request, busy.pack())
        return True

    def hold(self) -> None:
        """Hold new sends and changes of metadata until `end`."""
        if self._held is None:
            self._held = []
            self._context.may_change.clear()

    def take(self) -> list[HeldSend]:
        """Give up the held sends: the next part of this broker serves them. Changes of metadata
        are refused."""
        held, self._held = self._held or [], None
        self._context.may_change.set()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        return held

    def adopt(self, held: Sequence[HeldSend]) -> None:
        """Hold these sends, and new ones, until `end`."""
        self.hold()
        assert self._held is not None, "set by `hold`"
        self._held += held

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    async def wait_until_equal(self, is_equal: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether this is true within a time; it is asked again when a slave
        progresses."""
        deadline = self._loop.time() + timeout_s
        while self._held is not None and not is_equal():
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return False
            await self._news.wait(min(left_s, self._context.config.heartbeat_rpc_timeout_s / 20))
        return self._held is not None

    def slave_progressed(self) -> None:
        """A slave acknowledged something."""
        if self._held is not None:
            self._news.set()

    def connected(self, master: str) -> None:
        """The new master accepted this slave; end the handover when nameservers know the master."""
        if self._held is not None:
            self._tasks.start(self._end_when_routed(master))

    def close(self) -> None:
        self.end()
        self._tasks.cancel()

    def end(self) -> None:
        """Serve the held sends in the present role."""
        held, self._held = self._held, None
        self._context.may_change.set()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        for connection, request, send in held or ():
            self._serve(connection, request, send)

    async def _hand_over(self, connection: FrameConnection, fields: Json) -> Json:
        epoch, to = int(fields["masterEpoch"]), int(fields["to"])
        timeout_s = float(fields["timeoutMs"]) / 1000
        if not 0 < timeout_s <= MAX_HANDOVER_S:  # false for nan
            remark = f"timeoutMs must be above 0 and at most {MAX_HANDOVER_S * 1000:g}"
            return refusal(Status.INVALID_REQUEST, remark)
        if not self._context.is_master() or epoch != self._epoch():
            return refusal(Status.FENCED_MASTER_EPOCH, f"not the master of epoch {epoch}")
        if self._held is not None:
            return refusal(Status.SYSTEM_BUSY, "another handover is under way")
        self.hold()
        self._tasks.start(self.announce_metadata(to))
        if await self._caught_up(to, self._loop.time() + timeout_s):
            self._timer = self._loop.call_later(
                timeout_s, self.end
            )  # the election must follow soon
            self._renounce(self._loop.time())
            return {"maxOffset": self._context.replica.store.log.max_offset}
        self.end()
        return refusal(Status.FLUSH_SLAVE_TIMEOUT, f"broker {to} does not have everything in time")

    async def _caught_up(self, to: int, deadline: float) -> bool:
        may, log = self._context.rules.may_hand_over, self._context.replica.store.log
        while self._held is not None and (changes := self._context.changes()) is not None:
            ready = may(self._acks().get(to), log.max_offset, self._waiting())
            if ready and changes.has_all(to):
                return True
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return False
            await self._news.wait(left_s)
        return False

    async def announce_metadata(self, to: int) -> None:
        """Make the successor ask for metadata now instead of after its period."""
        changes, timeout_s = self._context.changes(), self._context.config.heartbeat_rpc_timeout_s
        address = changes.addresses.get(to) if changes else None
        if address is None:
            return
        pool = Pool(timeout_s)
        with suppress(Unreachable, ConnectionLost, CallTimeout):
            await pool.ask(address, Op.METADATA_NEWS, {}, timeout_s)
        pool.close()

    async def _resume(self, connection: FrameConnection, fields: Json) -> Json:
        if self._context.is_master() and int(fields["masterEpoch"]) == self._epoch():
            self.end()
        return {}

    async def _end_when_routed(self, master: str) -> None:
        pool = Pool(self._context.config.heartbeat_rpc_timeout_s)
        nameservers = self._context.config.nameservers
        try:
            await asyncio.gather(
                *(self._await_route(pool, address, master) for address in nameservers)
            )
        finally:
            pool.close()
        self.end()

    async def _await_route(self, pool: Pool, nameserver: str, master: str) -> None:
        """Wait until a nameserver routes to the master, or cannot be reached."""
        config = self._context.config
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
            await WakeEvent().wait(pause_s)
