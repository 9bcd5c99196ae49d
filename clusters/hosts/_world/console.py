"""Standard input and output of simulated processes: `print`, `sys.stdout`, `sys.stderr`,
`sys.stdin.buffer`.

While a world runs, the interpreter's three streams are replaced by ones that belong to the process
whose loop runs, or else to the program that runs the world. A process keeps its output line by
line, and passes it to a listener.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusters.hosts._world.process import SimProcess


class LineWriter:
    """A text stream that is split into lines."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._on_line = tell
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._on_line(line)
        return len(text)


class StdinPipe:
    """Standard input of a process, seen from outside. Input is kept until the process reads it."""

    def __init__(self) -> None:
        self.waiting = bytearray()
        self.ended = False
        self.reader: Callable[[], None] | None = None

    def feed(self, data: bytes) -> None:
        self.waiting += data
        self._wake()

    def close(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        if self.reader:
            self.reader()


class _RoutedStream:
    """One of the interpreter's streams, which belongs to the process that runs."""

    def __init__(self, name: str, real: Any) -> None:
        self._name, self._real = name, real

    def write(self, text: str) -> int:
        who = _stdio_owner()
        return int((self._real if who is None else getattr(who, self._name)).write(text))

    def flush(self) -> None:
        if _stdio_owner() is None:
            self._real.flush()

    @property
    def buffer(self) -> Any:
        who = _stdio_owner()
        return self._real.buffer if who is None else getattr(who, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def route_stdio() -> Iterator[None]:
    """Give each process streams of its own inside the block."""
    before = sys.stdout, sys.stderr, sys.stdin
    sys.stdout, sys.stderr, sys.stdin = (
        _RoutedStream("stdout", sys.stdout),
        _RoutedStream("stderr", sys.stderr),
        _RoutedStream("stdin", sys.stdin),
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.stdin = before


def _stdio_owner() -> "SimProcess | None":
    loop = asyncio._get_running_loop()
    owner: SimProcess | None = getattr(loop, "owner", None)
    return None if getattr(loop, "real", False) else owner
