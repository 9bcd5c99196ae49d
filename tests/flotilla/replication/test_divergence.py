"""The six positions of a slave's log against its master's, each with its outcome ("Truncation" in
docs/flotilla-design.md)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.flotilla.replication.divergence import (
    Action,
    CutPlan,
    LogCase,
    LogShape,
    log_case,
    plan_cut,
)
from clusters.flotilla.replication.epochs import EpochTable, append_epoch, find_consistent_point


def shape(low: int, high: int, *rows: tuple[int, int]) -> LogShape:
    return LogShape(low, high, EpochTable(rows))


def planned(slave: LogShape, master: LogShape) -> CutPlan:
    return plan_cut(slave, master, master.min_offset, find_consistent_point)


MASTER = shape(1000, 3000, (2, 900), (3, 2000))


@pytest.mark.parametrize(
    ("slave", "action", "point", "case"),
    [
        (shape(0, 0), Action.RESET, 1000, "1-1"),
        (shape(0, 800, (1, 0)), Action.RESET, 1000, "1-1"),
        (shape(0, 1000, (1, 0), (2, 900)), Action.RESET, 1000, "1-1"),
        (shape(0, 1500, (1, 0), (2, 900)), Action.CONTINUE, 1500, "1-2"),
        (shape(1000, 2500, (2, 900), (3, 2000)), Action.CONTINUE, 2500, "2-2"),
        (shape(1000, 3000, (2, 900), (3, 2000)), Action.CONTINUE, 3000, "2-2"),
        (shape(0, 2500, (1, 0), (2, 900)), Action.TRUNCATE, 2000, "1-2"),
        (shape(0, 4000, (1, 0), (2, 900), (3, 2000)), Action.TRUNCATE, 3000, "1-3"),
        (shape(1500, 4000, (2, 900)), Action.TRUNCATE, 2000, "2-3"),
        (shape(3500, 4000, (3, 2000)), Action.HALT, 4000, "3-3"),
        # epoch 2 began at 900, which a log that lost its oldest segments no longer knows
        (shape(1500, 2500, (2, 1500), (3, 2000)), Action.CONTINUE, 2500, "2-2"),
        (shape(500, 2500, (1, 500), (2, 900), (3, 2000)), Action.CONTINUE, 2500, "1-2"),
        # nothing is shared, or what is shared the master no longer has
        (shape(1000, 2500, (9, 1000)), Action.TRUNCATE, 1000, "2-2"),
        (shape(0, 2500, (9, 0)), Action.RESET, 1000, "1-2"),
        (shape(1500, 2500, (9, 1500)), Action.RESET, 1000, "2-2"),
    ],
)
def test_each_case_has_its_outcome(slave: LogShape, action: Action, point: int, case: str) -> None:
    """Every position ends in one of four actions, never in endless retries."""
    assert planned(slave, MASTER) == CutPlan(action, point, LogCase(case))


def test_a_blank_slave_of_a_young_master_just_copies() -> None:
    """Both logs begin at 0: there is nothing to remove."""
    young = shape(0, 500, (1, 0))
    assert planned(shape(0, 0), young) == CutPlan(Action.CONTINUE, 0, LogCase.BELOW)


def test_a_wiped_master_cuts_its_slaves_to_nothing() -> None:
    """An empty log was elected (an unclean election): the slaves follow it, and report it."""
    wiped = shape(0, 0, (5, 0))
    slave = shape(0, 900, (4, 0))
    assert planned(slave, wiped) == CutPlan(Action.TRUNCATE, 0, LogCase.AHEAD)


def test_a_slave_that_begins_anew_begins_where_it_was_told() -> None:
    """Also a slave whose log lies below the master's; one that is there already just copies."""
    assert plan_cut(shape(0, 800, (1, 0)), MASTER, 2500, find_consistent_point).point == 2500
    blank = plan_cut(shape(2500, 2500), MASTER, 2500, find_consistent_point)
    assert blank == CutPlan(Action.CONTINUE, 2500, LogCase.BELOW)


offsets = st.integers(0, 12)


@given(offsets, offsets, offsets, offsets)
def test_the_case_is_where_first_and_last_byte_lie(
    low: int, size: int, master_low: int, master_size: int
) -> None:
    """Against the design page's table, read literally; every pair of logs has exactly one case."""
    slave, master = shape(low, low + size), shape(master_low, master_low + master_size)
    case = log_case(slave, master)
    if size == 0 or slave.max_offset <= master.min_offset:
        assert case is LogCase.BELOW
    elif slave.min_offset > master.max_offset:
        assert case is LogCase.ABOVE
    else:
        assert (case.value[0] == "1") == (slave.min_offset < master.min_offset)
        assert (case.value[2] == "3") == (slave.max_offset > master.max_offset)


@st.composite
def replicas(draw: st.DrawFn) -> tuple[list[int], int, list[int], int]:
    """Two logs as the epoch of each byte, equal up to a point, and how much of each is deleted."""
    front = draw(st.lists(st.integers(1, 3), max_size=4))
    log = [epoch for epoch, size in enumerate(front, start=1) for _ in range(size)]
    mine = log + [100] * draw(st.integers(0, 4))
    yours = log + [200] * draw(st.integers(0, 4))
    lost = st.integers(0, 6)
    return mine, min(draw(lost), len(mine)), yours, min(draw(lost), len(yours))


def kept(log: list[int], low: int) -> LogShape:
    """Return the table as recovery finds it after `low` bytes were deleted: no epoch begins before
    the log."""
    table = EpochTable()
    for offset in range(low, len(log)):
        table = append_epoch(table, log[offset], offset)
    return LogShape(low, len(log), table)


@given(replicas())
def test_what_is_kept_is_the_masters(logs: tuple[list[int], int, list[int], int]) -> None:
    """Whatever retention deleted on either side, the slave keeps the common part, and no more."""
    mine, my_low, yours, your_low = logs
    slave, master = kept(mine, my_low), kept(yours, your_low)
    found = planned(slave, master)
    if found.action in (Action.CONTINUE, Action.TRUNCATE) and not slave.is_empty:
        assert mine[my_low : found.point] == yours[my_low : found.point]
        past = found.point < min(len(mine), len(yours))
        assert not past or mine[found.point] != yours[found.point]
    if found.action is Action.RESET and not slave.is_empty:
        low = max(my_low, your_low)
        assert low >= min(len(mine), len(yours)) or mine[low] != yours[low]
