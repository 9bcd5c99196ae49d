"""Reading for those who have time: batches that shrink and pauses that grow when brokers are slow.

It is the pull consumer behind a sliding window (capacity/window.py): who copies a topic into a
warehouse reads as fast as the brokers easily give, and steps back when they do not.
"""

import asyncio

from clusters.flotilla.capacity.window import Window
from clusters.flotilla.net.wire import Pulled

from .consumer import Consumer
from .settings import Settings


class OfflineReader:
    """`window`: how far it is open now."""

    def __init__(self, settings: Settings, consumer: Consumer) -> None:
        self.window = Window(
            settings.offline_batch, settings.offline_slow_s, settings.offline_pause_s
        )
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()

    async def pull(self, topic: str, queue: int, offset: int) -> Pulled:
        """Messages from `offset` on, as many as the window lets through, after its pause."""
        await asyncio.sleep(self.window.pause_s)
        began = self._loop.time()
        try:
            pulled = await self._consumer.pull(topic, queue, offset, self.window.size, 0.0)
        except Exception:
            self.window = self.window.after(self._loop.time() - began, failed=True)
            raise
        self.window = self.window.after(self._loop.time() - began)
        return pulled
