"""The driver's side of an agent that outlives its connections; `daemon` is the other side.

`dial` opens a stream to the agent, blocking, over an existing or a new connection. This class
attaches, acknowledges what it has received, repeats unanswered requests, and listens. A connection
that breaks, or that stays silent after a ping, is replaced, until the agent was silent for the
length of its lease: by then it has healed its faults and exited, and the node is gone.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from clusters.hosts._agent.driver import PATIENCE_S, PipeAgent
from clusters.hosts._agent.stream_agent import BROKEN, Pump, Stream
from clusters.hosts._agent.threads import in_thread
from harness.errors import BedFailed, NodeGone

PING_EVERY_S = 3.0
SILENCE_S = 5.0  # how long an answer to a ping may take
DIAL_AGAIN_S = 0.2
ACKNOWLEDGE_EVERY_BYTES = 256 * 1024  # the agent keeps messages until they are acknowledged


class ReconnectingConnection:
    """The agent of one node, as long as its lease is renewed."""

    def __init__(self, node: str, dial: Callable[[], Stream], lease_s: float) -> None:
        self.agent = PipeAgent(node, self._write, PATIENCE_S + lease_s)
        self.attachments = 0  # connections so far
        self._dial, self._lease_s = dial, lease_s
        self._name = os.urandom(8).hex()
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._heard, self._ended = asyncio.Event(), asyncio.Event()
        self._unacknowledged_bytes = 0
        self._pump: Pump | None = None
        self._task = asyncio.create_task(self._keep_connected())

    async def hang_up(self) -> None:
        """Close the connection. The agent runs on until its lease ends or it is asked to leave."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.agent.lost("the run is over")

    async def _keep_connected(self) -> None:
        try:
            while not self.agent.gone:
                began_s = self._loop.time()
                await self._serve(await self._dial_until_lease())
                if self._heard_s < began_s:
                    await asyncio.sleep(DIAL_AGAIN_S)
        except Exception as e:  # this task is not awaited, so its failure is reported here
            self.agent.lost(str(e) or repr(e))

    async def _dial_until_lease(self) -> Stream:
        """Return a stream to the agent. Raises NodeGone if there is none for the length of the
        lease."""
        why = "it does not answer"
        try:
            async with asyncio.timeout_at(self._heard_s + self._lease_s):
                while True:
                    try:
                        return await _dial_or_close(self._dial)
                    except (BedFailed, *BROKEN) as e:
                        why = str(e)
                    await asyncio.sleep(DIAL_AGAIN_S)
        except TimeoutError:
            raise NodeGone(f"it was not heard for {self._lease_s:g} s: {why}") from None

    async def _serve(self, stream: Stream) -> None:
        """Exchange messages over this stream until it breaks."""
        self._heard.clear()
        self._ended.clear()
        self._unacknowledged_bytes = 0
        self.attachments += 1
        self.agent.renew()
        pump = self._pump = Pump(
            self.agent.node,
            stream,
            lambda data: self._take(pump, data),
            lambda: self._stream_ended(pump),
        )
        self._send({"attach": self.agent.last, "driver": self._name})
        for line in self.agent.unanswered():
            pump.put(line)
        try:
            await self._ping()
        finally:
            self._pump = None
            _in_background(pump.close)

    async def _ping(self) -> None:
        """Ping until the stream has ended or is silent."""
        every_s = min(PING_EVERY_S, self._lease_s / 6)
        with suppress(TimeoutError):
            while not self._ended.is_set():
                async with asyncio.timeout(min(SILENCE_S, self._lease_s / 2)):
                    await self._heard.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await self._ended.wait()
                self._heard.clear()
                self._acknowledge()

    def _take(self, pump: Pump, data: bytes) -> None:
        if pump is not self._pump:
            return  # it was given up; the agent sends this again over the new one
        self._heard_s = self._loop.time()
        self._heard.set()
        self.agent.feed(data)
        self._unacknowledged_bytes += len(data)
        if self._unacknowledged_bytes > ACKNOWLEDGE_EVERY_BYTES:
            self._acknowledge()

    def _stream_ended(self, pump: Pump) -> None:
        if pump is self._pump:
            self._ended.set()
            self._heard.set()

    def _acknowledge(self) -> None:
        self._unacknowledged_bytes = 0
        self._send({"heard": self.agent.last})

    def _send(self, message: dict[str, Any]) -> None:
        self._write(json.dumps(message).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        """Send a line. Without a stream it is dropped: unanswered requests are repeated over the
        next one."""
        if self._pump:
            self._pump.put(line)


async def _dial_or_close(dial: Callable[[], Stream]) -> Stream:
    """Return a stream; if the caller is cancelled meanwhile, the stream is closed when it
    arrives."""
    dialling = asyncio.ensure_future(in_thread(dial))
    try:
        return await asyncio.shield(dialling)
    except asyncio.CancelledError:
        dialling.add_done_callback(_close_late)
        raise


def _close_late(dialling: "asyncio.Future[Stream]") -> None:
    if not dialling.cancelled() and not dialling.exception():
        _in_background(dialling.result().close)


def _in_background(close: Callable[[], None]) -> None:
    threading.Thread(target=close, name="close", daemon=True).start()
