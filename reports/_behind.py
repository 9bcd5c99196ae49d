"""How far each slave is behind its master over time, and how fast it catches up. Pure.

Masters tell twice a second what they have and what each slave has acknowledged, if it has moved
(`replication`). A slave that is cut off acknowledges nothing more, so what it had at last is
counted on: nobody but its master can say how far it is behind. A new master begins with what it is
told itself; who was master before and does not know yet that another one is, is asked no more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from harness.history.faults_and_events import Event
from reports._lanes import PROGRESS
from reports._words import clip

NS = 1_000_000_000
MOST_BINS, LEAST_BIN_NS = 1_200, NS
MOST_SLAVES, WORD = 12, 60


@dataclass(frozen=True)
class Seen:
    """A slave as its master sees it from a moment on: bytes behind, bytes a second of late. None:
    it is behind nobody, for it is the master."""

    t: int
    slave: str
    behind: int | None
    speed: float = 0.0


@dataclass(frozen=True)
class Curve:
    """Of a slave: the most that it was behind, and its speed, in each bin; None while nobody says,
    and while it is the master."""

    slave: str
    behind: tuple[int | None, ...]
    speed: tuple[int | None, ...]


def plain(told: Sequence[Event], begin: int, end: int) -> dict[str, Any]:
    """What the page draws: where bins begin, in ms since the load began, and a curve a slave."""
    width = max(LEAST_BIN_NS, -(-(end - begin) // MOST_BINS))
    edges = range(begin, end, width)
    seen = sorted(sights(told), key=lambda one: (one.slave, one.t))
    slaves = groupby(seen, key=lambda one: one.slave)
    drawn = (curve(slave, list(mine), edges, width) for slave, mine in slaves)
    made = [one for one in drawn if any(n is not None for n in one.behind)][:MOST_SLAVES]
    return {
        "times": [round(edge / 1e6, 3) for edge in edges] if made else [],
        "slaves": [
            {"name": clip(one.slave, WORD), "behind": one.behind, "speed": one.speed}
            for one in made
        ],
    }


def sights(told: Iterable[Event]) -> Iterator[Seen]:
    """What masters say, slave by slave."""
    names: dict[tuple[str, str], str] = {}  # set, broker id -> node
    set_of: dict[str, str] = {}  # node -> set
    master_of: dict[str, str] = {}  # set -> node
    before: dict[tuple[str, str], tuple[int, int]] = {}  # master, broker id -> when, what it held
    for event in told:
        fields = event.fields
        if event.kind == "role" and fields.get("brokerId") is not None:
            set_of[event.node] = str(fields.get("brokerName", ""))
            names[set_of[event.node], str(fields["brokerId"])] = event.node
            before = {key: held for key, held in before.items() if key[0] != event.node}
            if fields.get("role") == "master":
                master_of[set_of[event.node]] = event.node
                yield Seen(event.t, event.node, None)
        if event.kind != PROGRESS or not isinstance(acks := fields.get("acks"), Mapping):
            continue
        if master_of.get(set_of.get(event.node, ""), event.node) != event.node:
            continue
        heard = {key: ack for key, ack in acks.items() if isinstance(ack, int)}
        silent = {key: held for (node, key), (_, held) in before.items() if node == event.node}
        for key, ack in sorted({**silent, **heard}.items()):
            then, held = before.get((event.node, key), (event.t, ack))
            apart_s = (event.t - then) / NS
            before[event.node, key] = (event.t, ack)
            yield Seen(
                t=event.t,
                slave=names.get((set_of.get(event.node, ""), key), f"broker {key}"),
                behind=max(0, int(fields.get("end", 0)) - ack),
                speed=max(0.0, (ack - held) / apart_s) if apart_s else 0.0,
            )


def curve(slave: str, seen: Sequence[Seen], edges: range, width: int) -> Curve:
    """Bins in which nothing moved are as the last before them."""
    behind: list[int | None] = []
    speed: list[int | None] = []
    at = 0
    last: int | None = None
    for edge in edges:
        inside: list[Seen] = []
        while at < len(seen) and seen[at].t < edge + width:
            inside.append(seen[at])
            at += 1
        if inside:
            last = inside[-1].behind
        told = [one.behind for one in inside if one.behind is not None]
        behind.append(max(told) if told else last)
        moving = sum(one.speed for one in inside) / len(inside) if inside else 0.0
        speed.append(None if behind[-1] is None else round(moving))
    return Curve(slave, tuple(behind), tuple(speed))
