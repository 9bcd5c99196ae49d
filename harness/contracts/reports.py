"""What a report offers: one format, written to the run's folder or shown on the terminal."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from harness.contracts.plugin import Plugin

if TYPE_CHECKING:
    from harness.history.rundir import RunDir

Render = Callable[["RunDir"], Path | None]  # the file that was written, if any


@dataclass(frozen=True, kw_only=True)
class ReportPlugin(Plugin):
    """What the module of a report declares as `PLUGIN`."""

    MAIN: ClassVar[str] = "render"

    render: Render
