"""What a report offers: one format, written to the run's folder or shown on the terminal.

`render(run)` is called after a run was judged, and by `seatrial report`. The run's folder has the
verdict (`Verdict.read(run.verdict_file)`), the trial (`run.trial()`), and the history
(`History.open(run)`). It writes a file into `run.path` and returns its path; None: it wrote none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from harness.contracts.plugin import Plugin

if TYPE_CHECKING:
    from harness.history.rundir import RunDir

Render = Callable[["RunDir"], Path | None]  # the file that was written, if any


@dataclass(frozen=True, kw_only=True)
class ReportPlugin(Plugin):
    """What the module of a report declares as `PLUGIN`."""

    MAIN: ClassVar[str] = "render"
    RETURNS: ClassVar[Any] = Path | None

    render: Render
