"""An agent at the other end of a blocking stream: a docker exec, an ssh channel.

Their libraries block, so each stream has two threads: one reads and hands portions to the event
loop, one writes what the loop has queued. So a slow or silent stream delays only its own node, and
no thread delays the end of the program.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from clusters.hosts._agent.driver import PipeAgent
from clusters.hosts._agent.threads import in_thread

PORTION_BYTES = 256 * 1024
BROKEN = (OSError, EOFError)


class Stream(Protocol):
    """Standard input and output of a program that runs elsewhere."""

    def recv(self, size: int) -> bytes:
        """Wait for output; return b"" at its end. Raises OSError if the stream breaks."""
        ...

    def sendall(self, data: bytes) -> None: ...

    def shutdown(self) -> None:
        """End the program's standard input."""
        ...

    def close(self) -> None:
        """Close the stream and wake a thread that waits in `recv`."""
        ...


class Pump:
    """The two threads of a stream. In the event loop, `take` gets the data and `ended` is called at
    its end."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        take: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self._stream, self._take, self._ended = stream, take, ended
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"{work.__name__} {name}", daemon=True).start()

    def put(self, data: bytes) -> None:
        self._out.put(data)

    def finish(self) -> None:
        """End the program's standard input when all queued data has been sent."""
        self._out.put(None)

    def close(self) -> None:
        """Close the stream. May block, as the stream's own method may."""
        self._out.put(None)
        with suppress(*BROKEN):
            self._stream.close()

    def _read(self) -> None:
        with suppress(*BROKEN):
            while data := self._stream.recv(PORTION_BYTES):
                self._call_in_loop(self._take, data)
        self._call_in_loop(self._ended)

    def _write(self) -> None:
        with suppress(*BROKEN):
            while (data := self._out.get()) is not None:
                self._stream.sendall(data)
            self._stream.shutdown()

    def _call_in_loop(self, what: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *args)


class StreamConnection:
    """The agent of one node, which ends with its stream."""

    def __init__(self, node: str, stream: Stream) -> None:
        self._ended = asyncio.Event()
        self._pump = Pump(node, stream, lambda data: self.agent.feed(data), self._connection_lost)
        self.agent = PipeAgent(node, self._pump.put)

    async def hang_up(self, within_s: float) -> bool:
        """Close our end; return whether the agent closed its own, having ended all that it
        started."""
        self._pump.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        await in_thread(self._pump.close)
        return self._ended.is_set()

    def _connection_lost(self) -> None:
        self._ended.set()
        self.agent.lost()
