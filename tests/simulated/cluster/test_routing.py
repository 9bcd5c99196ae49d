"""Nameservers, routes and producers that choose queues, with whole clusters in a simulated world.

Times are RocketMQ's own (timeScale 1) where a test is about seconds.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
from simulated_fleet import TOPIC, Fleet, Sailor, acknowledged, eventually

from clusters.flotilla.client import CallOutcome, ClientSettings, ClusterClient, SendResult
from clusters.hosts._world.world import SECOND

REAL = {"timeScale": 1.0}
NAMESERVER = "nameserver-1"


@dataclass(frozen=True)
class Sent:
    """A send: begin and end in seconds, and its outcome."""

    began_s: float
    ended_s: float
    result: SendResult

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s


def now_s(sailor: Sailor) -> float:
    return sailor.world.now_ns / SECOND


async def load(sailor: Sailor, seconds: float, every_s: float = 0.01) -> list[Sent]:
    """Send with queues that the producer chooses; return the sends in the order of their ends."""
    sent: list[Sent] = []
    count = round(seconds / every_s)

    def ended(began_s: float, result: SendResult) -> None:
        sent.append(Sent(began_s, now_s(sailor), result))

    for number in range(count):
        body, done = b"message %d" % number, partial(ended, now_s(sailor))
        sailor.client.producer.send(TOPIC, None, b"k", body, done)
        await asyncio.sleep(every_s)

    async def all_ended() -> bool:
        return len(sent) == count

    await eventually(all_ended)
    return sent


def cut(sailor: Sailor, one: str, others: list[str], change: str = "cut") -> None:
    """Between a node and others, in both directions."""
    mine = sailor.fleet.aboard[one].host.address
    for other in others:
        theirs = sailor.fleet.aboard[other].host.address
        for a, b in ((mine, theirs), (theirs, mine)):
            sailor.world.after(0, getattr(sailor.fleet.network, change), a, b)


async def members(sailor: Sailor) -> Mapping[int, str]:
    """Return the members of set-1, as the nameserver has them."""
    return await sailor.admin.member_group(sailor.fleet.address(NAMESERVER), "set-1")


async def until(sailor: Sailor, condition: Callable[[Mapping[int, str]], bool]) -> float:
    """Return the seconds until the member group of set-1 is as wanted."""
    began = now_s(sailor)

    async def look() -> bool:
        return condition(await members(sailor))

    await eventually(look)
    return now_s(sailor) - began


# ------------------------------------------------------------------------------ several broker sets


@pytest.mark.parametrize("avoid", [False, True], ids=["plain", "sendLatencyFaultEnable"])
def test_sends_go_on_when_a_whole_broker_set_is_killed(avoid: bool) -> None:
    """Two sets of four queues (seed: DZone): all brokers of A die, B takes over within a second."""
    settings = {**REAL, "brokerSets": 2, "sendLatencyFaultEnable": avoid}
    fleet = Fleet(1, "allack-min2", settings, nodes={"broker": 6}, topics={TOPIC: 8})
    first, second = (fleet.layout.sets[n].nodes for n in (0, 1))

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        loading = asyncio.ensure_future(load(sailor, 10))
        await asyncio.sleep(3)
        died = now_s(sailor)
        for name in first:
            await sailor.kill(name)
        sent = await loading
        assert {one.result.outcome for one in sent} == {CallOutcome.HAPPENED}
        assert max(b.ended_s - a.ended_s for a, b in pairwise(sent)) < 1.0
        before = {one.result.address for one in sent if one.ended_s < died}
        after = {one.result.address for one in sent if one.began_s > died}
        assert after <= {fleet.address(name) for name in second}
        assert after < before

    fleet.sail(scenario)


def test_a_hung_broker_is_fused_off_in_milliseconds() -> None:
    """Seed 003: 30 s until it leaves the list by ordinary means, milliseconds with the breaker."""
    settings = {**REAL, "brokerSets": 2}
    fleet = Fleet(2, "allack-min2", settings, nodes={"broker": 6}, topics={TOPIC: 8})

    async def scenario(sailor: Sailor) -> None:
        hung = (await sailor.healthy()).masters["set-1"]
        loading = asyncio.ensure_future(load(sailor, 6, every_s=0.002))
        await asyncio.sleep(3)
        process = fleet.process(hung)
        assert process
        at = now_s(sailor)
        sailor.world.after(0, process.pause)
        sent = await loading
        slow = [one for one in sent if one.ended_s > at and one.took_s > 0.1]
        assert slow, "what had gone to it before has to wait"
        trials = [one for one in slow if one.began_s > at + 0.1]
        assert len(trials) <= 1, "a half-open breaker lets one through in two seconds"
        assert {one.result.outcome for one in sent if one not in slow} == {CallOutcome.HAPPENED}

    fleet.sail(scenario)


def test_masters_of_three_sets_die_in_turn_and_a_lagging_slave_is_never_elected() -> None:
    """Three sets under one controller group. A slave that lags has left the set (3S)."""
    settings = {"brokerSets": 3}
    fleet = Fleet(3, "allack-min2", settings, nodes={"broker": 9}, topics={TOPIC: 6})

    async def scenario(sailor: Sailor) -> None:
        for broker_set in fleet.layout.sets:
            standing = await sailor.healthy()
            master = standing.masters[broker_set.name]
            lagging, fit = [name for name in broker_set.nodes if name != master]
            cut(sailor, lagging, [name for name in broker_set.nodes if name != lagging])
            await sailor.send(20)

            async def left(lagging: str = lagging) -> bool:
                return lagging in (await sailor.cluster_state()).out_of_set

            await eventually(left)
            assert acknowledged(await sailor.send(20))
            await sailor.kill(master)
            now = await sailor.new_master(master, broker_set.name)
            assert now.masters[broker_set.name] == fit
            cut(sailor, lagging, [name for name in broker_set.nodes if name != lagging], "heal")
            await sailor.start(master)

    fleet.sail(scenario)


# -------------------------------------------------------------------------------------- nameservers


@pytest.mark.parametrize("seed", range(3))
def test_a_nameserver_that_hung_removes_nobody_before_it_has_read_what_waits(seed: int) -> None:
    """Spec 10.1: it was silent itself, for longer than brokerChannelExpiredTime."""
    fleet = Fleet(seed, settings={"brokerChannelExpiredTime": 10_000, "timeScale": 1.0})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        process = fleet.process(NAMESERVER)
        assert process
        sailor.world.after(0, process.pause)
        await asyncio.sleep(30)
        sailor.world.after(0, process.resume)
        await asyncio.sleep(10)
        assert fleet.events(NAMESERVER, "expired") == []
        assert len(await members(sailor)) == 3

    fleet.sail(scenario)


def test_a_nameserver_that_knows_nobody_takes_no_route_away() -> None:
    """Spec 10.1: it restarts, cut off from all brokers and not from the client; the other one knows
    them, so no send fails, and a master that is elected then is found."""
    fleet = Fleet(5, "allack-min1", nodes={"nameserver": 2})

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters["set-1"]
        assert len(acknowledged(await sailor.send(20))) == 20
        cut(sailor, NAMESERVER, fleet.nodes("broker"))
        await sailor.kill(NAMESERVER)
        await sailor.start(NAMESERVER)
        await asyncio.sleep(4)  # polls of the client
        assert len(acknowledged(await sailor.send(20))) == 20
        await sailor.kill(old)
        await sailor.new_master(old)
        assert len(acknowledged(await sailor.send(20))) == 20

    fleet.sail(scenario)


def test_without_nameservers_clients_keep_their_last_route() -> None:
    """Spec 10.1: all of them are cut off for ten seconds, and no send fails."""
    fleet = Fleet(4, "allack-min2", REAL, nodes={"nameserver": 2})
    everybody = [name for name in fleet.aboard if not name.startswith("nameserver")]

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        loading = asyncio.ensure_future(load(sailor, 16))
        await asyncio.sleep(2)
        for nameserver in fleet.nodes("nameserver"):
            cut(sailor, nameserver, everybody)
        await asyncio.sleep(10)
        for nameserver in fleet.nodes("nameserver"):
            cut(sailor, nameserver, everybody, "heal")
        sent = await loading
        assert {one.result.outcome for one in sent} == {CallOutcome.HAPPENED}
        assert max(one.result.attempts for one in sent) == 1

    fleet.sail(scenario)


@pytest.mark.parametrize(
    ("lite", "least_s", "most_s"), [(True, 4, 7.5), (False, 90, 125)], ids=["lite", "legacy"]
)
def test_a_silent_broker_is_isolated(lite: bool, least_s: int, most_s: float) -> None:
    """The article: a heartbeat each second, removal after five instead of two minutes."""
    fleet = Fleet(5, "allack-min2", {**REAL, "liteHeartBeat": lite, **SPEC})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await until(sailor, lambda group: len(group) == 3)
        slave = (await sailor.cluster_state()).slaves[0]
        cut(sailor, slave, [NAMESERVER])
        await asyncio.sleep(least_s)
        assert len(await members(sailor)) == 3
        waited_s = await until(sailor, lambda group: len(group) == 2)
        assert least_s + waited_s < most_s
        cut(sailor, slave, [NAMESERVER], "heal")
        await until(sailor, lambda group: len(group) == 3)

    fleet.sail(scenario)


SPEC = {"registerNameServerPeriod": 30000, "brokerNotActiveTimeoutMillis": 5000}


def test_a_deaf_nameserver_removes_nobody() -> None:
    """The article: a jitter of its network must not remove every broker for every client at
    once."""
    fleet = Fleet(6, "allack-min2", {**REAL, **SPEC})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await until(sailor, lambda group: len(group) == 3)
        cut(sailor, NAMESERVER, fleet.nodes("broker"))
        await asyncio.sleep(20)
        assert len(await members(sailor)) == 3
        cut(sailor, NAMESERVER, fleet.nodes("broker"), "heal")
        await asyncio.sleep(20)
        assert len(await members(sailor)) == 3
        assert not fleet.events(NAMESERVER, "expired")

    fleet.sail(scenario)


def test_a_nameserver_that_starts_again_knows_everybody_in_seconds() -> None:
    """Long before the next registration: a broker that is answered that it is unknown registers."""
    fleet = Fleet(7, "allack-min2", {**REAL, **SPEC})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await until(sailor, lambda group: len(group) == 3)
        await sailor.kill(NAMESERVER)
        await sailor.start(NAMESERVER)
        await asyncio.sleep(0.5)
        assert await until(sailor, lambda group: len(group) == 3) < 4.0

    fleet.sail(scenario)


def test_brokers_learn_from_nameservers_that_the_lowest_id_is_another() -> None:
    """Spec 10.1, NOTIFY_MIN_BROKER_ID: a set that missed an election asks at once."""
    settings = {**REAL, **SPEC, "notifyBrokerRoleChanged": False}
    fleet = Fleet(8, "allack-min2", {**settings, "syncBrokerMetadataPeriod": 60000})

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters["set-1"]
        await until(sailor, lambda group: 0 in group)
        await sailor.kill(old)
        at = now_s(sailor)
        now = await sailor.new_master(old)
        serving = fleet.address(now.masters["set-1"])
        await until(sailor, lambda group: group.get(0) == serving)
        assert now_s(sailor) - at < 5.0
        assert fleet.events(NAMESERVER, "min-broker-id")

    fleet.sail(scenario)


def test_without_nameserver_and_master_the_set_is_whole_again() -> None:
    """Bug 33: slaves learn the new master's replication address from the controllers, so the set
    has two members and takes sends, although the nameserver died with the old master."""
    fleet = Fleet(11, "allack-min2", SPEC)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters["set-1"]
        await sailor.kill(NAMESERVER)
        await sailor.kill(old)
        await sailor.new_master(old)

        async def two_members() -> bool:
            now = await sailor.cluster_state()
            return len(now.in_set) == 2 and old not in now.in_set

        await eventually(two_members)
        sending = asyncio.ensure_future(load(sailor, 2))
        await sailor.start(NAMESERVER)
        assert CallOutcome.HAPPENED in {one.result.outcome for one in await sending}

    fleet.sail(scenario)


def test_an_old_master_is_not_shown_when_all_others_are_gone() -> None:
    """Cut off from controllers and slaves it goes on registering, while the set has another master;
    then that one and its slave lose power, and no other broker is left in the table."""
    fleet = Fleet(13, "allack-min1", SPEC)

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters["set-1"]
        others = [name for name in fleet.nodes("broker") if name != old]
        cut(sailor, old, [*others, *fleet.nodes("controller")])
        now = await sailor.new_master(old)
        serving = fleet.address(now.masters["set-1"])
        await until(sailor, lambda group: group.get(0) == serving)
        for name in others:
            await sailor.kill(name)
        await until(sailor, lambda group: serving not in group.values())
        await asyncio.sleep(35)
        assert await members(sailor) == {}
        assert {row["masterAddr"] for row in fleet.events(NAMESERVER, "stale")} == {
            fleet.address(old)
        }

    fleet.sail(scenario)


@pytest.mark.parametrize("old_lives", [False, True], ids=["dead", "cut off"])
def test_a_nameserver_that_does_not_hear_the_new_master_misleads_nobody(old_lives: bool) -> None:
    """It hears only the old master, which dies, or goes on registering there. Another nameserver
    knows the new one; the client asked the first, and its messages are stored."""
    fleet = Fleet(6, "allack-min1", REAL, nodes={"nameserver": 2})

    async def scenario(sailor: Sailor) -> None:
        old = (await sailor.healthy()).masters["set-1"]
        assert acknowledged(await sailor.send(5))
        slaves = [name for name in fleet.nodes("broker") if name != old]
        cut(sailor, NAMESERVER, slaves)
        if old_lives:
            cut(sailor, old, [*slaves, *fleet.nodes("controller"), "nameserver-2"])
        else:
            await sailor.kill(old)
        await sailor.new_master(old)
        await asyncio.sleep(60)
        await sailor.send(20)  # the first ones find the route out
        assert len(acknowledged(await sailor.send(20))) == 20

    fleet.sail(scenario)


def test_a_dead_nameserver_holds_up_nobody() -> None:
    """Bug 16: each nameserver has its own task and connection. One of two is cut off for good; the
    other one goes on hearing every broker."""
    fleet = Fleet(12, "allack-min2", {**REAL, **SPEC}, nodes={"nameserver": 2})

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        await until(sailor, lambda group: len(group) == 3)
        cut(sailor, "nameserver-2", fleet.nodes("broker"))
        await asyncio.sleep(30)
        assert not fleet.events(NAMESERVER, "expired")
        assert len(await members(sailor)) == 3

    fleet.sail(scenario)


def test_the_detector_finds_out_that_a_broker_is_back() -> None:
    """Spec 10.2, startDetectorEnable: probes reach it, and no send has to try."""
    chosen = {"sendLatencyFaultEnable": True, "startDetectorEnable": True, "brokerSets": 2}
    fleet = Fleet(13, "allack-min2", {**REAL, **chosen}, nodes={"broker": 6}, topics={TOPIC: 8})

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters["set-1"]
        faults = sailor.client.producer._faults
        assert faults
        loading = asyncio.ensure_future(load(sailor, 4))
        await asyncio.sleep(1)
        await sailor.kill(master)
        await loading
        address = fleet.address(master)
        assert not faults.reachable(address)
        await sailor.start(master)
        began = now_s(sailor)

        async def reachable() -> bool:
            return faults.reachable(address)

        await eventually(reachable)
        assert now_s(sailor) - began < 8.0

    fleet.sail(scenario)


# ------------------------------------------------------------------------------- three ways to send


def test_a_send_can_be_awaited_and_one_can_be_let_go() -> None:
    """Sync, with its own retries; one-way, without an answer."""
    fleet = Fleet(9, "allack-min2")

    async def scenario(sailor: Sailor) -> None:
        await sailor.healthy()
        producer = sailor.client.producer
        awaited = [await producer.send_and_wait(TOPIC, b"awaited %d" % n) for n in range(8)]
        assert {result.outcome for result in awaited} == {CallOutcome.HAPPENED}
        assert all(producer.send_oneway(TOPIC, b"one way %d" % n) for n in range(8))

        async def all_there() -> bool:
            return len(await sailor.read_all()) == 16

        await eventually(all_there)

    fleet.sail(scenario)


def test_each_way_has_its_own_number_of_tries() -> None:
    """retryTimesWhenSendFailed for awaited sends, retryTimesWhenSendAsyncFailed for the others."""
    fleet = Fleet(10, "allack-min2")
    tries = {"retryTimesWhenSendFailed": 4, "retryTimesWhenSendAsyncFailed": 1}

    async def scenario(sailor: Sailor) -> None:
        now = await sailor.healthy()
        for name in now.slaves:
            await sailor.kill(name)
        await asyncio.sleep(3)  # the master is alone in its set, and refuses to be
        client = ClusterClient(
            ClientSettings.of({**fleet.client_settings, **tries, "sendMsgTimeout": 60000})
        )
        client.start()
        ended: list[SendResult] = []
        client.producer.send(TOPIC, None, b"", b"x", ended.append)
        result = await client.producer.send_and_wait(TOPIC, b"x")
        await eventually(partial(_is, lambda: bool(ended)))
        assert (result.attempts, ended[0].attempts) == (5, 2)
        client.close()

    fleet.sail(scenario)


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()
