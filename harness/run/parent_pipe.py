"""The pipe between the runner and the command that started it: status out, `stop` in.

When standard input ends, the command is gone, and the runner exits at once; as process 1 of its
namespaces it ends everything of the run. A reader of status lines that is slow or stopped loses
some of them and delays nothing.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

STATUS, ORDERS = 1, 0  # file descriptors

ShowMessage = Callable[[str], None]  # callable from any thread


def log(line: str) -> None:
    """Write a line to the runner's log, its standard error."""
    print(line, file=sys.stderr, flush=True)


# Where hosts report why a step takes long, such as an image being built: to the command that
# started the runner, if there is one, else to the log.
listener: ContextVar[ShowMessage] = ContextVar("listener", default=log)


class ParentPipe(Protocol):
    """`stop` is set when an early end is requested."""

    stop: asyncio.Event

    def send(self, status: Mapping[str, Any], /) -> None: ...


class NoParent:
    """No parent process: status is dropped, and no early end is requested."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()

    def send(self, status: Mapping[str, Any], /) -> None: ...


async def no_parent() -> ParentPipe:
    return NoParent()


async def open_parent_pipe() -> ParentPipe:
    """Connect to the command that started this process."""
    line = StdioPipe()
    await line.open()
    listener.set(lambda text: line.send({"said": text}))
    return line


class StdioPipe(asyncio.Protocol):
    """The pipe on standard input and output. The command, or SIGTERM, may request an early end."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._rest = b""

    async def open(self) -> None:
        """Read from standard input from now on."""
        loop = asyncio.get_running_loop()
        os.set_blocking(STATUS, False)
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the command handles it
        await loop.connect_read_pipe(lambda: self, os.fdopen(ORDERS, "rb", 0))

    def send(self, status: Mapping[str, Any], /) -> None:
        if "stats" not in status and "standing" not in status:
            print(json.dumps(status), file=sys.stderr, flush=True)
        try:
            os.write(STATUS, json.dumps(status).encode() + b"\n")
        except BlockingIOError:
            pass  # the pipe is full
        except OSError:
            os._exit(1)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if b"stop" in (line.strip() for line in lines):
            self.stop.set()

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(1)
