"""A master and its slaves with logs made to measure, in a simulated world: real stores, real links.

    async def scenario(lab):
        master, slave = await lab.side(), await lab.side(asyncLearner=True)
        await master.fill((1, 400))
        await master.reign(2)
        await slave.follow(master, 2)

    play(scenario)

A log is made of records of 50 bytes, two in a segment. What a record holds follows from its offset
and its epoch alone, so logs that share epochs share bytes. `Side.reign` and `Side.follow` are what
a broker does of it when it is elected, without controllers, SyncStateSets or clients.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from clusters.flotilla.broker.store_lifecycle import open_replica
from clusters.flotilla.config import Config, loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net import connection as net
from clusters.flotilla.net.wire import Json
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.ha_master import HaMaster
from clusters.flotilla.replication.ha_slave import FollowTarget, HaSlave
from clusters.flotilla.replication.replica import Replica
from clusters.flotilla.rules import RULES
from clusters.flotilla.store import record
from clusters.hosts._world.disk import Disk
from clusters.hosts._world.network import SimNetwork
from clusters.hosts._world.ports import disk_of, ports_of
from clusters.hosts._world.process import SimHost, SimProcess
from clusters.hosts._world.world import SECOND, World

SEGMENT, RECORD, PORT = 100, 50, 10912
ADDRESS = "10.0.0.1"
LIMIT_S = 600


def record_at(offset: int, epoch: int) -> bytes:
    body = bytes(RECORD - record.size_of(b"t", b"", b""))
    return record.encode(offset, epoch, b"t", 0, offset // RECORD, 0, b"", body)


class Side:
    """One broker's replica, as master or as slave; it also plays the broker of its links."""

    def __init__(self, process: SimProcess, disk: Disk, number: int, settings: Json) -> None:
        self.number, self.epoch, self.elected = number, 0, False
        self.told: list[int] = []  # slaves that acknowledged something
        self._disk = disk
        self._events = f"/events-{number}.jsonl"
        table = {
            "role": "broker",
            "nodeName": f"broker-{number}",
            "listenHost": ADDRESS,
            "haListenPort": PORT + number,
            "storePath": f"/store-{number}",
            "eventLogPath": self._events,
            "mappedFileSizeCommitLog": SEGMENT,
            **settings,
        }
        self.config: Config = loads("".join(f"{k} = {json.dumps(v)}\n" for k, v in table.items()))
        self._ports = ports_of(process, disk)
        self._log = EventLog(self._events, self.config.node, self._ports)

    async def open(self) -> "Side":
        """Open the store as it is on disk, and both sides of replication over it."""
        self.replica: Replica = await open_replica(self.config, self._ports, RULES, self._log)
        store = self.replica.store
        self.ha = HaMaster(self.config, store.log, RULES, self, self._log)
        self.slave = HaSlave(self.config, store, RULES, self.replica, self._log)
        store.log.on_written = self._written
        store.log.on_flushed = self.slave.acknowledge
        self._server = await net.serve(ADDRESS, self.config.ha_port, self.ha)
        return self

    async def close(self) -> None:
        """Close everything in order."""
        self._server.close()
        self.ha.stop()
        await self.slave.stop()
        self.slave.close()
        await self.replica.close()

    def die(self) -> None:
        """Stop as kill -9 does: everything in progress ends where it is."""
        self._server.close()
        self.ha.stop()
        self.slave.close()
        self.replica._tasks.cancel()
        self.replica.store.close()

    def _written(self) -> None:
        if self.elected:
            self.ha.pump()
        else:
            self.slave.acknowledge()

    async def fill(self, *reigns: tuple[int, int], begin: int = 0) -> None:
        """Append records of each epoch up to an offset: `fill((1, 400), (2, 1000))`."""
        store = self.replica.store
        if begin != store.log.min_offset:
            await store.reset(begin)
        for epoch, end in reigns:
            self.replica.new_epoch(epoch, store.log.max_offset)
            while store.log.max_offset < end:
                store.append_raw(record_at(store.log.max_offset, epoch), epoch)
        store.log.write_out()
        await self.replica.save()

    async def reign(self, epoch: int) -> None:
        self.epoch = epoch
        await self.replica.begin_reign(epoch, self.replica.store.log.max_offset)
        self.elected = True
        self.ha.open()

    async def follow(self, master: "Side", epoch: int) -> None:
        self.epoch, self.elected = epoch, False
        leader = FollowTarget(self.number, master.number, master.config.ha_address, epoch)
        await self.slave.follow(leader)

    def append(self, count: int) -> None:
        """Append records as a master."""
        log = self.replica.store.log
        for _ in range(count):
            at = log.max_offset
            self.replica.store.append_raw(record_at(at, self.epoch), self.epoch)

    def bytes(self) -> bytes:
        log = self.replica.store.log
        at, pieces = log.min_offset, []
        while at < log.written:
            pieces.append(log.read(at, SEGMENT))
            at += len(pieces[-1])
        return b"".join(pieces)

    def events(self, *kinds: str) -> list[Json]:
        content = self._disk.file(self._events)
        rows = [json.loads(line) for line in content.read(content.size, 0).splitlines()]
        return [row for row in rows if not kinds or row["kind"] in kinds]

    # ha_master.MasterBroker

    def is_master(self) -> bool:
        return self.elected

    def is_promoting(self) -> bool:
        return False

    def shape(self) -> LogShape:
        return self.replica.shape()

    def confirm_offset(self) -> int:
        return self.replica.store.confirm_offset

    def is_boundary(self, offset: int) -> bool:
        return self.replica.store.is_boundary(offset)

    def last_file(self) -> int:
        return self.replica.store.last_file()

    def progressed(self, slave: int) -> None:
        self.told.append(slave)

    def slave_gone(self, slave: int) -> None: ...


class HaLab:
    """The host of all sides, in one process."""

    def __init__(self, process: SimProcess) -> None:
        self.process = process
        self.disk = disk_of(process.host)
        self._sides = 0

    async def side(self, **settings: Any) -> Side:
        self._sides += 1
        return await Side(self.process, self.disk, self._sides, settings).open()


def play(scenario: Callable[[HaLab], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a scenario to its end, in virtual time."""
    world = World(seed)
    failures: list[BaseException] = []

    async def main(process: SimProcess) -> None:
        try:
            await scenario(HaLab(process))
        except BaseException as e:
            failures.append(e)

    process = SimHost(world, SimNetwork(world), "host", ADDRESS).start("lab", main)
    process.on_exit(lambda _: world.stop())
    try:
        world.run(until_ns=LIMIT_S * SECOND)
    finally:
        process.kill()
        world.close()
    if failures:
        raise failures[0]
    assert (process.code, process.error_lines) == (0, []), "\n".join(process.error_lines)


async def eventually(true: Callable[[], object], within_s: float = 120.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - what is waited for is state, and time is virtual
            await asyncio.sleep(0.01)
