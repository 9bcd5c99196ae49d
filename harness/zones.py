"""Where nodes stand: the zones of a trial, such as the rooms of a data centre. Pure.

    zones = 3                            of each role, nodes stand in zones a, b and c in turn
    zones = { broker-1 = "east", broker-2 = "west" }
                                         these stand there, the others of a role in turn

A zone is the letters of a name: faults aim at `zone-a`, or at `one zone`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

from harness.contracts import Node
from harness.errors import BadRequest, UnknownName

COUNT = "count"  # `zones = 3` is the table { count = 3 }
NAME = re.compile(r"[a-z][a-z0-9]*")
MOST = len(ascii_lowercase)


def placed(nodes: Sequence[Node], zones: Mapping[str, Any]) -> Sequence[Node]:
    """The nodes, each in its zone. BadRequest when the table makes no sense for them."""
    if not zones:
        return nodes
    _check(nodes, zones)
    if COUNT in zones:
        names = list(ascii_lowercase[: zones[COUNT]])
    else:
        names = list(dict.fromkeys(zones.values()))
    turn: Counter[str] = Counter()
    standing = []
    for node in nodes:
        zone = zones.get(node.name) or names[turn[node.role] % len(names)]
        turn[node.role] += 1
        standing.append(replace(node, zone=zone))
    return standing


def _check(nodes: Sequence[Node], zones: Mapping[str, Any]) -> None:
    if COUNT in zones:
        count = zones[COUNT]
        if len(zones) > 1:
            raise BadRequest("zones must be a number, or name nodes, and not both")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST:
            raise BadRequest(f"zones must be a whole number from 1 to {MOST}, not {count!r}")
        return
    known = [node.name for node in nodes]
    for name, zone in zones.items():
        if name not in known:
            raise UnknownName("node in zones", name, known)
        if not isinstance(zone, str) or not NAME.fullmatch(zone):
            raise BadRequest(f"zones.{name} must be a word such as 'a' or 'east', not {zone!r}")
