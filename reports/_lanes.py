"""The lanes above the curves on the common time axis: roles, faults and the state of nodes.

A lane is one or several rows of spans with begin and end in milliseconds since the load began; a
span without an end is a mark. Each has texts, longest first (the longest that fits is written on
it), a tooltip, and what a click on it selects. The page only draws.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.history.roles import ENDS, RoleSpan, role_spans, set_changes_of
from harness.text.own_words import OwnWords
from reports._format import clip
from reports._run import RunView

KINDS = ("kill", "power", "pause", "partition", "loss")  # kinds with a colour of their own
PHASE_WORDS = {
    "raised": "start",
    "load": "load",
    "healed": "load, all healed",
    "drain": "final read",
    "collected": "take down",
}
ROLE_ORDER = ("broker", "controller", "nameserver", "client")
TERM_ROLES = ("leader", "follower", "candidate", "pre-candidate")
IN_CHARGE = {"master": "master, epoch", "leader": "leader, term"}
MAX_ROWS = 12  # rows of concurrent faults
MAX_NODES = 40
MAX_SPANS = 20_000
WORD, SENTENCE = 60, 300  # letters


@dataclass(frozen=True)
class Bar:
    """A span of a lane, or without `end` a mark. `select`: what a click on it selects."""

    begin: float
    end: float | None
    style: str
    words: tuple[str, ...] = ()
    tip: str = ""
    select: str = ""
    row: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the page's data, with short keys: there may be many thousands."""
        full = {
            "b": self.begin,
            "e": self.end,
            "c": self.style,
            "w": [clip(word, WORD) for word in self.words],
            "tip": clip(self.tip, SENTENCE),
            "k": self.select,
            "r": self.row,
        }
        return {
            key: value for key, value in full.items() if value not in ("", [], None) or key == "e"
        }


@dataclass(frozen=True)
class Lane:
    """Rows of spans under one name. `kind` determines the height of a row, and how it is drawn."""

    name: str
    kind: str
    bars: tuple[Bar, ...]
    rows: int = 1
    select: str = ""
    about: str = ""

    def plain(self) -> dict[str, Any]:
        fields = {**asdict(self), "bars": [bar.plain() for bar in self.bars[:MAX_SPANS]]}
        return {**fields, "name": clip(self.name, WORD), "about": clip(self.about, SENTENCE)}


@dataclass(frozen=True)
class Mark:
    """A time in a finding's evidence."""

    t: int
    finding: int
    tone: str
    words: str


@dataclass(frozen=True)
class LaneInput:
    """The run, the end of the axis and the marks of findings."""

    run: RunView
    end: int
    marks: Sequence[Mark] = field(default=())

    @property
    def load(self) -> int:
        return self.run.phases.get("load", 0)


def lanes(scene: LaneInput) -> list[Lane]:
    """Return the lanes from top to bottom."""
    in_roles = role_spans(scene.run.events, scene.run.faults, scene.end)
    made = [
        *_phases(scene),
        *_faults(scene),
        *_findings(scene),
        *_masters(scene, in_roles),
        *_sets(scene),
        *_leaders(in_roles),
        *_nodes(scene, in_roles),
    ]
    words = scene.run.words
    return [_in_own_words(lane, words) if words else lane for lane in made if lane.bars]


def _in_own_words(lane: Lane, words: OwnWords) -> Lane:
    bars = (
        replace(bar, words=tuple(map(words, bar.words)), tip=words(bar.tip)) for bar in lane.bars
    )
    return replace(lane, name=words(lane.name), about=words(lane.about), bars=tuple(bars))


def ms(t: int) -> float:
    return round(t / 1e6, 3)


def span_words(begin: int, end: int) -> str:
    return f"{begin / 1e9:.3f} to {end / 1e9:.3f} s ({(end - begin) / 1e9:.3f} s)"


def fault_style(fault: FaultInterval) -> str:
    """Return the style of a fault's kind; a kind from another package has no colour of its own."""
    return fault.kind if fault.kind in KINDS else "other"


def stages(fault: FaultInterval, end: int) -> tuple[int, int, int, int]:
    """Return begin, applied, heal, healed; a missing time is as late as possible."""
    begin = fault.begin or 0
    healed = next((t for t in (fault.healed, fault.heal) if t is not None), end)
    heal = fault.heal if fault.heal is not None else healed
    applied = fault.applied if fault.applied is not None else heal
    return begin, applied, max(applied, heal), max(begin, healed)


# --------------------------------------------------------------------------------------- the run


def _phases(scene: LaneInput) -> Iterator[Lane]:
    phases = scene.run.phases
    marks = [(phases[name], name) for name in PHASE_WORDS if name in phases]
    ends = [*(t for t, _ in marks[1:]), scene.end] if marks else []
    bars = [
        Bar(ms(t), ms(max(t, end)), f"phase {name}", (PHASE_WORDS[name],), _of_phase(t, end, name))
        for (t, name), end in zip(marks, ends, strict=True)
    ]
    yield Lane("phase", "thin", tuple(bars))


def _of_phase(begin: int, end: int, name: str) -> str:
    return f"{PHASE_WORDS[name]}: {span_words(begin, max(begin, end))}"


def _faults(scene: LaneInput) -> Iterator[Lane]:
    """Faults: the plan as an outline, thin while applied and healed, thick while in force."""
    faults = [fault for fault in scene.run.faults if fault.begin is not None]
    rows = list(_rows([stages(fault, scene.end)[::3] for fault in faults]))
    bars = [
        bar for fault, row in zip(faults, rows, strict=True) for bar in _bars(scene, fault, row)
    ]
    count = min(max(rows, default=0) + 1, MAX_ROWS)
    yield Lane("faults", "fault", tuple(bars), count, about="planned, put in place, healed")


def _bars(scene: LaneInput, fault: FaultInterval, row: int) -> Iterator[Bar]:
    begin, applied, heal, healed = stages(fault, scene.end)
    style, select = fault_style(fault), f"fault-{fault.id}"
    tip = f"fault {fault.id}: {fault.label}; {fault.state}; {span_words(begin, healed)}"
    if fault.planned is not None and fault.planned_for is not None:
        at = scene.load + fault.planned
        yield Bar(ms(at), ms(at + fault.planned_for), f"planned {style}", (), tip, select, row)
    yield Bar(ms(begin), ms(healed), f"edge {style}", (), tip, select, row)
    if fault.applied is not None:
        doubt = "" if fault.state == "installed" else " doubtful"
        yield Bar(ms(applied), ms(heal), f"fault {style}{doubt}", _called(fault), tip, select, row)
    if fault.observed is not None:
        seen = f"fault {fault.id}: effect observed after {(fault.observed - begin) / 1e6:,.0f} ms"
        yield Bar(ms(fault.observed), None, "observed", (), seen, select, row)


def _called(fault: FaultInterval) -> tuple[str, ...]:
    shape = fault.params.get("shape")
    shorter = [f"{fault.id} {fault.kind} ({shape})"] if shape else []
    return (f"{fault.id} {fault.label}", *shorter, f"{fault.id} {fault.kind}", str(fault.id))


def _rows(stretches: Iterable[Sequence[int]]) -> Iterator[int]:
    """Yield the first free row for each begin; the last row takes all that are left."""
    taken: list[int] = []
    for begin, end in stretches:
        row = next((n for n, until in enumerate(taken) if until <= begin), len(taken))
        row = min(row, MAX_ROWS - 1)
        taken[row : row + 1] = [end]
        yield row


def _findings(scene: LaneInput) -> Iterator[Lane]:
    """A tick for each row of evidence that has a time."""
    bars = [
        Bar(ms(mark.t), None, f"mark {mark.tone}", (), mark.words, f"finding-{mark.finding}")
        for mark in sorted(scene.marks, key=lambda mark: (mark.t, mark.finding))
    ]
    yield Lane("findings", "marks", tuple(bars), about="when the evidence of findings happened")


# ------------------------------------------------------------------------------------ the cluster


def _masters(scene: LaneInput, role_spans: Sequence[RoleSpan]) -> Iterator[Lane]:
    """The master of each broker set, as brokers reported their roles; two at once are two rows."""
    set_of = {
        event.node: str(event.fields["brokerName"])
        for event in scene.run.events
        if event.kind == "role" and event.fields.get("brokerName")
    }
    masters = [span for span in role_spans if span.role == "master"]
    for name in sorted({set_of.get(span.node, "") for span in masters}):
        mine = [span for span in masters if set_of.get(span.node, "") == name]
        own = scene.run.words and name == scene.run.trial.system
        title = f"master of {name}" if name and not own else "master"
        bars, rows = _reigns(mine, "epoch", "is master")
        yield Lane(title, "row", bars, rows, about="two at once: two rows")


def _leaders(role_spans: Sequence[RoleSpan]) -> Iterator[Lane]:
    """The leader of the controllers."""
    leaders = [span for span in role_spans if span.role == "leader"]
    yield Lane("controller leader", "row", *_reigns(leaders, "term", "leads the controllers"))


def _reigns(spans: Sequence[RoleSpan], number: str, does: str) -> tuple[tuple[Bar, ...], int]:
    """Return the bars of masters or leaders, with the `number` of each term, and the number of
    rows."""
    spans = sorted(spans, key=lambda span: (span.begin, span.node))
    rows = list(_rows([(span.begin, span.end) for span in spans]))
    bars = tuple(
        Bar(
            ms(span.begin),
            ms(span.end),
            f"role {span.role}",
            (
                f"{span.node}, {number} {span.epoch}",
                f"{span.node} {span.epoch}",
                str(span.epoch),
            ),
            f"{span.node} {does} in {number} {span.epoch}: {span_words(span.begin, span.end)}",
            f"node-{span.node}",
            row,
        )
        for span, row in zip(spans, rows, strict=True)
    )
    return bars, max(rows, default=0) + 1


def _sets(scene: LaneInput) -> Iterator[Lane]:
    """The SyncStateSet's size; a smaller set stands out more."""
    steps = set_changes_of(scene.run.events)
    for name in sorted({step.set for step in steps}):
        mine = [step for step in steps if step.set == name]
        full = max(len(step.members) for step in mine)
        ends = [*(step.t for step in mine[1:]), scene.end]
        bars = [
            Bar(
                ms(step.t),
                ms(max(step.t, end)),
                f"set {_fullness(len(step.members), full)}",
                (f"{len(step.members)} in sync", str(len(step.members))),
                f"SyncStateSet of {len(step.members)}: {_members(step.members)}; "
                f"{span_words(step.t, max(step.t, end))}",
            )
            for step, end in zip(mine, ends, strict=True)
        ]
        title = f"in sync, {name}" if name else "SyncStateSet"
        yield Lane(title, "row", tuple(bars), about="the SyncStateSet's size")


def _fullness(size: int, full: int) -> str:
    if size >= full:
        return "full"
    return "alone" if size <= 1 else "short"


def _members(members: Sequence[int]) -> str:
    return "brokers " + ", ".join(map(str, members[:12])) if members else "none"


# --------------------------------------------------------------------------------------- the nodes


def _nodes(scene: LaneInput, role_spans: Sequence[RoleSpan]) -> Iterator[Lane]:
    """A row for each node that reported an event or was a target of a fault."""
    hit = {name for fault in scene.run.faults for name in fault.names}
    names = {event.node for event in scene.run.events if event.node} | hit
    roles = scene.run.named("roles")
    for node in sorted(names, key=lambda node: (_place(str(roles.get(node, ""))), node))[
        :MAX_NODES
    ]:
        bars = [
            *_up(scene, node, any(span.node == node for span in role_spans)),
            *(_role(span) for span in role_spans if span.node == node),
            *_away(scene, node),
            *_touched(scene, node),
        ]
        yield Lane(node, "node", tuple(bars), select=f"node-{node}", about=str(roles.get(node, "")))


def _place(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)


def _up(scene: LaneInput, node: str, has_roles: bool) -> Iterator[Bar]:
    """Yield the time up of a node that reports no role."""
    starts = [e.t for e in scene.run.events if e.node == node and e.kind == "start"]
    if has_roles or not starts:
        return
    downs = down(scene.run, node, scene.end)
    edges = [starts[0], *(t for stretch in downs for t in stretch), scene.end]
    for begin, end in [pair for n, pair in enumerate(pairwise(edges)) if n % 2 == 0]:
        if end > begin:
            tip = f"{node} is up: {span_words(begin, end)}"
            yield Bar(ms(begin), ms(end), "role up", (), tip, f"node-{node}")


def _role(span: RoleSpan) -> Bar:
    number = f"{'term' if span.role in TERM_ROLES else 'epoch'} {span.epoch}"
    tip = f"{span.node}: {span.role}, {number}; {span_words(span.begin, span.end)}"
    words: tuple[str, ...] = ()
    if span.role in IN_CHARGE:
        words = (f"{IN_CHARGE[span.role]} {span.epoch}", str(span.epoch))
    roles = (*IN_CHARGE, "slave", "follower")
    style = f"role {span.role if span.role in roles else 'waiting'}"
    return Bar(ms(span.begin), ms(span.end), style, words, tip, f"node-{span.node}")


def _away(scene: LaneInput, node: str) -> Iterator[Bar]:
    """Yield the times when a node was down or paused."""
    for begin, end in down(scene.run, node, scene.end):
        tip = f"{node} is down: {span_words(begin, end)}"
        yield Bar(ms(begin), ms(end), "down", ("down",), tip, f"node-{node}")
    for fault in scene.run.faults:
        if fault.effects.suspends and node in fault.names and fault.applied is not None:
            _, applied, heal, _ = stages(fault, scene.end)
            tip = f"{node} is paused by fault {fault.id}: {span_words(applied, heal)}"
            yield Bar(ms(applied), ms(heal), "paused", ("paused",), tip, f"fault-{fault.id}")


def _touched(scene: LaneInput, node: str) -> Iterator[Bar]:
    """Yield the network faults of a node, drawn below its role."""
    for fault in scene.run.faults:
        if node in fault.names and fault.applied is not None and not fault.effects.silences:
            _, applied, heal, _ = stages(fault, scene.end)
            tip = f"{node}: fault {fault.id}, {fault.label}; {span_words(applied, heal)}"
            style = f"touched {fault_style(fault)}"
            yield Bar(ms(applied), ms(heal), style, (), tip, f"fault-{fault.id}")


def down(view: RunView, node: str, end: int) -> list[tuple[int, int]]:
    """Return the times when a node's process did not run: from its end, of whatever cause, to its
    next start. The shutdown of all nodes does not count."""
    kills = [f for f in view.faults if f.ends and f.applied is not None]
    mine = [e for e in view.events if e.node == node and e.kind in ENDS]
    taken = min((e.t for e in mine if e.kind == "stop" and e.t >= _drain(view)), default=end)
    gone = sorted(
        {f.applied for f in kills if node in f.names and f.applied is not None}
        | {e.t for e in mine if e.t < taken}
    )
    starts = sorted(e.t for e in view.events if e.node == node and e.kind == "start")
    healed = sorted(f.healed for f in kills if node in f.names and f.healed is not None)
    stretches: list[tuple[int, int]] = []
    for t in gone:
        if stretches and t < stretches[-1][1]:
            continue
        back = next((start for start in (starts or healed) if start > t), end)
        stretches.append((t, max(t, back)))
    return stretches


def _drain(view: RunView) -> int:
    """Return the time after which nodes are shut down by the runner."""
    return view.phases.get("drain", view.phases.get("collected", view.end))


def shown_events(view: RunView) -> list[ClusterEvent]:
    """Return the events that nodes reported, in order of time, without progress reports; those of
    roles in the system's own words."""
    events = (event for event in view.events if event.kind and event.kind != PROGRESS)
    if not view.words:
        return list(events)
    return [
        replace(event, fields=view.words.fields(event.fields, view.trial.system))
        if event.kind in ("role", "election")
        else event
        for event in events
    ]


def log_lines(view: RunView, limit: int) -> list[dict[str, Any]]:
    """Return the events as the page shows them; of a very long run an even sample of the relevant
    ones."""
    rows = shown_events(view)
    if len(rows) > limit:
        rows = [event for event in rows if event.kind not in CHATTER]
    if len(rows) > limit:
        rows = [rows[place * (len(rows) - 1) // (limit - 1)] for place in range(limit)]
    return [
        {
            "t": ms(event.t),
            "n": clip(event.node, WORD),
            "k": clip(event.kind, WORD),
            "s": clip(fields_text(event.fields), SENTENCE),
        }
        for event in rows
    ]


PROGRESS = "replication"  # numbers for curves
CHATTER = ("connection", "handshake")


def fields_text(fields: Mapping[str, Any]) -> str:
    """Return an event's fields as one line."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in fields.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value[:20])) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_plain(each)}" for name, each in value.items()) or "none"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
