"""The clocks of one simulated host, exact or not.

The monotonic clock starts at `boot_ns` and runs at `rate` times the world's pace; the wall clock is
the monotonic one plus an offset that can be changed (a step, as by an administrator or a wrong time
server). Both always move forward between steps, whatever the rates.

In addition, the wall clock can have a linear error: ahead by some time, and running at another
rate. A fault sets this error and removes it.
"""

from fractions import Fraction

from clusters.hosts._world.world import World

WALL_EPOCH_NS = 1_800_000_000 * 1_000_000_000  # an arbitrary but constant date


class HostClock:
    """The clocks that the processes of one host read."""

    __slots__ = (
        *("_ahead_ns", "_anchor_ns", "_drift", "_rate", "_reads_ns", "_since_ns"),
        *("_wall_offset_ns", "_world"),
    )

    def __init__(self, world: World, boot_ns: int = 0) -> None:
        self._world = world
        self._anchor_ns = world.now_ns
        self._reads_ns = boot_ns
        self._rate: Fraction | None = None  # None: exact
        self._wall_offset_ns = WALL_EPOCH_NS + world.now_ns - boot_ns
        self._ahead_ns, self._drift, self._since_ns = 0, Fraction(0), 0

    def monotonic_ns(self) -> int:
        passed = self._world.now_ns - self._anchor_ns
        if self._rate is not None:
            passed = passed * self._rate.numerator // self._rate.denominator
        return self._reads_ns + passed

    def wall_ms(self) -> int:
        return (self.monotonic_ns() + self._wall_offset_ns + self.ahead_ns()) // 1_000_000

    def set_error(self, ahead_ns: int, rate: float) -> None:
        """Set the error of the wall clock: how far it is ahead now, and its seconds per second; 0
        and 1 remove it."""
        self._ahead_ns, self._since_ns = ahead_ns, self.monotonic_ns()
        self._drift = Fraction(rate - 1).limit_denominator(1_000_000)

    def ahead_ns(self) -> int:
        """Return the error of the wall clock now."""
        if not self._drift:
            return self._ahead_ns
        return self._ahead_ns + int((self.monotonic_ns() - self._since_ns) * self._drift)

    @property
    def wall_rate(self) -> float:
        return 1 + float(self._drift)

    @property
    def rate(self) -> float:
        return 1.0 if self._rate is None else float(self._rate)

    def set_rate(self, rate: float) -> None:
        """Change the length of the clock's seconds. `Host.set_clock_rate` moves the timers, too."""
        self._reads_ns, self._anchor_ns = self.monotonic_ns(), self._world.now_ns
        self._rate = None if rate == 1.0 else Fraction(rate).limit_denominator(1_000_000)

    def instant_ns(self, reads_ns: int) -> int:
        """Return the first instant of the world at which the monotonic clock reads at least
        this."""
        wanted = reads_ns - self._reads_ns
        if self._rate is not None:
            wanted = -(-wanted * self._rate.denominator // self._rate.numerator)
        return self._anchor_ns + wanted
