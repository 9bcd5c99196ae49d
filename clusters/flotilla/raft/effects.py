"""What the core asks its driver to do, and the words for who it is.

The driver carries out the `RaftEffects` of one `take` in this order:

    1. to disk, synced: `install`, when there is one, as the snapshot; then the log, written anew
       behind `base` when there is one, else the entries from `first` on for what was there; the
       hard state with it
    2. send `messages`
    3. `install` into the state machine, then apply `committed`, in order
    4. answer reads up to the round `readable`

Nothing of a later `take` may be released before step 1 of an earlier one is done.
"""

from dataclasses import dataclass
from enum import Enum

from .log import EntryId
from .membership import Configuration
from .messages import LogEntry, Message
from .snapshot import Snapshot
from .votes import Vote


class RaftState(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True)
class Role:
    state: RaftState
    term: int
    leader: str | None


@dataclass(frozen=True)
class LogChange:
    """What changed of the log. `first` 0: no entry. `base`: all of it is written anew."""

    first: int = 0
    entries: tuple[LogEntry, ...] = ()
    base: EntryId | None = None
    install: Snapshot | None = None
    members: Configuration | None = None  # the present ones, if they changed


@dataclass(frozen=True)
class RaftEffects:
    vote: Vote | None  # if it changed
    hard_state: Vote  # what a write to disk holds besides entries, changed or not
    log: LogChange
    messages: tuple[tuple[str, Message], ...]
    committed: tuple[tuple[int, LogEntry], ...]
    readable: int  # reads of rounds up to this one may be answered once all this is applied
    role: Role | None

    @property
    def to_disk(self) -> bool:
        return self.vote is not None or self.log.first > 0 or self.log.base is not None

    def __bool__(self) -> bool:
        rest = self.messages or self.committed or self.readable or self.role or self.log.members
        return bool(self.to_disk or rest)
