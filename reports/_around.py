"""What the nodes told around the moments of a story: the lines of their event logs within a second.

A finding has its story, in words. Beside it stands what the nodes themselves wrote down just then,
word for word, since the cause is often in a line that no story knows: when the message was
acknowledged, and long after, when a master was elected or a log was cut. Of busy seconds the lines
nearest to a moment are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.history.faults_and_events import Event
from reports._lanes import CHATTER, PROGRESS, SENTENCE, WORD, said
from reports._words import clip

NEAR_NS = 1_000_000_000
MOST = 40  # lines


@dataclass(frozen=True)
class Line:
    """A line of a node's log: seconds since the load began, and since the first moment."""

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


def around(events: Sequence[Event], moments: Sequence[int]) -> Around:
    """What nodes told within a second of any of these; connections that came and went are left out
    first."""
    if not moments:
        return SILENCE
    told = [event for event in events if event.node and event.kind and event.kind != PROGRESS]
    near = [event for event in told if _apart(event, moments) <= NEAR_NS]
    near.sort(key=lambda e: (e.t, e.node))
    ranked = sorted(
        range(len(near)), key=lambda n: (near[n].kind in CHATTER, _apart(near[n], moments))
    )
    kept = [near[n] for n in sorted(ranked[:MOST])]
    return Around(tuple(_line(event, moments[0]) for event in kept), len(near) - len(kept))


def _apart(event: Event, moments: Sequence[int]) -> int:
    return min(abs(event.t - t) for t in moments)


def _line(event: Event, t: int) -> Line:
    return Line(
        s=event.t / 1e9,
        apart_s=(event.t - t) / 1e9,
        node=clip(event.node, WORD),
        kind=clip(event.kind, WORD),
        fields=clip(said(event.fields), SENTENCE),
    )
