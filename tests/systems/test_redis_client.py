"""Redis's protocol, and what the client makes of answers, of errors and of silence."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.systems.redis import client
from clusters.systems.redis.client import (
    RedisConnection,
    Refusal,
    Silence,
    connect,
    decode,
    encode,
    outcome,
)
from harness.operation import Type

answers = st.recursive(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=40),
    lambda items: st.lists(items, max_size=4),
    max_leaves=12,
)


def spoken(answer: Any) -> bytes:
    """An answer as a server writes it."""
    match answer:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(answer), answer)
    return b"*%d\r\n%s" % (len(answer), b"".join(map(spoken, answer)))


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
    assert decode(b"-ERR no\r\n") == (Refusal("ERR no"), 9)
    assert decode(b"*-1\r\n") == (None, 5)


@pytest.mark.parametrize("written", [b"?1\r\n", b":one\r\n", b"$x\r\n", b"HTTP/1.1 400\r\n"])
def test_what_is_no_answer_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match=r"no reply|invalid literal"):
        decode(written)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (7, Type.OK),
        ("OK", Type.OK),
        (Refusal("READONLY You can't write against a read only replica."), Type.FAIL),
        (Refusal("NOREPLICAS Not enough good replicas to write."), Type.FAIL),
        (Refusal("LOADING Redis is loading the dataset in memory"), Type.FAIL),
        (Refusal("ERR something else"), Type.INFO),
        (Silence("no answer within 1 s"), Type.INFO),
    ],
)
def test_what_is_not_proven_is_unknown(told: Any, kind: Type) -> None:
    """Only errors that come before anything is done say that nothing was."""
    assert outcome(told) is kind


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
        host, port = server.sockets[0].getsockname()
        link = await connect(f"{host}:{port}")
        try:
            return await ask(link)
        finally:
            link.close()
            over.set()
            server.close()

    return asyncio.run(play())


async def both(link: RedisConnection) -> Any:
    return await asyncio.gather(link.request("A"), link.request("B"))


def test_answers_come_in_the_order_of_the_questions() -> None:
    """Torn into pieces or not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"B\r\n")
        for piece in (b"$3\r\non", b"e\r", b"\n:2\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    assert played(serve, both) == [b"one", 2]


def test_whoever_is_not_answered_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question was answered, the second never; the connection is given up."""
    monkeypatch.setattr(client, "ANSWER_WITHIN_S", 0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"B\r\n")
        writer.write(b":1\r\n")

    async def send(link: RedisConnection) -> Any:
        told = await both(link)
        return told, link.closed.done(), await link.request("C")

    (first, second), closed, third = played(serve, send)
    assert (first, second) == (1, Silence("no answer within 0.2 s"))
    assert closed
    assert isinstance(third, Silence)


def test_a_server_that_hangs_up_answers_nobody() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"B\r\n")
        writer.close()

    assert {type(told) for told in played(serve, both)} == {Silence}


def test_who_does_not_speak_the_protocol_is_left() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n")

    told = played(serve, both)
    assert [type(each) for each in told] == [Silence, Silence]
    assert "does not speak RESP" in told[0].text
