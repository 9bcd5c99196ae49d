"""Flaws of brokers in giving messages to consumers of a group, for a limited time."""

from collections.abc import Sequence
from dataclasses import replace

from clusters.flotilla.rules import RULES
from clusters.flotilla.special.pop_records import MAX_POPPED

from .mutant import Mutant


def move_with_the_pop(appended: int, confirmed: int, strict: bool) -> int:
    return appended


def next_source(sources: Sequence[int], number: int) -> int:
    return sources[min(number + 1, len(sources) - 1)]


def revive_only_new(due_ms: int, began_ms: int) -> bool:
    return due_ms > began_ms


def beside_it(number: int) -> int:
    return number + MAX_POPPED


MUTANTS = (
    Mutant(
        "revive-next-message",
        "instead of a message whose time is over, the next one comes again (apache/rocketmq#7724)",
        "POP_LOST",
        replace(RULES, revived_source=next_source),
    ),
    Mutant(
        "revive-skips-old",
        "a new master revives nothing that was due before its reign (apache/rocketmq#7914)",
        "POP_LOST",
        replace(RULES, revives=revive_only_new),
    ),
    Mutant(
        "offset-before-ck",
        "a group's offset moves on before the set has the checkpoint of what it was given",
        "POP_LOST",
        replace(RULES, group_moves_to=move_with_the_pop),
    ),
    Mutant(
        "hide-acks-first",
        "a message that is hidden for longer is acknowledged before its new checkpoint is written",
        "POP_LOST",
        replace(RULES, hides_first=False),
    ),
    Mutant(
        "ack-ignored",
        "an acknowledgement of a message that a group was given has no effect",
        "POP_ACKED_AGAIN",
        replace(RULES, acked_number=beside_it),
    ),
    Mutant(
        "ack-in-memory-only",
        "an acknowledgement of a message that a group was given is answered and never written",
        "POP_ACKED_AGAIN",
        replace(RULES, ack_is_stored=False),
    ),
)
