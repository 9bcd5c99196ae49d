"""The replicated log in memory: entries numbered from 1, the oldest compacted away (Raft 7).

The entries in memory begin behind `base`, the last compacted entry. Its index and term are kept, so
that the next entry can be checked against its predecessor. At first that is index 0 in term 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .messages import LogEntry


@dataclass(frozen=True, slots=True)
class EntryId:
    """An entry's index and term. They identify it and all entries before it (Raft 5.3)."""

    index: int = 0
    term: int = 0


START = EntryId()


class RaftLog:
    def __init__(self, entries: Iterable[LogEntry] = (), base: EntryId = START) -> None:
        self.base = base
        self._entries = list(entries)

    @property
    def last_index(self) -> int:
        return self.base.index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base.term

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None if it is compacted or beyond the end."""
        at = index - self.base.index - 1
        if at == -1:
            return self.base.term
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def __getitem__(self, index: int) -> LogEntry:
        if index <= self.base.index:
            raise IndexError(f"entry {index} is compacted away, as all up to {self.base.index}")
        return self._entries[index - self.base.index - 1]

    def entries_from(self, first: int, size_limit: int | None = None) -> tuple[LogEntry, ...]:
        """Return entries from `first` on: about `size_limit` bytes of data, but at least one
        entry."""
        start = first - self.base.index - 1
        if start < 0:
            raise IndexError(f"entry {first} is compacted away, as all up to {self.base.index}")
        if size_limit is None:
            return tuple(self._entries[start:])
        chosen: list[LogEntry] = []
        size = 0
        for at in range(start, len(self._entries)):
            size += len(self._entries[at].data) + 16
            if chosen and size > size_limit:
                break
            chosen.append(self._entries[at])
        return tuple(chosen)

    def append(self, entry: LogEntry) -> None:
        self._entries.append(entry)

    def replace(self, first: int, entries: Iterable[LogEntry]) -> None:
        """Replace all entries from `first` on."""
        if not self.base.index < first <= self.last_index + 1:
            raise ValueError(
                f"entries from {first} on would leave a hole after {self.last_index}, "
                f"or touch what was compacted up to {self.base.index}"
            )
        self._entries[first - self.base.index - 1 :] = entries

    def compact(self, base: EntryId) -> None:
        """Drop entries up to `base`, which a snapshot holds; all if `base` is not in this log."""
        known = self.term_at(base.index) == base.term
        self._entries = self._entries[base.index - self.base.index :] if known else []
        self.base = base

    def first_of_term(self, index: int) -> int:
        """Return the first index of the run of entries in the term of `index`."""
        term = self.term_at(index)
        while index > self.base.index + 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    def last_with_term(self, term: int, at_most: int) -> int:
        """Return the last index of `term` that is not beyond `at_most`; 0 if there is none."""
        index = min(at_most, self.last_index)
        while index > self.base.index and (self.term_at(index) or 0) > term:
            index -= 1
        return index if index and self.term_at(index) == term else 0
