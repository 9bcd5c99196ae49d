"""Controllers of both types in a simulated cluster: elections, handovers, registers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client import CallOutcome
from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.client.kv import ControllerRegisters
from clusters.flotilla.net.connection import Pool, Unreachable
from clusters.flotilla.net.controller_client import ControllerClient
from clusters.flotilla.net.wire import Json, Op, Status

FLAVOURS = pytest.mark.parametrize("flavour", ["dledger", "jraft"])


def sail(
    flavour: str, seed: int, scenario: Callable[[Sailor], Awaitable[None]], **settings: Any
) -> Fleet:
    async def story(sailor: Sailor) -> None:
        await scenario(sailor)

    fleet = Fleet(seed, settings={"controllerType": flavour, **settings})
    fleet.sail(story)
    return fleet


def elections(fleet: Fleet) -> list[Json]:
    rows = [e for name in fleet.nodes("controller") for e in fleet.events(name, "election")]
    return sorted(rows, key=lambda row: int(row["epoch"]))


async def leader(sailor: Sailor) -> str:
    async def look() -> str | None:
        return (await sailor.cluster_state()).controller_leader

    return await eventually(look)


async def pause(sailor: Sailor, name: str) -> None:
    process = sailor.fleet.process(name)
    assert process
    sailor.world.after(0, process.pause)
    await asyncio.sleep(0.001)


async def resume(sailor: Sailor, name: str) -> None:
    process = sailor.fleet.process(name)
    assert process
    sailor.world.after(0, process.resume)
    await asyncio.sleep(0.001)


async def in_epoch(sailor: Sailor, epoch: int) -> None:
    """Wait until the controllers have reached this epoch; a hung broker need not report it."""

    async def look() -> bool:
        try:
            info = (await sailor.admin.sync_state_data(BROKER_SET))[BROKER_SET]
        except Unreachable:
            return False
        return bool(info["masterEpoch"] == epoch)

    await eventually(look)


async def drill(sailor: Sailor, to: int | None = None) -> Json:
    return await sailor.admin.drill(BROKER_SET, to)


# elections


@FLAVOURS
@pytest.mark.parametrize("seed", range(2))
def test_master_and_leading_controller_may_die_together(flavour: str, seed: int) -> None:
    """Bugs 12 and 13: the next leader knows which broker died, and what was acknowledged stays."""

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        old, chief = now.masters[BROKER_SET], await leader(sailor)
        sending = asyncio.ensure_future(sailor.send(200))
        await asyncio.sleep(0.3)
        await sailor.kill(chief)
        await sailor.kill(old)
        await sailor.new_master(old)
        for name in (chief, old):
            await sailor.start(name)
        got = acknowledged(await sending)
        await sailor.healthy()
        assert got <= set(await sailor.read_all())

    sail(flavour, seed, scenario)


@FLAVOURS
def test_a_hung_master_is_replaced_whoever_leads(flavour: str) -> None:
    """Bugs 10, 11 and 13: silence is noticed, even by a leader that has just been elected."""

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        await sailor.kill(await leader(sailor))
        await leader(sailor)
        await pause(sailor, old)
        await in_epoch(sailor, 2)
        await resume(sailor, old)

    fleet = sail(flavour, 4, scenario)
    assert [e["trigger"] for e in elections(fleet)] == ["broker", "expired"]


@FLAVOURS
def test_nobody_is_elected_without_need(flavour: str) -> None:
    """Bugs 11 and 14: a sound cluster under load keeps its master, even if the controllers change
    their leader."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await sailor.send(200, every_s=0.05)
        await sailor.kill(await leader(sailor))
        await sailor.send(100, every_s=0.05)

    fleet = sail(flavour, 5, scenario)
    assert [e["trigger"] for e in elections(fleet)] == ["broker"]


# cleaning


async def cleaned(sailor: Sailor, *broker_ids: int, living: bool) -> Json:
    addresses = [sailor.fleet.address(n) for n in sailor.fleet.nodes("controller")]
    controllers = ControllerClient(tuple(addresses), 1)
    fields = {"brokerName": BROKER_SET, "brokerIds": list(broker_ids), "cleanLiving": living}
    try:
        return await controllers.ask(Op.CLEAN_BROKER_DATA, fields)
    finally:
        controllers.close()


def cleanings(sailor: Sailor, controller: str) -> list[tuple[str, list[int]]]:
    rows = sailor.fleet.events(controller, "cleaned")
    return [(row["brokerName"], row["brokerIds"]) for row in rows]


async def members(sailor: Sailor) -> Json:
    found: Json = (await sailor.admin.sync_state_data(BROKER_SET))[BROKER_SET]["members"]
    return found


@FLAVOURS
def test_a_dead_member_is_cleaned_and_may_come_back(flavour: str) -> None:
    """Spec 4.5, cleanBrokerData: living members are refused; a removed one returns with its
    old id."""

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        slave = next(n for n in sailor.fleet.nodes("broker") if n != now.masters[BROKER_SET])
        address = sailor.fleet.address(slave)
        [number] = [int(i) for i, m in (await members(sailor)).items() if m["addr"] == address]
        refused = await cleaned(sailor, number, living=False)
        assert refused["code"] == Status.INVALID_CLEAN_BROKER_METADATA
        await sailor.kill(slave)

        async def gone() -> bool:
            return (await cleaned(sailor, number, living=False))["code"] == Status.SUCCESS

        await eventually(gone)
        assert str(number) not in await members(sailor)
        await sailor.start(slave)
        await sailor.healthy()
        assert (await members(sailor))[str(number)]["addr"] == address
        told = [e for name in sailor.fleet.nodes("controller") for e in cleanings(sailor, name)]
        assert told == [(BROKER_SET, [number])], "the leader tells of it, once"

    sail(flavour, 9, scenario)


@FLAVOURS
def test_a_living_master_that_is_cleaned_away_loses_nothing(flavour: str) -> None:
    """Forced: the set elects another, and the removed one registers again with its old id."""

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        info = (await sailor.admin.sync_state_data(BROKER_SET))[BROKER_SET]
        sending = asyncio.ensure_future(sailor.send(300))
        await asyncio.sleep(0.5)
        assert (await cleaned(sailor, info["masterId"], living=True))["code"] == Status.SUCCESS
        await sailor.new_master(old)
        got = acknowledged(await sending)
        await sailor.healthy()
        assert sorted(await members(sailor)) == ["1", "2", "3"]
        assert got <= set(await sailor.read_all())

    sail(flavour, 10, scenario)


# planned handovers


@FLAVOURS
@pytest.mark.parametrize("seed", range(2))
def test_a_handover_under_load_fails_no_send(flavour: str, seed: int) -> None:
    """Spec 5.1, operator: sends wait for the new master, and none is lost or fails."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        sending = asyncio.ensure_future(sailor.send(900, every_s=0.001))
        for _ in range(3):
            await asyncio.sleep(0.2)
            await sailor.healthy()
            reply = await drill(sailor)
            assert reply["code"] == Status.SUCCESS, reply
        results = await sending
        assert {r.outcome for r in results.values()} == {CallOutcome.HAPPENED}
        assert max(r.attempts for r in results.values()) <= 2
        assert set(results) == set(await sailor.read_all())

    fleet = sail(flavour, seed, scenario)
    assert [e["trigger"] for e in elections(fleet)] == ["broker", "drill", "drill", "drill"]


def test_a_handover_goes_to_whom_it_should() -> None:
    """Spec 4.5: to the named broker, if it is in the set and alive; a master keeps its role."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        assert (await drill(sailor, 2))["masterId"] == 2
        await sailor.healthy()
        assert (await drill(sailor, 2))["code"] == Status.MASTER_STILL_EXIST
        assert (await drill(sailor, 7))["code"] == Status.ELECT_MASTER_FAILED
        unknown = await sailor.admin.drill("nobody", None)
        assert unknown["code"] == Status.BROKER_METADATA_NOT_EXIST

    sail("dledger", 6, scenario)


def test_a_successor_that_does_not_catch_up_is_not_elected() -> None:
    """The master goes on, and appends the sends that it held: only time is lost."""

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        slave = next(n for n in sailor.fleet.nodes("broker") if n != old)
        info = (await sailor.admin.sync_state_data(BROKER_SET))[BROKER_SET]
        address = sailor.fleet.address(slave)
        [to] = [int(i) for i, m in info["members"].items() if m["addr"] == address]
        sending = asyncio.ensure_future(sailor.send(100))
        await asyncio.sleep(0.3)
        await pause(sailor, slave)
        await asyncio.sleep(0.02)
        refused = await drill(sailor, to)
        assert refused["code"] == Status.ELECT_MASTER_FAILED, refused
        assert "in time" in refused["remark"]
        await resume(sailor, slave)
        results = await sending
        assert {r.outcome for r in results.values()} == {CallOutcome.HAPPENED}
        assert (await sailor.healthy()).masters[BROKER_SET] == old

    fleet = sail("dledger", 7, scenario)
    assert len(elections(fleet)) == 1


def test_a_master_whose_controllers_fall_silent_goes_on() -> None:
    """A handover that is never finished: held sends are served after the timeout."""

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters[BROKER_SET]
        described = await sailor.admin.describe(sailor.fleet.address(old))
        to = next(i for i in described["set"] if i != described["masterId"])
        fields = {"masterEpoch": described["masterEpoch"], "to": to, "timeoutMs": 100}
        pool = Pool(1)
        reply = await pool.ask(sailor.fleet.address(old), Op.HAND_OVER, fields, 1)
        assert reply["code"] == Status.SUCCESS
        results = await sailor.send(20)
        assert {r.outcome for r in results.values()} == {CallOutcome.HAPPENED}
        stale = {**fields, "masterEpoch": described["masterEpoch"] - 1}
        reply = await pool.ask(sailor.fleet.address(old), Op.HAND_OVER, stale, 1)
        pool.close()
        assert reply["code"] == Status.FENCED_MASTER_EPOCH

    fleet = sail("dledger", 8, scenario)
    assert len(elections(fleet)) == 1


SELDOM = {"syncSlaveMetadataPeriod": 600_000}  # a minute here: no slave asks by itself


async def committed(sailor: Sailor, group: str) -> int:
    """Return the committed offset of the group, once a broker answers."""

    async def look() -> tuple[int] | None:
        with suppress(*CALL_ERRORS):
            return (await sailor.client.consumer.committed(group, TOPIC, 0),)
        return None

    return (await eventually(look))[0]


@pytest.mark.parametrize("strict", [False, True])
def test_metadata_goes_with_the_mastership(strict: bool) -> None:
    """Spec 10.4: the successor asks for new metadata before the old master gives up, however rarely
    slaves do; also the second time, when all slaves have been connected for long."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await sailor.send(40)
        for turn in range(1, 4):
            await sailor.client.consumer.commit("g", TOPIC, 0, turn)
            await sailor.client.topics.create(f"made-{turn}", 2)
            reply = await drill(sailor)
            assert reply["code"] == Status.SUCCESS, reply
            await sailor.healthy()
            assert await committed(sailor, "g") == turn
            assert f"made-{turn}" in await sailor.client.topics.list_queues()

    sail("dledger", 3, scenario, strictMetadata=strict, **SELDOM)


def test_a_commit_waits_while_the_mastership_moves() -> None:
    """Otherwise a master whose successor has stopped asking it would answer it."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await sailor.send(400, every_s=0.001)

        async def until_refused() -> int:
            """The last offset that was committed."""
            with suppress(*CALL_ERRORS):
                for offset in range(1, 101):
                    await sailor.client.consumer.commit("g", TOPIC, 0, offset)
            return offset - 1

        for _ in range(3):
            committing = asyncio.ensure_future(until_refused())
            await asyncio.sleep(0.01)
            reply = await drill(sailor)
            assert reply["code"] == Status.SUCCESS, reply
            latest = await committing
            assert await committed(sailor, "g") >= latest > 0
            await sailor.healthy()
            await sailor.client.consumer.reset("g", TOPIC, 0, 0)

    for seed in range(4):
        sail("dledger", seed, scenario, **SELDOM)


# registers


@FLAVOURS
@pytest.mark.parametrize("seed", range(2))
def test_a_counter_in_a_register_loses_no_step(flavour: str, seed: int) -> None:
    """Linearizable compare-and-set while leaders die: the counter has each acknowledged step and no
    refused one, and no read goes back."""

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        addresses = [sailor.fleet.address(n) for n in sailor.fleet.nodes("controller")]
        happened = unknown = 0

        async def count(registers: ControllerRegisters) -> None:
            nonlocal happened, unknown
            seen = 0
            for _ in range(60):
                least = max(seen, happened)
                read = await registers.get("test", "counter")
                if read.outcome is CallOutcome.HAPPENED:
                    at = int(read.value or 0)
                    assert at >= least, "an acknowledged step is not seen"
                    seen = at
                    step = await registers.cas(
                        "test", "counter", expected=read.value, value=str(at + 1)
                    )
                    happened += step.outcome is CallOutcome.HAPPENED
                    unknown += step.outcome is CallOutcome.UNKNOWN
                await asyncio.sleep(0.05)

        clients = [ControllerRegisters(addresses, 0.5) for _ in range(3)]
        counting = asyncio.gather(*map(count, clients))
        for _ in range(2):
            await asyncio.sleep(0.7)
            chief = await leader(sailor)
            await sailor.kill(chief)
            await asyncio.sleep(0.3)
            await sailor.start(chief)
        await counting

        async def last() -> int | None:
            read = await clients[0].get("test", "counter")
            return int(read.value or 0) if read.outcome is CallOutcome.HAPPENED else None

        assert happened <= await eventually(last) <= happened + unknown
        assert happened > 20

    sail(flavour, seed, scenario)
