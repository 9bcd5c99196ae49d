"""Flaws of sets that are converted to another mode (convertible = true)."""

from collections.abc import Sequence
from dataclasses import replace

from clusters.flotilla.rules import RULES

from .mutant import Mutant


def switch_when_prepared(step: str) -> bool:
    return True


def any_logs(ends: Sequence[int | None], end: int) -> bool:
    return True


def any_generation(own: int, other: int) -> bool:
    return True


def configured_generation(recorded: int) -> int:
    return 0


def lead_anyway(has_promised: bool) -> bool:
    return True


def own_epochs(agreed: int, brought: int) -> int:
    return agreed


def convert_anyway(prepared: bool, equal: bool) -> bool:
    return True


def sequence_again(last: int, before: int) -> int:
    return last


MUTANTS = (
    Mutant(
        "conversion-slave-first",
        "a slave changes its mode when it has promised to, before its master does",
        "CONVERTED_EARLY",
        replace(RULES, switches_at=switch_when_prepared),
    ),
    Mutant(
        "conversion-unequal-logs",
        "a set is converted although a slave lacks messages",
        "CONVERTED_UNEQUAL",
        replace(RULES, logs_are_equal=any_logs),
    ),
    Mutant(
        "conversion-generation-ignored",
        "brokers work with brokers of their set that are in another mode",
        "GENERATIONS_MIXED",
        replace(RULES, is_of_generation=any_generation),
        stops=True,
    ),
    Mutant(
        "conversion-old-mode-restarts",
        "a broker that starts again is in the mode of its configuration",
        "GENERATION_WENT_BACK",
        replace(RULES, generation_at_start=configured_generation),
    ),
    Mutant(
        "conversion-promise-broken",
        "a slave that has promised to leave a mode is elected in it",
        "PROMISE_BROKEN",
        replace(RULES, may_lead=lead_anyway),
        stops=True,
    ),
    Mutant(
        "conversion-epochs-fall",
        "controllers count epochs from their own last one when a set comes back to them",
        "NODE_CRASHED",
        replace(RULES, last_epoch=own_epochs),
        stops=True,
    ),
    Mutant(
        "conversion-sequence-again",
        "SequenceIDs of a pair that returns to ZooKeeper mode follow the last one there",
        "NODE_CRASHED",
        replace(RULES, last_sequence=sequence_again),
        stops=True,
    ),
    Mutant(
        "conversion-master-goes-on",
        "a master that was prepared, and serves sends again since, converts its set",
        "CONVERTED_UNEQUAL",
        replace(RULES, may_convert=convert_anyway),
    ),
)
