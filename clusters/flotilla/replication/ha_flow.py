"""How fast a master may feed a slave: a token bucket, pure (`haFlowControlEnable`, spec 7.1).

`maxHaTransferByteInSecond` tokens come in a second, and a tenth of a second's worth can be saved
up. A batch goes out while the bucket is not empty and takes a token for each byte, so that a record
larger than the bucket passes too; the debt is waited out before the next one. Each slave has a
bucket, as each connection has its own flow monitor in the original, which counts anew in every
second and so may send two seconds' worth at once.
"""

from dataclasses import dataclass

SAVED_S = 0.1


@dataclass(frozen=True)
class TokenBucket:
    """`level` tokens at the time `at`; a level below zero is debt."""

    bytes_per_s: int
    level: float
    at: float

    @classmethod
    def full(cls, bytes_per_s: int, now: float) -> "TokenBucket":
        return cls(bytes_per_s, bytes_per_s * SAVED_S, now)

    def take(self, size_bytes: int, now: float) -> "TokenBucket":
        return TokenBucket(self.bytes_per_s, self._level(now) - size_bytes, now)

    def wait_s(self, now: float) -> float:
        """How long until something may be sent; 0: now. Who has waited finds a token, or by the
        rounding of times a little less than one, which is enough."""
        level = self._level(now)
        return 0.0 if level > 0 else (1 - level) / self.bytes_per_s

    def _level(self, now: float) -> float:
        most = self.bytes_per_s * SAVED_S
        return min(most, self.level + (now - self.at) * self.bytes_per_s)
