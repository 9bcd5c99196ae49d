"""Members that change one at a time (thesis, chapter 4), and the part of snapshots in it (Raft 7).

Bare cores that talk in order, or do not talk at all.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.effects import RaftState
from clusters.flotilla.raft.journal import RaftJournal
from clusters.flotilla.raft.leader_state import MAX_BATCH_BYTES
from clusters.flotilla.raft.membership import (
    Add,
    ChangeMustWait,
    ChangeRefused,
    Configuration,
    Remove,
    changed,
    promoted,
)
from clusters.flotilla.raft.messages import (
    EntryKind,
    LogEntry,
    Message,
    SnapshotPart,
    SnapshotReply,
)
from clusters.flotilla.raft.snapshot import Snapshot, SnapshotDamaged, parse
from clusters.flotilla.rules import RULES, Rules

ELECTION_S = 10.0


def voters(names: str) -> Configuration:
    return Configuration({name: f"at {name}" for name in names})


class Party:
    """Members, the pairs that can talk, and what each has applied."""

    def __init__(self, names: str, *, outside: str = "", rules: Rules = RULES) -> None:
        self.now = 0.0
        timing = RaftTiming(heartbeat_s=1.0, election_s=ELECTION_S)
        self.cores = {
            name: Raft(
                name,
                RaftJournal(voters(names) if name in names else Configuration()),
                timing,
                lambda least, most: least,
                rules,
                0.0,
            )
            for name in names + outside
        }
        self.linked = names + outside
        self.under_way: deque[tuple[str, Message]] = deque()
        self.sent: list[Message] = []
        self.applied: dict[str, list[bytes]] = {name: [] for name in self.cores}
        self.acted: dict[int, LogEntry] = {}
        self.contradicted = False

    def link(self, names: str) -> None:
        """Let these talk, and no others; messages in flight are lost."""
        self.collect()
        self.linked = names
        self.under_way.clear()

    def collect(self) -> None:
        for name, core in self.cores.items():
            effects = core.take_effects()
            for peer, message in effects.messages:
                if name in self.linked and peer in self.linked:
                    self.under_way.append((peer, message))
            if effects.log.install:
                self.applied[name] = effects.log.install.data.split()
            for index, entry in effects.committed:
                self.contradicted |= self.acted.setdefault(index, entry) != entry
                if entry.data and entry.kind == EntryKind.DATA:
                    self.applied[name].append(entry.data)

    def talk(self, until: Callable[[], bool] = lambda: False) -> None:
        self.collect()
        while self.under_way and not until():
            peer, message = self.under_way.popleft()
            self.sent.append(message)
            self.cores[peer].step(self.now, message)
            self.collect()

    def stand(self, name: str, until: Callable[[], bool] = lambda: False) -> Raft:
        """Make it the leader, long after a leader was heard."""
        core = self.cores[name]
        for _ in range(5):
            self.now += 3 * ELECTION_S
            core.tick(self.now)
            self.talk(lambda: core.state is RaftState.LEADER or until())
            if core.state is RaftState.LEADER:
                return core
        return core

    def lead(self, name: str) -> Raft:
        """The same, and deliver all messages."""
        core = self.stand(name)
        self.talk()
        assert core.state is RaftState.LEADER
        return core

    def beat(self) -> None:
        """Let each leader repeat what was lost."""
        self.now += 1.0
        for core in self.cores.values():
            if core.leading:
                core.tick(self.now)
        self.talk()

    def change(self, leader: Raft, change: Add | Remove) -> int:
        index = leader.change(self.now, change)
        assert index is not None
        self.talk()
        return index

    def save(self, name: str) -> None:
        """Take a snapshot of the applied state."""
        core = self.cores[name]
        data = b" ".join(self.applied[name])
        core.compact(core.journal.snapshot_at(core.commit, data))
        self.collect()


# configurations


def test_a_newcomer_is_a_learner_and_then_a_voter() -> None:
    """Thesis 4.2.1: two entries, the second once it holds everything; it applies all of it."""
    party = Party("abc", outside="d")
    leader = party.lead("a")
    leader.propose(party.now, b"one")
    party.talk()
    party.link("abc")
    index = party.change(leader, Add("d", "at d"))
    assert leader.commit >= index
    assert (dict(leader.members.learners), leader.members.majority) == ({"d": "at d"}, 2)
    party.link("abcd")
    party.beat()
    assert set(leader.members.voters) == set("abcd")
    assert not leader.members.learners
    assert leader.members.majority == 3
    assert party.cores["d"].members == leader.members
    assert party.applied["d"] == [b"one"]


def test_a_learner_counts_for_nothing() -> None:
    """Thesis 4.2.1: with two of three gone nothing is committed, whatever a learner holds; and it
    does not start an election."""
    party = Party("abc", outside="d")
    leader = party.lead("a")
    party.link("abc")
    party.change(leader, Add("d", "at d"))
    leader.propose(party.now, b"kept from d until it is alone with a")
    party.link("ad")
    before = leader.commit
    party.now += 1.0
    leader.tick(party.now)
    party.talk(lambda: party.cores["d"].log.last_index == leader.log.last_index)
    assert leader.commit == before or before == leader.log.last_index
    d = party.cores["d"]
    party.link("d")
    party.now += 9 * ELECTION_S
    d.tick(party.now)
    assert d.state is RaftState.FOLLOWER


def test_who_belongs_to_no_group_stays_quiet() -> None:
    """An empty configuration: no elections, until a leader sends entries."""
    party = Party("a", outside="d")
    for _ in range(5):
        party.now += 3 * ELECTION_S
        party.cores["d"].tick(party.now)
        party.talk()
    assert party.cores["d"].term == 0


def test_a_leader_that_is_removed_commits_that_and_steps_down() -> None:
    """Thesis 4.2.2: it does not count itself meanwhile, and the others elect one of them."""
    party = Party("abc")
    leader = party.lead("a")
    party.link("ac")
    index = leader.change(party.now, Remove("a"))
    assert index is not None
    party.talk()
    assert leader.state is RaftState.LEADER, "a and c: only c counts, and one of two is no majority"
    assert leader.commit < index
    party.link("abc")
    party.beat()
    assert leader.commit == index
    assert leader.state is RaftState.FOLLOWER
    successor = party.lead("b")
    assert set(successor.members.voters) == set("bc")
    party.now += 9 * ELECTION_S
    leader.tick(party.now)
    assert leader.state is RaftState.FOLLOWER, "it does not stand for election any more"


def test_whoever_may_be_needed_for_its_own_removal_still_stands() -> None:
    """Thesis 4.2.2, figure 4.6: of two, the leader removed itself and the other does not know yet;
    the other cannot win, since its log is shorter."""
    party = Party("ab")
    leader = party.lead("a")
    party.link("a")
    leader.change(party.now, Remove("a"))
    party.now += 9 * ELECTION_S
    leader.tick(party.now)
    assert leader.state is RaftState.FOLLOWER
    party.link("ab")
    assert party.stand("b").state is not RaftState.LEADER
    party.stand("a", until=lambda: leader.commit == leader.journal.members_index)
    party.talk()
    assert party.cores["b"].members == voters("b")
    assert party.lead("b").state is RaftState.LEADER


def test_a_change_waits_for_the_one_before_and_for_an_entry_of_its_term() -> None:
    """Thesis 4.1, and raft-dev of 10 July 2015."""
    party = Party("abc", outside="d")
    leader = party.stand("a")
    with pytest.raises(ChangeMustWait):
        leader.change(party.now, Remove("c"))
    party.talk()
    party.link("a")
    leader.change(party.now, Remove("c"))
    with pytest.raises(ChangeMustWait):
        leader.change(party.now, Remove("b"))


def two_leaders_change(rules: Rules) -> Party:
    """raft-dev, 10 July 2015: `a` adds e without reaching the others; `b` leads the next term and
    removes `a` with the help of c; `a` returns, and has a majority of *its* members without b and
    c."""
    party = Party("abcd", outside="e", rules=rules)
    a, b = party.lead("a"), party.cores["b"]
    party.link("a")
    members = promoted(changed(a.members, Add("e", "at e")), "e")
    a._configure(party.now, members)  # as if e had caught up already
    party.collect()
    party.link("bcd")
    party.stand("b")
    party.link("bc")
    try:
        b.change(party.now, Remove("a"))
    except ChangeMustWait:
        return party
    party.beat()
    party.link("ade")
    party.lead("a")
    return party


def test_two_leaders_can_not_change_the_same_predecessor() -> None:
    """The flaw that Ongaro found in the thesis: the rule forbids it, and without it two leaders
    commit different entries at one index."""
    assert not two_leaders_change(RULES).contradicted
    hasty = replace(RULES, may_change_members=lambda commit, changed_at, first: True)
    assert two_leaders_change(hasty).contradicted


def test_a_configuration_that_is_cut_off_does_not_count() -> None:
    """Thesis 4.1: the latest one in the log counts, and the one before when it is cut off."""
    party = Party("abc")
    a = party.lead("a")
    party.link("a")
    a.change(party.now, Remove("c"))
    assert set(a.members.voters) == set("ab")
    party.link("bc")
    party.lead("b")
    party.link("abc")
    party.beat()
    assert a.members == voters("abc")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Add("b", "elsewhere"), "b is a member at at b"),
        (Add("x", "at b"), "another member"),
    ],
)
def test_a_change_without_sense_is_refused(change: Add, why: str) -> None:
    """One sentence gives the reason."""
    with pytest.raises(ChangeRefused, match=why):
        changed(voters("ab"), change)
    with pytest.raises(ChangeRefused, match="last voter"):
        changed(voters("a"), Remove("a"))


def test_what_is_so_already_is_no_mistake() -> None:
    """A client without an answer repeats its request."""
    assert changed(voters("ab"), Add("b", "at b")) == voters("ab")
    assert changed(voters("ab"), Remove("x")) == voters("ab")


# snapshots


def test_who_is_far_behind_gets_the_snapshot_in_parts() -> None:
    """Raft 7: entries that are compacted away come as a snapshot, in frames that fit."""
    party = Party("abc")
    leader = party.lead("a")
    party.link("ab")
    for number in range(4):
        leader.propose(party.now, b"%d" % number * MAX_BATCH_BYTES)
        party.talk()
        party.save("a")
    party.link("abc")
    party.sent.clear()
    party.beat()
    parts = [m for m in party.sent if isinstance(m, SnapshotPart)]
    assert len(parts) > 4
    assert max(len(part.data) for part in parts) == MAX_BATCH_BYTES
    c = party.cores["c"]
    assert party.applied["c"] == party.applied["a"]
    assert c.log.base.index > 0
    assert c.commit == leader.commit


def test_who_is_a_little_behind_gets_entries() -> None:
    """The log keeps what followed the snapshot before the last one."""
    party = Party("abc")
    leader = party.lead("a")
    for number in range(3):
        leader.propose(party.now, b"%d" % number)
        party.talk()
        party.save("a")
    party.link("ab")
    leader.propose(party.now, b"more")
    party.talk()
    party.save("a")
    assert 0 < leader.log.base.index <= party.cores["c"].log.last_index
    party.link("abc")
    party.sent.clear()
    party.beat()
    assert party.applied["c"] == party.applied["a"]
    assert not [m for m in party.sent if isinstance(m, SnapshotPart)]


def test_a_snapshot_says_who_the_members_were() -> None:
    """Thesis 4.1: the configuration's entry is compacted away, and still counts."""
    party = Party("abc", outside="d")
    leader = party.lead("a")
    party.link("abc")
    removed_at = party.change(leader, Remove("c"))
    for number in range(3):
        leader.propose(party.now, b"%d" % number)
        party.talk()
        party.save("a")
    assert leader.log.base.index > removed_at
    party.link("abd")
    party.change(leader, Add("d", "at d"))
    party.beat()
    assert set(party.cores["d"].members.voters) == set("abd")
    assert party.applied["d"] == party.applied["a"]


def test_a_snapshot_of_what_is_here_changes_nothing() -> None:
    """Raft 7: a follower keeps what it has when the snapshot is behind it."""
    party = Party("abc")
    leader = party.lead("a")
    for number in range(3):
        leader.propose(party.now, b"%d" % number)
        party.talk()
    snapshot = leader.journal.snapshot_at(2, b"0")
    b = party.cores["b"]
    before = b.log.entries_from(1), b.commit
    fields = {"term": b.term, "source": "a", "index": 2, "stamp": 0.0, "round": 0}
    data = snapshot.packed
    b.step(party.now, SnapshotPart(**fields, offset=0, total=len(data), data=data))  # type: ignore[arg-type]
    effects = b.take_effects()
    [reply] = [m for _, m in effects.messages]
    assert isinstance(reply, SnapshotReply)
    assert reply.received == len(data)
    assert effects.log.install is None
    assert (b.log.entries_from(1), b.commit) == before


def test_a_damaged_snapshot_names_the_byte_from_which_on() -> None:
    """For any flipped bit, and any truncation."""
    packed = Snapshot(RaftJournal(voters("a")).log.base, voters("a"), b"the state").packed
    assert parse(packed).data == b"the state"
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotDamaged, match=r"byte \d+: "):
            parse(bytes(damaged))
    for length in range(len(packed)):
        with pytest.raises(SnapshotDamaged, match=r"byte \d+: "):
            parse(packed[:length])
