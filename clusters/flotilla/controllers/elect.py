"""The election of a master, and the decision whether a set needs one (RIP-44). Pure.

A controller knows a broker as `ALIVE`, as `DEAD` or, for a while after the controller became
leader, as `UNKNOWN`: it has not heard it yet. An unknown master is not deposed and an unknown
broker is not elected.

RocketMQ compares offsets by subtracting and narrowing to 32 bits, and fails on a candidate whose
heartbeat expires meanwhile. Here candidates are values, taken once and compared as they are.

A *policy* (`electPolicy`) ranks the candidates and does nothing else. Candidates are decided
before: the living members of the SyncStateSet, and other brokers only where no member can be
elected and `enableElectUncleanMaster` allows it. A learner is never a candidate.

    water-level      the last epoch, then the longest log: RocketMQ's
    join-time        the longest membership in the set
    priority         the smallest brokerElectionPriority
    zone             the zone of the master that is replaced, and there its rack
    node-resources   the most of what `nodeResources` counts

Equal candidates are ranked by water level. Each member of the set holds all messages that all
members were waited for. A message that fewer members have acknowledged may be in the longest log
only, so the other four policies belong to profiles in which all members acknowledge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class BrokerStatus(Enum):
    ALIVE = "alive"
    UNKNOWN = "unknown"
    DEAD = "dead"


@dataclass(frozen=True)
class Candidate:
    """A member as its last heartbeat described it. A smaller priority wins.

    `joined`: the epoch of the SyncStateSet with which it entered.
    """

    broker_id: int
    status: BrokerStatus
    epoch: int = -1
    max_offset: int = -1
    priority: int = 2**31 - 1
    joined: int = 0
    zone: str = ""
    resources: int = 0
    learner: bool = False
    rack: str = ""


@dataclass(frozen=True)
class Ballot:
    """The input of an election.

    `prefer`: the broker that an operator designated; `zone` and `rack`: the old master's.
    """

    in_set: Sequence[Candidate]
    others: Sequence[Candidate]
    old_master: int | None
    prefer: int | None = None
    unclean: bool = False
    policy: str = "water-level"
    zone: str = ""
    rack: str = ""


def elect(ballot: Ballot) -> int | None:
    """Return the winner, possibly the old master; None if no candidate is eligible."""
    winner = _elect_among(ballot.in_set, ballot)
    if winner is None and ballot.unclean and not any_unknown(ballot.in_set):
        winner = _elect_among((*ballot.in_set, *ballot.others), ballot)
    return winner


def _elect_among(candidates: Sequence[Candidate], ballot: Ballot) -> int | None:
    old = [c for c in candidates if c.broker_id == ballot.old_master]
    keeps = bool(old) and old[0].status is not BrokerStatus.DEAD
    if keeps and ballot.prefer in (None, ballot.old_master):
        return ballot.old_master
    alive = [c for c in candidates if c.status is BrokerStatus.ALIVE and not c.learner]
    if ballot.prefer is not None:
        return ballot.prefer if any(c.broker_id == ballot.prefer for c in alive) else None
    rank = POLICIES[ballot.policy]
    best = min(alive, key=lambda c: (rank(c, ballot), _water_level(c)), default=None)
    return best.broker_id if best else None


def _water_level(c: Candidate) -> tuple[int, int, int, int]:
    return -c.epoch, -c.max_offset, c.priority, c.broker_id


def _distance(c: Candidate, ballot: Ballot) -> int:
    """Return how far a candidate is from the old master: 0 in its rack, 1 in its zone, 2 elsewhere.
    A rack's name means something in its zone only."""
    if c.zone != ballot.zone:
        return 2
    return int(c.rack != ballot.rack)


POLICIES: Mapping[str, Callable[[Candidate, Ballot], int]] = {
    "water-level": lambda c, ballot: 0,
    "join-time": lambda c, ballot: c.joined,
    "priority": lambda c, ballot: c.priority,
    "zone": _distance,
    "node-resources": lambda c, ballot: -c.resources,
}


def any_unknown(candidates: Sequence[Candidate]) -> bool:
    """Decide whether to wait: a candidate that may still be heard is a reason not to give up, and
    not to elect from outside the set."""
    return any(c.status is BrokerStatus.UNKNOWN for c in candidates)


def sets_to_scan(sets: Sequence[str]) -> Sequence[str]:
    """Return the sets that the periodic scan checks for a missing master: all of them.

    The scan holds an election that could not be held when the master died. RocketMQ did not have it
    (apache/rocketmq#5009). The identity is a rule of its own, so that a variant can replace it.
    """
    return sets


def needs_election(master_changes: int, master: BrokerStatus | None) -> bool:
    """Decide whether the controllers start an election: the set had a master, and has none or a
    dead one.

    The controllers do not start a set's first election: the first broker that requests it wins.
    """
    return master_changes > 0 and master in (None, BrokerStatus.DEAD)


def may_hand_over(ack: int | None, end: int, waiting: int) -> bool:
    """Decide whether a planned handover may go on: the successor has the whole log, and no send
    waits for its answer."""
    return ack is not None and ack >= end and not waiting
