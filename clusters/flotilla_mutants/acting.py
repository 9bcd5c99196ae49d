"""Flaws of slaves that act as masters and escape special messages to other sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusters.flotilla.net.wire import Status
from clusters.flotilla.rules import RULES
from clusters.flotilla.special import progress

from .mutant import Mutant

TRIES = 4


def own_set_first(own: str, takes_sends: Mapping[str, bool]) -> Sequence[str]:
    return [own] if own in takes_sends else progress.sets_to_escape_to(own, takes_sends)


def drop_after_four(failures: int, until_success: bool) -> bool:
    return failures >= TRIES


def drop_after_ten(failures: int, strict: bool) -> bool:
    return failures >= progress.MAX_HALF_ESCAPES


def never_escaped(status: Status) -> bool:
    return False


MUTANTS = (
    Mutant(
        "escape-to-own-set",
        "a slave that acts as master sends special messages to its own set (apache/rocketmq#7923)",
        "ESCAPED_HOME",
        replace(RULES, sets_to_escape_to=own_set_first),
    ),
    Mutant(
        "escape-gives-up",
        "an acting master drops a message after four sends that failed (apache/rocketmq#7577)",
        "DELAY_LOST",
        replace(RULES, escape_drops=drop_after_four),
    ),
    Mutant(
        "escape-twice",
        "an acting master sends a message again that another set has taken (apache/rocketmq#7601)",
        "ESCAPED_TWICE",
        replace(RULES, is_escaped=never_escaped),
    ),
    Mutant(
        "half-dropped",
        "an acting master drops a half message after ten sends that failed, as RocketMQ does",
        "HALF_STUCK",
        replace(RULES, half_escape_drops=drop_after_ten),
    ),
    Mutant(
        "ck-put-into-own-log",
        "an acting master puts what a group is to be given again into its own log",
        "WROTE_AS_SLAVE",
        replace(RULES, retries_are_escaped=False),
    ),
)
