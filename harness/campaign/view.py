"""The progress display of a campaign, and its summary.

Without a terminal the display is a line every half minute, and one for each seed that failed or was
lost.
"""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness import registry
from harness.campaign.guided import SearchProgress
from harness.campaign.hunt import HuntState
from harness.campaign.run import DOUBTS, KEPT, CampaignState
from harness.campaign.tally import CampaignTotals, SeedResult, ranges
from harness.cli.console import format_duration, standard_output
from harness.cli.prog_name import seatrial
from harness.cli.screen import Screen
from harness.cli.session import refuse_unwritable, say
from harness.errors import BadRequest, BedFailed
from harness.judge.campaign_evidence import CampaignTotal
from harness.text.plurals import quantity

DRAW_EVERY_S, SAY_EVERY_S = 0.5, 30.0
SEEDS_SHOWN = 60  # characters of a list of seeds
REWARDS_SHOWN = 6  # mutations and kinds, while it runs
NARROW = 60  # characters of a terminal


class CampaignScreen(Screen):
    """`with CampaignScreen() as screen: conduct(..., screen)`."""

    def __init__(
        self, console: Console | None = None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, now_s)
        self._next_s = 0.0
        self._reported: set[int] = set()  # seeds
        self._began = False

    def __call__(self, state: CampaignState) -> None:
        if state.resumed and not self._began:
            self.say(_resumed_text(state))
        self._began = True
        for line in self._news(state):
            self.say(line)
        now_s = self.now_s()
        if now_s < self._next_s or not (self.has_panel or state.rows):
            return
        self._next_s = now_s + (DRAW_EVERY_S if self.has_panel else SAY_EVERY_S)
        if self.has_panel:
            self.show(draw(state))
        else:
            self.say(f"{state.took_s:7.1f} s  {headline(state)}")

    def _news(self, state: CampaignState) -> Iterator[str]:
        if len(state.runs) + len(state.unkept) + len(state.lost) == len(self._reported):
            return
        for row in state.rows:
            kept = state.runs.get(row.seed) or state.unkept.get(row.seed)
            if kept and row.seed not in self._reported:
                self._reported.add(row.seed)
                word = "not kept" if row.seed in state.unkept else "kept"
                yield f"seed {row.seed}: {row.words}: {row.why}; {word}: {kept}"
        for seed, why in state.lost.items():
            if seed not in self._reported:
                self._reported.add(seed)
                yield f"seed {seed} was lost: {why}"


def headline(state: CampaignState) -> str:
    tally = state.tally
    unproven = tally.doubtful - tally.excused
    return (
        f"{tally.seeds:,} of {quantity(len(state.campaign.seeds), 'seed')}, "
        f"{quantity(tally.faults, 'fault')}, "
        f"{tally.faults_per_minute:,.0f} a minute and core, {tally.seconds / 3600:.2f} simulated "
        f"hours, {tally.failed:,} failed"
        + (f", {tally.excused:,} excused" * bool(tally.excused))
        + (f", {unproven:,} unproven" * bool(unproven))
        + (f", {len(state.lost):,} lost" * bool(state.lost))
        + (f", {_found(state.search.progress)}" if state.search else "")
    )


def _found(search: SearchProgress) -> str:
    if not search.features:
        return "nothing learned from yet"
    return f"{quantity(search.features, 'feature')}, {quantity(search.kept, 'plan')} kept"


def _resumed_text(state: CampaignState) -> str:
    seeds = quantity(len(state.resumed), "seed was", "seeds were")
    return f"{seeds} finished by an interrupted campaign of this kind, and not run again"


def draw(state: CampaignState) -> Panel:
    """Return the panel for this moment."""
    campaign, tally = state.campaign, state.tally
    rows = _grid()
    rows.add_row("seeds", _bar(state))
    rows.add_row("faults", f"{tally.faults:,}  ·  {tally.faults_per_minute:,.0f} a minute and core")
    rows.add_row("simulated", f"{tally.seconds / 3600:.2f} h  ·  {tally.pace:.0f} s a CPU second")
    rows.add_row("failures", _failures(tally))
    if state.search:
        rows.add_row("search", _found(state.search.progress))
        rows.add_row("mean rewards", _rewards(state.search.progress, REWARDS_SHOWN))
    words = f"profile {campaign.profile}" + (f", mutant {campaign.mutant}" * bool(campaign.mutant))
    return Panel(rows, title="campaign", subtitle=words, title_align="left", border_style="cyan")


def _bar(state: CampaignState) -> Table:
    done, total = len(state.rows) + len(state.lost), len(state.campaign.seeds)
    share = done / total
    if state.campaign.within_s:
        share = max(share, min(1.0, state.took_s / state.campaign.within_s))
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(100, 100 * share, width=40), f"{done:,} of {total:,}")
    return row


def _rewards(search: SearchProgress, most: int | None = None) -> str:
    """Return the mutations and kinds of faults that brought new features, the best first."""
    ranked = sorted(search.rewards.items(), key=lambda pair: -pair[1])[:most]
    return ", ".join(f"{name} {mean:.2f}" for name, mean in ranked) or "nothing yet"


def _failures(tally: CampaignTotals) -> Text:
    if not tally.failures:
        return Text("none", style="green")
    lines = [f"{words}: {shorten(seeds)}" for words, seeds in tally.failures.items()]
    return Text("\n".join(lines), style="red")


# -------------------------------------------------------------------------------------- summary


def show(state: CampaignState, total: CampaignTotal, console: Console | None = None) -> None:
    """Print the summary on standard output."""
    console = console or standard_output()
    console.print(heading(state, state.tally))
    _show_below_heading(state, total, console)


def _show_below_heading(state: CampaignState, total: CampaignTotal, console: Console) -> None:
    tally = state.tally
    console.print(_faults(tally))
    _print_rows(console, [*figures(state, tally), *_kinds(tally)])
    for line in conclusions(state, tally, total):
        console.print(line, markup=False, soft_wrap=True)


Append = Callable[[CampaignState, CampaignTotal], None]


@contextmanager
def open_summary(path: Path | None) -> Iterator[Append]:
    """Open a file for summaries before the campaign. Raises BadRequest if that fails."""
    if path is None:
        yield lambda state, total: None
        return
    try:
        file = path.open("a")
    except OSError as e:
        raise BadRequest(
            f"no summary can be written to {path}: {e.strerror or e}; name a file in a folder "
            "that exists"
        ) from e

    def append(state: CampaignState, total: CampaignTotal) -> None:
        try:
            file.write(markdown(state, total))
            file.flush()
        except OSError as e:
            raise BedFailed(f"the summary cannot be written to {path}: {e.strerror or e}") from e

    with file:
        yield append


@contextmanager
def open_page(path: Path | None) -> Iterator[Append]:
    """Open a page of a campaign, which is written at its end, with the reports of the runs that it
    links. Raises BadRequest, before the campaign, if no file can be written there."""
    if path is None:
        yield lambda state, total: None
        return
    refuse_unwritable(path, "--page")
    yield lambda state, total: registry.campaign_page().write_page(path, state, total)


def markdown(state: CampaignState, total: CampaignTotal) -> str:
    """Return the summary for the page of a CI job."""
    out = StringIO()
    console = Console(file=out, width=100, highlight=False)
    _show_below_heading(state, total, console)
    return f"## {heading(state, state.tally)}\n\n```\n{out.getvalue()}```\n\n"


def heading(state: CampaignState, tally: CampaignTotals) -> str:
    """Return what was carried out."""
    campaign = state.campaign
    mutant = f", mutant {campaign.mutant}" if campaign.mutant else ""
    guided = ", guided" if campaign.guided else ""
    early = ", stopped by request" if state.interrupted else ""
    late = ", as many as fitted into the time" if state.late else ""
    if campaign.guided and (early or late) and state.continues:
        late += "; the same command continues it"
    return (
        f"{tally.seeds:,} of {quantity(len(campaign.seeds), 'seed')} of {campaign.base.system}, "
        f"profile {campaign.profile}{mutant}{guided}{early}{late}"
    )


def _faults(tally: CampaignTotals) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("faults")
    table.add_column("planned", justify="right")
    table.add_column("counted", justify="right")
    for kind, planned in tally.planned.items():
        table.add_row(Text(kind), f"{planned:,}", f"{tally.counted.get(kind, 0):,}")
    table.add_row("all", f"{sum(tally.planned.values()):,}", f"{tally.faults:,}", style="bold")
    return table


def figures(state: CampaignState, tally: CampaignTotals) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the totals."""
    not_begun = f", {state.not_begun:,} not begun" * bool(state.not_begun)
    came_to = _came_to(tally, len(state.lost), len(state.abandoned))
    yield "seeds", f"{came_to}{not_begun}"
    yield "simulated", f"{tally.seconds / 3600:.2f} hours, {tally.pace:.1f} s in a CPU second"
    yield "operations", f"{tally.operations:,}, {tally.acknowledged:,} messages acknowledged"
    yield "per 1,000 faults", _rates(tally.per_thousand())
    yield "per 1,000 seeds", _rates(tally.per_thousand_seeds())
    yield from _looks(tally)
    if tally.choices:
        yield "choices", _choices(tally.choices)
    if state.search:
        search = state.search.progress
        yield "search", f"{_found(search)}, corpus {state.search.corpus_digest()}"
        yield "mean rewards", _rewards(search)
    yield "pace", f"{tally.faults_per_minute:,.0f} faults a minute and core"
    yield (
        "cost",
        (
            f"{tally.cpu_s:,.0f} s of CPU in {state.took_s:,.0f} s, "
            f"at most {state.peak_bytes / 1e6:,.0f} MB in a worker"
        ),
    )


def _came_to(tally: CampaignTotals, lost: int, abandoned: int) -> str:
    """Return the results of all seeds that were begun."""
    return (
        f"{tally.failed:,} failed, {tally.excused:,} excused, "
        f"{tally.doubtful - tally.excused:,} unproven, {lost:,} lost, "
        f"{abandoned:,} abandoned, {tally.clean:,} clean"
    )


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{_short(number)} {word}" for word, number in rates.items())


def _looks(tally: CampaignTotals) -> Iterator[tuple[str, str]]:
    """Yield how often each invariant was checked, and which never was."""
    if tally.looks:
        yield "invariant checks", ", ".join(f"{n:,} {law}" for law, n in tally.looks.items())
    if never := [law for law, n in tally.looks.items() if not n]:
        yield "never checked", ", ".join(never)
    if tally.unseen:
        yield "unseen", f"{quantity(tally.unseen, 'event')} that no invariant could check"


def _choices(made: Mapping[str, int]) -> str:
    """Return how often worlds chose an unusual way at the system's choice points, and where not."""
    points = quantity(sum(map(bool, made.values())), "point")
    never = ", ".join(point for point, n in made.items() if not n)
    return f"{sum(made.values()):,} made at {points}" + (f", never: {never}" * bool(never))


def _kinds(tally: CampaignTotals) -> Iterator[tuple[str, Text]]:
    yield "failures", _failures(tally)
    if tally.unproven:
        counts = (f"{code}: {quantity(seeds, 'seed')}" for code, seeds in tally.unproven.items())
        yield "unproven", Text("\n".join(counts))


def _print_rows(console: Console, rows: Sequence[tuple[str, str | Text]]) -> None:
    """Print rows side by side, or on a narrow terminal one below the other."""
    if console.width < NARROW:
        for words, text in rows:
            console.print(Text.assemble((words, "dim"), "\n", text))
        return
    grid = _grid()
    for words, text in rows:
        grid.add_row(words, Text(text) if isinstance(text, str) else text)
    console.print(grid)


def _short(number: float) -> str:
    return f"{number:,.1f}".removesuffix(".0")


def conclusions(state: CampaignState, tally: CampaignTotals, total: CampaignTotal) -> Iterator[str]:
    """Yield sentences about what the campaign proves, and what a reader has to know of it."""
    if state.resumed:
        yield _resumed_text(state)
    for seed, why in sorted(state.lost.items()):
        yield f"seed {seed} was lost: {why}"
    if state.abandoned:
        yield (
            f"abandoned, because the campaign ended while they were running: "
            f"{ranges(state.abandoned)}; their results are unknown"
        )
    if state.unsaved:
        yield f"finished seeds could not be recorded at once: {state.unsaved}"
    yield from _early(state)
    yield from _caught(state, tally)
    if state.runs:
        yield _kept_text(state, tally)
    for seed, why in sorted(state.unkept.items()):
        yield f"seed {seed} failed and is not kept: {why}"
    if state.too_doubtful:
        yield (
            f"{quantity(tally.doubtful, 'seed')} of {tally.seeds:,} proved nothing, which is more "
            f"than {DOUBTS:.0%}: the result is undecided"
        )
    yield from _all_of_its_like(state, tally, total)


def _early(state: CampaignState) -> Iterator[str]:
    if state.changed:
        yield (
            "the code has changed, so the campaign was ended; the counts are those of the code it "
            "began with"
        )
    if state.hopeless:
        yield (
            f"the first {len(state.lost)} seeds were all lost, so the campaign was ended; fix the "
            "cause named above, and start it again"
        )


def _caught(state: CampaignState, tally: CampaignTotals) -> Iterator[str]:
    mutant = state.campaign.mutant
    if not mutant or not state.rows:
        return
    if state.caught:
        yield (
            f"the mutant {mutant} was caught by seed {state.caught.seed} within "
            f"{quantity(state.faults_to_catch, 'counted fault')}: {state.caught.why}"
        )
        return
    yield f"the mutant {mutant} was not caught in {quantity(tally.faults, 'fault')}"
    if state.inconclusive:
        own = state.campaign.own_finding
        without = f"without {own}, the finding that convicts this mutant" if own else "to end"
        yield f"{quantity(state.inconclusive, 'seed')} failed {without}: the result is undecided"


def _all_of_its_like(
    state: CampaignState, tally: CampaignTotals, total: CampaignTotal
) -> Iterator[str]:
    if not state.campaign.in_full:
        yield (
            "it was judged by a part of the contract or by other checkers than the workload's, so "
            "it is not added to the evidence"
        )
    every = total.tally
    if total.seeds > tally.seeds + len(state.lost) + len(state.abandoned):
        failed = ranges({seed for seeds in every.failures.values() for seed in seeds})
        yield (
            f"all campaigns of this kind (the same code, options, profile, mutant and plan): "
            f"{quantity(total.seeds, 'seed')}, "
            f"{_came_to(every, len(total.lost), len(total.abandoned))}; "
            f"{quantity(every.faults, 'fault')}, {every.seconds / 3600:,.1f} simulated hours; "
            f"failed: {failed or 'none'}"
        )


def _kept_text(state: CampaignState, tally: CampaignTotals) -> str:
    first = state.runs[min(state.runs)]
    kept = "all of them are" if tally.failed > 1 else "it is"
    if len(state.runs) < tally.failed:
        kept = f"{len(state.runs)} are" if state.unkept else f"{KEPT} of a class are"
    failed = quantity(tally.failed, "seed")
    report = f"{seatrial()} report {shlex.quote(str(first))}"
    return f"{failed} failed, {kept} kept; for a report: {report}"


def shorten(seeds: Iterable[int]) -> str:
    """Return seeds as `--seeds` reads them; of very many the first ones and their number."""
    seeds = tuple(seeds)
    text = ranges(seeds)
    return text if len(text) <= SEEDS_SHOWN else f"{text[:SEEDS_SHOWN]}... ({len(seeds):,} seeds)"


def _grid() -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right", min_width=16)
    rows.add_column()
    return rows


# ------------------------------------------------------------------------------------------ hunts


def report_trial(state: HuntState, row: SeedResult) -> None:
    """Print a line about a trial of a hunt, on standard error."""
    if why := state.failed.get(row.seed):
        say(f"trial {row.seed}: the test bed failed: {why}")
        return
    what = row.why if row.failure else "not decided" if row.doubtful else "valid"
    faults = quantity(sum(row.counted.values()), "fault")
    say(
        f"{format_duration(state.took_s)}: trial {row.seed}: {what}; {faults}; in all "
        f"{_found(state.search.progress)}"
    )


def show_hunt(state: HuntState, console: Console | None = None) -> None:
    """Print the summary of a hunt on standard output."""
    console, tally = console or standard_output(), state.tally
    base = state.hunt.base
    profile = f", profile {base.profile}" * bool(base.profile)
    console.print(f"{quantity(len(state.rows), 'trial')} of {base.system}{profile}", markup=False)
    console.print(_faults(tally))
    _print_rows(console, [*_hunt_figures(state), *_kinds(tally)])
    if state.resumed:
        done = quantity(state.resumed, "trial was", "trials were")
        console.print(f"{done} finished by an earlier hunt of this kind, and not run again")
    if state.failed_before:
        before = quantity(state.failed_before, "trial")
        console.print(f"the test bed of {before} of an earlier hunt of this kind had failed")
    if state.unsaved:
        console.print(f"results could not be stored, so they are lost: {state.unsaved}")
    for number, why in state.failed.items():
        console.print(f"trial {number}: the test bed failed: {why}", markup=False, soft_wrap=True)
    for one in state.findings:
        runs = ", ".join(shlex.quote(str(run)) for run in one.runs)
        console.print(
            f"trial {one.number}, after {format_duration(one.after_s)}: {one.why} Shown by "
            f"{len(one.runs)} of {quantity(one.tries, 'run')} of its plan: {runs}",
            markup=False,
            soft_wrap=True,
        )
    if state.ended:
        console.print(f"the hunt ended because {state.ended}", markup=False, soft_wrap=True)


def _hunt_figures(state: HuntState) -> Iterator[tuple[str, str]]:
    tally = state.tally
    yield (
        "trials",
        f"{tally.failed:,} invalid, {tally.excused:,} excused, "
        f"{tally.doubtful - tally.excused:,} not decided, {tally.clean:,} valid, "
        f"{len(state.failed) + state.failed_before:,} whose test bed failed",
    )
    yield "operations", f"{tally.operations:,}, {tally.acknowledged:,} messages acknowledged"
    yield "search", _found(state.search.progress)
    yield "mean rewards", _rewards(state.search.progress)
    yield "took", format_duration(state.took_s)
