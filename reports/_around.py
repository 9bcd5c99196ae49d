"""What the nodes told around a moment: the lines of their event logs within a second of it.

A finding has its story, in words. Beside it stands what the nodes themselves wrote down just then,
word for word, since the cause is often in a line that no story knows. Of a busy second the lines
nearest to the moment are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.intervals import Event
from reports._lanes import CHATTER, PROGRESS, SENTENCE, WORD, said
from reports._words import clip

NEAR_NS = 1_000_000_000
MOST = 40  # lines


@dataclass(frozen=True)
class Line:
    """A line of a node's log: seconds since the run's start, and since the moment."""

    s: float
    apart_s: float
    node: str
    kind: str
    fields: str


@dataclass(frozen=True)
class Around:
    """Lines in the order of time, and how many more there are."""

    lines: tuple[Line, ...] = ()
    left_out: int = 0


SILENCE = Around()


def around(events: Sequence[Event], t: int) -> Around:
    """What nodes told within a second of `t`; connections that came and went are left out first."""
    told = [event for event in events if event.node and event.kind and event.kind != PROGRESS]
    near = [event for event in told if abs(event.t - t) <= NEAR_NS]
    near.sort(key=lambda e: (e.t, e.node))
    ranked = sorted(range(len(near)), key=lambda n: (near[n].kind in CHATTER, abs(near[n].t - t)))
    kept = [near[n] for n in sorted(ranked[:MOST])]
    return Around(tuple(_line(event, t) for event in kept), len(near) - len(kept))


def _line(event: Event, t: int) -> Line:
    return Line(
        s=event.t / 1e9,
        apart_s=(event.t - t) / 1e9,
        node=clip(event.node, WORD),
        kind=clip(event.kind, WORD),
        fields=clip(said(event.fields), SENTENCE),
    )
