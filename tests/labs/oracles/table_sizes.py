"""How much of an exhaustive table a test run tries.

Tests that compare a checker with definitions on tables of thousands of small histories try a tenth
of each; with SEATRIAL_EXHAUSTIVE set, as in the nightly job, they try all of it.
"""

import os

EXHAUSTIVE = bool(os.environ.get("SEATRIAL_EXHAUSTIVE"))


def share(count: int) -> int:
    """Return `count` in an exhaustive run, a tenth of it otherwise."""
    return count if EXHAUSTIVE else count // 10


def at_least(count: int) -> int:
    """Return how often a class must occur in a share of a table: small tables vary more."""
    return count if EXHAUSTIVE else count // 40
