"""DLedger's driver without Java: what servers of 0.2.7 answered, and what driver and client make of
it."""

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from clusters.kit.driver import settings_in_force
from clusters.systems import dledger
from clusters.systems.rocketmq import commit_log
from clusters.systems.rocketmq.remoting import Answer, RemotingError
from harness.contracts import Node
from harness.contracts.calls import LogEntries, Refused, Stored
from harness.errors import BadRequest
from harness.trial import Trial

NODES = [(f"server-{n}", "server", f"198.18.1.{n + 10}") for n in (1, 2, 3)]


class Servers(dledger.DLedgerClient):
    """A client whose requests reach a leader with a log of its own."""

    def __init__(self, log: list[bytes], leader: str = "n1") -> None:
        super().__init__({"nodes": NODES}, 0)
        self.log, self.leads, self.asked = log, leader, [""]

    async def _ask(
        self, address: str, code: int, within_s: float = 3.0, **fields: Any
    ) -> dict[str, Any]:
        own = f"n{[each[2] for each in NODES].index(address)}"
        self.asked.append(own)
        if code == dledger.LOG_METADATA:
            return {"code": 200, "leaderId": self.leads}
        if own != self.leads:
            return {"code": 404}
        if code == dledger.APPEND:
            self.log.append(base64.b64decode(fields["body"]))
            return {"code": 200, "index": len(self.log) - 1, "pos": 0, "term": 3}
        at = fields["beginIndex"]
        if at >= len(self.log):
            return {"code": 410}
        return {"code": 200, "entries": [{"body": base64.b64encode(self.log[at]).decode()}]}


def test_appends_go_to_the_leader_and_reads_end_where_its_log_does() -> None:
    async def talk() -> None:
        client = Servers([b"a", b"b"])
        assert await client.append("logs-0", b"c") == Stored(2, 3, "server-2")
        assert await client.entries("logs-0", 1, 10) == LogEntries([(1, b"b"), (2, b"c")], 3)
        assert await client.entries("logs-0", 0, 2) == LogEntries([(0, b"a"), (1, b"b")], 2)
        assert await client.entries("logs-0", 7, 2) == LogEntries([], 7)
        client.leads = "n2"
        with pytest.raises(Refused, match="404"):  # the old leader, which is asked no more
            await client.append("logs-0", b"d")
        assert await client.append("logs-0", b"d") == Stored(3, 3, "server-3")
        client.leads = ""
        client._leader = ""
        with pytest.raises(Refused, match="no leader"):
            await client.append("logs-0", b"e")

    asyncio.run(talk())


@pytest.mark.parametrize("entries", [0, 1, 2, 3, 7, 8, 9, 100])
def test_the_end_of_a_log_is_found(entries: int) -> None:
    assert asyncio.run(Servers([b"x"] * entries).end("logs-0")) == entries


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (200, None),
        (400, Refused),  # UNKNOWN_GROUP
        (401, Refused),  # UNKNOWN_MEMBER
        (404, Refused),  # NOT_LEADER
        (414, RemotingError),  # DISK_ERROR: the data may be written, and the index not
        (415, Refused),  # DISK_FULL
        (500, RemotingError),  # INTERNAL_ERROR
        (501, RemotingError),  # TERM_CHANGED
        (502, RemotingError),  # WAIT_QUORUM_ACK_TIMEOUT
        (503, Refused),  # LEADER_PENDING_FULL
        (506, Refused),  # LEADER_TRANSFERRING
        (4711, RemotingError),
    ],
)
def test_the_outcome_of_an_append(code: int, outcome: type[Exception] | None) -> None:
    answer = {"code": code, "index": 12, "term": 2}
    if outcome is None:
        assert dledger.appended(answer) == (12, 2)
        return
    with pytest.raises(outcome, match=f"code {code}") as raised:
        dledger.appended(answer)
    assert type(raised.value) is outcome


def test_frames_that_answer_nothing_of_the_log() -> None:
    """Remoting answers busy before the request is handled; other codes may come after it."""
    with pytest.raises(Refused):
        dledger.answered(
            Answer(2, "[OVERLOAD]system busy, start flow control for a while", {}, b"")
        )
    with pytest.raises(RemotingError):
        dledger.answered(Answer(1, "java.lang.NullPointerException", {}, b""))
    with pytest.raises(RemotingError):
        dledger.got({"code": 404})
    assert dledger.got({"code": 410}) is None
    assert dledger.got({"code": 200, "entries": []}) is None


def entry(index: int, term: int, body: bytes) -> bytes:
    size = commit_log.ENTRY.size + len(body)
    return commit_log.ENTRY.pack(1, size, index, term, 0, 0, 0, 0, len(body)) + body


def test_a_copy_ends_where_the_checkpoint_says() -> None:
    """Behind it are entries that were cut, whole as they are."""
    data = b"".join(entry(n, 1 + n // 2, struct.pack(">q", 40 + n)) for n in range(4))
    checkpoint = b"#Fri Nov 27 12:32:43 UTC 2026\nendIndex=2\ncommittedIndex=1\n"
    rows = dledger.copies_in(data, dledger.last_index(checkpoint), "logs-0")
    assert [(row.key, row.offset, row.value, row.term) for row in rows] == [
        ("logs-0", 0, 40, 1),
        ("logs-0", 1, 41, 1),
        ("logs-0", 2, 42, 2),
    ]
    assert dledger.last_index(b"endIndex=-1\n") == dledger.last_index(b"") == -1


def test_roles_in_a_servers_log() -> None:
    log = """2026-11-27T12:31:56.101Z INFO DLedgerLeaderElector - [n0][ChangeRoleToFollower] from \
term: 1 leaderId: n1 and currTerm: 1
2026-11-27T12:31:59.250Z INFO DLedgerLeaderElector - [n0] [ChangeRoleToCandidate] from term: 1 \
and currTerm: 1
2026-11-27T12:32:01.500Z INFO DLedgerLeaderElector - [n0] [ChangeRoleToLeader] from term: 2 and \
currTerm: 2
"""
    values = settings_in_force(dledger.DLedger, Trial())
    service = dledger.DLedger(values, {}, [Node("server-1", "server")])
    kinds = [(kind, fields["epoch"]) for _, _, kind, fields in service.events(log, "server-1")]
    assert kinds == [("role", 1), ("role", 2), ("election", 2)]


def test_several_logs_are_refused() -> None:
    nodes = [name for name, _, _ in NODES]
    assert dledger.DLedger.groups({}, nodes, ["logs-0"]) == {"dledger": (nodes, ["logs-0"])}
    assert dledger.PLUGIN.prepare
    with pytest.raises(BadRequest, match=r"one log, not 4: set load\.objects"):
        dledger.PLUGIN.prepare(Trial(system="dledger", workload="log"))


def test_a_request_names_the_server_that_it_is_for() -> None:
    assert json.loads(dledger._body("n2", beginIndex=4)) == {
        "group": "seatrial",
        "remoteId": "n2",
        "beginIndex": 4,
    }
