"""The run on one true time axis, as inline SVG.

Lanes from top to bottom: phases, faults, each broker's role with its epoch, the controllers'
leader, the size of the SyncStateSet, sends by outcome, latency, and findings. Everything that has a
width lies in one inner SVG whose unit is a millisecond across and a pixel down, stretched to the
plot; so zooming is only another `viewBox`. Text is outside of it, placed by its time, because
stretched letters are ugly. Fault windows shade all lanes below them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from harness.intervals import FaultInterval
from harness.roles import Span, set_sizes, spans
from reports._run import Told, rank

WIDTH, GUTTER, RIGHT = 1180, 158, 16
PLOT = WIDTH - GUTTER - RIGHT
ROW, BAR, GAP = 22, 16, 16
LETTER = 6.3  # a letter's width at the labels' size
CHART, SMALL_CHART = 110, 46
KINDS = ("kill", "pause", "partition", "loss")
PHASE_WORDS = {
    "raised": "start",
    "load": "load",
    "healed": "load, all healed",
    "drain": "final read",
    "collected": "take down",
}
ROLE_WORDS = {"master": "master, epoch", "leader": "leader, term"}


@dataclass
class Canvas:
    """What is drawn: shapes inside the plot, text around it, and how far down we are."""

    end_ms: float
    from_ms: float = 0.0
    y: float = 4.0
    shapes: list[Markup] = field(default_factory=list)
    texts: list[Markup] = field(default_factory=list)

    def x(self, ms: float) -> float:
        return GUTTER + (ms - self.from_ms) / self.length_ms * PLOT

    @property
    def length_ms(self) -> float:
        return self.end_ms - self.from_ms

    def rect(self, begin: float, end: float, y: float, height: float, style: str, tip: str) -> None:
        width = max(end - begin, self.length_ms / PLOT)
        self.shapes.append(
            Markup(
                '<rect x="{:.3f}" y="{:.1f}" width="{:.3f}" height="{:.1f}" class="{}">'
                "<title>{}</title></rect>"
            ).format(begin, y, width, height, style, tip)
        )

    def path(self, points: str, style: str) -> None:
        self.shapes.append(Markup('<path d="{}" class="{}"/>').format(points, style))

    def name(self, text: str, y: float, style: str = "lane") -> None:
        """A lane's name in the gutter."""
        self.texts.append(
            Markup('<text x="8" y="{:.1f}" class="{}">{}</text>').format(y, style, text)
        )

    def label(self, words: Sequence[str], begin: float, end: float, y: float, style: str) -> None:
        """Text on a bar: the first of `words` that the bar is wide enough for, or none."""
        seen = max(begin, self.from_ms)
        room = (end - seen) / self.length_ms * PLOT - 8
        text = next((word for word in words if len(word) * LETTER <= room), "")
        self.texts.append(
            Markup(
                '<text x="{:.1f}" y="{:.1f}" class="on {}" data-from="{:.3f}" data-to="{:.3f}" '
                'data-words="{}">{}</text>'
            ).format(self.x(seen) + 4, y, style, begin, end, json.dumps(words), text)
        )

    def scale(self, text: str, y: float) -> None:
        """A value on a lane's own axis."""
        self.texts.append(
            Markup('<text x="{}" y="{:.1f}" class="scale">{}</text>').format(GUTTER - 10, y, text)
        )
        self.path(f"M{self.from_ms:.0f} {y - 3.5:.1f}H{self.end_ms:.0f}", "rule")


def timeline(told: Told) -> Markup:
    """The whole picture."""
    canvas = Canvas(end_ms=told.end / 1e6, from_ms=told.begin / 1e6)
    _phases(canvas, told)
    _faults(canvas, told)
    below = canvas.y
    _roles(canvas, told)
    _set_size(canvas, told)
    _throughput(canvas, told)
    _latency(canvas, told)
    _findings(canvas, told)
    shades = Markup("").join(_shades(told, below, canvas.y - GAP / 2))
    return Markup(
        '<svg class="timeline" viewBox="0 0 {w} {h:.0f}" role="img" aria-label="The run over time" '
        'data-from="{begin:.3f}" data-end="{end:.3f}" data-gutter="{g}" data-plot="{p}">'
        '<svg class="plot" x="{g}" y="0" width="{p}" height="{h:.0f}" viewBox="{begin:.3f} 0 '
        '{length:.3f} {h:.0f}" preserveAspectRatio="none">{shades}{shapes}</svg>{texts}{axis}'
        '<line class="cursor" y1="0" y2="{bottom:.1f}" visibility="hidden"/></svg>'
    ).format(
        w=WIDTH,
        h=canvas.y + 26,
        begin=canvas.from_ms,
        end=canvas.end_ms,
        length=canvas.length_ms,
        g=GUTTER,
        p=PLOT,
        bottom=canvas.y,
        shades=shades,
        shapes=Markup("").join(canvas.shapes),
        texts=Markup("").join(canvas.texts),
        axis=_axis(canvas),
    )


# --------------------------------------------------------------------------------------- lanes


def _phases(canvas: Canvas, told: Told) -> None:
    marks = [(told.phases[name], name) for name in PHASE_WORDS if name in told.phases]
    if not marks:
        return
    ends = [*(t for t, _ in marks[1:]), told.end]
    for (begin, name), end in zip(marks, ends, strict=True):
        words = PHASE_WORDS[name]
        canvas.rect(begin / 1e6, end / 1e6, canvas.y, 14, f"phase {name}", words)
        canvas.label([words], begin / 1e6, end / 1e6, canvas.y + 11, "quiet")
    canvas.name("phase", canvas.y + 11)
    canvas.y += 14 + GAP


def _faults(canvas: Canvas, told: Told) -> None:
    drawn = [fault for fault in told.faults if fault.begin is not None]
    if not drawn:
        return
    canvas.name("faults", canvas.y + 12)
    bottom = canvas.y
    for fault, row in zip(drawn, _rows(drawn, told.end), strict=True):
        y = canvas.y + row * ROW
        _fault(canvas, fault, y, told.end)
        bottom = max(bottom, y + ROW)
    canvas.y = bottom + GAP / 2


def _fault(canvas: Canvas, fault: FaultInterval, y: float, end: int) -> None:
    """Thin while it is put in place and undone, thick while in force, a notch when observed."""
    begin, applied, heal, healed = _stages(fault, end)
    style = f"fault {fault.kind if fault.kind in KINDS else 'other'}"
    tip = f"fault {fault.id}: {fault.words}; {fault.state}; {_span_words(begin, healed)}"
    canvas.rect(begin / 1e6, healed / 1e6, y + BAR / 2 - 3, 6, f"{style} edge", tip)
    if fault.applied is not None:
        state = "" if fault.state == "installed" else " doubtful"
        canvas.rect(applied / 1e6, heal / 1e6, y, BAR, style + state, tip)
    if fault.observed is not None:
        canvas.path(f"M{fault.observed / 1e6:.3f} {y + BAR:.1f}v-5", "observed")
    shape = fault.params.get("shape")
    shorter = [f"{fault.id} {fault.kind} ({shape})"] if shape else []
    words = [f"{fault.id} {fault.words}", *shorter, f"{fault.id} {fault.kind}", str(fault.id)]
    canvas.label(words, applied / 1e6, heal / 1e6, y + 12, "inverse")


def _roles(canvas: Canvas, told: Told) -> None:
    """A row for each node that ever played a part."""
    told_spans = spans(told.events, told.faults, told.end)
    nodes = sorted({s.node for s in told_spans}, key=lambda n: (_role_order(told, n), n))
    for node in nodes:
        canvas.name(node, canvas.y + 11)
        for span in told_spans:
            if span.node == node:
                _span(canvas, span)
        for fault in told.faults:
            if node in fault.names and fault.applied is not None:
                _hit(canvas, fault, told.end)
        canvas.y += ROW - 4
    canvas.y += GAP if nodes else 0


def _span(canvas: Canvas, span: Span) -> None:
    begin, end = span.begin / 1e6, span.end / 1e6
    tip = f"{span.node}: {span.role}, {'term' if span.role in TERM_ROLES else 'epoch'} {span.epoch}"
    tip += f"; {_span_words(span.begin, span.end)}"
    if span.role in ROLE_WORDS:
        canvas.rect(begin, end, canvas.y, 13, f"role {span.role}", tip)
        words = [f"{ROLE_WORDS[span.role]} {span.epoch}", str(span.epoch)]
        canvas.label(words, begin, end, canvas.y + 10, "inverse")
    else:
        canvas.rect(begin, end, canvas.y + 5, 3, f"role {span.role}", tip)


def _hit(canvas: Canvas, fault: FaultInterval, end: int) -> None:
    """Under a node's role: what was done to it meanwhile."""
    _, applied, heal, _ = _stages(fault, end)
    style = f"fault {fault.kind if fault.kind in KINDS else 'other'}"
    tip = f"fault {fault.id}: {fault.words}"
    canvas.rect(applied / 1e6, heal / 1e6, canvas.y + 13, 3, style, tip)


def _set_size(canvas: Canvas, told: Told) -> None:
    steps = set_sizes(told.events)
    names = sorted({step.set for step in steps})
    for name in names:
        mine = [step for step in steps if step.set == name]
        top = max(len(step.members) for step in mine)
        height = SMALL_CHART
        canvas.name("SyncStateSet" if len(names) == 1 else f"set {name}", canvas.y + 12)
        y_of = _linear(canvas.y, height, top)
        for size in range(top + 1):
            canvas.scale(str(size), y_of(size) + 3.5)
        ends = [*(step.t for step in mine[1:]), told.end]
        points = "".join(
            f"{'L' if number else 'M'}{step.t / 1e6:.3f} {y_of(len(step.members)):.1f}"
            f"H{end / 1e6:.3f}"
            for number, (step, end) in enumerate(zip(mine, ends, strict=True))
        )
        canvas.path(points, "line set")
        canvas.y += height + GAP


def _throughput(canvas: Canvas, told: Told) -> None:
    """Sends a second, stacked by outcome; what consumers were given is the line."""
    lanes = told.lanes
    if not lanes.count:
        return
    layers = [lanes.per_second(name) for name in ("ok", "fail", "info")]
    delivered = lanes.per_second("delivered")
    stacked = [sum(values) for values in zip(*layers, strict=True)]
    top = _nice(1.2 * max(_usual(stacked), _usual(delivered), 1))
    y_of = _linear(canvas.y, CHART, top)
    canvas.name("sends per second", canvas.y + 12)
    if max(stacked) > top:
        canvas.name(f"(peak {max(stacked):,.0f})", canvas.y + 26, "scale left")
    for value in (0, top / 2, top):
        canvas.scale(f"{value:,.0f}", y_of(value) + 3.5)
    base = [0.0] * lanes.count
    for style, layer in zip(("ok", "fail", "info"), layers, strict=True):
        upper = [low + value for low, value in zip(base, layer, strict=True)]
        if any(layer):
            canvas.path(_area(lanes.from_s, lanes.bin_s, base, upper, y_of), f"area {style}")
        base = upper
    canvas.path(_line(lanes.from_s, lanes.bin_s, delivered, y_of), "line delivered")
    canvas.y += CHART + GAP


def _latency(canvas: Canvas, told: Told) -> None:
    lanes = told.lanes
    known = [v for name in ("p50_ms", "p99_ms") for v in lanes.series[name] if v]
    if not known:
        return
    low = 10 ** math.floor(math.log10(min(known)))
    high = 10 ** math.ceil(math.log10(max(known) * 1.0001))
    y_of = _logarithmic(canvas.y, CHART, low, high)
    canvas.name("latency (ms)", canvas.y + 12)
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        canvas.scale(f"{10.0**power:g}", y_of(10.0**power) + 3.5)
    for name, style in (("p99_ms", "p99"), ("p50_ms", "p50")):
        canvas.path(_line(lanes.from_s, lanes.bin_s, lanes.series[name], y_of), f"line {style}")
    canvas.y += CHART + GAP


def _findings(canvas: Canvas, told: Told) -> None:
    """A tick for each piece of evidence that has a time."""
    marks = [
        (float(value) * 1000, finding.code)
        for _, finding in told.findings()
        if rank(finding) == 0
        for row in finding.evidence
        for name, value in row.items()
        if name.endswith("_s") and name in EVIDENCE_TIMES and isinstance(value, int | float)
    ]
    if not marks:
        return
    canvas.name("findings", canvas.y + 12)
    for at, code in marks[:200]:
        canvas.rect(at, at, canvas.y, BAR, "mark", f"{code} at {at / 1000:.3f} s")
    canvas.y += BAR + GAP


EVIDENCE_TIMES = ("at_s", "acked_at_s", "acked_s", "sent_s", "read_s", "came_at_s", "t_s")
TERM_ROLES = ("leader", "follower", "candidate")


def _shades(told: Told, top: float, bottom: float) -> Iterator[Markup]:
    """Each fault in force, over all lanes."""
    for fault in told.faults:
        if fault.applied is not None and bottom > top:
            _, applied, heal, _ = _stages(fault, told.end)
            style = fault.kind if fault.kind in KINDS else "other"
            yield Markup(
                '<rect x="{:.3f}" y="{:.1f}" width="{:.3f}" height="{:.1f}" class="shade {}"/>'
            ).format(applied / 1e6, top, max(heal - applied, 1) / 1e6, bottom - top, style)


def _axis(canvas: Canvas) -> Markup:
    """Ticks of the whole run; zooming draws them anew."""
    step = _nice(canvas.length_ms / 1000 / 10)
    first = math.ceil(canvas.from_ms / 1000 / step)
    last = math.floor(canvas.end_ms / 1000 / step)
    ticks = Markup("").join(
        Markup('<text class="tick" x="{:.1f}" y="{:.1f}">{:g} s</text>').format(
            canvas.x(n * step * 1000), canvas.y + 14, n * step
        )
        for n in range(first, last + 1)
    )
    return Markup('<g class="axis" data-y="{:.1f}">{}</g>').format(canvas.y + 14, ticks)


# -------------------------------------------------------------------------------------- shapes


class _Scale:
    """A value's height; called like a function."""

    def __init__(self, top: float, height: float, low: float, high: float, log: bool) -> None:
        self._top, self._height, self._log = top, height, log
        self._low, self._span = self._of(low), self._of(high) - self._of(low) or 1.0

    def __call__(self, value: float) -> float:
        part = min(1.0, max(0.0, (self._of(value) - self._low) / self._span))
        return self._top + self._height * (1 - part)

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-6)) if self._log else value


def _linear(top: float, height: float, high: float) -> _Scale:
    return _Scale(top, height, 0, high, log=False)


def _logarithmic(top: float, height: float, low: float, high: float) -> _Scale:
    return _Scale(top, height, low, high, log=True)


def _area(
    from_s: float, bin_s: float, lower: Sequence[float], upper: Sequence[float], y_of: _Scale
) -> str:
    """Between two stacked series, one step a bin."""
    there = _steps(from_s, bin_s, upper, y_of)
    back = _steps(from_s, bin_s, lower, y_of)[::-1]
    return "M" + "L".join(f"{x:.0f} {y:.1f}" for x, y in [*there, *back]) + "Z"


def _steps(
    from_s: float, bin_s: float, values: Sequence[float], y_of: _Scale
) -> list[tuple[float, float]]:
    """The corners of a staircase; runs of equal height are one stair."""
    corners: list[tuple[float, float]] = []
    for number, value in enumerate(values):
        y = round(y_of(value), 1)
        left, right = (from_s + bin_s * number) * 1000, (from_s + bin_s * (number + 1)) * 1000
        if corners and corners[-1][1] == y:
            corners[-1] = (right, y)
        else:
            corners += [(left, y), (right, y)]
    return corners


def _line(from_s: float, bin_s: float, values: Sequence[float | None], y_of: _Scale) -> str:
    """Through the middles of bins, broken where there is no value."""
    words: list[str] = []
    pen = "M"
    for number, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        words.append(f"{pen}{(from_s + bin_s * (number + 0.5)) * 1000:.0f} {y_of(value):.1f}")
        pen = "L"
    return "".join(words) or "M0 0"


def _rows(faults: Sequence[FaultInterval], end: int) -> Iterator[int]:
    """The first row that is free when each fault begins."""
    taken: list[int] = []
    for fault in faults:
        begin, _, _, healed = _stages(fault, end)
        row = next((n for n, until in enumerate(taken) if until <= begin), len(taken))
        taken[row : row + 1] = [healed]
        yield row


def _stages(fault: FaultInterval, end: int) -> tuple[int, int, int, int]:
    """begin, applied, heal, healed; what never came is as late as it can be."""
    begin = fault.begin or 0
    healed = next((t for t in (fault.healed, fault.heal) if t is not None), end)
    heal = fault.heal if fault.heal is not None else healed
    applied = fault.applied if fault.applied is not None else heal
    return begin, applied, max(applied, heal), max(begin, healed)


def _usual(values: Iterable[float]) -> float:
    """What is not often exceeded: the burst of a drain or a recovery must not flatten the rest."""
    ordered = sorted(v for v in values if v)
    return ordered[int(len(ordered) * 0.98)] if ordered else 0.0


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _role_order(told: Told, node: str) -> int:
    role = told.names.get("roles", {}).get(node, "")
    order = ("broker", "controller", "nameserver")
    return order.index(role) if role in order else len(order)


def _span_words(begin: int, end: int) -> str:
    return f"{begin / 1e9:.3f} to {end / 1e9:.3f} s ({(end - begin) / 1e9:.3f} s)"
