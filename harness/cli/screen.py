"""The progress display of a command, on standard error.

On a terminal it is a panel that a thread redraws four times a second; elsewhere (a pipe, a CI log,
or with -v) it is lines. A failed write to the terminal or a full disk is ignored: what is displayed
never changes a run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from harness.cli.console import output, standard_error


class Screen:
    """`with Screen() as screen: screen.show(panel)`; `say` prints a line on any kind of output."""

    def __init__(
        self, console: Console | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.now_s, self.began_s = now_s, now_s()
        self._console = console or standard_error()
        self._shown: RenderableType = Text("")
        self._panel: _Panel | None = None

    @property
    def has_panel(self) -> bool:
        return self._panel is not None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not output().verbose:
            self._panel = _Panel(
                get_renderable=self.panel,
                console=self._console,
                refresh_per_second=4,
                transient=True,
            )
            with _ignoring_errors(self._console):
                self._panel.start()
        return self

    def __exit__(self, *error: object) -> None:
        panel, self._panel = self._panel, None
        if panel is not None:
            with _ignoring_errors(self._console):
                panel.stop()

    def panel(self) -> RenderableType:
        """Return what the panel shows; called by the thread that redraws it."""
        return self._shown

    def show(self, what: RenderableType) -> None:
        """Show this in the panel from now on."""
        self._shown = what

    def say(self, line: str) -> None:
        with _ignoring_errors(self._console):
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def say_timed(self, line: str, since_s: float | None) -> None:
        """Print a line with the seconds since a moment, or with a dash."""
        passed = "-" if since_s is None else f"{self.now_s() - since_s:.1f}"
        self.say(f"{passed:>7} s  {line}")


class _Panel(Live):
    """A panel that continues to be redrawn after a write failed."""

    def refresh(self) -> None:
        with _ignoring_errors(self.console):
            super().refresh()


@contextmanager
def _ignoring_errors(console: Console) -> Iterator[None]:
    """Drop what cannot be written: a console would keep it, and write it again with the next."""
    try:
        yield
    except OSError:
        with suppress(OSError), console.capture():
            pass
