"""What a slave does with its log before it copies: the six cases of how two logs can lie.

A case is named by where the slave's first and last byte lie: 1 below the master's log, 2 inside,
3 above it (RIP-44; "Truncation" in docs/flotilla-design.md).

    1-1       blank, or away for long: reset, and copy from the master's first byte
    1-2 2-2   plain lag: continue, and cut first if the logs diverged
    1-3 2-3   an old master's tail, or a fork: cut at the last common point
    3-3       the master lost data and was elected nevertheless: halt; an operator must decide

If no epoch is common, the slave cuts to its first byte if both logs begin there, else it resets.
RocketMQ retries without end.

The tables are compared from where both logs begin. One master wrote within one epoch, so replicas
with the same epoch at the same offset have the same bytes, however much of the beginning was
deleted.

A slave that resets copies from the master's first byte, or from its last file with
`syncFromLastFile`: it is in step sooner, but older messages cannot be read from this replica. The
master says which file that is, as a copy must begin with a ledger (see `store.ledger`).
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
    """The position of a slave's log relative to its master's."""

    BELOW = "1-1"
    LAGGING_FROM_BELOW = "1-2"
    LAGGING = "2-2"
    AHEAD_FROM_BELOW = "1-3"
    AHEAD = "2-3"
    ABOVE = "3-3"


def log_case(slave: LogShape, master: LogShape) -> LogCase:
    """Return the case. An empty log is below every other one, since it has nothing to keep."""
    if slave.is_empty or slave.max_offset <= master.min_offset:
        return LogCase.BELOW
    if slave.min_offset > master.max_offset:
        return LogCase.ABOVE
    low = 1 if slave.min_offset < master.min_offset else 2
    return LogCase(f"{low}-{3 if slave.max_offset > master.max_offset else 2}")


@dataclass(frozen=True)
class CutPlan:
    """The action; copying begins at `point` afterwards. `case` is None at a promotion."""

    action: Action
    point: int
    case: LogCase | None

    @property
    def reason(self) -> str:
        return self.case.value if self.case else "promotion"


FindPoint = Callable[[EpochTable, int, EpochTable, int], int]


def plan_cut(slave: LogShape, master: LogShape, start: int, find_point: FindPoint) -> CutPlan:
    """Return what the slave does with its log. `start`: where a new copy would begin."""
    case = log_case(slave, master)
    if case is LogCase.ABOVE:
        return CutPlan(Action.HALT, slave.max_offset, case)
    if case is LogCase.BELOW:
        blank = slave.is_empty and slave.max_offset == start
        return CutPlan(Action.CONTINUE if blank else Action.RESET, start, case)
    low = max(slave.min_offset, master.min_offset)
    ours, theirs = slave.epochs.clip(low), master.epochs.clip(low)
    point = find_point(ours, slave.max_offset, theirs, master.max_offset)
    if point < 0 and slave.min_offset == master.min_offset:
        point = slave.min_offset
    if point < 0:
        return CutPlan(Action.RESET, start, case)
    if point >= slave.max_offset:
        return CutPlan(Action.CONTINUE, slave.max_offset, case)
    return CutPlan(Action.TRUNCATE, point, case)
