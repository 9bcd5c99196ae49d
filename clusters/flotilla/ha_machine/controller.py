"""The HA controller: observes brokers in ZooKeeper and switches the machine of each set.

HA controllers are stateless: each reads everything from ZooKeeper, decides by `machine.next_state`,
and writes the decision by one multi, which fails if another decision came first. None leads. Their
rank, the order in which they came, only delays the later ones, so that they rarely collide.

After a lost connection or a refused decision a controller sends a `sync` and reads everything
again. A broker is gone only if its node is: a controller that was cut off itself has learned
nothing.
"""

import asyncio
from collections.abc import Callable

from ..config import Config
from ..events import EventLog
from ..net import connection as net
from ..net.connection import FrameConnection, JsonHandler, Tasks
from ..net.wire import Json, Op
from ..rules import Rules
from ..world.ports import Ports
from ..world.timers import WakeEvent
from ..zk.jute import EPHEMERAL, SEQUENTIAL, WatchEvent, ZkError
from ..zk.session import ConnectionLoss, SessionState, ZkSession, serve_sessions
from .machine import BrokerReport, MachineState, MachineView, Phase, hold_limit_s
from .nodes import (
    MachinePaths,
    ReadState,
    change_state,
    read_broker,
    read_state,
    record_change,
)


async def main(config: Config, ports: Ports, rules: Rules, ready: Callable[[str], None]) -> None:
    """Serve until cancelled."""
    controller = HaController(config, ports, rules)
    server = await net.serve(config.host, config.port, controller.handler)
    try:
        controller.start()
        ready(config.address)
        await asyncio.get_running_loop().create_future()
    finally:
        server.close()
        await controller.close()


class ObservedSet:
    """What a controller knows of one set; nothing of it is remembered in a decision."""

    def __init__(self) -> None:
        self.read = ReadState(None, 0)
        self.brokers: dict[int, BrokerReport] = {}
        self.since = 0.0  # when this controller first read the present state
        self.wanted_since: float | None = None  # a change is due
        self.stale = True


class HaController:
    """One HA controller."""

    def __init__(self, config: Config, ports: Ports, rules: Rules) -> None:
        self._config, self._ports, self._rules = config, ports, rules
        self._loop = asyncio.get_running_loop()
        self._events = EventLog(config.event_log, config.node, ports)
        self._paths = MachinePaths(config.cluster)
        self._tasks = Tasks()
        self._wake = WakeEvent()
        self._sets: dict[str, ObservedSet] = {}
        self._watchers: dict[str, Callable[[WatchEvent], None]] = {}
        self._sets_stale = True
        self._rank = 0
        self._own = ""  # the name of its own node
        self._behind = False  # this controller's server may be
        self._session: ZkSession | None = None
        self.handler = JsonHandler(
            {Op.DESCRIBE: self._describe, Op.PING: self._ping},
            on_protocol_error=self._events.protocol_error,
        )

    def start(self) -> None:
        self._tasks.start(self._run())

    async def close(self) -> None:
        self._tasks.cancel()
        for connection in list(self.handler.connections):
            connection.abort()
        if self._session:
            await self._session.close()

    async def _run(self) -> None:
        config, randomness = self._config, self._ports.randomness
        servers, timeout_s = config.zk_servers, config.zk_session_timeout_s
        await serve_sessions(servers, timeout_s, randomness, self._state, self._serve)

    async def _serve(self, session: ZkSession) -> None:
        """Observe and decide until the session ends."""
        self._session, self._own = session, ""
        while not session.ended:
            try:
                if self._behind:
                    await session.sync("/")
                    self._behind = False
                if not self._own:
                    await self._register(session)
                await self._observe(session)
                for name, of in self._sets.items():
                    await self._decide(session, name, of)
            except (ConnectionLoss, ZkError):
                self._forget()
                self._behind = True
            await self._wake.wait(self._config.zk_report_interval_s)

    def _state(self, state: SessionState) -> None:
        self._events.write("session", state=state.value)
        self._wake.set()

    async def _register(self, session: ZkSession) -> None:
        await self._paths.create(session)
        path = await session.create(f"{self._paths.controllers}/c-", b"", EPHEMERAL | SEQUENTIAL)
        self._own = path.rpartition("/")[2]
        self._forget()

    def _forget(self) -> None:
        """Read everything again."""
        self._sets_stale = True
        for of in self._sets.values():
            of.stale = True

    # observing

    async def _observe(self, session: ZkSession) -> None:
        if self._sets_stale:
            self._sets_stale = False
            names = await session.children(self._paths.sets, self._on_sets)
            for name in names:
                self._sets.setdefault(name, ObservedSet())
            there = await session.children(self._paths.controllers, self._on_sets)
            self._rank = there.index(self._own) if self._own in there else len(there)
        for name, of in self._sets.items():
            if of.stale:
                await self._read(session, name, of)

    async def _read(self, session: ZkSession, name: str, of: ObservedSet) -> None:
        """Read a set, and watch all of it. The state is read first, since a session's requests are
        served in their order; so a broker that is gone was gone in that state or after it."""
        of.stale = False
        watcher = self._watchers.setdefault(name, lambda event: self._changed(of))
        read, names = await asyncio.gather(
            read_state(session, self._paths.state(name), watcher),
            session.children(self._paths.brokers(name), watcher),
        )
        numbers = [int(number) for number in names]
        reports = await asyncio.gather(
            *(read_broker(session, self._paths.broker(name, n), watcher) for n in numbers)
        )
        found = zip(numbers, reports, strict=True)
        brokers = {number: report for number, report in found if report is not None}
        if read.state != of.read.state:
            of.since = self._loop.time()
        of.read, of.brokers = read, brokers

    def _on_sets(self, event: WatchEvent) -> None:
        self._sets_stale = True
        self._wake.set()

    def _changed(self, of: ObservedSet) -> None:
        of.stale = True
        self._wake.set()

    # deciding

    async def _decide(self, session: ZkSession, name: str, of: ObservedSet) -> None:
        now, state = self._loop.time(), of.read.state
        too_long, rested = self._hold(state, now - of.since)
        unclean = self._config.elect_unclean_master
        view = MachineView(state, of.brokers, too_long, rested, unclean)
        wanted = self._rules.next_machine_state(view)
        if wanted is None:
            of.wanted_since = None
            return
        if of.wanted_since is None:
            of.wanted_since = now
        if now - of.wanted_since < self._rank * self._config.zk_report_interval_s:
            return
        of.wanted_since, of.stale = None, True
        before = max((each.before for each in of.brokers.values()), default=0)
        new = await change_state(
            *(session, self._paths, name, of.read, wanted, self._rules.counted_version),
            last_sequence=lambda last: self._rules.last_sequence(last, before),
        )
        record_change(self._events, name, state, new, self._config.elect_unclean_master)
        self._wake.set()

    def _hold(self, state: MachineState | None, lasts_s: float) -> tuple[bool, bool]:
        """Return whether the state holds sends for too long, and whether the next hold may begin:
        sends are served for as long as they were held in vain."""
        if state is None:
            return False, True
        shortest_s = self._config.zk_hold_max_s
        too_long = state.phase is Phase.SEMI and lasts_s > hold_limit_s(shortest_s, state.holds)
        rests = state.phase is Phase.ASYNC and state.holds > 0
        return too_long, not rests or lasts_s > hold_limit_s(shortest_s, state.holds - 1)

    # describing

    async def _describe(self, connection: FrameConnection, fields: Json) -> Json:
        return {
            "node": self._config.node,
            "role": "hacontroller",
            "rank": self._rank,
            "connected": bool(self._session and self._session.state is SessionState.CONNECTED),
            "sets": {name: _row(of) for name, of in self._sets.items() if of.read.state},
        }

    async def _ping(self, connection: FrameConnection, fields: Json) -> Json:
        return {}


def _row(of: ObservedSet) -> Json:
    """Return what a controller knows of a set, with the names that controllers of RIP-44 use."""
    state = of.read.state
    assert state is not None
    return {
        "state": state.phase.value,
        "masterId": state.master,
        "masterEpoch": state.epoch,
        "set": sorted(state.sync),
        "setEpoch": state.seq,
        "members": {str(i): {"addr": report.address} for i, report in of.brokers.items()},
    }
