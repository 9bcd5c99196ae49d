"""Raft's elections over the commit log: brokers elect the master of their set themselves.

The log itself is the replicated log: a term is an epoch, and an index is an offset. So a candidate
shows the epoch of its last record and the end of its log, and wins with the votes of a majority of
all configured brokers (Raft 5.2, 5.4.1). `raft.votes` decides who gets a vote, as it does for the
controllers. Copying is not here: slaves copy as in every other mode (`ha_master`, `ha_slave`).

What a leader does beyond the paper is what the controllers' Raft does (`raft.core`): pre-vote, so
that a broker that was cut off disturbs no one when it returns (thesis 9.6); stickiness, so that a
voter that hears a leader refuses votes (thesis 4.2.3); check-quorum, so that a leader whom a
majority does not answer steps down (thesis 6.2).

Times are DLedger's. A leader sends a beat every `heartBeatTimeIntervalMs`. `maxHeartBeatLeak` of
these intervals without a beat let a follower doubt its leader, and without answers of a majority
they end the leader's term. Attempts to be elected are a random time between `minVoteIntervalMs` and
`maxVoteIntervalMs` apart. A broker that starts asks for votes after such a time, since it has heard
no leader: after a power cut of all brokers nothing waits for a leader that no longer exists.

**A term begins with a record of its own** (`opens_epoch`), and commits nothing before that record
has a majority: earlier records are never committed by counting copies (Raft 5.4.2, figure 8), so
without it the end of an old leader's log would stay undecided until the next message.

Pure: no clock, socket or file. The driver is `steering.ballot_role`. It stops copying before it
calls `tick` while `begins_term` is true, because the log that a candidate shows must stay; and it
writes `BallotEffects.vote` to the disk before it sends anything or answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..raft.effects import RaftState, Role
from ..raft.journal import RaftBroken
from ..raft.messages import VoteReply, VoteRequest
from ..raft.votes import Vote, Voter

NEVER = float("-inf")


class LogEnd(NamedTuple):
    """The epoch of a log's last record, 0 if there is none, and the offset after it."""

    epoch: int
    offset: int


@dataclass(frozen=True)
class BallotTiming:
    """In seconds; see the module."""

    heartbeat_s: float
    max_leak: int
    min_vote_s: float
    max_vote_s: float

    @property
    def doubt_s(self) -> float:
        return self.heartbeat_s * self.max_leak


@dataclass(frozen=True)
class Beat:
    """A leader's sign of life."""

    term: int
    source: str


Message = VoteRequest | Beat


class BallotEffects(NamedTuple):
    """Carried out in this order; see the module."""

    vote: Vote | None  # if it changed
    role: Role | None  # if it changed
    messages: Sequence[tuple[str, Message]]


def opens_epoch(elected_by_votes: bool, end: int) -> bool:
    """Decide whether a new master, whose log ends at `end`, appends a record without a message
    before anything else (Raft 8).

    Where controllers elect, all members hold what was acknowledged, and nothing is undecided.
    """
    return elected_by_votes


class LogElection:
    """One broker's part in the elections of its set."""

    def __init__(
        self,
        me: str,
        peers: Sequence[str],
        timing: BallotTiming,
        uniform: Callable[[float, float], float],
        may_grant_vote: Callable[[Voter, VoteRequest], bool],
        now: float,
        vote: Vote,
    ) -> None:
        self.me, self.peers, self.vote = me, tuple(peers), vote
        self.state = RaftState.FOLLOWER
        self.leader: str | None = None
        self._timing, self._uniform, self._may_grant_vote = timing, uniform, may_grant_vote
        self._granted: set[str] = set()
        self._refused: set[str] = set()
        self._won_pre_vote = False
        self._answered_at: dict[str, float] = {}  # by peer: when the latest answered beat was sent
        self._heard_at = NEVER
        self._vote: Vote | None = None  # not taken yet; the same goes for the next two
        self._role: Role | None = None
        self._messages: list[tuple[str, Message]] = []
        self.wake_at = now + self._pause()

    @property
    def term(self) -> int:
        return self.vote.term

    @property
    def leads(self) -> bool:
        return self.state is RaftState.LEADER

    @property
    def majority(self) -> int:
        return (len(self.peers) + 1) // 2 + 1

    def begins_term(self, now: float) -> bool:
        """Return whether `tick` asks for votes in a new term."""
        return self._won_pre_vote and now >= self.wake_at

    # input

    def tick(self, now: float, log: LogEnd | None) -> None:
        """Do what is due. `log` None: this broker cannot lead now, since its disk is full."""
        if self.leads and not self.has_quorum(now):
            self._follow(now, self.term, None)
        elif now < self.wake_at:
            return
        elif self.leads:
            self._send_beats(now)
        elif log is None:
            self._won_pre_vote = False
            self.wake_at = now + self._timing.doubt_s
        else:
            self._campaign(now, log, pre=not self._won_pre_vote)

    def on_vote_request(self, now: float, request: VoteRequest, log: LogEnd) -> VoteReply:
        sticky = self._hears_leader(now)
        if request.term > self.term and not request.pre and not sticky:
            self._follow(now, request.term, None)
        voter = Voter(self.term, self.vote.voted_for, log.epoch, log.offset, hears_leader=sticky)
        granted = self._may_grant_vote(voter, request)
        if granted and not request.pre:
            self._set_vote(Vote(self.term, request.source))
            self.wake_at = now + self._timing.heartbeat_s + self._pause()
        term = request.term if granted else self.term
        return VoteReply(term=term, source=self.me, granted=granted, pre=request.pre)

    def on_vote_reply(self, now: float, reply: VoteReply) -> None:
        if reply.term > self.term and not (reply.pre and reply.granted):
            self._follow(now, reply.term, None)
            return
        wanted = RaftState.PRE_CANDIDATE if reply.pre else RaftState.CANDIDATE
        if self.state is not wanted or self._won_pre_vote:
            return
        if not reply.granted:
            self._refused.add(reply.source)
            if len(self._refused) > len(self.peers) + 1 - self.majority:  # it cannot be elected
                self.wake_at = min(self.wake_at, now + self._pause())
        elif reply.term == self.term + reply.pre:
            self._granted.add(reply.source)
            self._count_votes(now)

    def on_beat(self, now: float, beat: Beat) -> int:
        """Hear a leader. Return this broker's term, which deposes a leader of an earlier one.

        Raises RaftBroken if this broker leads the same term.
        """
        if beat.term < self.term:
            return self.term
        if beat.term == self.term and self.leads:
            raise RaftBroken(f"{beat.source} leads term {self.term}, too")
        if beat.term > self.term or self.leader != beat.source or self._is_candidate():
            self._follow(now, beat.term, beat.source)
        self._heard_at = now
        self.wake_at = now + self._timing.doubt_s + self._pause()
        return self.term

    def on_beat_reply(self, now: float, peer: str, term: int, sent_at: float) -> None:
        """Take the answer to a beat that was sent at `sent_at`."""
        if term > self.term:
            self._follow(now, term, None)
        elif self.leads and term == self.term:
            self._answered_at[peer] = max(sent_at, self._answered_at[peer])

    def resign(self, now: float) -> None:
        """Lead no longer; for a leader that cannot write."""
        if self.leads:
            self._follow(now, self.term, None)

    # output

    def take_effects(self) -> BallotEffects:
        """Return all effects since the last call."""
        effects = BallotEffects(self._vote, self._role, self._messages)
        self._vote, self._role, self._messages = None, None, []
        return effects

    def has_quorum(self, now: float) -> bool:
        """Return whether a majority, this broker included, answered beats of the last doubt_s."""
        answered = sorted(self._answered_at.values(), reverse=True)
        others = self.majority - 1
        return others == 0 or now - answered[others - 1] < self._timing.doubt_s

    # inside

    def _hears_leader(self, now: float) -> bool:
        if self.leads:
            return self.has_quorum(now)
        return now - self._heard_at < self._timing.doubt_s

    def _is_candidate(self) -> bool:
        return self.state in (RaftState.PRE_CANDIDATE, RaftState.CANDIDATE)

    def _campaign(self, now: float, log: LogEnd, *, pre: bool) -> None:
        self.state = RaftState.PRE_CANDIDATE if pre else RaftState.CANDIDATE
        self._won_pre_vote = False
        if not pre:
            self.leader = None
            self._set_vote(Vote(self.term + 1, self.me))
        self._note_role()
        self._granted, self._refused = {self.me}, set()
        self.wake_at = now + self._timing.heartbeat_s + self._pause()
        request = VoteRequest(
            term=self.term + pre,
            source=self.me,
            last_index=log.offset,
            last_term=log.epoch,
            pre=pre,
        )
        self._messages += [(peer, request) for peer in self.peers]
        self._count_votes(now)

    def _count_votes(self, now: float) -> None:
        if len(self._granted) < self.majority:
            return
        if self.state is RaftState.PRE_CANDIDATE:
            self._won_pre_vote, self.wake_at = True, now
        else:
            self.state, self.leader = RaftState.LEADER, self.me
            self._answered_at = dict.fromkeys(self.peers, now)
            self._note_role()
            self._send_beats(now)

    def _send_beats(self, now: float) -> None:
        self.wake_at = now + self._timing.heartbeat_s
        self._messages += [(peer, Beat(self.term, self.me)) for peer in self.peers]

    def _follow(self, now: float, term: int, leader: str | None) -> None:
        if term > self.term:
            self._set_vote(Vote(term))
        if self.leads:
            self._heard_at = NEVER
            self._messages = []
        self.state, self.leader = RaftState.FOLLOWER, leader
        self._won_pre_vote = False
        self.wake_at = now + self._pause()
        self._note_role()

    def _pause(self) -> float:
        return self._uniform(self._timing.min_vote_s, self._timing.max_vote_s)

    def _set_vote(self, vote: Vote) -> None:
        self.vote = self._vote = vote

    def _note_role(self) -> None:
        self._role = Role(self.state, self.term, self.leader)
