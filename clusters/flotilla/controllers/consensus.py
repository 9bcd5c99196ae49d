"""Two ways to come to an agreement over one state machine (spec 4.2, 4.3): what both have.

    dledger   the leader computes and logs events; it alone judges who is alive, by heartbeats that
              every controller takes; reads are answered from its memory while it surely leads
    jraft     requests are logged and computed everywhere; who is alive is agreed on as well; reads
              wait for Raft's read-index

A flavour is told what reaches this controller, and tells what came of it by `ModeContext.heard` and
`ModeContext.lost`, which look for a new master where one is needed. Both are for the leader only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..net.connection import refusal
from ..net.wire import Json, Op, Status
from ..raft.node import Indeterminate, NotLeader, TooLarge
from ..rules import Rules
from .controller_requests import DecisionContext
from .liveness import Heartbeat, Key, LocalLiveness
from .state_machine import ApplyResult, LeaderSettings, ReplicatedState


@dataclass(frozen=True)
class ModeContext:
    """The controller, as far as a flavour may know it."""

    rules: Rules
    terms: LeaderSettings
    write_timeout_s: float
    second_look_s: float
    liveness: LocalLiveness  # what this controller heard itself
    agreed: Callable[[], ReplicatedState]
    leads: Callable[[], bool]
    propose: Callable[[bytes], "asyncio.Future[Any]"]
    read: Callable[[], Awaitable[None]]
    not_leader: Callable[[], Json]
    heard: Callable[[Sequence[Key]], None]
    lost: Callable[[Sequence[Key], str], None]


class ConsensusMode(Protocol):
    def scene(self) -> DecisionContext:
        """How things stand now, on the leader."""
        ...

    async def submit(self, op: Op, fields: Json) -> Json:
        """The answer to a request."""
        ...

    async def replace(self, name: str, trigger: str) -> Json:
        """The controllers' own election, for a set whose master is gone."""
        ...

    def heard(self, heartbeat: Heartbeat, connection: int) -> None: ...

    def gone(self, key: Key, why: str) -> None:
        """A broker's process is gone for sure."""
        ...

    def look_for_late(self) -> None:
        """Whose heartbeats have stopped?"""
        ...

    def took(self, taken: ApplyResult) -> None:
        """The leader applied an entry, and it is news."""
        ...

    def complete(self, then: Callable[[], None]) -> None:
        """We lead, and what was committed before is applied. `then`: decisions can be made."""
        ...

    def deposed(self) -> None: ...


def recheck(
    ground: ModeContext, late: Callable[[], list[Key]], expire: Callable[[list[Key]], None]
) -> None:
    """After a pause of this process itself, heartbeats may wait unread: look twice."""
    suspects = late()

    def again() -> None:
        still = late()
        expire([key for key in suspects if key in still])

    if suspects:
        asyncio.get_running_loop().call_later(ground.second_look_s, again)


def reply_of(ground: ModeContext, outcome: "asyncio.Future[Any]") -> Json:
    """The reply that a proposal's end allows. What is not expected is raised."""
    match outcome.exception():
        case None:
            reply: Json = outcome.result()
            return reply
        case NotLeader():
            return ground.not_leader()
        case Indeterminate():
            return refusal(Status.SYSTEM_ERROR, "leadership was lost: the outcome is unknown")
        case TooLarge() as e:
            return refusal(Status.INVALID_REQUEST, str(e))
        case failure:
            raise failure
