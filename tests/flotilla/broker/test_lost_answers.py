"""A broker whose controllers' answers get lost: real brokers, and a controller that we play.

The played controller decides as the real one does, on the real state machine; it has no Raft and
believes every broker to be alive. What it can do besides is keep an answer to itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import PATIENCE_S, eventually, free_port
from played_node import PlayedNode

from clusters.flotilla.controllers.controller_requests import DECISIONS, DecisionContext
from clusters.flotilla.controllers.controller_state import BrokerSets, apply_all
from clusters.flotilla.controllers.elect import BrokerStatus, Candidate
from clusters.flotilla.net.connection import FrameConnection, Pool, refusal
from clusters.flotilla.net.wire import Json, Op, SendReply, SendRequest, Status
from clusters.flotilla.rules import RULES
from clusters.flotilla.steering.identity import Claim

pytestmark = pytest.mark.bed


class PlayedController(PlayedNode):
    """Decides, and may not say so.

    `silent`: what is carried out and not answered. `lost_lead`: once it has carried out one of
    these, it says that it no longer leads, first that it does not know the outcome.
    """

    def __init__(self) -> None:
        super().__init__(
            {**{op: self._serve(op) for op in DECISIONS}, Op.BROKER_HEARTBEAT: self._heartbeat}
        )
        self.state: BrokerSets = {}
        self.silent: set[int] = set()
        self.lost_lead: set[int] = set()
        self.leads = True
        self.asked: list[tuple[int, Json]] = []

    def times(self, op: Op) -> int:
        return sum(asked == op for asked, _ in self.asked)

    def _serve(self, op: Op) -> Callable[[FrameConnection, Json], Awaitable[Json]]:
        async def serve(connection: FrameConnection, fields: Json) -> Json:
            self.asked.append((op, fields))
            if not self.leads:
                return refusal(Status.NOT_LEADER, "nobody leads") | {"leaderAddr": None}
            scene = DecisionContext(
                self.state, lambda name, i: Candidate(i, BrokerStatus.ALIVE), RULES, False
            )
            decision = DECISIONS[op](scene, fields)
            self.state = apply_all(self.state, decision.events)
            if op in self.silent:
                connection.abort()
            if op in self.lost_lead:
                self.leads = False
                return refusal(Status.SYSTEM_ERROR, "leadership was lost: the outcome is unknown")
            return decision.reply

        return serve

    async def _heartbeat(self, connection: FrameConnection, fields: Json) -> Json:
        return {}


Scenario = Callable[[PlayedController, list[Any]], Awaitable[None]]


@pytest.fixture
def bed(raise_node: Any) -> Callable[[Scenario], None]:
    """Runs a scenario with two brokers, of which the second is not started yet."""

    def run(scenario: Scenario) -> None:
        asyncio.run(play(scenario, raise_node))

    return run


async def play(scenario: Scenario, raise_node: Any) -> None:
    controller = PlayedController()
    await controller.listen()
    nodes = []
    for i in (1, 2):
        settings = {
            "haListenPort": free_port(),
            "brokerName": "b",
            "controllerAddr": [controller.address],
            "topics": {"t": 1},
            "allAckInSyncStateSet": True,
            "mappedFileSizeCommitLog": 1024 * 1024,
        }
        nodes.append(raise_node(f"b{i}", "broker", **settings))
        await eventually(lambda i=i: members(controller, i))
        await eventually(lambda node=nodes[-1]: has_identity(node))
    nodes[1].stop()
    await eventually(lambda: the_set(controller, [1]))
    try:
        await scenario(controller, nodes)
    finally:
        controller.leave()


async def has_identity(node: Any) -> bool:
    """Whether the id is stored, and the claim that a restart would repeat is gone."""
    store = Path(node.folder) / "store"
    return (store / "broker.meta").exists() and not (store / "broker.meta.claim").exists()


async def members(controller: PlayedController, count: int) -> bool:
    row = controller.state.get("b")
    return row is not None and len(row.members) == count and row.master_id == 1


async def the_set(controller: PlayedController, expected: list[int]) -> bool:
    return list(controller.state["b"].sync_set) == expected


async def send(node: Any) -> Status:
    pool = Pool(1)
    try:
        connection = await pool.get(node.address)
        body = await connection.call(Op.SEND, SendRequest("t", 0, b"", b"m").pack(), 10)
        return SendReply.unpack(body).status
    finally:
        pool.close()


def test_an_expansion_whose_answer_is_lost_counts_as_made(
    bed: Callable[[Scenario], None],
) -> None:
    """The controllers agreed to {1, 2}, broker 1 was not told, 2 is gone (apache/rocketmq#5663).

    Were broker 1 to acknowledge alone now, an election of 2 would lose the message.
    """

    async def scenario(controller: PlayedController, nodes: list[Any]) -> None:
        one, two = nodes
        assert await send(one) is Status.SUCCESS
        controller.silent = {Op.ALTER_SYNC_STATE_SET, Op.REPLICA_INFO}
        two.start()
        await eventually(lambda: the_set(controller, [1, 2]))
        two.stop()
        assert await send(one) is Status.FLUSH_SLAVE_TIMEOUT
        assert controller.times(Op.ALTER_SYNC_STATE_SET) > 2
        controller.silent = set()
        await eventually(lambda: the_set(controller, [1]))
        assert await send(one) is Status.SUCCESS

    bed(scenario)


def test_an_expansion_under_way_when_the_leader_falls_counts_as_made(
    bed: Callable[[Scenario], None],
) -> None:
    """The leader could only say that it does not know, and nobody leads for a while.

    The next leader may find {1, 2} in its log, so 1 must not acknowledge alone.
    """

    async def scenario(controller: PlayedController, nodes: list[Any]) -> None:
        one, two = nodes
        assert await send(one) is Status.SUCCESS
        controller.lost_lead = {Op.ALTER_SYNC_STATE_SET}
        two.start()
        await eventually(lambda: the_set(controller, [1, 2]))
        two.stop()
        assert await send(one) is Status.FLUSH_SLAVE_TIMEOUT
        controller.lost_lead, controller.leads = set(), True
        await eventually(lambda: the_set(controller, [1]))
        assert await send(one) is Status.SUCCESS

    bed(scenario)


def test_a_claimed_id_survives_lost_answers(bed: Callable[[Scenario], None]) -> None:
    """Killed again and again before consent arrives, a broker gets one id."""

    async def scenario(controller: PlayedController, nodes: list[Any]) -> None:
        two = nodes[1]
        store = Path(two.folder) / "store"
        (store / "broker.meta").unlink()
        controller.silent = {Op.APPLY_BROKER_ID}
        for _ in range(3):
            before = controller.times(Op.APPLY_BROKER_ID)
            two.start()
            await eventually(lambda b=before: asked_since(controller, Op.APPLY_BROKER_ID, b))
            two.stop()
        controller.silent = set()
        two.start()
        await eventually(lambda: the_set(controller, [1, 3]))
        assert sorted(controller.state["b"].members) == [1, 2, 3]
        assert not (store / "broker.meta.claim").exists()

    bed(scenario)


async def asked_since(controller: PlayedController, op: Op, before: int) -> bool:
    return controller.times(op) > before


def test_an_identity_that_is_not_its_own_stops_the_broker(
    bed: Callable[[Scenario], None],
) -> None:
    """Names in broker.meta must be the configuration's; with a wrong digit the broker would use
    another's id. It refuses to start, and takes no new id."""

    async def scenario(controller: PlayedController, nodes: list[Any]) -> None:
        two = nodes[1]
        meta = Path(two.folder) / "store" / "broker.meta"
        sound = meta.read_bytes()
        foreign = Claim.unpacked(sound)._replace(broker_name="another").packed()
        for wrong in (foreign, sound.replace(b'"brokerId":2', b'"brokerId":1')):
            assert wrong != sound
            meta.write_bytes(wrong)
            two.start()
            process, two.process = two.process, None
            process.stdout.close()
            assert process.wait(PATIENCE_S) == 70
        assert sorted(controller.state["b"].members) == [1, 2]

    bed(scenario)
