"""Three controllers as real processes, with played brokers: elections and notices.

Both modes of controllers start from their disks here. Otherwise the default mode is enough:
tests/simulated/cluster/test_controllers_simulated.py has silent masters, and a master that dies
together with the leading controller, in both modes.
"""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
from loopback import eventually

from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Pool, Unreachable
from clusters.flotilla.net.wire import Op, Status

pytestmark = pytest.mark.bed
NAMES = ["dledger", "jraft"]
BOTH = pytest.mark.parametrize(
    "controllers", [{"controllerType": name} for name in NAMES], indirect=True, ids=NAMES
)
LOST = (Unreachable, ConnectionLost, CallTimeout)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


@BOTH
def test_a_killed_leader_takes_nothing_with_it(controllers: Any) -> None:
    """Raft 5.4: the next leader knows all answered requests, and so do all controllers after a
    restart."""

    async def scenario() -> None:
        async with controllers.broker_set(2):
            before = await controllers.info()
            assert (before["masterId"], before["set"]) == (1, [1, 2])
            leader = await controllers.leader()
            leader.stop()
            after = await controllers.info()
            assert (await controllers.leader()) is not leader
            for node in controllers.nodes.values():
                if node.process:
                    node.stop()
            controllers.start()
            restarted = await controllers.info()
            for later in (after, restarted):
                assert (later["masterId"], later["masterEpoch"]) == (1, 1)
                assert (later["set"], later["setEpoch"]) == ([1, 2], 2)

    run(scenario())


def test_a_killed_master_is_replaced_and_all_are_told(controllers: Any) -> None:
    """Its connections close, and the best member of the set is elected at once."""

    async def scenario() -> None:
        async with controllers.broker_set(3) as (first, second, third):
            second.offset, third.offset = 100, 200
            await second.has_beaten(2)
            await third.has_beaten(2)
            await first.die()
            for survivor in (second, third):
                await survivor.hears(masterId=3, masterEpoch=2, set=[3])
            nodes = controllers.nodes.values()  # any may lead by now
            elections = [e for node in nodes for e in node.events("election") if e["epoch"] == 2]
            assert elections
            for election in elections:
                assert election["trigger"] == "closed"
                assert (election["masterId"], election["previousSet"]) == (3, [1, 2, 3])
            expired = [e for node in nodes for e in node.events("expired")]
            assert {(e["brokerId"], e["why"]) for e in expired} == {(1, "closed")}

    run(scenario())


def test_a_living_master_that_reconnects_stays(controllers: Any) -> None:
    """A closed connection alone proves nothing: the broker is asked, and answers."""

    async def scenario() -> None:
        async with controllers.broker_set(2) as (first, second):
            leader = await controllers.leader()
            for _ in range(5):
                first.drop_connections()
                await first.has_beaten(2)
            now = await controllers.info()
            assert (now["masterId"], now["masterEpoch"]) == (1, 1)
            assert leader.events("expired") == []
            await first.die()
            await second.hears(masterId=2)

    run(scenario())


def test_a_master_lost_without_a_quorum_is_replaced_when_it_returns(
    controllers: Any,
) -> None:
    """The master is killed while the controllers have no majority, which then returns; the election
    is repeated (apache/rocketmq#5009)."""

    async def scenario() -> None:
        async with controllers.broker_set(2) as (first, second):
            leader = await controllers.leader()
            others = [n for n in controllers.nodes.values() if n is not leader]
            for node in others:
                node.send_signal(signal.SIGSTOP)
            await first.die()

            async def steps_down() -> bool:
                state = (await controllers.describe(leader.folder.name))["state"]
                return bool(state != "leader")

            await eventually(steps_down)
            for node in others:
                node.send_signal(signal.SIGCONT)
            await second.hears(masterId=2, masterEpoch=2)

    run(scenario())


def test_a_paused_leader_comes_back_as_a_follower(controllers: Any) -> None:
    """Check-quorum and the lease: after its pause it answers nothing from memory."""

    async def scenario() -> None:
        async with controllers.broker_set(2):
            old = await controllers.leader()
            old.send_signal(signal.SIGSTOP)

            async def another() -> bool:
                for name, node in controllers.nodes.items():
                    if node is not old:
                        with suppress(*LOST):
                            if (await controllers.describe(name))["state"] == "leader":
                                return True
                return False

            await eventually(another)
            old.send_signal(signal.SIGCONT)
            pool = Pool(1)
            reply = await pool.ask(old.address, Op.REPLICA_INFO, {"brokerName": "b"}, 5)
            pool.close()
            assert reply["code"] == Status.NOT_LEADER

            async def follows() -> bool:
                state = await controllers.describe(old.folder.name)
                leader = await controllers.leader()  # perhaps `old`, which has not heard yet
                return bool(state["leaderId"] == leader.folder.name)

            await eventually(follows)

    run(scenario())


def test_a_minority_changes_nothing(controllers: Any) -> None:
    """Raft 5.3: alone, a controller answers NOT_LEADER or that the outcome is unknown."""

    async def scenario() -> None:
        async with controllers.broker_set(1):
            leader = await controllers.leader()
            for node in controllers.nodes.values():
                if node is not leader:
                    node.send_signal(signal.SIGSTOP)
            fields = {"namespace": "n", "key": "k", "value": "v"}
            pool = Pool(1)
            reply = await pool.ask(leader.address, Op.KV_PUT, fields, 10)
            pool.close()
            assert reply["code"] in (Status.SYSTEM_ERROR, Status.NOT_LEADER)

    run(scenario())
