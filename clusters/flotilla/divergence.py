"""What a slave does with its log before it copies: the six relative positions of spec 7.8.

A case is named by where the slave's first and last byte lie: 1 below the master's log, 2 inside,
3 above it.

    1-1       long away, or blank: forget the log and copy from the master's first byte
    1-2 2-2   plain lag: go on, cutting first if the logs parted
    1-3 2-3   an old master's tail, or a fork: cut at the last point that both share
    3-3       the master lost data and was elected all the same: halt; a person must decide

Where no epoch is shared, nothing is: the slave cuts to its first byte if both logs begin there,
else it starts anew. The original retries for ever.
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

    def place(self, offset: int) -> int:
        """1 below, 2 inside (ends included), 3 above."""
        if offset < self.min_offset:
            return 1
        return 2 if offset <= self.max_offset else 3


class Action(Enum):
    CONTINUE = "continue"
    TRUNCATE = "truncate"
    RESET = "reset"
    HALT = "halt"


@dataclass(frozen=True)
class Plan:
    """What to do; copying begins at `point` afterwards."""

    action: Action
    point: int
    case: str


FindPoint = Callable[[EpochTable, int, EpochTable, int], int]


def plan(slave: LogShape, master: LogShape, find_point: FindPoint) -> Plan:
    blank = slave.min_offset == slave.max_offset
    if blank:
        action = Action.CONTINUE if slave.max_offset == master.min_offset else Action.RESET
        return Plan(action, master.min_offset, "1-1")
    if slave.max_offset <= master.min_offset:
        return Plan(Action.RESET, master.min_offset, "1-1")
    if slave.min_offset > master.max_offset:
        return Plan(Action.HALT, slave.max_offset, "3-3")
    case = f"{min(2, master.place(slave.min_offset))}-{master.place(slave.max_offset)}"
    point = find_point(slave.epochs, slave.max_offset, master.epochs, master.max_offset)
    if point < 0 and slave.min_offset == master.min_offset:
        point = slave.min_offset
    if point < max(slave.min_offset, master.min_offset):
        return Plan(Action.RESET, master.min_offset, case)
    if point >= slave.max_offset:
        return Plan(Action.CONTINUE, slave.max_offset, case)
    return Plan(Action.TRUNCATE, point, case)
