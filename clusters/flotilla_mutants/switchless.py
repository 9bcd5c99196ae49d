"""Flaws of the mode without controllers, and of slaves that serve for their master."""

from collections.abc import Sequence
from dataclasses import replace

from clusters.flotilla.broker import acting
from clusters.flotilla.broker.catalog import Catalog
from clusters.flotilla.net.wire import Json
from clusters.flotilla.replication import epochs
from clusters.flotilla.rules import RULES

from .mutant import Mutant


def epoch_of_the_log(recorded: int, registered: int) -> int:
    return max(recorded, registered, 1)


def take_nothing(catalog: Catalog, replies: Sequence[Json]) -> None:
    return None


def take_any_catalog(catalog: Catalog, replies: Sequence[Json]) -> None:
    acting.take_back(catalog, replies)
    for reply in replies[:1]:
        catalog.adopt(reply)


MUTANTS = (
    Mutant(
        "epoch-again",
        "a master without controllers begins the same epoch at each start",
        "ONE_MASTER",
        replace(RULES, next_epoch=epoch_of_the_log),
    ),
    Mutant(
        "acted-in-memory",
        "a slave that serves for its master answers commits before they are on its disk",
        "GROUP_WENT_BACK",
        replace(RULES, acted_is_durable=False),
    ),
    Mutant(
        "slave-keeps-tail",
        "a slave without controllers cuts nothing, though its master has lost the end of the log",
        "UNACCEPTABLE",
        replace(RULES, find_consistent_point=epochs.keep_everything),
    ),
    Mutant(
        "acted-forgotten",
        "a master that returns forgets what a slave committed for it (apache/rocketmq#1094)",
        "GROUP_WENT_BACK",
        replace(RULES, take_back=take_nothing),
    ),
    Mutant(
        "older-catalog-taken",
        "a master that returns takes a slave's metadata, though its own is newer",
        "METADATA_LOST",
        replace(RULES, take_back=take_any_catalog),
    ),
)
