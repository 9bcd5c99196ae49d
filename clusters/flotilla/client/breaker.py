"""A circuit breaker for one broker: closed, open, half-open (after Hystrix). Pure.

    closed      calls pass; too many failures in a row, or a silence, open it
    open        no call passes for `open_s`
    half-open   one call passes: its success closes the breaker, its failure opens it again

A dead process causes failures within a round trip. A hung or unreachable one causes none before
its calls time out, seconds later; but a client that has calls in flight and receives no answer at
all can tell sooner. So the breaker also opens when answers are due and none has come for
`silence_s`.
"""

from dataclasses import dataclass
from enum import Enum


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True)
class BreakerLimits:
    """When a breaker opens, and for how long."""

    failures: int
    silence_s: float
    open_s: float


class Breaker:
    def __init__(self, limits: BreakerLimits) -> None:
        self.openings = 0
        self._limits = limits
        self._failures = 0
        self._in_flight = 0
        self._quiet_since = 0.0
        self._opened_at: float | None = None
        self._trying = False

    def state(self, now: float) -> BreakerState:
        if self._opened_at is None and self._is_silent(now):
            self._open(now)
        if self._opened_at is None:
            return BreakerState.CLOSED
        over = now - self._opened_at >= self._limits.open_s
        return BreakerState.HALF_OPEN if over else BreakerState.OPEN

    def allows(self, now: float) -> bool:
        state = self.state(now)
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and not self._trying
        )

    def record_call(self, now: float) -> None:
        if self._opened_at is not None and self.state(now) is BreakerState.HALF_OPEN:
            self._trying = True
        if not self._in_flight:
            self._quiet_since = now
        self._in_flight += 1

    def record_answer(self, now: float) -> None:
        """Any answer shows that the broker is alive, so it closes the breaker."""
        self._in_flight -= 1
        self._quiet_since = now
        self._failures, self._opened_at, self._trying = 0, None, False

    def record_failure(self, now: float) -> None:
        """The connection was lost or could not be made, or a call timed out."""
        self._in_flight -= 1
        self._failures += 1
        if self._trying or self._failures >= self._limits.failures:
            self._open(now)

    def _open(self, now: float) -> None:
        self.openings += self._opened_at is None
        self._opened_at, self._trying = now, False

    def _is_silent(self, now: float) -> bool:
        return self._in_flight > 0 and now - self._quiet_since > self._limits.silence_s
