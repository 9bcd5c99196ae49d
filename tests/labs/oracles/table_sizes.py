"""How much of an exhaustive table, or of many random examples, a test run tries.

Tests that compare a checker with definitions on tables of thousands of small histories try a tenth
of each. Tests of a whole disk, log or network draw a third of their examples, which is enough to
find a planted mistake. With SEATRIAL_EXHAUSTIVE set, as in the nightly job, both try all.
"""

import os

EXHAUSTIVE = bool(os.environ.get("SEATRIAL_EXHAUSTIVE"))


def share(count: int) -> int:
    """Return `count` in an exhaustive run, a tenth of it otherwise."""
    return count if EXHAUSTIVE else count // 10


def examples(count: int) -> int:
    """Return `count` in an exhaustive run, a third of it otherwise."""
    return count if EXHAUSTIVE else count // 3


def at_least(count: int) -> int:
    """Return how often a class must occur in a share of a table: small tables vary more."""
    return count if EXHAUSTIVE else count // 40
