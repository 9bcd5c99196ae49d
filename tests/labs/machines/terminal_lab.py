"""A command on a terminal of its own: what it prints there, and Ctrl-C as a user presses it."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 200.0  # with a busy machine
STEP_S = 0.02
LINES = 40
OVERRIDES = ("COLUMNS", "LINES", "NO_COLOR")  # which xdist, for one, sets
CTRL_C = b"\x03"


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(STEP_S)


class Terminal:
    """A terminal with so many columns, and the command that was started on it."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        columns: int,
        folder: Path | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        kept = {name: text for name, text in environment.items() if name not in OVERRIDES}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that keys send signals
        )
        os.close(theirs)
        self._printed = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def printed(self) -> str:
        return self._printed.decode(errors="replace")

    @property
    def text(self) -> str:
        """Return what was printed, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.printed)

    def has_printed(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.DOTALL) is not None

    def wait_for(self, pattern: str) -> None:
        wait_until(lambda: self.has_printed(pattern))

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):  # the other side is closed
            while part := os.read(self._ours, 1 << 16):
                self._printed += part
