"""Graceful shutdown on Ctrl-C, SIGTERM and SIGHUP.

These signals come alone or several at once. Code that works in a loop asks whether one came, and
finishes in its own time, since there is something to write first.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

UNATTENDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # no user waits at the terminal
STOP_SIGNALS = (signal.SIGINT, *UNATTENDED_SIGNALS)
AGAIN_S = 3.0


@contextmanager
def on_stop_signal(
    stop: Callable[[], None], requests: Sequence[signal.Signals] = STOP_SIGNALS
) -> Iterator[None]:
    """Call `stop` for each of these signals during the block, instead of their usual effect."""
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
def stop_signals_blocked() -> Iterator[None]:
    """Block these signals during the block, also in processes that it starts."""
    from multiprocessing import resource_tracker  # not in every command

    resource_tracker.ensure_running()  # started by `multiprocessing`, it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_signals_deferred() -> Iterator[None]:
    """Raise KeyboardInterrupt for these signals only after the block. Where a thread is joined: an
    exception in the middle of that marks the thread as stopped, and the interpreter, which does not
    wait for it then, may hang at its exit."""
    came = threading.Event()
    with on_stop_signal(came.set, (*STOP_SIGNALS, signal.SIGALRM)):
        yield
    if came.is_set():
        raise KeyboardInterrupt


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Keep stop signals from ending the block; the yielded function returns whether one came."""
    came = threading.Event()
    with on_stop_signal(came.set):
        yield came.is_set


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP, as on Ctrl-C, during the block.

    It is raised again after some seconds if the block continues: the interpreter drops an exception
    that is raised in one of its own callbacks, such as those of a fork.
    """
    armed = False

    def interrupt() -> None:
        nonlocal armed
        armed = True
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        raise KeyboardInterrupt

    with on_stop_signal(interrupt, (*STOP_SIGNALS, signal.SIGALRM)):
        try:
            yield
        finally:
            if armed:
                signal.setitimer(signal.ITIMER_REAL, 0)
