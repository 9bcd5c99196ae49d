"""The laws that are checked while a world runs: each is violated in some test, and none without a
reason.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from simulated_fleet import BROKER_SET, CONFIG, EVENTS, HOME, Fleet, Sailor

from clusters.flotilla.client import CallOutcome
from clusters.flotilla.client.kv import ControllerRegisters
from clusters.flotilla.controllers.elect import Ballot
from clusters.flotilla.net.wire import Status
from clusters.flotilla.node import serve
from clusters.flotilla.raft.messages import LogEntry, VoteRequest
from clusters.flotilla.raft.votes import Voter
from clusters.flotilla.replication import sync_state
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.quorum import LogPosition, SendTimeouts
from clusters.flotilla.replication.sync_state import SyncState
from clusters.flotilla.rules import RULES, Rules
from clusters.hosts._world.content import Content
from clusters.hosts._world.ports import ports_of
from clusters.hosts._world.process import SimProcess
from clusters.systems.flotilla.law_state import OF_ACTING, OF_CONTAINERS, OF_MACHINES
from clusters.systems.flotilla.laws import Law, Laws, log_bytes

SEGMENT = 1 << 22
BROKERS = ("broker-1", "broker-2", "broker-3")
SERVERS = ("controller-1", "controller-2", "controller-3", *BROKERS)


class WatchedFleet(Fleet):
    """A fleet whose every decision and event is checked."""

    def __init__(
        self,
        seed: int,
        profile: str = "sync-flush",
        settings: Mapping[str, Any] = MappingProxyType({}),
        rules: Rules = RULES,
    ) -> None:
        super().__init__(seed, profile, settings)
        self._rules = rules
        values = self.layout._settings.values
        self.laws = Laws(self.layout.sets, values, lambda: self.world.now_ns, self._log_bytes)
        for name, aboard in self.aboard.items():
            aboard.disk.on_append[EVENTS] = partial(self._wrote, name)
            aboard.host.on_power_cut.append(partial(self.laws.power_lost, name))

    def start(self, name: str) -> None:
        aboard, variant = self.aboard[name], self._rules

        async def node(process: SimProcess) -> int:
            rules = self.laws.rules(name, process.boot, variant)
            return await serve([CONFIG], lambda seed: ports_of(process, aboard.disk), rules)

        aboard.host.start(name, node)

    def _wrote(self, node: str, lines: bytes) -> None:
        for line in lines.splitlines():
            if line:
                fields = json.loads(line)
                self.laws.read_event(self.world.now_ns, node, fields["kind"], fields)

    def _log_bytes(self, node: str, start: int, end: int) -> bytes | None:
        def segment(base: int) -> Content | None:
            try:
                return self.aboard[node].disk.file(f"{HOME}/store/commitlog/{base:020d}")
            except OSError:
                return None

        return log_bytes(segment, SEGMENT, start, end)


async def storm(sailor: Sailor, seconds: float = 25.0) -> None:
    """Kills, power cuts, pauses and cut links, overlapping, under load."""
    fleet, world = sailor.fleet, sailor.world
    random = world.random("storm")
    await sailor.healthy()
    sending = asyncio.ensure_future(sailor.send(int(seconds * 20), every_s=0.05))
    end_ns, faults = world.now_ns + int(seconds * 1e9), []
    while world.now_ns < end_ns:
        fault = (_kill, _power, _pause, _cut)[int(random.random() * 4)]
        node = SERVERS[int(random.random() * len(SERVERS))]
        faults.append(asyncio.ensure_future(fault(sailor, node, 0.2 + random.random() * 3)))
        await asyncio.sleep(0.1 + random.random() * 1.5)
    await sending
    await asyncio.gather(*faults)
    for name in SERVERS:
        if fleet.process(name) is None and fleet.aboard[name].host.up:
            await sailor.start(name)
    await sailor.healthy()
    await sailor.send(20)


async def _kill(sailor: Sailor, node: str, lasts_s: float) -> None:
    if sailor.fleet.process(node):
        await sailor.kill(node)
        await asyncio.sleep(lasts_s)
        if sailor.fleet.process(node) is None and sailor.fleet.aboard[node].host.up:
            await sailor.start(node)


async def _power(sailor: Sailor, node: str, lasts_s: float) -> None:
    if sailor.fleet.aboard[node].host.up:
        await sailor.power_cut(node)
        await asyncio.sleep(lasts_s)
        if sailor.fleet.process(node) is None:
            await sailor.power_on(node)


async def _pause(sailor: Sailor, node: str, lasts_s: float) -> None:
    process = sailor.fleet.process(node)
    if process:
        sailor.world.after(0, process.pause)
        await asyncio.sleep(lasts_s)
        sailor.world.after(0, process.resume)


async def _cut(sailor: Sailor, node: str, lasts_s: float) -> None:
    _links(sailor, node, sailor.fleet.network.cut)
    await asyncio.sleep(lasts_s)
    _links(sailor, node, sailor.fleet.network.heal)


def _links(sailor: Sailor, node: str, change: Callable[[str, str], object]) -> None:
    """Between a node and all other servers; clients still reach it."""
    aboard = sailor.fleet.aboard
    mine = aboard[node].host.address
    for other in SERVERS:
        theirs = aboard[other].host.address
        if other != node:
            sailor.world.after(0, change, mine, theirs)
            sailor.world.after(0, change, theirs, mine)


# ------------------------------------------------------------------------------- no false alarms


@pytest.mark.parametrize("profile", ["sync-flush", "allack-min2", "allack-min1", "unsafe-default"])
@pytest.mark.parametrize("seed", range(2))
def test_no_law_is_broken_in_a_storm(profile: str, seed: int) -> None:
    """Kills, power cuts, pauses and cut links; what a profile permits is no violation."""
    fleet = WatchedFleet(seed, profile)
    fleet.sail(storm)
    assert fleet.laws.violations == []
    assert fleet.laws.unreadable == 0
    looked = fleet.laws.checks
    for law in (Law.ONE_LEADER, Law.ONE_MASTER, Law.ELECTED_OUTSIDE, Law.COMMITTED_CHANGED):
        assert looked[law]
    if profile == "sync-flush":
        of_others = {Law.LEASE_OVERLAP, Law.RETURNED_TOO_SOON, Law.LEADER_LACKS_COMMITTED}
        of_others |= {Law.ROUTE_OF_ZONE, Law.LED_IN_CLOSED_ZONE, Law.PROMISE_BROKEN}
        of_others |= {Law.CONVERTED_EARLY, Law.CONVERTED_UNEQUAL}
        of_others |= {Law.GENERATIONS_MIXED, Law.GENERATION_WENT_BACK} | OF_ACTING
        assert all(looked[law] for law in set(Law) - of_others - OF_CONTAINERS - OF_MACHINES), (
            looked
        )
    if profile == "unsafe-default":
        assert not looked[Law.SET_LACKS_ACKED]


def test_being_watched_changes_nothing() -> None:
    """The same seed gives the same run, with and without checks."""

    async def brief(sailor: Sailor) -> None:
        await storm(sailor, 5)

    assert WatchedFleet(7).sail(brief) == Fleet(7).sail(brief)


# ---------------------------------------------------------------------------- each law is broken


def broken_by(rules: Rules, scenario: Any, seed: int = 1, profile: str = "sync-flush") -> Laws:
    fleet = WatchedFleet(seed, profile, rules=rules)
    fleet.sail(scenario)
    return fleet.laws


async def returning_fork(sailor: Sailor) -> None:
    """A master that is cut off goes on appending; another is elected; the first one returns."""
    old = (await sailor.healthy()).masters[BROKER_SET]
    await sailor.send(20)
    _links(sailor, old, sailor.fleet.network.cut)
    sending = asyncio.ensure_future(sailor.send(40))
    await sailor.new_master(old)
    await sending
    _links(sailor, old, sailor.fleet.network.heal)
    await asyncio.sleep(5)


def test_a_log_cut_too_high() -> None:
    """A slave that keeps its fork keeps bytes that differ from its master's."""
    rules = replace(RULES, find_consistent_point=lambda local, end, remote, remote_end: end)
    assert broken_by(rules, returning_fork).counts[Law.CUT_TOO_HIGH]
    assert not broken_by(RULES, returning_fork).counts


def test_a_log_cut_too_low() -> None:
    """A slave that removes everything goes below what consumers may have read."""

    def nothing(local: EpochTable, end: int, remote: EpochTable, remote_end: int) -> int:
        return 0

    async def restarted(sailor: Sailor) -> None:
        slave = (await sailor.healthy()).slaves[0]
        await sailor.send(20)
        await sailor.kill(slave)
        await sailor.start(slave)
        await sailor.healthy()

    laws = broken_by(replace(RULES, find_consistent_point=nothing), restarted)
    assert laws.counts[Law.CUT_TOO_LOW]


def test_elected_from_outside() -> None:
    """A broker that lags behind the set becomes master: reported at once, with what it lacks."""

    def anybody(ballot: Ballot) -> int | None:
        return RULES.elect(replace(ballot, unclean=True))

    async def lone_laggard(sailor: Sailor) -> None:
        fleet, now = sailor.fleet, await sailor.healthy()
        laggard = now.slaves[0]
        await sailor.kill(laggard)
        await asyncio.sleep(3)
        await sailor.send(20)
        for name in BROKERS:
            if name != laggard:
                await sailor.kill(name)
        await sailor.start(laggard)
        await sailor.new_master(now.masters[BROKER_SET])
        assert fleet.process(laggard)

    laws = broken_by(replace(RULES, elect=anybody), lone_laggard)
    assert laws.counts[Law.ELECTED_OUTSIDE] == 1
    assert laws.counts[Law.SET_LACKS_ACKED] >= 1


def test_acknowledged_too_early() -> None:
    """A master that waits for no slave acknowledges what members of the set do not hold."""

    def alone(needed: int, end: int, acks: object, members: object, least: int) -> int:
        return end

    laws = broken_by(replace(RULES, replicated_offset=alone), _some_load)
    assert laws.counts[Law.SET_LACKS_ACKED]


def test_acknowledged_before_it_is_on_disk() -> None:
    """Under SYNC_FLUSH only flushed data counts as held."""

    def eager(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
        return written

    laws = broken_by(replace(RULES, ack_position=eager), _some_load)
    assert laws.counts[Law.SET_LACKS_ACKED]
    assert not broken_by(RULES, _some_load).counts


def answered(instead_of: Status) -> Rules:
    """The client gets SUCCESS instead of this."""

    def outcome_of(
        sent: LogPosition,
        replicated: int,
        durable: int,
        waited_s: float,
        patience: SendTimeouts,
        over: bool,
    ) -> Status | None:
        status = RULES.outcome_of(sent, replicated, durable, waited_s, patience, over)
        return Status.SUCCESS if status == instead_of else status

    return replace(RULES, outcome_of=outcome_of)


async def _copies_do_not_come(sailor: Sailor) -> None:
    """No slave copies; then there is no master any more."""
    fleet, now = sailor.fleet, await sailor.healthy()
    await sailor.send(20)
    slaves = [process for name in now.slaves if (process := fleet.process(name))]
    for process in slaves:
        sailor.world.after(0, process.pause)
    await sailor.send(20)
    old = now.masters[BROKER_SET]
    _links(sailor, old, fleet.network.cut)
    for process in slaves:
        sailor.world.after(0, process.resume)
    await sailor.send(20)
    await sailor.new_master(old)
    _links(sailor, old, fleet.network.heal)
    await asyncio.sleep(5)


@pytest.mark.parametrize(
    ("instead_of", "timeout_ms"),
    [(Status.FLUSH_SLAVE_TIMEOUT, 300), (Status.SLAVE_NOT_AVAILABLE, 60_000)],
)
def test_a_send_that_is_answered_with_more_than_is_known(
    instead_of: Status, timeout_ms: int
) -> None:
    """SUCCESS after too long a wait, or at the end of a mastership, for what was never
    acknowledged."""

    def laws(rules: Rules) -> Laws:
        fleet = WatchedFleet(1, settings={"slaveTimeout": timeout_ms}, rules=rules)
        fleet.sail(_copies_do_not_come)
        assert fleet.laws.checks[Law.ANSWERED_EARLY]
        return fleet.laws

    assert not laws(RULES).counts
    assert laws(answered(instead_of)).counts[Law.ANSWERED_EARLY]


def test_the_proposed_set_not_counted() -> None:
    """The master does not wait for a member that the controllers may have agreed to."""

    def old_set(state: SyncState) -> tuple[int, ...]:
        return sync_state.counted_members(replace(state, proposed=None))

    assert broken_by(replace(RULES, counted_members=old_set), _unanswered).counts[
        Law.SET_LACKS_ACKED
    ]
    assert not broken_by(RULES, _unanswered).counts


async def _unanswered(sailor: Sailor) -> None:
    """A master proposes a slave to controllers that no longer hear it; then the slave lags."""
    fleet, now = sailor.fleet, await sailor.healthy()
    master, slave = now.masters[BROKER_SET], now.slaves[0]
    await sailor.kill(slave)
    await asyncio.sleep(2)
    for name in fleet.nodes("controller"):
        here, there = (fleet.aboard[node].host.address for node in (master, name))
        sailor.world.after(0, fleet.network.cut, here, there)
    await sailor.start(slave)
    await asyncio.sleep(0.4)
    process = fleet.process(slave)
    assert process
    sailor.world.after(0, process.pause)
    await sailor.send(20)


def test_a_confirm_offset_that_sinks() -> None:
    """What consumers could read disappears."""

    def hesitant(stored: int, own: int, acks: Any, members: Any, all_ack: bool) -> int:
        return own - stored

    laws = broken_by(replace(RULES, confirm_offset=hesitant), _some_load)
    assert laws.counts[Law.CONFIRM_WENT_BACK]


def test_a_term_that_is_led_twice() -> None:
    """Controllers that forget their terms use them again."""

    async def all_restarted(sailor: Sailor) -> None:
        await sailor.healthy()
        controllers = [name for name in SERVERS if name not in BROKERS]
        for name in controllers:
            await sailor.kill(name)
        for name in controllers:
            await sailor.start(name)
        await asyncio.sleep(5)

    forgetful = replace(RULES, hard_state=lambda vote: type(vote)())
    assert broken_by(forgetful, all_restarted).counts[Law.ONE_LEADER]
    assert not broken_by(RULES, all_restarted).counts


def test_everybody_gets_a_vote() -> None:
    """A controller that votes for every candidate makes two leaders of one term sooner or later."""

    def always(voter: Voter, request: VoteRequest) -> bool:
        return True

    rules = replace(RULES, may_grant_vote=always)
    assert any(broken_by(rules, storm, seed).counts[Law.ONE_LEADER] for seed in range(3))


async def _some_load(sailor: Sailor) -> None:
    await sailor.healthy()
    await sailor.send(100, every_s=0.0002)  # faster than a disk syncs


def test_a_controller_that_takes_another_entry() -> None:
    """Only in a whole fleet: one applies other bytes than the others."""

    def garbled(index: int, entry: LogEntry) -> LogEntry:
        return replace(entry, data=entry.data.replace(b"orders", b"ardors")) if index > 3 else entry

    class Garbled(WatchedFleet):
        def start(self, name: str) -> None:
            garbles = name == "controller-2"
            self._rules = replace(RULES, committed_entry=garbled) if garbles else RULES
            super().start(name)

    async def registers(sailor: Sailor) -> None:
        await sailor.healthy()
        kv = ControllerRegisters(
            [sailor.fleet.address(name) for name in sailor.fleet.nodes("controller")]
        )
        assert (await kv.put("n", "orders", "1")).outcome is CallOutcome.HAPPENED
        await sailor.healthy()
        kv.close()

    for fleet, broken in ((Garbled(1), True), (WatchedFleet(1), False)):
        fleet.sail(registers)
        assert bool(fleet.laws.counts[Law.COMMITTED_CHANGED]) is broken


def test_a_slave_that_sends_nonsense() -> None:
    """It acknowledges what its master does not have: the master refuses it, and the law is
    violated."""

    def boastful(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
        return appended + 1_000_000

    laws = broken_by(replace(RULES, ack_position=boastful), _briefly)
    assert laws.counts[Law.UNACCEPTABLE]
    assert not broken_by(RULES, _some_load).counts


async def _briefly(sailor: Sailor) -> None:
    await asyncio.sleep(5)
