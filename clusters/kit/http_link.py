"""HTTP/1.1 for clients of plain calls, on asyncio alone: one connection, kept open, and a certain
answer to whether a request was sent; and answers that go on, such as those of a watch."""

import asyncio
import json
from typing import Any

from harness.contracts.calls import Refused


class HttpLink:
    """A connection to one server, opened when it is needed. One request at a time."""

    def __init__(self, host: str, port: int, within_s: float) -> None:
        self._host, self._port, self._within_s = host, port, within_s
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Send JSON; return the status and the answer: its JSON, its text if it is none, or None if
        it is empty. Raises Refused if nothing was sent, and OSError, TimeoutError or ValueError if
        the outcome is unknown."""
        data = json.dumps(body).encode()
        return await self._request("POST", path, data)

    async def get(self, path: str) -> tuple[int, Any]:
        """Ask by GET; otherwise as `post`."""
        return await self._request("GET", path, b"")

    async def stream(self, path: str, body: Any) -> "JsonStream":
        """Send JSON over a connection of its own; return the answer, which goes on. Raises Refused
        if nothing was sent."""
        reader, writer = await self._connect()
        writer.write(self._head("POST", path, data := json.dumps(body).encode()) + data)
        return JsonStream(reader, writer)

    async def _request(self, method: str, path: str, data: bytes) -> tuple[int, Any]:
        async with self._turn:
            reader, writer = await self._connected()
            try:
                async with asyncio.timeout(self._within_s):
                    writer.write(self._head(method, path, data) + data)
                    return await self._answer(reader)
            except BaseException:
                self.close()
                raise

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._open is None or self._open[0].at_eof() or self._open[1].is_closing():
            self.close()
            self._open = await self._connect()
        return self._open

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError) as e:
            raise Refused(f"not connected to {self._host}: {type(e).__name__} {e}") from e

    def _head(self, method: str, path: str, data: bytes) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, Any]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split()[1])
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        if "chunked" in fields.get("transfer-encoding", ""):
            data = await _chunks(reader)
        else:
            data = await reader.readexactly(int(fields.get("content-length", 0)))
        try:
            return status, json.loads(data or b"null")
        except ValueError:
            return status, data.decode(errors="replace")

    def close(self) -> None:
        if self._open:
            self._open[1].close()
            self._open = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readline()
    return b"".join(parts)


class JsonStream:
    """An answer that goes on: one JSON value a line, as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._values: asyncio.Queue[Any] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def next(self, within_s: float) -> Any:
        """Return the next value. Raises TimeoutError if there is none in time, ConnectionError when
        the answer is over."""
        async with asyncio.timeout(within_s):
            value = await self._values.get()
        if isinstance(value, Exception):
            self._values.put_nowait(value)
            if isinstance(value, EOFError):
                raise ConnectionError("the server ended the answer")
            raise ConnectionError(f"the answer is over: {type(value).__name__} {value}")
        return value

    def waiting(self) -> bool:
        """Whether a value is there already."""
        return not self._values.empty()

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            if head.split()[1] != "200":
                raise ValueError(f"status {head.split()[1]}")
            rest = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                *lines, rest = (rest + await reader.readexactly(size)).split(b"\n")
                await reader.readexactly(2)
                for line in filter(None, lines):
                    self._values.put_nowait(json.loads(line))
            raise EOFError("it ended")
        except Exception as e:
            self._values.put_nowait(e)
