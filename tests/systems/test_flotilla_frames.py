"""Kinds of Flotilla's messages, and which of them are routine."""

import pytest

from clusters.flotilla.net.wire import (
    REPLY,
    Message,
    Op,
    PullReply,
    SendReply,
    SendRequest,
    Status,
    frame,
    to_json,
)
from clusters.flotilla.raft import messages as raft
from clusters.flotilla.replication.ha_protocol import LogData, pack_ack
from clusters.systems.flotilla.frames import FlotillaFrames

SENT = frame(Op.SEND, 1, SendRequest("orders", 0, b"k", b"body").pack())
ELECTED = to_json({"code": Status.MASTER_STILL_EXIST, "remark": "it lives"})
ENTRY = raft.LogEntry(1, b"x")


def append(entries: tuple[raft.LogEntry, ...] = (), commit: int = 5) -> bytes:
    message = raft.Append(
        term=3, source="1", prev_index=7, prev_term=3, commit=commit, stamp=1.5, entries=entries
    )
    return frame(Op.RAFT, 0, raft.pack(message))


def vote(pre: bool) -> bytes:
    request = raft.VoteRequest(term=3, source="1", last_index=1, last_term=1, pre=pre)
    return frame(Op.RAFT, 0, raft.pack(request))


def pulled(*messages: Message) -> bytes:
    status = Status.SUCCESS if messages else Status.PULL_NOT_FOUND
    return frame(Op.PULL | REPLY, 4, PullReply(status, 0, 0, 0, messages).pack())


@pytest.mark.parametrize(
    ("data", "kind", "routine"),
    [
        (SENT, "send", False),
        (frame(Op.SEND | REPLY, 1, SendReply(Status.SUCCESS, 1).pack()), "send reply", False),
        (
            frame(Op.SEND | REPLY, 1, SendReply(Status.NO_PERMISSION).pack()),
            "send reply: no permission",
            False,
        ),
        (frame(Op.PULL, 4, b""), "pull", True),
        (pulled(), "pull reply: pull not found", True),
        (pulled(Message(0, 1, 2, b"", b"body")), "pull reply", False),
        (frame(Op.BROKER_HEARTBEAT, 2, b"{}"), "broker heartbeat", True),
        (
            frame(Op.ELECT_MASTER | REPLY, 2, ELECTED),
            "elect master reply: master still exist",
            False,
        ),
        (vote(pre=True), "pre-vote request", False),
        (vote(pre=False), "vote request", False),
        (append((ENTRY,)), "append", False),
        (frame(Op.HA_DATA, 0, LogData(1, 2, 3, 4, b"records").pack()), "ha data", False),
    ],
)
def test_kinds(data: bytes, kind: str, routine: bool) -> None:
    """By operation, status and content; more bytes behind the frame do not matter."""
    for more in (b"", SENT[:7]):
        got = FlotillaFrames().read(data + more)
        assert got == (len(data), kind, routine)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (append(), append(commit=6), "raft heartbeat"),
        (
            frame(Op.HA_DATA, 0, LogData(1, 2, 3, 4).pack()),
            frame(Op.HA_DATA, 0, LogData(1, 2, 3, 5).pack()),
            "ha heartbeat",
        ),
        (frame(Op.HA_ACK, 0, pack_ack(7)), frame(Op.HA_ACK, 0, pack_ack(8)), "ha ack"),
    ],
)
def test_a_heartbeat_is_routine_once_it_repeats(one: bytes, other: bytes, kind: str) -> None:
    """The first one says something, and so does one that says something else."""
    reader = FlotillaFrames()
    got = [reader.read(data) for data in (one, one, other, one)]
    assert [frame.routine if frame else None for frame in got] == [False, True, False, False]
    assert {frame.kind if frame else None for frame in got} == {kind}


def test_an_incomplete_header_is_waited_for() -> None:
    """And the rest of the frame is not."""
    reader = FlotillaFrames()
    assert reader.read(SENT[:8]) is None
    assert reader.read(SENT[:9]) == (len(SENT), "send", False)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(99, 0, b"{}"),
        frame(Op.RAFT, 0, b"\xff" * 20),
        frame(Op.DRILL | REPLY, 1, b"not json"),
        frame(Op.DRILL | REPLY, 1, b"[]"),
        frame(Op.PULL | REPLY, 1, b""),
    ],
)
def test_what_is_no_frame_is_named_by_its_size(data: bytes) -> None:
    """It raises nothing: a world under test may send anything."""
    assert FlotillaFrames().read(data) == (len(data), f"{len(data):,} bytes", False)
