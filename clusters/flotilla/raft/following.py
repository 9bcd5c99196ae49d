"""A follower's part: take entries or a snapshot from the term's leader, and answer (Raft 5.3, 7).

Whether the sender leads was decided before; a request of an earlier term is answered all the same,
with a refusal that carries the present one.

Parts of one snapshot of one leader are put together in their order; a part that does not follow the
ones that are here changes nothing, and the answer tells the leader where to go on.
"""

from .journal import RaftJournal
from .messages import Append, AppendReply, SnapshotPart, SnapshotReply
from .snapshot import Snapshot, SnapshotDamaged, parse


class FollowerState:
    def __init__(self, me: str, journal: RaftJournal) -> None:
        self._me, self._journal = me, journal
        self._incoming = SnapshotAssembly()

    def take_entries(self, term: int, message: Append) -> AppendReply:
        journal = self._journal
        matched = message.term == term and journal.fits(message)
        if matched:
            journal.store(message)
            last_known = message.prev_index + len(message.entries)
            journal.commit = max(journal.commit, min(message.commit, last_known))
        index, hint_index, hint_term = self._match(message, matched)
        return AppendReply(
            term=term,
            source=self._me,
            matched=matched,
            index=index,
            stamp=message.stamp,
            round=message.round,
            hint_index=hint_index,
            hint_term=hint_term,
        )

    def take_part(self, term: int, part: SnapshotPart) -> SnapshotReply:
        return SnapshotReply(
            term=term,
            source=self._me,
            index=part.index,
            received=self._received(part) if part.term == term else 0,
            stamp=part.stamp,
            round=part.round,
        )

    def _match(self, message: Append, matched: bool) -> tuple[int, int, int]:
        """What the answer says: index, and where the conflicting term begins."""
        index, log = message.prev_index, self._journal.log
        if matched:
            return index + len(message.entries), 0, 0
        if index > log.last_index:
            return index, log.last_index + 1, 0
        return index, log.first_of_term(index), log.term_at(index) or 0

    def _received(self, part: SnapshotPart) -> int:
        """How much of the leader's snapshot is here; all, too, when it holds nothing new."""
        if part.index <= self._journal.commit:
            return part.total
        try:
            snapshot = self._incoming.take(part)
        except SnapshotDamaged:
            return 0
        if snapshot is None:
            return self._incoming.received
        self._journal.install(snapshot)
        return part.total


class SnapshotAssembly:
    """A snapshot on its way."""

    def __init__(self) -> None:
        self._of: tuple[str, int, int, int] | None = None
        self._data = bytearray()

    def take(self, part: SnapshotPart) -> Snapshot | None:
        """The snapshot once it is whole. SnapshotDamaged: start from the beginning."""
        of = (part.source, part.term, part.index, part.total)
        if self._of != of:
            self._of = of
            self._data.clear()
        if part.offset == len(self._data):
            self._data += part.data
        if len(self._data) < part.total:
            return None
        packed = bytes(self._data)
        self._data.clear()
        return parse(packed)

    @property
    def received(self) -> int:
        """How much is here of the snapshot whose part was taken last."""
        return len(self._data)
