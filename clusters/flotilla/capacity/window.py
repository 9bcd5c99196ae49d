"""The sliding window of an offline reader: it collapses under pressure, slowly (spec 10.7). Pure.

Readers that have time must not be what makes a broker slow. Each pull that took too long, or
failed, takes a quarter of the window away: fewer messages at once, and a longer pause before the
next pull. Each quick one adds a fixed part, so it comes back more slowly than it went.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Window:
    """How far it is open: a `share` from 0 to 1.

    `most`: messages in a pull; `slow_s`: a pull that lasts longer is slow; `pause_most_s`: between
    two pulls.
    """

    most: int
    slow_s: float
    pause_most_s: float
    share: float = 1.0

    @property
    def size(self) -> int:
        return max(1, round(self.most * self.share))

    @property
    def pause_s(self) -> float:
        return self.pause_most_s * (1 - self.share)

    def after(self, took_s: float, failed: bool = False) -> "Window":
        if failed or took_s > self.slow_s:
            return replace(self, share=self.share * 0.75)
        return replace(self, share=min(1.0, self.share + 0.05))
