"""An agent that outlives its connections, seen from the driver. `daemon` is the other side.

`dial` opens a stream to the agent, blocking, over whatever connection it finds or makes; this
attaches, tells the agent what it has, asks again what was not answered, and listens. A connection
that breaks, or is silent though it was asked something, is replaced, until nothing was heard for
the length of the lease: by then the agent has healed and left, and the node is gone.
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
from clusters.hosts._agent.threads import aside
from harness.errors import BedFailed, NodeGone

PING_EVERY_S = 3.0
SILENCE_S = 5.0  # how long an answer to a ping may take
DIAL_AGAIN_S = 0.2
OWED_BYTES = 256 * 1024  # taken since the agent was last told so: it keeps them until then


class LastingCarrier:
    """The agent of one node, as long as its lease is renewed."""

    def __init__(self, node: str, dial: Callable[[], Stream], lease_s: float) -> None:
        self.agent = PipeAgent(node, self._write, PATIENCE_S + lease_s)
        self.attachments = 0  # how many connections it took
        self._dial, self._lease_s = dial, lease_s
        self._name = os.urandom(8).hex()
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._spoken, self._ended = asyncio.Event(), asyncio.Event()
        self._owed_bytes = 0
        self._pump: Pump | None = None
        self._holding = asyncio.create_task(self._hold())

    async def hang_up(self) -> None:
        """Leave the agent to itself: it goes on until its lease ends, or it is told to leave."""
        self._holding.cancel()
        with suppress(asyncio.CancelledError):
            await self._holding
        self.agent.lost("the run is over")

    async def _hold(self) -> None:
        try:
            while not self.agent.gone:
                began_s = self._loop.time()
                await self._talk(await self._dialled())
                if self._heard_s < began_s:
                    await asyncio.sleep(DIAL_AGAIN_S)
        except Exception as e:  # nobody awaits this task: whatever ends it must be said
            self.agent.lost(str(e) or repr(e))

    async def _dialled(self) -> Stream:
        """A stream to the agent. NodeGone when there was none for as long as the lease."""
        why = "it does not answer"
        try:
            async with asyncio.timeout_at(self._heard_s + self._lease_s):
                while True:
                    try:
                        return await _unless_abandoned(self._dial)
                    except (BedFailed, *BROKEN) as e:
                        why = str(e)
                    await asyncio.sleep(DIAL_AGAIN_S)
        except TimeoutError:
            raise NodeGone(f"it was not heard for {self._lease_s:g} s: {why}") from None

    async def _talk(self, stream: Stream) -> None:
        """Over this stream, until it breaks."""
        self._spoken.clear()
        self._ended.clear()
        self._owed_bytes = 0
        self.attachments += 1
        self.agent.renew()
        pump = self._pump = Pump(
            self.agent.node,
            stream,
            lambda data: self._take(pump, data),
            lambda: self._over(pump),
        )
        self._say({"attach": self.agent.last, "driver": self._name})
        for line in self.agent.unanswered():
            pump.put(line)
        try:
            await self._pinging()
        finally:
            self._pump = None
            _in_background(pump.close)

    async def _pinging(self) -> None:
        """Returns when the stream ended, or is silent."""
        every_s = min(PING_EVERY_S, self._lease_s / 6)
        with suppress(TimeoutError):
            while not self._ended.is_set():
                async with asyncio.timeout(min(SILENCE_S, self._lease_s / 2)):
                    await self._spoken.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await self._ended.wait()
                self._spoken.clear()
                self._tell_heard()

    def _take(self, pump: Pump, data: bytes) -> None:
        if pump is not self._pump:
            return  # it was given up: the agent says it again over the new one
        self._heard_s = self._loop.time()
        self._spoken.set()
        self.agent.feed(data)
        self._owed_bytes += len(data)
        if self._owed_bytes > OWED_BYTES:
            self._tell_heard()

    def _over(self, pump: Pump) -> None:
        if pump is self._pump:
            self._ended.set()
            self._spoken.set()

    def _tell_heard(self) -> None:
        self._owed_bytes = 0
        self._say({"heard": self.agent.last})

    def _say(self, message: dict[str, Any]) -> None:
        self._write(json.dumps(message).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        """Without a stream nothing is lost: what is not answered is asked again over the next."""
        if self._pump:
            self._pump.put(line)


async def _unless_abandoned(dial: Callable[[], Stream]) -> Stream:
    """A stream that comes when nobody waits for it any more is closed."""
    dialling = asyncio.ensure_future(aside(dial))
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
