"""A simulated cluster whose controllers compact their logs, return late, join and leave."""

import asyncio
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import tomli_w
from simulated_fleet import (
    BROKER_SET,
    CONFIG,
    Fleet,
    Sailor,
    acknowledged,
    eventually,
)

from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.client.kv import ControllerRegisters
from clusters.flotilla.client.outcomes import CallOutcome
from clusters.flotilla.net.connection import Pool
from clusters.flotilla.net.controller_client import ControllerClient, NoLeader, OutcomeUnknown
from clusters.flotilla.net.wire import MAX_FRAME, Json, Op, Status
from clusters.flotilla.raft.node import MAX_ENTRY_BYTES

NEWCOMER = "controller-4"


class GrowingFleet(Fleet):
    """Three controllers, and a fourth that belongs to no group."""

    def __init__(self, seed: int, settings: Mapping[str, Any]) -> None:
        super().__init__(seed, settings=settings, nodes={"controller": 4})
        for name, aboard in self.aboard.items():
            if name != "client-1":
                file = aboard.disk.file(CONFIG)
                config = tomllib.loads(file.read(file.size, 0).decode())
                self._leave_out(name, config)
                aboard.disk.put(CONFIG, tomli_w.dumps(config).encode())

    def _leave_out(self, name: str, config: dict[str, Any]) -> None:
        address = self.address(NEWCOMER)
        if "controllerAddr" in config:
            config["controllerAddr"].remove(address)
        if "controllerDLegerPeers" in config:
            del config["controllerDLegerPeers"][NEWCOMER]
        if name == NEWCOMER:
            config["controllerDLegerPeers"] = {}


async def ask(sailor: Sailor, op: Op, **fields: Any) -> Json:
    """Return the leader's answer, whichever controller leads."""
    fleet = sailor.fleet
    link = ControllerClient(tuple(fleet.address(name) for name in fleet.nodes("controller")), 1.0)

    async def attempt() -> Json | None:
        try:
            reply = await link.ask(op, fields)
        except (NoLeader, OutcomeUnknown):
            return None
        return reply if reply["code"] != Status.SYSTEM_BUSY else None

    reply = await eventually(attempt)
    link.close()
    return reply


async def described(sailor: Sailor, name: str) -> Json:
    async def attempt() -> Json | None:
        with suppress(*CALL_ERRORS):
            return await sailor.admin.describe(sailor.fleet.address(name))
        return None

    return await eventually(attempt)


async def voters(sailor: Sailor, wanted: set[str]) -> None:
    """Wait until every controller that is a voter knows that these are all."""
    pool = Pool(1.0)

    async def look() -> bool:
        for name in wanted:
            address = sailor.fleet.address(name)
            answer = await pool.ask(address, Op.CONTROLLER_METADATA, {}, 1.0)
            if set(answer["peers"]) != wanted or answer["learners"]:
                return False
        return True

    await eventually(look)
    pool.close()


async def make_lead(sailor: Sailor, wanted: str) -> None:
    """Kill other leaders until this one leads."""
    while (leader := (await sailor.healthy()).controller_leader) != wanted:
        await sailor.kill(leader)

        async def another(old: str = leader) -> bool:
            return (await sailor.cluster_state()).controller_leader not in ("", None, old)

        await eventually(another)
        await sailor.start(leader)


@pytest.mark.parametrize("seed", range(2))
def test_a_controller_that_was_away_for_longer_than_the_log_comes_back(seed: int) -> None:
    """Raft 7: by the leader's snapshot. Then it leads, and knows all decisions made without it; all
    controllers restart from snapshots, too."""
    fleet = Fleet(seed, settings={"raftSnapshotEntries": 4})

    async def scenario(sailor: Sailor) -> None:
        standing = await sailor.healthy()
        away = next(n for n in fleet.nodes("controller") if n != standing.controller_leader)
        last = (await described(sailor, away))["lastIndex"]
        await sailor.power_cut(away)
        for turn in range(4):
            await ask(
                sailor,
                Op.ELECT_MASTER,
                brokerName=BROKER_SET,
                brokerId=1 + turn % 3,
                designate=True,
            )
            await healthy_without(sailor, away)
        leader = (await sailor.cluster_state()).controller_leader
        there = await described(sailor, leader)
        assert there["firstIndex"] > last + 1, "what it lacks is compacted away"
        await sailor.power_on(away)

        async def caught_up() -> bool:
            return (await described(sailor, away))["firstIndex"] > last + 1

        await eventually(caught_up)
        await make_lead(sailor, away)
        now = (await described(sailor, away))["sets"][BROKER_SET]
        assert now["masterEpoch"] >= there["sets"][BROKER_SET]["masterEpoch"]
        for name in fleet.nodes("controller"):
            await sailor.power_cut(name)
        await asyncio.sleep(1)
        for name in fleet.nodes("controller"):
            await sailor.power_on(name)
        await sailor.healthy()
        again = (await described(sailor, away))["sets"][BROKER_SET]
        assert again["masterEpoch"] >= now["masterEpoch"]

    fleet.sail(scenario)


@pytest.mark.parametrize("flavour", ["dledger", "jraft"])
def test_what_no_follower_could_be_sent_is_refused_and_decisions_go_on(flavour: str) -> None:
    """Raft 5.3: the request fits into the client's frame, and would not fit into an Append's. In
    the log it would end every connection to a follower."""
    fleet = Fleet(1, settings={"controllerType": flavour})

    async def scenario(sailor: Sailor) -> None:
        leader = (await sailor.healthy()).controller_leader
        [away, *_] = [name for name in fleet.nodes("controller") if name != leader]
        await sailor.kill(away)
        registers = ControllerRegisters([fleet.address(leader)])
        refused = await registers.put("n", "k", "x" * (MAX_FRAME - 110))
        assert refused.outcome is CallOutcome.REFUSED
        assert "the maximum is" in refused.error
        large = "x" * (MAX_ENTRY_BYTES - 1000)
        assert (await registers.put("n", "k", large)).outcome is CallOutcome.HAPPENED
        await sailor.start(away)
        await sailor.healthy()
        assert (await registers.get("n", "k")).value == large
        registers.close()

    fleet.sail(scenario)


async def healthy_without(sailor: Sailor, away: str) -> None:
    async def look() -> bool:
        now = await sailor.cluster_state()
        return now.redundant and bool(now.controller_leader)

    await eventually(look)


@pytest.mark.parametrize(
    ("seed", "settings"),
    [(1, {}), (2, {"raftSnapshotEntries": 3}), (3, {"controllerType": "jraft"})],
    ids=["entries", "snapshots", "jraft"],
)
def test_a_fourth_controller_replaces_the_first_under_load(
    seed: int, settings: Mapping[str, Any]
) -> None:
    """Thesis 4: added, caught up, and the first one removed while messages flow. The new one then
    leads, deposes no master, since it has received heartbeats, and replaces a dead master."""
    fleet = GrowingFleet(seed, settings)

    async def scenario(sailor: Sailor) -> None:
        epoch = (await sailor.healthy()).epochs[BROKER_SET]
        sending = asyncio.ensure_future(sailor.send(500, every_s=0.02))
        address = fleet.address(NEWCOMER)
        for _ in range(2):  # to ask again is no mistake
            answer = await ask(sailor, Op.CHANGE_CONTROLLERS, add={NEWCOMER: address})
            assert answer["code"] == Status.SUCCESS
        await voters(sailor, {"controller-1", "controller-2", "controller-3", NEWCOMER})
        answer = await ask(sailor, Op.CHANGE_CONTROLLERS, remove="controller-1")
        assert answer["code"] == Status.SUCCESS
        await voters(sailor, {"controller-2", "controller-3", NEWCOMER})
        await sailor.kill("controller-1")
        await make_lead(sailor, NEWCOMER)
        await asyncio.sleep(3)  # longer than a broker may be silent
        now = await sailor.healthy()
        assert now.epochs[BROKER_SET] == epoch, "no master was deposed"
        old = now.masters[BROKER_SET]
        await sailor.kill(old)
        await sailor.new_master(old)
        await sailor.start(old)
        got = acknowledged(await sending)
        await sailor.healthy()
        assert got <= set(await sailor.read_all())

    fleet.sail(scenario)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "either add"),
        ({"add": {"a": "10.0.0.9:1", "b": "10.0.0.9:2"}}, "one controller"),
        ({"add": {"x" * 300: "10.0.0.9:1"}}, "255 bytes"),
        ({"add": {"x": "nowhere"}}, "ip:port"),
        ({"add": {"x": "h" * 300 + ":1"}}, "ip:port"),
        ({"add": {"controller-2": "10.0.0.9:1"}}, "remove it first"),
        ({"remove": 3}, "either add"),
        ({"add": {"\ud800": "10.0.0.9:1"}}, "255 bytes"),
        ({"remove": "\ud800"}, "either add"),
    ],
)
def test_a_change_without_sense_is_refused(fields: Json, why: str) -> None:
    """INVALID_REQUEST with one sentence, and nothing has changed."""
    fleet = Fleet(seed=1)

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        reply = await ask(sailor, Op.CHANGE_CONTROLLERS, **fields)
        assert reply["code"] == Status.INVALID_REQUEST
        assert why in reply["remark"]
        answer = await ask(sailor, Op.CONTROLLER_METADATA)
        assert set(answer["peers"]) == set(fleet.nodes("controller"))

    fleet.sail(scenario)
