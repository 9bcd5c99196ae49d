"""The nameserver: the route table on the network. It keeps nothing on disk and knows no other one.

A broker leaves the table when its process is gone (its connection closed and nobody answers at its
address), when it says so, or when it was silent for the time it announced. Any frame of its
connection, PING for one, is a sign of life.
"""

import asyncio
from collections.abc import Callable

from . import net
from .config import Config
from .doorbell import Doorbell
from .events import EventLog
from .net import Connection, JsonHandler, Tasks, refusal
from .ports import Ports
from .routes import Registration, RouteTable, Stale
from .rules import Rules
from .wire import Json, Op, Status

LOOKS = 4  # the table is searched for the silent this many times in a timeout


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
        self._loop = asyncio.get_running_loop()
        self._routes = RouteTable(rules.displaces)
        self._events = EventLog(config.event_log, config.node, ports)
        self._tasks = Tasks()
        self._doorbell = Doorbell(self._tasks, 3 * config.broker_heartbeat_interval_s)
        self._timer: asyncio.TimerHandle | None = None
        self.handler = JsonHandler(
            {
                Op.REGISTER_BROKER: self._register,
                Op.UNREGISTER_BROKER: self._unregister,
                Op.ROUTE: self._route,
                Op.DESCRIBE: self._describe,
                Op.PING: self._ping,
            },
            on_closed=self._closed,
        )

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._tasks.cancel()
        for connection in list(self.handler.connections):
            connection.abort()

    def look(self) -> None:
        """Remove the silent, now and from time to time."""
        for silent in self._routes.expired(self._loop.time()):
            self._remove(silent, "silent")
        self._timer = self._loop.call_later(self._config.nameserver_timeout_s / LOOKS, self.look)

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
        )
        try:
            master = self._routes.register(registration, connection, self._loop.time())
        except Stale as e:
            return refusal(Status.FENCED_MASTER_EPOCH, str(e))
        return {
            "masterAddr": master.addr if master else None,
            "masterHaAddr": master.ha_addr if master else None,
        }

    async def _unregister(self, connection: Connection, fields: Json) -> Json:
        name, broker_id = str(fields["brokerName"]), int(fields["brokerId"])
        self._routes.unregister(name, broker_id, str(fields["addr"]))
        return {}

    async def _route(self, connection: Connection, fields: Json) -> Json:
        topic = fields.get("topic")
        return self._routes.route(None if topic is None else str(topic))

    async def _describe(self, connection: Connection, fields: Json) -> Json:
        return {"role": "nameserver", "node": self._config.node, **self._routes.route(None)}

    async def _ping(self, connection: Connection, fields: Json) -> Json:
        self._routes.heard(connection, self._loop.time())
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
