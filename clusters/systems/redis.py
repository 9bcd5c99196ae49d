"""Redis with Sentinel: one primary that acknowledges alone, its replicas, and the sentinels that
elect another.

A *broker* is a Redis server, a *controller* is a sentinel. A Redis primary acknowledges what it has
in memory and copies it later. When the sentinels no longer hear it, a majority of them promotes a
replica. Clients that still reach the old primary go on writing to it until a sentinel that hears it
again makes it a replica of the new one; then it replaces its data by the new primary's. What it
acknowledged in between is lost. Redis is designed this way, which is why it is here: a harness that
does not find this loss finds nothing. The setting `wait-replicas` makes clients wait (WAIT) until
replicas have a write, and verify reads likewise.

A log is a list: RPUSH answers with its new length, so the client knows the offset. With the setting
`logs = "streams"` it is a stream, whose groups of consumers the server keeps: XREADGROUP gives new
messages, XAUTOCLAIM those that another consumer left unacknowledged for too long. A client asks a
sentinel for the primary, verifies it with ROLE, and asks again when the connection ends, when an
answer takes too long, or when the server has become a replica.

An error reply means that nothing was done only if its first word is in `NEVER`; after any other
failure behind a written command, the command may have been executed. No command is sent twice.
"""

import asyncio
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple, cast

from clusters.kit import Copy, Event, NodeAccess, Profile, Service, View, plugin, role_events
from clusters.supply import Program
from harness.contracts import BedFailed, Node
from harness.contracts.calls import Delivery, Lease, LogEntries, Refused, Stored

BROKER, CONTROLLER = "broker", "controller"
PORTS = {BROKER: 6379, CONTROLLER: 26379}
MAIN = "main"  # the sentinels' name for the servers
WITHIN_S, SEEK_AGAIN_S, WAIT_MS = 1.0, 0.1, 500
COPY_WITHIN_S, CHUNK = 30.0, 10_000  # messages of a replica per read
ASK_EACH_OTHER_S = 1.0  # a sentinel asks the others about its suspicion
FETCH_MS = 500  # how long a fetch waits for a message; less than WITHIN_S
# first words of errors that come before anything is done; the last ones are of Redis Cluster
NEVER = frozenset(
    {
        *("READONLY", "NOREPLICAS", "MISCONF", "LOADING", "MASTERDOWN", "OOM", "NOAUTH", "NOPERM"),
        *("NOGROUP", "BUSYGROUP"),
        *("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT"),
    }
)
PROGRAM = Program(name="redis-server", version_re=r"v=(\S+)", package="redis-server", linked=True)
OF_SENTINEL = ("down-after-milliseconds", "failover-timeout")
OF_CLIENT = ("wait-replicas", "lease_s", "logs", "ack_wait_s")
WAIT_ALL = {"wait-replicas": 2, "min-replicas-to-write": 2, "appendfsync": "always"}
KEY_AT = {"EVAL": 3, "XGROUP": 2, "XREADGROUP": -2}  # where commands have their key, if not at 1
CAS = """local now = redis.call('GET', KEYS[1])
if now ~= (ARGV[1] ~= '' and ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1"""
RELEASE = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"
# return for each message its offset, its first eight bytes and a digest of the whole
DESCRIBE = """local rows = {}
local function add(at, body)
  local hex = body:sub(1, 8):gsub('.', function(c) return ('%02x'):format(c:byte()) end)
  rows[#rows + 1] = {at, hex .. redis.sha1hex(body):sub(1, 15)}
end
"""
COPY = f"""{DESCRIBE}
for n, body in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)) do
  add(ARGV[1] + n - 1, body)
end
return rows"""
COPY_STREAM = f"""{DESCRIBE}
local from = ('0-%d'):format(ARGV[1] + 1)
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[2])) do
  add(tonumber(entry[1]:match('%d+$')) - 1, entry[2][2])
end
return rows"""
END = b"*?\r\n"  # no command: the server answers what came before, and closes the connection
LINE = re.compile(r"\d+:X (\d+ \w+ \d+ [\d:.]+) . ([+-][\w-]+) ?(.*)")
COPY_ROW = re.compile(rb"([0-9a-f]{16})([0-9a-f]{15})")
CRLF = b"\r\n"


# ------------------------------------------------------------------------------------ its protocol


class ErrorReply(NamedTuple):
    text: str

    def __str__(self) -> str:
        return self.text


def encode(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    bulks = (b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), b"".join(bulks))


def decode(data: bytes, at: int = 0) -> tuple[Any, int] | None:
    """Return the reply that begins at an offset, and the offset behind it, or None if it is
    incomplete.

    Integers are int, simple strings str, bulk strings bytes, arrays lists, errors ErrorReply, nil
    is None. Raises ValueError if the data is not a reply.
    """
    end = data.find(CRLF, at)
    if end < 0:
        return None
    kind, rest, at = data[at : at + 1], data[at + 1 : end], end + len(CRLF)
    match kind:
        case b"+":
            return rest.decode(), at
        case b"-":
            return ErrorReply(rest.decode(errors="replace")), at
        case b":":
            return int(rest), at
        case b"$" | b"*" if int(rest) < 0:
            return None, at
        case b"$":
            end = at + int(rest)
            return (data[at:end], end + 2) if len(data) >= end + 2 else None
        case b"*":
            items = []
            for _ in range(int(rest)):
                if (part := decode(data, at)) is None:
                    return None
                item, at = part
                items.append(item)
            return items, at
    raise ValueError(f"no reply begins with {kind!r}")


def error_of(text: str) -> Exception:
    """Return the exception for an error reply: Refused if it means that nothing was done."""
    return Refused(text) if text.partition(" ")[0] in NEVER else ConnectionError(text)


class RedisConnection(asyncio.Protocol):
    """A connection to a server, which answers in the order of the commands. If an answer takes too
    long, the connection and all open commands are given up."""

    def __init__(self) -> None:
        self._inbox = b""
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.WriteTransport
        self.closed = False

    async def request(self, *words: bytes | str | int) -> Any:
        """Return the reply. Raises Refused if nothing was done, ConnectionError if that is
        unknown."""
        if self.closed:
            raise Refused("the connection has ended")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(encode(*words))
        try:
            async with asyncio.timeout(WITHIN_S):
                reply = await answer
        except TimeoutError:
            self.close(why := f"no answer within {WITHIN_S:g} s")
            raise ConnectionError(why) from None
        if isinstance(reply, ErrorReply):
            if reply.text.startswith("READONLY"):
                self.close("the server is a replica by now")
            raise error_of(reply.text)
        return reply

    def close(self, why: str = "the client closed the connection") -> None:
        self.closed = True
        self._transport.abort()
        while self._waiting:
            if not (answer := self._waiting.popleft()).done():
                answer.set_exception(ConnectionError(why))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        try:
            while not self.closed and (part := decode(self._inbox)):
                reply, end = part
                self._inbox = self._inbox[end:]
                if self._waiting and not (answer := self._waiting.popleft()).done():
                    answer.set_result(reply)
        except ValueError as e:
            self.close(f"the server does not speak RESP: {e}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc or "the server closed the connection"))


async def connect(address: str, port: int) -> RedisConnection:
    """Open a connection. Raises OSError if no server answers."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(RedisConnection, address, port))[1]


# -------------------------------------------------------------------------------------- the client


class Primary(NamedTuple):
    """A connection to the server that a sentinel names as primary, and the epoch of its
    configuration."""

    link: RedisConnection
    address: str
    epoch: int


async def connect_primary(sentinel: str) -> Primary:
    """Connect to the primary that this sentinel names. Raises OSError if there is none."""
    link = await connect(sentinel, PORTS[CONTROLLER])
    try:
        before = await _epoch(link)
        reply = await link.request("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MAIN)
        if not reply or before != await _epoch(link):  # a failover changes both at one instant
            raise ConnectionError("the sentinel's view is changing")
    finally:
        link.close()
    address = reply[0].decode()
    link = await connect(address, PORTS[BROKER])
    try:
        if (await link.request("ROLE"))[0] != b"master":
            raise ConnectionError(f"{address} is not a primary")
    except BaseException:
        link.close()
        raise
    return Primary(link, address, before)


async def _epoch(sentinel: RedisConnection) -> int:
    return int(pairs(await sentinel.request("SENTINEL", "MASTER", MAIN))["config-epoch"])


def key_of(command: Sequence[bytes | str | int]) -> str:
    """Return the key of a command that has one."""
    return str(command[KEY_AT.get(str(command[0]), 1)])


def pairs(reply: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


class RedisClient:
    """A client of one logical process."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        nodes = settings["nodes"]
        self._names = {address: name for name, role, address in nodes}
        self._sentinels = deque(address for _, role, address in nodes if role == CONTROLLER)
        self._sentinels.rotate(-number)
        self._values: Mapping[str, Any] = settings["settings"]
        self._number = number
        self._primary: Primary | None = None
        self._seeking: asyncio.Task[Primary] | None = None

    async def close(self) -> None:
        if self._seeking:
            self._seeking.cancel()
        if self._primary:
            self._primary.link.close()

    async def _connected(self, key: str) -> Primary:
        """Return the primary that has a key; one search serves all calls that wait for it."""
        if self._primary is None or self._primary.link.closed:
            if self._seeking is None or self._seeking.done():
                self._seeking = asyncio.create_task(self._seek())
            self._primary = await asyncio.shield(self._seeking)
        return self._primary

    async def _seek(self) -> Primary:
        self._sentinels.rotate(-1)
        try:
            async with asyncio.timeout(WITHIN_S):
                return await connect_primary(self._sentinels[0])
        except (OSError, ValueError, LookupError, Refused) as e:
            await asyncio.sleep(SEEK_AGAIN_S)  # so that a caller that retries at once does not spin
            raise Refused(f"no primary is known: {e}") from None

    async def _ask(self, *words: bytes | str | int) -> tuple[Any, Primary]:
        """Return the primary's reply, and the primary."""
        primary = await self._connected(key := key_of(words))
        name = self._names.get(primary.address, primary.address)
        try:
            reply = await primary.link.request(*words)
        except Refused as e:
            raise Refused(f"{name}: {e}") from e
        try:
            await self._settle(primary.link, key)
        except (Refused, ConnectionError) as e:
            raise ConnectionError(f"{name}: {e}") from e
        return reply, primary

    async def _settle(self, link: RedisConnection, key: str) -> None:
        """Wait until replicas have all that came before, as a write of its own proves: a server
        that replicas no longer follow may be a primary of the past."""
        if wanted := self._values["wait-replicas"]:
            await link.request("INCR", f"{{{key}}}settled")  # in the slot of the key
            have = await link.request("WAIT", wanted, WAIT_MS)
            if have < wanted:
                raise ConnectionError(f"{have} of {wanted} replicas have it")

    # logs

    async def append(self, key: str, body: bytes) -> Stored:
        length, primary = await self._ask("RPUSH", key, body)
        return Stored(length - 1, primary.epoch, self._names.get(primary.address, ""))

    async def end(self, key: str) -> int:
        return int((await self._ask("LLEN", key))[0])

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        length = await self.end(key)
        bodies, _ = await self._ask("LRANGE", key, offset, offset + limit - 1)
        end = max(length, offset + len(bodies)) if bodies else length
        # after a failover the list may be shorter: read on from its end
        return LogEntries([*enumerate(bodies, offset)], end, min(offset, length))

    # registers

    async def read(self, key: str) -> int | None:
        value, _ = await self._ask("GET", key)
        return None if value is None else int(value)

    async def write(self, key: str, value: int) -> None:
        await self._ask("SET", key, value)

    async def cas(self, key: str, old: int | None, new: int) -> bool:
        expected = "" if old is None else old
        return bool((await self._ask("EVAL", CAS, 1, key, expected, new))[0])

    # counters, queues, and locks that end with their lease

    async def increment(self, key: str, by: int) -> None:
        await self._ask("INCRBY", key, by)

    async def count(self, key: str) -> int:
        return await self.read(key) or 0

    async def enqueue(self, key: str, value: int) -> None:
        await self._ask("RPUSH", key, value)

    async def dequeue(self, key: str) -> int | None:
        value, _ = await self._ask("LPOP", key)
        return None if value is None else int(value)

    async def acquire(self, key: str, owner: str) -> Lease:
        held_s = self._values["lease_s"]
        if (await self._ask("SET", key, owner, "NX", "EX", held_s))[0] is None:
            raise Refused("another owner has it")
        return Lease(held_s)

    async def release(self, key: str, owner: str) -> None:
        if not (await self._ask("EVAL", RELEASE, 1, key, owner))[0]:
            raise Refused("this owner does not have it")


class RedisStreamClient(RedisClient):
    """A client whose logs are streams, with entries 0-1, 0-2 and so on, and groups of consumers."""

    async def append(self, key: str, body: bytes) -> Stored:
        """Append with the next id, which XADD chooses for `0-*` from Redis 7.0 on."""
        added, primary = await self._ask("XADD", key, "0-*", "body", body)
        return Stored(offset_of(added), primary.epoch, self._names.get(primary.address, ""))

    async def end(self, key: str) -> int:
        last, _ = await self._ask("XREVRANGE", key, "+", "-", "COUNT", 1)
        return offset_of(last[0][0]) + 1 if last else 0

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        end = await self.end(key)
        found, _ = await self._ask("XRANGE", key, f"0-{offset + 1}", "+", "COUNT", limit)
        entries = [(offset_of(entry), body) for entry, (_, body) in found]
        # after a failover the stream may be shorter, as with a list
        return LogEntries(entries, max(end, entries[-1][0] + 1 if entries else 0), min(offset, end))

    async def fetch(self, key: str, group: str, limit: int) -> list[Delivery]:
        """Take over what others left unacknowledged for too long; if that is nothing, wait for a
        new message."""
        consumer, idle_ms = f"consumer-{self._number}", self._values["ack_wait_s"] * 1000
        try:
            claim = ("XAUTOCLAIM", key, group, consumer, idle_ms, "0-0", "COUNT", limit)
            (_, found, *_), _ = await self._ask(*claim)
            if not found:
                read = ("XREADGROUP", "GROUP", group, consumer, "COUNT", limit, "BLOCK", FETCH_MS)
                streams, _ = await self._ask(*read, "STREAMS", key, ">")
                found = streams[0][1] if streams else ()
        except Refused as e:
            if "NOGROUP" not in str(e):
                raise
            await self._create(key, group)
            return []
        return [Delivery(offset_of(at), body, at.decode()) for at, (_, body) in found]

    async def _create(self, key: str, group: str) -> None:
        try:
            await self._ask("XGROUP", "CREATE", key, group, "0", "MKSTREAM")
        except Refused as e:
            if "BUSYGROUP" not in str(e):  # else another consumer has created it
                raise

    async def acknowledge(self, key: str, group: str, handles: Sequence[str]) -> None:
        """Acknowledge. Raises ConnectionError if a message did not wait for it: another consumer
        has acknowledged it since, or the server no longer knows that it was given."""
        count, _ = await self._ask("XACK", key, group, *handles)
        if count < len(handles):
            raise ConnectionError(f"{count} of {len(handles)} waited for an acknowledgement")


def offset_of(entry: bytes) -> int:
    """Return the offset of a stream's entry from its id."""
    return int(entry.partition(b"-")[2]) - 1


# ------------------------------------------------------------------------------------- the service


def stream_profiles(plan: str, wait: Mapping[str, Any]) -> tuple[Profile, Profile]:
    """Return the profiles `default` and `wait` with streams. `plan`: the one that cuts a primary
    off."""
    about, streams = "logs are streams with groups of consumers", {"logs": "streams"}
    return (
        Profile(
            name="streams",
            about=f"{about}; acknowledged as in `default`",
            settings=streams,
            expected={plan: "LOST_ACKED"},
        ),
        Profile(
            name="streams-wait",
            about=f"{about}; clients wait as in `wait`",
            settings={**streams, **wait},
            expected={plan: "valid"},
        ),
    )


class Redis(Service):
    """Three servers and three sentinels by default. A sentinel leads the others only for a single
    failover, so no controller leads."""

    name, client = "redis", RedisClient
    _stream_client: ClassVar[type[RedisClient]] = RedisStreamClient
    programs: ClassVar[Sequence[Program]] = (PROGRAM,)
    roles: ClassVar = {BROKER: 3, CONTROLLER: 3}
    names: ClassVar = {BROKER: "redis", CONTROLLER: "sentinel"}
    arbiters: ClassVar[Sequence[str]] = (CONTROLLER,)
    dated: ClassVar[Sequence[str]] = (CONTROLLER,)
    words: ClassVar = {"leader": "master", "follower": "replica", "term": "epoch"}
    log = "redis.log"
    settings: ClassVar = {
        "appendonly": ("yes", "no"),
        "appendfsync": ("everysec", "always", "no"),
        "min-replicas-to-write": 0,
        "min-replicas-max-lag": 10,
        "down-after-milliseconds": 2000,
        "failover-timeout": 5000,
        "wait-replicas": 0,
        "lease_s": 3,
        "logs": ("lists", "streams"),
        "ack_wait_s": 3,  # before a message that a consumer did not acknowledge is given again
    }
    smallest: ClassVar = {
        key: int(key in (*OF_SENTINEL, "lease_s", "ack_wait_s"))
        for key, value in settings.items()
        if isinstance(value, int)
    }
    _not_of_server: ClassVar[Sequence[str]] = (*OF_SENTINEL, *OF_CLIENT)
    _before_reading: ClassVar[Sequence[Sequence[str | int]]] = ()  # commands, for a replica's data
    profiles: ClassVar[Sequence[Profile]] = (
        Profile(
            name="default",
            about="acknowledged as soon as the primary has it in memory",
            expected={"redis-split": "LOST_ACKED"},
        ),
        Profile(
            name="min-replicas",
            about="the same, but a primary without a replica for a second or two refuses writes",
            settings={"min-replicas-to-write": 1, "min-replicas-max-lag": 1},
            expected={"redis-split": "LOST_ACKED"},
        ),
        Profile(
            name="wait",
            about="clients wait until both replicas have it; reads are verified likewise",
            settings=WAIT_ALL,
            expected={"redis-split": "valid"},
        ),
        *stream_profiles("redis-split", WAIT_ALL),
    )
    # Sentinel's manual promises failover when a primary fails or is cut off. It also states that
    # acknowledged writes may be lost in it; a trial shows how many. So failovers are claimed.
    claims: ClassVar = dict.fromkeys(
        (
            *("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "clock"),
            *("crash", "starve-cpu", "starve-memory", "starve-descriptors", "disk-full"),
            "read-only",
        ),
        "all",
    )

    @classmethod
    def client_of(cls, values: Mapping[str, Any]) -> type[RedisClient]:
        return cls._stream_client if values["logs"] == "streams" else cls.client

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        return float(values["down-after-milliseconds"] / 1000 + ASK_EACH_OTHER_S)

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        """Return redis.conf, or sentinel.conf, which the sentinel rewrites as it learns and
        votes."""
        node, first = here.node, peers[0]
        if node.role == CONTROLLER:
            common = lines_of(node, here.folder)
            own = [
                f"sentinel announce-ip {node.address}",
                f"sentinel monitor {MAIN} {first.address} {PORTS[BROKER]} {self._quorum()}",
                *(f"sentinel {key} {MAIN} {self.values[key]}" for key in OF_SENTINEL),
                f"sentinel parallel-syncs {MAIN} {len(peers)}",
            ]
            return {"sentinel.conf": "\n".join([*common, *own, ""])}
        own = [f"replicaof {first.address} {PORTS[BROKER]}"] if node != first else []
        return {self._config: "\n".join([*self._server_lines(here), *own, ""])}

    @property
    def _config(self) -> str:
        """The file of a server's configuration: redis.conf."""
        return f"{self.names[BROKER]}.conf"

    def _server_lines(self, here: NodeAccess) -> list[str]:
        """Return the lines of a server's redis.conf that do not say what it is to others."""
        return [
            *lines_of(here.node, f"{here.folder}/{self.data}"),
            'save ""',
            f"replica-announce-ip {here.node.address}",
            "repl-diskless-sync-delay 0",  # serve a new replica at once
            "repl-ping-replica-period 1",
            *("crash-log-enabled no", "crash-memcheck-enabled no"),  # end at once, as a fault may
            "repl-timeout 10",
            *(
                f"{key} {value}"
                for key, value in self.values.items()
                if key not in self._not_of_server
            ),
        ]

    def _quorum(self) -> int:
        return self._count(CONTROLLER) // 2 + 1

    def _count(self, role: str) -> int:
        return sum(node.role == role for node in self.nodes)

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        program = here.program[self.programs[0].name]
        if here.node.role == CONTROLLER:
            return [program, f"{here.folder}/sentinel.conf", "--sentinel"]
        return [program, f"{here.folder}/{self._config}"]

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Do nothing: a replica takes all data from the primary."""

    async def ask(self, here: NodeAccess) -> View:
        names = {node.address: node.name for node in self.nodes}
        if here.node.role == BROKER:
            (info,) = await replies(here, ["INFO", "replication"])
            return server_view(here.node.name, info.decode(), names)
        master, address = await replies(
            here, ["SENTINEL", "MASTER", MAIN], ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MAIN]
        )
        others = self._count(BROKER) - 1, self._count(CONTROLLER) - 1
        primary = names.get(address[0].decode(), "")
        return sentinel_view(here.node.name, pairs(master), primary, others)

    def events(self, log: str, node: str) -> Iterator[Event]:
        names = {node.address: node.name for node in self.nodes}
        return sentinel_events(log, node, names, self.name)

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        return [row for key in keys for row in await self._copy_of(here, key)]

    async def _copy_of(self, here: NodeAccess, key: str) -> list[Copy]:
        script = COPY_STREAM if self.values["logs"] == "streams" else COPY
        rows: list[Copy] = []
        while True:
            at = rows[-1].offset + 1 if rows else 0
            command: list[str | int] = ["EVAL", script, 1, key, at, CHUNK]
            commands = [*self._before_reading, command]
            found = copies((await replies(here, *commands, within_s=COPY_WITHIN_S))[-1], key)
            rows += found
            if len(found) < CHUNK:
                return rows


def lines_of(node: Node, folder: str) -> list[str]:
    """Return the lines that configure any process: where it listens, and its folder."""
    return [
        *(f"bind {node.address}", f"port {PORTS[node.role]}", "protected-mode no"),
        *(f'dir "{folder}"', 'logfile ""', "daemonize no"),
    ]


async def replies(
    here: NodeAccess, *commands: Sequence[str | int], within_s: float = WITHIN_S
) -> list[Any]:
    """Return a node's replies to commands. Raises ConnectionError if one of them is an error."""
    asked = b"".join(encode(*words) for words in commands) + END
    data = await here.agent.ask(PORTS[here.node.role], asked, within_s, to_end=True)
    found, at = [], 0
    for _ in commands:
        if (part := decode(data, at)) is None or isinstance(part[0], ErrorReply | None):
            raise ConnectionError(str(part[0] if part else "half a reply"))
        reply, at = part
        found.append(reply)
    return found


def server_view(name: str, info: str, names: Mapping[str, str]) -> View:
    """Return what a server says of itself."""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    if fields["role"] == "master":
        return View(name, -1, name)
    primary = names.get(fields["master_host"], "")
    return View(primary, -1, name, fields["master_link_status"] == "up")


def sentinel_view(
    name: str, fields: Mapping[str, str], primary: str, others: tuple[int, int]
) -> View:
    """Return what a sentinel says, of SENTINEL MASTER and of where it sends clients; `others`: the
    numbers of replicas and other sentinels that it should know.

    A sentinel that leads a failover raises the epoch as soon as it has promoted a server, and shows
    the old primary's address until the other replicas follow. Meanwhile it gives clients another.
    """
    known = int(fields["num-slaves"]), int(fields["num-other-sentinels"])
    ready = fields["flags"] == "master" and known == others
    return View(primary, int(fields["config-epoch"]), name, ready)


def sentinel_events(
    log: str, sentinel: str, names: Mapping[str, str], group: str = "redis"
) -> Iterator[Event]:
    """Yield the events of a sentinel's log, at its wall clock in ns. `names`: address -> server.

    The epoch of an election is the one that the sentinel began just before it tried: other
    sentinels may begin later ones, and win none of them.
    """
    begun = tried = 0
    for match in filter(None, map(LINE.match, log.splitlines())):
        when = datetime.strptime(match[1], "%d %b %Y %H:%M:%S.%f").replace(tzinfo=UTC)
        at_ns = round(when.timestamp() * 1000) * 1_000_000
        kind, words = match[2], match[3].split()
        who = names.get(words[2], "") if len(words) > 2 else ""
        if kind == "+new-epoch":
            begun = int(words[0])
        elif kind == "+try-failover":
            tried = begun
        elif kind == "+sdown" and words[0] == "master" and who:
            yield at_ns, sentinel, "expired", _member(group, who)
        elif kind == "+promoted-slave" and who:
            yield from role_events(at_ns, group, who, tried, True, sentinel)
        elif kind == "+convert-to-slave" and who:
            yield at_ns, who, "role", {**_member(group, who), "role": "slave"}


def _member(group: str, name: str) -> dict[str, Any]:
    return {"brokerName": group, "brokerId": int(name.rpartition("-")[2])}


def copies(found: Sequence[tuple[int, bytes]], key: str) -> list[Copy]:
    """Return the rows of the scripts `COPY` and `COPY_STREAM`. Raises BedFailed if one is
    malformed."""
    rows = []
    for offset, row in found:
        match = COPY_ROW.fullmatch(row)
        if match is None:
            raise BedFailed(f"{key} has a message of fewer than 8 bytes at {offset}")
        value = int(match[1], 16)
        rows.append(Copy(key, offset, value if value < 1 << 63 else -1, 0, int(match[2], 16)))
    return rows


PLUGIN = plugin(Redis)
