"""How far each slave is behind its master over time, and how fast it catches up. Pure.

Masters report twice a second the end of their log and what each slave has acknowledged, if it
changed (`replication`). A slave that is cut off acknowledges nothing, so its last acknowledgement
is used: only its master knows how far it is behind. A new master starts with its own reports; a
previous master that has not noticed the change is ignored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harness.history.faults_and_events import ClusterEvent
from reports._format import clip
from reports._lanes import PROGRESS

NS = 1_000_000_000
MAX_BINS, MIN_BIN_NS = 1_200, NS
MAX_SLAVES, WORD = 12, 60


@dataclass(frozen=True)
class LagSample:
    """The lag of a slave from a moment on, as its master reports it: bytes behind, recent bytes a
    second. None: the node is the master itself."""

    t: int
    slave: str
    behind: int | None
    speed: float = 0.0


@dataclass(frozen=True)
class LagCurve:
    """The maximum lag of a slave and its speed in each bin; None without reports, and while it is
    master."""

    slave: str
    behind: tuple[int | None, ...]
    speed: tuple[int | None, ...]


def lag_curves(events: Sequence[ClusterEvent], begin: int, end: int) -> dict[str, Any]:
    """Return the data of the page: the begins of bins, in ms since the load began, and a curve a
    slave."""
    width = max(MIN_BIN_NS, -(-(end - begin) // MAX_BINS))
    edges = range(begin, end, width)
    seen = sorted(lag_samples(events), key=lambda one: (one.slave, one.t))
    slaves = groupby(seen, key=lambda one: one.slave)
    drawn = (curve(slave, list(mine), edges, width) for slave, mine in slaves)
    made = [one for one in drawn if any(n is not None for n in one.behind)][:MAX_SLAVES]
    return {
        "times": [round(edge / 1e6, 3) for edge in edges] if made else [],
        "slaves": [
            {"name": clip(one.slave, WORD), "behind": one.behind, "speed": one.speed}
            for one in made
        ],
    }


def lag_samples(events: Iterable[ClusterEvent]) -> Iterator[LagSample]:
    """Yield the reports of masters, slave by slave."""
    names: dict[tuple[str, str], str] = {}  # (set, broker id) -> node
    set_of: dict[str, str] = {}  # node -> set
    master_of: dict[str, str] = {}  # set -> node
    before: dict[
        tuple[str, str, str], tuple[int, int]
    ] = {}  # (master, set, broker id) -> time, bytes acknowledged
    for event in events:
        fields = event.fields
        of = str(fields.get("inner") or set_of.get(event.node, ""))  # of a broker in a container
        if event.kind == "role" and fields.get("brokerId") is not None:
            of = set_of[event.node] = str(fields.get("brokerName", ""))
            names[of, str(fields["brokerId"])] = event.node
            before = {key: held for key, held in before.items() if key[:2] != (event.node, of)}
            if fields.get("role") == "master":
                master_of[of] = event.node
                yield LagSample(event.t, event.node, None)
        if event.kind != PROGRESS or not isinstance(acks := fields.get("acks"), Mapping):
            continue
        if master_of.get(of, event.node) != event.node:
            continue
        heard = {key: ack for key, ack in acks.items() if isinstance(ack, int)}
        mine = {key[2]: held for key, held in before.items() if key[:2] == (event.node, of)}
        silent = {key: held for key, (_, held) in mine.items()}
        for key, ack in sorted({**silent, **heard}.items()):
            then, held = mine.get(key, (event.t, ack))
            apart_s = (event.t - then) / NS
            before[event.node, of, key] = (event.t, ack)
            yield LagSample(
                t=event.t,
                slave=names.get((of, key), f"broker {key}"),
                behind=max(0, int(fields.get("end", 0)) - ack),
                speed=max(0.0, (ack - held) / apart_s) if apart_s else 0.0,
            )


def curve(slave: str, seen: Sequence[LagSample], edges: range, width: int) -> LagCurve:
    """Return the curve of one slave; a bin without reports repeats the one before."""
    behind: list[int | None] = []
    speed: list[int | None] = []
    at = 0
    last: int | None = None
    for edge in edges:
        inside: list[LagSample] = []
        while at < len(seen) and seen[at].t < edge + width:
            inside.append(seen[at])
            at += 1
        if inside:
            last = inside[-1].behind
        lags = [one.behind for one in inside if one.behind is not None]
        behind.append(max(lags) if lags else last)
        moving = sum(one.speed for one in inside) / len(inside) if inside else 0.0
        speed.append(None if behind[-1] is None else round(moving))
    return LagCurve(slave, tuple(behind), tuple(speed))
