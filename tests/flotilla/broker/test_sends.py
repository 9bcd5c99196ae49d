"""Sends that wait: answered in the log's order, by what is missing when their time is over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from clusters.flotilla.broker.sends import WaitingSends
from clusters.flotilla.net.wire import SendReply, Status
from clusters.flotilla.replication.quorum import SendTimeouts, outcome_of
from clusters.flotilla.store.message_store import AppendResult


class Ear:
    """The far end of a connection: what it was answered, by request."""

    def __init__(self, expected: int) -> None:
        self.answers: dict[int, SendReply] = {}
        self._expected = expected
        self.complete = asyncio.get_running_loop().create_future()

    def reply(self, op: int, request: int, body: bytes) -> None:
        self.answers[request] = SendReply.unpack(body)
        if len(self.answers) == self._expected:
            self.complete.set_result(None)

    def statuses(self) -> list[Status]:
        return [self.answers[request].status for request in sorted(self.answers)]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def three(ear: Any, slave_timeout_s: float = 60, flush_timeout_s: float = 60) -> WaitingSends:
    """Requests 1 to 3, which end at 100, 200 and 300."""
    sends = WaitingSends(SendTimeouts(slave_timeout_s, flush_timeout_s), outcome_of)
    for i in (1, 2, 3):
        sends.add(AppendResult(i - 1, 100 * i - 100, 100 * i), 7, ear, i)
    return sends


def test_a_send_is_answered_when_both_copies_and_disk_are_there() -> None:
    """The smaller of the two positions decides; the answer says where the message is."""

    async def scenario() -> None:
        ear = Ear(2)
        sends = three(ear)
        sends.complete(replicated=300, durable=99)
        assert not ear.answers
        sends.complete(replicated=250, durable=300)
        assert ear.answers == {
            1: SendReply(Status.SUCCESS, 0, 0, 7),
            2: SendReply(Status.SUCCESS, 1, 100, 7),
        }
        assert len(sends) == 1
        sends.abandon("over")

    run(scenario())


def test_what_is_missing_names_the_timeout() -> None:
    """Replicated and not flushed, or not replicated: RocketMQ's two statuses (spec 9.2)."""

    async def scenario() -> None:
        ear = Ear(3)
        sends = three(ear, slave_timeout_s=0.02, flush_timeout_s=0.02)
        sends.complete(replicated=100, durable=50)
        await ear.complete
        assert ear.statuses() == [
            Status.FLUSH_DISK_TIMEOUT,
            Status.FLUSH_SLAVE_TIMEOUT,
            Status.FLUSH_SLAVE_TIMEOUT,
        ]

    run(scenario())


def test_the_end_of_a_reign_leaves_sends_open() -> None:
    """They are in the log and may survive: never a refusal."""

    async def scenario() -> None:
        ear = Ear(3)
        three(ear).abandon("another broker is the master now")
        assert ear.statuses() == [Status.SLAVE_NOT_AVAILABLE] * 3
        assert ear.answers[1].physical_offset == 0

    run(scenario())
