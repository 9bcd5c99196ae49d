"""The effects that the core asks its driver to carry out, and the names of its states.

The driver carries out the `RaftEffects` of one `take_effects` in this order:

    1. write to disk and sync: `install`, if there is one, as the snapshot; then the log, rewritten
       behind `base` if there is one, else with the entries from `first` on replaced; and with it
       the hard state
    2. send `messages`
    3. restore `install` into the state machine, then apply `committed`, in order
    4. answer reads up to the round `readable`

Step 1 must be done before anything of a later `take_effects` is released.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

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


class LogChange(NamedTuple):
    """A change of the log. `first` 0: no entry changed. `base`: the whole log is rewritten."""

    first: int = 0
    entries: tuple[LogEntry, ...] = ()
    base: EntryId | None = None
    install: Snapshot | None = None
    members: Configuration | None = None  # if it changed


class RaftEffects(NamedTuple):
    """See above. Named tuples, since a node takes its effects after every message."""

    vote: Vote | None  # if it changed
    hard_state: Vote  # is written with every entry, changed or not
    log: LogChange
    messages: tuple[tuple[str, Message], ...]
    committed: tuple[tuple[int, LogEntry], ...]
    readable: int  # reads of rounds up to this one may be answered after `committed` is applied
    role: Role | None

    @property
    def needs_disk(self) -> bool:
        return self.vote is not None or self.log.first > 0 or self.log.base is not None

    def __bool__(self) -> bool:
        rest = self.messages or self.committed or self.readable or self.role or self.log.members
        return bool(self.needs_disk or rest)
