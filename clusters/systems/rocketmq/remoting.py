"""RocketMQ's remoting protocol: frames, and the codes that the driver and its clients use.

A frame is `i32 size | i32 (kind << 24 | size of the header) | header | body`; here kind is always
0, a header in JSON. Bit 0 of its `flag` marks an answer. Source: RemotingCommand, RequestCode and
ResponseCode of apache/rocketmq, module remoting.
"""

import asyncio
import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from harness.contracts.calls import Refused

CONNECT_WITHIN_S = 1.0
# requests
SEND, PULL, GET_TOPIC, CREATE_TOPIC = 310, 11, 351, 17
QUERY_OFFSET, UPDATE_OFFSET, CREATE_GROUP = 14, 15, 200
RUNTIME, MAX_OFFSET, ROUTE, CLUSTER = 28, 30, 105, 106
HA_STATUS, CONTROLLERS, SYNC_STATE, EPOCHS, ELECT = 907, 1005, 1006, 1007, 1002
LOG_METADATA, LOG_SUCCESS = 50000, 200  # of DLedger
# answers
SUCCESS, SYSTEM_ERROR, BUSY = 0, 1, 2
PULL_NOT_FOUND, PULL_AGAIN, PULL_MOVED, OFFSET_NOT_FOUND = 19, 20, 21, 22
NO_GROUP = 26
# answers to a message that was not stored, and will not be: busy, illegal, not available (a slave,
# or a broker that ends), no permission, no such topic, a broker that goes away
NOT_STORED = frozenset({BUSY, 13, 14, 16, 17, 1500})
NO_FILE, TOO_FEW_REPLICAS = "create mapped file failed", "in-sync replicas not enough"  # remarks
ANSWER = 1  # flag
HEAD = struct.Struct(">ii")
MAX_FRAME = 64 << 20
VERSION = 453  # MQVersion of 5.1.1, which every 5.x takes


class Answer(NamedTuple):
    """What a server answers. `fields`: the header's extFields."""

    code: int
    remark: str
    fields: Mapping[str, str]
    body: bytes


class RemotingError(Exception):
    """A server's answer is an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"code {answer.code}: {answer.remark[:200]}")
        self.code, self.remark = answer.code, answer.remark


def request(code: int, fields: Mapping[str, Any], body: bytes = b"", number: int = 0) -> bytes:
    """Return the frame of a request. `fields`: what its header class names."""
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in fields.items()}
    header = {
        "code": code,
        "extFields": texts,
        "flag": 0,
        "language": "PYTHON",
        "opaque": number,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION,
    }
    data = json.dumps(header).encode()
    return HEAD.pack(4 + len(data) + len(body), len(data)) + data + body


def decode(frame: bytes) -> tuple[int, bool, Answer]:
    """Return the number of a frame (without its first size), whether it is an answer, and what it
    says. Raises ValueError if it is no frame."""
    if len(frame) < 4:
        raise ValueError("a frame of remoting without a header")
    kind, size = frame[0], int.from_bytes(frame[1:4], "big")
    if kind or 4 + size > len(frame):
        raise ValueError("a frame of remoting with a header of another kind or size")
    header = json.loads(frame[4 : 4 + size])
    if not isinstance(header, dict):
        raise ValueError("a frame of remoting whose header is no object")
    said = Answer(
        int(header.get("code", -1)),
        str(header.get("remark") or ""),
        {str(k): str(v) for k, v in (header.get("extFields") or {}).items()},
        frame[4 + size :],
    )
    return int(header.get("opaque", -1)), bool(int(header.get("flag", 0)) & ANSWER), said


def checked(answer: Answer) -> Answer:
    """Return an answer that is a success. Raises RemotingError."""
    if answer.code != SUCCESS:
        raise RemotingError(answer)
    return answer


class RemotingLink:
    """A connection, on which several requests may be open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = count(1)
        self._heard = 0  # frames
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def open(cls, host: str, port: int, within_s: float) -> "RemotingLink":
        """Raises OSError or TimeoutError if there is none."""
        async with asyncio.timeout(within_s):
            return cls(*await asyncio.open_connection(host, port))

    @property
    def closed(self) -> bool:
        return self._reading.done() or self._writer.is_closing()

    async def call(
        self, code: int, fields: Mapping[str, Any], body: bytes = b"", *, within_s: float
    ) -> Answer:
        """Raises ConnectionError or TimeoutError if no answer comes."""
        number, heard = next(self._numbers), self._heard
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[number] = done
        try:
            async with asyncio.timeout(within_s):
                self._writer.write(request(code, fields, body, number))
                await self._writer.drain()
                return await done
        except TimeoutError:
            if self._heard == heard:  # it may be to a node that is gone
                self._writer.close()
            raise
        finally:
            self._open.pop(number, None)

    async def _read(self) -> None:
        error: Exception = ConnectionError("the server closed the connection")
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if size > MAX_FRAME:
                    raise ValueError("a frame of remoting that is too long")
                number, answers, said = decode(await self._reader.readexactly(size))
                self._heard += 1
                done = self._open.get(number)
                if answers and done and not done.done():
                    done.set_result(said)
        except asyncio.IncompleteReadError:
            pass
        except (OSError, ValueError) as e:
            error = ConnectionError(str(e))
        finally:
            for done in self._open.values():
                if not done.done():
                    done.set_exception(error)
            self._writer.close()

    async def close(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


class RemotingLinks:
    """The connections of one client, one for each server, opened when they are needed."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, int], RemotingLink] = {}
        self._opening = asyncio.Lock()

    async def to(self, address: str, port: int) -> RemotingLink:
        """Raises Refused if there is none."""
        async with self._opening:
            link = self._links.get((address, port))
            if link is None or link.closed:
                try:
                    link = await RemotingLink.open(address, port, CONNECT_WITHIN_S)
                except (OSError, TimeoutError) as e:
                    raise Refused(f"not connected to {address}: {type(e).__name__} {e}") from e
                self._links[address, port] = link
            return link

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()
