"""What a slave does with its log before it copies: the six relative positions of spec 7.8.

A case is named by where the slave's first and last byte lie: 1 below the master's log, 2 inside,
3 above it.

    1-1       long away, or blank: forget the log and copy from the master's first byte
    1-2 2-2   plain lag: go on, cutting first if the logs parted
    1-3 2-3   an old master's tail, or a fork: cut at the last point that both share
    3-3       the master lost data and was elected all the same: halt; a person must decide

Where no epoch is shared, nothing is: the slave cuts to its first byte if both logs begin there,
else it starts anew. The original retries for ever.

Tables are compared from where both logs begin. Within one epoch one master wrote, so who has the
same epoch at the same offset has the same bytes, however much of its beginning was deleted.

A slave that starts anew copies from the master's first byte, or from its last file on with
`syncFromLastFile`: sooner in step, but what is older can not be read from this replica. Which file
that is the master says, for a copy has to begin with a ledger (see `store.ledger`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from .epochs import EpochTable


@dataclass(frozen=True)
class LogShape:
    """A log as a handshake describes it."""

    min_offset: int
    max_offset: int
    epochs: EpochTable

    @property
    def is_empty(self) -> bool:
        return self.min_offset == self.max_offset


class Action(Enum):
    CONTINUE = "continue"
    TRUNCATE = "truncate"
    RESET = "reset"
    HALT = "halt"


class LogCase(Enum):
    """Where a slave's log lies against its master's."""

    BELOW = "1-1"
    LAGGING_FROM_BELOW = "1-2"
    LAGGING = "2-2"
    AHEAD_FROM_BELOW = "1-3"
    AHEAD = "2-3"
    ABOVE = "3-3"


def log_case(slave: LogShape, master: LogShape) -> LogCase:
    """An empty log is below every other one: there is nothing in it that could be kept."""
    if slave.is_empty or slave.max_offset <= master.min_offset:
        return LogCase.BELOW
    if slave.min_offset > master.max_offset:
        return LogCase.ABOVE
    low = 1 if slave.min_offset < master.min_offset else 2
    return LogCase(f"{low}-{3 if slave.max_offset > master.max_offset else 2}")


@dataclass(frozen=True)
class CutPlan:
    """What to do; copying begins at `point` afterwards. `case` is None at a promotion."""

    action: Action
    point: int
    case: LogCase | None

    @property
    def reason(self) -> str:
        return self.case.value if self.case else "promotion"


FindPoint = Callable[[EpochTable, int, EpochTable, int], int]


def plan_cut(slave: LogShape, master: LogShape, start: int, find_point: FindPoint) -> CutPlan:
    """What the slave does with its log. `start`: where it would begin anew."""
    case = log_case(slave, master)
    if case is LogCase.ABOVE:
        return CutPlan(Action.HALT, slave.max_offset, case)
    if case is LogCase.BELOW:
        blank = slave.is_empty and slave.max_offset == start
        return CutPlan(Action.CONTINUE if blank else Action.RESET, start, case)
    point = _shared_end(slave, master, find_point)
    if point < 0:
        return CutPlan(Action.RESET, start, case)
    if point >= slave.max_offset:
        return CutPlan(Action.CONTINUE, slave.max_offset, case)
    return CutPlan(Action.TRUNCATE, point, case)


def _shared_end(slave: LogShape, master: LogShape, find_point: FindPoint) -> int:
    """Up to where both logs are the same; -1 when they share nothing."""
    low = max(slave.min_offset, master.min_offset)
    ours, theirs = slave.epochs.clip(low), master.epochs.clip(low)
    point = find_point(ours, slave.max_offset, theirs, master.max_offset)
    if point < 0 and slave.min_offset == master.min_offset:
        return slave.min_offset
    return point
