"""The nameserver: the route table on the network. It keeps nothing on disk and knows no other one.

A broker leaves the table when its process is gone (its connection closed and nobody answers at its
address), or when it was silent for the time it announced. It registers with all its topics when
something changed and from time to time; in between, light heartbeats say that it is alive, so that
silence is noticed in seconds whatever the number of topics (the article: "lightweight heartbeat and
fast isolation"). Who is answered that it is not known registers at once.

When a set has another broker of the lowest id, which is its master where there is one, all of its
brokers are told (`notifyMinBrokerIdChanged`): they ask the controllers how things stand.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ..broker.tuning import Tuning
from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import Connection, JsonHandler, Pool, Tasks, Unreachable, refusal
from ..net.peer_liveness import Doorbell
from ..net.wire import MAX_FRAME, Json, Op, Status, to_json
from ..rules import Rules
from ..world.ports import Ports, life_of
from .routes import MASTER, Registration, RouteTable, Sign, Stale

LOOKS = 4  # the table is searched for the silent this many times in a timeout
TELL_WITHIN_S = 0.3  # the original's limit for a notice
_ROOM = 1024  # bytes of a frame that are not the route


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    nameserver = Nameserver(config, ports, rules)
    server = await net.serve(config.host, config.port, nameserver.handler)
    nameserver.look()
    ready(config.address)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        server.close()
        nameserver.close()


class Nameserver:
    def __init__(self, config: Config, ports: Ports, rules: Rules) -> None:
        self._config = config
        self._life = life_of(ports)  # that of the process which counts the changes of topics
        self._loop = asyncio.get_running_loop()
        self._routes = RouteTable(rules.displaces, rules.deaf, config.channel_expired_s)
        self._least: dict[str, tuple[int, str]] = {}  # set -> lowest id and its address
        self._masters: dict[str, tuple[str, int]] = {}  # set -> the address and epoch last told
        self._stale: dict[str, tuple[str, int]] = {}  # set -> the older master last told of
        self._events = EventLog(config.event_log, config.node, ports)
        self._tasks = Tasks()
        self._doorbell = Doorbell(self._tasks, 3 * config.broker_heartbeat_interval_s)
        self._pool = Pool(TELL_WITHIN_S * config.time_scale)
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
                **Tuning(config, {}, self._events).table(),
            },
            on_closed=self._closed,
            on_senseless=self._events.senseless,
        )

    def close(self) -> None:
        for timer in (self._timer, self._second):
            if timer:
                timer.cancel()
        self._tasks.cancel()
        self._pool.close()
        for connection in list(self.handler.connections):
            connection.abort()

    def look(self) -> None:
        """Remove the silent, now and from time to time. After a pause of this process itself their
        signs of life may wait unread: whoever is silent is looked at twice."""
        if silent := self._routes.expired(self._loop.time()):
            soon_s = self._config.broker_heartbeat_interval_s / 10
            self._second = self._loop.call_later(soon_s, self._look_again, silent)
        self._timer = self._loop.call_later(self._config.nameserver_timeout_s / LOOKS, self.look)

    def _look_again(self, suspects: list[Registration]) -> None:
        for silent in self._routes.expired(self._loop.time()):
            if silent in suspects:
                self._remove(silent, "silent")

    async def _register(self, connection: Connection, fields: Json) -> Json:
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
        )
        try:
            master = self._routes.register(registration, connection, self._loop.time())
        except Stale as e:
            self._tell_stale(registration, str(e))
            self._look_at_least(registration.name)
            return refusal(Status.FENCED_MASTER_EPOCH, str(e))
        self._tell_route(registration)
        self._look_at_least(registration.name)
        return {
            "masterAddr": master.addr if master else None,
            "masterHaAddr": master.ha_addr if master else None,
        }

    def _tell_route(self, new: Registration) -> None:
        """Clients are shown another master from now on, or the same one of another epoch."""
        route = (new.addr, new.state_version)
        if new.broker_id == MASTER and self._masters.get(new.name) != route:
            self._masters[new.name] = route
            addr, version = route
            self._events.write("route", brokerName=new.name, masterAddr=addr, stateVersion=version)

    def _tell_stale(self, old: Registration, why: str) -> None:
        """A master was refused. It goes on registering, and is told of once."""
        master = (old.addr, old.state_version)
        if old.broker_id == MASTER and self._stale.get(old.name) != master:
            self._stale[old.name] = master
            addr, version = master
            told = {"brokerName": old.name, "masterAddr": addr, "stateVersion": version}
            self._events.write("stale", **told, why=why)

    async def _heartbeat(self, connection: Connection, fields: Json) -> Json:
        sign = Sign(
            str(fields["brokerName"]),
            int(fields["brokerId"]),
            str(fields["addr"]),
            int(fields["life"]),
            int(fields["beat"]),
        )
        return {"known": self._routes.heard(sign, connection, self._loop.time())}

    async def _member_group(self, connection: Connection, fields: Json) -> Json:
        members = self._routes.members(str(fields["brokerName"]))
        return {"members": {str(i): addr for i, addr in members.items()}}

    async def _route(self, connection: Connection, fields: Json) -> Json:
        """All topics are many, and change seldom: who has them is told of brokers only. Who does
        not ask for a part, as older clients, gets all topics if they fit into one answer."""
        topic, part = fields.get("topic"), fields.get("part")
        if topic is not None:
            return self._routes.route(str(topic))
        as_of, parts = f"{self._life}.{self._routes.topics_version}", self._routes.parts
        route = {**self._routes.route(None, part), "topicsAsOf": as_of}
        if fields.get("topicsAsOf") == as_of:
            del route["topics"]
            return route
        if part is None and parts > 1 and len(to_json(route)) > MAX_FRAME - _ROOM:
            why = f"all topics take {parts} answers: ask for each part, or for one topic"
            return refusal(Status.INVALID_REQUEST, why)
        return {**route, "parts": parts}

    async def _describe(self, connection: Connection, fields: Json) -> Json:
        """As far as topics fit."""
        return {"role": "nameserver", "node": self._config.node, **self._routes.route(None, 0)}

    async def _ping(self, connection: Connection, fields: Json) -> Json:
        return {}

    def _closed(self, connection: Connection, why: str) -> None:
        if connection.refused:
            self._events.write("refused", peer=connection.peer, why=why)
        for registration in self._routes.registered_by(connection):
            self._watch(registration, connection)

    def _watch(self, registration: Registration, connection: Connection) -> None:
        self._doorbell.ring(
            registration.addr,
            cares=lambda: registration in self._routes.registered_by(connection),
            gone=lambda: self._remove(registration, "closed"),
        )

    def _remove(self, registration: Registration, why: str) -> None:
        name, broker_id = registration.name, registration.broker_id
        if self._routes.unregister(name, broker_id, registration.addr):
            self._events.write("expired", brokerName=name, brokerId=broker_id, why=why)
            self._look_at_least(name)

    # who has the lowest id

    def _look_at_least(self, name: str) -> None:
        """Tell a set's brokers when another one has the lowest id."""
        members = self._routes.members(name)
        before = self._least.pop(name, None)
        if not members:
            return
        self._least[name] = least = next(iter(members.items()))
        if before not in (None, least) and self._config.notify_min_broker_id_changed:
            self._events.write("min-broker-id", brokerName=name, brokerId=least[0], addr=least[1])
            for addr in members.values():
                self._tasks.start(self._tell_least(name, least, addr))

    async def _tell_least(self, name: str, least: tuple[int, str], addr: str) -> None:
        notice = {
            "brokerName": name,
            "minBrokerId": least[0],
            "minBrokerAddr": least[1],
            "stateVersion": self._routes.version(name),
        }
        with suppress(Unreachable):
            (await self._pool.get(addr)).tell(Op.NOTIFY_MIN_BROKER_ID, to_json(notice))
