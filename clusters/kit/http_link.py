"""HTTP/1.1 for clients of plain calls, on asyncio alone: one connection, kept open, and a certain
answer to whether a request was sent."""

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

    async def _request(self, method: str, path: str, data: bytes) -> tuple[int, Any]:
        async with self._turn:
            reader, writer = await self._connected()
            try:
                async with asyncio.timeout(self._within_s):
                    head = (
                        f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
                    )
                    writer.write(head.encode() + data)
                    return await self._answer(reader)
            except BaseException:
                self.close()
                raise

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._open is None or self._open[0].at_eof() or self._open[1].is_closing():
            self.close()
            try:
                async with asyncio.timeout(self._within_s):
                    self._open = await asyncio.open_connection(self._host, self._port)
            except (OSError, TimeoutError) as e:
                raise Refused(f"not connected to {self._host}: {type(e).__name__} {e}") from e
        return self._open

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
