"""A broker's calls to the controllers, and its timers: which outcomes are certain, and what ends a
wait."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from played_node import PlayedNode

from clusters.flotilla.net.connection import FrameConnection, refusal
from clusters.flotilla.net.controller_client import ControllerClient, NoLeader, OutcomeUnknown
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.world.timers import PeriodicTimer, WakeEvent


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


ASKED = {"brokerName": "b"}


class Controller(PlayedNode):
    """Answers, refers to another controller, or closes. `asked` counts; `stuck`: its answer when it
    has no majority."""

    def __init__(self) -> None:
        super().__init__({Op.REPLICA_INFO: self._serve})
        self.asked = 0
        self.hangs_up = False
        self.stuck: Status | None = None
        self.leader: str | None = None

    async def _serve(self, connection: FrameConnection, fields: Json) -> Json:
        self.asked += 1
        if self.hangs_up:
            connection.abort()
        if self.leader != self.address:
            return refusal(Status.NOT_LEADER, "") | {"leaderAddr": self.leader}
        if self.stuck:
            return refusal(self.stuck, "no majority in time")
        return {"masterId": 7}


async def group(count: int) -> tuple[list[Controller], ControllerClient]:
    controllers = [Controller() for _ in range(count)]
    for controller in controllers:
        await controller.listen()
    link = ControllerClient(tuple(c.address for c in controllers), 2)
    return controllers, link


def leave(controllers: list[Controller], link: ControllerClient) -> None:
    link.close()
    for controller in controllers:
        controller.leave()


def test_a_follower_names_the_leader_and_it_is_remembered() -> None:
    """Each follower is asked once, and the leader directly from then on."""

    async def scenario() -> None:
        controllers, link = await group(3)
        for controller in controllers:
            controller.leader = controllers[2].address
        for _ in range(2):
            assert (await link.ask(Op.REPLICA_INFO, ASKED))["masterId"] == 7
        assert [c.asked for c in controllers] == [1, 0, 2]
        leave(controllers, link)

    run(scenario())


def test_without_a_leader_nothing_was_done() -> None:
    """Followers that know no leader, and unreachable controllers: certainly not carried out."""

    async def scenario() -> None:
        controllers, link = await group(2)
        with pytest.raises(NoLeader):
            await link.ask(Op.REPLICA_INFO, ASKED)
        leave(controllers, link)
        with pytest.raises(NoLeader):
            await link.ask(Op.REPLICA_INFO, ASKED)
        link.close()

    run(scenario())


def test_a_lost_answer_is_uncertain_and_another_is_asked_next() -> None:
    """The request may have been carried out; the next attempt starts with another controller."""

    async def scenario() -> None:
        controllers, link = await group(2)
        first, second = controllers
        first.hangs_up, second.leader = True, second.address
        with pytest.raises(OutcomeUnknown):
            await link.ask(Op.REPLICA_INFO, ASKED)
        assert (await link.ask(Op.REPLICA_INFO, ASKED))["masterId"] == 7
        assert [c.asked for c in controllers] == [1, 1]
        leave(controllers, link)

    run(scenario())


@pytest.mark.parametrize(
    ("stuck", "concluded"), [(Status.SYSTEM_ERROR, OutcomeUnknown), (Status.SYSTEM_BUSY, NoLeader)]
)
def test_a_leader_without_a_majority_decides_nothing(
    stuck: Status, concluded: type[Exception]
) -> None:
    """A proposed request may still be carried out by the next leader; a queued one is not."""

    async def scenario() -> None:
        controllers, link = await group(1)
        controllers[0].leader, controllers[0].stuck = controllers[0].address, stuck
        with pytest.raises(concluded):
            await link.ask(Op.REPLICA_INFO, ASKED)
        controllers[0].stuck = None
        assert (await link.ask(Op.REPLICA_INFO, ASKED))["masterId"] == 7
        leave(controllers, link)

    run(scenario())


def test_a_ring_is_never_lost() -> None:
    """Before the wait, during it, or not at all: then the timeout ends it."""

    async def scenario() -> None:
        bell = WakeEvent()
        bell.set()
        assert await bell.wait(60)
        waiting = asyncio.ensure_future(bell.wait(60))
        asyncio.get_running_loop().call_soon(bell.set)
        assert await waiting
        assert not await bell.wait(0.001)

    run(scenario())


def test_what_repeats_can_be_stopped_from_within() -> None:
    """It is called again and again, and not once after stop."""

    async def scenario() -> None:
        done = asyncio.get_running_loop().create_future()
        calls: list[float] = []

        def call() -> None:
            calls.append(every.late_s)
            if len(calls) == 3:
                every.stop()
                done.set_result(None)

        every = PeriodicTimer(0.001, call)
        await done
        another = asyncio.get_running_loop().create_future()
        PeriodicTimer(0.01, lambda: another.done() or another.set_result(None))
        await another
        assert len(calls) == 3

    run(scenario())
