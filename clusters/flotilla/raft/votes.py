"""Raft's decisions, pure, fields of `rules.Rules`: may I vote, what to keep, what is committed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .messages import LogEntry, VoteRequest


@dataclass(frozen=True)
class Vote:
    """The hard state: the term, and for whom this node voted in it."""

    term: int = 0
    voted_for: str | None = None


@dataclass(frozen=True)
class Voter:
    """What a voter knows when it is asked."""

    term: int
    voted_for: str | None
    last_term: int
    last_index: int
    hears_leader: bool


def may_grant_vote(voter: Voter, request: VoteRequest) -> bool:
    """One vote a term (Raft 5.2), for a log at least as good as mine (5.4.1).

    Never while a leader is heard (thesis 4.2.3). A pre-vote is a promise about a later term and
    binds nobody, so it does not ask for whom this term's vote went (thesis 9.6).
    """
    if voter.hears_leader:
        return False
    free = request.term > voter.term or (
        not request.pre and request.term == voter.term and voter.voted_for in (None, request.source)
    )
    good = (request.last_term, request.last_index) >= (voter.last_term, voter.last_index)
    return free and good


def hard_state(vote: Vote) -> Vote:
    """What must be on disk before anybody hears of it: all of it (Raft 5.1, figure 2)."""
    return vote


def committed_entry(index: int, entry: LogEntry) -> LogEntry:
    """What is taken for committed at an index: the entry that the log has there (Raft 5.4.3)."""
    return entry


def commit_index(matches: Sequence[int], term_at: Callable[[int], int | None], term: int) -> int:
    """The last entry of the leader's own term that a majority holds; 0 when there is none.

    Entries of earlier terms are never committed by counting copies (Raft 5.4.2, figure 8).
    """
    on_majority = sorted(matches, reverse=True)[len(matches) // 2]
    return on_majority if term_at(on_majority) == term else 0


def confirmed_round(rounds: Sequence[int]) -> int:
    """The latest round of reads that a majority has answered, the leader among it (thesis 6.4)."""
    return sorted(rounds, reverse=True)[len(rounds) // 2]
