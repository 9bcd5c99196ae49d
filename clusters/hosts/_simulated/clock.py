"""The clocks of one simulated host, right or wrong.

The monotonic clock starts at `boot_ns` and runs at `rate` times the world's pace; the wall clock is
the monotonic one plus an offset that can be set (a step, as when an administrator or a broken time
server sets it). Both of them always move forward between steps, whatever rates follow each other.

Besides, the wall clock can be made wrong for a while, along a line: ahead by so much, and so many
of its seconds in one. That is what a fault does, and takes back.
"""

from fractions import Fraction

from .world import World

WALL_BEGINS_NS = 1_800_000_000 * 1_000_000_000  # the world's year is of no importance, but constant


class HostClock:
    """What the processes of one host read."""

    __slots__ = (
        *("_ahead_ns", "_anchor_ns", "_drift", "_rate", "_reads_ns", "_since_ns"),
        *("_wall_offset_ns", "_world"),
    )

    def __init__(self, world: World, boot_ns: int = 0) -> None:
        self._world = world
        self._anchor_ns = world.now_ns
        self._reads_ns = boot_ns
        self._rate: Fraction | None = None  # None: exactly right
        self._wall_offset_ns = WALL_BEGINS_NS + world.now_ns - boot_ns
        self._ahead_ns, self._drift, self._since_ns = 0, Fraction(0), 0

    def monotonic_ns(self) -> int:
        passed = self._world.now_ns - self._anchor_ns
        if self._rate is not None:
            passed = int(passed * self._rate)
        return self._reads_ns + passed

    def wall_ms(self) -> int:
        return (self.monotonic_ns() + self._wall_offset_ns + self.ahead_ns()) // 1_000_000

    def step(self, by_ns: int) -> None:
        """Set the wall clock forward, or back."""
        self._wall_offset_ns += by_ns

    def go_wrong(self, ahead_ns: int, rate: float) -> None:
        """From now on the wall clock is ahead by so much, and counts so many seconds in one. 0 and
        1 set it right."""
        self._ahead_ns, self._since_ns = ahead_ns, self.monotonic_ns()
        self._drift = Fraction(rate - 1).limit_denominator(1_000_000)

    def ahead_ns(self) -> int:
        """How wrong the wall clock is now."""
        return self._ahead_ns + int((self.monotonic_ns() - self._since_ns) * self._drift)

    @property
    def wall_rate(self) -> float:
        return 1 + float(self._drift)

    @property
    def rate(self) -> float:
        return 1.0 if self._rate is None else float(self._rate)

    def set_rate(self, rate: float) -> None:
        """From now on seconds are longer or shorter. `Host.set_clock_rate` moves the timers too."""
        self._reads_ns, self._anchor_ns = self.monotonic_ns(), self._world.now_ns
        self._rate = None if rate == 1.0 else Fraction(rate).limit_denominator(1_000_000)

    def instant_ns(self, reads_ns: int) -> int:
        """The first instant of the world at which the monotonic clock reads at least this."""
        wanted = reads_ns - self._reads_ns
        if self._rate is not None:
            wanted = -(-wanted // self._rate)
        return self._anchor_ns + wanted
