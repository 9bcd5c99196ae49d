"""RabbitMQ: servers of Erlang that keep queues, each a Raft group of its own (quorum queues) or a
queue with mirrors (classic ones), and streams, which are logs.

A quorum queue confirms a message when a majority has synced it. A mirrored queue confirms it when
all mirrors that the leader believes to be there have it; after a partition two leaders exist, and
`autoheal` throws away what one of them has. Mirrors are gone from RabbitMQ 4.

The client speaks AMQP 0-9-1 itself: persistent and mandatory messages with publisher confirms,
taken one by one. A message is taken in one step (`acks = "automatic"`), so that a quorum queue
promises order, and that each message is taken once; or it is taken and then acknowledged
(`"manual"`): one whose client is gone before is delivered again, perhaps behind later ones, and so
is one whose acknowledgement was lost. Leave order-per-queue and at-least-once out of the contract
then.

A stream's entries have offsets and stay when they are read. A majority has an entry when it is
confirmed, without its offset; each server answers reads from its own copy, which may be behind, and
none tells where the stream ends. So a client that asks for the end appends a marker, and reads
until it comes: what was confirmed before is before it. Offsets in the history do not count markers.

No node needs epmd, Erlang's name server, which would outlive them: all listen on the same port,
each on an address of its own. `rabbitmqctl` starts an Erlang VM for each question, so a few lines
of Erlang in the server itself answer who leads.
"""

import asyncio
import base64
import hashlib
import json
import os
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import PurePosixPath
from typing import Any, ClassVar

from clusters.kit import Copy, NodeAccess, Profile, Service, View, plugin, servers_in_turn
from clusters.supply import Program
from harness.contracts import Node
from harness.contracts.calls import LogEntries, Refused, Stored
from harness.operation import NONE

PORT, PEER_PORT, VIEW_PORT = 5672, 25672, 25673
WITHIN_S, DECLARE_WITHIN_S, READ_WITHIN_S = 3.0, 10.0, 10.0
USER = "seatrial"
DEBIAN = PurePosixPath("/usr/sbin"), PurePosixPath("/usr/lib/rabbitmq/bin")
PROGRAM = Program(
    name="rabbitmqctl",
    version_argv=("version",),
    version_env=("ERL_FLAGS=-start_epmd false -dist_listen false",),
    package="rabbitmq-server",
    by_hand="unpack rabbitmq-server-generic-unix, install Erlang, and name its sbin as supply",
    folders=(str(DEBIAN[1]),),
    linked=True,
    files=("/usr/lib/rabbitmq", "/usr/lib/erlang", "/usr/bin/erl"),
)
# methods of AMQP 0-9-1: class and number
START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CLOSE, CLOSE_OK = (10, 40), (10, 41), (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
DECLARE, DECLARE_OK, SELECT, SELECT_OK = (50, 10), (50, 11), (85, 10), (85, 11)
QOS, QOS_OK, PUBLISH, RETURN = (60, 10), (60, 11), (60, 40), (60, 50)
CONSUME, CONSUME_OK, DELIVER = (60, 20), (60, 21), (60, 60)
GET, GET_OK, GET_EMPTY, ACK, NACK = (60, 70), (60, 71), (60, 72), (60, 80), (60, 120)
METHOD, HEADER, BODY, HEARTBEAT, FRAME_END = 1, 2, 3, 8, b"\xce"
PERSISTENT = struct.pack(">HB", 1 << 12, 2)  # the property delivery-mode
QUEUE_TYPES = {"quorum": "quorum", "mirrored": "classic", "classic": "classic", "stream": "stream"}
DURABLE, MANDATORY = 2, 1
CHUNK = struct.Struct(">BBHI8xQQ4xII4x")
OFFSET = b"\x0fx-stream-offsetl"  # in a table: the name, and the type of a long
WINDOW = 200  # entries of a stream that are sent before an acknowledgement
MARKER = b"marker "
SET_UP_TRIES, SET_UP_EVERY_S = 50, 0.2
# codes that come before anything is done: no access, no queue, locked, another kind of queue
NEVER = frozenset({403, 404, 405, 406})
# Answers, on a port, whether the server runs and serves the vhost, which others run as far as it
# knows, the partitions that it knows of, and its role in each queue, with the term. A vhost that
# another server creates while this one starts may stay down here until an operator starts it
# (rabbitmqctl restart_vhost); so does this, until it is up for the first time.
VIEW = r"""spawn(fun() ->
  {ok, L} = gen_tcp:listen(PORT, [{active, false}, {reuseaddr, true}, {backlog, 64}]),
  Term = fun(N) -> case catch ets:lookup(ra_metrics, N) of [M] -> element(2, M); _ -> -1 end end,
  Quorum = fun() -> [{N, S, Term(N)} ||
    {N, S} <- maps:to_list(element(2, rabbit_quorum_queue:all_replica_states()))] end,
  Classic = fun() -> [{element(4, amqqueue:get_name(Q)), leader, -1} ||
    Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_classic_queue,
    is_pid(amqqueue:get_pid(Q)), node(amqqueue:get_pid(Q)) =:= node()] end,
  Streams = fun() -> [begin
      #{name := Id} = Has = amqqueue:get_type_state(Q),
      Role = case catch rabbit_stream_coordinator:members(Id) of
        {ok, #{Node := {P, writer}}} when is_pid(P) -> leader;
        {ok, #{Node := {P, replica}}} when is_pid(P) -> follower;
        _ -> down end,
      {element(4, amqqueue:get_name(Q)), Role, maps:get(epoch, Has, -1)} end ||
    Node <- [node()], Q <- rabbit_amqqueue:list(),
    amqqueue:get_type(Q) =:= rabbit_stream_queue] end,
  Running = case erlang:function_exported(rabbit_nodes, list_running, 0) of
    true -> fun rabbit_nodes:list_running/0;
    false -> fun rabbit_nodes:all_running/0 end,
  Alive = fun() -> (catch rabbit_vhost_sup_sup:is_vhost_alive(<<"/">>)) =/= false end,
  Serves = fun() -> Up = Alive(), Seen = {seatrial, vhost_was_up},
    case Up orelse persistent_term:get(Seen, false) of
      true -> ok;
      false -> catch rabbit_vhost_sup_sup:start_vhost(<<"/">>) end,
    Up andalso persistent_term:put(Seen, true),
    Up end,
  Say = fun(S) ->
    Parts = case catch rabbit_node_monitor:partitions() of P when is_list(P) -> P; _ -> [] end,
    gen_tcp:send(S, [io_lib:format("running ~s~n", [rabbit:is_running() andalso Serves()]),
      [io_lib:format("peer ~s~n", [N]) || N <- Running()],
      [io_lib:format("partition ~s~n", [N]) || N <- Parts],
      [io_lib:format("queue ~s ~s ~b~n", [N, R, T]) ||
        {N, R, T} <- Quorum() ++ Classic() ++ Streams()],
      "end\n"]),
    gen_tcp:close(S) end,
  (fun Next() ->
    {ok, S} = gen_tcp:accept(L),
    P = spawn(fun() -> receive go -> Say(S) end end),
    gen_tcp:controlling_process(S, P), P ! go, Next()
  end)()
end).
"""


# ------------------------------------------------------------------------------------ its protocol


def short(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(fields: Mapping[str, str]) -> bytes:
    """Encode a table of strings."""
    return long(b"".join(short(k) + b"S" + long(v.encode()) for k, v in fields.items()))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(which: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def message(queue: str, body: bytes) -> bytes:
    """Encode a persistent message for a queue, that comes back if there is none."""
    to = bytes(2) + short("") + short(queue) + bytes([MANDATORY])
    head = struct.pack(">HHQ", PUBLISH[0], 0, len(body)) + PERSISTENT
    return method(PUBLISH, to) + frame(HEADER, 1, head) + frame(BODY, 1, body)


class NoQueue(Refused):
    """There is no such queue."""


def error_of(code: int, text: str) -> Exception:
    """Return the exception for a channel or connection that the server closed: Refused if nothing
    was done."""
    if code in NEVER:
        return NoQueue(text) if "no queue" in text else Refused(text)
    return ConnectionError(f"{code} {text}")


class AmqpLink:
    """A connection with one channel. Answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> "AmqpLink":
        """Raises Refused if there is none."""
        try:
            async with asyncio.timeout(WITHIN_S):
                link = cls(*await asyncio.open_connection(address, PORT))
                try:
                    await link._greet()
                except BaseException:
                    link.close()
                    raise
                return link
        except (OSError, EOFError, TimeoutError, ValueError, Refused) as e:
            raise Refused(f"not connected to {address}: {type(e).__name__} {e}") from e

    async def _greet(self) -> None:
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        await self._expect(START)
        login = table({}) + short("PLAIN") + long(f"\0{USER}\0{USER}".encode()) + short("en_US")
        self._writer.write(method(START_OK, login, 0))
        limits = (await self._expect(TUNE))[1]
        self._writer.write(method(TUNE_OK, limits[:6] + bytes(2), 0))  # without heartbeats
        self._writer.write(method(OPEN, short("/") + bytes(2), 0))
        await self._expect(OPEN_OK)
        await self.call(method(CHANNEL_OPEN, short("")), CHANNEL_OPEN_OK)
        await self.call(method(SELECT, b"\0"), SELECT_OK)

    @property
    def closed(self) -> bool:
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def call(self, request: bytes, *expected: tuple[int, int]) -> tuple[Any, bytes]:
        """Send a request; return the method that answers, and its arguments."""
        self._writer.write(request)
        return await self._expect(*expected)

    async def publish(self, queue: str, body: bytes) -> None:
        """Raises Refused if there is no such queue."""
        answer, _ = await self.call(message(queue, body), ACK, NACK, RETURN)
        if answer == RETURN:  # an ack follows, which means that it was handled so
            await self._content()
            await self._expect(ACK, NACK)
            raise NoQueue("the message came back: there is no such queue")
        if answer == NACK:
            raise ConnectionError("the server could not handle the message")

    async def get(self, queue: str, *, acked: bool) -> tuple[int, bytes] | None:
        """Take a message; return its delivery tag and its body, None if there is none."""
        request = method(GET, bytes(2) + short(queue) + bytes([acked]))
        answer, arguments = await self.call(request, GET_OK, GET_EMPTY)
        if answer == GET_EMPTY:
            return None
        return int.from_bytes(arguments[:8], "big"), await self._content()

    async def stream(self, queue: str, offset: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the entries of a stream from an offset on, each with its offset."""
        await self.call(method(QOS, bytes(4) + struct.pack(">HB", WINDOW, 0)), QOS_OK)
        at = long(OFFSET + struct.pack(">q", offset))
        await self.call(
            method(CONSUME, bytes(2) + short(queue) + short("") + b"\0" + at), CONSUME_OK
        )
        while True:
            _, arguments = await self._expect(DELIVER)
            tag = int.from_bytes(arguments[1 + arguments[0] :][:8], "big")
            found, body = await self._offset_and_content()
            if tag % (WINDOW // 2) == 0:
                self._writer.write(method(ACK, struct.pack(">QB", tag, 1)))
            yield found, body

    async def ack(self, tag: int) -> None:
        """Acknowledge a message. The server answers what comes behind it."""
        self._writer.write(method(ACK, struct.pack(">QB", tag, 0)))
        await self.call(method(QOS, bytes(7)), QOS_OK)

    async def _content(self) -> bytes:
        return (await self._offset_and_content())[1]

    async def _offset_and_content(self) -> tuple[int, bytes]:
        """Return a message's offset, -1 if it is of no stream, and its body."""
        header = await self._frame(HEADER)
        size = int.from_bytes(header[4:12], "big")
        _, of_stream, rest = header.partition(OFFSET)
        offset = int.from_bytes(rest[:8], "big") if of_stream else -1
        body = b""
        while len(body) < size:
            body += await self._frame(BODY)
        return offset, body

    async def _expect(self, *expected: tuple[int, int]) -> tuple[Any, bytes]:
        payload = await self._frame(METHOD)
        which, arguments = struct.unpack_from(">HH", payload), payload[4:]
        if which in (CLOSE, CHANNEL_CLOSE):
            code, size = struct.unpack_from(">HB", arguments)
            if which == CLOSE:
                self._writer.write(method(CLOSE_OK, channel=0))
            raise error_of(code, arguments[3 : 3 + size].decode(errors="replace"))
        if which not in expected:
            raise ValueError(f"the server answers with method {which}")
        return which, arguments

    async def _frame(self, wanted: int) -> bytes:
        while True:
            kind, _, size = struct.unpack(">BHI", await self._reader.readexactly(7))
            payload = (await self._reader.readexactly(size + 1))[:-1]
            if kind == wanted:
                return payload
            if kind != HEARTBEAT:
                raise ValueError(f"the server sends a frame of type {kind}")


class AmqpClient:
    """What clients have in common: one server at a time, the next one after a failure."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        self._servers = servers_in_turn(settings, number)
        self._home: str = settings["servers"][0]
        self._values: Mapping[str, Any] = settings["settings"]
        self._links: list[AmqpLink] = []  # that no call uses
        self._declared: set[str] = set()

    async def close(self) -> None:
        for link in self._links:
            link.close()

    @asynccontextmanager
    async def _link(self, within_s: float = WITHIN_S) -> AsyncIterator[AmqpLink]:
        """Lend a connection, for a limited time. One that failed is closed, and the next server is
        tried. Raises Refused if there is none."""
        link = None
        while self._links and (link is None or link.closed):
            link = self._links.pop()
        try:
            if link is None or link.closed:
                link = await AmqpLink.open(self._servers[0])
            async with asyncio.timeout(within_s):
                yield link
        except BaseException:
            if link:
                link.close()
            self._servers.append(self._servers.pop(0))
            raise
        self._links.append(link)

    async def _declare(self, key: str) -> None:
        """Create the queue on the first server, which leads it at first. Raises Refused."""
        if key in self._declared:
            return
        arguments = table({"x-queue-type": QUEUE_TYPES[self._values["queues"]]})
        home = await AmqpLink.open(self._home)
        try:
            async with asyncio.timeout(DECLARE_WITHIN_S):
                request = bytes(2) + short(key) + bytes([DURABLE]) + arguments
                await home.call(method(DECLARE, request), DECLARE_OK)
        except (OSError, EOFError, TimeoutError, ValueError) as e:
            raise Refused(f"{key} was not declared: {type(e).__name__} {e}") from e
        finally:
            home.close()
        self._declared.add(key)

    async def _publish(self, key: str, body: bytes) -> None:
        await self._declare(key)
        async with self._link() as link:
            await link.publish(key, body)


class RabbitClient(AmqpClient):
    """A client of queues."""

    async def enqueue(self, key: str, value: int) -> None:
        await self._publish(key, str(value).encode())

    async def dequeue(self, key: str) -> int | None:
        await self._declare(key)
        manual = self._values["acks"] == "manual"
        acking = not manual
        try:
            async with self._link() as link:
                if (found := await link.get(key, acked=not manual)) is None:
                    return None
                tag, body = found
                if acking := manual:
                    await link.ack(tag)
                return int(body)
        except NoQueue:
            return None  # it was declared, and all of it is gone
        except Exception as e:
            if acking or isinstance(e, Refused):
                raise
            raise Refused(f"it was not acknowledged: {type(e).__name__} {e}") from e


class StreamClient(AmqpClient):
    """A client of streams. It reads each once, from its beginning to the last marker."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        super().__init__(settings, number)
        self._logs: dict[str, StreamLog] = {}

    async def set_up(self, topics: Mapping[str, int]) -> None:
        """Create the streams. One that is declared may not be there yet, so wait until it takes an
        entry."""
        for key in (f"{topic}-{n}" for topic, count in topics.items() for n in range(count)):
            for left in reversed(range(SET_UP_TRIES)):
                try:
                    await self._publish(key, marker())
                    break
                except (OSError, EOFError, TimeoutError, ValueError, Refused):
                    if not left:
                        raise
                    await asyncio.sleep(SET_UP_EVERY_S)

    async def append(self, key: str, body: bytes) -> Stored:
        await self._publish(key, body)
        return Stored(NONE)

    async def end(self, key: str) -> int:
        last = marker()
        await self._publish(key, last)
        log = self._logs.setdefault(key, StreamLog())
        async with log.one:
            while last not in log.markers:
                await self._read(key, log)
        return log.end

    async def _read(self, key: str, log: "StreamLog") -> None:
        """Read on up to the next marker, on a connection of its own, which is the subscription."""
        link = await AmqpLink.open(self._servers[0])
        try:
            async with (
                asyncio.timeout(READ_WITHIN_S),
                aclosing(link.stream(key, log.next)) as found,
            ):
                async for offset, body in found:
                    if not log.add(offset, body):
                        return
        except BaseException:
            self._servers.append(self._servers.pop(0))
            raise
        finally:
            link.close()

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        log = self._logs.setdefault(key, StreamLog())
        if offset >= log.end:
            await self.end(key)
        found = [each for each in log.entries if each[0] >= offset]
        return LogEntries(found[:limit], log.end, log.end)


def marker() -> bytes:
    return MARKER + os.urandom(8).hex().encode()


class StreamLog:
    """What a client has read of a stream. `next`: the offset to read on from; `entries`: with
    offsets that do not count markers; `end`: behind the last entry before the last marker."""

    def __init__(self) -> None:
        self.next = self.end = 0
        self.entries: list[tuple[int, bytes]] = []
        self.markers: set[bytes] = set()
        self.one = asyncio.Lock()

    def add(self, offset: int, body: bytes) -> bool:
        """Take what is next in the stream; return whether it is an entry, and no marker."""
        place, self.next = offset - len(self.markers), offset + 1
        if body.startswith(MARKER):
            self.markers.add(body)
            self.end = place
            return False
        self.entries.append((place, body))
        return True


# ------------------------------------------------------------------------------------- the service


class RabbitMq(Service):
    """Three servers by default; each queue has a replica on each, unless it is a plain one."""

    name, programs, client = "rabbitmq", (PROGRAM,), RabbitClient
    attachable = False  # it is asked by view.erl
    copies_stopped = True
    settings: ClassVar = {
        "queues": ("quorum", "mirrored", "classic", "stream"),
        "cluster_partition_handling": ("pause_minority", "autoheal", "ignore"),
        "net_ticktime": 4,  # s; RabbitMQ's own default is 60
        "acks": ("automatic", "manual"),
    }
    smallest: ClassVar = {"net_ticktime": 4}
    profiles = (
        Profile(
            name="quorum",
            about="quorum queues; a server that sees no majority pauses",
            expected={"rabbitmq-split": "valid"},
            # a server that was suspended notices no loss of the others, and does not pause: the
            # documentation of pause_minority names this, and the partition stays
            claims={"pause": "none"},
        ),
        Profile(
            name="quorum-autoheal",
            about="quorum queues; after a partition the servers of one side are restarted",
            settings={"cluster_partition_handling": "autoheal"},
            expected={"rabbitmq-split": "valid"},
        ),
        Profile(
            name="streams",
            about="streams instead of queues; after a partition as quorum-autoheal",
            settings={"queues": "stream", "cluster_partition_handling": "autoheal"},
        ),
        Profile(
            name="mirrored",
            about="mirrored classic queues; after a partition one side's data are thrown away",
            settings={"queues": "mirrored", "cluster_partition_handling": "autoheal"},
            expected={"rabbitmq-split": "ELEMENT_LOST"},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    start_s = 90.0

    @classmethod
    def client_of(cls, values: Mapping[str, Any]) -> type[AmqpClient]:
        return StreamClient if values["queues"] == "stream" else RabbitClient

    @classmethod
    def detects_within_s(cls, values: Mapping[str, Any]) -> float:
        return float(values["net_ticktime"] * 1.25)

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        """Return the entries of a server's copies of streams, from its files."""
        rows = []
        for key in keys:
            log = StreamLog()
            pattern = f"*/stream/__{key}_*/*.segment"
            listed = await here.agent.run(["find", f"{here.folder}/{self.data}", "-path", pattern])
            for name in sorted(listed.out.split()):
                for offset, epoch, body in entries_in(await here.agent.get(name)):
                    if log.add(offset, body):
                        rows.append(Copy.of(key, *log.entries[-1], epoch))
        return rows

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        lines = [
            f"listeners.tcp.1 = {here.node.address}:{PORT}",
            "cluster_formation.peer_discovery_backend = classic_config",
            *(
                f"cluster_formation.classic_config.nodes.{n} = {_erlang_name(peer)}"
                for n, peer in enumerate(peers, start=1)
            ),
            # the first that has the others' lock finds no cluster, and starts one
            "cluster_formation.discovery_retry_limit = 4",
            "cluster_formation.internal_lock_retries = 60",
            f"cluster_partition_handling = {self.values['cluster_partition_handling']}",
            f"load_definitions = {here.folder}/definitions.json",
            "vm_memory_high_watermark.absolute = 300MB",
            "disk_free_limit.absolute = 10MB",
            *("log.console = true", "log.console.use_colors = off", "log.file = false"),
        ]
        return {
            "rabbitmq.conf": "\n".join([*lines, ""]),
            "plugins": "[].\n",
            "view.erl": VIEW.replace("PORT", str(VIEW_PORT)),
            "definitions.json": json.dumps(definitions(self.values["queues"] == "mirrored")),
        }

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        folder = PurePosixPath(here.program["rabbitmqctl"]).parent
        folder = DEBIAN[1] if folder == DEBIAN[0] else folder  # it would change the user
        return [
            str(folder / "rabbitmq-server"),
            *("-name", _erlang_name(here.node), "-setcookie", USER),
            *("-start_epmd", "false", "-erl_epmd_port", str(PEER_PORT)),
            *("-kernel", "net_ticktime", str(self.values["net_ticktime"])),
            *("-eval", f'file:script("{here.folder}/view.erl")'),
        ]

    def environment(self, here: NodeAccess) -> dict[str, str]:
        return {
            **super().environment(here),
            "HOME": here.folder,
            "LANG": "C.UTF-8",
            # each minute the server makes sure that epmd runs, by an Erlang VM that starts it
            "ERL_FLAGS": "-start_epmd false",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server
            "RABBITMQ_NODENAME": _erlang_name(here.node),
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_MNESIA_BASE": f"{here.folder}/{self.data}",
            "RABBITMQ_LOG_BASE": f"{here.folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{here.folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here.folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1",
        }

    async def ask(self, here: NodeAccess) -> View:
        answer = await here.text(VIEW_PORT, b"")
        return view_of(_erlang_name(here.node), answer, len(self.nodes))


def entries_in(segment: bytes) -> list[tuple[int, int, bytes]]:
    """Return the entries of a stream's file: offset, epoch and body, up to the first chunk that is
    incomplete. Layout (osiris, src/osiris_log.erl): 8 bytes; chunks with a header of 48 bytes that
    tells how long its entries and its trailer are; an entry is u32 size, then sections of AMQP 1.0,
    of which the last, 0x75, is the body. All big-endian."""
    found, at = [], 8
    while at + CHUNK.size <= len(segment):
        _, kind, count, _, epoch, first, size, trailer = CHUNK.unpack_from(segment, at)
        at += CHUNK.size
        if at + size > len(segment):
            break
        place = at
        for offset in range(first, first + count) if kind == 0 else ():
            length = int.from_bytes(segment[place : place + 4], "big")
            entry = segment[place + 4 : place + 4 + length]
            _, _, body = entry.partition(b"\x00\x53\x75")
            found.append((offset, epoch, body[2 if body[:1] == b"\xa0" else 5 :]))
            place += 4 + length
        at += size + trailer
    return found


def definitions(mirrored: bool) -> dict[str, Any]:
    """Return the user, and the policy of mirrors, that servers load when they start."""
    salt = b"salt"
    hashed = base64.b64encode(salt + hashlib.sha256(salt + USER.encode()).digest()).decode()
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    mirrors = {
        "vhost": "/",
        "name": "mirrors",
        "pattern": ".*",
        "apply-to": "queues",
        "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"},
        "priority": 0,
    }
    algorithm = {"hashing_algorithm": "rabbit_password_hashing_sha256"}
    return {
        "users": [{"name": USER, "password_hash": hashed, "tags": "administrator", **algorithm}],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": USER, "vhost": "/", **every}],
        "policies": [mirrors] if mirrored else [],
    }


def view_of(name: str, answer: str, servers: int) -> View:
    """Return a server's view from its answer. No server leads the others, so the first of those
    that are connected counts as their leader, if they are a majority."""
    rows = [line.split(" ") for line in answer.splitlines()]
    if ["end"] not in rows:
        raise ValueError("half an answer")
    peers = sorted(row[1] for row in rows if row[0] == "peer")
    queues = [row[1:] for row in rows if row[0] == "queue"]
    leads = {
        queue.removeprefix("%2F_"): int(term)
        for queue, role, term in queues
        if role == "leader" and queue != "rabbit_stream_coordinator"
    }
    runs = ["running", "true"] in rows
    leader = peers[0] if runs and 2 * len(peers) > servers else ""
    whole = len(peers) == servers and not any(row[0] == "partition" for row in rows)
    return View(
        leader, -1, name, whole and all(q[1] in ("leader", "follower") for q in queues), leads
    )


def _erlang_name(node: Node) -> str:
    return f"rabbit@{node.address}"


PLUGIN = plugin(RabbitMq)
