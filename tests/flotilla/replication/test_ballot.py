"""Elections over the commit log, without clock, socket or file (replication/ballot.py)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from clusters.flotilla.config import ConfigError
from clusters.flotilla.node import configure
from clusters.flotilla.raft.effects import RaftState
from clusters.flotilla.raft.journal import RaftBroken
from clusters.flotilla.raft.messages import VoteReply, VoteRequest
from clusters.flotilla.raft.votes import Vote, Voter, may_grant_vote
from clusters.flotilla.replication.ballot import BallotTiming, Beat, LogElection, LogEnd
from clusters.flotilla.steering.ballot_role import pack_vote, unpack_vote
from clusters.flotilla.world.ports import real

TIMING = BallotTiming(heartbeat_s=2.0, max_leak=3, min_vote_s=0.3, max_vote_s=1.0)
NAMES = ("n0", "n1", "n2")
LOG, NO_VOTE = LogEnd(3, 500), Vote()
MayGrant = Callable[[Voter, VoteRequest], bool]


def ballot(me: str = "n0", vote: Vote = NO_VOTE, names: tuple[str, ...] = NAMES) -> LogElection:
    others = [name for name in names if name != me]
    return LogElection(me, others, TIMING, lambda low, high: low, may_grant_vote, 0.0, vote)


def asks(term: int, log: LogEnd = LOG, source: str = "n1", pre: bool = False) -> VoteRequest:
    return VoteRequest(
        term=term, source=source, last_index=log.offset, last_term=log.epoch, pre=pre
    )


def leader(term: int = 4) -> LogElection:
    """A leader since 0.3 s, by the vote of n1."""
    one = ballot(vote=Vote(term - 1))
    one.tick(0.3, LOG)
    one.on_vote_reply(0.3, VoteReply(term=term, source="n1", granted=True, pre=True))
    assert one.begins_term(0.3)
    one.tick(0.3, LOG)
    one.on_vote_reply(0.3, VoteReply(term=term, source="n1", granted=True, pre=False))
    assert one.leads
    one.take_effects()
    return one


@pytest.mark.parametrize(
    ("log", "granted"),
    [
        (LOG, True),
        (LogEnd(3, 499), False),
        (LogEnd(2, 900), False),  # longer, and of an earlier epoch
        (LogEnd(4, 10), True),
    ],
)
def test_a_vote_goes_to_a_log_that_is_as_good(log: LogEnd, granted: bool) -> None:
    """Raft 5.4.1, with (last epoch, end) for (last term, last index)."""
    one = ballot(vote=Vote(7))
    assert one.on_vote_request(1.0, asks(8, log), LOG).granted is granted
    assert one.term == 8


def test_one_vote_a_term() -> None:
    """Raft 5.2; the same candidate may ask again, since an answer may be lost."""
    one = ballot()
    assert one.on_vote_request(1.0, asks(1, source="n1"), LOG).granted
    assert one.take_effects().vote == Vote(1, "n1")
    assert not one.on_vote_request(1.0, asks(1, source="n2"), LOG).granted
    assert one.on_vote_request(1.0, asks(1, source="n1"), LOG).granted


def test_a_pre_vote_starts_no_term() -> None:
    """Neither for the one that asks nor for the one that grants it (thesis 9.6)."""
    one, other = ballot("n0", Vote(5)), ballot("n1", Vote(5))
    one.tick(0.3, LOG)
    [(_, request), _] = one.take_effects().messages
    assert isinstance(request, VoteRequest)
    assert request.pre
    assert other.on_vote_request(0.3, request, LOG).granted
    assert (one.vote, other.vote) == (Vote(5), Vote(5))


def test_a_voter_that_hears_a_leader_refuses_and_keeps_its_term() -> None:
    """For as long as it does not doubt it (thesis 4.2.3)."""
    one = ballot(vote=Vote(4))
    one.on_beat(10.0, Beat(4, "n2"))
    assert not one.on_vote_request(15.9, asks(9), LOG).granted
    assert one.term == 4
    assert one.on_vote_request(16.0, asks(9), LOG).granted


def test_a_follower_asks_for_votes_after_three_missing_beats() -> None:
    one = ballot(vote=Vote(4))
    one.on_beat(10.0, Beat(4, "n2"))
    assert one.wake_at == pytest.approx(16.3)
    one.tick(16.2, LOG)
    assert one.state is RaftState.FOLLOWER
    one.tick(16.3, LOG)
    assert one.state is RaftState.PRE_CANDIDATE


def test_a_leader_that_a_majority_does_not_answer_steps_down() -> None:
    """After the same time (thesis 6.2)."""
    one = leader()
    one.on_beat_reply(2.5, "n1", 4, sent_at=2.3)
    one.tick(8.2, LOG)
    assert one.leads
    one.tick(8.3, LOG)
    assert not one.leads


def test_a_later_term_ends_a_leader_s() -> None:
    """As the answer to a beat, as another leader's beat, and not by an earlier leader's."""
    one = leader(4)
    one.on_beat_reply(1.0, "n2", 6, sent_at=0.9)
    assert (one.leads, one.term) == (False, 6)
    two = leader(4)
    assert two.on_beat(1.0, Beat(3, "n2")) == 4
    assert two.leads
    assert two.on_beat(1.0, Beat(5, "n2")) == 5
    assert (two.leads, two.leader) == (False, "n2")
    with pytest.raises(RaftBroken):
        leader(4).on_beat(1.0, Beat(4, "n1"))


def test_a_broker_with_a_full_disk_does_not_ask() -> None:
    one = ballot()
    one.tick(0.3, None)
    assert (one.state, one.take_effects().messages) == (RaftState.FOLLOWER, [])


def test_one_broker_alone_leads_and_two_need_both() -> None:
    one = ballot(names=("n0",))
    one.tick(0.3, LOG)
    one.tick(0.3, LOG)
    assert one.leads
    two = ballot(names=("n0", "n1"))
    for _ in range(5):
        two.tick(two.wake_at, LOG)
    assert not two.leads
    assert two.term == 0


def test_a_damaged_vote_is_noticed() -> None:
    packed = pack_vote(Vote(7, "n1"))
    assert unpack_vote(packed) == Vote(7, "n1")
    assert unpack_vote(pack_vote(Vote(7))) == Vote(7)
    for at in range(len(packed)):
        damaged = packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :]
        with pytest.raises(ValueError, match="no vote"):
            unpack_vote(damaged)


HERE = 'role = "broker"\nnodeName = "b"\nlistenHost = "h"\nstorePath = "s"\nhaMode = "raft-log"\n'


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("", "n0, n1 ...; not ''"),
        ('dLegerSelfId = "a"\ndLegerPeers = {a = "h:10911"}', "n0, n1 ...; not 'a'"),
        ('dLegerSelfId = "n0"\ndLegerPeers = {n1 = "h:10911"}', "must have n0, this broker, at h"),
        ('dLegerSelfId = "n0"\ndLegerPeers = {n0 = "g:10911"}', "it has n0 at g:10911"),
        (
            'dLegerSelfId = "n0"\ndLegerPeers = {n0 = "h:10911", n1 = "h:10911"}',
            "one address twice",
        ),
        ('dLegerSelfId = "n0"\ndLegerPeers = {n0 = "h"}', "addresses ip:port, not 'h'"),
        ("maxHeartBeatLeak = 1", "maxHeartBeatLeak must be at least 2"),
    ],
)
def test_a_group_that_cannot_vote_is_refused(tmp_path: Path, keys: str, words: str) -> None:
    """With a sentence, before the node starts."""
    path = tmp_path / "node.toml"
    path.write_text(HERE + keys)
    with pytest.raises(ConfigError, match=words):
        configure([str(path)], real(None).files)


class Group:
    """Five brokers, a network that loses, repeats and delays, and disks that keep votes."""

    def __init__(self, seed: int, may_grant: MayGrant) -> None:
        self.random, self.now, self.may_grant = Random(seed), 0.0, may_grant
        self.names = tuple(f"n{n}" for n in range(5))
        self.disk = dict.fromkeys(self.names, Vote())
        self.logs = {name: LogEnd(1, self.random.randrange(4)) for name in self.names}
        self.ballots = {name: self.begun(name) for name in self.names}
        self.wire: list[tuple[float, str, str, object]] = []  # when, from, to, message
        self.leaders: dict[int, str] = {}

    def begun(self, name: str) -> LogElection:
        others = [other for other in self.names if other != name]
        return LogElection(
            name, others, TIMING, self.random.uniform, self.may_grant, self.now, self.disk[name]
        )

    def post(self, source: str, target: str, message: object) -> None:
        for _ in range(self.random.choice((0, 1, 1, 1, 1, 2))):
            due = self.now + self.random.choice((0.01, 0.05, 0.3, 3.0))
            self.wire.append((due, source, target, message))

    def settle(self, name: str) -> None:
        """Write what the broker decided to its disk; then send."""
        effects = self.ballots[name].take_effects()
        if effects.vote is not None:
            assert effects.vote.term >= self.disk[name].term
            self.disk[name] = effects.vote
        if effects.role is not None and effects.role.state is RaftState.LEADER:
            assert self.leaders.setdefault(effects.role.term, name) == name
            voters = [n for n in self.names if self.disk[n] == Vote(effects.role.term, name)]
            assert len(voters) >= 3
            assert all(self.logs[name] >= self.logs[voter] for voter in voters)
        for peer, message in effects.messages:
            self.post(name, peer, message)

    def step(self) -> None:
        self.now += 0.05
        due = [sent for sent in self.wire if sent[0] <= self.now]
        self.wire = [sent for sent in self.wire if sent[0] > self.now]
        for _, source, target, message in due:
            self.receive(source, target, message)
        for name in self.names:
            if self.random.random() < 0.002:
                self.ballots[name] = self.begun(name)  # it starts again
            self.ballots[name].tick(self.now, self.logs[name])
            self.settle(name)

    def receive(self, source: str, target: str, message: object) -> None:
        one = self.ballots[target]
        answer: object = None
        match message:
            case VoteRequest():
                answer = one.on_vote_request(self.now, message, self.logs[target])
            case VoteReply():
                one.on_vote_reply(self.now, message)
            case Beat():
                answer = (one.on_beat(self.now, message), self.now)
            case (int(term), float(sent_at)):
                one.on_beat_reply(self.now, source, term, sent_at)
        self.settle(target)
        if answer is not None:
            self.post(target, source, answer)


def leaders_of(seeds: range, may_grant: MayGrant) -> Iterator[dict[int, str]]:
    for seed in seeds:
        group = Group(seed, may_grant)
        for _ in range(1500):
            group.step()
        yield group.leaders


def test_one_leader_a_term_on_a_network_that_loses_repeats_and_delays() -> None:
    """It has the votes of a majority, whose logs end no later than its own; and there are some."""
    found = list(leaders_of(range(12), may_grant_vote))
    assert sum(map(len, found)) > 30
    assert all(found)


@pytest.mark.parametrize("flaw", ["two votes a term", "any log"])
def test_the_test_before_notices_a_broken_vote(flaw: str) -> None:
    def generous(voter: Voter, request: VoteRequest) -> bool:
        if flaw == "two votes a term":
            return may_grant_vote(replace(voter, voted_for=None), request)
        return may_grant_vote(replace(voter, last_term=0), request)

    with pytest.raises(AssertionError):
        list(leaders_of(range(12), generous))
