"""What stands above the curves on the one time axis: who was what, and what was done to whom.

A lane is a row, or a few, of spans with a beginning and an end in milliseconds since the load
began; a span without an end is a mark. Each knows its words, longest first (the longest that fits
is written on it), a sentence for the reader who points at it, and what selecting it means. The page
only draws.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from harness.history.faults_and_events import Event, FaultInterval
from harness.history.roles import ENDS, Span, set_sizes, spans
from reports._run import Told
from reports._words import clip

KINDS = ("kill", "power", "pause", "partition", "loss")  # those that have a colour of their own
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
MOST_ROWS = 12  # of faults at the same time
MOST_NODES = 40
MOST_SPANS = 20_000
WORD, SENTENCE = 60, 300  # letters


@dataclass(frozen=True)
class Bar:
    """A span of a lane, or with no `end` a mark. `select`: what a click on it selects."""

    begin: float
    end: float | None
    style: str
    words: tuple[str, ...] = ()
    tip: str = ""
    select: str = ""
    row: int = 0

    def plain(self) -> dict[str, Any]:
        """Short keys: there may be many thousands."""
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
    """Rows of spans under one name. `kind` decides how high a row is, and how it is drawn."""

    name: str
    kind: str
    bars: tuple[Bar, ...]
    rows: int = 1
    select: str = ""
    about: str = ""

    def plain(self) -> dict[str, Any]:
        fields = {**asdict(self), "bars": [bar.plain() for bar in self.bars[:MOST_SPANS]]}
        return {**fields, "name": clip(self.name, WORD), "about": clip(self.about, SENTENCE)}


@dataclass(frozen=True)
class Mark:
    """A moment that a finding's evidence names."""

    t: int
    finding: int
    tone: str
    words: str


@dataclass(frozen=True)
class Scene:
    """What lanes are made from."""

    told: Told
    end: int
    marks: Sequence[Mark] = field(default=())

    @property
    def load(self) -> int:
        return self.told.phases.get("load", 0)


def lanes(scene: Scene) -> list[Lane]:
    """From top to bottom."""
    told_spans = spans(scene.told.events, scene.told.faults, scene.end)
    made = [
        *_phases(scene),
        *_faults(scene),
        *_findings(scene),
        *_masters(scene, told_spans),
        *_sets(scene),
        *_leaders(told_spans),
        *_nodes(scene, told_spans),
    ]
    return [lane for lane in made if lane.bars]


def ms(t: int) -> float:
    return round(t / 1e6, 3)


def span_words(begin: int, end: int) -> str:
    return f"{begin / 1e9:.3f} to {end / 1e9:.3f} s ({(end - begin) / 1e9:.3f} s)"


def fault_style(fault: FaultInterval) -> str:
    """The style of its kind; a kind from elsewhere has no colour of its own."""
    return fault.kind if fault.kind in KINDS else "other"


def stages(fault: FaultInterval, end: int) -> tuple[int, int, int, int]:
    """begin, applied, heal, healed; what never came is as late as it can be."""
    begin = fault.begin or 0
    healed = next((t for t in (fault.healed, fault.heal) if t is not None), end)
    heal = fault.heal if fault.heal is not None else healed
    applied = fault.applied if fault.applied is not None else heal
    return begin, applied, max(applied, heal), max(begin, healed)


# --------------------------------------------------------------------------------------- the run


def _phases(scene: Scene) -> Iterator[Lane]:
    phases = scene.told.phases
    marks = [(phases[name], name) for name in PHASE_WORDS if name in phases]
    ends = [*(t for t, _ in marks[1:]), scene.end] if marks else []
    bars = [
        Bar(ms(t), ms(max(t, end)), f"phase {name}", (PHASE_WORDS[name],), _of_phase(t, end, name))
        for (t, name), end in zip(marks, ends, strict=True)
    ]
    yield Lane("phase", "thin", tuple(bars))


def _of_phase(begin: int, end: int, name: str) -> str:
    return f"{PHASE_WORDS[name]}: {span_words(begin, max(begin, end))}"


def _faults(scene: Scene) -> Iterator[Lane]:
    """Planned as an outline, thin while it is put in place and undone, thick while in force."""
    faults = [fault for fault in scene.told.faults if fault.begin is not None]
    rows = list(_rows([stages(fault, scene.end)[::3] for fault in faults]))
    bars = [
        bar for fault, row in zip(faults, rows, strict=True) for bar in _bars(scene, fault, row)
    ]
    count = min(max(rows, default=0) + 1, MOST_ROWS)
    yield Lane("faults", "fault", tuple(bars), count, about="planned, put in place, healed")


def _bars(scene: Scene, fault: FaultInterval, row: int) -> Iterator[Bar]:
    begin, applied, heal, healed = stages(fault, scene.end)
    style, select = fault_style(fault), f"fault-{fault.id}"
    tip = f"fault {fault.id}: {fault.words}; {fault.state}; {span_words(begin, healed)}"
    if fault.planned is not None and fault.planned_for is not None:
        at = scene.load + fault.planned
        yield Bar(ms(at), ms(at + fault.planned_for), f"planned {style}", (), tip, select, row)
    yield Bar(ms(begin), ms(healed), f"edge {style}", (), tip, select, row)
    if fault.applied is not None:
        doubt = "" if fault.state == "installed" else " doubtful"
        yield Bar(ms(applied), ms(heal), f"fault {style}{doubt}", _called(fault), tip, select, row)
    if fault.observed is not None:
        seen = f"fault {fault.id}: its effect was seen {(fault.observed - begin) / 1e6:,.0f} ms in"
        yield Bar(ms(fault.observed), None, "observed", (), seen, select, row)


def _called(fault: FaultInterval) -> tuple[str, ...]:
    shape = fault.params.get("shape")
    shorter = [f"{fault.id} {fault.kind} ({shape})"] if shape else []
    return (f"{fault.id} {fault.words}", *shorter, f"{fault.id} {fault.kind}", str(fault.id))


def _rows(stretches: Iterable[Sequence[int]]) -> Iterator[int]:
    """The first row that is free when each begins; the last takes all that are left."""
    taken: list[int] = []
    for begin, end in stretches:
        row = next((n for n, until in enumerate(taken) if until <= begin), len(taken))
        row = min(row, MOST_ROWS - 1)
        taken[row : row + 1] = [end]
        yield row


def _findings(scene: Scene) -> Iterator[Lane]:
    """A tick for each piece of evidence that has a time."""
    bars = [
        Bar(ms(mark.t), None, f"mark {mark.tone}", (), mark.words, f"finding-{mark.finding}")
        for mark in sorted(scene.marks, key=lambda mark: (mark.t, mark.finding))
    ]
    yield Lane("findings", "marks", tuple(bars), about="when the evidence of findings happened")


# ------------------------------------------------------------------------------------ the cluster


def _masters(scene: Scene, told_spans: Sequence[Span]) -> Iterator[Lane]:
    """Who leads each broker set, by what brokers themselves believed; two at once are two rows."""
    set_of = {
        event.node: str(event.fields["brokerName"])
        for event in scene.told.events
        if event.kind == "role" and event.fields.get("brokerName")
    }
    masters = [span for span in told_spans if span.role == "master"]
    for name in sorted({set_of.get(span.node, "") for span in masters}):
        mine = [span for span in masters if set_of.get(span.node, "") == name]
        title = f"master of {name}" if name else "master"
        bars, rows = _reigns(mine, "epoch", "is master")
        yield Lane(title, "row", bars, rows, about="two at once: two rows")


def _leaders(told_spans: Sequence[Span]) -> Iterator[Lane]:
    """Who leads the controllers."""
    leaders = [span for span in told_spans if span.role == "leader"]
    yield Lane("controller leader", "row", *_reigns(leaders, "term", "leads the controllers"))


def _reigns(spans: Sequence[Span], number: str, does: str) -> tuple[tuple[Bar, ...], int]:
    """Bars of those who led, with the `number` of each reign, and in how many rows they are."""
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


def _sets(scene: Scene) -> Iterator[Lane]:
    """The SyncStateSet's size; the fewer are in it, the more it stands out."""
    steps = set_sizes(scene.told.events)
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
    return "brokers " + ", ".join(map(str, members[:12])) if members else "nobody"


# --------------------------------------------------------------------------------------- the nodes


def _nodes(scene: Scene, told_spans: Sequence[Span]) -> Iterator[Lane]:
    """A row for each node that did something or to which something was done."""
    hit = {name for fault in scene.told.faults for name in fault.names}
    known = {event.node for event in scene.told.events if event.node} | hit
    roles = scene.told.named("roles")
    for node in sorted(known, key=lambda node: (_place(str(roles.get(node, ""))), node))[
        :MOST_NODES
    ]:
        bars = [
            *_up(scene, node, any(span.node == node for span in told_spans)),
            *(_role(span) for span in told_spans if span.node == node),
            *_away(scene, node),
            *_touched(scene, node),
        ]
        yield Lane(node, "node", tuple(bars), select=f"node-{node}", about=str(roles.get(node, "")))


def _place(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER)


def _up(scene: Scene, node: str, has_roles: bool) -> Iterator[Bar]:
    """Of a node that tells no role: when it was there."""
    starts = [e.t for e in scene.told.events if e.node == node and e.kind == "start"]
    if has_roles or not starts:
        return
    downs = down(scene.told, node, scene.end)
    edges = [starts[0], *(t for stretch in downs for t in stretch), scene.end]
    for begin, end in [pair for n, pair in enumerate(pairwise(edges)) if n % 2 == 0]:
        if end > begin:
            tip = f"{node} is up: {span_words(begin, end)}"
            yield Bar(ms(begin), ms(end), "role up", (), tip, f"node-{node}")


def _role(span: Span) -> Bar:
    number = f"{'term' if span.role in TERM_ROLES else 'epoch'} {span.epoch}"
    tip = f"{span.node}: {span.role}, {number}; {span_words(span.begin, span.end)}"
    words: tuple[str, ...] = ()
    if span.role in IN_CHARGE:
        words = (f"{IN_CHARGE[span.role]} {span.epoch}", str(span.epoch))
    known = (*IN_CHARGE, "slave", "follower")
    style = f"role {span.role if span.role in known else 'waiting'}"
    return Bar(ms(span.begin), ms(span.end), style, words, tip, f"node-{span.node}")


def _away(scene: Scene, node: str) -> Iterator[Bar]:
    """Down, or paused."""
    for begin, end in down(scene.told, node, scene.end):
        tip = f"{node} is down: {span_words(begin, end)}"
        yield Bar(ms(begin), ms(end), "down", ("down",), tip, f"node-{node}")
    for fault in scene.told.faults:
        if fault.effects.suspends and node in fault.names and fault.applied is not None:
            _, applied, heal, _ = stages(fault, scene.end)
            tip = f"{node} is paused by fault {fault.id}: {span_words(applied, heal)}"
            yield Bar(ms(applied), ms(heal), "paused", ("paused",), tip, f"fault-{fault.id}")


def _touched(scene: Scene, node: str) -> Iterator[Bar]:
    """Under a node's role: what was done to its links meanwhile."""
    for fault in scene.told.faults:
        if node in fault.names and fault.applied is not None and not fault.effects.silences:
            _, applied, heal, _ = stages(fault, scene.end)
            tip = f"{node}: fault {fault.id}, {fault.words}; {span_words(applied, heal)}"
            style = f"touched {fault_style(fault)}"
            yield Bar(ms(applied), ms(heal), style, (), tip, f"fault-{fault.id}")


def down(told: Told, node: str, end: int) -> list[tuple[int, int]]:
    """When its process was not there: from its end, whoever ended it, to its next start. Being
    taken down with all others does not count."""
    kills = [f for f in told.faults if f.ends and f.applied is not None]
    mine = [e for e in told.events if e.node == node and e.kind in ENDS]
    taken = min((e.t for e in mine if e.kind == "stop" and e.t >= _drain(told)), default=end)
    gone = sorted(
        {f.applied for f in kills if node in f.names and f.applied is not None}
        | {e.t for e in mine if e.t < taken}
    )
    starts = sorted(e.t for e in told.events if e.node == node and e.kind == "start")
    healed = sorted(f.healed for f in kills if node in f.names and f.healed is not None)
    stretches: list[tuple[int, int]] = []
    for t in gone:
        if stretches and t < stretches[-1][1]:
            continue
        back = next((start for start in (starts or healed) if start > t), end)
        stretches.append((t, max(t, back)))
    return stretches


def _drain(told: Told) -> int:
    """After that nodes are taken down, which is not their being down."""
    return told.phases.get("drain", told.phases.get("collected", told.end))


def telling(told: Told) -> list[Event]:
    """What nodes told in words, in the order of time."""
    return [event for event in told.events if event.kind and event.kind != PROGRESS]


def log(told: Told, most: int) -> list[dict[str, Any]]:
    """The same as the page shows it; of a very long run what tells most, from its beginning to its
    end."""
    rows = telling(told)
    if len(rows) > most:
        rows = [event for event in rows if event.kind not in CHATTER]
    if len(rows) > most:
        rows = [rows[place * (len(rows) - 1) // (most - 1)] for place in range(most)]
    return [
        {
            "t": ms(event.t),
            "n": clip(event.node, WORD),
            "k": clip(event.kind, WORD),
            "s": clip(said(event.fields), SENTENCE),
        }
        for event in rows
    ]


PROGRESS = "replication"  # numbers, which a curve shows
CHATTER = ("connection", "handshake")


def said(fields: Mapping[str, Any]) -> str:
    """An event's fields in a line."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in fields.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value[:20])) or "none"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
