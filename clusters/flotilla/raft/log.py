"""The replicated log in memory: entries numbered from 1, with place 0 before them all in term 0."""

from collections.abc import Iterable

from .messages import Entry


class Log:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)

    @property
    def last_index(self) -> int:
        return len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else 0

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None beyond the end."""
        if index == 0:
            return 0
        return self._entries[index - 1].term if index <= len(self._entries) else None

    def __getitem__(self, index: int) -> Entry:
        return self._entries[index - 1]

    def since(self, first: int, size_limit: int | None = None) -> tuple[Entry, ...]:
        """Entries from `first` on, up to about `size_limit` bytes of data, at least one."""
        if size_limit is None:
            return tuple(self._entries[first - 1 :])
        chosen: list[Entry] = []
        size = 0
        for at in range(first - 1, len(self._entries)):
            size += len(self._entries[at].data) + 16
            if chosen and size > size_limit:
                break
            chosen.append(self._entries[at])
        return tuple(chosen)

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def replace(self, first: int, entries: Iterable[Entry]) -> None:
        """Cut everything from `first` on and put `entries` there."""
        if not 1 <= first <= len(self._entries) + 1:
            raise ValueError(f"entries from {first} on would leave a hole after {self.last_index}")
        self._entries[first - 1 :] = entries

    def first_of_term(self, index: int) -> int:
        """Where the run of entries that holds `index` in one term begins."""
        term = self.term_at(index)
        while index > 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    def last_with_term(self, term: int, at_most: int) -> int:
        """The last index of `term` not beyond `at_most`; 0 when the log has none."""
        index = min(at_most, self.last_index)
        while index > 0 and self._entries[index - 1].term > term:
            index -= 1
        return index if index and self._entries[index - 1].term == term else 0
