"""The decisions on which a conversion's safety depends. Pure."""

from collections.abc import Sequence

PREPARE, COMMIT = "prepare", "commit"


def logs_are_equal(ends: Sequence[int | None], end: int) -> bool:
    """Decide whether all copies of a set are equal, by where they end and where the master's log
    ends: only then any of them may lead in any mode. None: a broker that is not connected."""
    return all(each == end for each in ends)


def is_of_generation(own: int, other: int) -> bool:
    """Decide whether a broker works with another one, or a request of it, by their generations."""
    return own == other


def switches_at(step: str) -> bool:
    """Decide whether a slave changes its mode at this step: never before its master."""
    return step == COMMIT


def may_convert(prepared: bool, equal: bool) -> bool:
    """Decide whether a master converts its set: while it holds sends for this attempt, and its
    copies are equal."""
    return prepared and equal


def may_lead(has_promised: bool) -> bool:
    """Decide whether a broker may become master, or vote for one, in its present generation: not
    after it has promised to leave it."""
    return not has_promised


def generation_at_start(recorded: int) -> int:
    """Return the generation in which a broker starts: the last one on its disk."""
    return recorded


def last_epoch(agreed: int, brought: int) -> int:
    """Return the number that the controllers' next epoch of a set follows, by the last one that
    they know, and the last one of the mode from which the set comes."""
    return max(agreed, brought)
