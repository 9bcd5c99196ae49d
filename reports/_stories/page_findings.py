"""Findings on the page: stories of some witnesses, drawings, and their times.

Stories are those of `seatrial explain`, for the first witnesses of the important findings. Each
takes a pass over the history, so a history of millions of operations has fewer. Their number
depends on the history's size alone, so a page that is made twice is the same.

The cause of a finding is often in a line of a node's event log that no sentence of its story
covers. So the lines within a second of its moments are shown verbatim: from the time of the
acknowledgement, and from later elections or truncations. If there are many, the lines nearest to a
moment are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from harness.history.faults_and_events import ClusterEvent
from harness.judge.verdict import Finding, Result
from reports import _format
from reports._format import clip
from reports._lanes import CHATTER, PROGRESS, SENTENCE, WORD, Mark, fields_text, shown_events
from reports._run import WHEN, RunView, explain_command, rank
from reports._stories.interval_drawing import IntervalDrawing, interval_drawing, interval_svg
from reports._stories.story import Story, explain

MAX_STORIES_EACH = 3  # stories of one finding
MAX_STORIES = 12  # stories of a page
LARGE_BYTES = 64 << 20  # of operations; above: one story a finding, three in total
TONES = ("bad", "doubt", "quiet")


NEAR_NS = 1_000_000_000
MAX_LINES = 40  # lines


@dataclass(frozen=True)
class NodeLogLine:
    """A line of a node's log: seconds since the load began, and since the first moment."""

    s: float
    apart_s: float
    node: str
    kind: str
    fields: str


@dataclass(frozen=True)
class NearbyEvents:
    """Lines in order of time, and the number of lines left out."""

    lines: tuple[NodeLogLine, ...] = ()
    left_out: int = 0


NO_EVENTS = NearbyEvents()


def nearby_events(events: Sequence[ClusterEvent], moments: Sequence[int]) -> NearbyEvents:
    """Return the events within a second of any of these moments; connection events are left out
    first."""
    if not moments:
        return NO_EVENTS
    reported = [event for event in events if event.node and event.kind and event.kind != PROGRESS]
    near = [event for event in reported if _apart(event, moments) <= NEAR_NS]
    near.sort(key=lambda e: (e.t, e.node))
    ranked = sorted(
        range(len(near)), key=lambda n: (near[n].kind in CHATTER, _apart(near[n], moments))
    )
    kept = [near[n] for n in sorted(ranked[:MAX_LINES])]
    return NearbyEvents(tuple(_line(event, moments[0]) for event in kept), len(near) - len(kept))


def _apart(event: ClusterEvent, moments: Sequence[int]) -> int:
    return min(abs(event.t - t) for t in moments)


def _line(event: ClusterEvent, t: int) -> NodeLogLine:
    return NodeLogLine(
        s=event.t / 1e9,
        apart_s=(event.t - t) / 1e9,
        node=clip(event.node, WORD),
        kind=clip(event.kind, WORD),
        fields=clip(fields_text(event.fields), SENTENCE),
    )


@dataclass(frozen=True)
class WitnessView:
    """One witness of a finding: its story, its operations as a drawing, the node events at that
    time."""

    name: str
    story: Story | None
    example: IntervalDrawing | None
    nearby: NearbyEvents = NO_EVENTS
    zero: int = 0  # begin of the axis

    @property
    def subject(self) -> str:
        return _format.clip(self.story.subject if self.story else "", 400)

    @property
    def drawing(self) -> Markup | None:
        return interval_svg(self.example, self.zero) if self.example else None

    @property
    def moments(self) -> list[dict[str, Any]]:
        """Times on the axis: seconds since the load began."""
        if self.story is None:
            return []
        return [
            {"s": (step.t - self.zero) / 1e9, "faults": on, "words": _format.clip(step.text, 400)}
            for step, on in self.story.moments
        ]

    @property
    def times(self) -> tuple[int, ...]:
        return self.example.times if self.example else ()


@dataclass(frozen=True)
class FindingView:
    """A finding on the page; `number` is its place."""

    number: int
    checker: str
    finding: Finding
    witnesses: tuple[WitnessView, ...]
    explain: str
    nodes: tuple[str, ...]
    times: tuple[tuple[int, str], ...]

    @property
    def tone(self) -> str:
        return TONES[rank(self.finding)]

    @property
    def standing(self) -> str:
        return _format.standing_of(self.finding)

    @property
    def columns(self) -> list[str]:
        return _format.columns(self.finding.evidence)

    def marks(self) -> Iterator[Mark]:
        for t, words in self.times:
            yield Mark(t, self.number, self.tone, words)


def finding_views(view: RunView) -> list[FindingView]:
    """Return all findings of a verdict, those that convict first."""
    left = _budget(view)
    counted: dict[str, int] = {}
    views = []
    for number, (result, finding) in enumerate(view.findings()):
        first = counted.get(finding.code, 0) + 1
        counted[finding.code] = first - 1 + len(finding.evidence)
        names = _witnesses(finding, first, left if rank(finding) < 2 else 0)
        left -= len(names)
        rows = zip(names, finding.evidence, strict=False)
        witnesses = tuple(_witness_view(view, name, row) for name, row in rows)
        views.append(_finding_view(view, number, first, (result, finding), witnesses))
    return views


def _budget(view: RunView) -> int:
    size = sum(path.stat().st_size for path in view.history.files["ops"])
    return MAX_STORIES if size < LARGE_BYTES else MAX_STORIES_EACH


def _witnesses(finding: Finding, first: int, left: int) -> list[str]:
    """Return `LOST_ACKED:1` and so on; numbers continue where an earlier finding has the same
    code."""
    if not finding.evidence:
        return []
    each = MAX_STORIES_EACH if left > MAX_STORIES_EACH else 1
    count = min(each, left, len(finding.evidence))
    return [f"{finding.code}:{first + n}" for n in range(count)]


def _witness_view(view: RunView, name: str, row: Mapping[str, Any]) -> WitnessView:
    story = view.part(f"the story of {name}", lambda: explain(view.run, name), None)
    example = view.part(
        f"the operations of {name}",
        lambda: interval_drawing(view.history, view.verdict, name),
        None,
    )
    if example is not None and len(example.operations) < 2:
        example = None
    t = _when(row)
    if t is None and example is not None:
        t = min(example.times, default=None)
    moments = [] if t is None else [t - view.zero]
    moments += [step.t - view.zero for step, _ in story.moments] if story else []
    return WitnessView(name, story, example, nearby_events(shown_events(view), moments), view.zero)


def _finding_view(
    view: RunView,
    number: int,
    first: int,
    judged: tuple[Result, Finding],
    witnesses: tuple[WitnessView, ...],
) -> FindingView:
    """Return a finding. `first`: the number of its first witness among all of its code."""
    result, finding = judged
    message = _format.clip(finding.message, 1200)
    times = tuple(_moments(view.zero, finding, first, witnesses))
    finding = replace(view.on_axis(finding), message=message[:1].upper() + message[1:])
    roles = view.named("roles")
    cells = {str(cell) for row in finding.evidence for cell in row.values()}
    return FindingView(
        number=number,
        checker=result.checker,
        finding=finding,
        witnesses=witnesses,
        explain=explain_command(view, f"{finding.code}:{first}" if first > 1 else finding.code),
        nodes=tuple(sorted(node for node in roles if node in cells)),
        times=times,
    )


def _moments(
    zero: int, finding: Finding, first: int, witnesses: Sequence[WitnessView]
) -> Iterator[tuple[int, str]]:
    """Yield the first time of each row of evidence; if there is none, the invocations of
    operations."""
    dated = False
    for number, row in enumerate(finding.evidence, start=first):
        t = _when(row)
        if t is not None:
            dated = True
            what = next((f", {row[name]}" for name in ("queue", "key", "node") if name in row), "")
            t -= zero
            yield t, f"{finding.code} witness {number}{what}, at {t / 1e9:.3f} s"
    for witness in () if dated else witnesses:
        for t in witness.times:
            at = t - zero
            yield at, f"{witness.name}, an operation invoked at {at / 1e9:.3f} s"


def _when(row: Mapping[str, Any]) -> int | None:
    """Return a row's first time, in ns since the run's start; None if it has none in a valid
    range."""
    at = next((row[name] for name in WHEN if isinstance(row.get(name), int | float)), None)
    return round(at * 1e9) if at is not None and 0 <= at < 1e9 else None
