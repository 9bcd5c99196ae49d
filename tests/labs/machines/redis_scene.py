"""A server that speaks Redis's protocol, on all addresses of this machine, and a client of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from clusters.systems import redis
from clusters.systems.redis import RedisClient, decode
from harness.contracts.calls import Refused

Answers = Callable[[str, Sequence[bytes]], bytes]  # address of the server, command -> reply


@pytest.fixture(autouse=True, scope="module")
def patient() -> Iterator[None]:
    """The servers of these tests answer at once, but a busy machine may not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis, "WITHIN_S", 60.0)
        yield


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


def asked(
    answers: Answers,
    make: Callable[[int], RedisClient],
    call: Callable[[Any], Awaitable[Any]],
) -> Any:
    """Return what a call of a client answers or raises. `make` is called with the server's port."""
    serving: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        address, data = writer.get_extra_info("sockname")[0], b""
        with suppress(ConnectionError):
            while part := await reader.read(1 << 16):
                data += part
                while found := decode(data):
                    words, end = found
                    data = data[end:]
                    writer.write(answers(address, words))
        writer.close()

    async def play() -> Any:
        server = await asyncio.start_server(serve, "0.0.0.0", 0)
        client = make(server.sockets[0].getsockname()[1])
        try:
            return await call(client)
        except (Refused, OSError) as e:
            return e
        finally:
            await client.close()
            server.close()
            await asyncio.gather(*serving)

    return asyncio.run(play())
