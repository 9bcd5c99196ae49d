"""What the two ways to agree on the controllers' state have in common.

    dledger   the leader computes events and logs them. It alone decides which brokers are alive,
              by heartbeats that every controller receives. It answers reads from memory while it
              certainly leads.
    jraft     requests are logged, and every controller computes. Liveness is replicated, too. Reads
              wait for Raft's read index.

A mode is notified of what reaches this controller. It reports results by
`ControllerAccess.on_returned` and `on_lost`, which start an election where one is needed. Both are
for the leader only.
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
class ControllerAccess:
    """What a mode may use of its controller. `liveness`: by this controller's own connections."""

    rules: Rules
    settings: LeaderSettings
    write_timeout_s: float
    recheck_delay_s: float
    liveness: LocalLiveness
    state: Callable[[], ReplicatedState]
    leads: Callable[[], bool]
    propose: Callable[[bytes], "asyncio.Future[Any]"]
    read: Callable[[], Awaitable[None]]
    not_leader: Callable[[], Json]
    on_returned: Callable[[Sequence[Key]], None]
    on_lost: Callable[[Sequence[Key], str], None]


class ConsensusMode(Protocol):
    def context(self) -> DecisionContext:
        """Return what a decision of the leader sees now."""
        ...

    async def submit(self, op: Op, fields: Json) -> Json:
        """Return the answer to a request."""
        ...

    async def replace(self, name: str, trigger: str) -> Json:
        """Elect a master for a set whose master is gone."""
        ...

    def on_heartbeat(self, heartbeat: Heartbeat, connection: int) -> None: ...

    def on_gone(self, key: Key, why: str) -> None:
        """A broker's process certainly ended."""
        ...

    def check_heartbeats(self) -> None:
        """Look for brokers whose heartbeats have stopped."""
        ...

    def on_applied(self, result: ApplyResult) -> None:
        """The leader applied an entry that was not on its disk when it started."""
        ...

    def on_leading(self, then: Callable[[], None]) -> None:
        """This controller leads, and has applied what was committed before. Call `then` as soon as
        decisions can be made."""
        ...

    def on_deposed(self) -> None: ...


def recheck(
    controller: ControllerAccess,
    late: Callable[[], list[Key]],
    expire: Callable[[list[Key]], None],
) -> None:
    """Expire the brokers that are late now and still late after `recheck_delay_s`.

    After a pause of this process heartbeats may be waiting unread.
    """
    suspects = late()

    def again() -> None:
        still = late()
        expire([key for key in suspects if key in still])

    if suspects:
        asyncio.get_running_loop().call_later(controller.recheck_delay_s, again)


def reply_of(outcome: "asyncio.Future[Any]", not_leader: Callable[[], Json]) -> Any:
    """Return the result of a finished proposal, or the refusal that its failure allows.

    Raises what is not expected of a proposal.
    """
    match outcome.exception():
        case None:
            return outcome.result()
        case NotLeader():
            return not_leader()
        case Indeterminate():
            return refusal(Status.SYSTEM_ERROR, "leadership was lost: the outcome is unknown")
        case TooLarge() as e:
            return refusal(Status.INVALID_REQUEST, str(e))
        case failure:
            raise failure


def majority_timeout() -> Json:
    return refusal(Status.SYSTEM_ERROR, "no majority in time: the outcome is unknown")
