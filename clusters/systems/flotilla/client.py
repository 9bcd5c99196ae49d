"""Flotilla's client as the harness uses it: ok, fail and info from the client library's outcomes.

The mapping is the table in `clusters.flotilla.client.outcomes`; nothing is decided here. A read has
no effect, so a read without a result is a fail, whatever the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from clusters.flotilla.client import (
    CallOutcome,
    ClientSettings,
    ClusterClient,
    ConsumerGroupMember,
    SendResult,
)
from clusters.flotilla.client.calls import CALL_ERRORS, outcome_of_failure
from clusters.flotilla.client.kv import ControllerRegisters as ControllerRegisters
from clusters.flotilla.client.kv import RegisterAnswer
from clusters.flotilla.client.outcomes import overall
from clusters.flotilla.client.producer import Overall
from clusters.flotilla.special.pop_records import PopHandle
from clusters.flotilla_mutants import MUTANTS
from harness.contracts import HalfQuestion, PollResult, PopDelivery, PopResult, ReceivedMessage
from harness.operation import NONE, Completion, Type

NEVER_WRITTEN = -2
NAMESPACE = "registers"  # in the controllers' key-value store
TYPES = {
    CallOutcome.HAPPENED: Type.OK,
    CallOutcome.REFUSED: Type.FAIL,
    CallOutcome.UNKNOWN: Type.INFO,
}


def overall_rule(settings: Mapping[str, Any]) -> Overall:
    """Return how a client decides the outcome of several attempts, which a mutant of clients
    changes."""
    name = settings.get("mutant")
    return MUTANTS[name].overall if name else overall


class FlotillaClient:
    """`harness.contracts.MetadataClient` on Flotilla's client library."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._nodes: Mapping[str, int] = settings["nodes"]  # address -> index in names.json
        self._names: Mapping[str, str] = settings["names"]  # address -> node, for people
        self._client: ClusterClient
        self._registers: list[FlotillaRegisters] = []

    async def open(self) -> None:
        self._client = ClusterClient(
            ClientSettings.of(self._settings), overall_rule(self._settings)
        )
        self._client.start()

    async def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()
        for registers in self._registers:
            registers.close()

    def send(
        self, topic: str, queue: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        self._send(topic, queue, key, body, done)

    # harness.contracts.DelayClient

    def send_delayed(
        self,
        topic: str,
        queue: int,
        key: bytes,
        body: bytes,
        delay_ms: int,
        done: Callable[[Completion], None],
    ) -> None:
        ended = partial(self._ended, done)
        self._client.producer.send_delayed(topic, queue, key, body, delay_ms, ended)

    # harness.contracts.HalfClient

    def prepare(
        self,
        topic: str,
        queue: int,
        key: bytes,
        body: bytes,
        group: str,
        done: Callable[[Completion], None],
    ) -> None:
        ended = partial(self._ended, done)
        self._client.producer.prepare(topic, queue, key, body, group, ended)

    def decide(
        self,
        topic: str,
        queue: int,
        half: int,
        key: bytes,
        commit: bool,
        done: Callable[[Completion], None],
    ) -> None:
        ended = partial(self._ended, done)
        self._client.producer.decide(topic, queue, half, key, commit, ended)

    async def questions(
        self, group: str, topic: str, queue: int, wait_s: float
    ) -> Sequence[HalfQuestion]:
        try:
            found = await self._client.consumer.questions(group, topic, queue, wait_s)
        except CALL_ERRORS as e:
            raise ConnectionError(self._error_text(str(e))) from e
        return [HalfQuestion(half.queue_offset, half.key, half.body) for half in found]

    # harness.contracts.PopClient

    async def pop(
        self, group: str, topic: str, queue: int, limit: int, invisible_ms: int, wait_s: float
    ) -> PopResult:
        consumer = self._client.consumer
        try:
            found = await consumer.pop(group, topic, queue, limit, invisible_ms, wait_s)
        except CALL_ERRORS as e:
            return PopResult(Completion(Type.FAIL, error=self._error_text(str(e))))
        popped = [
            PopDelivery(
                ReceivedMessage(each.message.queue_offset, each.message.epoch, each.message.body),
                str(each.handle),
            )
            for each in found
        ]
        return PopResult(Completion(Type.OK), popped)

    async def acknowledge(self, group: str, topic: str, queue: int, handle: str) -> Completion:
        producer, of = self._client.producer, PopHandle.of(handle)
        result = await self._result(
            lambda done: producer.acknowledge(topic, queue, group, of, done)
        )
        return Completion(TYPES[result.outcome], error=self._error_text(result.error))

    async def hide(
        self, group: str, topic: str, queue: int, handle: str, invisible_ms: int
    ) -> tuple[Completion, str]:
        producer, of = self._client.producer, PopHandle.of(handle)
        result = await self._result(
            lambda done: producer.hide(topic, queue, group, of, invisible_ms, done)
        )
        new = str(PopHandle(result.queue_offset, result.epoch, 0))
        return Completion(TYPES[result.outcome], error=self._error_text(result.error)), new

    async def _result(self, call: Callable[[Callable[[SendResult], None]], None]) -> SendResult:
        ended: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        call(ended.set_result)
        return await ended

    # harness.contracts.SelectingClient

    def send_to_any(
        self, topic: str, queues: int, key: bytes, body: bytes, done: Callable[[Completion], None]
    ) -> None:
        self._send(topic, range(queues), key, body, done)

    def selections(self) -> Mapping[str, int]:
        producer = self._client.producer
        return {
            "detours": producer.selections.detours,
            "avoided": producer.selections.avoided,
            "breakers_opened": producer.breaker_openings(),
        }

    def _send(
        self,
        topic: str,
        queue: int | range,
        key: bytes,
        body: bytes,
        done: Callable[[Completion], None],
    ) -> None:
        self._client.producer.send(topic, queue, key, body, partial(self._ended, done))

    def _ended(self, done: Callable[[Completion], None], result: SendResult) -> None:
        done(
            Completion(
                TYPES[result.outcome],
                result.queue_offset,
                result.epoch,
                self._nodes.get(result.address, NONE),
                result.attempts,
                self._error_text(result.error),
                queue=result.queue,
            )
        )

    async def poll(
        self, topic: str, queue: int, offset: int, limit: int, wait_s: float
    ) -> PollResult:
        try:
            pulled = await self._client.consumer.pull(topic, queue, offset, limit, wait_s)
        except CALL_ERRORS as e:
            return PollResult(Completion(Type.FAIL, error=self._error_text(str(e))))
        messages = [
            ReceivedMessage(m.queue_offset, m.epoch, m.body, m.key, m.stored_ms)
            for m in pulled.messages
        ]
        return PollResult(Completion(Type.OK), messages, pulled.next_offset, pulled.max_offset)

    async def range(self, topic: str, queue: int) -> tuple[int, int]:
        try:
            return await self._client.consumer.range(topic, queue)
        except CALL_ERRORS as e:
            raise ConnectionError(str(e)) from e

    async def committed(self, group: str, topic: str, queue: int) -> int:
        try:
            return await self._client.consumer.committed(group, topic, queue)
        except CALL_ERRORS as e:
            raise ConnectionError(str(e)) from e

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        return await self._completion(self._client.consumer.commit(group, topic, queue, offset))

    # harness.contracts.MetadataClient

    async def create_topic(self, topic: str, queues: int) -> Completion:
        return await self._completion(self._client.topics.create(topic, queues))

    async def delete_topic(self, topic: str) -> Completion:
        return await self._completion(self._client.topics.delete(topic))

    async def topics(self) -> Mapping[str, int]:
        try:
            return await self._client.topics.list_queues()
        except CALL_ERRORS as e:
            raise ConnectionError(str(e)) from e

    async def reset(self, group: str, topic: str, queue: int, offset: int) -> Completion:
        return await self._completion(self._client.consumer.reset(group, topic, queue, offset))

    async def lock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        began_s = asyncio.get_running_loop().time()
        try:
            until_s = await self._client.consumer.lock(group, client, topic, queue)
        except CALL_ERRORS as e:
            return Completion(TYPES[outcome_of_failure(e)], error=self._error_text(str(e)))
        if not until_s:
            return Completion(Type.FAIL, error="another client holds it")
        return Completion(Type.OK, offset=int((until_s - began_s) * 1000))

    async def unlock(self, group: str, client: str, topic: str, queue: int) -> Completion:
        return await self._completion(self._client.consumer.unlock(group, client, topic, queue))

    # harness.contracts.GroupClient

    def member(self, group: str, me: str, topics: Mapping[str, int]) -> ConsumerGroupMember:
        return self._client.member(group, me, topics)

    # harness.workloads.register

    def registers(self, client: int) -> "FlotillaRegisters":
        """Return a client of registers. Clients have connections of their own and prefer different
        controllers."""
        controllers: Sequence[str] = self._settings["controllerAddr"]
        first = client % len(controllers)
        timeout_s = ClientSettings.of(self._settings).request_timeout_s
        registers_client = ControllerRegisters(
            [*controllers[first:], *controllers[:first]], timeout_s
        )
        self._registers.append(FlotillaRegisters(registers_client, self._error_text))
        return self._registers[-1]

    async def _completion(self, order: Awaitable[None]) -> Completion:
        try:
            await order
        except CALL_ERRORS as e:
            return Completion(TYPES[outcome_of_failure(e)], error=self._error_text(str(e)))
        return Completion(Type.OK)

    def _error_text(self, error: str) -> str:
        """Return an error text with the node's name in place of its address."""
        address, colon, rest = error.partition(": ")
        return f"{self._names.get(address, address)}{colon}{rest}"


class FlotillaRegisters:
    """`harness.workloads.register.Registers`: integers, stored by the controllers as strings."""

    def __init__(self, real: ControllerRegisters, error_text: Callable[[str], str]) -> None:
        self._real, self._error_text = real, error_text

    async def get(self, key: str) -> tuple[Completion, int]:
        answer = await self._real.get(NAMESPACE, key)
        return self._completion(answer), _number(answer.value)

    async def put(self, key: str, value: int) -> Completion:
        return self._completion(await self._real.put(NAMESPACE, key, str(value)))

    async def cas(self, key: str, expected: int, value: int) -> Completion:
        before = None if expected == NONE else str(expected)
        answer = await self._real.cas(NAMESPACE, key, expected=before, value=str(value))
        return self._completion(answer)

    def close(self) -> None:
        self._real.close()

    def _completion(self, answer: RegisterAnswer) -> Completion:
        if answer.differs:
            return Completion(Type.FAIL, pos=0)
        return Completion(TYPES[answer.outcome], error=self._error_text(answer.error))


def _number(value: str | None) -> int:
    """Return the integer, NONE if there is no value, or a value that no client ever wrote."""
    if value is None:
        return NONE
    return int(value) if value.isdecimal() else NEVER_WRITTEN
