"""A leader: what it knows of each follower, what it sends, and what the replies prove.

One request is outstanding for each follower, whatever the round trip: new entries go into the next
one. Only a request without entries, which announces a commit or a round of reads, does not hold
back entries. A heartbeat that meets an outstanding request carries at most one byte, or each would
start another stream of the same entries; a reply to a later request shows that the outstanding one
was lost. A follower that needs compacted entries gets the snapshot, in parts that fit into frames.

    match   the follower's log equals the leader's up to here: copies are counted by it (Raft 5.3)
    stamp   the leader's clock when it sent the latest answered request: the lease (thesis 6.2)
    round   the latest round of reads that the follower has returned (thesis 6.4)

Each counts for voters only; the leader is one of them unless it has removed itself.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nextafter

from ..rules import Rules
from .journal import RaftJournal
from .membership import Configuration, promoted
from .messages import Append, AppendReply, LogEntry, Message, SnapshotPart, SnapshotReply
from .snapshot import Snapshot

MAX_BATCH_BYTES = 256 * 1024


@dataclass
class Follower:
    """What a leader knows of one follower.

    `requested_at`: when the outstanding request was sent; `has_payload`: it carries entries or a
    part of a snapshot; `sending`: the snapshot, of which `received` bytes have arrived.
    """

    next: int
    stamp: float
    match: int = 0
    round: int = 0
    sent_commit: int = -1
    sent_round: int = 0
    requested_at: float | None = None
    has_payload: bool = False
    sending: Snapshot | None = None
    received: int = 0


class LeaderState:
    """Created when a leader is elected, just before its first own entry is appended."""

    def __init__(
        self,
        me: str,
        term: int,
        journal: RaftJournal,
        rules: Rules,
        send: Callable[[str, Message], None],
        now: float,
    ) -> None:
        self.first_of_own_term = journal.log.last_index + 1
        self.followers: dict[str, Follower] = {}
        self._me, self._term = me, term
        self._journal, self._rules, self._send = journal, rules, send
        self._round = 0
        self._reads: deque[tuple[int, int]] = deque()  # round, index to be committed
        self.update_members(now)

    def update_members(self, now: float) -> None:
        """Follow a change of the configuration."""
        others = self._journal.members.others(self._me)
        next_index = self._journal.log.last_index + 1
        self.followers = {
            peer: self.followers.get(peer) or Follower(next_index, stamp=now) for peer in others
        }

    # what replies prove

    def has_quorum(self, now: float, election_s: float) -> bool:
        """Return whether a majority, this node included, followed it within the election
        timeout."""
        stamps = sorted((f.stamp for f in self._voters()), reverse=True)
        needed = self._journal.members.majority - self._own_vote
        return needed == 0 or now - stamps[needed - 1] < election_s

    def commit_index(self) -> int:
        own = [self._journal.log.last_index] * self._own_vote
        matches = [*own, *(f.match for f in self._voters())]
        return self._rules.commit_index(matches, self._journal.log.term_at, self._term)

    @property
    def is_removed(self) -> bool:
        """Whether the configuration without this leader is committed (thesis 4.2.2)."""
        return not self._own_vote and self._journal.commit >= self._journal.members_index

    @property
    def may_change_members(self) -> bool:
        journal = self._journal
        return self._rules.may_change_members(
            journal.commit, journal.members_index, self.first_of_own_term
        )

    def promotion(self, now: float, election_s: float) -> Configuration | None:
        """Return the configuration that makes a learner a voter; None if no learner is ready.

        A learner is ready when it replies and holds all committed entries.
        """
        for learner in self._journal.members.learners:
            follower = self.followers.get(learner)
            ready = follower and follower.match >= self._journal.commit
            if follower and ready and now - follower.stamp < election_s:
                return promoted(self._journal.members, learner)
        return None

    # reads

    def start_read(self) -> int:
        self._round += 1
        index = max(self._journal.commit, self.first_of_own_term)
        self._reads.append((self._round, index))
        return self._round

    def readable(self) -> int:
        """Return the latest round that is over, with its index committed; 0 if none is new."""
        if not self._reads:
            return 0
        own, readable = [self._round] * self._own_vote, 0
        confirmed = self._rules.confirmed_round([*own, *(f.round for f in self._voters())])
        while self._reads and self._reads[0][0] <= confirmed:
            if self._reads[0][1] > self._journal.commit:
                break
            readable, _ = self._reads.popleft()
        return readable

    # to the followers

    def send_to_all(self, now: float) -> None:
        for peer in self.followers:
            self.send_to(peer, now)

    def send_to(self, peer: str, now: float) -> None:
        follower = self.followers[peer]
        untold = follower.requested_at is None and self._has_news_for(follower)
        unsent = not follower.has_payload and self._is_behind(follower)
        if untold or unsent:
            self._send_request(peer, follower, now)

    def send_heartbeats(self, now: float) -> None:
        for peer, follower in self.followers.items():
            if follower.requested_at is None:
                self._send_request(peer, follower, now)
            else:
                self._send(peer, self._request(follower, now, full=False))

    # from the followers

    def on_append_reply(self, reply: AppendReply) -> bool:
        """Record a reply. Return False if it says nothing new."""
        follower = self._record_reply(reply)
        if reply.matched:
            self._record_match(follower, reply.index)
        elif reply.index <= follower.match:
            return False  # an old reply, or the follower lost what it had acknowledged
        elif reply.index == follower.next - 1:
            self._step_back(follower, reply)
        return True

    def on_snapshot_reply(self, reply: SnapshotReply) -> None:
        follower = self._record_reply(reply)
        sent = follower.sending
        if sent is None or sent.index != reply.index:
            return
        follower.received = reply.received
        if reply.received >= len(sent.packed):
            follower.sending = None
            self._record_match(follower, reply.index)

    # inside

    @property
    def _own_vote(self) -> int:
        return int(self._me in self._journal.members.voters)

    def _voters(self) -> list[Follower]:
        return [self.followers[v] for v in self._journal.members.voters if v != self._me]

    def _is_behind(self, follower: Follower) -> bool:
        return bool(follower.sending) or follower.next <= self._journal.log.last_index

    def _has_news_for(self, follower: Follower) -> bool:
        untold = follower.sent_commit < self._journal.commit or follower.sent_round < self._round
        return self._is_behind(follower) or untold

    def _record_reply(self, reply: AppendReply | SnapshotReply) -> Follower:
        follower = self.followers[reply.source]
        follower.stamp = max(follower.stamp, reply.stamp)
        follower.round = max(follower.round, reply.round)
        if follower.requested_at is not None and reply.stamp >= follower.requested_at:
            follower.requested_at, follower.has_payload = None, False
        return follower

    def _record_match(self, follower: Follower, index: int) -> None:
        follower.match = max(follower.match, index)
        follower.next = max(follower.next, follower.match + 1)

    def _step_back(self, follower: Follower, reply: AppendReply) -> None:
        """Go back to the end of the conflicting term if it is in our log, else to its beginning."""
        log = self._journal.log
        known = log.last_with_term(reply.hint_term, reply.index) if reply.hint_term else 0
        wanted = known + 1 if known else reply.hint_index
        follower.next = max(follower.match + 1, min(wanted, follower.next - 1))

    def _send_request(self, peer: str, follower: Follower, now: float) -> None:
        if (
            follower.requested_at is not None
        ):  # the outstanding request's reply must not count for this one
            now = max(now, nextafter(follower.requested_at, inf))
        follower.requested_at, follower.sent_round = now, self._round
        request = self._request(follower, now, full=True)
        if isinstance(request, Append):
            follower.sent_commit = request.commit
        follower.has_payload = isinstance(request, SnapshotPart) or bool(request.entries)
        self._send(peer, request)

    def _request(self, follower: Follower, now: float, *, full: bool) -> Append | SnapshotPart:
        """Return what the follower lacks; unless `full`, no entry, or one byte of the snapshot."""
        log = self._journal.log
        if follower.sending is None and follower.next <= log.base.index:
            follower.sending, follower.received = self._journal.snapshot, 0
        if follower.sending:
            return self._part(follower, follower.sending, now, MAX_BATCH_BYTES if full else 1)
        return self._append(
            follower, now, log.entries_from(follower.next, MAX_BATCH_BYTES) if full else ()
        )

    def _append(self, follower: Follower, now: float, entries: tuple[LogEntry, ...]) -> Append:
        prev_index = follower.next - 1
        return Append(
            term=self._term,
            source=self._me,
            prev_index=prev_index,
            prev_term=self._journal.log.term_at(prev_index) or 0,
            commit=self._journal.commit,
            stamp=now,
            round=self._round,
            entries=entries,
        )

    def _part(
        self, follower: Follower, snapshot: Snapshot, now: float, max_bytes: int
    ) -> SnapshotPart:
        packed, offset = snapshot.packed, follower.received
        return SnapshotPart(
            term=self._term,
            source=self._me,
            index=snapshot.index,
            offset=offset,
            total=len(packed),
            stamp=now,
            round=self._round,
            data=packed[offset : offset + max_bytes],
        )
