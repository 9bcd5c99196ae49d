"""The request queue: one request at a time between its decision and the effect of its events."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from clusters.flotilla.controllers.controller_requests import Decision
from clusters.flotilla.controllers.controller_state import ElectMaster
from clusters.flotilla.controllers.request_queue import RequestQueue
from clusters.flotilla.net.wire import Json, Status
from clusters.flotilla.raft.node import Indeterminate, NotLeader

EVENT = ElectMaster("b", 1, "test")


class Raft:
    """Proposals whose outcome the test decides."""

    def __init__(self, timeout_s: float = 60) -> None:
        self.leads = True
        self.proposals: list[asyncio.Future[None]] = []
        self.decided: list[str] = []
        refused = {"code": Status.NOT_LEADER}
        self.queue = RequestQueue(lambda: self.leads, self._propose, lambda: refused, timeout_s)

    def _propose(self, data: bytes) -> "asyncio.Future[None]":
        self.proposals.append(asyncio.get_running_loop().create_future())
        return self.proposals[-1]

    def submit(self, name: str, *events: ElectMaster) -> "asyncio.Future[Json]":
        def decide() -> Decision:
            self.decided.append(name)
            return Decision({"name": name}, events)

        return self.queue.submit(decide)


async def turns() -> None:
    """Run callbacks that are due."""
    for _ in range(5):
        await asyncio.sleep(0)


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__doc__ = test.__doc__
    return run


@scenario
async def test_nothing_is_decided_before_earlier_events_took_effect() -> None:
    """The second decision would be made on outdated state."""
    raft = Raft()
    raft.queue.open()
    first, second = raft.submit("first", EVENT), raft.submit("second")
    await turns()
    assert raft.decided == ["first"]
    raft.proposals[0].set_result(None)
    await turns()
    assert raft.decided == ["first", "second"]
    assert (first.result()["name"], second.result()["name"]) == ("first", "second")


@scenario
async def test_requests_wait_until_everything_committed_is_applied() -> None:
    """A leader serves when its first entry is committed."""
    raft = Raft()
    request = raft.submit("early")
    await turns()
    assert not request.done()
    raft.queue.open()
    assert request.result()["name"] == "early"


@scenario
async def test_who_gives_up_leaves_the_line_unmoved() -> None:
    """A write without a majority: unknown to its client, and still the first of the queue."""
    raft = Raft(timeout_s=0.01)
    raft.queue.open()
    first, second = raft.submit("first", EVENT), raft.submit("second", EVENT)
    assert (await first)["code"] == Status.SYSTEM_ERROR
    assert (await second)["code"] == Status.SYSTEM_BUSY  # certainly not tried
    third = raft.submit("third")
    await turns()
    assert raft.decided == ["first"]
    raft.proposals[0].set_result(None)
    assert (await third)["name"] == "third"
    assert len(raft.proposals) == 1


@scenario
async def test_lost_leadership_answers_everybody() -> None:
    """In progress: unknown. Queued: certainly not carried out. Later: as the next leader."""
    raft = Raft()
    raft.queue.open()
    first, second = raft.submit("first", EVENT), raft.submit("second", EVENT)
    raft.queue.shut()
    raft.proposals[0].set_exception(Indeterminate())
    await turns()
    assert first.result()["code"] == Status.SYSTEM_ERROR
    assert second.result()["code"] == Status.NOT_LEADER
    raft.queue.open()
    assert raft.submit("third").result()["name"] == "third"


@scenario
async def test_an_entry_that_was_replaced_had_no_effect() -> None:
    """Another leader's entry took its place: that is certain, so the client may repeat the
    request."""
    raft = Raft()
    raft.queue.open()
    first = raft.submit("first", EVENT)
    raft.proposals[0].set_exception(NotLeader())
    await turns()
    assert first.result()["code"] == Status.NOT_LEADER


@scenario
async def test_a_leader_without_lease_decides_nothing() -> None:
    """Its memory may be outdated: another leader may exist."""
    raft = Raft()
    raft.queue.open()
    raft.leads = False
    assert raft.submit("first").result()["code"] == Status.NOT_LEADER
    assert raft.decided == []


@scenario
async def test_a_fault_of_a_decision_is_nobody_elses() -> None:
    """Requests are well-formed when they arrive here: an exception is passed on, and stops the
    node."""
    raft = Raft()
    raft.queue.open()

    def decide() -> Decision:
        fields: Json = {}
        return Decision({"id": fields["brokerId"]})

    with pytest.raises(KeyError):
        raft.queue.submit(decide)
