"""Time for a virtual disk that stands alone."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Time that passes when a test says so."""

    now_ns: int = 0
    due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.now_ns + delay_ns, len(self.due), call))

    def run(self) -> None:
        while self.due:
            self.now_ns, _, call = heapq.heappop(self.due)
            call()
