"""What a leader of the mode jraft puts into the log, and when.

Raft is played: it commits when the test says so, and applies with the real state machine.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from clusters.flotilla.controllers.consensus import ControllerAccess
from clusters.flotilla.controllers.controller_state import ApplyBrokerId, ElectMaster, apply_all
from clusters.flotilla.controllers.elect import BrokerStatus
from clusters.flotilla.controllers.jraft import MAX_LEVELS, Jraft
from clusters.flotilla.controllers.liveness import Heartbeat, HeartbeatTable, Key, LocalLiveness
from clusters.flotilla.controllers.state_machine import LeaderSettings, ReplicatedState, apply_entry
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.raft.node import Indeterminate, NotLeader
from clusters.flotilla.rules import RULES

KEY = ("b", 1)
TERMS = LeaderSettings(unclean=False, policy="water-level", grace_s=10)


class Raft:
    """A controller that leads."""

    def __init__(self, write_timeout_s: float = 60, agreed: ReplicatedState | None = None) -> None:
        self.agreed = agreed or ReplicatedState()
        self.waiting: list[tuple[bytes, asyncio.Future[Any]]] = []
        self.reports: list[tuple[str, Key]] = []
        self.leads = True
        liveness = LocalLiveness(10, RULES.heartbeat_expired)
        self.liveness = liveness
        self.mode = Jraft(
            ControllerAccess(
                RULES,
                TERMS,
                write_timeout_s,
                0.0,
                liveness,
                lambda: self.agreed,
                lambda: self.leads,
                self._propose,
                self._read,
                lambda: {"code": Status.NOT_LEADER},
                lambda keys: self.reports.extend(("heard", key) for key in keys),
                lambda keys, why: self.reports.extend((why, key) for key in keys),
            )
        )

    @property
    def kinds(self) -> list[str]:
        return [str(json.loads(data)["kind"]) for data, _ in self.waiting]

    def _propose(self, data: bytes) -> "asyncio.Future[Any]":
        self.waiting.append((data, asyncio.get_running_loop().create_future()))
        return self.waiting[-1][1]

    def _read(self) -> Awaitable[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def commit(self) -> None:
        """Commit all proposals made until now."""
        waiting, self.waiting = self.waiting, []
        for data, outcome in waiting:
            taken = apply_entry(self.agreed, data, RULES)
            self.agreed = taken.state
            self.mode.on_applied(taken)
            outcome.set_result(taken.reply)
        await turns()

    async def lead(self) -> None:
        self.mode.on_leading(lambda: None)
        await self.commit()

    def hear(self, number: int, broker_id: int = 1, life: int = 1) -> None:
        beat = Heartbeat(("b", broker_id), "ip:1", 10, 1, number, 0, 9, life, number)
        self.mode.on_heartbeat(beat, 1)

    def ask(self, op: Op, **fields: Any) -> "asyncio.Task[Json]":
        return asyncio.ensure_future(self.mode.submit(op, fields))


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
async def test_heartbeats_share_an_entry_while_another_is_under_way() -> None:
    """Many heartbeats, few entries; only the last one of each broker is kept."""
    raft = Raft()
    await raft.lead()
    for number in range(1, 6):
        raft.hear(number)
    assert raft.kinds == ["hear"]
    await raft.commit()
    assert raft.reports == [("heard", KEY)]
    [(data, _)] = raft.waiting
    assert [row["beat"] for row in json.loads(data)["content"]] == [5]
    await raft.commit()
    assert (raft.waiting, raft.agreed.heartbeats.rows[KEY].heartbeat.beat) == ([], 5)


@scenario
async def test_no_command_goes_before_a_heartbeat_that_came_before_it() -> None:
    """A broker that was heard must not be found silent, nor be missing in an election."""
    raft = Raft()
    await raft.lead()
    raft.hear(1)
    raft.hear(2)
    asked = raft.ask(Op.KV_PUT, namespace="n", key="k", value="v")
    await turns()
    assert raft.kinds == ["hear", "hear", "request"]
    await raft.commit()
    assert (await asked).get("code", Status.SUCCESS) == Status.SUCCESS
    assert raft.agreed.heartbeats.rows[KEY].heartbeat.beat == 2


@scenario
async def test_nothing_is_decided_before_the_new_clock_counts() -> None:
    """Requests and heartbeats of a reign follow its `lead`."""
    raft = Raft()
    raft.mode.on_leading(lambda: None)
    raft.hear(1)
    assert (await raft.ask(Op.KV_PUT, namespace="n", key="k", value="v"))["code"] == (
        Status.NOT_LEADER
    )
    assert raft.kinds == ["lead"]
    await raft.commit()
    raft.hear(2)
    assert raft.kinds == ["hear"]


@scenario
async def test_a_reign_that_ended_before_it_began_decides_nothing() -> None:
    """`lead` is committed when another controller leads."""
    raft, begun = Raft(), []
    raft.mode.on_leading(lambda: begun.append(True))
    raft.mode.on_deposed()
    await raft.commit()
    assert not begun
    assert (await raft.ask(Op.KV_GET, namespace="n", key="k"))["code"] == Status.NOT_LEADER


@scenario
async def test_what_closed_before_this_controller_led_is_told_when_it_leads() -> None:
    """The leader died together with the master, and its follower saw both (apache/rocketmq#5711). A
    broker that has started again since is left alone."""
    first = Raft()
    await first.lead()
    for broker_id in (1, 2):
        first.hear(1, broker_id)
        await first.commit()
        await first.commit()
    next_one = Raft(agreed=first.agreed)
    for broker_id in (1, 2):
        next_one.hear(1, broker_id)
        next_one.mode.on_gone(("b", broker_id), "closed")
    assert next_one.waiting == []
    first.hear(1, broker_id=2, life=2)
    await first.commit()
    next_one.agreed = first.agreed
    await next_one.lead()
    await next_one.commit()
    assert next_one.reports == [("closed", KEY)]
    at = next_one.mode.context()
    assert [at.status("b", i) for i in (1, 2)] == [BrokerStatus.DEAD, BrokerStatus.ALIVE]


@scenario
async def test_after_a_silence_of_all_the_first_heartbeat_speaks_for_the_others() -> None:
    """In the log, so controllers of every edition reach the same state: the others' time restarts,
    brokers known to be gone stay dead, and none was late before."""
    raft = Raft(agreed=ReplicatedState(heartbeats=silent_set(gone=3)))
    raft.mode.check_heartbeats()
    await turns()
    assert raft.kinds == []
    await raft.lead()
    raft.agreed = ReplicatedState(heartbeats=silent_set(gone=3))
    raft.mode.check_heartbeats()
    await asyncio.sleep(0)
    raft.hear(9, broker_id=2)
    assert raft.kinds == ["hear"]
    await raft.commit()
    pulses = raft.agreed.heartbeats.rows
    assert [pulses["b", i].heartbeat.beat for i in (1, 2, 3)] == [5, 9, 5]
    assert pulses["b", 1].at == pulses["b", 2].at
    assert pulses["b", 3].gone
    raft.hear(10, broker_id=2)
    [(data, _)] = raft.waiting
    assert len(json.loads(data)["content"]) == 1


@scenario
async def test_nobody_is_spoken_for_in_another_life() -> None:
    """It does not have the bytes that its former process reported, and which process is the later
    one is not known."""
    raft = Raft()
    await raft.lead()
    raft.agreed = ReplicatedState(heartbeats=silent_set())
    raft.liveness.on_heartbeat(Heartbeat(("b", 1), "ip:1", 10, 1, 5, 0, 9, 2, 1), 1, 0.0)
    raft.hear(9, broker_id=2)
    [(data, _)] = raft.waiting
    assert sorted(row["key"] for row in json.loads(data)["content"]) == [["b", 2], ["b", 3]]


def silent_set(gone: int | None = None) -> HeartbeatTable:
    """Three brokers, none of which was heard for two timeouts."""
    heard_at = asyncio.get_running_loop().time() - 20
    beats = [Heartbeat(("b", i), "ip:1", 10, 1, 5, 0, 9, 1, 5) for i in (1, 2, 3)]
    living, _ = HeartbeatTable().with_heartbeats(beats, heard_at)
    return living.without([("b", gone)])[0] if gone else living


@scenario
async def test_answers_say_what_is_certain() -> None:
    """Replaced: certainly no effect. Leadership lost, or no majority in time: unknown."""
    raft = Raft()
    await raft.lead()
    ends = [(NotLeader(), Status.NOT_LEADER), (Indeterminate(), Status.SYSTEM_ERROR)]
    for failure, expected in ends:
        asked = raft.ask(Op.KV_PUT, namespace="n", key="k", value="v")
        await turns()
        raft.waiting.pop()[1].set_exception(failure)
        assert (await asked)["code"] == expected
    hasty = Raft(write_timeout_s=0.01)
    await hasty.lead()
    assert (await hasty.ask(Op.KV_PUT, namespace="n", key="k", value="v"))["code"] == (
        Status.SYSTEM_ERROR
    )


@scenario
async def test_nobody_is_replaced_before_the_reign_is_in_the_log() -> None:
    """Until `lead` is applied the heartbeat table is read by another machine's clock, and a living
    master would be deposed. The scan's timer does not wait for that."""
    events = [ApplyBrokerId("c", "b", 1, "ip:1", "ha:1", "c1"), ElectMaster("b", 1, "broker")]
    raft = Raft(agreed=ReplicatedState(apply_all({}, events), {}, HeartbeatTable({}, 0.0)))
    early = await raft.mode.replace("b", "scan")
    assert (early["code"], raft.kinds) == (Status.NOT_LEADER, [])
    await raft.lead()
    asked = asyncio.ensure_future(raft.mode.replace("b", "scan"))
    await turns()
    await raft.commit()
    assert (await asked, raft.agreed.sets["b"].master_id) == ({}, 1)


@scenario
async def test_what_some_could_not_read_does_not_go_into_the_log() -> None:
    """Each controller parses a request, and Python's parser goes only as deep as the stack allows:
    2 kB of brackets must stop neither the leader nor its followers."""
    raft = Raft()
    await raft.lead()
    for levels in (MAX_LEVELS, 300, 900):
        lists: list[Any] = []
        for _ in range(levels - 1):
            lists = [lists]
        refused = await raft.mode.submit(Op.KV_PUT, {"namespace": lists, "key": "k"})
        assert (refused["code"], raft.kinds) == (Status.INVALID_REQUEST, [])
    sound = raft.ask(Op.KV_PUT, namespace="n", key="k", value=None)
    await turns()
    await raft.commit()
    assert await sound == {}
