"""Who becomes master (spec 4.6), and whether a set needs one (5.1): pure, fields of `rules.Rules`.

A controller knows a broker as `ALIVE`, `DEAD`, or, for a while after it became leader, `UNKNOWN`:
it has not heard of it yet. An unknown master is not deposed and an unknown broker is not elected.

The original compares offsets by subtracting and narrowing to 32 bits, and fails on a candidate
whose heartbeat expired meanwhile; here candidates are values, taken once, compared as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Standing(Enum):
    ALIVE = "alive"
    UNKNOWN = "unknown"
    DEAD = "dead"


@dataclass(frozen=True)
class Candidate:
    """A member as its last heartbeat described it. A smaller priority wins."""

    broker_id: int
    standing: Standing
    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1


@dataclass(frozen=True)
class Ballot:
    """An election's question. `prefer`: the one an operator designated."""

    in_set: Sequence[Candidate]
    others: Sequence[Candidate]
    old_master: int | None
    prefer: int | None = None
    unclean: bool = False


def elect(ballot: Ballot) -> int | None:
    """The winner, perhaps the old master; null when nobody may be elected now."""
    winner = _elect_among(ballot.in_set, ballot)
    if winner is None and ballot.unclean and not undecided(ballot.in_set):
        winner = _elect_among((*ballot.in_set, *ballot.others), ballot)
    return winner


def _elect_among(candidates: Sequence[Candidate], ballot: Ballot) -> int | None:
    old = [c for c in candidates if c.broker_id == ballot.old_master]
    keeps = bool(old) and old[0].standing is not Standing.DEAD
    if keeps and ballot.prefer in (None, ballot.old_master):
        return ballot.old_master
    alive = [c for c in candidates if c.standing is Standing.ALIVE]
    if ballot.prefer is not None:
        return ballot.prefer if any(c.broker_id == ballot.prefer for c in alive) else None
    best = min(alive, key=_rank, default=None)
    return best.broker_id if best else None


def _rank(c: Candidate) -> tuple[int, int, int, int]:
    return -c.epoch, -c.max_offset, c.priority, c.broker_id


def undecided(candidates: Sequence[Candidate]) -> bool:
    """Somebody may yet be heard of: no reason to give up, or to elect from outside the set."""
    return any(c.standing is Standing.UNKNOWN for c in candidates)


def needs_election(master_epoch: int, master: Standing | None) -> bool:
    """A set that once had a master has none, or a dead one. Asked again and again, for ever.

    The first election of a set is not the controllers' to start: the first broker to ask wins it.
    """
    return master_epoch > 0 and master in (None, Standing.DEAD)
