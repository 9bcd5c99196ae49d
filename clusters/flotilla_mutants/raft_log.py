"""Flaws of brokers that elect their master by votes (haMode raft-log)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from clusters.flotilla.net.wire import Status
from clusters.flotilla.raft import votes
from clusters.flotilla.raft.messages import VoteRequest
from clusters.flotilla.raft.votes import Vote, Voter
from clusters.flotilla.replication import quorum
from clusters.flotilla.replication.quorum import LogPosition, SendTimeouts
from clusters.flotilla.rules import RULES

from .mutant import Mutant


def vote_for_any_log(voter: Voter, request: VoteRequest) -> bool:
    shown = replace(request, last_term=voter.last_term, last_index=voter.last_index)
    return votes.may_grant_vote(voter, shown)


def vote_again(voter: Voter, request: VoteRequest) -> bool:
    return votes.may_grant_vote(replace(voter, voted_for=None), request)


def forget_term(vote: Vote) -> Vote:
    return Vote()


def open_first_epoch_only(elected_by_votes: bool, end: int) -> bool:
    return elected_by_votes and end == 0


def commit_any_term(matches: Sequence[int], term_at: Callable[[int], int | None], term: int) -> int:
    return sorted(matches, reverse=True)[len(matches) // 2]


def commit_by_connected(
    matches: Sequence[int], term_at: Callable[[int], int | None], term: int
) -> int:
    own, *others = matches
    return votes.commit_index([own, *(match for match in others if match)], term_at, term)


def refuse_when_late(
    sent: LogPosition,
    replicated: int,
    durable: int,
    waited_s: float,
    timeouts: SendTimeouts,
    over: bool,
) -> Status | None:
    status = quorum.outcome_of(sent, replicated, durable, waited_s, timeouts, over)
    return Status.IN_SYNC_REPLICAS_NOT_ENOUGH if status == Status.FLUSH_SLAVE_TIMEOUT else status


MUTANTS = (
    Mutant(
        "raft-log-any-log",
        "a broker votes for a candidate whose log ends before its own",
        "LEADER_LACKS_COMMITTED",
        replace(RULES, may_grant_vote=vote_for_any_log),
    ),
    Mutant(
        "raft-log-double-vote",
        "a broker votes for every candidate of a term",
        "ONE_LEADER",
        replace(RULES, may_grant_vote=vote_again),
        stops=True,
    ),
    Mutant(
        "raft-log-term-forgotten",
        "a broker that starts again knows no term but the last one of its log",
        "ONE_LEADER",
        replace(RULES, hard_state=forget_term),
        stops=True,
    ),
    Mutant(
        "raft-log-no-first-record",
        "a new master does not begin its term with a record",
        "NOT_RECOVERED",
        replace(RULES, opens_epoch=open_first_epoch_only),
    ),
    Mutant(
        "raft-log-commits-old-term",
        "a master commits records of earlier terms by counting copies",
        "CONFIRM_WENT_BACK",
        replace(RULES, commit_index=commit_any_term),
    ),
    Mutant(
        "raft-log-majority-of-connected",
        "a majority of the connected brokers commits",
        "SET_LACKS_ACKED",
        replace(RULES, commit_index=commit_by_connected),
    ),
    Mutant(
        "raft-log-timeout-is-refusal",
        "a send that waited too long is answered as if it were not in the log, as by DLedger",
        "PHANTOM_REFUSED",
        replace(RULES, outcome_of=refuse_when_late),
    ),
)
