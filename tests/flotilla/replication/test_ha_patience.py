"""A slave that its master turns away returns, neither at once nor never.

In virtual time, so an hour of refusals takes a moment.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clusters.flotilla.config import loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_slave import FollowTarget, HaSlave
from clusters.flotilla.rules import RULES
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World

MASTER, SLAVE, PORT = "10.0.0.1", "10.0.0.2", 10912
CONFIG = """
role = "broker"
nodeName = "slave"
listenHost = "10.0.0.2"
storePath = "/store"
haReconnectInterval = 1000
"""


class Rude:
    """A master that closes at the first message."""

    def __init__(self) -> None:
        self.asked = 0

    def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

    def opened(self, connection: FrameConnection) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        self.asked += 1
        connection.close()

    def closed(self, connection: FrameConnection, why: str) -> None: ...


@pytest.mark.parametrize("minutes", [1, 60])
def test_a_slave_that_is_turned_away_waits_before_it_asks_again(minutes: int) -> None:
    """About once in a haReconnectInterval, a few times more in the beginning, and without end."""
    world, rude = World(1), Rude()
    network = SimNetwork(world)
    master, host = SimHost(world, network, "m", MASTER), SimHost(world, network, "s", SLAVE)
    disk = disk_of(host)

    async def listen(process: SimProcess) -> None:
        await net.serve(MASTER, PORT, rude)
        await asyncio.get_running_loop().create_future()

    async def follow(process: SimProcess) -> None:
        config, ports = loads(CONFIG), ports_of(process, disk)
        copy: Any = SimpleNamespace(shape=lambda: LogShape(0, 0, EpochTable()))
        log = SimpleNamespace(max_offset=0, written=0, flushed=0, full=False)
        store: Any = SimpleNamespace(confirm_offset=0, log=log)
        slave = HaSlave(config, store, RULES, copy, EventLog("", "slave", ports))
        await slave.follow(FollowTarget(2, 1, f"{MASTER}:{PORT}", 1))
        await asyncio.get_running_loop().create_future()

    master.start("m", listen)
    process = host.start("s", follow)
    world.run(until_ns=minutes * 60 * SECOND)
    assert process.error_lines == []
    assert minutes * 60 - 2 <= rude.asked <= minutes * 60 + 10
    process.kill()
    world.close()
