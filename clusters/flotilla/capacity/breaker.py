"""A circuit breaker for one broker: closed, open, half-open (spec 10.7, after Hystrix). Pure.

    closed      calls pass; too many failures in a row, or a silence, open it
    open        no call passes for a while
    half-open   one call passes: its success closes the breaker, its failure opens it again

A dead process is noticed by failures, within a round trip. A hung or unreachable one gives no
failure before its calls time out, seconds later; but who has calls in flight and hears nothing at
all knows sooner. So the breaker opens as soon as it is asked after `silence_s` without any answer
while answers are due.
"""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True)
class Fuse:
    """When a breaker opens, and for how long."""

    failures: int
    silence_s: float
    open_s: float


class Breaker:
    def __init__(self, fuse: Fuse) -> None:
        self.openings = 0
        self._fuse = fuse
        self._failures = 0
        self._in_flight = 0
        self._quiet_since = 0.0
        self._opened_at: float | None = None
        self._trying = False

    def state(self, now: float) -> State:
        if self._opened_at is None and self._is_silent(now):
            self._open(now)
        if self._opened_at is None:
            return State.CLOSED
        over = now - self._opened_at >= self._fuse.open_s
        return State.HALF_OPEN if over else State.OPEN

    def allows(self, now: float) -> bool:
        state = self.state(now)
        return state is State.CLOSED or (state is State.HALF_OPEN and not self._trying)

    def called(self, now: float) -> None:
        if self._opened_at is not None and self.state(now) is State.HALF_OPEN:
            self._trying = True
        if not self._in_flight:
            self._quiet_since = now
        self._in_flight += 1

    def answered(self, now: float) -> None:
        """Any answer is a sign of life: it is what the breaker is about."""
        self._in_flight -= 1
        self._quiet_since = now
        self._failures, self._opened_at, self._trying = 0, None, False

    def failed(self, now: float) -> None:
        """The connection was lost, could not be made, or a call timed out."""
        self._in_flight -= 1
        self._failures += 1
        if self._trying or self._failures >= self._fuse.failures:
            self._open(now)

    def _open(self, now: float) -> None:
        """Open it, or keep it open after a call that was let through has failed."""
        self.openings += self._opened_at is None
        self._opened_at, self._trying = now, False

    def _is_silent(self, now: float) -> bool:
        return self._in_flight > 0 and now - self._quiet_since > self._fuse.silence_s
