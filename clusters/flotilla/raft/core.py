"""Raft without I/O: who leads, what the log holds, what is committed.

The driver feeds `tick(now)`, `step(now, message)` and `propose(now, data)`, then takes the
`Effects` and carries them out in this order:

    1. write `vote` and the entries from `first` on to disk, replacing what was there, and sync
    2. send `messages`
    3. apply `committed`, in order

Nothing of a later `take` may be released before step 1 of an earlier one is done. Counting this
node's own copy before it is on disk is sound for that reason alone: no peer can answer an entry
that was not released, and a commit travels in the effects behind the write it depends on.

Beyond the paper's sections 5.1 to 5.4 the core has: pre-vote (thesis 9.6), so a node that was cut
off does not disturb the others on return; leader stickiness (thesis 4.2.3): a voter that heard a
leader within the election timeout refuses, whatever the term asked for; check-quorum (thesis 6.2):
a leader that was not followed by a majority for an election timeout steps down. Together the last
two are a lease, held by `has_quorum`: while it is true no other leader can exist, as long as clocks
run at about the same rate, so the leader may answer reads from memory. A node that starts again
behaves as if it had just heard a leader, or the lease would not survive its restart; only a node
that never saw a term is free at once, and quick, so that a new cluster finds its leader soon.
One Append is outstanding for each follower; a lost one is repeated by the next heartbeat.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..rules import Rules
from .log import Log
from .messages import Append, AppendReply, Entry, Message, VoteReply, VoteRequest
from .votes import Voter

BATCH_BYTES = 256 * 1024
NEVER = float("-inf")


class RaftBroken(Exception):
    """A peer or the disk contradicts what is committed: the node must stop."""


class State(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True)
class Timing:
    heartbeat_s: float
    election_s: float  # the least election timeout; each wait is drawn from one to two times it


@dataclass(frozen=True)
class Vote:
    """The hard state: the term, and for whom this node voted in it."""

    term: int = 0
    voted_for: str | None = None


@dataclass(frozen=True)
class Role:
    state: State
    term: int
    leader: str | None


@dataclass(frozen=True)
class Effects:
    """What the driver must carry out; see the module's docstring for the order."""

    vote: Vote | None
    first: int
    entries: tuple[Entry, ...]
    messages: tuple[tuple[str, Message], ...]
    committed: tuple[tuple[int, Entry], ...]
    role: Role | None

    @property
    def to_disk(self) -> bool:
        return self.vote is not None or self.first > 0

    def __bool__(self) -> bool:
        return bool(self.to_disk or self.messages or self.committed or self.role)


@dataclass
class Follower:
    """What a leader knows of one follower."""

    next: int
    stamp: float
    match: int = 0
    told_commit: int = -1
    in_flight: bool = False


@dataclass
class _Pending:
    """Effects not taken yet. `first` 0: no entry changed."""

    vote: Vote | None = None
    first: int = 0
    messages: list[tuple[str, Message]] = field(default_factory=list)
    role: Role | None = None


class Raft:
    def __init__(
        self,
        me: str,
        members: Sequence[str],
        timing: Timing,
        uniform: Callable[[float, float], float],
        rules: Rules,
        now: float,
        *,
        vote: Vote | None = None,
        entries: Iterable[Entry] = (),
    ) -> None:
        self.me = me
        self.peers = tuple(sorted(m for m in members if m != me))
        self.vote = vote or Vote()
        self.log = Log(entries)
        self.state = State.FOLLOWER
        self.leader: str | None = None
        self.commit = 0
        self.first_of_own_term = 0  # a leader's no-op: committed, it makes the leader complete
        self._timing = timing
        self._uniform = uniform
        self._rules = rules
        self._quorum = (len(self.peers) + 1) // 2 + 1
        self._followers: dict[str, Follower] = {}
        self._granted: set[str] = set()
        self._taken = 0
        self._pending = _Pending()
        self._heard_at = now if self.term else NEVER
        self._wake_at = now
        self._wait_for_election(now)

    @property
    def term(self) -> int:
        return self.vote.term

    @property
    def wake_at(self) -> float:
        """When `tick` has something to do."""
        return self._wake_at

    # in

    def tick(self, now: float) -> None:
        if self.state is State.LEADER and not self.has_quorum(now):
            self._follow(now, self.term, None)
        elif now >= self._wake_at and self.state is State.LEADER:
            self._wake_at = now + self._timing.heartbeat_s
            self._append_to_all(now, even_if_in_flight=True)
        elif now >= self._wake_at:
            self._campaign(now, pre=True)

    def propose(self, now: float, data: bytes) -> int | None:
        """A new entry's index; None when this node does not lead."""
        if self.state is not State.LEADER:
            return None
        self.log.append(Entry(self.term, data))
        self._changed_from(self.log.last_index)
        self._append_to_all(now)
        self._advance_commit(now)
        return self.log.last_index

    def step(self, now: float, message: Message) -> None:
        if message.source not in self.peers:
            raise ValueError(f"{message.source} is no member")
        if isinstance(message, VoteRequest):
            self._on_vote_request(now, message)
            return
        promised = isinstance(message, VoteReply) and message.pre and message.granted
        if message.term > self.term and not promised:
            self._follow(now, message.term, None)
        match message:
            case Append():
                self._on_append(now, message)
            case VoteReply():
                self._on_vote_reply(now, message)
            case AppendReply() if message.term == self.term and self.state is State.LEADER:
                self._on_append_reply(now, message)

    # out

    def take(self) -> Effects:
        """All effects since the last take."""
        pending, self._pending = self._pending, _Pending()
        committed = range(self._taken + 1, self.commit + 1)
        self._taken = self.commit
        return Effects(
            vote=pending.vote,
            first=pending.first,
            entries=self.log.since(pending.first) if pending.first else (),
            messages=tuple(pending.messages),
            committed=tuple((index, self.log[index]) for index in committed),
            role=pending.role,
        )

    def has_quorum(self, now: float) -> bool:
        """A majority, this node included, followed it within the election timeout."""
        stamps = sorted((f.stamp for f in self._followers.values()), reverse=True)
        needed = self._quorum - 1
        return self.state is State.LEADER and (
            needed == 0 or now - stamps[needed - 1] < self._timing.election_s
        )

    # elections (Raft 5.2, 5.4.1; thesis 4.2.3, 9.6)

    def _campaign(self, now: float, *, pre: bool) -> None:
        self.state = State.PRE_CANDIDATE if pre else State.CANDIDATE
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
        asked = self.term + 1 if reply.pre else self.term
        wanted = State.PRE_CANDIDATE if reply.pre else State.CANDIDATE
        if self.state is wanted and reply.granted and reply.term == asked:
            self._granted.add(reply.source)
            self._count_votes(now)

    def _count_votes(self, now: float) -> None:
        if len(self._granted) < self._quorum:
            return
        if self.state is State.PRE_CANDIDATE:
            self._campaign(now, pre=False)
        elif self.state is State.CANDIDATE:
            self._lead(now)

    def _lead(self, now: float) -> None:
        self.state, self.leader = State.LEADER, self.me
        self._wake_at = now + self._timing.heartbeat_s
        next_index = self.log.last_index + 1
        self._followers = {peer: Follower(next_index, stamp=now) for peer in self.peers}
        self._note_role()
        self.first_of_own_term = next_index
        self.propose(now, b"")

    def _follow(self, now: float, term: int, leader: str | None) -> None:
        if term > self.term:
            self._set_vote(Vote(term))
        was_leader = self.state is State.LEADER
        if was_leader:
            self._heard_at = NEVER
        if was_leader or leader is not None:
            self._wait_for_election(now)
        self.state, self.leader = State.FOLLOWER, leader
        self._followers = {}
        self._note_role()

    def _hears_leader(self, now: float) -> bool:
        if self.state is State.LEADER:
            return self.has_quorum(now)
        return now - self._heard_at < self._timing.election_s

    # replication (Raft 5.3)

    def _on_append(self, now: float, message: Append) -> None:
        if message.term < self.term:
            self._answer_append(message, matched=False)
            return
        if self.state is State.LEADER:
            raise RaftBroken(f"{message.source} leads term {self.term} too")
        if self.state is not State.FOLLOWER or self.leader != message.source:
            self._follow(now, message.term, message.source)
        self._heard_at = now
        self._wait_for_election(now)
        if self.log.term_at(message.prev_index) != message.prev_term:
            self._answer_append(message, matched=False)
            return
        self._store(message)
        last_known = message.prev_index + len(message.entries)
        self.commit = max(self.commit, min(message.commit, last_known))
        self._answer_append(message, matched=True)

    def _store(self, message: Append) -> None:
        """Skip what is there; cut at the first conflict, and only there (Raft 5.3, figure 2)."""
        for at, entry in enumerate(message.entries):
            index = message.prev_index + 1 + at
            if self.log.term_at(index) == entry.term:
                continue
            if index <= self.commit:
                raise RaftBroken(f"{message.source} contradicts the committed entry {index}")
            self.log.replace(index, message.entries[at:])
            self._changed_from(index)
            return

    def _answer_append(self, message: Append, *, matched: bool) -> None:
        index, hint_index, hint_term = message.prev_index, 0, 0
        if matched:
            index += len(message.entries)
        elif index > self.log.last_index:
            hint_index = self.log.last_index + 1
        else:
            hint_index, hint_term = self.log.first_of_term(index), self.log.term_at(index) or 0
        reply = AppendReply(
            term=self.term,
            source=self.me,
            matched=matched,
            index=index,
            stamp=message.stamp,
            hint_index=hint_index,
            hint_term=hint_term,
        )
        self._send(message.source, reply)

    def _on_append_reply(self, now: float, reply: AppendReply) -> None:
        follower = self._followers[reply.source]
        follower.stamp = max(follower.stamp, reply.stamp)
        follower.in_flight = False
        if reply.matched:
            follower.match = max(follower.match, reply.index)
            follower.next = max(follower.next, follower.match + 1)
            self._advance_commit(now)
        elif reply.index <= follower.match:
            return  # it lost what it had promised, or the reply is old: the next heartbeat asks
        elif reply.index == follower.next - 1:
            self._step_back(follower, reply)
        self._append_to(reply.source, now)

    def _step_back(self, follower: Follower, reply: AppendReply) -> None:
        """To the end of the follower's conflicting term if we have it, else to its beginning."""
        known = self.log.last_with_term(reply.hint_term, reply.index) if reply.hint_term else 0
        wanted = known + 1 if known else reply.hint_index
        follower.next = max(follower.match + 1, min(wanted, follower.next - 1))

    def _append_to_all(self, now: float, *, even_if_in_flight: bool = False) -> None:
        for peer in self.peers:
            self._append_to(peer, now, even_if_in_flight=even_if_in_flight)

    def _append_to(self, peer: str, now: float, *, even_if_in_flight: bool = False) -> None:
        follower = self._followers[peer]
        behind = follower.next <= self.log.last_index or follower.told_commit < self.commit
        if not even_if_in_flight and (follower.in_flight or not behind):
            return
        prev_index = follower.next - 1
        append = Append(
            term=self.term,
            source=self.me,
            prev_index=prev_index,
            prev_term=self.log.term_at(prev_index) or 0,
            commit=self.commit,
            stamp=now,
            entries=self.log.since(follower.next, BATCH_BYTES),
        )
        follower.in_flight = True
        follower.told_commit = self.commit
        self._send(peer, append)

    def _advance_commit(self, now: float) -> None:
        matches = [self.log.last_index, *(f.match for f in self._followers.values())]
        commit = self._rules.commit_index(matches, self.log.term_at, self.term)
        if commit > self.commit:
            self.commit = commit
            self._append_to_all(now)

    # effects

    def _send(self, peer: str, message: Message) -> None:
        self._pending.messages.append((peer, message))

    def _set_vote(self, vote: Vote) -> None:
        self.vote = self._pending.vote = vote

    def _changed_from(self, index: int) -> None:
        self._pending.first = min(self._pending.first or index, index)

    def _wait_for_election(self, now: float) -> None:
        least, most = (1.0, 2.0) if self.term else (0.1, 0.6)
        self._wake_at = now + self._uniform(least, most) * self._timing.election_s

    def _note_role(self) -> None:
        self._pending.role = Role(self.state, self.term, self.leader)
