"""A leader's reign: what it knows of each follower, what it sends them, and what that proves.

One request is outstanding for each follower, whatever the round trip: what comes meanwhile is in
the next one; only one without entries, which tells of a commit or a read, holds no entries up. A
heartbeat that meets an outstanding request carries next to nothing, or each would begin another
stream of the same entries; an answer to one that left later shows that the request was lost. Who
needs entries that are compacted away gets the snapshot instead, in parts that fit into frames.

    match   up to here the follower's log is the leader's: copies count by it (Raft 5.3)
    stamp   the leader's clock when it sent what the follower answered last: the lease (thesis 6.2)
    round   the latest round of reads that the follower has answered (thesis 6.4)

Each counts for voters only, and the leader is one of them unless it has removed itself.
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
    """What a leader knows of one follower. `asked_at`: when the outstanding request left, `loaded`:
    with entries or a part. `sending`: a snapshot, and how much of it arrived."""

    next: int
    stamp: float
    match: int = 0
    round: int = 0
    told_commit: int = -1
    told_round: int = 0
    asked_at: float | None = None
    loaded: bool = False
    sending: Snapshot | None = None
    received: int = 0


class LeaderState:
    """One leader's, from its election to its end. Its first own entry is about to be appended."""

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
        self.heed_members(now)

    def heed_members(self, now: float) -> None:
        """The configuration may have changed."""
        others = self._journal.members.others(self._me)
        next_index = self._journal.log.last_index + 1
        self.followers = {
            peer: self.followers.get(peer) or Follower(next_index, stamp=now) for peer in others
        }

    # what is proved

    def has_quorum(self, now: float, election_s: float) -> bool:
        """A majority, this node included, followed it within the election timeout."""
        stamps = sorted((f.stamp for f in self._voters()), reverse=True)
        needed = self._journal.members.majority - self._own_voice
        return needed == 0 or now - stamps[needed - 1] < election_s

    def commit_index(self) -> int:
        own = [self._journal.log.last_index] * self._own_voice
        matches = [*own, *(f.match for f in self._voters())]
        return self._rules.commit_index(matches, self._journal.log.term_at, self._term)

    @property
    def is_removed(self) -> bool:
        """The configuration without this leader is committed (thesis 4.2.2)."""
        return not self._own_voice and self._journal.commit >= self._journal.members_index

    @property
    def may_change_members(self) -> bool:
        journal = self._journal
        return self._rules.may_change_members(
            journal.commit, journal.members_index, self.first_of_own_term
        )

    def promotion(self, now: float, election_s: float) -> Configuration | None:
        """The members with a learner made voter that answers, and holds what is committed."""
        for learner in self._journal.members.learners:
            follower = self.followers.get(learner)
            ready = follower and follower.match >= self._journal.commit
            if follower and ready and now - follower.stamp < election_s:
                return promoted(self._journal.members, learner)
        return None

    # reads

    def read(self) -> int:
        self._round += 1
        index = max(self._journal.commit, self.first_of_own_term)
        self._reads.append((self._round, index))
        return self._round

    def readable(self) -> int:
        """The latest round that is answered, and its index committed; 0 when there is none new."""
        if not self._reads:
            return 0
        own, readable = [self._round] * self._own_voice, 0
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
        untold = follower.asked_at is None and self._has_news_for(follower)
        unsent = not follower.loaded and self._is_behind(follower)
        if untold or unsent:
            self._ask(peer, follower, now)

    def beat(self, now: float) -> None:
        for peer, follower in self.followers.items():
            if follower.asked_at is None:
                self._ask(peer, follower, now)
            else:
                self._send(peer, self._request(follower, now, full=False))

    # from the followers

    def on_append_reply(self, reply: AppendReply) -> bool:
        """False: it told nothing."""
        follower = self._heard(reply)
        if reply.matched:
            self._matches(follower, reply.index)
        elif reply.index <= follower.match:
            return False  # it lost what it had promised, or the reply is old
        elif reply.index == follower.next - 1:
            self._step_back(follower, reply)
        return True

    def on_snapshot_reply(self, reply: SnapshotReply) -> None:
        follower = self._heard(reply)
        sent = follower.sending
        if sent is None or sent.index != reply.index:
            return
        follower.received = reply.received
        if reply.received >= len(sent.packed):
            follower.sending = None
            self._matches(follower, reply.index)

    # inside

    @property
    def _own_voice(self) -> int:
        return int(self._me in self._journal.members.voters)

    def _voters(self) -> list[Follower]:
        return [self.followers[v] for v in self._journal.members.voters if v != self._me]

    def _is_behind(self, follower: Follower) -> bool:
        return bool(follower.sending) or follower.next <= self._journal.log.last_index

    def _has_news_for(self, follower: Follower) -> bool:
        untold = follower.told_commit < self._journal.commit or follower.told_round < self._round
        return self._is_behind(follower) or untold

    def _heard(self, reply: AppendReply | SnapshotReply) -> Follower:
        follower = self.followers[reply.source]
        follower.stamp = max(follower.stamp, reply.stamp)
        follower.round = max(follower.round, reply.round)
        if follower.asked_at is not None and reply.stamp >= follower.asked_at:
            follower.asked_at, follower.loaded = None, False
        return follower

    def _matches(self, follower: Follower, index: int) -> None:
        follower.match = max(follower.match, index)
        follower.next = max(follower.next, follower.match + 1)

    def _step_back(self, follower: Follower, reply: AppendReply) -> None:
        """To the end of the follower's conflicting term if we have it, else to its beginning."""
        log = self._journal.log
        known = log.last_with_term(reply.hint_term, reply.index) if reply.hint_term else 0
        wanted = known + 1 if known else reply.hint_index
        follower.next = max(follower.match + 1, min(wanted, follower.next - 1))

    def _ask(self, peer: str, follower: Follower, now: float) -> None:
        if follower.asked_at is not None:  # its answer must not be taken for this one's
            now = max(now, nextafter(follower.asked_at, inf))
        follower.asked_at, follower.told_round = now, self._round
        request = self._request(follower, now, full=True)
        if isinstance(request, Append):
            follower.told_commit = request.commit
        follower.loaded = isinstance(request, SnapshotPart) or bool(request.entries)
        self._send(peer, request)

    def _request(self, follower: Follower, now: float, *, full: bool) -> Append | SnapshotPart:
        """What the follower lacks, or as little of it as can be said: no entry, or one byte."""
        log = self._journal.log
        if follower.sending is None and follower.next <= log.base.index:
            follower.sending, follower.received = self._journal.snapshot, 0
        if follower.sending:
            return self._part(follower, follower.sending, now, MAX_BATCH_BYTES if full else 1)
        return self._append(
            follower, now, log.since(follower.next, MAX_BATCH_BYTES) if full else ()
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
        self, follower: Follower, snapshot: Snapshot, now: float, most_bytes: int
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
            data=packed[offset : offset + most_bytes],
        )
