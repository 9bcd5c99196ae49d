"""A broker's entries at the nameservers, renewed when its role changes and from time to time.

Between two registrations, which carry all topics, light heartbeats say that the broker is alive; a
nameserver that answers that it does not know the broker is registered with at once, and so is one
that hangs up: for it the end of a connection may be a broker's, and one of the first edition, which
knows no light heartbeats, hangs up at each. Heartbeats to the controllers go the same way.

Each nameserver has its own task and its own connection, so one that is out of reach delays no
other. The connection stays open: a nameserver takes its end for the broker's.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ..net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from ..net.controller_client import Controllers
from ..net.wire import Json, Op
from ..world.timers import Bell

LIGHT = ("brokerName", "brokerId", "addr", "life", "beat")  # of a registration


@dataclass(frozen=True)
class Pace:
    """How often a broker registers, and how often it says in between that it is alive, if so.

    `answer_s`: a heartbeat's answer may take that long; `patience_s`: a registration's, and after a
    silence of that length the connection is given up.
    """

    register_s: float
    heartbeat_s: float | None
    answer_s: float
    patience_s: float


class Registrar:
    """Keeps `fields()` registered everywhere; nothing is sent while it gives None."""

    def __init__(
        self, addresses: tuple[str, ...], pace: Pace, fields: Callable[[], Json | None]
    ) -> None:
        self._pool = Pool(pace.patience_s)
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._fields = fields
        self._tasks = Tasks()
        self._bells = {address: Bell() for address in addresses}
        self._heard_at = dict.fromkeys(addresses, self._loop.time())

    def start(self) -> None:
        for address in self._bells:
            self._tasks.start(self._keep(address))

    def renew(self) -> None:
        """Something changed: tell every nameserver now."""
        for bell in self._bells.values():
            bell.ring()

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    async def _keep(self, address: str) -> None:
        """Register when something changed or it is time to; be heard in between."""
        pace, bell, due = self._pace, self._bells[address], 0.0
        often_s = pace.heartbeat_s or pace.register_s
        while True:
            if self._loop.time() >= due:
                told = await self._register(address)
                again_s = pace.register_s if told else min(often_s, pace.register_s / 10)
                due = self._loop.time() + again_s
            elif pace.heartbeat_s and not await self._beat(address):
                due = 0.0
                continue
            if await bell.wait(min(often_s, max(due - self._loop.time(), 0.0))):
                due = 0.0

    async def _register(self, address: str) -> bool:
        fields = self._fields()
        if fields is None:
            return True
        try:
            reply = await self._ask(address, Op.REGISTER_BROKER, fields, self._pace.patience_s)
        except ConnectionLost:
            return False
        return reply is not None

    async def _beat(self, address: str) -> bool:
        """False: the nameserver does not know us, or us no more."""
        fields = self._fields()
        if fields is None:
            return True
        light = {name: fields[name] for name in LIGHT}
        try:
            reply = await self._ask(address, Op.NAMESERVER_HEARTBEAT, light, self._pace.answer_s)
        except ConnectionLost:
            return False
        return reply is None or bool(reply.get("known"))

    async def _ask(self, address: str, op: Op, fields: Json, timeout_s: float) -> Json | None:
        """The answer; None: there is none in time. ConnectionLost: it hung up."""
        try:
            reply = await self._pool.ask(address, op, fields, timeout_s)
        except (Unreachable, CallTimeout):
            if self._loop.time() - self._heard_at[address] > self._pace.patience_s:
                self._pool.drop(address)
                self._heard_at[address] = self._loop.time()
            return None
        self._heard_at[address] = self._loop.time()
        return reply


class Heartbeats:
    """Heartbeats to every controller, none waiting for another (apache/rocketmq#5929).

    A controller that was added must know who is alive soon after it begins to lead, so each answer
    says which controllers there are, learners among them.
    """

    def __init__(
        self,
        controllers: Controllers,
        period_s: float,
        timeout_s: float,
        patience_s: float,
        fields: Callable[[], Json | None],
    ) -> None:
        self._controllers = controllers
        self._pool = Pool(timeout_s)
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._fields = fields
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._bells: dict[str, Bell] = {}

    def start(self) -> None:
        """Begin; or, later on, begin with the controllers that are new."""
        for address in self._controllers.addresses:
            if address not in self._bells:
                self._bells[address] = Bell()
                self._tasks.start(self._keep(address))

    def beat_now(self) -> None:
        for bell in self._bells.values():
            bell.ring()

    async def beat(self, address: str | None) -> None:
        """One heartbeat, waited for: to this controller, or to all when it is not known."""
        wanted = [address] if address else self._controllers.addresses
        await asyncio.gather(*(self._beat(a) for a in wanted))

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    async def _keep(self, address: str) -> None:
        answered_at = self._loop.time()
        while address in self._controllers.addresses:
            if await self._beat(address):
                answered_at = self._loop.time()
            elif self._loop.time() - answered_at > self._patience_s:
                self._pool.drop(address)
                answered_at = self._loop.time()
            await self._bells[address].wait(self._period_s)
        del self._bells[address]
        self._pool.drop(address)

    async def _beat(self, address: str) -> bool:
        fields = self._fields()
        if fields is None:
            return True
        try:
            reply = await self._pool.ask(address, Op.BROKER_HEARTBEAT, fields, self._timeout_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            return False
        if told := reply.get("controllers"):
            self._controllers.heed(told, int(reply["asOf"]))
            self.start()
        return True
