"""Flotilla's client in the harness's words: ok, fail and info from the client library's outcomes.

The table itself is `clusters.flotilla.client.outcomes`; nothing is decided here. Reads have no
effect, so a read that gave nothing is a fail, whatever the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any

from clusters.flotilla.client import Client, Outcome, Result, Settings
from clusters.flotilla.client.consumer import ERRORS, outcome_of
from harness.contracts import Batch, Received
from harness.operation import NONE, Completion, Type

TYPES = {Outcome.HAPPENED: Type.OK, Outcome.REFUSED: Type.FAIL, Outcome.UNKNOWN: Type.INFO}


class FlotillaClient:
    """`harness.contracts.MessageClient` on Flotilla's client library."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._nodes: Mapping[str, int] = settings["nodes"]  # address -> index in names.json
        self._names: Mapping[str, str] = settings["names"]  # address -> node, for people
        self._client: Client

    async def open(self) -> None:
        self._client = Client(Settings.of(self._settings))
        self._client.start()

    async def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        def ended(result: Result) -> None:
            done(
                Completion(
                    TYPES[result.outcome],
                    result.queue_offset,
                    result.epoch,
                    self._nodes.get(result.address, NONE),
                    result.attempts,
                    self._said(result.error),
                )
            )

        self._client.producer.send(topic, queue, key, body, ended)

    async def poll(self, topic: str, queue: int, offset: int, limit: int, wait_s: float) -> Batch:
        try:
            pulled = await self._client.consumer.pull(topic, queue, offset, limit, wait_s)
        except ERRORS as e:
            return Batch(Completion(Type.FAIL, error=self._said(str(e))))
        messages = [Received(m.queue_offset, m.epoch, m.body) for m in pulled.messages]
        return Batch(Completion(Type.OK), messages, pulled.next_offset, pulled.max_offset)

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        try:
            return await self._client.consumer.range(topic, queue)
        except ERRORS as e:
            raise ConnectionError(str(e)) from e

    async def committed(self, group: str, topic: str, queue: int) -> int:
        try:
            return await self._client.consumer.committed(group, topic, queue)
        except ERRORS as e:
            raise ConnectionError(str(e)) from e

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        try:
            await self._client.consumer.commit(group, topic, queue, offset)
        except ERRORS as e:
            return Completion(TYPES[outcome_of(e)], error=self._said(str(e)))
        return Completion(Type.OK)

    def _said(self, error: str) -> str:
        """An error text with the node's name where the library has its address."""
        address, colon, rest = error.partition(": ")
        return f"{self._names.get(address, address)}{colon}{rest}"
