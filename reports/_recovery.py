"""The effect of each fault: a table row with both meanings of RTO, the spread by kind, and
availability.

The spread is drawn as one dot a fault on a logarithmic scale that all panels share, with the median
as a line: few faults are few dots, and nothing is smoothed. A time that never came counts as later
than all others: a cross at the right end, included in the median.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from markupsafe import Markup

from harness.history.faults_and_events import FaultInterval
from harness.text.plurals import quantity
from reports._format import seconds
from reports._lanes import KINDS, fault_style
from reports._run import RunView
from reports._times import (
    SILENCE,
    TO_ACK,
    TO_FULL_SET,
    TO_SUCCESS,
    Durations,
    FaultTimesRow,
    durations,
    finite,
    is_time,
    times_of_faults,
)

WIDTH, GUTTER, RIGHT = 340, 78, 62
ROW, TOP, AXIS = 24, 6, 22
MIN_S = 0.001
METRICS = (
    (
        TO_ACK,
        "Fault to acknowledgement",
        "from applied to the first acknowledged send after it",
    ),
    (
        TO_SUCCESS,
        "Failure to success",
        "from the first failed send to the next success",
    ),
    (SILENCE, "Longest silence", "without any acknowledgement, until the next fault"),
    (TO_FULL_SET, "Healed to full redundancy", "until the SyncStateSet was full again"),
)


@dataclass(frozen=True)
class Spread:
    """One panel: a measure, and each kind's values of it."""

    title: str
    about: str
    drawing: Markup
    summary: str


def fault_rows(view: RunView) -> list[dict[str, Any]]:
    """Return the table of faults: the plan, what happened, and the times to recover."""
    return [_row(view, fault) for fault in view.faults]


def _row(view: RunView, fault: FaultInterval) -> dict[str, Any]:
    load = view.phases.get("load", 0)
    worth = view.stats("coverage").get("worth", {}).get(str(fault.id), "")
    return {
        "id": fault.id,
        "words": fault.label,
        "style": fault_style(fault),
        "nodes": fault.names,
        "selector": view.words(fault.selector),
        "params": fault.params,
        "state": fault.state,
        "worth": view.words(worth),
        "planned_s": None if fault.planned is None else (load + fault.planned) / 1e9,
        "took_ms": _between(fault.begin, fault.applied, 1e6),
        "observed_ms": _between(fault.begin, fault.observed, 1e6),
        "healing_ms": _between(fault.heal, fault.healed, 1e6),
        "begin_s": None if fault.begin is None else fault.begin / 1e9,
        "lasted_s": _between(fault.applied, fault.heal, 1e9),
        "times": view.part("the times of the faults", lambda: _fault_times(view, fault.id), None),
        "observation": fault.observation,
    }


def _times(view: RunView) -> list[FaultTimesRow]:
    return times_of_faults(view.stats("availability"))


@dataclass(frozen=True)
class FaultTimes:
    """A fault's times as text; empty: not measured, or no send failed."""

    to_ack: str
    late: bool
    failure_to_success: str
    silence: str
    to_full_set: str
    was_full: bool


def _fault_times(view: RunView, fault: int) -> FaultTimes | None:
    """Return a fault's times; None if they were not measured."""
    time = next((t for t in _times(view) if t.get("fault") == fault), None)
    if time is None:
        return None
    silence, full = time.get(SILENCE), time.get(TO_FULL_SET)
    return FaultTimes(
        to_ack=seconds(time.get(TO_ACK)),
        late=bool(time.get("only_after_healing")),
        failure_to_success=seconds(time.get(TO_SUCCESS)) if time.get("failed") else "",
        silence="" if silence is None else seconds(silence),
        to_full_set="" if full is None else seconds(full),
        was_full=full == 0,
    )


@dataclass(frozen=True)
class AvailabilityText:
    """The share of the load without an outage, and further numbers."""

    share: str
    rest: str


def availability(view: RunView) -> AvailabilityText | None:
    """Return the availability; None without faults or without measurements."""
    stats = view.stats("availability")
    figures = stats.get("availability") or {}
    share = figures.get("share")
    if share is None or not stats.get("faults"):
        return None
    return AvailabilityText(f"{share * 100:.3f} %", "".join(_rest(figures)))


def _rest(availability: Mapping[str, Any]) -> Iterator[str]:
    """Yield the further numbers; those that another version does not store are left out."""
    if availability.get("interval"):
        low, high = availability["interval"]
        yield f" (95 % interval {low * 100:.2f} to {high * 100:.2f} %)"
    if availability.get("nines") is not None:
        yield f", {availability['nines']:.2f} nines"
    if availability.get("outages") is not None:
        yield f"; {quantity(availability['outages'], 'outage')}"
        for name, words in (("outage_over_s", " longer than {}"), ("down_s", ", {} in all")):
            if availability.get(name) is not None:
                yield words.format(seconds(availability[name]))
    for name, words in (("mttr_s", "MTTR"), ("mtbf_s", "MTBF")):
        if availability.get(name) is not None:
            yield f", {words} {seconds(availability[name])}"
    yield "."
    if availability.get("per_year_s") is not None:
        yield f" Were faults as frequent all year: {seconds(availability['per_year_s'])} down."


def _between(begin: int | None, end: int | None, unit: float) -> float | None:
    return None if begin is None or end is None else (end - begin) / unit


# --------------------------------------------------------------------------------------- drawings


def spreads(view: RunView) -> list[Spread]:
    """Return a panel for each measure that any fault has a value of."""
    times = _times(view)
    durations = [t[name] for t in times for name, *_ in METRICS if is_time(t.get(name))]
    scale = _LogScale.of(durations)
    return [
        _spread(times, name, title, view.words(about), scale)
        for name, title, about in METRICS
        if any(is_time(t.get(name)) for t in times)
    ]


def _spread(
    times: Sequence[FaultTimesRow], name: str, title: str, about: str, scale: "_LogScale"
) -> Spread:
    kinds = sorted({str(t.get("kind", "")) for t in times}, key=_place)
    shapes: list[Markup] = []
    summary: list[str] = []
    lines = 0
    for kind in kinds:
        some = durations([t for t in times if str(t.get("kind", "")) == kind], name)
        if some:
            shapes += _line(kind, some, scale, TOP + lines * ROW)
            usual = median(value for _, value in some)
            summary.append(f"{kind}: median {_median_text(usual)} of {len(some)}{_never(some)}")
            lines += 1
    height = TOP + lines * ROW + AXIS
    words = f"{title}. {'; '.join(summary)}"
    drawing = Markup(
        '<svg class="spread" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        'aria-label="{words}">{axis}{shapes}</svg>'
    ).format(
        w=WIDTH,
        h=height,
        words=words,
        axis=Markup("").join(scale.axis(TOP + lines * ROW)),
        shapes=Markup("").join(shapes),
    )
    return Spread(title, about, drawing, words)


def _median_text(value: float) -> str:
    return seconds(finite(value))


def _never(some: Durations) -> str:
    count = sum(not math.isfinite(value) for _, value in some)
    return f", {count} never" if count else ""


def _line(kind: str, some: Durations, scale: "_LogScale", y: int) -> Iterator[Markup]:
    """Yield one kind of fault: its name, its dots, a cross for those that never came, its
    median."""
    middle = y + ROW / 2
    style = kind if kind in KINDS else "other"
    yield Markup('<text x="0" y="{:.1f}" class="kind">{}</text>').format(middle + 4, kind[:12])
    yield Markup('<path d="M{} {:.1f}H{}" class="rail"/>').format(GUTTER, middle, WIDTH - RIGHT)
    for fault, value in some:
        if math.isfinite(value):
            yield Markup(
                '<circle cx="{:.1f}" cy="{:.1f}" r="4.5" class="dot {}"><title>fault {}: {}</title>'
                "</circle>"
            ).format(scale.x(value), middle, style, fault, seconds(value))
    if never := ", ".join(str(fault) for fault, value in some if not math.isfinite(value)):
        yield Markup(
            '<path d="M{} {:.1f}l8 8m0-8l-8 8" class="never"><title>fault {}: never</title></path>'
        ).format(WIDTH - RIGHT - 4, middle - 4, never)
    usual = median(value for _, value in some)
    if math.isfinite(usual):
        yield Markup('<path d="M{:.1f} {:.1f}v14" class="median"/>').format(
            scale.x(usual), middle - 7
        )
    yield Markup('<text x="{}" y="{:.1f}" class="value">{}</text>').format(
        WIDTH, middle + 4, _median_text(usual)
    )


def _place(kind: str) -> tuple[int, str]:
    return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind)


@dataclass(frozen=True)
class _LogScale:
    """Seconds on a logarithmic scale of whole decades; lesser values are at its left end."""

    low: int
    high: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "_LogScale":
        some = [max(MIN_S, value) for value in values] or [1.0]
        low = math.floor(math.log10(min(some)))
        return cls(low, max(low + 1, math.ceil(math.log10(max(some) * 1.0001))))

    def x(self, value: float) -> float:
        share = (math.log10(max(value, 10.0**self.low)) - self.low) / (self.high - self.low)
        return GUTTER + share * (WIDTH - GUTTER - RIGHT)

    def axis(self, y: int) -> Iterator[Markup]:
        for power in range(self.low, self.high + 1):
            x = self.x(10.0**power)
            yield Markup('<path d="M{:.1f} {}V{}" class="grid"/>').format(x, TOP, y)
            yield Markup('<text x="{:.1f}" y="{}" class="tick">{}</text>').format(
                x, y + 15, _decade(power)
            )


def _decade(power: int) -> str:
    return f"{10 ** (power + 3):g} ms" if power < 0 else f"{10**power:,} s"
