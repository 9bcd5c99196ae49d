"""What simulated processes print and read: `print`, `sys.stdout`, `sys.stderr`, `sys.stdin.buffer`.

While a world runs, the interpreter's three streams are replaced by ones that ask who is speaking:
the process whose loop runs now, or else whoever spoke before the world began. A process keeps what
it printed, line by line, and tells it to whoever listens.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Lines:
    """A stream of text, cut into lines."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._tell(line)
        return len(text)


class Pipe:
    """Standard input of a process, from outside. What is said before anybody reads is kept."""

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


class Speaker(Protocol):
    """A process, as far as its streams go."""

    stdout: Lines
    stderr: Lines
    stdin: Pipe


class _Routed:
    """One of the interpreter's streams, whoever speaks."""

    def __init__(self, name: str, real: Any) -> None:
        self._name, self._real = name, real

    def write(self, text: str) -> int:
        who = _speaker()
        return int((self._real if who is None else getattr(who, self._name)).write(text))

    def flush(self) -> None:
        if _speaker() is None:
            self._real.flush()

    @property
    def buffer(self) -> Any:
        who = _speaker()
        return self._real.buffer if who is None else getattr(who, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def routed() -> Iterator[None]:
    """Inside the block, each process has streams of its own."""
    before = sys.stdout, sys.stderr, sys.stdin
    sys.stdout, sys.stderr, sys.stdin = (
        _Routed("stdout", sys.stdout),
        _Routed("stderr", sys.stderr),
        _Routed("stdin", sys.stdin),
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.stdin = before


def _speaker() -> Speaker | None:
    loop = asyncio._get_running_loop()
    owner: Speaker | None = getattr(loop, "owner", None)
    return None if getattr(loop, "real", False) else owner
