"""Raft's decisions: votes, what a node writes to disk, and what is committed. Pure; fields of
`Rules`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .messages import LogEntry, VoteRequest


@dataclass(frozen=True)
class Vote:
    """The hard state: the term, and the candidate that this node voted for in it."""

    term: int = 0
    voted_for: str | None = None


@dataclass(frozen=True)
class Voter:
    """What a voter knows when a request arrives."""

    term: int
    voted_for: str | None
    last_term: int
    last_index: int
    hears_leader: bool


def may_grant_vote(voter: Voter, request: VoteRequest) -> bool:
    """Decide whether to grant a vote: one a term (Raft 5.2), to a log at least as good (5.4.1).

    A voter that hears a leader refuses (thesis 4.2.3). A pre-vote is about a later term and commits
    the voter to nothing, so the vote of the present term does not matter (thesis 9.6).
    """
    if voter.hears_leader:
        return False
    free = request.term > voter.term or (
        not request.pre and request.term == voter.term and voter.voted_for in (None, request.source)
    )
    good = (request.last_term, request.last_index) >= (voter.last_term, voter.last_index)
    return free and good


def hard_state(vote: Vote) -> Vote:
    """Return what is written to disk before any message is sent: all of it (Raft 5.1, figure 2).

    The identity is a rule of its own, so that a variant can replace it.
    """
    return vote


def committed_entry(index: int, entry: LogEntry) -> LogEntry:
    """Return the entry that is applied at a committed index: the log's (Raft 5.4.3).

    The identity is a rule of its own, so that a variant can replace it, and a checker observe it.
    """
    return entry


def commit_index(matches: Sequence[int], term_at: Callable[[int], int | None], term: int) -> int:
    """Return the last index of the leader's own term that a majority holds; 0 if there is none.

    Entries of earlier terms are never committed by counting copies (Raft 5.4.2, figure 8).
    """
    on_majority = sorted(matches, reverse=True)[len(matches) // 2]
    return on_majority if term_at(on_majority) == term else 0


def confirmed_round(rounds: Sequence[int]) -> int:
    """Return the latest round of reads that a majority, leader included, has returned (thesis
    6.4)."""
    return sorted(rounds, reverse=True)[len(rounds) // 2]
