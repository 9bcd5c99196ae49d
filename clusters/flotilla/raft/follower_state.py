"""A follower: takes entries or a snapshot from the leader of its term, and replies (Raft 5.3, 7).

The core has decided before whether the sender leads. A request of an earlier term is answered, too,
with a refusal that carries the present term.

The parts of a leader's snapshot are put together in order. A part that does not continue the ones
received changes nothing, and the reply tells the leader where to go on.
"""

from .journal import RaftJournal
from .messages import Append, AppendReply, SnapshotPart, SnapshotReply
from .snapshot import Snapshot, SnapshotDamaged, parse


class FollowerState:
    def __init__(self, me: str, journal: RaftJournal) -> None:
        self._me, self._journal = me, journal
        self._assembly = SnapshotAssembly()

    def on_append(self, term: int, message: Append) -> AppendReply:
        journal = self._journal
        matched = message.term == term and journal.matches_previous(message)
        if matched:
            journal.store_entries(message)
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

    def on_snapshot_part(self, term: int, part: SnapshotPart) -> SnapshotReply:
        return SnapshotReply(
            term=term,
            source=self._me,
            index=part.index,
            received=self._received(part) if part.term == term else 0,
            stamp=part.stamp,
            round=part.round,
        )

    def _match(self, message: Append, matched: bool) -> tuple[int, int, int]:
        """Return the reply's index, and the index and term where the conflicting term begins."""
        index, log = message.prev_index, self._journal.log
        if matched:
            return index + len(message.entries), 0, 0
        if index > log.last_index:
            return index, log.last_index + 1, 0
        return index, log.first_of_term(index), log.term_at(index) or 0

    def _received(self, part: SnapshotPart) -> int:
        """Return how many bytes of the snapshot are here; all of them if it holds nothing new."""
        if part.index <= self._journal.commit:
            return part.total
        try:
            snapshot = self._assembly.add(part)
        except SnapshotDamaged:
            return 0
        if snapshot is None:
            return self._assembly.received
        self._journal.install(snapshot)
        return part.total


class SnapshotAssembly:
    """A snapshot of which some parts have arrived."""

    def __init__(self) -> None:
        self._of: tuple[str, int, int, int] | None = None
        self._data = bytearray()

    def add(self, part: SnapshotPart) -> Snapshot | None:
        """Return the snapshot when it is complete.

        Raises SnapshotDamaged if it must be sent from the beginning.
        """
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
        """The number of bytes here of the snapshot whose part was added last."""
        return len(self._data)
