"""What the answers of etcd, NATS and ZooKeeper mean: outcomes, roles and copies."""

import asyncio
import json
import struct
from contextlib import suppress
from typing import Any, cast

import pytest

from clusters.kit import NodeAccess, View
from clusters.systems import etcd, nats, zookeeper
from harness.contracts import Agent, BedFailed, Node
from harness.contracts.calls import Changes, LogEntries, MicroOperation, Refused, Versioned

# ------------------------------------------------------------------------------------------ etcd


@pytest.mark.parametrize(
    ("status", "text", "certain"),
    [
        (429, "etcdserver: too many requests", True),
        (429, "etcdserver: mvcc: database space exceeded", True),
        (404, "etcdserver: requested lease not found", True),
        (400, "etcdserver: key is not provided", True),
        (412, "etcdserver: not leader", True),
        (503, "etcdserver: request timed out", False),
        (503, "etcdserver: request timed out, possibly due to previous leader failure", False),
        (503, "etcdserver: leader changed", False),
        (503, "etcdserver: server stopped", False),
        (503, "etcdserver: no leader", False),
        (504, "context deadline exceeded", False),
        (499, "context canceled", False),
        (500, "", False),
    ],
)
def test_what_etcd_answers(status: int, text: str, certain: bool) -> None:
    assert isinstance(etcd.error_of(status, {"error": text}), Refused) == certain


def test_an_answer_of_etcd_that_is_no_object() -> None:
    assert not isinstance(etcd.error_of(502, "<html>"), Refused)


def test_a_transaction_on_what_was_read() -> None:
    state = {"list-0": [1], "list-1": None}
    done, written = etcd.carry_out(
        [
            MicroOperation("append", "list-0", 2),
            MicroOperation("read", "list-0"),
            MicroOperation("read", "list-1"),
        ],
        state,
    )
    assert done[1:] == [MicroOperation("read", "list-0", [1, 2]), MicroOperation("read", "list-1")]
    assert (written, state["list-0"]) == ({"list-0"}, [1, 2])


def test_a_transaction_compares_all_keys_as_often_as_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def answer(call: str, **more: Any) -> dict[str, Any]:
        asked.append(more["compare"])
        return {"succeeded": True, "responses": [{"response_range": {}}]}

    client = etcd.EtcdClient({"servers": ["198.18.0.1"], "settings": {"compare_all": 3}}, 0)
    monkeypatch.setattr(client, "_call", answer)
    asyncio.run(client.transact([MicroOperation("append", "list-0", 1)]))
    assert [len(each) for each in asked] == [0, 1 + 3]
    assert asked[1][1:] == [etcd.EVERY_KEY] * 3


def watch_lines(*versions: int) -> bytes:
    """The lines of an answer of etcd to /v3/watch: that it has begun, and an event of each version,
    whose revision is greater by 100."""
    header = {"header": {"cluster_id": "1", "member_id": "2", "revision": "140", "raft_term": "2"}}
    lines: list[Any] = [{"result": {**header, "created": True}}]
    for version in versions:
        own = {"key": "aw==", "create_revision": "101", "mod_revision": str(100 + version)}
        kv = {**own, "version": str(version), "value": etcd.b64(version * 7)}
        lines.append({"result": {**header, "events": [{"kv": kv}]}})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_watch_of_etcd_goes_on_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the revision after the last event; lines may be cut anywhere."""
    answers = [watch_lines(1, 2), watch_lines(3)]
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.partition("Content-Length: ")[2].split()[0])
        asked.append(json.loads(await reader.readexactly(size))["create_request"])
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        data = answers[len(asked) - 1]
        for part in (data[:30], data[30:]):
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        writer.close()

    async def follow() -> list[Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        monkeypatch.setattr(etcd, "PORT", server.sockets[0].getsockname()[1])
        client = etcd.EtcdClient({"servers": ["127.0.0.1"], "settings": {}}, 0)
        found: list[Any] = []
        while len(found) < 3:
            after = found[-1].version if found else 0
            with suppress(ConnectionError):
                found += (await client.watch("k", after)).events
        await client.close()
        server.close()
        return found

    assert asyncio.run(follow()) == [Versioned(1, 7), Versioned(2, 14), Versioned(3, 21)]
    assert [each["start_revision"] for each in asked] == [1, 103]


def test_a_watch_that_etcd_ends_is_no_silence() -> None:
    client = etcd.EtcdClient({"servers": ["127.0.0.1"], "settings": {}}, 0)
    compacted = {"result": {"canceled": True, "compact_revision": "90"}}
    with pytest.raises(ConnectionError, match="compact_revision"):
        client._events("k", compacted)


class MemberWithLeases:
    """A member of etcd 3.5.1: one entry is applied between two of its answers of hashes, `ends`
    times; then it does not change."""

    def __init__(self, name: str, ends: int) -> None:
        self.node, self._applied, self._ends = Node(name, "server"), 7, ends

    async def http(self, port: int, path: str, body: object, within_s: float) -> tuple[int, bytes]:
        if path.endswith("/hashkv"):
            return 404, b"{}"
        if path.endswith("/status"):
            state = {"raftAppliedIndex": str(self._applied), "version": "3.5.1"}
            return 200, json.dumps({**state, "header": {"revision": "4"}}).encode()
        found = json.dumps({"hash": self._applied}).encode()
        if self._ends:
            self._applied, self._ends = self._applied + 1, self._ends - 1
        return 200, found


def test_a_lease_that_ends_between_two_hashes_convicts_no_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It changes what a member keeps, and not the revision."""
    monkeypatch.setattr(etcd, "SAME_EVERY_S", 0.0)
    service = etcd.Etcd.__new__(etcd.Etcd)
    still = [MemberWithLeases("a", 0), MemberWithLeases("b", 0)]
    assert asyncio.run(service.digests(cast(Any, still))) == {
        "a": "7 at 4 of 4",
        "b": "7 at 4 of 4",
    }
    both = [MemberWithLeases("a", 1), MemberWithLeases("b", 1)]
    assert asyncio.run(service.digests(cast(Any, both))) == {"a": "8 at 4 of 4", "b": "8 at 4 of 4"}
    one = [MemberWithLeases("a", 1), MemberWithLeases("b", 0)]  # the other is behind for good
    assert asyncio.run(service.digests(cast(Any, one))) == {}


# ------------------------------------------------------------------------------------------ NATS


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.watched-0.x9Yz.1.41.7.1764190000000000000.0",
        "$JS.ACK.hub.ACCOUNT.watched-0.x9Yz.1.41.7.1764190000000000000.0.token",
    ],
)
def test_the_numbers_of_a_message(reply: str) -> None:
    assert nats.numbers_in(reply) == (41, 7)


def test_a_message_that_did_not_come_ends_the_watch() -> None:
    """What follows it is asked for again, as the clients of NATS do it."""

    async def follow() -> Any:
        messages: asyncio.Queue[nats.NatsMessage] = asyncio.Queue()
        watch = nats.StreamWatch(nats.Subscription("s", messages, lambda: None), 40)
        messages.put_nowait(nats.NatsMessage("$JS.ACK.k.c.1.41.1.0.0", "", bytes(8)))
        client = nats.NatsClient({"servers": ["198.18.0.1"], "settings": {}}, 0)
        client._watches["k"] = watch
        first = await client.watch("k", 40)
        messages.put_nowait(nats.NatsMessage("", "100", b""))  # it is alive
        messages.put_nowait(nats.NatsMessage("$JS.ACK.k.c.1.43.3.0.0", "", bytes(8)))
        with pytest.raises(ConnectionError, match="message 2 of the consumer"):
            await watch.next()
        return first

    assert asyncio.run(follow()) == Changes([Versioned(41, 0)], early=True)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (10071, Refused),  # wrong last sequence
        (10077, Refused),  # maximum messages exceeded
        (10059, nats.NoStream),
        (10037, nats.NotThere),
        (10008, ConnectionError),  # temporarily unavailable: nothing proves that it was not done
        (10164, ConnectionError),
    ],
)
def test_what_jetstream_answers(code: int, kind: type[Exception]) -> None:
    assert type(nats.error_of({"err_code": code, "description": "why"})) is kind


def test_a_stream_that_is_gone_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was created before the load, so all that it had is lost, and reads show that."""

    async def refuse(*_: object) -> None:
        raise nats.error_of({"err_code": 10059, "description": "stream not found"})

    settings = {"servers": ["198.18.0.1"], "settings": {}}
    client = nats.NatsClient(settings, 0)
    monkeypatch.setattr(client, "_api", refuse)
    assert asyncio.run(client.entries("orders-0", 0, 10)) == LogEntries([], 0)


def test_which_streams_a_server_leads() -> None:
    streams = [
        {"name": "orders-0", "cluster": {"leader": "server-1"}},
        {"name": "orders-1", "cluster": {"leader": "server-2"}},
        {"name": "orders-2"},
    ]
    found = {
        "meta_cluster": {"leader": "server-3"},
        "account_details": [{"stream_detail": streams}],
    }
    view = nats.view_of("server-1", {"status": "ok"}, found)
    assert view == View("server-3", -1, "server-1", True, {"orders-0": -1})
    assert not nats.view_of("server-1", {"status": "unavailable"}, found).ready
    assert not nats.view_of("server-1", {"status": "ok"}, {}).ready


def record(sequence: int, body: bytes, headers: bytes = b"") -> bytes:
    subject = b"orders-0"
    middle = struct.pack("<I", len(headers)) + headers if headers else b""
    size = 22 + len(subject) + len(middle) + len(body) + 8
    top = 1 << 31 if headers else 0
    head = struct.pack("<IQqH", size | top, sequence, 0, len(subject))
    return head + subject + middle + body + bytes(8)


def test_the_messages_of_a_block() -> None:
    block = record(1, b"one") + record(2, b"two", b"NATS/1.0\r\n\r\n") + record(3, b"three")
    assert nats.messages_in(block) == [(1, b"one"), (2, b"two"), (3, b"three")]


def test_a_block_that_ends_in_the_middle_of_a_record() -> None:
    block = record(1, b"one") + record(2, b"two")
    for length in range(len(record(1, b"one")), len(block)):
        assert nats.messages_in(block[:length]) == [(1, b"one")]


@pytest.mark.parametrize("mark", [1 << 63, 1 << 62])
def test_a_record_of_an_erased_or_removed_message_is_no_message(mark: int) -> None:
    assert nats.messages_in(record(1, b"one") + record(mark | 1, b"")) == [(1, b"one")]


@pytest.mark.parametrize(
    ("end_later", "resume"),
    [(9, 5), (4, -1)],
    ids=["the leader has lost them", "another leader has a shorter log"],
)
def test_reading_goes_on_behind_messages_that_are_gone(
    monkeypatch: pytest.MonkeyPatch, end_later: int, resume: int
) -> None:
    ends = iter((9, end_later))

    async def answer(call: str, _: object = None) -> Any:
        if call.startswith("STREAM.INFO"):
            return {"state": {"last_seq": next(ends)}}
        raise nats.error_of({"err_code": 10037, "description": "no message found"})

    client = nats.NatsClient({"servers": ["198.18.0.1"], "settings": {}}, 0)
    monkeypatch.setattr(client, "_api", answer)
    assert asyncio.run(client.entries("orders-0", 2, 3)) == LogEntries([], 9, resume)


# ------------------------------------------------------------------------------------- ZooKeeper


def told(state: str, peer: str) -> str:
    return f"zk_version\t3.9.5\nzk_server_state\t{state}\nzk_peer_state\t{peer}\n"


def test_the_views_of_zookeepers_servers() -> None:
    leader = zookeeper.view_of("server-1", told("leader", "leading - broadcast"), 4)
    follower = zookeeper.view_of("server-2", told("follower", "following - broadcast"), 4)
    assert leader.leader == leader.own == follower.leader
    assert follower.own == "server-2"
    assert leader.ready
    assert follower.ready
    behind = zookeeper.view_of("server-3", told("follower", "following - synchronization"), 4)
    assert not behind.ready
    silent = zookeeper.view_of("server-3", "This ZooKeeper instance is not currently serving", 4)
    assert silent == View("", 4, "server-3", ready=False)


class AttachedServer:
    """A server whose folder is not known."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def ask(self, *_: object, **__: object) -> bytes:
        return self._answer.encode()

    async def get(self, path: str) -> bytes:
        raise BedFailed(f"{path}: No such file or directory")


def test_an_attached_zookeeper_is_asked_without_its_files() -> None:
    """Its epoch is not known, and its followers follow the one that leads."""
    service = zookeeper.ZooKeeper({}, {}, ())

    def view(state: str, peer: str) -> View:
        server = cast(Agent, AttachedServer(told(state, peer)))
        return asyncio.run(service.ask(NodeAccess(Node("server-1", "server"), server, "", {})))

    leader, follower = (
        view("leader", "leading - broadcast"),
        view("follower", "following - broadcast"),
    )
    assert leader.leader == leader.own == follower.leader
    assert (leader.term, leader.ready, follower.ready) == (-1, True, True)


def test_the_digests_of_a_zookeeper_server() -> None:
    assert zookeeper.digests_in("80: 274690523686\n100: 545469569557\n") == {
        0x80: "274690523686",
        0x100: "545469569557",
    }
    assert zookeeper.digests_in("This ZooKeeper instance is not currently serving requests") == {}


def test_a_watch_of_zookeeper_fires_once_and_is_set_by_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A notification may come before the answer to a request; the next session shows its server the
    newest transaction that was seen."""
    monkeypatch.setattr(zookeeper, "SILENT_S", 0.05)
    seen, versions, served = [], iter([4, 6, 9]), []

    def framed(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        first = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        seen.append(int.from_bytes(first[4:12]))
        writer.write(framed(struct.pack(">iiqi", 0, 4000, 7, 16) + bytes(17)))
        with suppress(EOFError):
            while size := int.from_bytes(await reader.readexactly(4)):
                number, kind = struct.unpack_from(">ii", await reader.readexactly(size))
                if kind == zookeeper.EXISTS:  # what a silent watch asks; the node has changed
                    path = b"/registers/k"
                    notice = struct.pack(">iqiiii", -1, -1, 0, 3, 3, len(path)) + path
                    writer.write(framed(notice))
                version = next(versions) if kind == zookeeper.GET_DATA else 0
                stat = zookeeper.STAT.pack(1, 1, 0, 0, version - 1, 0, 0, 0, 1, 0, 1)
                data = framed(b"70") if kind == zookeeper.GET_DATA else b""
                writer.write(framed(struct.pack(">iqi", number, 100 + version, 0) + data + stat))
                if version == 6:
                    break
        writer.close()
        await writer.wait_closed()

    async def follow() -> list[Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        monkeypatch.setattr(zookeeper, "PORT", server.sockets[0].getsockname()[1])
        settings = {"servers": ["127.0.0.1"], "settings": {"session_ms": 4000}}
        client = zookeeper.ZooKeeperClient(settings, 0)
        found: list[Any] = []
        while len(found) < 3:
            with suppress(EOFError, OSError):
                changes = await client.watch("k", found[-1].version if found else 0)
                assert changes.newest
                found += changes.events
        await client.close()
        server.close()
        await asyncio.gather(*served)
        return found

    assert asyncio.run(follow()) == [Versioned(4, 70), Versioned(6, 70), Versioned(9, 70)]
    assert seen == [0, 106]
