"""A leaky bucket: whatever pours in, it drains at a constant rate (spec 10.7). Pure.

Drops leave one after the other, `1 / per_s` seconds apart. A timer that fires late may make up for
at most `late_s`, so that a coarse clock does not lower the rate, and a pause is no burst.
"""


class LeakyBucket:
    def __init__(self, per_s: float, late_s: float = 0.01) -> None:
        self._per_s, self._late_s = per_s, late_s
        self._next = 0.0

    def wait_s(self, now: float) -> float:
        """How long until the next drop may leave; 0: now."""
        return max(0.0, self._next - now)

    def drop(self, now: float) -> None:
        """One leaves now."""
        self._next = max(self._next, now - self._late_s) + 1 / self._per_s
