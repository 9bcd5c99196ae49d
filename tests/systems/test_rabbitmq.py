"""What RabbitMQ's answers mean: outcomes of what is put in and taken out, and roles."""

import asyncio
import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from clusters.kit import NodeAccess, View
from clusters.systems import rabbitmq
from clusters.systems.rabbitmq import frame, method
from harness import registry
from harness.contracts import Agent, Node
from harness.contracts.calls import Refused
from harness.trial import Trial

ACK = method(rabbitmq.ACK, struct.pack(">QB", 1, 0))
NACK = method(rabbitmq.NACK, struct.pack(">QB", 1, 0))
EMPTY = method(rabbitmq.GET_EMPTY, b"\0")
QOS_OK = method(rabbitmq.QOS_OK)


def content(body: bytes) -> bytes:
    head = struct.pack(">HHQH", 60, 0, len(body), 0)
    return frame(rabbitmq.HEADER, 1, head) + (frame(rabbitmq.BODY, 1, body) if body else b"")


def taken(body: bytes) -> bytes:
    return method(rabbitmq.GET_OK, struct.pack(">QB", 7, 0)) + content(body)


def closed(which: tuple[int, int], code: int, text: str) -> bytes:
    return method(which, struct.pack(">H", code) + rabbitmq.short(text) + bytes(4))


RETURNED = method(rabbitmq.RETURN, struct.pack(">H", 312) + rabbitmq.short("NO_ROUTE"))
FORCED = closed(rabbitmq.CLOSE, 320, "CONNECTION_FORCED - broker forced connection closure")
NO_QUEUE = closed(rabbitmq.CHANNEL_CLOSE, 404, "NOT_FOUND - no queue 'queue-0' in vhost '/'")
HOME_DOWN = closed(rabbitmq.CHANNEL_CLOSE, 404, "NOT_FOUND - home node 'rabbit@a' is down")
INTERNAL = closed(rabbitmq.CLOSE, 541, "INTERNAL_ERROR - Cannot get a message: timeout")
BEAT = frame(rabbitmq.HEARTBEAT, 0, b"")


class Written:
    """A writer that keeps what is written; the server answers the first of it, and goes."""

    def __init__(self, reader: asyncio.StreamReader, answers: bytes) -> None:
        self.data, self.gone = b"", False
        self._reader, self._answers = reader, answers

    def write(self, data: bytes) -> None:
        if not self.data:
            self._reader.feed_data(self._answers)
            self._reader.feed_eof()
        self.data += data

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True


def outcome(call: str, answers: bytes, acks: str = "automatic") -> tuple[Any, Written]:
    """Return what a call returns or raises if the server sends these answers and goes."""

    async def run() -> tuple[Any, Written]:
        reader = asyncio.StreamReader()
        writer = Written(reader, answers)
        settings = {"servers": ["198.18.0.1"], "settings": {"queues": "quorum", "acks": acks}}
        client = rabbitmq.RabbitClient(settings, 0)
        client._declared.add("queue-0")
        client._links = [rabbitmq.AmqpLink(reader, writer)]  # type: ignore[arg-type]
        given = (5,) if call == "enqueue" else ()
        try:
            return await getattr(client, call)("queue-0", *given), writer
        except Exception as e:
            return e, writer

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (403, "ACCESS_REFUSED", Refused),
        (404, "NOT_FOUND - home node is down", Refused),
        (404, "NOT_FOUND - no queue 'q' in vhost '/'", rabbitmq.NoQueue),
        (405, "RESOURCE_LOCKED", Refused),
        (406, "PRECONDITION_FAILED", Refused),
        (320, "CONNECTION_FORCED", ConnectionError),
        (504, "CHANNEL_ERROR", ConnectionError),
        (541, "INTERNAL_ERROR", ConnectionError),
    ],
)
def test_what_a_close_means(code: int, text: str, kind: type[Exception]) -> None:
    assert type(rabbitmq.error_of(code, text)) is kind


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (ACK, type(None)),
        (BEAT + ACK, type(None)),
        (RETURNED + content(b"5") + ACK, rabbitmq.NoQueue),
        (NACK, ConnectionError),
        (FORCED, ConnectionError),
        (HOME_DOWN, Refused),
        (b"", asyncio.IncompleteReadError),
        (ACK[:9], asyncio.IncompleteReadError),
        (EMPTY, ValueError),
    ],
)
def test_what_becomes_of_a_message_that_is_put_in(answers: bytes, kind: type) -> None:
    assert type(outcome("enqueue", answers)[0]) is kind


@pytest.mark.parametrize(
    ("acks", "answers", "kind"),
    [
        ("automatic", taken(b"5"), int),
        ("automatic", EMPTY, type(None)),
        ("automatic", NO_QUEUE, type(None)),
        ("automatic", HOME_DOWN, Refused),
        ("automatic", INTERNAL, ConnectionError),
        ("automatic", b"", asyncio.IncompleteReadError),
        ("manual", taken(b"5") + QOS_OK, int),
        ("manual", EMPTY, type(None)),
        ("manual", INTERNAL, Refused),  # nothing was acknowledged, so nothing was taken
        ("manual", b"", Refused),
        ("manual", taken(b"5")[:40], Refused),
        ("manual", taken(b"5"), asyncio.IncompleteReadError),
    ],
)
def test_what_becomes_of_a_message_that_is_taken(acks: str, answers: bytes, kind: type) -> None:
    assert type(outcome("dequeue", answers, acks)[0]) is kind


def test_a_message_is_acknowledged_only_by_hand() -> None:
    value, written = outcome("dequeue", taken(b"5") + QOS_OK, "manual")
    assert value == 5
    assert method(rabbitmq.ACK, struct.pack(">QB", 7, 0)) in written.data
    value, written = outcome("dequeue", taken(b"5"))
    assert value == 5
    assert method(rabbitmq.GET, b"\0\0\x07queue-0\x01") == written.data


def test_a_message_is_persistent_and_comes_back_if_there_is_no_queue() -> None:
    assert outcome("enqueue", ACK)[1].data == (
        b"\x01\x00\x01\x00\x00\x00\x10\x00\x3c\x00\x28\x00\x00\x00\x07queue-0\x01\xce"
        b"\x02\x00\x01\x00\x00\x00\x0f\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x10\x00\x02\xce"
        b"\x03\x00\x01\x00\x00\x00\x015\xce"
    )


def test_a_failed_connection_is_not_used_again() -> None:
    assert outcome("enqueue", b"")[1].gone
    assert not outcome("enqueue", ACK)[1].gone


PEERS = "running true\npeer rabbit@a\npeer rabbit@b\npeer rabbit@c\n"


def test_the_views_of_rabbitmqs_servers() -> None:
    queues = "queue %2F_queue-0 leader 4\nqueue %2F_queue-1 follower 3\nend\n"
    view = rabbitmq.view_of("rabbit@a", PEERS + queues, 3)
    assert view == View("rabbit@a", -1, "rabbit@a", True, {"queue-0": 4})
    assert rabbitmq.view_of("rabbit@b", PEERS + "queue q leader -1\nend\n", 3).leads == {"q": -1}


@pytest.mark.parametrize(
    "more", ["queue %2F_queue-0 candidate 4\n", "partition rabbit@b\n", "partition rabbit@c\n"]
)
def test_a_server_that_is_not_ready(more: str) -> None:
    assert not rabbitmq.view_of("rabbit@a", f"{PEERS}{more}end\n", 3).ready


def test_a_server_without_a_majority_knows_no_leader() -> None:
    alone = rabbitmq.view_of("rabbit@a", "running true\npeer rabbit@a\nend\n", 3)
    assert (alone.leader, alone.ready) == ("", False)
    paused = rabbitmq.view_of("rabbit@a", f"{PEERS}end\n".replace("true", "false"), 3)
    assert paused.leader == ""


def test_half_an_answer_is_none() -> None:
    with pytest.raises(ValueError, match="half"):
        rabbitmq.view_of("rabbit@a", PEERS, 3)


@pytest.mark.skipif(not shutil.which("erl"), reason="Erlang is missing; install rabbitmq-server")
def test_no_server_starts_epmd() -> None:
    """Each minute a server runs this command, so that epmd runs, which would outlive it."""
    here = NodeAccess(Node("server-1", "server", "198.18.0.1"), cast(Agent, None), "/folder", {})
    given = rabbitmq.RabbitMq({}, {}, ()).environment(here)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "ERL_FLAGS": given["ERL_FLAGS"], "ERL_EPMD_PORT": port}
    starter = ["erl", "-boot", "no_dot_erlang", "-sname", "epmd-starter-1", "-noinput"]
    subprocess.run([*starter, "-s", "erlang", "halt"], env=env, capture_output=True, timeout=600)
    names = subprocess.run(["epmd", "-names"], env=env, capture_output=True, text=True)
    subprocess.run(["epmd", "-kill"], env=env, capture_output=True)
    assert "Cannot connect to local epmd" in names.stdout + names.stderr


STOPS_ITS_VHOST = """spawn(fun() ->
  (fun Wait() -> case rabbit:is_running() of
    true -> rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"/">>);
    false -> timer:sleep(100), Wait() end end)(),
  file:script("VIEW") end).
"""
ALONE = ("unshare", "--net", "--pid", "--fork", "--kill-child")  # all ends with it
ASKS = r"""
ip link set lo up
"$@" > server.log 2>&1 &
until grep -q "running true" answers; do
  kill -0 $! || { cat server.log; exit 1; }
  sleep 0.1
  { exec 3<> /dev/tcp/127.0.0.1/25673 && cat <&3 >> answers; } 2> /dev/null
done
"""


@pytest.mark.bed
@pytest.mark.skipif(not shutil.which("rabbitmq-server"), reason="install rabbitmq-server")
def test_a_vhost_that_did_not_start_is_started(tmp_path: Path) -> None:
    """It may not if another server creates it at the wrong moment; no client could connect."""
    node = Node("server-1", "server", "127.0.0.1")
    program = {"rabbitmqctl": shutil.which("rabbitmqctl") or ""}
    here = NodeAccess(node, cast(Agent, None), str(tmp_path), program)
    values = {"queues": "quorum", "cluster_partition_handling": "ignore", "net_ticktime": 4}
    system = rabbitmq.RabbitMq(values, {}, (node,))
    for name, text in system.files(here, (node,)).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "view.erl").rename(tmp_path / "real.erl")
    (tmp_path / "view.erl").write_text(STOPS_ITS_VHOST.replace("VIEW", f"{tmp_path}/real.erl"))
    (tmp_path / "answers").touch()
    asked = subprocess.run(
        [*ALONE, "bash", "-c", ASKS, "ask", *system.argv(here, (node,), True)],
        env={**os.environ, **system.environment(here)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert (tmp_path / "answers").read_text().startswith("running false")


def test_only_mirrored_queues_have_the_policy_of_mirrors() -> None:
    assert rabbitmq.definitions(False)["policies"] == []
    policy = rabbitmq.definitions(True)["policies"][0]
    assert policy["definition"]["ha-mode"] == "all"


def chunk(first: int, *bodies: bytes, kind: int = 0, epoch: int = 3) -> bytes:
    """A chunk of a stream's file: its entries have sections before their body."""
    before = b"\x00\x53\x72\xc1\x03\x02\xa1\x00"
    entries = [
        before + b"\x00\x53\x75" + b"\xa0" + bytes([len(body)]) + body
        if len(body) < 256
        else before + b"\x00\x53\x75" + b"\xb0" + struct.pack(">I", len(body)) + body
        for body in bodies
    ]
    data = b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)
    counts = kind, len(bodies), len(bodies)
    return (
        struct.pack(">BBHIQQQIIII", 0x50, *counts, 0, epoch, first, 0, len(data), 5, 0)
        + data
        + b"bloom"
    )


LONG = bytes(300)
SEGMENT = b"OSIL\0\0\0\1" + chunk(0, b"a", b"b") + chunk(2, b"x", kind=1) + chunk(2, LONG, epoch=4)


def test_the_entries_of_a_streams_file() -> None:
    """With offsets and epochs, without what is not written by clients, and without a chunk that is
    cut off."""
    found = [(0, 3, b"a"), (1, 3, b"b"), (2, 4, LONG)]
    assert rabbitmq.entries_in(SEGMENT) == found
    assert rabbitmq.entries_in(SEGMENT[:-6]) == found[:2]
    assert rabbitmq.entries_in(SEGMENT[:70]) == []
    assert rabbitmq.entries_in(b"") == []


def test_offsets_do_not_count_markers() -> None:
    log, marker = rabbitmq.StreamLog(), rabbitmq.marker()
    for offset, body in enumerate((marker, b"a", b"b", rabbitmq.marker(), b"c")):
        log.add(offset, body)
    assert (log.entries, log.end, log.next) == ([(0, b"a"), (1, b"b"), (2, b"c")], 2, 5)
    log.add(7, b"behind a gap")
    assert log.entries[-1] == (5, b"behind a gap")
    assert marker in log.markers


def delivered(tag: int, offset: int, body: bytes) -> bytes:
    arguments = rabbitmq.short("c") + struct.pack(">QB", tag, 0)
    fields = rabbitmq.long(rabbitmq.OFFSET + struct.pack(">q", offset))
    head = struct.pack(">HHQH", 60, 0, len(body), 1 << 13) + fields
    content = frame(rabbitmq.HEADER, 1, head) + frame(rabbitmq.BODY, 1, body)
    return method(rabbitmq.DELIVER, arguments) + content


def test_a_stream_is_read_from_an_offset_on() -> None:
    """It asks for the offset, and acknowledges before the window is full."""
    sent = [(offset, b"%d" % offset) for offset in range(40, 145)]

    async def run() -> tuple[list[tuple[int, bytes]], bytes]:
        reader = asyncio.StreamReader()
        answers = method(rabbitmq.QOS_OK) + method(rabbitmq.CONSUME_OK, rabbitmq.short("c"))
        answers += b"".join(delivered(tag, *each) for tag, each in enumerate(sent, start=1))
        writer = Written(reader, answers)
        link = rabbitmq.AmqpLink(reader, writer)  # type: ignore[arg-type]
        entries = link.stream("logs-0", 40)
        found = [await anext(entries) for _ in sent]
        with pytest.raises(asyncio.IncompleteReadError):
            await anext(entries)
        return found, writer.data

    found, written = asyncio.run(run())
    assert found == sent
    assert b"\x0fx-stream-offsetl" + struct.pack(">q", 40) in written
    assert written.endswith(method(rabbitmq.ACK, struct.pack(">QB", 100, 1)))


def test_what_the_clients_of_streams_and_of_queues_can_do() -> None:
    """A queue cannot be read from an offset, nor can an entry of a stream be taken."""
    calls = registry.system("rabbitmq").calls
    assert calls
    assert {"append", "entries", "end"} <= {*calls(Trial(system="rabbitmq", profile="streams"))}
    assert "dequeue" not in calls(Trial(system="rabbitmq", profile="streams"))
    assert "append" not in calls(Trial(system="rabbitmq"))


def test_the_views_of_streams() -> None:
    """The Raft group that creates streams is no part of the data."""
    rows = "queue rabbit_stream_coordinator leader 1\nqueue logs-0 leader 2\nqueue logs-1 "
    view = rabbitmq.view_of("rabbit@a", f"{PEERS}{rows}follower 2\nend\n", 3)
    assert (view.leads, view.ready) == ({"logs-0": 2}, True)
    assert not rabbitmq.view_of("rabbit@a", f"{PEERS}{rows}down 2\nend\n", 3).ready
