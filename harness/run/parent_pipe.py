"""The runner's line to the command that started it: status out, `stop` in, and life itself.

When standard input ends, the command is gone, and the runner ends at once; as process 1 of its
namespaces it takes everything of the run with it. Status lines are a courtesy: a reader that is
slow or stopped loses some and delays nobody.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from harness.run.progress_messages import listener

STATUS, ORDERS = 1, 0  # file descriptors


class Lifeline(Protocol):
    """`stop` is set when somebody asks for an early end."""

    stop: asyncio.Event

    def say(self, status: Mapping[str, Any], /) -> None: ...


class Alone:
    """Nobody listens, and nobody asks for anything."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()

    def say(self, status: Mapping[str, Any], /) -> None: ...


async def alone() -> Lifeline:
    return Alone()


async def held() -> Lifeline:
    """The line to the command that started this process."""
    line = Line()
    await line.hold()
    listener.set(lambda words: line.say({"said": words}))
    return line


class Line(asyncio.Protocol):
    """The command, or SIGTERM, may ask for an early end."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._rest = b""

    async def hold(self) -> None:
        """From now on, listen."""
        loop = asyncio.get_running_loop()
        os.set_blocking(STATUS, False)
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the command's to react to
        await loop.connect_read_pipe(lambda: self, os.fdopen(ORDERS, "rb", 0))

    def say(self, status: Mapping[str, Any], /) -> None:
        if "stats" not in status and "standing" not in status:
            print(json.dumps(status), file=sys.stderr, flush=True)
        try:
            os.write(STATUS, json.dumps(status).encode() + b"\n")
        except BlockingIOError:
            pass  # nobody reads just now
        except OSError:
            os._exit(1)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if b"stop" in (line.strip() for line in lines):
            self.stop.set()

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(1)
