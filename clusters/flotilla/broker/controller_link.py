"""A broker's life with the controllers: get an id, register, follow or reign (spec 6).

    fenced -> registered -> master | slave, and back and forth with every election

A broker starts fenced and serves nobody before the controllers told it its role. Roles change only
forward, with the master's epoch, one change at a time. News of an election comes with a notice, a
poll, or the answer to a request of ours; all three are the same ReplicaInfo and go through `apply`.
What is older than the answer to our registration is news of a former life: a notice that left
before it could make us master of an epoch once more, with bytes that we have lost since.
A broker whose id turns out to be another's stops.
When the controllers fall silent a broker keeps its role for ever: there is no lease.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from ..config import Config
from ..events import EventLog
from ..net.connection import Tasks
from ..net.controller_client import Controllers, NoLeader, Uncertain
from ..net.wire import Json, Op, Status
from ..world.ports import Ports
from ..world.timers import Bell
from .identity import Identity

_ELECTED = (Status.SUCCESS, Status.MASTER_STILL_EXIST)


@dataclass(frozen=True)
class Standing:
    """What the controllers said last, as far as this broker acts on it."""

    epoch: int = 0
    master_id: int | None = None
    master_addr: str = ""
    master_ha_addr: str = ""
    members: tuple[int, ...] = ()
    set_epoch: int = 0

    @classmethod
    def of(cls, info: Json) -> "Standing":
        return cls(
            int(info["masterEpoch"]),
            None if info["masterId"] is None else int(info["masterId"]),
            str(info["masterAddr"] or ""),
            str(info["masterHaAddr"] or ""),
            tuple(int(i) for i in info["set"]),
            int(info["setEpoch"]),
        )


class Roles(Protocol):
    """What the broker does when its role changes."""

    async def reign(self, standing: Standing) -> None: ...

    async def follow(self, standing: Standing) -> None: ...

    def install_set(self, standing: Standing) -> None: ...


class Replicas:
    """Talks to the controllers and decides when the role changes."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        controllers: Controllers,
        roles: Roles,
        events: EventLog,
        beat: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = 0
        self.registered = False
        self.standing = Standing()
        self._config = config
        self._controllers = controllers
        self._roles = roles
        self._events = events
        self._beat = beat
        self._identity = Identity(config, ports)
        self._ports = ports
        self._tasks = Tasks()
        self._registered_in = 0  # the set's epoch; what is older was meant for a former life
        self._lock = asyncio.Lock()
        self._bell = Bell()

    def start(self) -> None:
        self._tasks.start(self._live())

    def close(self) -> None:
        self._tasks.cancel()

    def notice(self, info: Json) -> None:
        """News from the controllers, unasked."""
        if self.registered and info.get("brokerName") == self._config.broker_name:
            self._tasks.start(self._heed(Standing.of(info)))

    def ask_soon(self) -> None:
        """Something happened to the set: ask the controllers before it is time to."""
        self._bell.ring()

    # the story

    async def _live(self) -> None:
        while not await self._attempt(self._join) and self.standing.master_id is None:
            await self._pause()
        while True:
            await self._bell.wait(self._config.sync_broker_metadata_s)
            await self._attempt(self._poll)

    async def _attempt(self, step: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await step()
        except (NoLeader, Uncertain, _Refused):
            return False

    async def _pause(self) -> None:
        """Brokers that start together need not ask together."""
        longest_s = self._config.broker_heartbeat_interval_s
        await self._bell.wait(self._ports.randomness.uniform(longest_s / 20, longest_s / 4))

    async def _join(self) -> bool:
        """From nothing to a role. False: not yet.

        We register once in a life: to the controllers, a master that registers has restarted.
        """
        if self.registered:
            return await self._poll()
        self.id = self.id or await self._identity.obtain(self._ask) or 0
        if not self.id:
            return False
        info = await self._register()
        self.registered = True
        await self._beat()
        await self._heed(Standing.of(info))
        return self.standing.master_id is not None

    async def _register(self) -> Json:
        where = {"addr": self._config.address, "haAddr": self._config.ha_address}
        fields = self._me() | where | {"checkCode": self._identity.check_code()}
        reply = await self._ask(Op.REGISTER_TO_CONTROLLER, fields)
        if reply["code"] == Status.BROKER_ID_INVALID:
            self._give_up("was given to another broker; it was forgotten while it was down")
        if reply["code"] == Status.BROKER_NEED_TO_BE_REGISTERED:
            await self._identity.apply_again(self._ask)
        if reply["code"] != Status.SUCCESS:
            raise _Refused(str(reply.get("remark", "")))
        self._registered_in = max(self._registered_in, int(reply["masterEpoch"]))
        return reply

    async def _poll(self) -> bool:
        """Ask how things stand. False: there is no master yet."""
        reply = await self._ask(Op.REPLICA_INFO, {"brokerName": self._config.broker_name})
        unknown = reply["code"] == Status.BROKER_METADATA_NOT_EXIST
        if unknown or (reply["code"] == Status.SUCCESS and str(self.id) not in reply["members"]):
            self._events.write("forgotten", brokerId=self.id)
            await self._identity.apply_again(self._ask)
            reply = await self._register()
        if reply["code"] == Status.SUCCESS:
            await self._heed(Standing.of(reply))
        return self.standing.master_id is not None

    async def _heed(self, standing: Standing) -> None:
        """Act on what the controllers say; where there is no master, ask to become it."""
        if standing.master_id is None and standing.epoch >= self.standing.epoch:
            await self._elect()
        else:
            await self.apply(standing)

    async def _elect(self) -> None:
        try:
            reply = await self._ask(Op.ELECT_MASTER, self._me() | {"designate": False})
        except (NoLeader, Uncertain):
            return
        if reply["code"] in _ELECTED and reply["masterId"] is not None:
            await self.apply(Standing.of(reply))

    async def apply(self, new: Standing) -> None:
        """Take what the controllers said, if it is news; under one lock, never backwards."""
        async with self._lock:
            old = self.standing
            if new.epoch < max(old.epoch, self._registered_in) or new.master_id is None:
                return
            if new.master_id == self.id and new.master_addr != self._config.address:
                self._give_up(f"is also that of {new.master_addr}, which runs with a copy of it")
            if new.epoch == old.epoch:
                if new.set_epoch > old.set_epoch:
                    self.standing = new
                    self._roles.install_set(new)
                return
            self.standing = new
            self._tell_role(new)
            if new.master_id == self.id:
                await self._roles.reign(new)
            else:
                await self._roles.follow(new)

    def _give_up(self, why: str) -> NoReturn:
        """Two brokers of one id could both be master of one epoch."""
        who = f"{self._config.broker_name}, broker {self.id}"
        self._ports.exit.fatal(
            f"{who}: the id in {self._config.store}/broker.meta {why}; "
            "to make this one a new member, start it with an empty storePath"
        )

    def _tell_role(self, new: Standing) -> None:
        self._events.write(
            "role",
            role="master" if new.master_id == self.id else "slave",
            brokerName=self._config.broker_name,
            brokerId=self.id,
            masterId=new.master_id,
            masterAddr=new.master_addr,
            epoch=new.epoch,
        )

    async def _ask(self, op: Op, fields: Json) -> Json:
        return await self._controllers.ask(op, fields)

    def _me(self) -> Json:
        config = self._config
        return {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": self.id,
        }


class _Refused(Exception):
    """The controllers do not know us yet."""
