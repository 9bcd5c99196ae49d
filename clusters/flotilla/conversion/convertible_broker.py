"""A broker that changes its haMode while it runs: its process, sockets and store stay.

One `Broker` follows another over the same store. The old one ends its part as if it stopped, except
that connections of clients stay open and sends that are held stay held; the new one starts as if
the process had started in the new mode. It serves the held sends when it is a master that admits
them, or refuses them when another broker is the master: nothing about a held send is in any log.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from ..broker.broker import Broker, serve
from ..broker.store_lifecycle import open_replica
from ..config import Config, in_mode
from ..events import EventLog
from ..net.connection import FrameConnection, Handler, Tasks
from ..replication.replica import Replica
from ..rules import Rules
from ..world.ports import Ports
from .handler import HOLDS_AT_MOST, ConversionHandler
from .mode_file import Generation, ModeFile, ModeState


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    events = EventLog(config.event_log, config.node, ports)
    file = ModeFile(config, ports)
    recorded = await file.load()
    replica = await open_replica(config, ports, rules, events)
    broker = ConvertibleBroker(config, ports, rules, replica, events, file, recorded)
    requests = PresentHandler(lambda: broker.present.handler)
    copies = PresentHandler(lambda: broker.present.ha)
    await serve(config, ports, replica, broker, (requests, copies), ready)


class PresentHandler:
    """Passes a connection's events to the handler of the present mode."""

    def __init__(self, present: Callable[[], Handler]) -> None:
        self._present = present

    def opened(self, connection: FrameConnection) -> None:
        self._present().opened(connection)

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        self._present().frame(connection, op, request, body)

    def protocol_error(self, connection: FrameConnection, why: str) -> None:
        self._present().protocol_error(connection, why)

    def closed(self, connection: FrameConnection, why: str) -> None:
        self._present().closed(connection, why)


class ConvertibleBroker:
    """The brokers of one process, one after the other; `present`: the one that serves."""

    def __init__(
        self,
        config: Config,
        ports: Ports,
        rules: Rules,
        replica: Replica,
        events: EventLog,
        file: ModeFile,
        recorded: ModeState,
    ) -> None:
        self._config, self._ports, self._rules = config, ports, rules
        self._replica, self._events = replica, events
        self._beats = count(1)
        self._tasks = Tasks()
        if rules.generation_at_start(recorded.in_force.number) != recorded.in_force.number:
            recorded = ModeState(Generation(config.ha_mode))
        self._conversion = ConversionHandler(
            config,
            ports,
            rules,
            replica,
            events,
            file,
            recorded,
            lambda: self.present,
            self._switch,
        )
        self.present = self._make()

    def _make(self) -> Broker:
        config = of_generation(self._config, self._conversion.state.in_force)
        return Broker(
            config,
            self._ports,
            self._rules,
            self._replica,
            self._events,
            self._beats,
            self._conversion.table(),
        )

    def start(self) -> None:
        self._record()
        self.present.start()
        if self._conversion.state.pending is not None:
            self.present.role.link.freeze(True)

    async def close(self) -> None:
        self._tasks.cancel()
        await self.present.close()

    async def _switch(self) -> None:
        """Let the broker of the new mode take the place of the present one."""
        former = await self.present.retire()
        self.present = self._make()
        self.present.succeed(former)
        self._record()
        self.present.start()
        if former.held is not None:
            self._tasks.start(self._release())

    def _record(self) -> None:
        in_force, log = self._conversion.state.in_force, self._replica.store.log
        self._events.write(
            "mode",
            brokerName=self._config.broker_name,
            brokerId=self._config.broker_id + 1,
            mode=in_force.mode,
            generation=in_force.number,
            masterId=in_force.master,
            epoch=in_force.epoch,
            end=log.max_offset,
        )

    async def _release(self) -> None:
        """Serve the held sends when this broker admits them, or another one is the master."""
        broker, config = self.present, self._config
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HOLDS_AT_MOST * config.convert_timeout_s
        while broker is self.present and broker.handover.is_holding and loop.time() < deadline:
            others = broker.role.link.info.master_id not in (None, broker.role.link.id)
            if broker.admits() or others:
                break
            await asyncio.sleep(config.broker_heartbeat_interval_s / 100)
        if broker is self.present and broker.handover.is_holding:
            broker.release_sends()


def of_generation(config: Config, generation: Generation) -> Config:
    """Return the configuration of a broker whose set is in this generation."""
    return replace(
        in_mode(config, generation.mode),
        generation=generation.number,
        first_master=generation.master,
        epoch_before=generation.epoch,
    )
