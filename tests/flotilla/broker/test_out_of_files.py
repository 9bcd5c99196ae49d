"""A node without file descriptors accepts no connection, makes no file, and goes on."""

import asyncio
import errno
import os
import resource
import socket
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from lone_store import PLACE, Life, LoneStore, with_flushing
from loopback import eventually, free_port
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged

from clusters.flotilla.events import EventLog
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.net.wire import Op, SendReply, SendRequest, Status
from clusters.flotilla.node import START_SERVING, DescriptorShortage
from clusters.flotilla.world.ports import real

SMALL = {"mappedFileSizeCommitLog": 8192, "raftSnapshotEntries": 2}
BODY = b"b" * 1000


def of_brokers(fleet: Fleet, without: bool) -> None:
    for name in fleet.nodes("broker"):
        fleet.aboard[name].disk.no_descriptors = without


def test_brokers_without_descriptors_refuse_what_needs_a_file() -> None:
    """Sends that need a new segment, until there are descriptors again; no node stops, nothing is
    lost, and the set that has none may even get another master."""
    fleet = Fleet(seed=5, profile="allack-min2", settings=SMALL)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        got = acknowledged(await sailor.send(20))
        of_brokers(fleet, without=True)
        tried = await sailor.send(400)
        assert len(acknowledged(tried)) < 400, "nothing was refused"
        assert all(fleet.process(name) for name in fleet.nodes("broker"))
        await sailor.kill(old)
        await sailor.new_master(old)
        of_brokers(fleet, without=False)
        await sailor.start(old)
        await sailor.healthy()
        again = acknowledged(await sailor.send(20))
        assert len(again) == 20
        assert got | acknowledged(tried) | again <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_controllers_without_descriptors_wait_with_their_snapshots() -> None:
    """They decide nothing meanwhile that has to be in a file of its own, and live."""
    fleet = Fleet(seed=6, profile="allack-min2", settings=SMALL)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        for name in fleet.nodes("controller"):
            fleet.aboard[name].disk.no_descriptors = True
        for name in fleet.nodes("broker"):
            await sailor.kill(name)
            await sailor.start(name)
        await asyncio.sleep(5.0)
        assert all(fleet.process(name) for name in fleet.nodes("controller"))
        for name in fleet.nodes("controller"):
            fleet.aboard[name].disk.no_descriptors = False
        await sailor.healthy()
        assert acknowledged(await sailor.send(8))

    fleet.sail(scenario)


def test_retention_without_descriptors_stops_no_sync() -> None:
    """SYNC_FLUSH: what the log needs no descriptor for goes on, whoever else waits for one."""
    lone = LoneStore(1, with_flushing(PLACE, sync=True))

    async def story(life: Life) -> None:
        store = life.store
        life.fill(300)
        await life.settle()
        assert store.log.reserve(100)
        await store.flush()
        lone.disk.no_descriptors = True
        end = next(end for end, _ in store.full_segments())
        deletion = asyncio.ensure_future(store.delete_before(end))
        await asyncio.sleep(1.0)
        life.fill(1)
        await asyncio.sleep(1.0)
        assert store.log.flushed == store.log.written
        lone.disk.no_descriptors = False
        assert await deletion

    assert lone.live(story) == ""


def test_keys_are_found_when_there_are_descriptors_again() -> None:
    """Who can not open a segment's file waits, and does not tell that there is no such key; nor
    does a cut forget the keys of what it keeps."""
    lone = LoneStore()

    async def found(life: Life) -> int:
        return len(await life.store.find(b"t", b"k3", 9))

    async def story(life: Life) -> None:
        starts = life.fill(300)
        await life.settle()
        for act in (found(life), life.store.truncate(starts[20])):
            lone.disk.no_descriptors = True
            waiting = asyncio.ensure_future(act)
            await asyncio.sleep(0.5)
            assert not waiting.done()
            lone.disk.no_descriptors = False
            assert await waiting in (1, None)
            assert await found(life) == 1

    assert lone.live(story) == ""


class _OutOfDescriptors(socket.socket):
    """A listener that cannot accept connections."""

    def accept(self) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_node_that_starves_may_be_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """asyncio listens again a second later with a listener that was closed meanwhile: no fault of
    the node's, and what is one is none of that."""
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.1)
    ports = real()
    starved = DescriptorShortage("b1", ports, EventLog(str(tmp_path / "events"), "b1", ports))
    told: list[tuple[bool, str]] = []

    async def reported(word: str) -> bool:
        return any(word in message for _, message in told)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _loop, context: told.append((starved.report(context), context["message"]))
        )
        listener = _OutOfDescriptors()
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(lambda reader, writer: None, sock=listener)
        with socket.create_connection(listener.getsockname()):
            await eventually(lambda: reported("accept"))
            server.close()
            await eventually(lambda: reported(START_SERVING))
        loop.call_soon(int, "none")
        await eventually(lambda: reported("in callback int"))

    asyncio.run(scenario())
    refused = [message for was_told, message in told if not was_told]
    assert len(refused) == 1, "what is a fault is told"
    assert "b1 cannot accept connections: Too many open files" in capfd.readouterr().err


@pytest.mark.bed
def test_a_real_broker_lives_without_descriptors(raise_node: Any, tmp_path: Path) -> None:
    """Who dials has to wait, a send that needs a file is refused by that word, who is connected is
    served; afterwards all are."""
    inner = f"127.0.0.1:{free_port()}"
    nameserver = raise_node(
        "ns",
        "nameserver",
        enableControllerInNamesrv=True,
        controllerDLegerSelfId="n0",
        controllerDLegerPeers={"n0": inner},
    )
    broker = raise_node(
        "b1",
        "broker",
        haListenPort=free_port(),
        brokerName="b",
        namesrvAddr=[nameserver.address],
        controllerAddr=[inner],
        topics={"t": 1},
        mappedFileSizeCommitLog=8192,
    )
    pid = broker.process.pid

    async def scenario() -> None:
        inside, outside = Pool(1), Pool(1)
        connection = None

        async def sent() -> SendReply:
            packed = SendRequest("t", 0, b"k", BODY).pack()
            return SendReply.unpack(await connection.call(Op.SEND, packed, 10))

        async def served() -> bool:
            with suppress(ConnectionLost):
                return (await sent()).status is Status.SUCCESS
            return False

        async def refused() -> bool:
            last = await sent()
            assert last.status in (Status.SUCCESS, Status.SERVICE_NOT_AVAILABLE)
            return last.remark == "too many files are open"

        async def answers() -> bool:
            with suppress(CallTimeout, ConnectionLost, Unreachable):
                return (await outside.ask(broker.address, Op.PING, {}, 1))["code"] == 0
            return False

        async def no_file_is_left() -> bool:
            used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
            free = next(number for number in count() if number not in used)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, limit[1]))
            outside.drop(broker.address)
            return not await answers()  # else a file was closed after the look

        connection = await inside.get(broker.address)
        await eventually(served)
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        await eventually(no_file_is_left)
        await eventually(refused)
        assert broker.process.poll() is None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
        await eventually(answers)
        await eventually(served)
        inside.close()
        outside.close()

    asyncio.run(scenario())
    assert broker.stop(15) == 0
