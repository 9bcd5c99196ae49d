"""What a report offers: one format, written into the run's folder or shown on the terminal."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.rundir import RunDir

Render = Callable[["RunDir"], Path | None]  # the file that was written, if any
