"""Standard output and error of a command that may outlive whoever reads them.

`seatrial run | head`, a terminal that was closed, a log collector that died: a trial goes on and
its verdict and exit code stay what they are; what is said from then on is said to nobody. A disk
that is full is another matter: somebody wanted those words, so that is an error.
"""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO

GONE = (errno.EPIPE, errno.EIO, errno.EBADF)


class Outlet(io.TextIOWrapper):
    """A text stream that goes on as if heard when its reader has gone."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as e:
            self._unheard(e)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as e:
            self._unheard(e)

    def _unheard(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        self.silence()

    def silence(self) -> None:
        """From now on, to nobody."""
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, self.fileno())
        os.close(nobody)


def open_outlets() -> None:
    """Put outlets in place of both streams; one that was closed before we came is mute."""
    sys.stdout, sys.stderr = _outlet(sys.stdout), _outlet(sys.stderr)


def close_outlets() -> bool:
    """Whether all that was said could be written down. The interpreter's own flush then passes."""
    heard = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            heard = False
            if isinstance(stream, Outlet):
                stream.silence()
                with suppress(OSError):
                    stream.flush()
    return heard


def _outlet(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w")
    return Outlet(
        stream.buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.stderr,
    )
