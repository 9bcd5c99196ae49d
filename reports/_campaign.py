"""The page of a campaign: what thousands of seeds came to, on one self-contained page.

Failures are deduplicated. Two seeds with the same finding codes and the same story, which is the
kinds of the faults in force at the violation and the kinds of events in the cluster before it, are
one row: usually one bug, or one mutant. The row links the report of its first seed's run.

The page loads nothing and has no script. All texts are escaped by the template engine.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from harness.campaign.run import AS_EXPECTED, NOT_AS_EXPECTED, UNDECIDED, CampaignState
from harness.campaign.tally import SeedResult
from harness.campaign.view import conclusions, figures, heading, shorten
from harness.errors import BedFailed
from harness.history.rundir import RunDir
from harness.judge.campaign_evidence import CampaignTotal
from harness.text.sanitize import sanitize
from reports import page
from reports._format import clip, end_sentence
from reports._run import write_report

MAX_ROWS = 200  # of a table
MAX_REPORTS = 20  # of runs that are written with the page
MAX_SENTENCE = 600  # letters
MAX_POINTS = 400  # of a curve
WIDTH, HEIGHT, LEFT, BOTTOM, EDGE = 1000, 190, 64, 26, 14
NO_FAULT, NO_EVENT = "no fault in force", "no event"
RESULTS = {  # by exit code: style and word, as those of suites
    AS_EXPECTED: ("valid", "as expected"),
    NOT_AS_EXPECTED: ("invalid", "not as expected"),
    UNDECIDED: ("unknown", "undecided"),
}


@dataclass(frozen=True)
class FailureRow:
    """Seeds that failed in the same way. `run`: the first one with a run, and its address."""

    codes: tuple[str, ...]
    in_force: str
    before: str
    seeds: tuple[int, ...]
    why: str
    run: tuple[str, str] | None

    @property
    def seeds_text(self) -> str:
        return shorten(self.seeds)


@dataclass(frozen=True)
class SeedGroup:
    """Seeds with the same reason."""

    why: str
    seeds: tuple[int, ...]

    @property
    def seeds_text(self) -> str:
        return shorten(self.seeds)


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault; `at_violations`: the number of failed seeds in which it was in force."""

    kind: str
    planned: int
    counted: int
    at_violations: int


def write_page(path: Path, state: CampaignState, total: CampaignTotal) -> None:
    """Write the page, and the reports of the runs that it links. Raises BedFailed if the page
    cannot be written."""
    failures = failure_rows(state, path.absolute().parent)
    for row in failures[:MAX_REPORTS]:
        run = next((state.runs[seed] for seed in row.seeds if seed in state.runs), None)
        if run is not None and (run / "verdict.json").is_file():
            with suppress(Exception):  # the link leads to the folder
                page.render(RunDir(run))
    try:
        write_report(path, page_html(state, total, path.absolute().parent))
    except OSError as e:
        raise BedFailed(f"the page cannot be written to {path}: {e.strerror or e}") from e


def page_html(state: CampaignState, total: CampaignTotal, folder: Path) -> str:
    """Return the page. `folder`: where it will be, for its links."""
    tally = state.tally
    look, word = RESULTS[state.exit_code]
    failures = failure_rows(state, folder)
    lost = _grouped((why, seed) for seed, why in state.lost.items())
    unproven = _grouped(
        (code, row.seed) for row in state.rows if row.doubtful for code in row.unproven
    )
    unkept = _grouped((why, seed) for seed, why in state.unkept.items())
    return page.TEMPLATES.get_template("campaign.html").render(
        look=look,
        word=word,
        heading=heading(state, tally),
        tally=tally,
        failures=failures[:MAX_ROWS],
        more_failures=max(0, len(failures) - MAX_ROWS),
        groups=[
            (title, groups[:MAX_ROWS], max(0, len(groups) - MAX_ROWS))
            for title, groups in (
                ("unproven", unproven),
                ("lost", lost),
                ("failed, and not kept", unkept),
            )
            if groups
        ],
        abandoned=shorten(state.abandoned) if state.abandoned else "",
        lost=len(state.lost),
        kinds=fault_kinds(state),
        counted=_curve(_counted_over_time(state.rows), "counted faults"),
        features=_curve(state.features, "features found"),
        figures=list(figures(state, tally)),
        conclusions=[
            clip(end_sentence(one[:1].upper() + one[1:]), MAX_SENTENCE)
            for one in conclusions(state, tally, total)
        ],
        style=page.asset("_templates/style.css") + page.asset("_templates/site.css"),
    )


def failure_rows(state: CampaignState, folder: Path) -> list[FailureRow]:
    """Return the failures by finding codes and story, the most frequent first."""
    groups: dict[tuple[tuple[str, ...], ...], list[SeedResult]] = {}
    for row in sorted((row for row in state.rows if row.failure), key=lambda row: row.seed):
        groups.setdefault((row.failure, row.in_force, row.before), []).append(row)
    made = [_failure_row(some, state.runs, folder) for some in groups.values()]
    return sorted(made, key=lambda row: (-len(row.seeds), row.seeds))


def _failure_row(some: Sequence[SeedResult], runs: Mapping[int, Path], folder: Path) -> FailureRow:
    first = some[0]
    kept = next((row.seed for row in some if row.seed in runs), None)
    return FailureRow(
        codes=tuple(clip(code, 80) for code in first.failure),
        in_force=clip(", ".join(first.in_force) or NO_FAULT, MAX_SENTENCE),
        before=clip(" → ".join(first.before) or NO_EVENT, MAX_SENTENCE),
        seeds=tuple(row.seed for row in some),
        why=clip(first.why, MAX_SENTENCE),
        run=None if kept is None else (f"seed {kept}", _address(runs[kept], folder)),
    )


def _address(run: Path, folder: Path) -> str:
    """Return the address of a run's report relative to the page; of its folder, if it has none."""
    report = run / "report.html"
    target = os.path.relpath((report if report.is_file() else run).absolute(), folder)
    return quote(os.fsencode(target), safe="/")


def _grouped(pairs: Iterable[tuple[str, int]]) -> list[SeedGroup]:
    groups: dict[str, list[int]] = {}
    for why, seed in pairs:
        groups.setdefault(why, []).append(seed)
    made = [SeedGroup(clip(why, MAX_SENTENCE), tuple(sorted(s))) for why, s in groups.items()]
    return sorted(made, key=lambda group: (-len(group.seeds), group.why))


def fault_kinds(state: CampaignState) -> list[FaultKind]:
    """Return the kinds of faults, those that were planned most often first."""
    tally = state.tally
    at = Counter(kind for row in state.rows if row.failure for kind in set(row.in_force))
    return [
        FaultKind(clip(kind, 60), tally.planned.get(kind, 0), tally.counted.get(kind, 0), at[kind])
        for kind in sorted({*tally.planned, *at}, key=lambda k: (-tally.planned.get(k, 0), k))
    ]


# ----------------------------------------------------------------------------------------- curves

Point = tuple[float, int]  # CPU seconds, and a count by then


def _counted_over_time(rows: Sequence[SeedResult]) -> list[Point]:
    """Return the counted faults of all seeds up to each, by the CPU time they took together."""
    points, spent_s, faults = [(0.0, 0)], 0.0, 0
    for row in rows:
        spent_s += row.cpu_s
        faults += 0 if row.doubtful else sum(row.counted.values())
        points.append((spent_s, faults))
    return points


def _curve(points: Sequence[Point], what: str) -> Markup | None:
    """Return a curve of a count over CPU time; None if there is nothing to draw."""
    if len(points) < 2 or points[-1][0] <= 0 or points[-1][1] <= 0:
        return None
    last_s, top = points[-1][0], max(count for _, count in points)
    step = ceil(len(points) / MAX_POINTS)
    some = [*points[:-1:step], points[-1]]
    plot, depth = WIDTH - LEFT - EDGE, HEIGHT - BOTTOM - EDGE
    drawn = [(LEFT + s / last_s * plot, EDGE + depth - n / top * depth) for s, n in some]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    words = f"{top:,} {what} in {last_s:,.0f} s of CPU time"
    ticks = Markup("").join(
        Markup('<path d="M{x:.1f} {}V{}" class="grid"/><text x="{x:.1f}" y="{}">{}</text>').format(
            EDGE, EDGE + depth, HEIGHT - 8, f"{last_s * part / 4:,.0f} s", x=LEFT + plot * part / 4
        )
        for part in range(5)
    )
    levels = Markup("").join(
        Markup('<text x="{}" y="{:.1f}" class="level">{}</text>').format(
            LEFT - 6, EDGE + depth * (1 - part / 2) + 4, f"{top * part / 2:,.0f}"
        )
        for part in range(3)
    )
    return Markup(
        '<svg class="growth" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{words}">{ticks}{levels}<polyline points="{line}"/></svg>'
    ).format(w=WIDTH, h=HEIGHT, words=sanitize(words), ticks=ticks, levels=levels, line=line)
