"""How a broker makes itself known: registrations at nameservers, heartbeats to controllers.

A broker registers at every nameserver with all its topics when its role or topics change and from
time to time. Between two registrations light heartbeats say that it is alive (`liteHeartBeat`). It
registers at once with a nameserver that answers that it does not know the broker, and with one that
closes the connection: that nameserver may take the end of a connection for the end of the broker,
and one of the first edition, which does not know light heartbeats, closes at each of them.

Each nameserver and each controller has its own task and its own connection, so one that is out of
reach delays no other. Connections to nameservers stay open: a nameserver takes the end of the
connection for the end of the broker.

A broker counts what it sends, so that receivers drop what arrives after something sent later.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..config import Config
from ..net.connection import CallTimeout, ConnectionLost, Pool, Tasks, Unreachable
from ..net.controller_client import ControllerClient
from ..net.wire import Json, Op
from ..replication.replica import Replica
from ..world.ports import Ports, incarnation_of
from ..world.timers import WakeEvent
from .role import BrokerRole

LIGHT = ("brokerName", "brokerId", "addr", "life", "beat")  # the fields of a light heartbeat


class Announcer:
    """Announces this broker, with its present role, to nameservers and controllers."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        replica: Replica,
        controllers: ControllerClient,
        role: BrokerRole,
        beats: Iterator[int],
    ) -> None:
        """`beats`: numbers of messages, which rise as long as the process runs."""
        self._config, self._replica, self._role = config, replica, role
        self._priority = config.election_priority
        self._incarnation, self._beats = incarnation_of(ports), beats
        self._controllers = controllers
        self._heartbeats = Heartbeats(
            controllers,
            config.broker_heartbeat_interval_s,
            config.heartbeat_rpc_timeout_s,
            config.heartbeat_timeout_s,
            self._heartbeat,
            role.grant_lease,
        )
        intervals = RegistrationIntervals(
            config.register_nameserver_s,
            config.broker_heartbeat_interval_s if config.lite_heartbeat else None,
            config.heartbeat_rpc_timeout_s,
            config.controller_rpc_timeout_s,
        )
        self._registrar = Registrar(config.nameservers, intervals, self._registration)

    def start(self) -> None:
        if self._config.ha_mode == "controller" or not self._config.convertible:
            self._heartbeats.start()
        self._registrar.start()

    def close(self) -> None:
        self._heartbeats.close()
        self._registrar.close()

    def register(self) -> None:
        """Register at all nameservers now."""
        self._registrar.renew()

    def announce(self) -> None:
        """Register at all nameservers and send a heartbeat to all controllers now."""
        self._registrar.renew()
        self._heartbeats.beat_now()

    def apply_config(self, config: Config) -> None:
        self._priority = config.election_priority
        self._heartbeats.beat_now()

    async def beat(self) -> None:
        """Send one heartbeat to the leading controller and wait for the answer."""
        await self._heartbeats.beat(self._controllers.leader)

    def _heartbeat(self) -> Json | None:
        """Return a heartbeat's fields, None before the broker has registered.

        The epoch is the last one of the log, because elections compare logs.
        """
        if not self._role.link.registered:
            return None
        config, log = self._config, self._replica.store.log
        return {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": self._role.link.id,
            "addr": config.address,
            "timeoutMs": config.heartbeat_timeout_s * 1000,
            "epoch": self._replica.epochs.last_epoch,
            "maxOffset": log.max_offset,
            "confirmOffset": self._replica.store.confirm_offset,
            "priority": self._priority,
            "zone": config.zone,
            "resources": config.node_resources,
            "learner": config.async_learner,
            "life": self._incarnation,
            "beat": next(self._beats),
            **({"rack": config.rack} if config.rack else {}),
        }

    def _registration(self) -> Json | None:
        """Return a registration's fields, None while the role is not in force."""
        info, config = self._role.link.info, self._config
        is_master = self._role.serves_as_master()
        if info.master_id is None or (info.master_id == self._role.link.id and not is_master):
            return None
        light_s = config.nameserver_timeout_s
        return {
            "cluster": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": 0 if is_master else self._role.link.id,
            "addr": config.address,
            "haAddr": config.ha_address,
            "stateVersion": info.epoch,
            "timeoutMs": 1000 * (light_s if config.lite_heartbeat else config.channel_expired_s),
            "topics": self._replica.catalog.topics,
            "life": self._incarnation,
            "beat": next(self._beats),
            **({"acts": True} if config.slave_acting_master else {}),
            **({"zone": config.zone} if config.zone else {}),
            **({"generation": config.generation} if config.generation else {}),
        }


@dataclass(frozen=True)
class RegistrationIntervals:
    """`register_s`: between two registrations; `heartbeat_s`: between two light heartbeats, None
    for none; `answer_s`: time limit of a heartbeat's answer; `patience_s`: time limit of a
    registration's answer, and the silence after which the connection is closed."""

    register_s: float
    heartbeat_s: float | None
    answer_s: float
    patience_s: float


class Registrar:
    """Keeps `fields()` registered at every nameserver; sends nothing while it returns None."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        intervals: RegistrationIntervals,
        fields: Callable[[], Json | None],
    ) -> None:
        self._pool = Pool(intervals.patience_s)
        self._intervals = intervals
        self._loop = asyncio.get_running_loop()
        self._fields = fields
        self._tasks = Tasks()
        self._wake = {address: WakeEvent() for address in addresses}
        self._heard_at = dict.fromkeys(addresses, self._loop.time())

    def start(self) -> None:
        for address in self._wake:
            self._tasks.start(self._keep(address))

    def renew(self) -> None:
        """Register at every nameserver now."""
        for wake in self._wake.values():
            wake.set()

    def close(self) -> None:
        self._tasks.cancel()
        self._pool.close()

    async def _keep(self, address: str) -> None:
        """Register when something changed or it is due; send light heartbeats in between."""
        intervals, wake, due = self._intervals, self._wake[address], 0.0
        often_s = intervals.heartbeat_s or intervals.register_s
        while True:
            if self._loop.time() >= due:
                registered = await self._register(address)
                soon_s = min(often_s, intervals.register_s / 10)
                again_s = intervals.register_s if registered else soon_s
                due = self._loop.time() + again_s
            elif intervals.heartbeat_s and not await self._beat(address):
                due = 0.0
                continue
            if await wake.wait(min(often_s, max(due - self._loop.time(), 0.0))):
                due = 0.0

    async def _register(self, address: str) -> bool:
        fields = self._fields()
        if fields is None:
            return True
        try:
            reply = await self._ask(address, Op.REGISTER_BROKER, fields, self._intervals.patience_s)
        except ConnectionLost:
            return False
        return reply is not None

    async def _beat(self, address: str) -> bool:
        """Return False if the nameserver does not know this broker, or closes the connection."""
        fields = self._fields()
        if fields is None:
            return True
        light = {name: fields[name] for name in LIGHT}
        try:
            reply = await self._ask(
                address, Op.NAMESERVER_HEARTBEAT, light, self._intervals.answer_s
            )
        except ConnectionLost:
            return False
        return reply is None or bool(reply.get("known"))

    async def _ask(self, address: str, op: Op, fields: Json, timeout_s: float) -> Json | None:
        """Return the answer, None if it does not come in time.

        Raises ConnectionLost if the nameserver closes the connection.
        """
        try:
            reply = await self._pool.ask(address, op, fields, timeout_s)
        except (Unreachable, CallTimeout):
            if self._loop.time() - self._heard_at[address] > self._intervals.patience_s:
                self._pool.drop(address)
                self._heard_at[address] = self._loop.time()
            return None
        self._heard_at[address] = self._loop.time()
        return reply


class Heartbeats:
    """Sends heartbeats to every controller, independently (apache/rocketmq#5929).

    A controller that was added must know the living brokers soon after it begins to lead, so each
    answer lists the controllers, learners included.
    """

    def __init__(
        self,
        controllers: ControllerClient,
        period_s: float,
        timeout_s: float,
        patience_s: float,
        fields: Callable[[], Json | None],
        grant_lease: Callable[[int, float, float], None],
    ) -> None:
        self._grant_lease = grant_lease
        self._controllers = controllers
        self._pool = Pool(timeout_s)
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._fields = fields
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._wake: dict[str, WakeEvent] = {}

    def start(self) -> None:
        """Start a task for each controller that has none."""
        for address in self._controllers.addresses:
            if address not in self._wake:
                self._wake[address] = WakeEvent()
                self._tasks.start(self._keep(address))

    def beat_now(self) -> None:
        for wake in self._wake.values():
            wake.set()

    async def beat(self, address: str | None) -> None:
        """Send one heartbeat to this controller, or to all if None, and wait for the answer."""
        addresses = [address] if address else self._controllers.addresses
        await asyncio.gather(*(self._beat(a) for a in addresses))

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
            await self._wake[address].wait(self._period_s)
        del self._wake[address]
        self._pool.drop(address)

    async def _beat(self, address: str) -> bool:
        fields = self._fields()
        if fields is None:
            return True
        sent_at = self._loop.time()
        try:
            reply = await self._pool.ask(address, Op.BROKER_HEARTBEAT, fields, self._timeout_s)
        except (Unreachable, ConnectionLost, CallTimeout):
            return False
        if addresses := reply.get("controllers"):
            self._controllers.update_addresses(addresses, int(reply["asOf"]))
            self.start()
        if "leaseEpoch" in reply:
            own_s = float(reply["leaseMs"]) / 1000
            self._grant_lease(int(reply["leaseEpoch"]), own_s, sent_at)
        return True
