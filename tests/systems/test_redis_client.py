"""Redis's protocol, and what the client makes of answers, errors and silence."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import redis_scene
from hypothesis import given
from hypothesis import strategies as st
from redis_scene import patient as patient  # a fixture
from redis_scene import spoken

from clusters.systems import redis
from clusters.systems.redis import (
    ErrorReply,
    RedisClient,
    RedisConnection,
    RedisStreamClient,
    connect,
    decode,
    encode,
    error_of,
    key_of,
)
from harness.contracts.calls import Delivery, LogEntries, Refused, Stored

answers = st.recursive(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=40),
    lambda items: st.lists(items, max_size=4),
    max_leaves=12,
)


@given(answers, st.binary(max_size=5))
def test_an_answer_is_read_as_it_was_written(answer: Any, rest: bytes) -> None:
    """And where the next one begins is known; no part of it is taken for the whole."""
    written = spoken(answer)
    assert decode(written + rest) == (answer, len(written))
    assert not any(decode(written[:cut]) for cut in range(len(written)))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_a_command_is_an_array_of_bulks(words: list[bytes]) -> None:
    """Whatever bytes are in it."""
    assert encode(*words) == spoken(words)


def test_words_and_numbers_are_bulks_too() -> None:
    assert encode("LRANGE", "a-0", 7) == b"*3\r\n$6\r\nLRANGE\r\n$3\r\na-0\r\n$1\r\n7\r\n"


def test_simple_answers() -> None:
    """Texts, errors, and an array that is not there."""
    assert decode(b"+OK\r\n") == ("OK", 5)
    assert decode(b"-ERR no\r\n") == (ErrorReply("ERR no"), 9)
    assert decode(b"*-1\r\n") == (None, 5)


@pytest.mark.parametrize("written", [b"?1\r\n", b":one\r\n", b"$x\r\n", b"HTTP/1.1 400\r\n"])
def test_what_is_no_answer_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match=r"no reply|invalid literal"):
        decode(written)


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("READONLY You can't write against a read only replica.", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("MISCONF Redis is configured to save RDB snapshots", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("MASTERDOWN Link with MASTER is down", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("NOAUTH Authentication required.", True),
        ("NOPERM this user has no permissions", True),
        ("MOVED 12182 198.18.0.3:6379", True),
        ("ASK 12182 198.18.0.3:6379", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True),
        ("CLUSTERDOWN The cluster is down", True),
        ("CROSSSLOT Keys in request don't hash to the same slot", True),
        ("NOGROUP No such key 'a' or consumer group 'g' in XREADGROUP with GROUP option", True),
        ("BUSYGROUP Consumer Group name already exists", True),
        ("ERR something else", False),
        ("EXECABORT Transaction discarded", False),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", False),
        ("UNBLOCKED the stream key no longer exists", False),
        ("BUSY Redis is busy running a script.", False),
        ("", False),
    ],
)
def test_what_is_not_proven_is_unknown(text: str, certain: bool) -> None:
    """Only errors that come before anything is done say that nothing was."""
    assert isinstance(error_of(text), Refused) == certain


# ------------------------------------------------------------------------------- on real sockets

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def played(serve: Serve, ask: Callable[[RedisConnection], Awaitable[Any]]) -> Any:
    """What comes of `ask` on a connection to such a server."""

    async def play() -> Any:
        over = asyncio.Event()

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(reader, writer)
            await over.wait()
            writer.close()

        server = await asyncio.start_server(served, "127.0.0.1", 0)
        link = await connect(*server.sockets[0].getsockname())
        try:
            return await ask(link)
        finally:
            link.close()
            over.set()
            server.close()

    return asyncio.run(play())


async def both(link: RedisConnection) -> Any:
    return await asyncio.gather(link.request("A"), link.request("B"), return_exceptions=True)


def test_answers_come_in_the_order_of_the_questions() -> None:
    """Torn into pieces or not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"B\r\n")
        for piece in (b"$3\r\non", b"e\r", b"\n:2\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    assert played(serve, both) == [b"one", 2]


def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question was answered, the second never; the connection is given up. What is asked
    of it then is not sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"A\r\n")
        writer.write(b":1\r\n")

    async def send(link: RedisConnection) -> None:
        assert await link.request("A") == 1
        monkeypatch.setattr(redis, "WITHIN_S", 0.2)
        with pytest.raises(ConnectionError, match=r"^no answer within 0\.2 s$"):
            await link.request("B")
        with pytest.raises(Refused, match="ended"):
            await link.request("C")

    played(serve, send)


def test_a_server_that_hangs_up_answers_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"B\r\n")
        writer.close()

    assert {type(answer) for answer in played(serve, both)} == {ConnectionError}


def test_what_does_not_speak_the_protocol_is_left() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")

    first, second = played(serve, both)
    assert type(first) is type(second) is ConnectionError
    assert "does not speak RESP" in str(first)


def test_a_replica_is_left() -> None:
    """So that the client asks a sentinel again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-READONLY You can't write against a read only replica.\r\n")

    async def write(link: RedisConnection) -> Any:
        with pytest.raises(Refused, match="READONLY"):
            await link.request("SET", "x", 1)
        return link.closed

    assert played(serve, write)


# ------------------------------------------------------------------------------------ the client

NODES = [("redis-1", "broker", "127.0.0.2"), ("sentinel-1", "controller", "127.0.0.1")]
MASTER = [b"name", b"main", b"config-epoch", b"4"]
Answers = Callable[[Sequence[bytes]], bytes]


def asked(
    monkeypatch: pytest.MonkeyPatch,
    answers: Answers,
    call: Callable[[Any], Awaitable[Any]],
    of: type[RedisClient] = RedisClient,
    **settings: Any,
) -> Any:
    """Return what a call answers or raises, with one server as sentinel and primary."""

    def answer(address: str, words: Sequence[bytes]) -> bytes:
        match words[0], words[1:2]:
            case b"SENTINEL", [b"MASTER"]:
                return spoken(MASTER)
            case b"SENTINEL", _:
                return spoken([b"127.0.0.2", b"6379"])
            case b"ROLE", _:
                return spoken([b"master", 0, []])
        return answers(words)

    def make(port: int) -> RedisClient:
        monkeypatch.setattr(redis, "PORTS", {"broker": port, "controller": port})
        values = {"wait-replicas": 0, "lease_s": 3, "ack_wait_s": 3} | settings
        return of({"nodes": NODES, "settings": values}, 0)

    return redis_scene.asked(answer, make, call)


def test_an_acknowledged_entry_has_its_offset_epoch_and_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = asked(monkeypatch, lambda words: b":8\r\n", lambda c: c.append("orders-0", b"body"))
    assert append == Stored(7, 4, "redis-1")


def test_errors_name_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    full = asked(monkeypatch, lambda words: b"-OOM full\r\n", lambda c: c.write("x", 1))
    assert isinstance(full, Refused)
    assert str(full) == "redis-1: OOM full"
    other = asked(monkeypatch, lambda words: b"-ERR what\r\n", lambda c: c.write("x", 1))
    assert isinstance(other, ConnectionError)


def test_a_log_that_has_become_shorter_is_read_on_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answers(words: Sequence[bytes]) -> bytes:
        return spoken(5) if words[0] == b"LLEN" else spoken([])

    entries = asked(monkeypatch, answers, lambda c: c.entries("orders-0", 9, 10))
    assert entries == LogEntries([], 5, 5)


@pytest.mark.parametrize(("have", "kind"), [(2, type(None)), (1, ConnectionError)])
def test_a_write_that_too_few_replicas_have_is_unknown(
    monkeypatch: pytest.MonkeyPatch, have: int, kind: type[object]
) -> None:
    """So is one whose proof was refused: the write itself was not."""
    commands = []

    def answers(words: Sequence[bytes]) -> bytes:
        commands.append(words[0])
        return spoken(have) if words[0] == b"WAIT" else b"+OK\r\n"

    def refusing(words: Sequence[bytes]) -> bytes:
        return b"-NOREPLICAS no\r\n" if words[0] == b"INCR" else b"+OK\r\n"

    settings = {"wait-replicas": 2}
    assert isinstance(asked(monkeypatch, answers, lambda c: c.write("x", 1), **settings), kind)
    assert commands == [b"SET", b"INCR", b"WAIT"]
    refused = asked(monkeypatch, refusing, lambda c: c.write("x", 1), **settings)
    assert isinstance(refused, ConnectionError)


def test_a_lock_is_taken_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = asked(monkeypatch, lambda words: b"$-1\r\n", lambda c: c.acquire("lock", "me"))
    assert isinstance(taken, Refused)
    mine = asked(monkeypatch, lambda words: b"+OK\r\n", lambda c: c.acquire("lock", "me"))
    assert mine.held_s == 3
    not_mine = asked(monkeypatch, lambda words: b":0\r\n", lambda c: c.release("lock", "me"))
    assert isinstance(not_mine, Refused)


# ------------------------------------------------------------------- streams, as 7.0.15 answers

ENTRY_2, ENTRY_3 = [b"0-2", [b"body", b"two"]], [b"0-3", [b"body", b"three"]]
TWO, THREE = Delivery(1, b"two", "0-2"), Delivery(2, b"three", "0-3")
NO_GROUP = b"-NOGROUP No such key 'a' or consumer group 'g'\r\n"
NO_GROUP_READ = NO_GROUP[:-2] + b" in XREADGROUP with GROUP option\r\n"
BUSY_GROUP = b"-BUSYGROUP Consumer Group name already exists\r\n"
UNBLOCKED = b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n"
CLAIMED_NONE = spoken([b"0-0", [], []])


def streamed(
    monkeypatch: pytest.MonkeyPatch,
    answers: Sequence[bytes],
    call: Callable[[RedisStreamClient], Awaitable[Any]],
) -> tuple[Any, list[list[bytes]]]:
    """What a call of a client of streams answers or raises, and the commands that it sent."""
    commands: list[list[bytes]] = []

    def answer(words: Sequence[bytes]) -> bytes:
        commands.append([*words])
        return answers[len(commands) - 1]

    return asked(monkeypatch, answer, call, RedisStreamClient), commands


@pytest.mark.parametrize(
    "command",
    [
        ("XADD", "a", "0-*", "body", b""),
        ("XACK", "a", "g", "0-1"),
        ("XGROUP", "CREATE", "a", "g", "0", "MKSTREAM"),
        ("XAUTOCLAIM", "a", "g", "c", 3000, "0-0", "COUNT", 9),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", 9, "BLOCK", 500, "STREAMS", "a", ">"),
        ("EVAL", redis.CAS, 1, "a", "", 7),
    ],
)
def test_where_a_command_has_its_key(command: Sequence[bytes | str | int]) -> None:
    """By which Redis Cluster's client chooses the server."""
    assert key_of(command) == "a"


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([spoken([b"0-0", [ENTRY_2], []])], [TWO]),  # another left it
        ([CLAIMED_NONE, spoken([[b"a", [ENTRY_2, ENTRY_3]]])], [TWO, THREE]),
        ([CLAIMED_NONE, b"*-1\r\n"], []),  # nothing came in time
        ([NO_GROUP, b"+OK\r\n"], []),
        ([NO_GROUP, BUSY_GROUP], []),  # another consumer was faster
        ([CLAIMED_NONE, NO_GROUP_READ, b"+OK\r\n"], []),
        ([CLAIMED_NONE, UNBLOCKED], ConnectionError),
        ([b"-READONLY You can't write against a read only replica.\r\n"], Refused),
        ([NO_GROUP, b"-OOM full\r\n"], Refused),
    ],
)
def test_what_a_group_is_given(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[bytes], found: Any
) -> None:
    """First what others left for too long; the group is made when the server does not have it."""
    given, commands = streamed(monkeypatch, answers, lambda c: c.fetch("a", "g", 9))
    if isinstance(found, type):
        assert isinstance(given, found)
    else:
        assert given == found
    assert commands[0] == b"XAUTOCLAIM a g consumer-0 3000 0-0 COUNT 9".split()
    assert len(commands) == len(answers)
    read = b"XREADGROUP GROUP g consumer-0 COUNT 9 BLOCK 500 STREAMS a >".split()
    assert (read in commands) == (answers[0] == CLAIMED_NONE)
    assert (b"XGROUP CREATE a g 0 MKSTREAM".split() in commands) == (
        NO_GROUP[:8] in b"".join(answers)
    )


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b":2\r\n", type(None)),
        (
            b":1\r\n",
            ConnectionError,
        ),  # one did not wait: the server does not know that it was given
        (b":0\r\n", ConnectionError),  # so does a server without the group
        (b"-READONLY no\r\n", Refused),
        (b"-ERR what\r\n", ConnectionError),
    ],
)
def test_only_what_waited_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, kind: type[object]
) -> None:
    done, commands = streamed(
        monkeypatch, [answer], lambda c: c.acknowledge("a", "g", ["0-2", "0-3"])
    )
    assert isinstance(done, kind)
    assert commands == [b"XACK a g 0-2 0-3".split()]


def test_a_stream_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry 0-1 is offset 0; behind its end, reading goes on there."""
    done, commands = streamed(monkeypatch, [spoken(b"0-8")], lambda c: c.append("a", b"body"))
    assert done == Stored(7, 4, "redis-1")
    assert commands == [b"XADD a 0-* body body".split()]
    answers = [spoken([ENTRY_3]), spoken([ENTRY_2, ENTRY_3])]
    found, commands = streamed(monkeypatch, answers, lambda c: c.entries("a", 1, 9))
    assert found == LogEntries([(1, b"two"), (2, b"three")], 3, 1)
    assert commands[1] == b"XRANGE a 0-2 + COUNT 9".split()
    beyond, _ = streamed(
        monkeypatch, [spoken([ENTRY_3]), b"*0\r\n"], lambda c: c.entries("a", 7, 9)
    )
    assert beyond == LogEntries([], 3, 3)
    none, _ = streamed(monkeypatch, [b"*0\r\n"], lambda c: c.end("a"))
    assert none == 0
