"""Space-time diagrams of a failed simulated run: its messages around the first violation.

Time goes from left to right, each node is a line, and a message is an arrow from where it was sent
to where it was received (Lamport, "Time, clocks, and the ordering of events", 1978). One that was
lost or held up ends in a cross. Faults are shaded on the lines they hit, the cluster's events are
dots. The first drawing has all that was recorded, the second a few dozen messages around the
violation, with names.

There may be thousands of messages, and a few hundred arrows can be read. Those that repeat and
changed nothing are left out first. Then each kind gets the same share, so that rare kinds stay, and
of a kind the messages nearest to the violation are drawn.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import copysign, hypot, log10
from statistics import median

from markupsafe import Markup

from harness.history.faults_and_events import ClusterEvent
from harness.history.messages import RecordedMessage, RecordingWindow, read_messages
from harness.history.roles import role_spans
from harness.text.plurals import quantity
from harness.text.sanitize import sanitize
from reports._format import clip
from reports._lanes import IN_CHARGE, down, fault_style, fields_text, stages
from reports._run import RunView, rerun_command

MAX_ARROWS, MAX_LINES, MAX_DOTS, MAX_SHADES = 300, 12, 300, 300
NEAR = 60  # messages of the second drawing
MIN_NEAR_NS = 2_000_000
CLOSER = 0.6  # of the first drawing's time: a second one that covers more adds nothing
WIDTH, GUTTER, RIGHT, TOP, AXIS = 1000, 118, 14, 24, 24
PLOT = WIDTH - GUTTER - RIGHT
ROW, NARROW_ROW, WIDE_LINES = 56, 44, 8
LETTER, LABEL_HEIGHT = 5.7, 12  # of a label
HEAD, CROSS = 6.0, 3.5  # sizes of arrow heads and crosses
SHORT, MAX_SLANT = 15.0, 60.0  # of the arrow of a lost message: what it lacks, and its slant
MAX_TICKS = 9
ORDER = ("client", "broker", "controller", "nameserver")
DOTS = ("role", "election", "set", "truncate")
WORD = 40  # letters


@dataclass(frozen=True)
class SpaceTimeFigure:
    """A drawing with its title and what is left out of it, and its messages as rows of text."""

    title: str
    about: str
    drawing: Markup
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class SpaceTime:
    """The drawings of a run; without any, `missing` says why, if there should be some."""

    figures: tuple[SpaceTimeFigure, ...] = ()
    missing: str = ""


NOTHING = SpaceTime()


def space_time(view: RunView) -> SpaceTime:
    """Return the drawings of a run. Raises BadRequest if its recording cannot be read."""
    recording = read_messages(view.run)
    if recording is None:
        failed = view.state.get("simulated") and view.verdict.convicting
        again = f"Its messages were not recorded; {rerun_command(view)} records them."
        return SpaceTime(missing=again) if failed else NOTHING
    if not recording.messages:
        return SpaceTime(missing="No message was sent around the violation.")
    zero = view.zero
    window = recording.window
    messages = [_since(zero, message) for message in recording.messages]
    begin = max(window.begin - zero, view.begin)
    whole = _Scene.of(view, window, begin, window.end - zero, messages, MAX_ARROWS)
    more = recording.left_out
    before, after = ((t / 1e9) for t in (whole.moment - whole.begin, whole.end - whole.moment))
    title = f"From {before:.1f} s before the violation to {after:.1f} s after it"
    figures = [_figure(title, whole, more)]
    near_begin, near_end = _near(messages, whole)
    if near_end - near_begin < CLOSER * (whole.end - whole.begin):
        near = _Scene.of(view, window, near_begin, near_end, messages, 2 * NEAR)
        figures.append(replace(_figure("Close to the violation", near), rows=tuple(_rows(near))))
    else:
        figures = [replace(figures[0], rows=tuple(_rows(whole)))]
    return SpaceTime(tuple(figures))


def _since(zero: int, one: RecordedMessage) -> RecordedMessage:
    received = None if one.received is None else one.received - zero
    return replace(one, sent=one.sent - zero, received=received)


def _near(messages: Sequence[RecordedMessage], whole: "_Scene") -> tuple[int, int]:
    """Return the stretch around the violation with as many messages as can be named."""
    inside = [one for one in messages if _matters(one) and whole.begin <= one.sent <= whole.end]
    nearest = sorted(inside, key=lambda one: abs(one.sent - whole.moment))[:NEAR]
    times = [t for one in nearest for t in (one.sent, one.received) if t is not None]
    reach = max((abs(one.sent - whole.moment) for one in nearest), default=0)
    inner = [t for t in times if abs(t - whole.moment) <= 1.2 * reach]
    begin = min([*inner, whole.moment - MIN_NEAR_NS])
    end = max([*inner, whole.moment + MIN_NEAR_NS])
    edge = (end - begin) // 25
    return max(whole.begin, begin - edge), min(whole.end, end + edge)


def _matters(one: RecordedMessage) -> bool:
    return not one.routine or one.received is None


def choose_arrows(
    messages: Iterable[RecordedMessage], moment: int, limit: int
) -> list[RecordedMessage]:
    """Return what is drawn: routine messages only where all fit, then the same share of each kind,
    and of a kind those nearest to the moment."""
    every = list(messages)
    if len(every) > limit:
        every = [one for one in every if _matters(one)]
    kinds: dict[str, list[RecordedMessage]] = {}
    for one in sorted(every, key=lambda one: abs(one.sent - moment)):
        kinds.setdefault(one.kind, []).append(one)
    chosen: list[RecordedMessage] = []
    groups = sorted(kinds.values(), key=len)
    for place, group in enumerate(groups):
        chosen += group[: (limit - len(chosen)) // (len(groups) - place)]
    return sorted(chosen, key=lambda one: one.sent)


# ---------------------------------------------------------------------------------- what is drawn


@dataclass(frozen=True)
class _Scene:
    """What one drawing shows; times in ns since the load began."""

    view: RunView
    begin: int
    end: int
    moment: int
    code: str
    convicted: frozenset[str]  # nodes that the finding names
    messages: tuple[RecordedMessage, ...]
    lines: tuple[str, ...]
    left_out: Counter[bool] = field(default_factory=Counter)  # by whether they are routine
    unseen: int = 0  # messages of nodes without a line

    @classmethod
    def of(
        cls,
        view: RunView,
        window: RecordingWindow,
        begin: int,
        end: int,
        messages: Sequence[RecordedMessage],
        limit: int,
    ) -> "_Scene":
        inside = [
            one for one in messages if one.sent <= end and (one.received or one.sent) >= begin
        ]
        moment = window.moment - view.zero
        lines = _lines(view, begin, end, inside)
        seen = [one for one in inside if {one.source, one.target} <= set(lines)]
        shown = choose_arrows(seen, moment, limit)
        left_out = Counter(one.routine for one in seen)
        left_out.subtract(one.routine for one in shown)
        code, convicted = _violation(view, window.moment)
        unseen = len(inside) - len(seen)
        return cls(view, begin, end, moment, code, convicted, tuple(shown), lines, left_out, unseen)

    @property
    def row(self) -> int:
        return ROW if len(self.lines) <= WIDE_LINES else NARROW_ROW

    @property
    def height(self) -> int:
        return TOP + self.row * len(self.lines)

    def x(self, t: int) -> float:
        return GUTTER + (t - self.begin) / max(1, self.end - self.begin) * PLOT

    def y(self, node: str) -> float:
        return TOP + self.row * (self.lines.index(node) + 0.55)

    def clipped(self, begin: int, end: int) -> tuple[float, float] | None:
        """Return a stretch of time in the drawing; None if it is outside."""
        if end < self.begin or begin > self.end:
            return None
        return self.x(max(begin, self.begin)), self.x(min(end, self.end))

    def role(self, node: str) -> str:
        return str(self.view.named("roles").get(node, ""))


def _lines(
    view: RunView, begin: int, end: int, messages: Sequence[RecordedMessage]
) -> tuple[str, ...]:
    """Return the nodes with a line: those with most messages, in the order of their roles."""
    roles = view.named("roles")
    busy = Counter(node for one in messages if _matters(one) for node in (one.source, one.target))
    busy.update(e.node for e in view.events if begin <= e.t <= end and e.kind in DOTS and e.node)
    order = {role: place for place, role in enumerate(ORDER)}
    nodes = [node for node, _ in busy.most_common(MAX_LINES)]
    return tuple(
        sorted(nodes, key=lambda node: (order.get(str(roles.get(node, "")), len(order)), node))
    )


def _violation(view: RunView, moment: int) -> tuple[str, frozenset[str]]:
    """Return the code of the finding at this moment of the run, and the nodes that it names."""
    roles = view.named("roles")
    for finding in view.verdict.convicting_findings:
        at_s = finding.first_moment_s
        if at_s is not None and round(at_s * 1e9) == moment:
            cells = {str(cell) for cell in finding.evidence[0].values()}
            return clip(finding.code, WORD), frozenset(node for node in roles if node in cells)
    return "", frozenset()


def _figure(title: str, scene: _Scene, more: int = 0) -> SpaceTimeFigure:
    shown, left = scene.messages, scene.left_out
    lost = sum(one.received is None for one in shown)
    words = [quantity(len(shown), "message")]
    words += [f"{lost:,} lost or held up"] if lost else []
    words += [f"{left[True]:,} routine ones left out"] if left[True] else []
    words += [f"{left[False]:,} farther ones of frequent kinds left out"] if left[False] else []
    words += [f"{scene.unseen:,} of nodes that are not shown"] if scene.unseen else []
    words += [f"{more:,} not recorded"] if more else []
    return SpaceTimeFigure(title, "; ".join(words) + ".", _svg(scene, title))


def _rows(scene: _Scene) -> Iterator[tuple[str, ...]]:
    for one in scene.messages:
        yield (
            f"{one.sent / 1e9:.6f}",
            clip(one.source, WORD),
            clip(one.target, WORD),
            clip(one.kind, WORD),
            f"{one.size_bytes:,}",
            _outcome(one),
        )


def _outcome(one: RecordedMessage) -> str:
    if one.received is None:
        return "lost" if one.lost else "held up"
    return f"after {(one.received - one.sent) / 1e6:,.3f} ms"


# ---------------------------------------------------------------------------------------- drawing


def _svg(scene: _Scene, title: str) -> Markup:
    labels = _Labels(scene)
    clip_id = f"plot-{scene.begin}-{scene.end}"
    shapes = [
        *_fault_shades(scene, labels),
        *_node_lines(scene),
        *_violation_line(scene, labels),
        *_dots(scene, labels),
    ]
    arrows = [shape for one in scene.messages for shape in _arrow(scene, one)]
    _label_messages(scene, labels)
    drawn = Markup(
        '<svg class="spacetime" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{words}"><clipPath id="{id}"><rect x="{x}" y="0" width="{plot}" '
        'height="{bottom}"/></clipPath>{axis}<g clip-path="url(#{id})">{arrows}{shapes}</g>'
        "{names}{labels}</svg>"
    ).format(
        w=WIDTH,
        h=scene.height + AXIS,
        words=_alternative_text(scene, title),
        id=clip_id,
        x=GUTTER,
        plot=PLOT,
        bottom=scene.height,
        axis=Markup("").join(_axis(scene)),
        shapes=Markup("").join(shapes),
        arrows=Markup("").join(arrows),
        names=Markup("").join(_names(scene)),
        labels=Markup("").join(labels.drawn),
    )
    return Markup(sanitize(str(drawn)))


def _alternative_text(scene: _Scene, title: str) -> str:
    lost = [one for one in scene.messages if one.received is None]
    kinds = Counter(one.kind for one in scene.messages).most_common(8)
    parts = [
        f"Space-time diagram. {title}: {scene.begin / 1e9:.3f} to {scene.end / 1e9:.3f} s",
        f"{quantity(len(scene.messages), 'message')} between {', '.join(scene.lines)}",
        f"most are {', '.join(f'{kind} ({count})' for kind, count in kinds)}",
        f"{len(lost)} lost or held up",
        f"{scene.code or 'the violation'} at {scene.moment / 1e9:.3f} s",
    ]
    return clip("; ".join(parts), 900)


def _axis(scene: _Scene) -> Iterator[Markup]:
    length = max(1, scene.end - scene.begin)
    power = 10 ** int(log10(max(1, length / MAX_TICKS)))
    step = next(n * power for n in (1, 2, 5, 10, 20) if n * power * MAX_TICKS >= length)
    digits = min(9, max(0, 9 - int(log10(step))))
    first = -(-scene.begin // step)
    for number in range(first, scene.end // step + 1):
        x = scene.x(number * step)
        yield Markup('<path d="M{:.1f} {}V{}" class="grid"/>').format(x, TOP - 4, scene.height)
        if GUTTER + 12 <= x <= WIDTH - 34:
            words = f"{number * step / 1e9:.{digits}f} s"
            yield Markup('<text x="{:.1f}" y="{}" class="tick">{}</text>').format(
                x, scene.height + 17, words
            )


def _names(scene: _Scene) -> Iterator[Markup]:
    for node in scene.lines:
        mark = " convicted" if node in scene.convicted else ""
        yield Markup('<text x="4" y="{:.1f}" class="client{}">{}</text>').format(
            scene.y(node) + 4, mark, clip(node, 16)
        )


def _node_lines(scene: _Scene) -> Iterator[Markup]:
    """A line for each node: thick as master or leader, dashed while its process does not run."""
    for node in scene.lines:
        gone = down(scene.view, node, scene.view.end)
        edges = [scene.begin, *(t for stretch in gone for t in stretch), scene.end]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if begin < end and scene.clipped(begin, end):
                yield _line(scene, node, begin, end, "life", "")
        for begin, end in gone:
            if scene.clipped(begin, end):
                yield _line(scene, node, begin, end, "life gone", f"{node} is down")
    for span in role_spans(scene.view.events, scene.view.faults, scene.view.end):
        if span.node in scene.lines and scene.clipped(span.begin, span.end):
            style = "life charge" if span.role in IN_CHARGE else "life role"
            words = f"{span.node}: {span.role}, {span.epoch}"
            yield _line(scene, span.node, span.begin, span.end, style, words)


def _line(scene: _Scene, node: str, begin: int, end: int, style: str, words: str) -> Markup:
    left, right = scene.clipped(begin, end) or (GUTTER, GUTTER)
    return Markup('<path d="M{:.1f} {y:.1f}H{:.1f}" class="{}"><title>{}</title></path>').format(
        left, right, style, clip(words, WORD * 2), y=scene.y(node)
    )


def _fault_shades(scene: _Scene, labels: "_Labels") -> Iterator[Markup]:
    hits = (
        (fault, node, applied, heal)
        for fault in scene.view.faults
        for _, applied, heal, _ in [stages(fault, scene.view.end)]
        if fault.applied is not None and scene.clipped(applied, heal)
        for node in fault.names
        if node in scene.lines
    )
    for fault, node, applied, heal in islice(hits, MAX_SHADES):
        left, right = scene.clipped(applied, heal) or (GUTTER, GUTTER)
        y = scene.y(node)
        words = f"fault {fault.id}: {clip(fault.label, 120)}, {_span(applied, heal)}"
        yield Markup(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="3" '
            'class="hit {}"><title>{}</title></rect>'
        ).format(left, y - 15, max(1.5, right - left), 30, fault_style(fault), words)
        name = f"{fault.id} {clip(fault.kind, WORD)}"
        if right - left > len(name) * LETTER:
            labels.place(left + 4, y + 13, name, f"fault {fault_style(fault)}")


def _span(begin: int, end: int) -> str:
    return f"{begin / 1e9:.3f} to {end / 1e9:.3f} s"


def _violation_line(scene: _Scene, labels: "_Labels") -> Iterator[Markup]:
    otherwise = "the world stopped" if scene.view.state.get("error") else "end of the load"
    x, code = scene.x(scene.moment), scene.code or otherwise
    words = f"{code} at {scene.moment / 1e9:.6f} s"
    yield Markup('<path d="M{x:.1f} 16V{}" class="verdict-line"><title>{}</title></path>').format(
        scene.height, words, x=x
    )
    for node in scene.convicted & set(scene.lines):
        yield Markup('<circle cx="{:.1f}" cy="{:.1f}" r="8" class="verdict-ring"/>').format(
            x, scene.y(node)
        )
    width = len(words) * LETTER
    labels.place(min(max(GUTTER, x - width / 2), WIDTH - width - 4), 12, words, "violation")


def _dots(scene: _Scene, labels: "_Labels") -> Iterator[Markup]:
    dotted = [
        event
        for event in scene.view.events
        if event.kind in DOTS and event.node in scene.lines and scene.clipped(event.t, event.t)
    ]
    nearest = sorted(dotted, key=lambda event: abs(event.t - scene.moment))[:MAX_DOTS]
    for event in nearest:
        x, y = scene.x(event.t), scene.y(event.node)
        words = f"{event.node}, {event.t / 1e9:.6f} s: {event.kind}, {fields_text(event.fields)}"
        yield Markup(
            '<circle cx="{:.1f}" cy="{:.1f}" r="4.2" class="event {}"><title>{}</title></circle>'
        ).format(x, y, event.kind, clip(words, 300))
        labels.place(x + 4, y - 8, _event_words(event), "event")


def _event_words(event: ClusterEvent) -> str:
    fields = event.fields
    match event.kind:
        case "role":
            words = f"{fields.get('role', 'role')} {fields.get('epoch', '')}"
        case "election":
            words = f"elects, epoch {fields.get('epoch', '')}"
        case "set":
            members = fields.get("set")
            words = f"set of {len(members)}" if isinstance(members, list) else "set"
        case _:
            words = "cuts its log"
    return clip(words.strip(), WORD)


def _arrow(scene: _Scene, one: RecordedMessage) -> Iterator[Markup]:
    words = (
        f"{clip(one.kind, WORD)}, {one.size_bytes:,} bytes, {clip(one.source, WORD)} to "
        f"{clip(one.target, WORD)}, sent at {one.sent / 1e9:.6f} s, {_outcome(one)}"
    )
    (x1, y1), (x2, y2) = _ends(scene, one)
    cross = one.received is None
    style = f"arrow {_style(scene, one)}{' lost' if cross else ''}{' routine' * one.routine}"
    length = hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    if cross:
        end = Markup('<path d="M{:.1f} {:.1f}l{s} {s}m0 -{s}l-{s} {s}" class="end"/>').format(
            x2 - CROSS, y2 - CROSS, s=2 * CROSS
        )
    else:
        left, back = (-dy * HEAD * 0.42, dx * HEAD * 0.42), (x2 - dx * HEAD, y2 - dy * HEAD)
        end = Markup('<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}L{:.1f} {:.1f}Z" class="head"/>').format(
            x2, y2, back[0] + left[0], back[1] + left[1], back[0] - left[0], back[1] - left[1]
        )
    yield Markup(
        '<g class="{}"><title>{}</title><path d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>{}</g>'
    ).format(style, words, x1, y1, x2, y2, end)


def _ends(scene: _Scene, one: RecordedMessage) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return both ends of an arrow; that of a lost message ends short of the receiver, as late as
    others are there."""
    x, y, target = scene.x(one.sent), scene.y(one.source), scene.y(one.target)
    if one.received is not None:
        return (x, y), (scene.x(one.received), target)
    usual = _usual_ns(scene) / max(1, scene.end - scene.begin) * PLOT
    short = copysign(min(SHORT, abs(target - y) / 2), target - y)
    return (x, y), (x + min(usual, MAX_SLANT), target - short)


def _usual_ns(scene: _Scene) -> float:
    return median([one.received - one.sent for one in scene.messages if one.received] or [0])


def _style(scene: _Scene, one: RecordedMessage) -> str:
    """Return the style of a message by the roles at its ends: of clients, among equals, others."""
    roles = {scene.role(one.source), scene.role(one.target)}
    if "client" in roles:
        return "of-client"
    if len(roles) > 1:
        return "of-control"
    return "of-controllers" if "controller" in roles else "of-copies"


def _label_messages(scene: _Scene, labels: "_Labels") -> None:
    """Name as many messages as there is room for, the rare kinds first."""
    kinds = Counter(one.kind for one in scene.messages)
    ranked = sorted(
        (one for one in scene.messages if not one.routine),
        key=lambda one: (kinds[one.kind], abs(one.sent - scene.moment)),
    )
    for one in ranked:
        (x1, y1), (x2, y2) = _ends(scene, one)
        for share in (0.5, 0.35, 0.65):
            x, y = x1 + (x2 - x1) * share + 4, y1 + (y2 - y1) * share + 4
            if labels.place(x, y, clip(one.kind, WORD), "kind"):
                break


class _Labels:
    """Labels that do not overlap: the first to claim a place has it."""

    def __init__(self, scene: _Scene) -> None:
        self.drawn: list[Markup] = []
        self._boxes: list[tuple[float, float, float, float]] = [
            (GUTTER, scene.y(node) - 2, WIDTH, scene.y(node) + 2) for node in scene.lines
        ]

    def place(self, x: float, y: float, words: str, style: str) -> bool:
        """Write the words with their left end there, if there is room."""
        box = (x - 1, y - LABEL_HEIGHT + 2, x + len(words) * LETTER + 1, y + 2)
        if box[0] < GUTTER or box[2] > WIDTH or any(_overlap(box, other) for other in self._boxes):
            return False
        self._boxes.append(box)
        self.drawn.append(
            Markup('<text x="{:.1f}" y="{:.1f}" class="label {}">{}</text>').format(
                x, y, style, words
            )
        )
        return True


def _overlap(
    one: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
