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
def interrupted_by_all() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, for the length of the block."""
    with stoppable(_interrupt, UNHEEDED):
        yield


def _interrupt() -> None:
    raise KeyboardInterrupt
