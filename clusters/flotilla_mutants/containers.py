"""Flaws of containers."""

from collections.abc import Sequence
from dataclasses import replace

from clusters.flotilla.config import Config
from clusters.flotilla.container.placement import InnerChanges, inner_refusal, store_parts
from clusters.flotilla.rules import RULES

from .mutant import Mutant


def refuse_identity_only(new: Config, present: Sequence[Config]) -> str:
    return inner_refusal(new, [each for each in present if store_parts(each) != store_parts(new)])


def without_added(changes: InnerChanges) -> InnerChanges:
    return replace(changes, added={})


def without_removed(changes: InnerChanges) -> InnerChanges:
    return replace(changes, removed=frozenset())


MUTANTS = (
    Mutant(
        "ghost-in-container",
        "a broker that does not start stays in its container's list (apache/rocketmq#5900)",
        "GHOST_BROKER",
        replace(RULES, failed_inner_is_taken_out=False),
    ),
    Mutant(
        "removed-still-registered",
        "a broker that was removed from its container goes on",
        "GHOST_BROKER",
        replace(RULES, removed_inner_is_stopped=False),
    ),
    Mutant(
        "shared-store-accepted",
        "a container accepts a broker with the store of another one",
        "STORE_SHARED",
        replace(RULES, inner_refusal=refuse_identity_only),
        stops=True,
    ),
    Mutant(
        "forgets-added",
        "a restarted container does not have the brokers that were added",
        "INNER_FORGOTTEN",
        replace(RULES, changes_to_store=without_added),
    ),
    Mutant(
        "removed-comes-back",
        "a restarted container has a broker again that was removed",
        "INNER_FORGOTTEN",
        replace(RULES, changes_to_store=without_removed),
    ),
)
