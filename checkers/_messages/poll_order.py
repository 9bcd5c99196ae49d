"""Within the answer to one poll, offsets rise: what each reader was given last, queue by queue."""

import numpy as np

from checkers._messages.blocks import Ints
from checkers._messages.messages import Rows
from checkers._spark.compiled import rowwise

KEY_BITS = 32
FIRST_ROOM = 256


class Polls:
    """What one writer's polls were given. `backwards`: (key, op, offset, the one before it,
    process, t) of those that went back."""

    def __init__(self) -> None:
        self.backwards: list[tuple[int, ...]] = []
        self._known = 0
        self._readers = np.full(FIRST_ROOM, -1)  # by hash: process and key
        self._op, self._offset = np.zeros((2, FIRST_ROOM), np.int64)

    def observe(self, rows: Rows, readers: Ints) -> None:
        """Add rows. `readers`: whom each gave a message, as process << KEY_BITS | key, or -1."""
        before = np.full(len(readers), -1)
        done = 0
        while done < len(readers):
            last = (self._known, self._readers, self._op, self._offset)
            done, self._known = _follow(readers, rows.op, rows.offset, before, done, *last)
            if done < len(readers):
                self._grow()
        back = np.flatnonzero(before >= 0)
        columns = (rows.key, rows.op, rows.offset, before, rows.process, rows.t)
        self.backwards += zip(*(column[back].tolist() for column in columns), strict=True)

    def _grow(self) -> None:
        """Twice the room."""
        old, op, offset = self._readers, self._op, self._offset
        self._readers = np.full(2 * len(old), -1)
        self._op, self._offset = np.zeros((2, 2 * len(old)), np.int64)
        held = np.flatnonzero(old >= 0)
        unused = np.empty(len(held), np.int64)
        last = (0, self._readers, self._op, self._offset)
        _follow(old[held], op[held], offset[held], unused, 0, *last)


@rowwise
def _follow(
    readers: Ints,
    op: Ints,
    offset: Ints,
    before: Ints,
    start: int,
    known: int,
    held: Ints,
    last_op: Ints,
    last_offset: Ints,
) -> tuple[int, int]:
    """Follow readers from row `start` on until there is no more room: how far it came, and how
    many readers are known. `before`: the greater or same offset that the same poll had, or -1."""
    room = len(held) - 1
    for i in range(start, len(readers)):
        reader = readers[i]
        if reader < 0:
            continue
        spot = ((reader >> KEY_BITS) * 31 + (reader & ((1 << KEY_BITS) - 1)) * 17) & room
        while held[spot] != reader and held[spot] >= 0:
            spot = (spot + 1) & room
        if held[spot] < 0:
            if 2 * known >= room:
                return i, known
            held[spot] = reader
            known += 1
        elif last_op[spot] == op[i] and offset[i] <= last_offset[spot]:
            before[i] = last_offset[spot]
        last_op[spot], last_offset[spot] = op[i], offset[i]
    return len(readers), known
