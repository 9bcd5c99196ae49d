"""The configuration, and its changes, one server at a time (thesis, chapter 4).

A configuration is an entry of the log. A member uses the latest one in its log, committed or not,
and returns to the one before if the entry is cut off. It lists voters, whose majority elects and
commits, and learners, which receive everything and are not counted.

    add       the new member is a learner first (4.2.1). The leader makes it a voter by a second
              entry when it holds all committed entries, so it never delays a majority
    remove    the configuration without the member. A leader that removed itself goes on, not
              counting itself, until that is committed, and steps down then (4.2.2)

Two successive configurations differ by one voter, so their majorities overlap (4.1). That holds
only if they *are* successive: a change waits until the one before is committed, and until the
leader has committed an entry of its own term. Otherwise two leaders might change the same
configuration without knowing of each other (a flaw that Ongaro found in the thesis later: raft-dev,
10 July 2015).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


class ChangeRefused(Exception):
    """The change is invalid, for the reason in the text. It has no effect."""


class ChangeMustWait(Exception):
    """Another change is in progress, or the leader is too new. It has no effect."""


@dataclass(frozen=True)
class Configuration:
    """Members and their addresses ("ip:port"). Empty: this member waits until a leader adds it."""

    voters: Mapping[str, str] = field(default_factory=dict)
    learners: Mapping[str, str] = field(default_factory=dict)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def addresses(self) -> dict[str, str]:
        return {**self.voters, **self.learners}

    def others(self, me: str) -> tuple[str, ...]:
        return tuple(sorted(member for member in self.addresses if member != me))

    def pack(self) -> bytes:
        fields = {"voters": dict(self.voters), "learners": dict(self.learners)}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "Configuration":
        """Raises KeyError, TypeError or ValueError if `data` is not a configuration."""
        fields = json.loads(data)
        return cls(dict(fields["voters"]), dict(fields["learners"]))


@dataclass(frozen=True)
class Add:
    member: str
    address: str


@dataclass(frozen=True)
class Remove:
    member: str


Change = Add | Remove


def changed(now: Configuration, change: Change) -> Configuration:
    """Return the configuration after the change; the same one if there is nothing to do.

    Raises ChangeRefused if the change is invalid.
    """
    match change:
        case Add(member, address):
            known = now.addresses.get(member)
            if known not in (None, address):
                raise ChangeRefused(f"{member} is a member at {known}; remove it first")
            if known is None and address in now.addresses.values():
                raise ChangeRefused(f"another member is at {address} already")
            return now if known else Configuration(now.voters, {**now.learners, member: address})
        case Remove(member):
            if set(now.voters) == {member}:
                raise ChangeRefused(f"{member} is the last voter: without it no majority exists")
            return Configuration(_without(now.voters, member), _without(now.learners, member))


def promoted(now: Configuration, learner: str) -> Configuration:
    voters = dict(sorted({**now.voters, learner: now.learners[learner]}.items()))
    return Configuration(voters, _without(now.learners, learner))


def may_change_members(commit: int, changed_at: int, first_of_own_term: int) -> bool:
    """Decide whether the members may change: the last change, and an entry of the leader's own
    term, are committed (see above)."""
    return commit >= changed_at and commit >= first_of_own_term


def _without(members: Mapping[str, str], member: str) -> dict[str, str]:
    return {other: address for other, address in members.items() if other != member}
