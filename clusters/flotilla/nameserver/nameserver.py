"""The nameserver: serves the route table. It has no disk and does not know other nameservers.

A broker leaves the table when its process has ended (its connection closed and nothing answers at
its address), or when it was silent for the time that it announced. It registers with all its topics
when something changed and from time to time; in between, light heartbeats show that it is alive, so
that silence is noticed in seconds whatever the number of topics. A broker that is answered that it
is not known registers at once.

When the lowest broker id of a set changes (the master's, where there is one), all brokers of the
set get a notice (RocketMQ's `notifyMinBrokerIdChanged`) and ask the controllers.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ..broker.config_handler import ConfigHandler
from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import FrameConnection, JsonHandler, Pool, Tasks, Unreachable, refusal
from ..net.peer_liveness import PeerLiveness
from ..net.wire import MAX_FRAME, Json, Op, Status, to_json
from ..rules import Rules
from ..world.ports import Ports, incarnation_of
from .route_table import MASTER, LightHeartbeat, Registration, RouteTable, StaleRegistration

CHECKS = 4  # for silent brokers, in each timeout
NOTICE_TIMEOUT_S = 0.3  # as in RocketMQ
_ROOM = 1024  # bytes of a frame besides the route


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    nameserver = Nameserver(config, ports, rules)
    server = await net.serve(config.host, config.port, nameserver.handler)
    nameserver.remove_silent_brokers()
    ready(config.address)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        server.close()
        nameserver.close()


class Nameserver:
    def __init__(self, config: Config, ports: Ports, rules: Rules) -> None:
        self._config = config
        self._incarnation = incarnation_of(
            ports
        )  # of the process that counts the changes of topics
        self._loop = asyncio.get_running_loop()
        self._routes = RouteTable(
            rules.displaces,
            rules.is_deaf,
            config.channel_expired_s,
            config.support_acting_master,
            rules.left_out,
            rules.is_of_generation,
        )
        self._lowest: dict[str, tuple[int, str]] = {}  # set -> lowest id and its address
        self._masters: dict[
            str, tuple[str, int]
        ] = {}  # set -> address and epoch of the last `route` event
        self._stale: dict[
            str, tuple[str, int]
        ] = {}  # set -> address and epoch of the last `stale` event
        self._events = EventLog(config.event_log, config.node, ports)
        self._tasks = Tasks()
        self._peer_liveness = PeerLiveness(self._tasks, 3 * config.broker_heartbeat_interval_s)
        self._pool = Pool(NOTICE_TIMEOUT_S * config.time_scale)
        self._timer: asyncio.TimerHandle | None = None
        self._second: asyncio.TimerHandle | None = None
        self.handler = JsonHandler(
            {
                Op.REGISTER_BROKER: self._register,
                Op.NAMESERVER_HEARTBEAT: self._heartbeat,
                Op.MEMBER_GROUP: self._member_group,
                Op.ROUTE: self._route,
                Op.DESCRIBE: self._describe,
                Op.PING: self._ping,
                **ConfigHandler(config, {}, self._events).table(),
            },
            on_closed=self._closed,
            on_protocol_error=self._events.protocol_error,
        )

    def close(self) -> None:
        for timer in (self._timer, self._second):
            if timer:
                timer.cancel()
        self._tasks.cancel()
        self._pool.close()
        for connection in list(self.handler.connections):
            connection.abort()

    def remove_silent_brokers(self) -> None:
        """Remove silent brokers, now and from time to time.

        A broker has to be silent at two checks: after a pause of this process heartbeats may wait
        unread.
        """
        if silent := self._routes.expired(self._loop.time()):
            soon_s = self._config.broker_heartbeat_interval_s / 10
            self._second = self._loop.call_later(soon_s, self._remove_if_still_silent, silent)
        self._timer = self._loop.call_later(
            self._config.nameserver_timeout_s / CHECKS, self.remove_silent_brokers
        )

    def _remove_if_still_silent(self, suspects: list[Registration]) -> None:
        for silent in self._routes.expired(self._loop.time()):
            if silent in suspects:
                self._remove(silent, "silent")

    async def _register(self, connection: FrameConnection, fields: Json) -> Json:
        registration = Registration(
            str(fields["cluster"]),
            str(fields["brokerName"]),
            int(fields["brokerId"]),
            str(fields["addr"]),
            str(fields["haAddr"]),
            int(fields["stateVersion"]),
            float(fields["timeoutMs"]) / 1000,
            {str(name): int(queues) for name, queues in fields["topics"].items()},
            int(fields.get("life", 0)),  # the first edition did not count
            int(fields.get("beat", 0)),
            bool(fields.get("acts", False)),
            str(fields.get("zone", "")),
            int(fields.get("generation", 0)),
        )
        try:
            master = self._routes.register(registration, connection, self._loop.time())
        except StaleRegistration as e:
            self._record_stale(registration, str(e))
            self._check_lowest_id(registration.name)
            return refusal(Status.FENCED_MASTER_EPOCH, str(e))
        self._record_route(registration)
        self._check_lowest_id(registration.name)
        return {
            "masterAddr": master.addr if master else None,
            "masterHaAddr": master.ha_addr if master else None,
        }

    def _record_route(self, new: Registration) -> None:
        """Record that clients get another master, or the same one of another epoch, from now on."""
        route = (new.addr, new.state_version)
        if new.broker_id == MASTER and self._masters.get(new.name) != route:
            self._masters[new.name] = route
            addr, version = route
            self._events.write("route", brokerName=new.name, masterAddr=addr, stateVersion=version)

    def _record_stale(self, old: Registration, why: str) -> None:
        """Record once that a master was refused; it goes on registering."""
        master = (old.addr, old.state_version)
        if old.broker_id == MASTER and self._stale.get(old.name) != master:
            self._stale[old.name] = master
            addr, version = master
            fields = {"brokerName": old.name, "masterAddr": addr, "stateVersion": version}
            self._events.write("stale", **fields, why=why)

    async def _heartbeat(self, connection: FrameConnection, fields: Json) -> Json:
        heartbeat = LightHeartbeat(
            str(fields["brokerName"]),
            int(fields["brokerId"]),
            str(fields["addr"]),
            int(fields["life"]),
            int(fields["beat"]),
        )
        return {"known": self._routes.record_heartbeat(heartbeat, connection, self._loop.time())}

    async def _member_group(self, connection: FrameConnection, fields: Json) -> Json:
        name = str(fields["brokerName"])
        master = self._routes.master(name)
        return {
            "members": {str(i): addr for i, addr in self._routes.members(name).items()},
            "masterHaAddr": master.ha_addr if master else None,
            "stateVersion": self._routes.newest(name),
        }

    async def _route(self, connection: FrameConnection, fields: Json) -> Json:
        """Return the route of a topic, or of all topics.

        The list of all topics is long and changes seldom, so a client that has it gets the brokers
        only. A client that does not ask for a part, as in the first edition, gets all topics if
        they fit into one answer.
        """
        topic, part = fields.get("topic"), fields.get("part")
        zone = str(fields.get("zoneName", "")) if fields.get("zoneMode") else ""
        if topic is not None:
            return self._routes.route(str(topic), zone=zone)
        as_of, parts = f"{self._incarnation}.{self._routes.topics_version}", self._routes.parts
        route = {**self._routes.route(None, part, zone), "topicsAsOf": as_of}
        if fields.get("topicsAsOf") == as_of:
            del route["topics"]
            return route
        if part is None and parts > 1 and len(to_json(route)) > MAX_FRAME - _ROOM:
            why = f"all topics take {parts} answers: ask for each part, or for one topic"
            return refusal(Status.INVALID_REQUEST, why)
        return {**route, "parts": parts}

    async def _describe(self, connection: FrameConnection, fields: Json) -> Json:
        """Describe the node, with the first part of the topics."""
        return {"role": "nameserver", "node": self._config.node, **self._routes.route(None, 0)}

    async def _ping(self, connection: FrameConnection, fields: Json) -> Json:
        return {}

    def _closed(self, connection: FrameConnection, why: str) -> None:
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)
        for registration in self._routes.registered_by(connection):
            self._watch(registration, connection)

    def _watch(self, registration: Registration, connection: FrameConnection) -> None:
        self._peer_liveness.watch(
            registration.addr,
            cares=lambda: registration in self._routes.registered_by(connection),
            gone=lambda: self._remove(registration, "closed"),
        )

    def _remove(self, registration: Registration, why: str) -> None:
        name, broker_id = registration.name, registration.broker_id
        if self._routes.unregister(name, broker_id, registration.addr):
            self._events.write("expired", brokerName=name, brokerId=broker_id, why=why)
            self._check_lowest_id(name)

    # the lowest broker id

    def _check_lowest_id(self, name: str) -> None:
        """Notify the brokers of a set when its lowest id is another broker's."""
        members = self._routes.members(name)
        before = self._lowest.pop(name, None)
        if not members:
            return
        self._lowest[name] = lowest = next(iter(members.items()))
        if before not in (None, lowest) and self._config.notify_min_broker_id_changed:
            self._events.write("min-broker-id", brokerName=name, brokerId=lowest[0], addr=lowest[1])
            for addr in members.values():
                self._tasks.start(self._notify_lowest_id(name, lowest, addr))

    async def _notify_lowest_id(self, name: str, lowest: tuple[int, str], addr: str) -> None:
        notice = {
            "brokerName": name,
            "minBrokerId": lowest[0],
            "minBrokerAddr": lowest[1],
            "stateVersion": self._routes.version(name),
        }
        with suppress(Unreachable):
            (await self._pool.get(addr)).send_oneway(Op.NOTIFY_MIN_BROKER_ID, to_json(notice))
