"""Conversion of a running broker set between its modes (docs/flotilla-conversion.md)."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from simulated_fleet import BROKER_SET, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client.calls import CALL_ERRORS
from clusters.flotilla.conversion.coordinator import Conversion, ConversionRefused
from clusters.flotilla.net.wire import Json, Op, Status

BROKERS = ("broker-1", "broker-2", "broker-3")
CYCLE = ("switchless", "raft-log", "controller", "raft-log", "switchless", "controller")
PAIRS_CYCLE = ("switchless", "zookeeper", "raft-log", "zookeeper", "controller", "zookeeper")
BeforeStep = Callable[[str, str], None]  # a broker's address, a step


def conversion(sailor: Sailor, mode: str, before: BeforeStep | None = None) -> Conversion:
    async def ask(address: str, op: Op, fields: Json) -> Json | None:
        if before:
            before(address, fields["step"])
            await asyncio.sleep(0.001)  # until a process that was killed is gone
        try:
            return await sailor.admin.ask(address, op, fields)
        except CALL_ERRORS:
            return None

    addresses = [sailor.fleet.address(name) for name in sailor.fleet.nodes("broker")]
    order = sailor.admin.order
    return Conversion(BROKER_SET, mode, addresses, ask, order, lambda: asyncio.sleep(0.1))


async def converted(sailor: Sailor, mode: str) -> tuple[str, int]:
    """Run the command again and again until it succeeds; return mode and generation."""

    async def attempt() -> tuple[str, int] | None:
        try:
            now = await conversion(sailor, mode).run()
        except ConversionRefused:
            return None
        return now.mode, now.number

    return await eventually(attempt)


async def whole(sailor: Sailor) -> int:
    """Wait until all replicas are in step; return the epoch."""

    async def look() -> int:
        now = await sailor.cluster_state()
        return now.epochs[BROKER_SET] if now.redundant else 0

    return await eventually(look)


@pytest.mark.parametrize(
    ("profile", "configured", "cycle"),
    [("converting", "controller", CYCLE), ("converting-pair", "zookeeper", PAIRS_CYCLE)],
)
def test_a_set_goes_through_all_modes_under_load(
    profile: str, configured: str, cycle: Sequence[str]
) -> None:
    """Nothing acknowledged is lost, no send fails, and epochs rise over each border."""
    fleet = Fleet(1, profile)

    async def scenario(sailor: Sailor) -> None:
        epochs, kept = [await whole(sailor)], set[bytes]()
        for number, mode in enumerate(cycle, start=1):
            sending = asyncio.ensure_future(sailor.send(60, 0.02))
            await asyncio.sleep(0.4)
            now = await conversion(sailor, mode).run()
            assert (now.mode, now.number) == (mode, number)
            results = await sending
            assert acknowledged(results) == set(results)
            kept |= acknowledged(results)
            epochs.append(await whole(sailor))
        assert epochs == sorted(set(epochs))
        assert kept <= set(await sailor.read_all())

    fleet.sail(scenario)
    for broker in fleet.nodes("broker"):
        rows = [(row["generation"], row["mode"]) for row in fleet.events(broker, "mode")]
        assert rows == list(enumerate((configured, *cycle)))


@pytest.mark.parametrize(
    ("start", "to"),
    [
        ((), "switchless"),
        ((), "raft-log"),
        (("switchless",), "controller"),
        (("raft-log",), "switchless"),
        (("raft-log",), "controller"),
    ],
)
@pytest.mark.parametrize("killed_before", ["prepare slave", "commit", "commit slave"])
def test_the_master_dies_in_the_middle(start: Sequence[str], to: str, killed_before: str) -> None:
    """The same command ends it: it goes on if the master's disk has the new generation, else what
    slaves have promised is withdrawn, and the set is converted from the beginning."""
    fleet = Fleet(2, "converting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        for mode in start:
            await converted(sailor, mode)
        await whole(sailor)
        first = acknowledged(await sailor.send(30))
        master = (await sailor.cluster_state()).masters[BROKER_SET]
        wanted, _, which = killed_before.partition(" ")
        killed: list[str] = []

        def kill(address: str, step: str) -> None:
            is_master = address == fleet.address(master)
            if step == wanted and is_master == (which == "") and not killed:
                killed.append(master)
                process = fleet.process(master)
                assert process
                sailor.world.after(0, process.kill)

        with suppress(ConversionRefused):  # nothing is refused if all others have followed
            await conversion(sailor, to, kill).run()
        assert killed
        await sailor.start(master)
        assert await converted(sailor, to) == (to, len(start) + 1)
        await whole(sailor)
        second = acknowledged(await sailor.send(30))
        assert len(first) == len(second) == 30
        assert first | second <= set(await sailor.read_all())

    fleet.sail(scenario)


def test_a_set_without_one_of_its_brokers_is_not_converted() -> None:
    """It may be the one whose disk decides. The set goes on as it was."""
    fleet = Fleet(3, "converting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await sailor.kill("broker-3")
        with pytest.raises(ConversionRefused, match="all 3 brokers of the set must answer, and 2"):
            await conversion(sailor, "raft-log").run()
        await asyncio.sleep(2)  # until the set has shrunk
        assert len(acknowledged(await sailor.send(20))) == 20

    fleet.sail(scenario)
    assert not fleet.events("broker-1", "prepared")


def test_a_broker_that_missed_the_conversion_is_refused_until_it_follows() -> None:
    fleet = Fleet(4, "converting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await converted(sailor, "switchless")
        await whole(sailor)
        now = await sailor.cluster_state()
        late = next(name for name in BROKERS if name != now.masters[BROKER_SET])

        def kill(address: str, step: str) -> None:
            if step == "commit" and address == fleet.address(late):
                process = fleet.process(late)
                if process:
                    sailor.world.after(0, process.kill)

        with pytest.raises(ConversionRefused, match="does not answer; run the command again"):
            await conversion(sailor, "controller", kill).run()
        await sailor.start(late)

        async def refused() -> bool:
            master = now.masters[BROKER_SET]
            rows = fleet.events(master, "handshake")
            return any(r.get("slaveGeneration") == 1 and r["generation"] == 2 for r in rows)

        assert await eventually(refused)

        async def others_in_set() -> bool:
            in_set = (await sailor.cluster_state()).in_set
            return in_set == tuple(name for name in BROKERS if name != late)

        assert await eventually(others_in_set)
        assert await converted(sailor, "controller") == ("controller", 2)
        await whole(sailor)

    fleet.sail(scenario)


def test_a_late_step_of_an_earlier_attempt_is_refused() -> None:
    """It would withdraw a promise on which the master's commit counts."""
    fleet = Fleet(5, "converting")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        now = await sailor.cluster_state()
        master = now.masters[BROKER_SET]
        slave = next(name for name in BROKERS if name != master)

        async def step(name: str, kind: str, **fields: object) -> Json:
            asked: Json = {"brokerName": BROKER_SET, "step": kind, **fields}
            return await sailor.admin.ask(fleet.address(name), Op.CONVERT, asked)

        ready = await step(master, "prepare", attempt=5, mode="raft-log")
        assert ready["code"] == Status.SUCCESS
        new = {"number": 1, "master": ready["masterId"], "epoch": ready["epoch"]}
        promise = {**new, "attempt": 5, "mode": "raft-log", "end": ready["end"]}
        assert (await step(slave, "prepare", **promise))["code"] == Status.SUCCESS
        for kind in ("abort", "prepare"):
            late = await step(slave, kind, **{**promise, "attempt": 4})
            assert late["remark"] == "attempt 5 is later"
        assert (await step(slave, "status"))["pending"]["number"] == 1
        assert (await step(master, "commit", **{**promise, "attempt": 4}))["code"] != 0
        assert await converted(sailor, "raft-log") == ("raft-log", 1)
        await whole(sailor)

    fleet.sail(scenario)


def test_no_set_is_converted_to_a_mode_in_which_it_would_have_no_master() -> None:
    """Nothing has changed when no coordinator answers; a set of three cannot be a pair."""
    fleet = Fleet(6, "converting-pair")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        await conversion(sailor, "switchless").run()
        await whole(sailor)
        for name in fleet.nodes("coordinator"):
            await sailor.kill(name)
        with pytest.raises(ConversionRefused, match="no server of zkServers answers"):
            await conversion(sailor, "zookeeper").run()
        assert len(acknowledged(await sailor.send(20))) == 20
        for name in fleet.nodes("coordinator"):
            await sailor.start(name)
        assert await converted(sailor, "zookeeper") == ("zookeeper", 2)
        assert len(acknowledged(await sailor.send(20))) == 20

    fleet.sail(scenario)
    trio = Fleet(7, "converting")

    async def refused(sailor: Sailor) -> None:
        await whole(sailor)
        with pytest.raises(ConversionRefused, match="a broker without zkServers is one of"):
            await conversion(sailor, "zookeeper").run()

    trio.sail(refused)
