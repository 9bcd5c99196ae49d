"""To be asked to stop is no end: there is something to write down first.

Ctrl-C, SIGTERM and a terminal that is closed come alone or several at once; whoever works in a loop
wants to know, and finishes in its own time.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

UNHEEDED = (signal.SIGTERM, signal.SIGHUP)  # nobody sits there and waits
REQUESTS = (signal.SIGINT, *UNHEEDED)
AGAIN_S = 3.0


@contextmanager
def stoppable(
    stop: Callable[[], None], requests: Sequence[signal.Signals] = REQUESTS
) -> Iterator[None]:
    """These requests call `stop` for the length of the block, and do nothing else."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in requests:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                previous[number] = signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def stops_noted() -> Iterator[Callable[[], bool]]:
    """Requests to stop end nothing in the block; the yielded function says whether one came."""
    came = threading.Event()
    with stoppable(came.set):
        yield came.is_set


@contextmanager
def interrupted_by_all() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, for the length of the block.

    It is raised again after some seconds if the block goes on: the interpreter drops an exception
    that comes in one of its own callbacks, such as those of a fork.
    """
    armed = False

    def interrupt() -> None:
        nonlocal armed
        armed = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        raise KeyboardInterrupt

    with stoppable(interrupt, (*REQUESTS, signal.SIGALRM)):
        try:
            yield
        finally:
            if armed:
                signal.setitimer(signal.ITIMER_REAL, 0)
