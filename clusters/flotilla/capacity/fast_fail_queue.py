"""A queue that refuses at once whoever would wait too long (spec 10.5, 10.7). Pure.

A slow request is one whose *waiting plus service* time passes a threshold. Whoever asks learns that
now, and can go elsewhere, instead of after the threshold. The estimate of the wait is how many are
ahead, at the rate at which they are served; dearer classes are ahead of cheaper ones, whenever they
come, so the cheap may wait longer than was estimated and are refused when that shows. When the
queue is full, the newest of the cheapest class makes room for a dearer one.
"""

from collections import deque
from typing import Generic, TypeVar

from .qos import Qos

T = TypeVar("T")


class FastFailQueue(Generic[T]):
    """`per_s`: how many are served in a second."""

    def __init__(self, most: int, per_s: float, patience_s: float) -> None:
        self._most, self._per_s, self._patience_s = most, per_s, patience_s
        self._rows: dict[Qos, deque[tuple[T, float]]] = {qos: deque() for qos in Qos}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def offer(self, item: T, qos: Qos, service_s: float, now: float) -> list[T]:
        """Put somebody into the queue; whom to refuse for it, which may be he."""
        if self.wait_s(qos) + service_s > self._patience_s:
            return [item]
        self._rows[qos].append((item, now))
        if len(self) <= self._most:
            return []
        cheapest = max(q for q in Qos if self._rows[q])
        return [self._rows[cheapest].pop()[0]]

    def wait_s(self, qos: Qos) -> float:
        """How long somebody of this class would wait who came now."""
        ahead = sum(len(row) for q, row in self._rows.items() if q <= qos)
        return ahead / self._per_s

    def overdue(self, now: float) -> list[T]:
        """Take out who has waited too long."""
        late: list[T] = []
        for row in self._rows.values():
            while row and now - row[0][1] > self._patience_s:
                late.append(row.popleft()[0])
        return late

    def pop(self) -> T | None:
        """Whose turn it is: the oldest of the dearest class."""
        for row in self._rows.values():
            if row:
                return row.popleft()[0]
        return None
