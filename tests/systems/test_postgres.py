"""What PostgreSQL's answers mean: outcomes, rows, roles and digests."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clusters.kit import View
from clusters.kit.roles import cluster_state
from clusters.systems import etcd, postgres
from harness.contracts.calls import MicroOperation, Refused

CERTAIN = [
    "23505",  # unique violation
    "25006",  # a standby
    "25P02",  # the transaction was aborted before
    "40001",  # serialization failure
    "40P01",  # deadlock
    "42P01",  # undefined table
    "53100",  # disk full
    "53200",  # out of memory
    "53300",  # too many connections
    "55P03",  # lock not available
    "57P03",  # the server starts or ends
]


@pytest.mark.parametrize("code", CERTAIN)
def test_an_error_of_a_statement_that_was_aborted(code: str) -> None:
    assert isinstance(postgres.error_of({"C": code, "M": "why"}), Refused)


def test_every_certain_error_is_tested() -> None:
    assert list(postgres.NEVER) == CERTAIN


@pytest.mark.parametrize(
    "code",
    [
        "57P01",  # the server ends, maybe between the commit and its answer
        "57P02",  # another process of the server crashed
        "57014",  # canceled
        "40003",  # statement completion unknown
        "08006",  # connection failure
        "58030",  # input or output failed
        "XX000",  # internal error
        "",
    ],
)
def test_an_error_that_proves_nothing(code: str) -> None:
    assert not isinstance(postgres.error_of({"C": code, "M": "why"}), Refused)


# ------------------------------------------------------------------------------------ the client


def part(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def error(code: str, message: str = "why") -> bytes:
    return part(b"E", f"SERROR\0C{code}\0M{message}\0\0".encode())


def cells(*values: str | None) -> bytes:
    body = struct.pack("!h", len(values))
    for value in values:
        data = (value or "").encode()
        body += struct.pack("!i", -1 if value is None else len(data)) + data
    return part(b"D", body)


READY, DONE = part(b"Z", b"I"), part(b"C", b"UPDATE 1\0")
ENDS = b""
CANCELED = part(b"N", b"SWARNING\0C01000\0Mcanceling wait for synchronous replication\0\0")


class Server:
    """Answers each query of a connection that is open already."""

    def __init__(self, *answers: bytes) -> None:
        self.queries: list[str] = []
        self._answers = list(answers)
        self._reader = asyncio.StreamReader()

    def write(self, data: bytes) -> None:
        self.queries.append(data[5:-1].decode())
        if answer := self._answers.pop(0):
            self._reader.feed_data(answer)
        else:
            self._reader.feed_eof()

    def close(self) -> None:
        self._reader.feed_eof()

    def client(self, **settings: object) -> postgres.PostgresClient:
        values = {"verified_reads": False, "isolation": "serializable", **settings}
        client = postgres.PostgresClient({"servers": ["198.18.0.1"], "settings": values}, 0)
        client._open = self._reader, self  # type: ignore[assignment]
        return client


Ask = Callable[[postgres.PostgresClient], Awaitable[Any]]


def asked(call: Ask, *answers: bytes, **settings: object) -> tuple[Any, list[str]]:
    """Return what a call returns or raises, and the queries that it sent."""

    async def run() -> tuple[Any, list[str]]:
        server = Server(*answers)
        try:
            return await call(server.client(**settings)), server.queries
        except Exception as e:
            return e, server.queries

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error("40001") + READY, Refused),
        (error("57P01"), ConnectionError),
        (ENDS, asyncio.IncompleteReadError),
        (CANCELED + DONE + READY, ConnectionError),
    ],
)
def test_how_a_write_ends(answer: bytes, kind: type[Exception]) -> None:
    if answer == error("57P01"):
        answer += READY  # the error counts, not how the connection goes on
    ended, _ = asked(lambda client: client.write("r-0", 1), answer)
    assert type(ended) is kind


def test_a_cas_counts_rows() -> None:
    assert asked(lambda client: client.cas("r-0", 1, 2), DONE + READY)[0] is True
    none = part(b"C", b"UPDATE 0\0") + READY
    assert asked(lambda client: client.cas("r-0", 1, 2), none)[0] is False


def test_a_verified_read_writes_to_the_log() -> None:
    answer = cells("0/1") + cells("7") + part(b"C", b"SELECT 1\0") + READY
    value, queries = asked(lambda client: client.read("r-0"), answer, verified_reads=True)
    assert value == 7
    assert queries[0].startswith(postgres.VERIFY)
    assert asked(lambda client: client.read("r-0"), cells("7") + READY) == (
        7,
        ["SELECT v FROM kv WHERE k = 'r-0'"],
    )


OPERATIONS = [MicroOperation("append", "list-0", 3), MicroOperation("read", "list-0")]


def test_a_transaction() -> None:
    commit = part(b"C", b"COMMIT\0") + READY
    done, queries = asked(
        lambda client: client.transact(OPERATIONS),
        *(READY, DONE + READY, cells("[1,3") + READY, commit),
    )
    assert done == [OPERATIONS[0], MicroOperation("read", "list-0", [1, 3])]
    assert queries[0] == "BEGIN ISOLATION LEVEL serializable"


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ([READY, ENDS], Refused),  # its commit was never sent
        ([READY, error("57P01") + READY], Refused),
        ([READY, DONE + READY, cells("[1,3") + READY, ENDS], asyncio.IncompleteReadError),
        (
            [READY, DONE + READY, cells("[1,3") + READY, error("57P01") + READY],
            ConnectionError,
        ),
        ([READY, DONE + READY, cells("[1,3") + READY, error("40001") + READY], Refused),
        (
            [READY, DONE + READY, cells("[1,3") + READY, part(b"C", b"ROLLBACK\0") + READY],
            Refused,
        ),
    ],
)
def test_how_a_transaction_ends(answers: list[bytes], kind: type[Exception]) -> None:
    ended, _ = asked(lambda client: client.transact(OPERATIONS), *answers)
    assert type(ended) is kind


def test_a_standby_is_left() -> None:
    """Its reads may be of the past."""

    async def greet(*statuses: bytes) -> bool:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(part(b"S", status) for status in statuses) + READY)
        client = Server().client()
        return await client._greeting(reader)

    assert asyncio.run(greet(b"TimeZone\0UTC\0", b"in_hot_standby\0on\0"))
    assert not asyncio.run(greet(b"in_hot_standby\0off\0"))


# ------------------------------------------------------------------------------------- the views


def key(holder: str, revision: int) -> dict[str, Any]:
    found = {"value": etcd.b64(holder), "create_revision": str(revision)}
    return {"header": {}, "kvs": [found]}


def test_who_leads() -> None:
    """The holder of the key in etcd, also if another server calls itself primary."""
    members = [{"name": "server-1", "role": "replica"}, {"name": "server-2", "role": "leader"}]
    cluster = {"members": members}
    primary, streaming = ("false", None), ("true", "streaming")
    views: dict[str, View | None] = {
        "etcd-1": postgres.controller_view("etcd-1", key("server-2", 40)),
        "server-1": postgres.server_view("server-1", primary, cluster),
        "server-2": postgres.server_view("server-2", primary, cluster),
        "server-3": postgres.server_view("server-3", streaming, cluster),
    }
    state = cluster_state("postgres", views, {"etcd-1"})
    assert (state.masters, state.epochs) == ({"postgres": "server-2"}, {"postgres": 40})
    assert state.in_set == ("server-2", "server-3")
    assert state.detail == {"stale_leaders": ["server-1"]}
    assert not postgres.server_view("server-3", ("true", None), cluster).ready
    assert not postgres.server_view("server-3", ("true", "waiting"), cluster).ready


def test_a_member_of_etcd_serves_before_there_is_a_primary() -> None:
    views: dict[str, View | None] = {
        "etcd-1": postgres.controller_view("etcd-1", {"header": {}}),
        "server-1": None,
    }
    state = cluster_state("postgres", views, {"etcd-1"})
    assert (state.masters, state.serving) == ({}, ("etcd-1",))


def test_a_member_of_etcd_without_a_leader_does_not_serve() -> None:
    with pytest.raises(ConnectionError):
        postgres.controller_view("etcd-1", {"error": "etcdserver: request timed out"})


def test_what_a_server_answers_at_once() -> None:
    greeting = part(b"R", b"\0\0\0\0") + READY
    whole = greeting + cells("0/1") + READY + cells("abc") + READY + cells(None) + READY
    assert postgres.answers(whole) == [["0/1"], ["abc"], [None]]
    with pytest.raises(ConnectionError, match="half an answer"):
        postgres.answers(whole[:-3])
    with pytest.raises(ConnectionError, match="57P03"):
        postgres.answers(error("57P03"))
    with pytest.raises(ConnectionError, match="half an answer"):
        postgres.answers(b"")
