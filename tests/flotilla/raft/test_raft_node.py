"""The Raft node on a real loop and a real disk: three in one process, and a link to no peer."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from loopback import PATIENCE_S, until

from clusters.flotilla.net import connection as net
from clusters.flotilla.net.connection import FrameConnection, Tasks
from clusters.flotilla.raft.core import RaftTiming
from clusters.flotilla.raft.effects import Role
from clusters.flotilla.raft.links import RaftLink
from clusters.flotilla.raft.log import EntryId
from clusters.flotilla.raft.membership import Configuration
from clusters.flotilla.raft.messages import Append, LogEntry, SnapshotPart, pack
from clusters.flotilla.raft.node import Hooks, NotLeader, RaftConfig, RaftNode
from clusters.flotilla.raft.snapshot import Snapshot
from clusters.flotilla.rules import RULES
from clusters.flotilla.world.ports import File, OsFileSystem, Ports, real

TIMING = RaftTiming(heartbeat_s=0.05, election_s=1.0)  # busy machines stall for 0.2 s


class Group:
    """Members a, b, c; each applies entries to a list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, RaftNode] = {}
        self.applied: dict[str, list[bytes]] = {name: [] for name in "abc"}
        self.leading: list[str] = []
        self.servers: dict[str, asyncio.AbstractServer] = {}
        self.addresses: dict[str, str] = {}
        self.accepted: dict[FrameConnection, None] = {}

    async def listen(self) -> None:
        for name in "abc":
            server = await net.serve("127.0.0.1", 0, Door(self, name))
            self.servers[name] = server
            host, port = server.sockets[0].getsockname()
            self.addresses[name] = f"{host}:{port}"

    async def start(
        self, name: str, ports: Ports | None = None, snapshot_entries: int = 1000
    ) -> RaftNode:
        self.applied[name] = []

        def apply(index: int, entry: LogEntry) -> int:
            self.applied[name].append(entry.data)
            return index

        def on_role(role: Role) -> None: ...

        hooks = Hooks(
            apply,
            lambda: b"\n".join(self.applied[name]),
            lambda data: self.applied.__setitem__(name, data.split(b"\n")),
            on_role,
            lambda term: self.leading.append(name),
            lambda members: None,
            lambda peer, why: None,
        )
        member = RaftConfig(name, self.addresses, TIMING, str(self.folder / name), snapshot_entries)
        node, _ = await RaftNode.start(member, hooks, ports or real(ord(name)), RULES)
        self.nodes[name] = node
        return node

    async def leader(self) -> RaftNode:
        await until(lambda: any(node.leads for node in self.nodes.values()))
        return next(node for node in self.nodes.values() if node.leads)

    async def stop(self) -> None:
        for server in self.servers.values():
            server.close()
        for node in self.nodes.values():
            await node.close()
        for connection in list(self.accepted):
            connection.abort()
        await until(lambda: not self.accepted)


class Door:
    """Passes a member its peers' messages, and keeps the connections to close."""

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name = group, name

    def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

    def opened(self, connection: FrameConnection) -> None:
        self.group.accepted[connection] = None

    def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
        if node := self.group.nodes.get(self.name):
            node.receive(connection, body)

    def closed(self, connection: FrameConnection, why: str) -> None:
        self.group.accepted.pop(connection, None)
        if node := self.group.nodes.get(self.name):
            node.forget(connection)


def with_group(folder: Path, test: Callable[[Group], Awaitable[None]]) -> None:
    async def run() -> None:
        group = Group(folder)
        await group.listen()
        try:
            for name in "abc":
                await group.start(name)
            await test(group)
        finally:
            await group.stop()

    asyncio.run(run())


def test_everybody_applies_what_was_proposed_in_order(tmp_path: Path) -> None:
    """Raft 5.3: and the proposer gets what `apply` returned."""

    async def test(group: Group) -> None:
        leader = await group.leader()
        indexes = await asyncio.gather(*(leader.propose(b"%d" % i) for i in range(50)))
        assert indexes == sorted(indexes)
        wanted = [b"%d" % i for i in range(50)]
        await until(lambda: all(applied == wanted for applied in group.applied.values()))

    with_group(tmp_path, test)


def test_a_follower_takes_no_proposal(tmp_path: Path) -> None:
    """NotLeader: certainly without effect."""

    async def test(group: Group) -> None:
        leader = await group.leader()
        follower = next(node for node in group.nodes.values() if node is not leader)
        with pytest.raises(NotLeader):
            await follower.propose(b"x")

    with_group(tmp_path, test)


def test_a_read_comes_after_everything_that_was_committed_before_it(tmp_path: Path) -> None:
    """Thesis 6.4: the leader's state holds it then; a follower refers the reader to the leader."""

    async def test(group: Group) -> None:
        leader = await group.leader()
        name = next(name for name, node in group.nodes.items() if node is leader)
        for number in range(20):
            leader.propose(b"%d" % number)
            await leader.read()
        done = leader.propose(b"last")
        reads = [leader.read() for _ in range(50)]
        await done
        await asyncio.gather(*reads)
        assert group.applied[name][-1] == b"last"
        follower = next(node for node in group.nodes.values() if node is not leader)
        with pytest.raises(NotLeader):
            await follower.read()

    with_group(tmp_path, test)


def test_members_that_restart_remember(tmp_path: Path) -> None:
    """Everything from disk, one member at a time and all together."""

    async def test(group: Group) -> None:
        await (await group.leader()).propose(b"one")
        for name in "abc":
            await group.nodes.pop(name).close()
            await (await group.leader()).propose(name.encode())
            await group.start(name)
        await group.leader()
        for name in "abc":
            await group.nodes.pop(name).close()
        for name in "abc":
            await group.start(name)
        wanted = [b"one", b"a", b"b", b"c"]
        await until(lambda: all(applied == wanted for applied in group.applied.values()))

    with_group(tmp_path, test)


class BadDisk(OsFileSystem):
    """Its files can be opened, and not synced once `bad` is set."""

    bad = False

    def open(self, path: str) -> File:
        file = super().open(path)
        sync = file.sync

        async def sync_or_fail() -> None:
            if self.bad:
                raise OSError("the disk is gone")
            await sync()

        file.sync = sync_or_fail  # type: ignore[method-assign]
        return file


def test_a_disk_that_fails_to_sync_stops_the_node(tmp_path: Path) -> None:
    """The fate of what was written is unknown, so nothing more may be promised."""
    died: list[str] = []
    disk = BadDisk()

    class Stopped(Exception):
        pass

    class Exit:
        def fatal(self, why: str) -> Any:
            died.append(why)
            raise Stopped

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        group = Group(tmp_path)
        group.addresses = {"a": "127.0.0.1:1"}  # alone, so it elects itself
        node = await group.start("a", replace(real(1), files=disk, exit=Exit()))
        await until(lambda: node.leads)
        disk.bad = True
        node.propose(b"never")
        await until(lambda: died)
        await node.close()

    asyncio.run(run())
    assert "the disk is gone" in died[0]


class TooMany(OsFileSystem):
    """The file of this name cannot be replaced once `starved` is set: too many are open."""

    starved = asked = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def replace(self, path: str, data: bytes) -> None:
        if self.starved and path.endswith(self.name):
            self.asked = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        await super().replace(path, data)


@pytest.mark.parametrize("name", ["raft.snapshot", "raft.wal"])
def test_a_starved_node_may_be_stopped(tmp_path: Path, name: str) -> None:
    """It waits for a file descriptor without end; all that was agreed on is there afterwards."""
    files = TooMany(name)

    async def run() -> None:
        group = Group(tmp_path)
        group.addresses = {"a": "127.0.0.1:1"}  # alone, so it elects itself
        node = await group.start("a", replace(real(1), files=files), snapshot_entries=4)
        await until(lambda: node.leads)
        files.starved = True
        proposals: list[asyncio.Future[Any]] = []
        while not files.asked:
            proposals.append(node.propose(b"%d" % len(proposals)))
            await until(lambda: proposals[-1].done() or files.asked)
        agreed = [b"%d" % n for n, proposal in enumerate(proposals) if proposal.done()]
        await asyncio.wait_for(node.close(), PATIENCE_S)
        node = await group.start("a")
        await until(lambda: group.applied["a"][: len(agreed)] == agreed)
        await node.close()

    asyncio.run(run())


def test_a_leaders_snapshot_may_overtake_an_own_one_that_is_due(tmp_path: Path) -> None:
    """Raft 7: the sockets of a paused follower hold an Append, with which a snapshot of its own is
    due, and right behind it the leader's snapshot, which replaces the log."""

    class Leader:
        def send_oneway(self, op: int, body: bytes) -> None: ...

    async def run() -> None:
        broken: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: broken.append(told))
        group = Group(tmp_path)
        group.addresses = {"a": "127.0.0.1:1", "b": "127.0.0.1:1", "c": "127.0.0.1:1"}
        node = await group.start("b", snapshot_entries=10)
        members = Configuration(group.addresses)
        theirs = Snapshot(EntryId(30, 1), members, b"thirty").packed
        entries = tuple(LogEntry(1, b"x") for _ in range(10))
        leader = cast(FrameConnection, Leader())
        append = Append(
            term=1, source="a", prev_index=0, prev_term=0, commit=10, stamp=0.0, entries=entries
        )
        part = SnapshotPart(
            term=1,
            source="a",
            index=30,
            offset=0,
            total=len(theirs),
            stamp=0.0,
            round=0,
            data=theirs,
        )
        node.receive(leader, pack(append))
        node.receive(leader, pack(part))
        await until(lambda: broken or group.applied["b"] == [b"thirty"])
        await node.close()
        assert not broken
        assert (await group.start("b", snapshot_entries=10)).raft.commit == 30
        assert group.applied["b"] == [b"thirty"]
        await group.nodes["b"].close()

    asyncio.run(run())


def test_a_link_that_is_not_answered_is_dialled_anew() -> None:
    """After a partition the old connection may back off for long; a new one does not."""

    class Mute:
        dialled = 0
        heard = 0
        open = 0

        def protocol_error(self, connection: FrameConnection, why: str) -> None: ...

        def opened(self, connection: FrameConnection) -> None:
            self.dialled += 1
            self.open += 1

        def frame(self, connection: FrameConnection, op: int, request: int, body: bytes) -> None:
            self.heard += 1

        def closed(self, connection: FrameConnection, why: str) -> None:
            self.open -= 1

    async def run() -> None:
        mute, tasks = Mute(), Tasks()
        server = await net.serve("127.0.0.1", 0, mute)
        host, port = server.sockets[0].getsockname()
        link = RaftLink(f"{host}:{port}", 0.05, tasks, lambda body: None, lambda peer, why: None)

        def sends_until_twice() -> bool:
            link.send(b"x")
            return mute.dialled >= 3 and mute.heard > 0

        await until(sends_until_twice)
        link.close()
        tasks.cancel()
        await until(lambda: not mute.open)
        server.close()

    asyncio.run(run())
