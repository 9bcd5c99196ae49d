"""Apache ZooKeeper: servers that agree by Zab on a tree of nodes, asked in four-letter words.

Nothing has to be installed: the jars that PySpark brings hold a whole server. The client speaks
ZooKeeper's own protocol, one session a logical process, without hidden retries. A session lasts as
long as it asks something, and `session_ms` longer; it is a lock's lease.

A read is a `sync` and a `getData` of one session. The leader answers `sync` without asking a
majority, so ZooKeeper does not promise that such reads are linearizable; in practice they are, as
long as a leader that was replaced stops in time.
"""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from clusters.kit import NodeAccess, Profile, Service, View, plugin, servers_in_turn
from clusters.kit.java import FLAGS, JAVA
from clusters.supply import MavenJars, Program, PythonJars
from harness.contracts import BedFailed, Node
from harness.contracts.calls import Changes, Lease, LogEntries, Refused, Versioned

PORT, PEER_PORT, ELECTION_PORT = 2181, 2888, 3888
WITHIN_S = 2.0
SILENT_S = 1.0
NOTICE = -1  # number of a notification
SET_UP_S = 30.0
CREATE2, DELETE, EXISTS, GET_DATA, SET_DATA, SYNC, GET_CHILDREN = 15, 2, 3, 4, 5, 9, 8
CLOSE_SESSION = -11
DIGEST_EVERY = 128  # transactions
SAME_TRIES, SAME_EVERY_S = 30, 0.1  # to find servers that have applied the same
PERSISTENT, EPHEMERAL, SEQUENTIAL = 0, 1, 2
NO_NODE, BAD_VERSION, NODE_EXISTS = -101, -103, -110
# errors that did nothing: bad arguments, no node, no permission, bad version, exists, not empty
NEVER = frozenset({-8, NO_NODE, -102, BAD_VERSION, -108, NODE_EXISTS, -111, -114, -119})
ANYTHING = -1  # of a version
STAT = struct.Struct(">qqqqiiiqiiq")
LOG4J = """rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
"""
PROGRAM = Program(
    name="zookeeper",
    sources=(
        PythonJars(
            package="pyspark",
            folder="jars",
            jars=(
                *("zookeeper-", "netty-", "metrics-core-", "snappy-java-", "slf4j-api-"),
                *("log4j-api-", "log4j-core-", "log4j-slf4j2-", "log4j-1.2-api-"),
                *("commons-io-", "commons-cli-", "audience-annotations-"),
            ),
            version_of="zookeeper-",
        ),
        MavenJars(
            coordinates=(
                "org.apache.zookeeper:zookeeper",
                "io.dropwizard.metrics:metrics-core:4.1.12.1",
                "org.xerial.snappy:snappy-java:1.1.10.5",
            )
        ),
    ),
    by_hand="unpack a release of apache/zookeeper and name its folder as supply",
)


class ZooKeeperError(Exception):
    """An error code of a server."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


class Stat(NamedTuple):
    """What a server tells of a node."""

    created: int  # the transaction that created it
    version: int
    children: int


class Session:
    """A connection with a session of its own. Answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0
        self._turn = asyncio.Lock()
        self._size: int | None = None  # of the frame that is being read
        self._notices: list[str] = []  # paths of nodes that have changed
        self.timeout_s = 0.0
        self.transaction = 0  # the newest in answers

    @classmethod
    async def open(cls, address: str, timeout_ms: int, seen: int = 0) -> "Session":
        """`seen`: a transaction; servers that lack it refuse the session. Raises OSError,
        TimeoutError or EOFError if there is none."""
        async with asyncio.timeout(WITHIN_S):
            self = cls(*await asyncio.open_connection(address, PORT))
            try:
                request = struct.pack(">iqiqi", 0, seen, timeout_ms, 0, 16) + bytes(16) + b"\x00"
                self._writer.write(_framed(request))
                answer = await self._frame()
                self.timeout_s = struct.unpack_from(">ii", answer)[1] / 1000
            except BaseException:
                self.close()
                raise
            return self

    @property
    def closed(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    async def request(self, kind: int, body: bytes) -> bytes:
        """Return the answer's body. Raises ZooKeeperError."""
        async with self._turn, asyncio.timeout(WITHIN_S):
            self._number += 1
            self._writer.write(_framed(struct.pack(">ii", self._number, kind) + body))
            while (number := int.from_bytes((answer := await self._frame())[:4], signed=True)) < 0:
                self._note(answer)
        if number != self._number:
            raise ConnectionError("an answer to another request")
        _, transaction, error = struct.unpack_from(">iqi", answer)
        self.transaction = max(self.transaction, transaction)
        if error:
            raise ZooKeeperError(error)
        return answer[16:]

    async def changed(self, path: str, within_s: float) -> bool:
        """Wait for the notification that a node has changed; return whether it came in time."""
        async with self._turn:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while path not in self._notices:
                        self._note(await self._frame())
            found = path in self._notices
            self._notices = [each for each in self._notices if each != path]
            return found

    def _note(self, frame: bytes) -> None:
        """Keep a notification: header, kind of event, state, path."""
        if int.from_bytes(frame[:4], signed=True) == NOTICE:
            size = int.from_bytes(frame[24:28])
            self._notices.append(frame[28 : 28 + size].decode())

    async def _frame(self) -> bytes:
        """Return the next frame; nothing is lost if it is cancelled."""
        if self._size is None:
            self._size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(self._size)
        self._size = None
        return frame

    def close(self) -> None:
        self._writer.close()


class ZooKeeperClient:
    """A client of one logical process: one server at a time, the next one after a failure."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        self._servers = servers_in_turn(settings, number)
        self._values: Mapping[str, Any] = settings["settings"]
        self._session: Session | None = None
        self._connecting = asyncio.Lock()
        self._seen = 0  # the newest transaction that a watcher has seen
        self._armed: dict[
            str, tuple[Session | None, int]
        ] = {}  # watches, and the version they follow

    async def set_up(self, topics: Mapping[str, int]) -> None:
        """Create the parents of all nodes."""
        keys = [f"{topic}-{n}" for topic, queues in topics.items() for n in range(queues)]
        async with asyncio.timeout(SET_UP_S):
            for path in ("/registers", "/locks", "/logs", *(f"/logs/{key}" for key in keys)):
                while True:
                    try:
                        await self._create(path, b"")
                        break
                    except ZooKeeperError as e:
                        if e.code == NODE_EXISTS:
                            break
                    except (Refused, OSError, EOFError, TimeoutError):
                        await asyncio.sleep(0.2)

    async def close(self) -> None:
        if self._session:
            self._session.close()

    async def _call(self, kind: int, path: str, rest: bytes = b"") -> bytes:
        """Return the answer. Raises ZooKeeperError, Refused if nothing was sent, and OSError,
        EOFError or TimeoutError if the outcome is unknown."""
        session = await self._connected()
        try:
            return await session.request(kind, _text(path) + rest)
        except (OSError, EOFError, TimeoutError):
            session.close()
            self._servers.append(self._servers.pop(0))
            raise

    async def _change(self, kind: int, path: str, rest: bytes) -> bytes:
        """Call; an error that did nothing is Refused."""
        try:
            return await self._call(kind, path, rest)
        except ZooKeeperError as e:
            if e.code in NEVER:
                raise Refused(str(e)) from e
            raise

    async def _connected(self) -> Session:
        async with self._connecting:
            if self._session is None or self._session.closed:
                try:
                    timeout_ms = self._values["session_ms"]
                    self._session = await Session.open(self._servers[0], timeout_ms, self._seen)
                except (OSError, EOFError, TimeoutError) as e:
                    self._servers.append(self._servers.pop(0))
                    raise Refused(f"not connected: {e}") from e
            return self._session

    async def _create(self, path: str, data: bytes, flags: int = PERSISTENT) -> tuple[str, Stat]:
        anyone = struct.pack(">ii", 1, 31) + _text("world") + _text("anyone")
        answer = await self._call(CREATE2, path, _buffer(data) + anyone + struct.pack(">i", flags))
        size = int.from_bytes(answer[:4], "big")
        return answer[4 : 4 + size].decode(), _stat(answer, 4 + size)

    async def _get(self, path: str, *, sync: bool = True) -> tuple[bytes, Stat] | None:
        """Return a node's data, None if it does not exist."""
        if sync and self._values["sync_reads"]:
            await self._call(SYNC, path)
        try:
            answer = await self._call(GET_DATA, path, b"\x00")
        except ZooKeeperError as e:
            if e.code == NO_NODE:
                return None
            raise
        size = max(int.from_bytes(answer[:4], "big", signed=True), 0)
        return answer[4 : 4 + size], _stat(answer, 4 + size)

    # registers

    async def read(self, key: str) -> int | None:
        found = await self._get(_register(key))
        return int(found[0]) if found else None

    async def write(self, key: str, value: int) -> None:
        await self.change(key, value)

    async def change(self, key: str, value: int) -> int:
        """Set the value, or create the register. Either does nothing if it is refused. Return the
        version, from 1 on."""
        path, data = _register(key), str(value).encode()
        while True:
            try:
                rest = _buffer(data) + struct.pack(">i", ANYTHING)
                return _stat(await self._call(SET_DATA, path, rest)).version + 1
            except ZooKeeperError as e:
                if e.code != NO_NODE:
                    raise
            try:
                return (await self._create(path, data))[1].version + 1
            except ZooKeeperError as e:
                if e.code != NODE_EXISTS:
                    raise

    async def cas(self, key: str, old: int | None, new: int) -> bool:
        """Write if the version is still the one that was read. A refusal tells no value, since the
        value was read before."""
        path, data = _register(key), str(new).encode()
        try:
            found = await self._get(path)
        except Exception as e:
            raise Refused(f"nothing was read: {e}") from e
        if (int(found[0]) if found else None) != old:
            raise Refused("it has another value")
        if found:
            version = struct.pack(">i", found[1].version)
            await self._change(SET_DATA, path, _buffer(data) + version)
            return True
        try:
            await self._create(path, data)
        except ZooKeeperError as e:
            if e.code in NEVER:
                raise Refused(str(e)) from e
            raise
        return True

    # watches: a session never goes back to an older state, nor does the next session of its client,
    # since servers that lack what was seen refuse it

    async def current(self, key: str) -> Versioned | None:
        found = await self._get(_register(key))
        self._look()
        return Versioned(found[1].version + 1, int(found[0])) if found else None

    async def watch(self, key: str, after: int) -> Changes:
        """Return the newest value, once it is another one. A watch fires once, and is set by a
        read, so values between two reads are left out."""
        path = _register(key)
        session = await self._connected()
        armed = self._armed.get(key) == (session, after)
        if armed and not await self._fired(session, path):
            return Changes(newest=True)
        now = await self._set_watch(path)
        self._look()
        self._armed[key] = self._session, now.version
        return Changes([now] if now.version != after else [], newest=True)

    async def _fired(self, session: Session, path: str) -> bool:
        """Wait for a watch; if it is silent, check that the session is alive."""
        try:
            if await session.changed(path, SILENT_S):
                return True
        except (OSError, EOFError):
            session.close()
            self._servers.append(self._servers.pop(0))
            raise
        await self._call(EXISTS, "/", b"\x00")
        return False

    async def _set_watch(self, path: str) -> Versioned:
        """Read a node and set a watch on it; version 0: it does not exist."""
        while True:
            try:
                answer = await self._call(GET_DATA, path, b"\x01")
                size = int.from_bytes(answer[:4])
                version = _stat(answer, 4 + size).version + 1
                return Versioned(version, int(answer[4 : 4 + size]))
            except ZooKeeperError as e:
                if e.code != NO_NODE:
                    raise
            try:
                await self._call(EXISTS, path, b"\x01")
            except ZooKeeperError as e:
                if e.code != NO_NODE:
                    raise
                return Versioned(0, -1)

    def _look(self) -> None:
        """Remember how new the state is that was seen."""
        if self._session:
            self._seen = max(self._seen, self._session.transaction)

    # locks: an ephemeral node, whose creating transaction is the fencing token

    async def acquire(self, key: str, owner: str) -> Lease:
        session = await self._connected()
        try:
            _, stat = await self._create(f"/locks/{key}", owner.encode(), EPHEMERAL)
        except ZooKeeperError as e:
            if e.code in NEVER:
                raise Refused("another owner has it") from e
            raise
        return Lease(session.timeout_s, stat.created)

    async def release(self, key: str, owner: str) -> None:
        path = f"/locks/{key}"
        try:
            found = await self._get(path)
        except Exception as e:
            raise Refused(f"nothing was read: {e}") from e
        if not found or found[0] != owner.encode():
            raise Refused("this owner does not have it")
        await self._change(DELETE, path, struct.pack(">i", found[1].version))

    # logs: sequential children

    async def append(self, key: str, body: bytes) -> int:
        try:
            path, _ = await self._create(f"/logs/{key}/", body, SEQUENTIAL)
        except ZooKeeperError as e:
            if e.code in NEVER:
                raise Refused(str(e)) from e
            raise
        return int(path.rpartition("/")[2])

    async def end(self, key: str) -> int:
        path = f"/logs/{key}"
        await self._call(SYNC, path)
        try:
            return _stat(await self._call(EXISTS, path, b"\x00")).children
        except ZooKeeperError as e:
            if e.code == NO_NODE:
                return 0  # the whole log is gone
            raise

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        end = await self.end(key)
        places = range(offset, min(offset + limit, end))
        asked = (self._get(f"/logs/{key}/{at:010d}", sync=False) for at in places)
        found = zip(places, await asyncio.gather(*asked), strict=True)
        return LogEntries([(at, one[0]) for at, one in found if one], end)


class ZooKeeper(Service):
    """Three servers by default, each with the whole tree."""

    name, programs, client = "zookeeper", (PROGRAM, JAVA), ZooKeeperClient
    settings: ClassVar = {
        "sync_reads": True,
        "session_ms": 4000,
        "forceSync": ("yes", "no"),
        "tickTime": 500,
        "syncLimit": 8,
        "snapCount": 100_000,
        "heap_mb": 128,
    }
    smallest: ClassVar = {
        **dict.fromkeys(("session_ms", "tickTime", "syncLimit"), 1),
        "snapCount": 2,  # a server raises a smaller one to this
        "heap_mb": 32,
    }
    profiles = (
        Profile(name="default", about="synced before each acknowledgement"),
        Profile(
            name="no-force-sync",
            about="acknowledged before the log is synced",
            settings={"forceSync": "no"},
            expected={"zookeeper-power": "STALE_READ"},
        ),
        Profile(
            name="local-reads",
            about="each server answers reads by itself, so they may be stale",
            settings={"sync_reads": False},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    detection_s = 4.0  # syncLimit ticks
    start_s = 90.0

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        number = peers.index(here.node) + 1
        lines = [
            f"tickTime={self.values['tickTime']}",
            *(
                "initLimit=20",
                f"syncLimit={self.values['syncLimit']}",
                "standaloneEnabled=false",
                "maxClientCnxns=0",
            ),
            *("admin.enableServer=false", "4lw.commands.whitelist=*"),
            f"maxSessionTimeout={max(self.values['session_ms'], 20 * self.values['tickTime'])}",
            f"dataDir={here.folder}/{self.data}",
            f"clientPort={PORT}",
            f"clientPortAddress={here.node.address}",
            f"forceSync={self.values['forceSync']}",
            f"snapCount={self.values['snapCount']}",
            *(
                f"server.{n}={peer.address}:{PEER_PORT}:{ELECTION_PORT}"
                for n, peer in enumerate(peers, start=1)
            ),
        ]
        return {
            "zoo.cfg": "\n".join([*lines, ""]),
            "log4j2.properties": LOG4J,
            f"{self.data}/myid": f"{number}\n",
        }

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        return [
            *(here.program["java"], *FLAGS, f"-Xmx{self.values['heap_mb']}m"),
            *(f"-Djava.io.tmpdir={here.folder}", f"-Duser.home={here.folder}"),
            f"-Dlog4j2.configurationFile={here.folder}/log4j2.properties",
            *("-cp", f"{here.program['zookeeper']}/*"),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            f"{here.folder}/zoo.cfg",
        ]

    async def ask(self, here: NodeAccess) -> View:
        answer = await here.text(PORT, b"mntr")
        try:
            epoch = await here.agent.get(f"{here.folder}/{self.data}/version-2/currentEpoch")
        except BedFailed:  # the folder of an attached server is not known
            epoch = b"-1"
        return view_of(here.node.name, answer, int(epoch))

    async def digests(self, nodes: Sequence[NodeAccess]) -> dict[str, str]:
        """Return the digests of all servers' trees at the newest transaction of which all of them
        have one. A server notes a digest every 128 transactions, so some changes are made first."""
        await nodes[0].agent.ask(PORT, changes(2 * DIGEST_EVERY), 20.0, to_end=True)
        for _ in range(SAME_TRIES):
            asked = (node.text(PORT, b"hash", within_s=5.0) for node in nodes)
            found = [digests_in(answer) for answer in await asyncio.gather(*asked)]
            common = set.intersection(*map(set, found))
            if common and max(common) == max(max(each, default=0) for each in found):
                break
            await asyncio.sleep(SAME_EVERY_S)
        at = max(common, default=0)
        return {
            node.node.name: f"{each[at]} at {at:x}"
            for node, each in zip(nodes, found, strict=True)
            if at in each
        }

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Give it its number back; it takes the rest from the leader."""
        number = here.node.name.rpartition("-")[2]
        await here.agent.put(f"{here.folder}/{self.data}/myid", f"{number}\n".encode())


def changes(count: int) -> bytes:
    """Return a session with a number of changes that change nothing, for one connection that the
    server closes at its end."""
    connect = struct.pack(">iqiqi", 0, 0, 10_000, 0, 16) + bytes(16) + b"\x00"
    change = _text("/locks") + _buffer(b"") + struct.pack(">i", ANYTHING)
    requests = [struct.pack(">ii", n, SET_DATA) + change for n in range(1, count + 1)]
    close = struct.pack(">ii", count + 1, CLOSE_SESSION)
    return b"".join(map(_framed, [connect, *requests, close]))


def digests_in(answer: str) -> dict[int, str]:
    """Return the digests that a server answers to `hash`: transaction -> digest."""
    lines = (line.partition(": ") for line in answer.splitlines())
    return {int(zxid, 16): digest for zxid, colon, digest in lines if colon}


def view_of(name: str, answer: str, epoch: int) -> View:
    """Return a server's view from its answer to `mntr` and its current epoch. A server does not
    say who leads; those in the leader's epoch that follow, follow the leader."""
    fields = dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
    state, serves = (
        fields.get("zk_server_state", ""),
        "broadcast" in fields.get("zk_peer_state", ""),
    )
    leader = f"epoch {epoch}"
    if state == "leader":
        return View(leader, epoch, leader, serves)
    return View(leader if state == "follower" else "", epoch, name, serves)


def _register(key: str) -> str:
    return f"/registers/{key.replace('/', ':')}"


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _buffer(data: bytes) -> bytes:
    return _framed(data)


def _text(text: str) -> bytes:
    return _framed(text.encode())


def _stat(data: bytes, at: int = 0) -> Stat:
    created, _, _, _, version, _, _, _, _, children, _ = STAT.unpack_from(data, at)
    return Stat(created, version, children)


PLUGIN = plugin(ZooKeeper)
