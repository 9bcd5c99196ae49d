"""The laws of the inside, line by line: which events and decisions are violations, and which are
not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from simulated_fleet import BROKER_SET, Fleet

from clusters.flotilla.net.wire import Status
from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.journal import RaftJournal
from clusters.flotilla.raft.membership import Configuration
from clusters.flotilla.raft.messages import EntryKind, LogEntry
from clusters.flotilla.raft.votes import Vote
from clusters.flotilla.replication.epochs import EpochTable
from clusters.flotilla.replication.quorum import LogPosition, SendTimeouts
from clusters.flotilla.rules import RULES
from clusters.systems.flotilla.acked_log import AckedLog
from clusters.systems.flotilla.law_state import (
    OF_ACTING,
    OF_CONTAINERS,
    OF_CONVERSIONS,
    OF_MACHINES,
)
from clusters.systems.flotilla.laws import Law, Laws


@pytest.fixture
def laws() -> Laws:
    fleet = Fleet(0)
    fleet.sink()
    return Laws(fleet.layout.sets, fleet.layout._settings.values, lambda: 0)


def told(laws: Laws, node: str, kind: str, **fields: Any) -> None:
    laws.read_event(5, node, kind, fields)


def test_two_masters_of_an_epoch(laws: Laws) -> None:
    """Two brokers, or two processes of one."""
    role = {"role": "master", "brokerId": 1, "masterId": 1, "masterAddr": "", "epoch": 3}
    told(laws, "broker-1", "start")
    told(laws, "broker-1", "role", **role)
    assert not laws.violations
    told(laws, "broker-2", "role", **{**role, "brokerId": 2, "masterId": 2})
    told(laws, "broker-1", "start")
    told(laws, "broker-1", "role", **role)
    assert [broken.law for broken in laws.violations] == [Law.ONE_MASTER, Law.ONE_MASTER]
    assert laws.violations[0].fields == {"set": BROKER_SET, "epoch": 3, "other": "broker-1"}


def test_a_send_of_an_earlier_reign_is_no_success(laws: Laws) -> None:
    """The broker was a slave in between, so the send may be cut off; if it is elected again without
    a gap, the send counts."""
    rules = laws.rules("broker-1", 1, RULES)
    master = {"role": "master", "brokerId": 1, "masterId": 1, "masterAddr": ""}

    def answer(epoch: int) -> None:
        rules.replicated_offset(2, 300, {2: 300}, (2,), 2)
        sent = LogPosition(200, epoch)
        assert rules.outcome_of(sent, 300, 300, 0.0, SendTimeouts(1, 1), False) == Status.SUCCESS

    told(laws, "broker-1", "start")
    rules.confirm_offset(0, 300, {2: 300}, (2,), True)  # it holds its log up to there
    for epoch in (1, 2):
        told(laws, "broker-1", "role", **master, epoch=epoch)
        answer(1)
    assert not laws.violations
    told(laws, "broker-1", "role", **{**master, "role": "slave", "masterId": 2}, epoch=3)
    told(laws, "broker-1", "role", **master, epoch=4)
    answer(4)
    assert not laws.violations
    answer(2)
    assert [broken.law for broken in laws.violations] == [Law.ANSWERED_EARLY]
    assert "epoch 2" in laws.violations[0].sentence
    assert "epoch 4" in laws.violations[0].sentence


def test_committed_entries_that_change(laws: Laws) -> None:
    """A leader that commits another entry at an index; the same entries again are no change."""
    first = laws.rules("controller-1", 1, RULES).commit_index
    second = laws.rules("controller-2", 1, RULES).commit_index
    assert first([3, 3, 3], [0, 1, 1, 1].__getitem__, 1) == 3
    assert second([3, 3, 3], [0, 1, 1, 1].__getitem__, 1) == 3
    assert not laws.violations
    assert second([3, 3, 3], [0, 1, 2, 2].__getitem__, 2) == 3
    assert [broken.law for broken in laws.violations] == [Law.COMMITTED_CHANGED]
    assert laws.violations[0].fields == {"index": 2, "was": 1, "term": 2}


class Lone:
    """A process of the only controller, with the content of its disk."""

    def __init__(self, laws: Laws, boot: int, vote: Vote | None, kept: Sequence[LogEntry]) -> None:
        self._rules = laws.rules("controller-1", boot, RULES)
        journal = RaftJournal(Configuration({"controller-1": "h:1"}), entries=kept)
        self.raft = Raft(
            "controller-1", journal, RaftTiming(1, 6), lambda a, b: a, self._rules, 0.0, vote=vote
        )
        self.raft.tick(100.0)
        self.carry_out()

    def propose(self, data: bytes) -> None:
        self.raft.propose(100.1, data)

    def carry_out(self) -> None:
        """Do what the driver does: apply committed entries once they are on disk."""
        for index, entry in self.raft.take_effects().committed:
            self._rules.committed_entry(index, entry)


def test_what_a_lone_controller_has_not_written_may_change(laws: Laws) -> None:
    """It commits before the write: an entry that a power cut took was never applied. Entries that
    it applied are the same in each process."""
    first = Lone(laws, 1, None, ())
    first.propose(b"kept")
    first.carry_out()
    kept = list(first.raft.log.entries_from(1))
    first.propose(b"never written")
    second = Lone(laws, 2, first.raft.vote, kept)
    second.propose(b"other")
    second.carry_out()
    assert not laws.violations
    third = Lone(laws, 3, second.raft.vote, kept)
    third.carry_out()
    assert [broken.law for broken in laws.violations] == [Law.COMMITTED_CHANGED]


def applying(laws: Laws, node: str, boot: int = 1) -> Callable[..., LogEntry]:
    """Apply a committed entry in a new process of the controller."""
    return laws.rules(node, boot, RULES).committed_entry


def test_followers_that_take_other_entries(laws: Laws) -> None:
    """Whichever node leads: at an index all controllers apply the same, now and in later
    processes."""
    lead, follow = applying(laws, "controller-1"), applying(laws, "controller-2")
    entry = LogEntry(1, b"{}")
    assert (lead(7, entry), follow(7, entry), lead(8, entry)) == (entry,) * 3
    assert applying(laws, "controller-1", 2)(7, entry) == entry
    assert not laws.violations
    for other in (LogEntry(2, b"{}"), LogEntry(1, b"{]"), LogEntry(1, b"{}", EntryKind.MEMBERS)):
        follow(7, other)
    assert [broken.law for broken in laws.violations] == [Law.COMMITTED_CHANGED] * 3
    assert {broken.node for broken in laws.violations} == {"controller-2"}


def test_a_gap_in_what_leaders_commit(laws: Laws) -> None:
    """Where a later leader has compacted entries that were never checked, the rest is checked."""
    terms: list[int | None] = [None, None, None, 1, 1]
    assert laws.rules("controller-1", 1, RULES).commit_index([4, 4, 4], terms.__getitem__, 1) == 4
    assert not laws.violations
    terms[4] = 2
    laws.rules("controller-2", 1, RULES).commit_index([4, 4, 4], terms.__getitem__, 2)
    assert [broken.law for broken in laws.violations] == [Law.COMMITTED_CHANGED]


def confirming(laws: Laws, node: str, epoch: int) -> Callable[[int], int]:
    """Give the node, as master of this epoch, the end of its log, which it confirms."""
    told(laws, node, "start")
    decide = laws.rules(node, epoch, RULES).confirm_offset
    role = {"role": "master", "brokerId": epoch, "masterId": epoch, "masterAddr": ""}
    told(laws, node, "role", **role, epoch=epoch)
    return lambda end: decide(0, end, {}, (), True)


def test_a_reign_that_begins_with_less(laws: Laws) -> None:
    """A new master has confirmed from its first moment what the last one had confirmed."""
    assert confirming(laws, "broker-1", 1)(100) == 100
    confirming(laws, "broker-2", 2)(100)
    assert not laws.violations
    confirming(laws, "broker-3", 3)(99)
    assert [broken.law for broken in laws.violations] == [Law.CONFIRM_WENT_BACK]
    assert (laws.violations[0].fields["was"], laws.violations[0].fields["is"]) == (100, 99)


def test_a_deposed_master_that_goes_on(laws: Laws) -> None:
    """It may not confirm what the next master did not begin with."""
    first = confirming(laws, "broker-1", 1)
    first(50)
    confirming(laws, "broker-2", 2)(60)
    first(60)
    assert not laws.violations
    first(61)
    assert [broken.law for broken in laws.violations] == [Law.CONFIRM_WENT_BACK]


def test_a_reign_that_forgets_what_it_confirmed(laws: Laws) -> None:
    """Also within one mastership and in each process of its node: what was once confirmed stays."""
    confirm = confirming(laws, "broker-1", 1)
    confirm(100)
    role = {"role": "master", "brokerId": 1, "masterId": 1, "masterAddr": "", "epoch": 1}
    told(laws, "broker-1", "role", **role)
    confirm(100)
    assert not laws.violations
    confirm(90)  # though it says itself that it had confirmed nothing
    assert [broken.law for broken in laws.violations] == [Law.CONFIRM_WENT_BACK]
    told(laws, "broker-1", "role", **role)
    confirm(95)
    assert [broken.fields["was"] for broken in laws.violations] == [100, 100]


def test_a_cut_below_what_a_former_life_confirmed(laws: Laws) -> None:
    """The node may have forgotten it; the observer has not."""
    confirming(laws, "broker-1", 1)(100)
    told(laws, "broker-1", "start")
    told(laws, "broker-1", "recover", min=0, max=120, confirm=0)
    cut = {"before": 120, "case": 1, "action": "truncate", "confirm": 0, "belowConfirm": False}
    told(laws, "broker-2", "truncate", point=50, **cut)
    told(laws, "broker-1", "truncate", point=100, **cut)
    assert not laws.violations
    told(laws, "broker-1", "truncate", point=99, **cut)
    assert [broken.law for broken in laws.violations] == [Law.CUT_TOO_LOW]
    assert laws.violations[0].fields["confirm"] == 100
    told(laws, "broker-1", "truncate", point=99, **cut)
    assert len(laws.violations) == 1


def test_a_handshake_that_would_cut_what_was_confirmed(laws: Laws) -> None:
    """By a master in an earlier process, or as its disk remembers; each handshake is checked."""
    confirming(laws, "broker-1", 1)(100)
    told(laws, "broker-2", "recover", min=0, max=120, confirm=70)
    for node, sound in (("broker-1", 100), ("broker-2", 70)):
        laws.rules(node, 2, RULES)
        for point, broken in ((sound, 0), (sound - 1, 1)):
            rules = replace(RULES, find_consistent_point=constant(point))
            decide = laws.rules(node, 2, rules).find_consistent_point
            assert decide(EpochTable(), 120, EpochTable(), 200) == point
            assert sum(b.node == node for b in laws.violations) == broken
    assert {broken.law for broken in laws.violations} == {Law.CUT_TOO_LOW}
    assert laws.checks[Law.CUT_TOO_LOW] == 4


def test_a_log_that_shares_nothing_is_cut_whole_where_nothing_was_confirmed(laws: Laws) -> None:
    """That is not below a confirm offset of 0, but below every other one."""
    for confirmed, broken in ((0, 0), (70, 1)):
        told(laws, "broker-2", "recover", min=0, max=120, confirm=confirmed)
        rules = replace(RULES, find_consistent_point=constant(-1))
        decide = laws.rules("broker-2", 2, rules).find_consistent_point
        assert decide(EpochTable(), 120, EpochTable(), 200) == -1
        assert len(laws.violations) == broken


def constant(point: int) -> Callable[[EpochTable, int, EpochTable, int], int]:
    return lambda local, local_end, remote, remote_end: point


def test_nonsense_between_our_nodes(laws: Laws) -> None:
    """No node of ours sends it, unless bits were flipped on a disk."""
    told(laws, "broker-1", "start")
    assert laws.checks[Law.UNACCEPTABLE] == 1
    assert not laws.violations
    told(laws, "broker-1", "senseless", peer="10.0.0.2:4711", why="half a frame")
    assert [broken.law for broken in laws.violations] == [Law.UNACCEPTABLE]
    assert "10.0.0.2:4711: half a frame" in laws.violations[0].sentence
    laws.disk_damaged("broker-2")
    told(laws, "broker-1", "senseless", peer="10.0.0.2:4711", why="half a record")
    assert len(laws.violations) == 1


def test_what_could_not_be_read_is_counted(laws: Laws) -> None:
    """Lines without their fields, of unknown nodes, lost on a full disk, or no lines at all."""
    told(laws, "broker-1", "start", missed=3)
    told(laws, "broker-1", "role", role="master")
    told(laws, "nobody", "truncate", point=1, confirm=0)
    told(laws, "controller-1", "election", brokerName="another", epoch=1, masterId=1)
    told(laws, "controller-1", "set", brokerName=BROKER_SET, setEpoch="x", set=[1])
    laws.unreadable_event("broker-1")
    told(laws, "controller-1", "recover", term=0, last=0, cut=0)
    [(_, _, _, fields)] = laws.events()
    assert (fields["lines"], fields["unseen"]) == (10, 8)


def test_elections_and_sets_that_change(laws: Laws) -> None:
    """An epoch has one winner, and a set epoch one set, whichever node reports them."""
    elected = {"brokerName": BROKER_SET, "epoch": 2, "set": [1], "previousSet": [1, 2]}
    told(laws, "controller-1", "election", **elected, masterId=1)
    told(laws, "controller-2", "election", **elected, masterId=1)
    told(laws, "controller-1", "set", brokerName=BROKER_SET, setEpoch=4, set=[1, 2])
    told(laws, "broker-1", "set", setEpoch=4, set=[1, 2], why="agreed")
    assert not laws.violations
    told(laws, "controller-2", "election", **elected, masterId=2)
    told(laws, "broker-1", "set", setEpoch=4, set=[1, 3], why="agreed")
    assert [b.law for b in laws.violations] == [Law.COMMITTED_CHANGED, Law.COMMITTED_CHANGED]


def test_counts_are_exact_and_tales_are_capped(laws: Laws) -> None:
    """Of many violations of a law, the first few are kept, with the number of the others."""
    for node in ("controller-1", "controller-2"):
        for term in range(30):
            told(laws, node, "raft", state="leader", term=term, leader=node)
    assert laws.counts[Law.ONE_LEADER] == 30
    head, *rest = laws.events()
    assert head[2] == "laws-watched"
    looked = set(Law) - OF_ACTING - OF_MACHINES - OF_CONTAINERS - OF_CONVERSIONS
    assert head[3]["looked"] == {law.value: 0 for law in looked} | {"ONE_LEADER": 60}
    assert (head[3]["lines"], head[3]["unseen"]) == (60, 0)
    assert sum(1 + fields.get("untold", 0) for _, _, _, fields in rest) == 30
    assert len(rest) == 20


def test_who_lacks_which_byte() -> None:
    """Too short, other bytes, cut since, or back with less: the first missing byte."""
    logs = {"a": b"0123456789", "b": b"0123456789", "c": b"01234x6789"}
    acked = AckedLog(lambda node, start, end: logs[node][start:end])
    for node in logs:
        acked.set_held(node, 10)
    acked.acknowledge("a", 4)
    assert [acked.first_missing(node, 4) for node in logs] == [None, None, None]
    acked.acknowledge("a", 8)
    assert [acked.first_missing(node, 8) for node in logs] == [None, None, 5]
    assert acked.common_prefix("a", "b") == 8
    acked.cut("b", 6)
    assert acked.first_missing("b", 8) == 6
    acked.restart("a", 3)
    assert (acked.first_missing("a", 8), acked.common_prefix("a", "b")) == (3, 3)
    logs["b"] = b"0120"
    acked.restart("b", 8)
    acked.power_lost("b")
    assert acked.first_missing("b", 8) == 3
    assert acked.first_missing("nobody", 8) is None


def test_bytes_that_cannot_be_read() -> None:
    """Then only offsets are compared."""
    acked = AckedLog(lambda node, start, end: None)
    acked.set_held("a", 10)
    acked.acknowledge("a", 8)
    acked.acknowledge("a", 9)
    assert (acked.end, acked.first_missing("a", 9), acked.first_missing("a", 11)) == (9, None, 10)


def machine(seq: int, state: str, replaces: int, epoch: int = 1) -> dict[str, object]:
    at = {"brokerName": BROKER_SET, "masterId": 1, "sync": [1], "epoch": epoch}
    return {"seq": seq, "state": state, "replaces": replaces, **at}


def test_a_pair_is_switched_from_the_state_that_is_in_force(laws: Laws) -> None:
    """By a SequenceID of its own, one state after the other."""
    up = ("SINGLE", "ASYNC", "SEMI", "SYNC")
    for seq, state in enumerate(up, start=1):
        told(laws, f"hacontroller-{seq}", "machine", **machine(seq, state, seq - 1))
    assert not laws.violations
    told(laws, "hacontroller-1", "machine", **machine(5, "SEMI", 2))  # 2 was replaced
    told(laws, "hacontroller-2", "machine", **machine(5, "SINGLE", 4))
    told(laws, "hacontroller-2", "machine", **machine(6, "SYNC", 5, epoch=2))
    assert [broken.law for broken in laws.violations] == [
        *(Law.STATE_JUMPED, Law.SEQUENCE_REUSED, Law.STATE_JUMPED)
    ]


def convertible_laws() -> Laws:
    fleet = Fleet(0, "converting")
    fleet.sink()
    return Laws(fleet.layout.sets, fleet.layout._settings.values, lambda: 0)


def mode(number: int, generation: int, end: int, name: str = "raft-log") -> dict[str, object]:
    at = {"brokerName": BROKER_SET, "masterId": 1, "epoch": 4, "mode": name}
    return {"brokerId": number, "generation": generation, "end": end, **at}


def test_a_set_is_converted_by_its_master_first_and_with_equal_logs() -> None:
    """A restart does not begin a generation again, and goes back to none."""
    laws = convertible_laws()
    for number in (1, 2, 3):
        told(laws, f"broker-{number}", "mode", **mode(number, 1, 640))
    told(laws, "broker-2", "mode", **mode(2, 1, 900))
    assert not laws.violations
    told(laws, "broker-2", "mode", **mode(2, 2, 900))
    told(laws, "broker-1", "mode", **mode(1, 2, 960))
    told(laws, "broker-3", "mode", **mode(3, 2, 900, "switchless"))
    told(laws, "broker-3", "mode", **mode(3, 0, 900))
    assert [broken.law for broken in laws.violations] == [
        *(Law.CONVERTED_EARLY, Law.CONVERTED_UNEQUAL),
        *(Law.CONVERTED_EARLY, Law.GENERATION_WENT_BACK),
    ]


def test_a_promise_to_leave_a_mode_is_kept() -> None:
    """Until it is withdrawn, or the broker is in the next mode."""
    laws = convertible_laws()
    master = {"brokerName": BROKER_SET, "role": "master", "masterId": 2, "brokerId": 2}
    told(laws, "broker-2", "promised", attempt=1, epoch=4, end=640)
    told(laws, "broker-2", "withdrawn", attempt=2)
    told(laws, "broker-2", "role", **master, epoch=5)
    assert not laws.violations
    told(laws, "broker-2", "promised", attempt=3, epoch=5, end=640)
    told(laws, "broker-2", "role", **master, epoch=6)
    told(laws, "broker-1", "mode", **mode(1, 1, 640))
    told(laws, "broker-2", "mode", **mode(2, 1, 640))
    told(laws, "broker-2", "role", **master, epoch=7)
    shown = {"epoch": 7, "generation": 1, "slaveGeneration": 0}
    told(laws, "broker-2", "handshake", **shown, peer=3, status=2003)
    laws_of = [broken.law for broken in laws.violations]
    assert laws_of == [Law.PROMISE_BROKEN]
