"""Every status that a producer may get, provoked in a simulated cluster.

What a client may conclude from each is `client/outcomes.py`; its tests are test_client_outcomes.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from quorum_stage import Stage
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, acknowledged

from clusters.flotilla.broker.sends import MAX_WAITING_SENDS
from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.wire import Op, PullReply, PullRequest, Status

Scene = Callable[[Stage], Coroutine[Any, Any, None]]
SECOND_NS = 1_000_000_000


def play(scene: Scene, profile: str = "allack-min2", **settings: Any) -> None:
    async def scenario(sailor: Sailor) -> None:
        await scene(await Stage.of(sailor))

    Fleet(1, profile, settings).sail(scenario)


def test_success() -> None:
    """Every member has it: the answer says where it is."""

    async def scene(stage: Stage) -> None:
        sent = await stage.send()
        assert (sent.status, sent.queue_offset) == (Status.SUCCESS, 0)
        assert len(await stage.holders(sent.physical_offset + 1)) == 3

    play(scene)


def test_flush_slave_timeout() -> None:
    """A member is silent, and the send's time is over before the member's is: appended, unknown."""

    async def scene(stage: Stage) -> None:
        with stage.cut_off(stage.slaves[0]):
            sent = await stage.send()
            assert sent.status is Status.FLUSH_SLAVE_TIMEOUT
            assert stage.master in await stage.holders(sent.physical_offset + 1)

    play(scene)


def test_flush_disk_timeout() -> None:
    """SYNC_FLUSH: the slaves have it on their disks, the master's own disk does not answer."""

    async def scene(stage: Stage) -> None:
        stage.fleet.aboard[stage.master].disk.delay_ns = 2 * SECOND_NS
        assert (await stage.send()).status is Status.FLUSH_DISK_TIMEOUT

    play(scene, "sync-flush")


def test_slave_not_available() -> None:
    """The master stepped down while the send waited: it is in the log and may survive."""

    async def scene(stage: Stage) -> None:
        lost = [*stage.slaves, *stage.controllers]
        with stage.parted((stage.master,), lost):
            waiting = asyncio.ensure_future(stage.send())
            await stage.sailor.new_master(stage.master)
        sent = await waiting
        assert (sent.status, sent.epoch) == (Status.SLAVE_NOT_AVAILABLE, 1)
        assert sent.physical_offset >= 0

    play(scene, slaveTimeout=200_000)


def test_in_sync_replicas_not_enough() -> None:
    """The set is smaller than minInSyncReplicas: nothing is appended."""

    async def scene(stage: Stage) -> None:
        with stage.cut_off(*stage.slaves):
            await stage.until_members(stage.master)
            before = (await stage.describe(stage.master))["maxOffset"]
            sent = await stage.send()
            assert (sent.status, sent.physical_offset) == (Status.IN_SYNC_REPLICAS_NOT_ENOUGH, -1)
            assert (await stage.describe(stage.master))["maxOffset"] == before

    play(scene)


def test_service_not_available() -> None:
    """A slave serves no sends, and neither does a broker whose set has no master yet."""

    async def scene(stage: Stage) -> None:
        assert (await stage.send(stage.slaves[0])).status is Status.SERVICE_NOT_AVAILABLE
        for name in stage.brokers:
            await stage.sailor.kill(name)
        for name in stage.controllers:
            await stage.sailor.kill(name)
        await stage.sailor.start(stage.master)
        await asyncio.sleep(1)
        assert (await stage.send()).status is Status.SERVICE_NOT_AVAILABLE

    play(scene)


def test_system_busy() -> None:
    """As many sends wait as may; the next one is refused, and nothing of it is appended."""

    async def scene(stage: Stage) -> None:
        with stage.cut_off(*stage.slaves):
            sent = await stage.wave(MAX_WAITING_SENDS + 1)
        statuses = [s.status for s in sent]
        assert statuses[-1] is Status.SYSTEM_BUSY
        assert set(statuses[:-1]) == {Status.FLUSH_SLAVE_TIMEOUT}

    play(scene)


@pytest.mark.parametrize(("reads", "topics"), [(False, (TOPIC, "unknown")), (True, ("unknown",))])
def test_what_a_slave_does_not_serve(reads: bool, topics: tuple[str, ...]) -> None:
    """Consumers get nothing from it, unless slaves may be read; nor then from an unknown queue,
    which its master may have. It has no range of a queue, and no metadata for another slave."""

    async def scene(stage: Stage) -> None:
        slave, calls = stage.fleet.address(stage.slaves[0]), stage.sailor.client.calls
        for topic in topics:
            pull = PullRequest(topic, 0, 0, 8, 0)
            answer = PullReply.unpack(await calls.call(slave, Op.PULL, pull.pack(), 1.0))
            assert answer.status is Status.SERVICE_NOT_AVAILABLE
        sync = {"brokerId": 2, "addr": "10.9.9.9:1", "version": [0, 0], "waitMs": 0}
        for op, fields in (
            (Op.QUEUE_RANGE, {"topic": TOPIC, "queueId": 0}),
            (Op.METADATA_SYNC, sync),
        ):
            with pytest.raises(CallRefused) as refused:
                await calls.ask(slave, op, fields)
            assert refused.value.status is Status.SERVICE_NOT_AVAILABLE

    play(scene, slaveReadEnable=reads)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"body": b"x" * 3000}, Status.MESSAGE_ILLEGAL),
        ({"queue": 99}, Status.MESSAGE_ILLEGAL),
        ({"topic": "nobody"}, Status.TOPIC_NOT_EXIST),
    ],
)
def test_messages_that_no_master_takes(asked: dict[str, Any], status: Status) -> None:
    """Too long, for a queue that is not there, or of an unknown topic."""

    async def scene(stage: Stage) -> None:
        sent = await stage.send(**asked)
        assert (sent.status, sent.physical_offset) == (status, -1)

    play(scene, maxMessageSize=2000)


def test_the_old_master_waits_for_nobody_s_word() -> None:
    """Without a lease, a master that is cut off keeps its role and acknowledges nothing."""

    async def scene(stage: Stage) -> None:
        lost = [*stage.slaves, *stage.controllers]
        with stage.parted((stage.master,), lost):
            await stage.sailor.new_master(stage.master)
            assert (await stage.describe(stage.master))["role"] == "master"
            assert (await stage.send()).status is Status.FLUSH_SLAVE_TIMEOUT
        assert (await stage.sailor.healthy()).masters[BROKER_SET] != stage.master

    play(scene)


@pytest.mark.parametrize("timeout_ms", [1e12, 0, -1])
def test_a_handover_without_end_is_refused(timeout_ms: float) -> None:
    """Sends are held during a handover; the time for which they are held is limited."""

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        master = now.masters[BROKER_SET]
        assert master
        fields = {"masterEpoch": now.epochs[BROKER_SET], "to": 99, "timeoutMs": timeout_ms}
        with pytest.raises(CallRefused, match="timeoutMs must be above 0 and at most 60000"):
            await sailor.client.calls.ask(sailor.fleet.address(master), Op.HAND_OVER, fields)
        assert len(acknowledged(await sailor.send(4))) == 4

    Fleet(1, "allack-min2").sail(scenario)
