"""Who of those that may enter the SyncStateSet is proposed next, after refusals. Pure.

The controllers let nobody in whom they do not hear, and refuse a change as a whole. A slave that
replicates well and is not heard by them is as good as any other to its master, so one that was
refused is proposed by itself from then on, in turn with others of its kind: it can keep nobody
else out.
"""

from collections.abc import Collection, Sequence

from ..net.wire import Status

NEWCOMER_REFUSALS = frozenset(
    {Status.BROKER_NOT_ALIVE, Status.INVALID_REPLICAS}
)  # refused for a newcomer


class NewcomerQueue:
    """One reign's."""

    def __init__(self) -> None:
        self._refused: list[int] = []  # the one whose turn it is first

    def refuse(self, slaves: Collection[int]) -> None:
        """A change was refused for one of these."""
        others = [i for i in self._refused if i not in slaves]
        self._refused = [*others, *sorted(slaves)]

    def admit(self, members: Collection[int]) -> None:
        """These are in the set: what was said of them is over."""
        self._refused = [i for i in self._refused if i not in members]

    def unsuspected(self, ready: Sequence[int]) -> Sequence[int]:
        """Without those that were refused."""
        return [i for i in ready if i not in self._refused]

    def in_turn(self, ready: Sequence[int]) -> Sequence[int]:
        """Who is proposed together: all that were not refused, or else one that was."""
        return self.unsuspected(ready) or [i for i in self._refused if i in ready][:1]
