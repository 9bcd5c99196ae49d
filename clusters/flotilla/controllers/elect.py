"""Who becomes master (spec 4.6), and whether a set needs one (5.1): pure, fields of `rules.Rules`.

A controller knows a broker as `ALIVE`, `DEAD`, or, for a while after it became leader, `UNKNOWN`:
it has not heard of it yet. An unknown master is not deposed and an unknown broker is not elected.

The original compares offsets by subtracting and narrowing to 32 bits, and fails on a candidate
whose heartbeat expired meanwhile; here candidates are values, taken once, compared as they are.

A *policy* (`electPolicy`) ranks the candidates and does nothing else. Who is one, the election has
decided before: the living of the SyncStateSet, and anybody else only where nobody of the set can
come and `enableElectUncleanMaster` allows it. A learner never is.

    water-level      the last epoch, then the longest log: the original's
    join-time        who has been in the set for longest
    priority         the smallest brokerElectionPriority
    zone             the zone of the master that is replaced
    node-resources   the most of what `nodeResources` counts

Each falls back on the water level among its equals. Every member of the set holds what all members
were waited for; what fewer have acknowledged may be with the longest log alone, so the other four
belong to profiles in which all acknowledge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class BrokerLiveness(Enum):
    ALIVE = "alive"
    UNKNOWN = "unknown"
    DEAD = "dead"


@dataclass(frozen=True)
class Candidate:
    """A member as its last heartbeat described it. A smaller priority wins.

    `joined`: the epoch of the SyncStateSet with which it came in.
    """

    broker_id: int
    standing: BrokerLiveness
    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    joined: int = 0
    zone: str = ""
    resources: int = 0
    learner: bool = False


@dataclass(frozen=True)
class Ballot:
    """An election's question.

    `prefer`: the one an operator designated; `zone`: where the master was.
    """

    in_set: Sequence[Candidate]
    others: Sequence[Candidate]
    old_master: int | None
    prefer: int | None = None
    unclean: bool = False
    policy: str = "water-level"
    zone: str = ""


def elect(ballot: Ballot) -> int | None:
    """The winner, perhaps the old master; null when nobody may be elected now."""
    winner = _elect_among(ballot.in_set, ballot)
    if winner is None and ballot.unclean and not any_unknown(ballot.in_set):
        winner = _elect_among((*ballot.in_set, *ballot.others), ballot)
    return winner


def _elect_among(candidates: Sequence[Candidate], ballot: Ballot) -> int | None:
    old = [c for c in candidates if c.broker_id == ballot.old_master]
    keeps = bool(old) and old[0].standing is not BrokerLiveness.DEAD
    if keeps and ballot.prefer in (None, ballot.old_master):
        return ballot.old_master
    alive = [c for c in candidates if c.standing is BrokerLiveness.ALIVE and not c.learner]
    if ballot.prefer is not None:
        return ballot.prefer if any(c.broker_id == ballot.prefer for c in alive) else None
    rank = POLICIES[ballot.policy]
    best = min(alive, key=lambda c: (rank(c, ballot), _water_level(c)), default=None)
    return best.broker_id if best else None


def _water_level(c: Candidate) -> tuple[int, int, int, int]:
    return -c.epoch, -c.max_offset, c.priority, c.broker_id


POLICIES: Mapping[str, Callable[[Candidate, Ballot], int]] = {
    "water-level": lambda c, ballot: 0,
    "join-time": lambda c, ballot: c.joined,
    "priority": lambda c, ballot: c.priority,
    "zone": lambda c, ballot: int(c.zone != ballot.zone),
    "node-resources": lambda c, ballot: -c.resources,
}


def any_unknown(candidates: Sequence[Candidate]) -> bool:
    """Somebody may yet be heard of: no reason to give up, or to elect from outside the set."""
    return any(c.standing is BrokerLiveness.UNKNOWN for c in candidates)


def sets_to_scan(sets: Sequence[str]) -> Sequence[str]:
    """Sets whose need of a master is asked for without news of them: all, from time to time.

    An election that could not be held when its master died is held then. In the original it never
    was (apache/rocketmq#5009).
    """
    return sets


def needs_election(reigns: int, master: BrokerLiveness | None) -> bool:
    """A set that once had a master has none, or a dead one. Asked again and again, for ever.

    The first election of a set is not the controllers' to start: the first broker to ask wins it.
    """
    return reigns > 0 and master in (None, BrokerLiveness.DEAD)


def may_hand_over(ack: int | None, end: int, waiting: int) -> bool:
    """In a planned handover: has the successor the whole log, and is every send answered?"""
    return ack is not None and ack >= end and not waiting
