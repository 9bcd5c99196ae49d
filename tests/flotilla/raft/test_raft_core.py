"""Raft's core, section by section. `Raft` is the extended paper, `thesis` Ongaro's dissertation."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.effects import RaftEffects, RaftState
from clusters.flotilla.raft.journal import RaftBroken, RaftJournal
from clusters.flotilla.raft.log import RaftLog
from clusters.flotilla.raft.membership import Configuration
from clusters.flotilla.raft.messages import (
    Append,
    AppendReply,
    EntryKind,
    LogEntry,
    Message,
    SnapshotPart,
    SnapshotReply,
    VoteReply,
    VoteRequest,
    pack,
    unpack,
)
from clusters.flotilla.raft.votes import Vote, commit_index
from clusters.flotilla.rules import RULES, Rules

TIMING = RaftTiming(heartbeat_s=1, election_s=4)
MEMBERS = ("a", "b", "c")


def raft(
    me: str = "a",
    members: tuple[str, ...] = MEMBERS,
    *,
    terms: tuple[int, ...] = (),
    vote: Vote | None = None,
    rules: Rules = RULES,
) -> Raft:
    """A member with a log of these terms, as recovered from disk; its timeouts are the minimum."""
    vote = vote or (Vote(terms[-1]) if terms else None)
    entries = [LogEntry(term, b"x%d" % term) for term in terms]
    journal = RaftJournal(voters(*members), entries=entries)
    return Raft(me, journal, TIMING, lambda a, b: a, rules, 0, vote=vote)


def voters(*names: str) -> Configuration:
    return Configuration({name: f"address of {name}" for name in names})


def sent(effects: RaftEffects, kind: type) -> list[Any]:
    return [m for _, m in effects.messages if isinstance(m, kind)]


def ask(me: Raft, now: float, **fields: Any) -> VoteReply:
    """Return a voter's answer to b."""
    defaults: dict[str, Any] = {"source": "b", "last_index": 99, "last_term": 99, "pre": False}
    me.step(now, VoteRequest(**{**defaults, **fields}))
    [reply] = sent(me.take_effects(), VoteReply)
    return reply


def append(me: Raft, now: float, **fields: Any) -> AppendReply:
    """Return a follower's answer to b."""
    defaults: dict[str, Any] = {"source": "b", "prev_index": 0, "prev_term": 0, "commit": 0}
    me.step(now, Append(**{**defaults, "stamp": now, **fields}))
    [reply] = sent(me.take_effects(), AppendReply)
    return reply


def elected(me: Raft, now: float = 9) -> Raft:
    """The same member, elected by all votes."""
    me.tick(now)
    for pre in (True, False):
        for peer in me.peers:
            term = me.term + 1 if pre else me.term
            me.step(now, VoteReply(term=term, source=peer, granted=True, pre=pre))
    assert me.state is RaftState.LEADER
    return me


def confirm(leader: Raft, now: float, peer: str, index: int) -> None:
    """`peer` holds everything up to `index`."""
    leader.step(
        now, AppendReply(term=leader.term, source=peer, matched=True, index=index, stamp=now)
    )


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(term=3, source="n0", last_index=7, last_term=2, pre=True),
        VoteReply(term=3, source="n0", granted=True, pre=False),
        Append(term=1, source="é", prev_index=1, prev_term=1, commit=0, stamp=1.5),
        Append(
            term=2**40,
            source="n0",
            prev_index=1,
            prev_term=1,
            commit=1,
            stamp=2.0,
            entries=(LogEntry(1, b""), LogEntry(2, b"data")),
        ),
        AppendReply(
            term=1,
            source="n",
            matched=False,
            index=4,
            stamp=0.1,
            round=3,
            hint_index=2,
            hint_term=1,
        ),
        SnapshotPart(
            term=1, source="n", index=7, offset=2, total=5, stamp=0.1, round=3, data=b"abc"
        ),
        SnapshotReply(term=1, source="n", index=7, received=5, stamp=0.1, round=3),
    ],
)
def test_what_is_packed_is_unpacked(message: Message) -> None:
    """Packing loses nothing, and a shortened message is refused."""
    packed = pack(message)
    assert unpack(packed) == message
    with pytest.raises((ValueError, Exception)):
        unpack(packed[:-1])


def test_a_configuration_that_is_none_is_refused_before_it_is_stored() -> None:
    """The connection of such a peer is closed, and no log has changed."""
    fields = {"term": 1, "source": "b", "prev_index": 0, "prev_term": 0, "commit": 0, "stamp": 0}
    for data, kind in (
        (b"{}", EntryKind.MEMBERS),
        (b"[1]", EntryKind.MEMBERS),
        (b"{", EntryKind.MEMBERS),
        (b"", 9),
    ):
        lie = Append(**fields, entries=(LogEntry(1, data, kind),))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r".+"):
            unpack(pack(lie))
    truth = Append(**fields, entries=(LogEntry(1, voters("a").pack(), EntryKind.MEMBERS),))  # type: ignore[arg-type]
    assert unpack(pack(truth)) == truth


# elections


def test_nobody_starts_a_term_before_a_majority_promises() -> None:
    """Thesis 9.6: a pre-vote changes no term, here or there."""
    a, b = raft("a", terms=(1,)), raft("b", terms=(1,))
    a.tick(9)
    effects = a.take_effects()
    assert a.term == 1
    assert effects.vote is None
    assert [m.pre for m in sent(effects, VoteRequest)] == [True, True]
    reply = ask(b, 9, source="a", term=2, last_index=1, last_term=1, pre=True)
    assert reply.granted
    assert (b.term, b.vote.voted_for) == (1, None)


def test_a_majority_of_votes_makes_a_leader_that_appends_a_no_op() -> None:
    """Raft 5.2 and 8: the first entry of a term is the leader's own and empty."""
    a = raft("a", terms=(1,))
    a.tick(9)
    a.step(9, VoteReply(term=2, source="b", granted=True, pre=True))
    assert (a.state, a.vote) == (RaftState.CANDIDATE, Vote(2, "a"))
    a.step(9, VoteReply(term=2, source="c", granted=True, pre=False))
    effects = a.take_effects()
    assert a.state is RaftState.LEADER
    assert effects.vote == Vote(2, "a")
    assert (effects.log.first, effects.log.entries) == (2, (LogEntry(2, b""),))
    assert len(sent(effects, Append)) == 2


def test_a_vote_is_given_once_a_term() -> None:
    """Raft 5.2: first come, first served; the same candidate may ask again."""
    a = raft()
    assert ask(a, 9, term=5, source="b").granted
    assert a.vote == Vote(5, "b")
    assert not ask(a, 9, term=5, source="c").granted
    assert ask(a, 9, term=5, source="b").granted
    assert ask(a, 9, term=6, source="c").granted


def test_a_vote_is_on_its_way_to_disk_with_its_reply() -> None:
    """Raft figure 2: term and vote are on disk before a reply is sent."""
    a = raft()
    a.step(9, VoteRequest(term=5, source="b", last_index=0, last_term=0, pre=False))
    effects = a.take_effects()
    assert effects.vote == Vote(5, "b")
    assert effects.needs_disk


def test_a_vote_survives_a_restart() -> None:
    """Raft 5.2: a voter that restarts does not vote a second time in the term."""
    a = raft(vote=Vote(5, "b"))
    assert not ask(a, 99, term=5, source="c").granted


@pytest.mark.parametrize(
    ("last_term", "last_index", "granted"),
    [(3, 1, True), (2, 3, True), (2, 4, True), (2, 2, False), (1, 9, False)],
)
@pytest.mark.parametrize("pre", [True, False])
def test_only_a_log_as_good_as_mine_gets_a_vote(
    last_term: int, last_index: int, granted: bool, pre: bool
) -> None:
    """Raft 5.4.1: the later last term wins, then the longer log."""
    a = raft(terms=(1, 2, 2))
    reply = ask(a, 99, term=7, last_term=last_term, last_index=last_index, pre=pre)
    assert reply.granted is granted


@pytest.mark.parametrize("pre", [True, False])
def test_who_hears_a_leader_refuses_and_keeps_its_term(pre: bool) -> None:
    """Thesis 4.2.3: a node that was cut off does not depose a leader by its greater term."""
    a = raft()
    append(a, 10, term=1)
    assert not ask(a, 13.9, term=50, source="c", pre=pre).granted
    assert (a.term, a.state, a.leader) == (1, RaftState.FOLLOWER, "b")
    assert ask(a, 14.1, term=50, source="c", pre=pre).granted


def test_who_restarts_behaves_as_if_it_had_heard_a_leader() -> None:
    """The lease of a leader outlives the restart of a follower."""
    a = raft(terms=(1,))
    assert not ask(a, 3.9, term=2, source="c").granted
    assert ask(a, 4.1, term=2, source="c").granted


def test_a_leader_that_nobody_follows_steps_down() -> None:
    """Thesis 6.2: check-quorum. One of two followers is enough to go on."""
    a = elected(raft(), 9)
    confirm(a, 12, "b", 1)
    a.tick(15.9)
    assert a.state is RaftState.LEADER
    a.tick(16.1)
    assert (a.state, a.leader) == (RaftState.FOLLOWER, None)


def test_the_lease_counts_from_when_the_append_left() -> None:
    """A reply that took long proves nothing about the present."""
    a = elected(raft(), 9)
    a.step(20, AppendReply(term=a.term, source="b", matched=True, index=1, stamp=10))
    assert not a.has_quorum(20)


def test_a_candidate_follows_the_leader_of_its_term() -> None:
    """Raft 5.2: another member has become the leader."""
    a = raft(terms=(1,))
    a.tick(9)
    a.step(9, VoteReply(term=2, source="b", granted=True, pre=True))
    assert append(a, 9, term=2, prev_index=1, prev_term=1).matched
    assert (a.state, a.leader) == (RaftState.FOLLOWER, "b")


def test_two_leaders_in_a_term_stop_the_node() -> None:
    """Raft figure 3, election safety: no service is better than a wrong one."""
    a = elected(raft())
    with pytest.raises(RaftBroken):
        a.step(9, Append(term=a.term, source="b", prev_index=0, prev_term=0, commit=0, stamp=9))


# replication


def test_an_append_that_does_not_fit_is_refused() -> None:
    """Raft 5.3: the entry before the new ones must be the same, index and term."""
    a = raft(terms=(1, 1))
    assert append(a, 9, term=2, prev_index=2, prev_term=1).matched
    assert not append(a, 9, term=2, prev_index=3, prev_term=1).matched
    assert not append(a, 9, term=2, prev_index=2, prev_term=2).matched
    assert not append(a, 9, term=1, prev_index=0, prev_term=0).matched  # an old leader


def test_a_conflict_cuts_the_log_and_a_repetition_does_not() -> None:
    """Raft figure 2, AppendEntries 3 and 4: a late repetition must not shorten the log."""
    a = raft(terms=(1, 1, 1))
    append(a, 9, term=2, prev_index=0, entries=(LogEntry(1, b"x1"),))
    assert a.log.last_index == 3
    a.step(
        9,
        Append(
            term=2,
            source="b",
            prev_index=1,
            prev_term=1,
            commit=0,
            stamp=9,
            entries=(LogEntry(2, b"y"),),
        ),
    )
    effects = a.take_effects()
    assert [e.term for e in a.log.entries_from(1)] == [1, 2]
    assert (effects.log.first, effects.log.entries) == (2, (LogEntry(2, b"y"),))


def test_what_is_committed_is_never_cut() -> None:
    """Raft figure 3, leader completeness: such a leader cannot exist."""
    a = raft(terms=(1, 1))
    append(a, 9, term=2, prev_index=2, prev_term=1, commit=2)
    with pytest.raises(RaftBroken):
        append(a, 9, term=3, source="c", prev_index=1, prev_term=1, entries=(LogEntry(3, b"z"),))


def test_a_follower_commits_only_what_it_knows_to_match() -> None:
    """Raft figure 2, AppendEntries 5: the minimum of leaderCommit and the last new entry."""
    a = raft(terms=(1, 1, 1))
    append(a, 9, term=2, prev_index=1, prev_term=1, commit=3)
    assert a.commit == 1


def test_a_mismatch_steps_back_a_term_at_a_time() -> None:
    """Raft 5.3, last paragraphs: one refusal for each conflicting term, not for each entry."""
    leader = elected(raft("a", terms=(1, 1, 4, 4, 5, 5, 6, 6)))
    follower = raft("b", terms=(1, 1, 2, 2, 2, 3, 3, 3, 3, 3))
    appends = sent(leader.take_effects(), Append)
    probes = 0
    while follower.log.entries_from(1) != leader.log.entries_from(1):
        follower.step(9, next(m for m in appends if m.term))
        [reply] = sent(follower.take_effects(), AppendReply)
        leader.step(9, reply)
        appends = [
            m for p, m in leader.take_effects().messages if p == "b" and isinstance(m, Append)
        ]
        probes += 1
    assert probes <= 4


def test_one_append_is_outstanding_for_each_follower() -> None:
    """A slow follower is not flooded. Heartbeats in the meantime are empty, and the reply to one of
    them shows that an Append was lost, and must be repeated."""
    a = elected(raft("a"), 9)
    a.take_effects()
    a.propose(9, b"one")
    a.propose(9, b"two")
    assert sent(a.take_effects(), Append) == []
    confirm(a, 9, "b", 1)
    [to_b] = sent(a.take_effects(), Append)[:1]
    assert [e.data for e in to_b.entries] == [b"one", b"two"]
    a.tick(10.1)
    beats = sent(a.take_effects(), Append)
    assert [(m.prev_index, m.entries) for m in beats] == [(1, ()), (0, ())]
    a.step(10.2, AppendReply(term=1, source="b", matched=True, index=1, stamp=10.1))
    assert sent(a.take_effects(), Append) == [replace(to_b, stamp=10.2)]


def test_what_carries_no_entries_holds_none_up() -> None:
    """An entry that is proposed while a commit is being announced is sent at once, and the reply to
    the first request does not count for the second, though both were sent at the same time."""
    a = elected(raft("a"), 9)
    a.take_effects()
    confirm(a, 10, "b", 1)
    a.propose(10, b"one")
    told, loaded = [m for p, m in a.take_effects().messages if p == "b" and isinstance(m, Append)]
    assert (told.entries, [e.data for e in loaded.entries]) == ((), [b"one"])
    a.propose(10, b"two")
    a.step(10.5, AppendReply(term=1, source="b", matched=True, index=1, stamp=told.stamp))
    assert not sent(a.take_effects(), Append)
    a.step(10.5, AppendReply(term=1, source="b", matched=True, index=2, stamp=loaded.stamp))
    [following] = [m for p, m in a.take_effects().messages if p == "b" and isinstance(m, Append)]
    assert [e.data for e in following.entries] == [b"two"]


@pytest.mark.parametrize("one_way_s", [0.25, 1.25])
def test_late_answers_start_no_more_streams(one_way_s: float) -> None:
    """Each entry goes to each follower once, whether answers take less than a heartbeat or more."""
    lives = {name: raft(name) for name in MEMBERS}
    leader, wires = elected(lives["a"], 9), deque[tuple[float, str, Message]]()
    for name in "bc":
        ask(lives[name], 9, source="a", term=leader.term)
    told, now = 0, 9.0
    while now < 60:
        now += 0.125
        leader.propose(now, b"x")
        leader.tick(now)
        while wires and wires[0][0] <= now:
            _, name, message = wires.popleft()
            lives[name].step(now, message)
        for life in lives.values():
            messages = life.take_effects().messages
            told += sum(len(m.entries) for p, m in messages if p == "b" and isinstance(m, Append))
            wires.extend((now + one_way_s, peer, message) for peer, message in messages)
    assert leader.commit > 300
    assert leader.commit <= told <= leader.log.last_index


def test_who_lost_what_it_had_confirmed_is_not_asked_at_once_again() -> None:
    """The reply would be the same: the leader waits for the heartbeat, or both would loop."""
    leader = elected(raft(terms=(1, 1)))
    leader.take_effects()
    confirm(leader, 9, "b", 3)
    leader.take_effects()
    leader.propose(9, b"x")
    [probe] = [m for p, m in leader.take_effects().messages if p == "b" and isinstance(m, Append)]
    assert probe.prev_index == 3
    lost = AppendReply(
        term=leader.term,
        source="b",
        matched=False,
        index=3,
        stamp=probe.stamp,
        hint_index=1,
        hint_term=0,
    )
    leader.step(9.1, lost)
    assert not leader.take_effects().messages
    leader.tick(leader.wake_at)
    assert [m.prev_index for p, m in leader.take_effects().messages if p == "b"] == [3]


def test_batches_are_capped() -> None:
    """A follower far behind gets the log in frames that fit."""
    log = RaftLog([LogEntry(1, bytes(100_000))] * 10)
    assert len(log.entries_from(1, 256 * 1024)) == 2
    assert len(RaftLog([LogEntry(1, bytes(10**6))]).entries_from(1, 256 * 1024)) == 1


# commitment


def test_an_entry_is_committed_by_a_majority() -> None:
    """Raft 5.3: applied once, in order, and not before a majority holds it."""
    a = elected(raft("a"))
    a.propose(9, b"one")
    assert a.take_effects().committed == ()
    confirm(a, 9, "b", 2)
    assert [(i, e.data) for i, e in a.take_effects().committed] == [(1, b""), (2, b"one")]
    confirm(a, 9, "c", 2)
    assert a.take_effects().committed == ()


def test_copies_of_an_old_term_are_not_commitment() -> None:
    """Raft 5.4.2, figure 8: (c) an entry of term 2 on a majority, under the leader of term 4."""
    log = RaftLog([LogEntry(1, b""), LogEntry(2, b""), LogEntry(4, b"")])
    assert commit_index([3, 2, 2, 1, 1], log.term_at, term=4) == 0
    assert commit_index([3, 3, 3, 1, 1], log.term_at, term=4) == 3


def test_figure_8_as_it_happened() -> None:
    """Raft figure 8: s1 replicates its old entry, crashes, and s5 overwrites it: (c) to (d).

    With a rule that counts copies of any term, s1 commits the entry of term 2 that s5 later cuts.
    """
    names = ("s1", "s2", "s3", "s4", "s5")

    def s1_commits(rules: Rules) -> int:
        s1 = elected(raft("s1", names, terms=(1, 2), vote=Vote(3), rules=rules))
        for peer in ("s2", "s3"):
            confirm(s1, 9, peer, 2)
        return s1.commit

    def careless(matches: Any, term_at: Any, term: int) -> int:
        return sorted(matches, reverse=True)[len(matches) // 2]

    assert s1_commits(RULES) == 0
    assert s1_commits(replace(RULES, commit_index=careless)) == 2
    s5 = raft("s5", names, terms=(1, 3), vote=Vote(4))
    s3 = raft("s3", names, terms=(1, 2), vote=Vote(4))
    last = {"last_index": s5.log.last_index, "last_term": s5.log.last_term}
    assert ask(s3, 99, term=5, source="s5", **last).granted  # so the entry may be lost


def test_a_single_member_leads_and_commits_alone() -> None:
    """A majority of one."""
    a = raft("a", ("a",))
    a.tick(9)
    assert a.state is RaftState.LEADER
    a.propose(9, b"one")
    assert [e.data for _, e in a.take_effects().committed] == [b"", b"one"]
