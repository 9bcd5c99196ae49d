"""Flotilla without controllers whose brokers elect their master by votes (haMode raft-log)."""

import asyncio
import signal
from collections.abc import Callable

import pytest
from simulated_fleet import (
    BROKER_SET,
    HOME,
    QUEUES,
    TOPIC,
    Fleet,
    Sailor,
    acknowledged,
    eventually,
)

from clusters.flotilla.client import CallOutcome
from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.wire import Op, PullReply, PullRequest
from clusters.flotilla.store import record

BROKERS = ("broker-1", "broker-2", "broker-3")


async def whole(sailor: Sailor) -> str:
    """Wait until all replicas are in step; return the master."""

    async def look() -> str:
        now = await sailor.cluster_state()
        return now.masters[BROKER_SET] if now.redundant else ""

    return await eventually(look)


async def master(sailor: Sailor) -> str:
    async def look() -> str:
        return (await sailor.cluster_state()).masters.get(BROKER_SET, "")

    return await eventually(look)


def between(
    fleet: Fleet, node: str, others: tuple[str, ...], act: Callable[[str, str], None]
) -> None:
    """Cut or heal the network between a node and others, both ways."""
    here = fleet.aboard[node].node.address
    for other in others:
        there = fleet.aboard[other].node.address
        fleet.world.after(0, act, here, there)
        fleet.world.after(0, act, there, here)


def reigns(fleet: Fleet) -> dict[int, list[str]]:
    """The brokers that became master, by term."""
    found: dict[int, list[str]] = {}
    for name in fleet.nodes("broker"):
        for row in fleet.events(name, "role"):
            if row["role"] == "master":
                found.setdefault(row["epoch"], []).append(name)
    return found


def records(fleet: Fleet, name: str) -> list[record.RecordHeader]:
    """The records of a broker's log, which is in one segment."""
    content = fleet.aboard[name].disk.file(f"{HOME}/store/commitlog/{0:020d}")
    return list(record.entries(content.read(content.size, 0), 0))


def test_the_others_elect_and_have_what_was_acknowledged() -> None:
    """The old master returns as a slave; each term has one master, and begins with a record of its
    own, which holds no message."""
    fleet = Fleet(1, "raft-log")

    async def scenario(sailor: Sailor) -> None:
        kept: set[bytes] = set()
        for _ in range(3):
            old = await whole(sailor)
            got = acknowledged(await sailor.send(60))
            assert len(got) == 60
            await sailor.kill(old)
            assert (await sailor.new_master(old)).masters[BROKER_SET] != old
            await sailor.start(old)
            kept |= got
        assert await whole(sailor)
        read = await sailor.read_all()
        assert kept <= set(read)
        assert len(read) == 3 * 60  # and nothing else: consumers see no record of a term's begin

    fleet.sail(scenario)
    assert not fleet.nodes("controller")
    terms = reigns(fleet)
    assert len(terms) >= 4
    assert all(len(names) == 1 for names in terms.values())
    for name in BROKERS:
        first = {}
        for each in records(fleet, name):
            first.setdefault(each.epoch, each)
        assert first.keys() <= terms.keys()
        assert all(not each.topic for each in first.values())


def test_a_master_that_is_cut_off_acknowledges_nothing() -> None:
    """What it appends is of unknown outcome, which is no refusal; it steps down by itself, and cuts
    that off when it returns."""
    fleet = Fleet(2, "raft-log", {"retryTimesWhenSendFailed": 0, "pollNameServerInterval": 60_000})

    async def scenario(sailor: Sailor) -> None:
        old = await whole(sailor)
        await sailor.send(40)
        others = tuple(name for name in BROKERS if name != old)
        between(fleet, old, others, fleet.network.cut)
        await asyncio.sleep(0.001)
        late = await sailor.send(10)
        assert not acknowledged(late)
        assert any(result.outcome is CallOutcome.UNKNOWN for result in late.values())
        assert not any("IN_SYNC" in result.error for result in late.values())
        await sailor.new_master(old)

        async def deposed() -> bool:
            return fleet.events(old, "role")[-1]["role"] == "fenced"

        assert await eventually(deposed)
        between(fleet, old, others, fleet.network.heal)
        assert await whole(sailor) != old
        ends = (await sailor.cluster_state()).detail
        assert len({ends[name]["maxOffset"] for name in BROKERS}) == 1
        assert len(await sailor.read_all()) == 40

    fleet.sail(scenario)
    assert any(
        row["before"] > row["point"] for name in BROKERS for row in fleet.events(name, "truncate")
    )


def test_a_minority_elects_nobody_and_may_be_read() -> None:
    """Two of three are gone: no master, whatever the third one has; `slaveReadEnable` reads it."""
    fleet = Fleet(3, "raft-log", {"slaveReadEnable": True})

    async def scenario(sailor: Sailor) -> None:
        old = await whole(sailor)
        sent = acknowledged(await sailor.send(40))
        await whole(sailor)
        await asyncio.sleep(1)  # until slaves know that all of it is committed
        left, gone = [name for name in BROKERS if name != old]
        await sailor.kill(gone)
        assert len(acknowledged(await sailor.send(20))) == 20  # two of three are enough
        await asyncio.sleep(1)
        await sailor.kill(old)
        assert not acknowledged(await sailor.send(10, 0.3))
        assert (await sailor.cluster_state()).masters == {}
        calls, address = sailor.client.calls, fleet.address(left)
        found = set()
        for queue in range(QUEUES):
            packed = PullRequest(TOPIC, queue, 0, 32, 0).pack()
            pulled = PullReply.unpack(await calls.call(address, Op.PULL, packed, 1.0))
            found |= {message.body for message in pulled.messages}
        assert sent <= found
        await sailor.start(gone)
        assert await master(sailor) == left  # the log of the other one ends earlier
        await sailor.start(old)
        await whole(sailor)

    fleet.sail(scenario)


def test_the_end_of_an_old_term_is_decided_without_a_message() -> None:
    """A power cut of all at once. The next term's first record commits what is left of the log, all
    of it on disks, and clients are served then."""
    fleet = Fleet(4, "raft-log-sync-flush")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        sending = asyncio.ensure_future(sailor.send(50))
        await asyncio.sleep(0.3)
        for name in BROKERS:
            await sailor.power_cut(name)
        results = await sending
        for name in BROKERS:
            await sailor.power_on(name)
        leads = await whole(sailor)
        now = (await sailor.cluster_state()).detail[leads]
        assert now["confirmOffset"] == now["maxOffset"]
        read = await sailor.read_all()
        assert 0 < len(acknowledged(results)) < 50
        assert acknowledged(results) <= set(read)

    fleet.sail(scenario)


def test_two_brokers_tolerate_no_loss_and_one_needs_no_votes() -> None:
    fleet = Fleet(5, "raft-log", nodes={"broker": 2})

    async def scenario(sailor: Sailor) -> None:
        first = await whole(sailor)
        await sailor.kill("broker-1" if first == "broker-2" else "broker-2")
        assert not acknowledged(await sailor.send(10, 0.1))

        async def headless() -> bool:
            return not (await sailor.cluster_state()).masters

        assert await eventually(headless)

    fleet.sail(scenario)
    alone = Fleet(6, "raft-log", nodes={"broker": 1})

    async def lonely(sailor: Sailor) -> None:
        await whole(sailor)
        assert len(acknowledged(await sailor.send(10))) == 10

    alone.sail(lonely)


def test_a_term_is_never_begun_twice() -> None:
    """Not even by brokers that lose power at the moment when they become master."""
    fleet = Fleet(7, "raft-log")

    async def scenario(sailor: Sailor) -> None:
        await whole(sailor)
        for _ in range(8):
            leads = await master(sailor)
            before = sum(map(len, reigns(fleet).values()))
            await sailor.power_cut(leads)
            await sailor.power_on(leads)

            for _ in range(20_000):
                if sum(map(len, reigns(fleet).values())) > before:
                    break
                await asyncio.sleep(0.0005)
            assert sum(map(len, reigns(fleet).values())) > before
        await whole(sailor)

    fleet.sail(scenario)
    assert all(len(names) == 1 for names in reigns(fleet).values())


def test_a_damaged_vote_stops_the_broker() -> None:
    fleet = Fleet(8, "raft-log")

    async def scenario(sailor: Sailor) -> None:
        old = await whole(sailor)
        await sailor.kill(old)
        fleet.aboard[old].disk.put(f"{HOME}/store/ballot", b'{"term":1}')
        await sailor.start(old)
        await asyncio.sleep(1)
        assert fleet.process(old) is None
        assert "could vote twice" in fleet.latest[old].error_lines[-1]

    fleet.sail(scenario)


@pytest.mark.parametrize("flush", ["raft-log", "raft-log-sync-flush"])
def test_nameservers_know_the_elected_master_by_its_term(flush: str) -> None:
    fleet = Fleet(9, flush)

    async def scenario(sailor: Sailor) -> None:
        old = await whole(sailor)
        await sailor.kill(old)
        now = await sailor.new_master(old)
        nameserver = fleet.address("nameserver-1")

        async def known() -> bool:
            asked = {"brokerName": BROKER_SET}
            reply = await sailor.client.calls.ask(nameserver, Op.MEMBER_GROUP, asked)
            address = fleet.address(now.masters[BROKER_SET])
            epoch = now.epochs[BROKER_SET]
            return (reply["members"].get("0"), reply["stateVersion"]) == (address, epoch)

        assert await eventually(known)

    fleet.sail(scenario)


def test_a_vote_ends_the_copying() -> None:
    """Before it is answered: a later acknowledgement could count for what the winner lacks."""
    fleet = Fleet(11, "raft-log", {"haHousekeepingInterval": 60_000})

    async def scenario(sailor: Sailor) -> None:
        old = await whole(sailor)
        one, other = [name for name in BROKERS if name != old]
        epoch = (await sailor.cluster_state()).epochs[BROKER_SET]
        for name in (old, other):
            process = fleet.process(name)
            assert process
            fleet.world.after(0, process.signal, signal.SIGSTOP)
        asked = {
            "brokerName": BROKER_SET,
            "from": f"n{BROKERS.index(other)}",
            "lastEpoch": epoch,
            "maxOffset": 1 << 30,
            "pre": False,
        }
        calls, address = sailor.client.calls, fleet.address(one)

        async def voted() -> bool:
            assert (await sailor.admin.describe(address))["connected"] == "transfer"
            reply = await calls.ask(address, Op.VOTE, {**asked, "term": epoch + 1})
            return bool(reply["granted"])

        assert await eventually(voted)  # refused while it does not doubt its master
        assert (await sailor.admin.describe(address))["connected"] == "idle"
        with pytest.raises(CallRefused, match="n7 of set-1 is not one of dLegerPeers of set-1"):
            await calls.ask(address, Op.VOTE, {**asked, "from": "n7", "term": 99})

    fleet.sail(scenario)


def test_a_slow_network_has_a_master() -> None:
    """An answer may take longer than the time between two beats; what counts is the time after
    which brokers doubt their master."""
    fleet = Fleet(10, "raft-log", {"heartBeatTimeIntervalMs": 500}, nodes={"broker": 2})
    one, two = (fleet.aboard[name].node.address for name in ("broker-1", "broker-2"))
    for here, there in ((one, two), (two, one)):
        fleet.network.link(here, there).slow_down(27_000_000, 0, 0.0)

    async def scenario(sailor: Sailor) -> None:
        first = await whole(sailor)
        assert len(acknowledged(await sailor.send(20))) == 20
        assert await whole(sailor) == first

    fleet.sail(scenario)
