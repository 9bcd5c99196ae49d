"""The zones of a trial's nodes, such as the rooms of a data centre. Pure.

    zones = 3                            nodes of each role are in zones a, b and c in turn
    zones = { broker-1 = "east", broker-2 = "west" }
                                         these nodes are there, the others of a role in turn

A zone's name is lower-case letters and digits: faults aim at `zone-a`, or at `one zone`.

    zone_latency = { delay_s = 0.005, jitter_s = 0.001 }

What a node of one zone sends to a node of another is delayed so much, all the time (`distances`).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from harness.contracts import Distance, Node
from harness.errors import BadRequest, UnknownName
from harness.trial import ZONE_COUNT

NAME = re.compile(r"[a-z][a-z0-9]*")
MAX_ZONES = len(ascii_lowercase)
MIN_DELAY_S, MAX_DELAY_S = 0.001, 0.5  # of a latency


def assign_zones(nodes: Sequence[Node], zones: Mapping[str, Any]) -> Sequence[Node]:
    """Return the nodes, each in its zone. Raises BadRequest if the table makes no sense for
    them."""
    if not zones:
        return nodes
    _check(nodes, zones)
    if ZONE_COUNT in zones:
        names = list(ascii_lowercase[: zones[ZONE_COUNT]])
    else:
        names = list(dict.fromkeys(zones.values()))
    turn: Counter[str] = Counter()
    standing = []
    for node in nodes:
        zone = zones.get(node.name) or names[turn[node.role] % len(names)]
        turn[node.role] += 1
        standing.append(replace(node, zone=zone))
    return standing


def distances(
    nodes: Sequence[Node], latency: Mapping[str, Any]
) -> Mapping[tuple[str, str], Distance]:
    """Return the distances of the links between zones, for nodes in zones. Raises BadRequest if
    they make no sense."""
    if not latency:
        return {}
    distance = _distance(latency)
    far = {(a.name, b.name) for a in nodes for b in nodes if a.zone != b.zone}
    if not far:
        raise BadRequest("zone_latency needs nodes in several zones; set zones = 3, or --zones 3")
    return dict.fromkeys(sorted(far), distance)


def _distance(latency: Mapping[str, Any]) -> Distance:
    for key, value in latency.items():
        least_s = {"delay_s": MIN_DELAY_S, "jitter_s": 0.0}.get(key)
        if least_s is None:
            raise UnknownName("key in zone_latency", key, ["delay_s", "jitter_s"])
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least_s <= value <= MAX_DELAY_S:
            raise BadRequest(
                f"zone_latency.{key} must be seconds from {least_s:g} to {MAX_DELAY_S:g}, "
                f"not {value!r}"
            )
    if "delay_s" not in latency:
        raise BadRequest("zone_latency needs delay_s, the latency between zones in seconds")
    return Distance(**{key: float(value) for key, value in latency.items()})


def _check(nodes: Sequence[Node], zones: Mapping[str, Any]) -> None:
    if ZONE_COUNT in zones:
        count = zones[ZONE_COUNT]
        if len(zones) > 1:
            raise BadRequest("zones must be a number or a table of nodes, not both")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_ZONES:
            raise BadRequest(f"zones must be a whole number from 1 to {MAX_ZONES}, not {count!r}")
        return
    names = [node.name for node in nodes]
    for name, zone in zones.items():
        if name not in names:
            raise UnknownName("node in zones", name, names)
        if not isinstance(zone, str) or not NAME.fullmatch(zone):
            raise BadRequest(f"zones.{name} must be a word such as 'a' or 'east', not {zone!r}")
