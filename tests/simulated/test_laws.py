"""The laws that are watched while a world runs: each is seen broken, and none without a reason."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from simulated_fleet import BROKER_SET, CONFIG, EVENTS, HOME, Fleet, Sailor

from clusters.flotilla import sync_state
from clusters.flotilla.client import Outcome
from clusters.flotilla.client.kv import Registers
from clusters.flotilla.elect import Ballot
from clusters.flotilla.epochs import EpochTable
from clusters.flotilla.node import serve
from clusters.flotilla.quorum import Patience
from clusters.flotilla.raft.messages import Entry, Kind, VoteRequest
from clusters.flotilla.raft.votes import Voter
from clusters.flotilla.rules import RULES, Rules
from clusters.flotilla.sync_state import SyncState
from clusters.flotilla.wire import Status
from clusters.hosts._simulated.content import Content
from clusters.hosts._simulated.ports import ports_of
from clusters.hosts._simulated.process import Process
from clusters.systems._flotilla_acked import Acknowledged
from clusters.systems._flotilla_laws import Law, Laws, log_bytes

SEGMENT = 1 << 22
BROKERS = ("broker-1", "broker-2", "broker-3")
SERVERS = ("controller-1", "controller-2", "controller-3", *BROKERS)


class WatchedFleet(Fleet):
    """A fleet whose every decision and event is looked at."""

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

        async def node(process: Process) -> int:
            rules = self.laws.rules(name, process.boot, variant)
            return await serve([CONFIG], lambda seed: ports_of(process, aboard.disk), rules)

        aboard.host.start(name, node)

    def _wrote(self, node: str, lines: bytes) -> None:
        for line in lines.splitlines():
            if line:
                fields = json.loads(line)
                self.laws.saw(self.world.now_ns, node, fields["kind"], fields)

    def _log_bytes(self, node: str, start: int, end: int) -> bytes | None:
        def segment(base: int) -> Content | None:
            try:
                return self.aboard[node].disk.file(f"{HOME}/store/commitlog/{base:020d}")
            except OSError:
                return None

        return log_bytes(segment, SEGMENT, start, end)


async def storm(sailor: Sailor, seconds: float = 25.0) -> None:
    """Kills, power cuts, pauses and cut links, one over the other, under load."""
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
    """Kills, power cuts, pauses and cut links; what a profile permits is no offence."""
    fleet = WatchedFleet(seed, profile)
    fleet.sail(storm)
    assert fleet.laws.broken == []
    assert fleet.laws.unseen == 0
    looked = fleet.laws.looked
    for law in (Law.ONE_LEADER, Law.ONE_MASTER, Law.ELECTED_OUTSIDE, Law.COMMITTED_CHANGED):
        assert looked[law]
    if profile == "sync-flush":
        assert all(looked[law] for law in Law), looked
    if profile == "unsafe-default":
        assert not looked[Law.SET_LACKS_ACKED]


def test_being_watched_changes_nothing() -> None:
    """The same seed gives the same run, watched or not."""

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
    """A slave that keeps its fork keeps bytes which its master has otherwise."""
    rules = replace(RULES, find_consistent_point=lambda local, end, remote, remote_end: end)
    assert broken_by(rules, returning_fork).counts[Law.CUT_TOO_HIGH]
    assert not broken_by(RULES, returning_fork).counts


def test_a_log_cut_too_low() -> None:
    """A slave that throws everything away goes below what consumers may have read."""

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
    """Whoever lags behind the set becomes master: told at once, and so is what it lacks."""

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
    """A master that waits for nobody acknowledges what members of the set do not hold."""

    def alone(needed: int, end: int, acks: object, members: object, least: int) -> int:
        return end

    laws = broken_by(replace(RULES, replicated_offset=alone), _some_load)
    assert laws.counts[Law.SET_LACKS_ACKED]


def test_acknowledged_before_it_is_on_disk() -> None:
    """Under SYNC_FLUSH only what was flushed is held."""

    def eager(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
        return written

    laws = broken_by(replace(RULES, ack_position=eager), _some_load)
    assert laws.counts[Law.SET_LACKS_ACKED]
    assert not broken_by(RULES, _some_load).counts


def answered(instead_of: Status) -> Rules:
    """The client is told SUCCESS instead of this."""

    def outcome_of(
        end: int, replicated: int, durable: int, waited_s: float, patience: Patience, over: bool
    ) -> Status | None:
        status = RULES.outcome_of(end, replicated, durable, waited_s, patience, over)
        return Status.SUCCESS if status == instead_of else status

    return replace(RULES, outcome_of=outcome_of)


async def _copies_do_not_come(sailor: Sailor) -> None:
    """Nobody copies; then nobody is master any more."""
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
    """SUCCESS after too long a wait, or at the end of a reign, for what was never acknowledged."""

    def laws(rules: Rules) -> Laws:
        fleet = WatchedFleet(1, settings={"slaveTimeout": timeout_ms}, rules=rules)
        fleet.sail(_copies_do_not_come)
        assert fleet.laws.looked[Law.ANSWERED_EARLY]
        return fleet.laws

    assert not laws(RULES).counts
    assert laws(answered(instead_of)).counts[Law.ANSWERED_EARLY]


def test_the_proposed_set_not_counted() -> None:
    """A member that the controllers may have agreed to is not waited for."""

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
    """One that votes for whoever asks makes two leaders of one term sooner or later."""

    def always(voter: Voter, request: VoteRequest) -> bool:
        return True

    rules = replace(RULES, may_grant_vote=always)
    assert any(broken_by(rules, storm, seed).counts[Law.ONE_LEADER] for seed in range(3))


async def _some_load(sailor: Sailor) -> None:
    await sailor.healthy()
    await sailor.send(100, every_s=0.0002)  # faster than a disk syncs


# ------------------------------------------------------------------------------ as it is told


@pytest.fixture
def laws() -> Laws:
    fleet = Fleet(0)
    fleet.sink()
    return Laws(fleet.layout.sets, fleet.layout._settings.values, lambda: 0)


def told(laws: Laws, node: str, kind: str, **fields: Any) -> None:
    laws.saw(5, node, kind, fields)


def test_two_masters_of_an_epoch(laws: Laws) -> None:
    """Two brokers, or one in two of its lives."""
    role = {"role": "master", "brokerId": 1, "masterId": 1, "masterAddr": "", "epoch": 3}
    told(laws, "broker-1", "start")
    told(laws, "broker-1", "role", **role)
    assert not laws.broken
    told(laws, "broker-2", "role", **{**role, "brokerId": 2, "masterId": 2})
    told(laws, "broker-1", "start")
    told(laws, "broker-1", "role", **role)
    assert [broken.law for broken in laws.broken] == [Law.ONE_MASTER, Law.ONE_MASTER]
    assert laws.broken[0].fields == {"set": BROKER_SET, "epoch": 3, "other": "broker-1"}


def test_committed_entries_that_change(laws: Laws) -> None:
    """A leader that commits another entry at an index; the same ones again are no change."""
    first = laws.rules("controller-1", 1, RULES).commit_index
    second = laws.rules("controller-2", 1, RULES).commit_index
    assert first([3, 3, 3], [0, 1, 1, 1].__getitem__, 1) == 3
    assert second([3, 3, 3], [0, 1, 1, 1].__getitem__, 1) == 3
    assert not laws.broken
    assert second([3, 3, 3], [0, 1, 2, 2].__getitem__, 2) == 3
    assert [broken.law for broken in laws.broken] == [Law.COMMITTED_CHANGED]
    assert laws.broken[0].fields == {"index": 2, "was": 1, "term": 2}


def applying(laws: Laws, node: str, boot: int = 1) -> Callable[..., Entry]:
    """What the controller makes of a committed entry, in a life of its own."""
    return laws.rules(node, boot, RULES).committed_entry


def test_followers_that_take_other_entries(laws: Laws) -> None:
    """Whoever leads: at an index all controllers take the same, now and in a later life."""
    lead, follow = applying(laws, "controller-1"), applying(laws, "controller-2")
    entry = Entry(1, b"{}")
    assert (lead(7, entry), follow(7, entry), lead(8, entry)) == (entry,) * 3
    assert applying(laws, "controller-1", 2)(7, entry) == entry
    assert not laws.broken
    for other in (Entry(2, b"{}"), Entry(1, b"{]"), Entry(1, b"{}", Kind.MEMBERS)):
        follow(7, other)
    assert [broken.law for broken in laws.broken] == [Law.COMMITTED_CHANGED] * 3
    assert {broken.node for broken in laws.broken} == {"controller-2"}


def test_a_gap_in_what_leaders_commit(laws: Laws) -> None:
    """Where a later leader has compacted away what nobody looked at, the rest is looked at."""
    terms: list[int | None] = [None, None, None, 1, 1]
    assert laws.rules("controller-1", 1, RULES).commit_index([4, 4, 4], terms.__getitem__, 1) == 4
    assert not laws.broken
    terms[4] = 2
    laws.rules("controller-2", 1, RULES).commit_index([4, 4, 4], terms.__getitem__, 2)
    assert [broken.law for broken in laws.broken] == [Law.COMMITTED_CHANGED]


def test_a_controller_that_takes_another_entry() -> None:
    """Only in a whole fleet: one flips a letter of what the others take."""

    def garbled(index: int, entry: Entry) -> Entry:
        return replace(entry, data=entry.data.replace(b"orders", b"ardors")) if index > 3 else entry

    class Garbled(WatchedFleet):
        def start(self, name: str) -> None:
            garbles = name == "controller-2"
            self._rules = replace(RULES, committed_entry=garbled) if garbles else RULES
            super().start(name)

    async def registers(sailor: Sailor) -> None:
        await sailor.healthy()
        kv = Registers([sailor.fleet.address(name) for name in sailor.fleet.nodes("controller")])
        assert (await kv.put("n", "orders", "1")).outcome is Outcome.HAPPENED
        await sailor.healthy()
        kv.close()

    for fleet, broken in ((Garbled(1), True), (WatchedFleet(1), False)):
        fleet.sail(registers)
        assert bool(fleet.laws.counts[Law.COMMITTED_CHANGED]) is broken


def confirming(laws: Laws, node: str, epoch: int) -> Callable[[int], int]:
    """The node as master of this epoch: give it the end of its log, and it confirms that."""
    told(laws, node, "start")
    decide = laws.rules(node, epoch, RULES).confirm_offset
    role = {"role": "master", "brokerId": epoch, "masterId": epoch, "masterAddr": ""}
    told(laws, node, "role", **role, epoch=epoch)
    return lambda end: decide(0, end, {}, (), True)


def test_a_reign_that_begins_with_less(laws: Laws) -> None:
    """What the last master had confirmed, the next one has confirmed from its first moment on."""
    assert confirming(laws, "broker-1", 1)(100) == 100
    confirming(laws, "broker-2", 2)(100)
    assert not laws.broken
    confirming(laws, "broker-3", 3)(99)
    assert [broken.law for broken in laws.broken] == [Law.CONFIRM_WENT_BACK]
    assert (laws.broken[0].fields["was"], laws.broken[0].fields["is"]) == (100, 99)


def test_a_deposed_master_that_goes_on(laws: Laws) -> None:
    """It may not confirm what the next reign did not begin with."""
    first = confirming(laws, "broker-1", 1)
    first(50)
    confirming(laws, "broker-2", 2)(60)
    first(60)
    assert not laws.broken
    first(61)
    assert [broken.law for broken in laws.broken] == [Law.CONFIRM_WENT_BACK]


def test_a_reign_that_forgets_what_it_confirmed(laws: Laws) -> None:
    """Within a reign too, and in whatever life of its node: what was once confirmed stays."""
    confirm = confirming(laws, "broker-1", 1)
    confirm(100)
    role = {"role": "master", "brokerId": 1, "masterId": 1, "masterAddr": "", "epoch": 1}
    told(laws, "broker-1", "role", **role)
    confirm(100)
    assert not laws.broken
    confirm(90)  # though it says itself that it had confirmed nothing
    assert [broken.law for broken in laws.broken] == [Law.CONFIRM_WENT_BACK]
    told(laws, "broker-1", "role", **role)
    confirm(95)
    assert [broken.fields["was"] for broken in laws.broken] == [100, 100]


def test_a_cut_below_what_a_former_life_confirmed(laws: Laws) -> None:
    """The node may have forgotten it; who watched has not."""
    confirming(laws, "broker-1", 1)(100)
    told(laws, "broker-1", "start")
    told(laws, "broker-1", "recover", min=0, max=120, confirm=0)
    cut = {"before": 120, "case": 1, "action": "truncate", "confirm": 0, "belowConfirm": False}
    told(laws, "broker-2", "truncate", point=50, **cut)
    told(laws, "broker-1", "truncate", point=100, **cut)
    assert not laws.broken
    told(laws, "broker-1", "truncate", point=99, **cut)
    assert [broken.law for broken in laws.broken] == [Law.CUT_TOO_LOW]
    assert laws.broken[0].fields["confirm"] == 100
    told(laws, "broker-1", "truncate", point=99, **cut)
    assert len(laws.broken) == 1


def test_nonsense_between_our_nodes(laws: Laws) -> None:
    """Nobody of ours sends it; unless somebody turned bits over on a disk."""
    told(laws, "broker-1", "start")
    assert laws.looked[Law.UNACCEPTABLE] == 1
    assert not laws.broken
    told(laws, "broker-1", "senseless", peer="10.0.0.2:4711", why="half a frame")
    assert [broken.law for broken in laws.broken] == [Law.UNACCEPTABLE]
    assert "10.0.0.2:4711: half a frame" in laws.broken[0].sentence
    laws.disk_damaged("broker-2")
    told(laws, "broker-1", "senseless", peer="10.0.0.2:4711", why="half a record")
    assert len(laws.broken) == 1


def test_a_slave_that_sends_nonsense() -> None:
    """An ack of what its master does not have: the master refuses it, and the law is broken."""

    def boastful(sync_flush: bool, appended: int, written: int, flushed: int) -> int:
        return appended + 1_000_000

    laws = broken_by(replace(RULES, ack_position=boastful), _briefly)
    assert laws.counts[Law.UNACCEPTABLE]
    assert not broken_by(RULES, _some_load).counts


async def _briefly(sailor: Sailor) -> None:
    await asyncio.sleep(5)


def test_what_could_not_be_read_is_counted(laws: Laws) -> None:
    """Lines without their fields, of nobody known, lost on a full disk, or no lines at all."""
    told(laws, "broker-1", "start", missed=3)
    told(laws, "broker-1", "role", role="master")
    told(laws, "nobody", "truncate", point=1, confirm=0)
    told(laws, "controller-1", "election", brokerName="another", epoch=1, masterId=1)
    told(laws, "controller-1", "set", brokerName=BROKER_SET, setEpoch="x", set=[1])
    laws.unread("broker-1")
    told(laws, "controller-1", "recover", term=0, last=0, cut=0)
    [(_, _, _, fields)] = laws.events()
    assert (fields["lines"], fields["unseen"]) == (10, 8)


def test_elections_and_sets_that_change(laws: Laws) -> None:
    """An epoch has one winner, and a set epoch one set, whoever tells of them."""
    elected = {"brokerName": BROKER_SET, "epoch": 2, "set": [1], "previousSet": [1, 2]}
    told(laws, "controller-1", "election", **elected, masterId=1)
    told(laws, "controller-2", "election", **elected, masterId=1)
    told(laws, "controller-1", "set", brokerName=BROKER_SET, setEpoch=4, set=[1, 2])
    told(laws, "broker-1", "set", setEpoch=4, set=[1, 2], why="agreed")
    assert not laws.broken
    told(laws, "controller-2", "election", **elected, masterId=2)
    told(laws, "broker-1", "set", setEpoch=4, set=[1, 3], why="agreed")
    assert [b.law for b in laws.broken] == [Law.COMMITTED_CHANGED, Law.COMMITTED_CHANGED]


def test_counts_are_exact_and_tales_are_capped(laws: Laws) -> None:
    """Of a law that is broken again and again, the first few are told, and how many more."""
    for node in ("controller-1", "controller-2"):
        for term in range(30):
            told(laws, node, "raft", state="leader", term=term, leader=node)
    assert laws.counts[Law.ONE_LEADER] == 30
    head, *rest = laws.events()
    assert head[2] == "laws-watched"
    assert head[3]["looked"] == {law.value: 0 for law in Law} | {"ONE_LEADER": 60}
    assert (head[3]["lines"], head[3]["unseen"]) == (60, 0)
    assert sum(1 + fields.get("untold", 0) for _, _, _, fields in rest) == 30
    assert len(rest) == 20


def test_who_lacks_which_byte() -> None:
    """Too short, other bytes, cut since, or back with less: the first byte that is not there."""
    logs = {"a": b"0123456789", "b": b"0123456789", "c": b"01234x6789"}
    acked = Acknowledged(lambda node, start, end: logs[node][start:end])
    for node in logs:
        acked.holds(node, 10)
    acked.acknowledge("a", 4)
    assert [acked.lacks(node, 4) for node in logs] == [None, None, None]
    acked.acknowledge("a", 8)
    assert [acked.lacks(node, 8) for node in logs] == [None, None, 5]
    assert acked.in_common("a", "b") == 8
    acked.cut("b", 6)
    assert acked.lacks("b", 8) == 6
    acked.restarted("a", 3)
    assert (acked.lacks("a", 8), acked.in_common("a", "b")) == (3, 3)
    logs["b"] = b"0120"
    acked.restarted("b", 8)
    acked.power_lost("b")
    assert acked.lacks("b", 8) == 3
    assert acked.lacks("nobody", 8) is None


def test_bytes_that_cannot_be_read() -> None:
    """Then what the nodes say of themselves has to do."""
    acked = Acknowledged(lambda node, start, end: None)
    acked.holds("a", 10)
    acked.acknowledge("a", 8)
    acked.acknowledge("a", 9)
    assert (acked.end, acked.lacks("a", 9), acked.lacks("a", 11)) == (9, None, 10)
