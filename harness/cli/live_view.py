"""The progress display of a running trial.

The panel shows the phase, the load's clock, operations per second by outcome, latencies, the faults
in force and the current masters. As lines: one for each phase, fault and change of master, with the
seconds since the load began. It only receives the runner's status, and cannot change a run.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness.cli.screen import Screen
from harness.run.progress import ActiveFault, TrialProgress
from harness.text.sanitize import sanitize_all
from harness.trial import Trial

STORY = (
    ("starting", "raise"),
    ("raised", "start"),
    ("load", "load"),
    ("healed", "recover"),
    ("drain", "drain"),
    ("collected", "take down"),
    ("checking", "check"),
)
BARS = " ▁▂▃▄▅▆▇█"
STAGE_WORDS = {
    "begin": "being applied",
    "applied": "applied",
    "observed": "observed",
    "heal": "being healed",
}


class TrialScreen(Screen):
    """`with TrialScreen(trial) as screen: screen.update(status)`."""

    def __init__(
        self,
        trial: Trial,
        console: Console | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, now_s)
        self._trial = trial
        self.progress = TrialProgress(began_s=self.began_s)
        self._updating = threading.Lock()  # of progress

    def __enter__(self) -> Self:
        super().__enter__()
        if not self.has_panel:
            self._say(f"trial {self._trial.name}: {headline(self._trial)}")
            self._say("times are seconds since the load began")
        return self

    def update(self, status: Mapping[str, Any]) -> None:
        """Take a status line of the runner."""
        with self._updating:
            lines = self.progress.update(sanitize_all(status), self.now_s())
        for line in lines:
            if not self.has_panel or status.get("alarm"):
                self._say(line)

    def _say(self, line: str) -> None:
        self.say_timed(line, self.progress.load_began_s)

    def panel(self) -> RenderableType:
        with self._updating:
            return draw(self._trial, self.progress, self.now_s())


def headline(trial: Trial) -> str:
    """Return the trial in a few words."""
    profile = f", profile {trial.profile}" if trial.profile else ""
    return f"{trial.workload} on {trial.system} ({trial.hosts}){profile}, seed {trial.seed}"


def draw(trial: Trial, progress: TrialProgress, now_s: float) -> Panel:
    """Return the panel for this moment."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right", min_width=8)
    rows.add_column()
    rows.add_row("phase", _phases(progress))
    rows.add_row("load", _clock(trial, progress, now_s))
    rows.add_row("sends", _sends(progress))
    rows.add_row("", _spark(progress.rates("ok", 60)))
    rows.add_row("faults", _faults(progress, now_s))
    rows.add_row("cluster", _cluster(progress))
    if progress.failed:
        rows.add_row("failed", Text(progress.failed, style="bold red"))
    return Panel(
        rows,
        title=Text(f" {trial.name} ", style="bold"),
        title_align="left",
        subtitle=Text(f" {headline(trial)} ", style="dim"),
        subtitle_align="left",
        border_style="red" if progress.failed else "cyan",
        padding=(1, 1),
    )


def _phases(progress: TrialProgress) -> Text:
    names = [phase for phase, _ in STORY]
    here = names.index(progress.phase) if progress.phase in names else -1
    text = Text()
    for index, (_, word) in enumerate(STORY):
        style = "bold" if index == here else ("green" if index < here else "dim")
        mark = "▸ " if index == here else ("✓ " if index < here else "")
        text.append(f"{mark}{word}", style=style).append("   ")
    if progress.checker and progress.phase == "checking":
        text.append(progress.checker, style="dim")
    if here < 0:
        text.append(progress.phase, style="bold yellow")
    return text


def _clock(trial: Trial, progress: TrialProgress, now_s: float) -> RenderableType:
    done_s = progress.load_s(now_s)
    if done_s is None:
        return Text(f"begins when the cluster is healthy; {trial.duration_s:.0f} s", style="dim")
    bar = ProgressBar(total=trial.duration_s, completed=min(done_s, trial.duration_s), width=36)
    left_s = max(0.0, trial.duration_s - done_s)
    words = f"{done_s:.0f} s of {trial.duration_s:.0f} s"
    line = Table.grid(padding=(0, 2))
    line.add_row(bar, Text(words), Text(f"{left_s:.0f} s left" if left_s else "over", style="dim"))
    return line


def _sends(progress: TrialProgress) -> Text:
    if not progress.samples:
        return Text("none yet", style="dim")
    text = Text().append(f"{progress.rate('ok'):,.0f}/s  ", style="bold")
    for name, word, style in (
        ("ok", "acknowledged", "green"),
        ("fail", "refused", "yellow"),
        ("info", "unknown", "magenta"),
        ("polled", "delivered", "cyan"),
    ):
        text.append(f"{progress.latest(name) or 0:,.0f} ", style=style).append(f"{word}  ", "dim")
    for name in ("p50_ms", "p99_ms"):
        value = progress.latest(name)
        if value is not None:
            text.append(f"{name[:3]} ", style="dim").append(f"{value:,.1f} ms  ")
    return text


def _spark(rates: list[float]) -> Text:
    top = max(rates, default=0.0)
    if top <= 0:
        return Text("")
    steps = len(BARS) - 1
    bars = "".join(BARS[min(steps, round(rate / top * steps))] for rate in rates)
    return Text().append(bars, style="green").append(f"  {top:,.0f}/s", style="dim")


def _faults(progress: TrialProgress, now_s: float) -> RenderableType:
    lines = [_fault(fault, now_s) for fault in progress.faults.values()]
    if progress.done:
        word = "healed"
        lines.append(
            Text(f"{len(progress.done)} {word}, last {progress.done[-1].label}", style="dim")
        )
    return Group(*lines) if lines else Text("none yet", style="dim")


def _fault(fault: ActiveFault, now_s: float) -> Text:
    style = "red" if fault.state != "failed" else "yellow"
    words = STAGE_WORDS.get(fault.stage, fault.stage)
    doubt = f", {fault.state}" if fault.state in ("partial", "failed") else ""
    text = Text().append("■ ", style=style).append(fault.label, style="bold")
    return text.append(f"  {words}{doubt}, {now_s - fault.since_s:.1f} s", style="dim")


def _cluster(progress: TrialProgress) -> RenderableType:
    words = progress.words
    lines = [
        Text(f"{name}  ")
        .append(words("master "), style="dim")
        .append(progress.masters[name] or "none", style="bold")
        .append(words("  epoch "), style="dim")
        .append(str(progress.epochs.get(name, "?")))
        for name in sorted(progress.masters)
    ] or [Text("not known yet", style="dim")]
    if progress.in_set:
        lines.append(
            Text()
            .append(words("SyncStateSet "), style="dim")
            .append(str(len(progress.in_set)))
            .append(f" ({', '.join(progress.in_set)})")
        )
    if progress.controller_leader:
        lines.append(
            Text().append("controller leader ", style="dim").append(progress.controller_leader)
        )
    return Group(*lines)
