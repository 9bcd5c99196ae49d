"""Conditions that a plan may wait for besides the clock: `after` and `until`.

    after = "1000 acks within 9 s"   so many more sends were acknowledged since the previous fault
                                     of the plan was applied, or so much time has passed since
    until = "another-master"         some broker set has a master with a higher epoch than when
                                     the fault began
    until = "next"                   the next fault of the plan has been applied
    until = "another-master + 2 s"   the same, and so much longer

Every condition has an end: `within` bounds the first, the fault's `for_s` the others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.contracts import Standing
from harness.errors import BadRequest

ANOTHER_MASTER, NEXT = "another-master", "next"
UNTIL = (ANOTHER_MASTER, NEXT)

_UNTIL = re.compile(r"([a-z-]+)(?: \+ (\d+(?:\.\d+)?) ?s)?")
_ACKS = re.compile(r"(\d+) acks within (\d+(?:\.\d+)?) ?s")


@dataclass(frozen=True)
class Acks:
    """So many more acknowledgements, but not longer than this."""

    count: int
    within_s: float


@dataclass(frozen=True)
class Until:
    """A word of `UNTIL`, and how much longer; without a word: the fault's whole time."""

    word: str = ""
    more_s: float = 0.0


def after(text: str) -> Acks | None:
    """The condition that `after` states, if any. BadRequest says how to write one."""
    if not text:
        return None
    match = _ACKS.fullmatch(" ".join(text.split()))
    if not match:
        raise BadRequest(f"after must read like '1000 acks within 9 s', not {text!r}")
    return Acks(int(match[1]), float(match[2]))


def until(text: str) -> Until:
    """The condition that `until` states. BadRequest says how to write one."""
    if not text:
        return Until()
    match = _UNTIL.fullmatch(" ".join(text.split()))
    if not match or match[1] not in UNTIL:
        raise BadRequest(f"until must be one of {', '.join(UNTIL)}, with or without ' + 2 s'")
    return Until(match[1], float(match[2] or 0))


def another_master(before: Mapping[str, int], now: Standing) -> bool:
    """Whether some broker set has a master of a higher epoch than before."""
    return any(now.epochs.get(name, 0) > before.get(name, 0) for name in now.masters)
