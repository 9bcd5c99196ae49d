"""Flaws of brokers in delivering special messages."""

from collections.abc import Sequence
from dataclasses import replace

from clusters.flotilla.net.wire import Status
from clusters.flotilla.rules import RULES
from clusters.flotilla.special.progress import MAX_TRIES, DelayProgress

from .mutant import Mutant

EARLY_MS = 1500


def due_before_its_time(due_ms: int, now_ms: int) -> bool:
    return due_ms - EARLY_MS <= now_ms


def note_the_next(put_ms: int, confirmed_ms: int, next_ms: int, strict: bool) -> int:
    return next_ms


def resume_as_noted(progress: DelayProgress, is_in_log: bool) -> DelayProgress:
    return progress


def drop_after_three(failures: int, until_success: bool) -> bool:
    return failures >= MAX_TRIES


def decided_all_the_same() -> Status:
    return Status.SUCCESS


def puts_always(commit: bool) -> bool:
    return True


def past_all(halves: Sequence[int], end: int) -> int:
    return end


def to_its_own_topic(topic: str) -> str:
    return topic


MUTANTS = (
    Mutant(
        "delivered-early",
        "a delayed message is delivered before its time",
        "DELIVERED_EARLY",
        replace(RULES, is_due=due_before_its_time),
    ),
    Mutant(
        "progress-first",
        "the next delayed message is noted as delivered before it is put",
        "DELAY_LOST",
        replace(RULES, noted_until=note_the_next),
    ),
    Mutant(
        "progress-ahead",
        "a new master goes on from a progress that counts what its log lacks",
        "DELAY_LOST",
        replace(RULES, resumed=resume_as_noted),
    ),
    Mutant(
        "drop-after-three",
        "a delayed message is dropped when it could not be put three times",
        "DELAY_LOST",
        replace(RULES, drops=drop_after_three),
    ),
    Mutant(
        "op-before-final",
        "a commit is recorded and answered before the final message is put",
        "COMMIT_LOST",
        replace(RULES, final_first=False),
    ),
    Mutant(
        "end-after-discard",
        "a commit of a discarded half message is answered with success (apache/rocketmq#8158)",
        "COMMIT_LOST",
        replace(RULES, status_of_closed=decided_all_the_same),
    ),
    Mutant(
        "rollback-commits",
        "a decision puts the final message, whatever it says",
        "ROLLED_BACK_SEEN",
        replace(RULES, puts_final=puts_always),
    ),
    Mutant(
        "open-forgotten",
        "a new master reads no half message that was open when progress was noted last",
        "HALF_STUCK",
        replace(RULES, first_open=past_all),
    ),
    Mutant(
        "discarded-to-topic",
        "a half message that was never decided ends in the topic that it was meant for",
        "HALF_SEEN",
        replace(RULES, discarded_to=to_its_own_topic),
    ),
)
