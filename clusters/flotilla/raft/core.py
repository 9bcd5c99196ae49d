"""Raft without I/O: elections, the log and its commit.

The driver calls `tick(now)`, `step(now, message)`, `propose(now, data)`, `change(now, change)` and
`read(now)`, then takes the `RaftEffects` and carries them out in the order given there (see
`effects`). Only because of that order may this node count its own copy before it is on disk: no
peer can answer an entry that was not released, and a commit travels in effects behind the write
that it depends on.

The core has more than sections 5.1 to 5.4 of the paper. Pre-vote (thesis 9.6): a node that was cut
off does not disturb the others when it returns. Leader stickiness (thesis 4.2.3): a voter that
heard a leader within the election timeout refuses a vote, whatever the term of the request.
Check-quorum (thesis 6.2): a leader that a majority did not follow for an election timeout steps
down. The last two together are a lease, held by `has_quorum`: while it is true, no other leader can
exist, as long as clocks run at about the same rate, so the leader may answer reads from memory. A
node that starts again behaves as if it had just heard a leader, or the lease would not survive its
restart. Only a node that never saw a term may vote at once, and is quick, so that a new cluster
finds its leader soon.

Linearizable reads do not trust the lease (thesis 6.4). `read` notes the commit index and starts a
round. Each request to a follower carries the latest round, and each reply returns it. When a
majority has returned a round, this node still led when the round began, so a node that has applied
the noted index may answer. A leader whose own first entry is not committed yet waits for it.

The log itself defines the members (see `membership`). Requests are accepted from any node: a new
member's leader, or a candidate, may be a member by an entry that this node does not have yet
(thesis 4.1). Replies count only from members to which requests were sent.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..rules import Rules
from .effects import RaftEffects, RaftState, Role
from .follower_state import FollowerState
from .journal import RaftBroken, RaftJournal
from .leader_state import LeaderState
from .log import RaftLog
from .membership import Change, ChangeMustWait, Configuration, changed
from .messages import (
    Append,
    AppendReply,
    EntryKind,
    LogEntry,
    Message,
    SnapshotPart,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)
from .snapshot import Snapshot
from .votes import Vote, Voter

NEVER = float("-inf")


@dataclass(frozen=True)
class RaftTiming:
    heartbeat_s: float
    election_s: float  # the minimum election timeout; waits are random, one to two times as long


class Raft:
    def __init__(
        self,
        me: str,
        journal: RaftJournal,
        timing: RaftTiming,
        uniform: Callable[[float, float], float],
        rules: Rules,
        now: float,
        *,
        vote: Vote | None = None,
    ) -> None:
        self.me = me
        self.vote = vote or Vote()
        self.journal = journal
        self.state = RaftState.FOLLOWER
        self.leader: str | None = None
        self.leading: LeaderState | None = None
        self._timing = timing
        self._uniform = uniform
        self._rules = rules
        self._granted: set[str] = set()
        self._follower = FollowerState(me, journal)
        self._vote: Vote | None = None  # not taken yet; the same goes for the next two
        self._messages: list[tuple[str, Message]] = []
        self._role: Role | None = None
        self._heard_at = now if self.term else NEVER
        self._wake_at = now
        self._wait_for_election(now)

    @property
    def term(self) -> int:
        return self.vote.term

    @property
    def log(self) -> RaftLog:
        return self.journal.log

    @property
    def commit(self) -> int:
        return self.journal.commit

    @property
    def members(self) -> Configuration:
        return self.journal.members

    @property
    def peers(self) -> tuple[str, ...]:
        return self.members.others(self.me)

    @property
    def wake_at(self) -> float:
        """When `tick` is due."""
        return self._wake_at

    # input

    def tick(self, now: float) -> None:
        if self.leading and not self.has_quorum(now):
            self._follow(now, self.term, None)
        elif now >= self._wake_at and self.leading:
            self._wake_at = now + self._timing.heartbeat_s
            self.leading.send_heartbeats(now)
        elif now >= self._wake_at and self._may_campaign():
            self._campaign(now, pre=True)
        elif now >= self._wake_at:
            self._follow(now, self.term, None)
            self._wait_for_election(now)

    def propose(self, now: float, data: bytes) -> int | None:
        """Append an entry. Return its index; None if this node does not lead."""
        return self._append(now, LogEntry(self.term, data)) if self.leading else None

    def change(self, now: float, change: Change) -> int | None:
        """Append a new configuration. Return its index; None if this node does not lead.

        If there is nothing to change, return the index of the present configuration. Raises
        ChangeRefused or ChangeMustWait.
        """
        if self.leading is None:
            return None
        members = changed(self.members, change)
        if not self.leading.may_change_members:
            raise ChangeMustWait(
                "the change before, or this leader's first entry, is not committed"
            )
        if members == self.members:
            return self.journal.members_index
        return self._configure(now, members)

    def read(self, now: float) -> int | None:
        """Start a linearizable read. Return its round; None if this node does not lead.

        `RaftEffects.readable` tells when the round is over.
        """
        if self.leading is None:
            return None
        number = self.leading.start_read()
        self.leading.send_to_all(now)
        return number

    def compact(self, snapshot: Snapshot) -> None:
        """Compact the log: a snapshot of the state machine after an applied entry is on disk."""
        self.journal.compact(snapshot)

    def step(self, now: float, message: Message) -> None:
        if isinstance(message, VoteRequest):
            self._on_vote_request(now, message)
            return
        # a granted pre-vote carries the term that this node asked about, and starts none
        granted_pre_vote = isinstance(message, VoteReply) and message.pre and message.granted
        if message.term > self.term and not granted_pre_vote:
            self._follow(now, message.term, None)
        match message:
            case Append() | SnapshotPart():
                self._on_request(now, message)
            case VoteReply():
                self._on_vote_reply(now, message)
            case AppendReply() | SnapshotReply():
                self._on_reply(now, message)

    # output

    def take_effects(self) -> RaftEffects:
        """Return all effects since the last call."""
        vote, messages, role = self._vote, self._messages, self._role
        self._vote, self._messages, self._role = None, [], None
        return RaftEffects(
            vote=vote,
            hard_state=self._rules.hard_state(self.vote),
            log=self.journal.take_change(),
            messages=tuple(messages),
            committed=self.journal.take_committed(),
            readable=self.leading.readable() if self.leading else 0,
            role=role,
        )

    def has_quorum(self, now: float) -> bool:
        """Return whether a majority, this node included, followed it within the election
        timeout."""
        return self.leading is not None and self.leading.has_quorum(now, self._timing.election_s)

    # elections (Raft 5.2, 5.4.1; thesis 4.2.2, 4.2.3, 9.6)

    def _may_campaign(self) -> bool:
        """Return whether this node is a voter, or one whose removal may need its vote to commit."""
        if self.me in self.members.voters:
            return True
        journal = self.journal
        undecided = journal.commit < journal.members_index
        return undecided and self.me in journal.members_at(journal.commit).voters

    def _campaign(self, now: float, *, pre: bool) -> None:
        self.state = RaftState.PRE_CANDIDATE if pre else RaftState.CANDIDATE
        if not pre:
            self._set_vote(Vote(self.term + 1, self.me))
        self.leader = None
        self._wait_for_election(now)
        self._granted = {self.me}
        self._note_role()
        request = VoteRequest(
            term=self.term + 1 if pre else self.term,
            source=self.me,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            pre=pre,
        )
        for peer in self.peers:
            if peer in self.members.voters:
                self._send(peer, request)
        self._count_votes(now)

    def _on_vote_request(self, now: float, request: VoteRequest) -> None:
        sticky = self._hears_leader(now)
        if request.term > self.term and not request.pre and not sticky:
            self._follow(now, request.term, None)
        last = self.log.last_term, self.log.last_index
        voter = Voter(self.term, self.vote.voted_for, *last, hears_leader=sticky)
        granted = self._rules.may_grant_vote(voter, request)
        if granted and not request.pre:
            self._set_vote(Vote(self.term, request.source))
            self._wait_for_election(now)
        term = request.term if granted else self.term
        reply = VoteReply(term=term, source=self.me, granted=granted, pre=request.pre)
        self._send(request.source, reply)

    def _on_vote_reply(self, now: float, reply: VoteReply) -> None:
        requested_term = self.term + 1 if reply.pre else self.term
        wanted = RaftState.PRE_CANDIDATE if reply.pre else RaftState.CANDIDATE
        if self.state is wanted and reply.granted and reply.term == requested_term:
            self._granted.add(reply.source)
            self._count_votes(now)

    def _count_votes(self, now: float) -> None:
        if len(self._granted & self.members.voters.keys()) < self.members.majority:
            return
        if self.state is RaftState.PRE_CANDIDATE:
            self._campaign(now, pre=False)
        elif self.state is RaftState.CANDIDATE:
            self._lead(now)

    def _lead(self, now: float) -> None:
        self.state, self.leader = RaftState.LEADER, self.me
        self._wake_at = now + self._timing.heartbeat_s
        self._note_role()
        self.leading = LeaderState(self.me, self.term, self.journal, self._rules, self._send, now)
        self._append(now, LogEntry(self.term, b""))

    def _follow(self, now: float, term: int, leader: str | None) -> None:
        if term > self.term:
            self._set_vote(Vote(term))
        was_leader = self.state is RaftState.LEADER
        if was_leader:
            self._heard_at = NEVER
        if was_leader or leader is not None:
            self._wait_for_election(now)
        self.state, self.leader, self.leading = RaftState.FOLLOWER, leader, None
        self._note_role()

    def _hears_leader(self, now: float) -> bool:
        if self.leading:
            return self.has_quorum(now)
        return now - self._heard_at < self._timing.election_s

    # a follower (Raft 5.3, 7)

    def _on_request(self, now: float, request: Append | SnapshotPart) -> None:
        if request.term == self.term:
            if self.leading:
                raise RaftBroken(f"{request.source} leads term {self.term}, too")
            if self.state is not RaftState.FOLLOWER or self.leader != request.source:
                self._follow(now, request.term, request.source)
            self._heard_at = now
            self._wait_for_election(now)
        if isinstance(request, Append):
            self._send(request.source, self._follower.on_append(self.term, request))
        else:
            self._send(request.source, self._follower.on_snapshot_part(self.term, request))

    # a leader (Raft 5.3, 5.4.2; thesis 4)

    def _on_reply(self, now: float, reply: AppendReply | SnapshotReply) -> None:
        leading = self.leading
        if reply.term != self.term or leading is None or reply.source not in leading.followers:
            return
        if isinstance(reply, SnapshotReply):
            leading.on_snapshot_reply(reply)
        elif not leading.on_append_reply(reply):
            return  # the next heartbeat repeats the request
        self._advance_commit(now)
        if self.leading and reply.source in leading.followers:
            leading.send_to(reply.source, now)

    def _append(self, now: float, entry: LogEntry) -> int:
        index = self.journal.append(entry)
        if self.leading:
            if entry.kind == EntryKind.MEMBERS:
                self.leading.update_members(now)
            self.leading.send_to_all(now)
        self._advance_commit(now)
        return index

    def _configure(self, now: float, members: Configuration) -> int:
        return self._append(now, LogEntry(self.term, members.pack(), EntryKind.MEMBERS))

    def _advance_commit(self, now: float) -> None:
        leading = self.leading
        if leading is None:
            return
        commit = leading.commit_index()
        if commit > self.commit:
            self.journal.commit = commit
            leading.send_to_all(now)
        if leading.is_removed:
            self._follow(now, self.term, None)
        elif self.members.learners and leading.may_change_members:
            members = leading.promotion(now, self._timing.election_s)
            if members is not None:
                self._configure(now, members)

    # effects

    def _send(self, peer: str, message: Message) -> None:
        self._messages.append((peer, message))

    def _set_vote(self, vote: Vote) -> None:
        self.vote = self._vote = vote

    def _wait_for_election(self, now: float) -> None:
        least, most = (1.0, 2.0) if self.term else (0.1, 0.6)
        self._wake_at = now + self._uniform(least, most) * self._timing.election_s

    def _note_role(self) -> None:
        self._role = Role(self.state, self.term, self.leader)
