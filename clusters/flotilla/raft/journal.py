"""What a member holds of the log: the entries, what of them is committed, the configurations in
them, and the snapshot that stands for what is compacted away.

A configuration counts from the moment its entry is in the log, and no more when it is cut off
(thesis 4.1); before the first one the snapshot's counts, or the one the member was started with.

The log keeps what followed the snapshot *before* the last one: who was away for a moment is served
entries, and only who was away for longer than that needs the snapshot.
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
        self._note_configurations(self.commit + 1, self.log.since(self.commit + 1))
        self._taken = self.commit
        self._first, self._base, self._install = 0, False, False
        self._told = first

    # who takes part

    @property
    def members(self) -> Configuration:
        return self._configurations[-1][1]

    @property
    def members_index(self) -> int:
        """Where the present configuration is in the log."""
        return self._configurations[-1][0]

    def members_at(self, index: int) -> Configuration:
        """Who took part once the entry at `index`, a committed one, was applied."""
        return next(c for at, c in reversed(self._configurations) if at <= index)

    def snapshot_at(self, index: int, data: bytes) -> Snapshot:
        """The state machine's `data` once the entry at `index`, a committed one, was applied."""
        term = self.log.term_at(index)
        if term is None:
            raise ValueError(f"entry {index} is not in the log")
        return Snapshot(EntryId(index, term), self.members_at(index), data)

    # changes

    def append(self, entry: LogEntry) -> int:
        """The leader's own; its index."""
        self.log.append(entry)
        self._note_configurations(self.log.last_index, (entry,))
        self._changed_from(self.log.last_index)
        return self.log.last_index

    def fits(self, message: Append) -> bool:
        """The entry before the new ones is the same here (Raft 5.3). What is compacted is."""
        if message.prev_index < self.log.base.index:
            return True
        return self.log.term_at(message.prev_index) == message.prev_term

    def store(self, message: Append) -> None:
        """Skip what is there; cut at the first conflict, and only there (Raft 5.3, figure 2)."""
        for at, entry in enumerate(message.entries):
            index = message.prev_index + 1 + at
            if index <= self.log.base.index or self.log.term_at(index) == entry.term:
                continue
            if index <= self.commit:
                raise RaftBroken(f"{message.source} contradicts the committed entry {index}")
            self._put(index, message.entries[at:])
            return

    def install(self, snapshot: Snapshot) -> bool:
        """A leader's snapshot; False: everything in it is committed here. The log behind it stays
        if it is the snapshot's (Raft 7, figure 13)."""
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
        """A snapshot of this member's own state is on its disk."""
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

    def take_written(self) -> LogChange:
        first, base, install = self._first, self._base, self._install
        self._first, self._base, self._install = 0, False, False
        members, self._told = self.members if self.members != self._told else None, self.members
        if base:
            first = self.log.base.index + 1
        return LogChange(
            first=first,
            entries=self.log.since(first) if first else (),
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
