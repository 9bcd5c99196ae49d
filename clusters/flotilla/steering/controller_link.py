"""A broker's link to the controllers: get an id, register, become slave or master.

    fenced -> registered -> master | slave, and back and forth with every election

(docs/flotilla-design.md, States and roles.) A broker starts fenced and serves no request before the
controllers tell it its role. Roles change only forwards, with the master's epoch, one change at a
time. The result of an election arrives as a notice, as the answer to a poll, or as the answer to
another request; all three are the same ReplicaInfo and go through `apply`. A ReplicaInfo that is
older than the answer to this process's registration was meant for an earlier process: it could make
this one master of an epoch again, with bytes that were lost since. A broker whose id turns out to
belong to another broker stops. Without controllers a broker keeps its role: there is no lease.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from ..config import Config
from ..conversion.rules import may_lead
from ..events import EventLog
from ..net.connection import Tasks
from ..net.controller_client import ControllerClient, NoLeader, OutcomeUnknown
from ..net.wire import Json, Op, Status
from ..world.ports import Ports
from ..world.timers import WakeEvent
from .identity import Identity
from .steering import ReplicaInfo, RoleHandler, SetAuthority

_ELECTED = (Status.SUCCESS, Status.MASTER_STILL_EXIST)


class ControllerLink:
    """Talks to the controllers and decides when the role changes; implements
    `steering.Steering`."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        controllers: ControllerClient,
        roles: RoleHandler,
        events: EventLog,
        beat: Callable[[], Awaitable[None]],
        may_lead: Callable[[bool], bool] = may_lead,
    ) -> None:
        self._may_lead = may_lead
        self.id = 0
        self.registered = False
        self.halted = ""
        self.info = ReplicaInfo()
        self.authority: SetAuthority | None = controllers
        self._config = config
        self._controllers = controllers
        self._roles = roles
        self._events = events
        self._beat = beat
        self._identity = Identity(config, ports)
        self._ports = ports
        self._tasks = Tasks()
        self._frozen = False
        self._registered_in = (
            0  # the epoch of the set; older infos were meant for an earlier process
        )
        self._lock = asyncio.Lock()
        self._wake = WakeEvent()

    def start(self) -> None:
        self._tasks.start(self._run())

    def close(self) -> None:
        self._tasks.cancel()

    def hand_back(self) -> None:
        """Do nothing: with controllers no broker serves for an absent master."""

    def notice(self, info: Json) -> None:
        """Act on a notice of the controllers."""
        if self.registered and info.get("brokerName") == self._config.broker_name:
            self._tasks.start(self._act_on(ReplicaInfo.of(info)))

    def ask_soon(self) -> None:
        """Poll the controllers now."""
        self._wake.set()

    def freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        if not frozen:
            self.ask_soon()

    def suspend(self, suspended: bool) -> None:
        """Do nothing: a master that is deposed is not converted."""

    async def _run(self) -> None:
        while not await self._attempt(self._join) and self.info.master_id is None:
            await self._pause()
        while True:
            await self._wake.wait(self._config.sync_broker_metadata_s)
            await self._attempt(self._poll)

    async def _attempt(self, step: Callable[[], Awaitable[bool]]) -> bool:
        try:
            return await step()
        except (NoLeader, OutcomeUnknown, _RegistrationRefused):
            return False

    async def _pause(self) -> None:
        """Wait for a random time, so that brokers which start together do not ask together."""
        longest_s = self._config.broker_heartbeat_interval_s
        await self._wake.wait(self._ports.randomness.uniform(longest_s / 20, longest_s / 4))

    async def _join(self) -> bool:
        """Get an id, register, and act on the answer. Return whether there is a master.

        A process registers once: the controllers take a master that registers for a restarted one.
        """
        if self.registered:
            return await self._poll()
        self.id = self.id or await self._identity.obtain(self._ask) or 0
        if not self.id:
            return False
        info = await self._register()
        self.registered = True
        await self._beat()
        await self._act_on(ReplicaInfo.of(info))
        return self.info.master_id is not None

    async def _register(self) -> Json:
        addresses = {"addr": self._config.address, "haAddr": self._config.ha_address}
        fields = self._me() | addresses | {"checkCode": self._identity.check_code()}
        reply = await self._ask(Op.REGISTER_TO_CONTROLLER, fields)
        if reply["code"] == Status.BROKER_ID_INVALID:
            self._give_up("was given to another broker; it was forgotten while it was down")
        if reply["code"] == Status.BROKER_NEED_TO_BE_REGISTERED:
            await self._identity.apply_again(self._ask)
        if reply["code"] != Status.SUCCESS:
            raise _RegistrationRefused(str(reply.get("remark", "")))
        self._registered_in = max(self._registered_in, int(reply["masterEpoch"]))
        return reply

    async def _poll(self) -> bool:
        """Poll the controllers and act on the answer. Return whether there is a master."""
        reply = await self._ask(Op.REPLICA_INFO, {"brokerName": self._config.broker_name})
        unknown = reply["code"] == Status.BROKER_METADATA_NOT_EXIST
        if unknown or (reply["code"] == Status.SUCCESS and str(self.id) not in reply["members"]):
            self._events.write("forgotten", brokerId=self.id)
            await self._identity.apply_again(self._ask)
            reply = await self._register()
        if reply["code"] == Status.SUCCESS:
            await self._act_on(ReplicaInfo.of(reply))
        return self.info.master_id is not None

    async def _act_on(self, info: ReplicaInfo) -> None:
        """Apply an info; if there is no master, ask to be elected."""
        if info.master_id is None and info.epoch >= self.info.epoch:
            await self._elect()
        else:
            await self.apply(info)

    async def _elect(self) -> None:
        try:
            reply = await self._ask(Op.ELECT_MASTER, self._me() | {"designate": False})
        except (NoLeader, OutcomeUnknown):
            return
        if reply["code"] in _ELECTED and reply["masterId"] is not None:
            await self.apply(ReplicaInfo.of(reply))

    async def apply(self, new: ReplicaInfo) -> None:
        """Apply an info if it is newer than the present one; one at a time."""
        async with self._lock:
            old = self.info
            if new.epoch < max(old.epoch, self._registered_in) or new.master_id is None:
                return
            if new.master_id == self.id and not self._may_lead(self._frozen):
                return
            if new.master_id == self.id and new.master_addr != self._config.address:
                self._give_up(f"is also that of {new.master_addr}, which runs with a copy of it")
            if new.epoch == old.epoch:
                if new.set_epoch > old.set_epoch:
                    self.info = new
                    self._roles.install_set(new)
                return
            self.info = new
            self._record_role(new)
            if new.master_id == self.id:
                await self._roles.become_master(new)
            else:
                await self._roles.become_slave(new)

    def _give_up(self, why: str) -> NoReturn:
        """Stop: two brokers with one id could both be master of one epoch."""
        who = f"{self._config.broker_name}, broker {self.id}"
        self._ports.exit.fatal(
            f"{who}: the id in {self._config.store}/broker.meta {why}; "
            "to make this one a new member, start it with an empty storePath"
        )

    def _record_role(self, new: ReplicaInfo) -> None:
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
            **({"generation": config.generation} if config.convertible else {}),
        }


class _RegistrationRefused(Exception):
    """The controllers refused the registration."""
