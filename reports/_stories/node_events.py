"""The nodes' events around the moments of a story: lines of their event logs within a second.

The cause of a finding is often in a line that no sentence of its story covers. So these lines are
shown verbatim: from the time of the acknowledgement, and from later elections or truncations. If
there are many, the lines nearest to a moment are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.history.faults_and_events import ClusterEvent
from reports._format import clip
from reports._lanes import CHATTER, PROGRESS, SENTENCE, WORD, fields_text

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
