"""A guard against code that never gives the world its turn back, such as a loop without an end.

No event follows such code, so nothing that counts events can notice it, and no time passes. What
does pass is the processor's: where so much of it went into a single event, the code is left by
force, wherever it is, and the world ends.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STUCK_S = 30.0  # of the processor, in one event; at most twice as much


class Out(BaseException):
    """Out of whatever it is; nobody catches it by the way."""


@contextmanager
def guarded_against_loops(
    events: Callable[[], int], stuck: Callable[[str], object]
) -> Iterator[None]:
    """`events`: how many there have been. `stuck` is told where the code was, and has to see to it
    that no other event follows. Only the main thread can be guarded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1

    def look(_number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if events() != seen:
            seen = events()
            return
        stuck(f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "code of the system")
        raise Out

    before = signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S, STUCK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
