"""One member's log: the entries, which of them are committed, the configurations in them, and the
snapshot that stands for the compacted entries.

A configuration counts from the moment its entry is in the log, and until the entry is cut off
(thesis 4.1). Before the first one, the configuration of the snapshot counts, or the initial one.

The log keeps the entries behind the snapshot *before* the last one, so a member that was away for a
short time receives entries, and only one that was away for longer needs the snapshot.
"""

from collections.abc import Iterable

from .effects import LogChange
from .log import START, EntryId, RaftLog
from .membership import Configuration
from .messages import Append, EntryKind, LogEntry
from .snapshot import Snapshot


class RaftBroken(Exception):
    """A peer or the disk contradicts what is committed: the node must stop."""


class RaftJournal:
    def __init__(
        self,
        first: Configuration,
        snapshot: Snapshot | None = None,
        base: EntryId = START,
        entries: Iterable[LogEntry] = (),
    ) -> None:
        self.log = RaftLog(entries, base)
        self.snapshot = snapshot
        self.commit = snapshot.index if snapshot else 0
        self._configurations = [(self.commit, snapshot.members if snapshot else first)]
        self._note_configurations(self.commit + 1, self.log.entries_from(self.commit + 1))
        self._taken = self.commit
        self._first, self._base, self._install = 0, False, False
        self._reported_members = first

    # configurations

    @property
    def members(self) -> Configuration:
        return self._configurations[-1][1]

    @property
    def members_index(self) -> int:
        """The index of the present configuration."""
        return self._configurations[-1][0]

    def members_at(self, index: int) -> Configuration:
        """Return the configuration after the committed entry at `index`."""
        return next(c for at, c in reversed(self._configurations) if at <= index)

    def snapshot_at(self, index: int, data: bytes) -> Snapshot:
        """Return a snapshot: `data` is the state after the committed entry at `index`."""
        term = self.log.term_at(index)
        if term is None:
            raise ValueError(f"entry {index} is not in the log")
        return Snapshot(EntryId(index, term), self.members_at(index), data)

    # changes

    def append(self, entry: LogEntry) -> int:
        """Append an entry of this leader. Return its index."""
        self.log.append(entry)
        self._note_configurations(self.log.last_index, (entry,))
        self._changed_from(self.log.last_index)
        return self.log.last_index

    def matches_previous(self, message: Append) -> bool:
        """Return whether the entry before the new ones is the same here (Raft 5.3).

        Compacted entries are committed, so they are.
        """
        if message.prev_index < self.log.base.index:
            return True
        return self.log.term_at(message.prev_index) == message.prev_term

    def store_entries(self, message: Append) -> None:
        """Add the entries that are new; cut at the first conflict only (Raft 5.3, figure 2)."""
        for at, entry in enumerate(message.entries):
            index = message.prev_index + 1 + at
            if index <= self.log.base.index or self.log.term_at(index) == entry.term:
                continue
            if index <= self.commit:
                raise RaftBroken(f"{message.source} contradicts the committed entry {index}")
            self._put(index, message.entries[at:])
            return

    def install(self, snapshot: Snapshot) -> bool:
        """Take over a leader's snapshot. Return False if everything in it is committed here.

        The log behind it stays if its entries follow the snapshot's (Raft 7, figure 13).
        """
        if snapshot.index <= self.commit:
            return False
        tail_stays = self.log.term_at(snapshot.index) == snapshot.place.term
        kept = [c for c in self._configurations if tail_stays and c[0] > snapshot.index]
        self._configurations = [(snapshot.index, snapshot.members), *kept]
        self.log.compact(snapshot.place)
        self.snapshot, self.commit, self._taken = snapshot, snapshot.index, snapshot.index
        self._base = self._install = True
        return True

    def compact(self, snapshot: Snapshot) -> None:
        """Drop old entries: a snapshot of this member's own state is on its disk."""
        before = self.snapshot
        if before is not None and snapshot.index <= before.index:
            return
        self.snapshot = snapshot
        later = [c for c in self._configurations if c[0] > snapshot.index]
        self._configurations = [(snapshot.index, snapshot.members), *later]
        if before is not None and before.index > self.log.base.index:
            self.log.compact(before.place)
            self._base = True

    # effects

    def take_committed(self) -> tuple[tuple[int, LogEntry], ...]:
        indexes = range(self._taken + 1, self.commit + 1)
        self._taken = self.commit
        return tuple((index, self.log[index]) for index in indexes)

    def take_change(self) -> LogChange:
        first, base, install = self._first, self._base, self._install
        self._first, self._base, self._install = 0, False, False
        now, before = self.members, self._reported_members
        members, self._reported_members = now if now is not before and now != before else None, now
        if base:
            first = self.log.base.index + 1
        return LogChange(
            first=first,
            entries=self.log.entries_from(first) if first else (),
            base=self.log.base if base else None,
            install=self.snapshot if install else None,
            members=members,
        )

    # inside

    def _put(self, first: int, entries: tuple[LogEntry, ...]) -> None:
        self.log.replace(first, entries)
        while self.members_index >= first:
            self._configurations.pop()
        self._note_configurations(first, entries)
        self._changed_from(first)

    def _note_configurations(self, first: int, entries: Iterable[LogEntry]) -> None:
        for index, entry in enumerate(entries, first):
            if entry.kind == EntryKind.MEMBERS:
                self._configurations.append((index, Configuration.unpack(entry.data)))

    def _changed_from(self, index: int) -> None:
        self._first = min(self._first or index, index)
