"""The six positions of a slave's log against its master's, each with its outcome (spec 7.8)."""

import pytest

from clusters.flotilla.divergence import Action, LogShape, Plan, plan
from clusters.flotilla.epochs import EpochTable, find_consistent_point


def shape(low: int, high: int, *rows: tuple[int, int]) -> LogShape:
    return LogShape(low, high, EpochTable(rows))


MASTER = shape(1000, 3000, (2, 900), (3, 2000))


@pytest.mark.parametrize(
    ("slave", "expected"),
    [
        (shape(0, 0), Plan(Action.RESET, 1000, "1-1")),
        (shape(0, 800, (1, 0)), Plan(Action.RESET, 1000, "1-1")),
        (shape(0, 1000, (1, 0), (2, 900)), Plan(Action.RESET, 1000, "1-1")),
        (shape(0, 1500, (1, 0), (2, 900)), Plan(Action.CONTINUE, 1500, "1-2")),
        (shape(1000, 2500, (2, 900), (3, 2000)), Plan(Action.CONTINUE, 2500, "2-2")),
        (shape(1000, 3000, (2, 900), (3, 2000)), Plan(Action.CONTINUE, 3000, "2-2")),
        (shape(0, 2500, (1, 0), (2, 900)), Plan(Action.TRUNCATE, 2000, "1-2")),
        (shape(0, 4000, (1, 0), (2, 900), (3, 2000)), Plan(Action.TRUNCATE, 3000, "1-3")),
        (shape(1500, 4000, (2, 900)), Plan(Action.TRUNCATE, 2000, "2-3")),
        (shape(3500, 4000, (3, 2000)), Plan(Action.HALT, 4000, "3-3")),
        # nothing is shared, or what is shared the master no longer has
        (shape(1000, 2500, (9, 1000)), Plan(Action.TRUNCATE, 1000, "2-2")),
        (shape(0, 2500, (9, 0)), Plan(Action.RESET, 1000, "1-2")),
        (shape(1500, 2500, (9, 1500)), Plan(Action.RESET, 1000, "2-2")),
    ],
)
def test_each_case_has_its_outcome(slave: LogShape, expected: Plan) -> None:
    """Never "retry for ever": every position ends in one of four actions."""
    assert plan(slave, MASTER, find_consistent_point) == expected


def test_a_blank_slave_of_a_young_master_just_copies() -> None:
    """Both begin at 0: there is nothing to forget."""
    young = shape(0, 500, (1, 0))
    assert plan(shape(0, 0), young, find_consistent_point) == Plan(Action.CONTINUE, 0, "1-1")


def test_a_wiped_master_cuts_its_slaves_to_nothing() -> None:
    """An empty log was elected (an unclean election): the slaves follow it, and say so."""
    wiped = shape(0, 0, (5, 0))
    slave = shape(0, 900, (4, 0))
    assert plan(slave, wiped, find_consistent_point) == Plan(Action.TRUNCATE, 0, "2-3")
