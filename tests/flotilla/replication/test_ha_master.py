"""A master's links to its slaves, over a real log and a real connection; its reigns are played."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from clusters.flotilla.config import loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, dial
from clusters.flotilla.net.wire import Op
from clusters.flotilla.replication.divergence import LogShape
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.ha_master import HaMaster
from clusters.flotilla.replication.ha_protocol import HandshakeRequest, LogData, pack_ack
from clusters.flotilla.rules import RULES
from clusters.flotilla.store import record, recovery
from clusters.flotilla.store.message_store import MessageStore
from clusters.flotilla.world.choices import Usual
from clusters.flotilla.world.ports import Ports, real

KEY = (b"t", 0)
CONFIG = """
role = "broker"
nodeName = "broker-1"
listenHost = "127.0.0.1"
storePath = "unused"
"""


class Reigning:
    """A master whose epoch began at its log's first byte."""

    def __init__(self, store: MessageStore) -> None:
        self.epoch = 1
        self._store = store

    def is_master(self) -> bool:
        return True

    def is_promoting(self) -> bool:
        return False

    def shape(self) -> LogShape:
        log = self._store.log
        return LogShape(log.min_offset, log.max_offset, EpochTable(((self.epoch, 0),)))

    def confirm_offset(self) -> int:
        return 0

    def is_boundary(self, offset: int) -> bool:
        return self._store.is_boundary(offset)

    def last_file(self) -> int:
        return self._store.last_file()

    def progressed(self, slave: int) -> None: ...

    def slave_gone(self, slave: int) -> None: ...


class Slave:
    """Receives the batches that a master sends."""

    def __init__(self) -> None:
        self.batches = asyncio.Queue[LogData]()

    def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

    def opened(self, connection: FrameConnection) -> None: ...

    def closed(self, connection: FrameConnection, why: str) -> None: ...

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        data = LogData.unpack(body)
        if data.records:
            self.batches.put_nowait(data)

    async def copies(self, address: str) -> LogData:
        """Return the first records that a blank slave receives."""
        connection = await dial(address, self, 2)
        hello = HandshakeRequest(2, 1, 0, LogShape(0, 0, EpochTable()))
        await connection.call(Op.HA_HANDSHAKE, hello.pack(), 2)
        connection.send_oneway(Op.HA_ACK, pack_ack(0))
        async with asyncio.timeout(10):
            return await self.batches.get()


def write(store: MessageStore, body: bytes, epoch: int) -> None:
    store.append(KEY, b"", body, epoch)
    store.log.write_out()


class Shortest(Usual):
    """Cuts every batch as short as it may be."""

    def fewer(self, point: str, most: int, least: int = 1) -> int:
        return min(most, least)


async def serve(ha: HaMaster) -> tuple[Callable[[], None], str]:
    server = await net.serve("127.0.0.1", 0, ha)
    assert isinstance(server, asyncio.Server)
    return server.close, "{}:{}".format(*server.sockets[0].getsockname())


def test_a_new_reign_sends_the_log_as_it_is_now(tmp_path: Path) -> None:
    """The log was cut and filled again to the very same byte since the last reign: nothing old is
    sent. A slave refuses records of another epoch than announced, so it would connect in vain."""

    async def scenario(ports: Ports) -> None:
        place = recovery.StoreOptions(str(tmp_path), 4096, 1024)
        store = (await recovery.recover(place, ports, RULES)).store
        reign = Reigning(store)
        events = EventLog("", "broker-1", ports)
        ha = HaMaster(loads(CONFIG), store.log, RULES, reign, events)
        close, address = await serve(ha)
        write(store, b"before", 1)
        assert b"before" in (await Slave().copies(address)).records
        ha.drop_all("deposed")
        await store.truncate(0)
        write(store, b"behind", 3)
        reign.epoch = 3
        ha.open()
        sent = await Slave().copies(address)
        assert (sent.epoch, b"behind" in sent.records) == (3, True)
        ha.stop()
        close()
        store.close()

    asyncio.run(scenario(real(1)))


def test_a_batch_that_is_cut_short_has_one_record(tmp_path: Path) -> None:
    """The shortest batch holds a whole record, in memory and on disk, or the master would send
    empty ones without end."""

    async def scenario(ports: Ports) -> None:
        place = recovery.StoreOptions(str(tmp_path), 4096, 1024)
        store = (await recovery.recover(place, ports, RULES)).store
        events, config = EventLog("", "broker-1", ports), loads(CONFIG)
        ha = HaMaster(config, store.log, RULES, Reigning(store), events, Shortest())
        close, address = await serve(ha)
        for body in (b"one", b"two", b"three"):
            store.append(KEY, b"", body, 1)
        store.log.write_out()
        write(store, b"four", 1)
        slave = Slave()
        sent = [await slave.copies(address)]
        async with asyncio.timeout(10):
            sent += [await slave.batches.get() for _ in range(3)]
        found = [payload_of(data) for data in sent]
        assert found == [[b"one"], [b"two"], [b"three"], [b"four"]]
        ha.stop()
        close()
        store.close()

    asyncio.run(scenario(real(1)))


def payload_of(data: LogData) -> list[bytes]:
    """Return the bodies of a batch."""
    found = record.entries(data.records, data.offset)
    return [record.payload(data.records, e.offset - data.offset, e.offset).body for e in found]
