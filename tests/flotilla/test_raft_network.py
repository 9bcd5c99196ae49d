"""Raft's four safety properties (figure 3) in a hostile network, many seeds.

Members run in memory. Messages are dropped, doubled and delivered in any order; members crash
before or after their disk has what they promised, and come back with what it has. After each step:

    election safety        at most one leader in a term
    log matching           the same index and term means the same log up to there
    leader completeness    a leader's log holds everything committed before its term
    state machine safety   nobody applies something else at the same index
"""

import random
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import pytest

from clusters.flotilla.raft.core import Effects, Raft, State, Timing, Vote
from clusters.flotilla.raft.messages import Entry, Message
from clusters.flotilla.rules import RULES, Rules

VIOLATION = r"leader|logs do not match|applies another"
TIMING = Timing(heartbeat_s=1, election_s=4)


@dataclass
class Disk:
    vote: Vote = field(default_factory=Vote)
    entries: list[Entry] = field(default_factory=list)

    def write(self, effects: Effects) -> None:
        if effects.vote:
            self.vote = effects.vote
        if effects.first:
            self.entries[effects.first - 1 :] = effects.entries


class World:
    """A few members, the packets between them, and what must hold."""

    def __init__(self, seed: int, size: int, rules: Rules, *, loses_votes: bool = False) -> None:
        self.luck = random.Random(seed)
        self.names = tuple("abcde"[:size])
        self.rules = rules
        self.loses_votes = loses_votes
        self.now = 0.0
        self.calm = False  # no doubled messages and no crashes any more
        self.disks = {name: Disk() for name in self.names}
        self.members: dict[str, Raft | None] = {}
        self.packets: list[tuple[str, Message]] = []
        self.leaders: dict[int, str] = {}
        self.applied: dict[int, Entry] = {}
        self.applied_term: dict[int, int] = {}
        self.proposed = 0
        self.loss = self.luck.choice((0.0, 0.05, 0.3))
        for name in self.names:
            self.boot(name)

    def boot(self, name: str) -> None:
        disk = self.disks[name]
        if self.loses_votes:
            disk.vote = replace(disk.vote, voted_for=None)
        self.members[name] = Raft(
            name,
            self.names,
            TIMING,
            self.luck.uniform,
            self.rules,
            self.now,
            vote=disk.vote,
            entries=disk.entries,
        )

    def settle(self, name: str, *, crash: str = "") -> None:
        """Carry out what a member asks for, or crash `before` or `after` the write."""
        member = self.members[name]
        assert member
        effects = member.take()
        if crash != "before":
            self.disks[name].write(effects)
        if crash:
            self.members[name] = None
            return
        self.packets += [p for p in effects.messages if self.luck.random() >= self.loss]
        for index, entry in effects.committed:
            known = self.applied.setdefault(index, entry)
            assert known == entry, f"{name} applies another entry at {index}"
            self.applied_term.setdefault(index, member.term)

    def turn(self) -> None:
        """One random thing happens."""
        kind = self.luck.choices(
            ("deliver", "time", "propose", "crash", "boot"), (60, 12, 12, 1, 2)
        )[0]
        name = self.luck.choice(self.names)
        member = self.members[name]
        if kind == "boot" and member is None:
            self.boot(name)
        elif kind == "deliver" and self.packets:
            self.deliver()
        elif kind == "time":
            self.now += self.luck.choice((0.01, 0.5, 2.0))
            for other, awake in self.members.items():
                if awake and awake.wake_at <= self.now:
                    awake.tick(self.now)
                    self.settle(other)
        elif kind == "propose" and member:
            self.proposed += 1
            member.propose(self.now, b"%d" % self.proposed)
            self.settle(name)
        elif kind == "crash" and member:
            member.tick(self.now)
            self.settle(name, crash=self.luck.choice(("before", "after")))
        self.check()

    def deliver(self) -> None:
        at = self.luck.randrange(len(self.packets))
        name, message = self.packets[at]
        if self.calm or self.luck.random() > 0.1:
            self.packets[at] = self.packets[-1]
            self.packets.pop()
        member = self.members[name]
        if member:
            member.step(self.now, message)
            spared = self.calm or self.luck.random() > 0.005
            self.settle(name, crash="" if spared else self.luck.choice(("before", "after")))
        del self.packets[:-400]

    def check(self) -> None:
        alive = [member for member in self.members.values() if member]
        for member in alive:
            if member.state is State.LEADER:
                known = self.leaders.setdefault(member.term, member.me)
                assert known == member.me, f"two leaders in term {member.term}"
                for index, entry in self.applied.items():
                    if self.applied_term[index] < member.term:
                        held = index <= member.log.last_index and member.log[index] == entry
                        assert held, f"the leader {member.me} misses committed entry {index}"
        for one, other in combinations(alive, 2):
            common = min(one.log.last_index, other.log.last_index)
            while common and one.log.term_at(common) != other.log.term_at(common):
                common -= 1
            assert one.log.since(1)[:common] == other.log.since(1)[:common], "logs do not match"


def run(seed: int, rules: Rules = RULES, turns: int = 4000, **kind: Any) -> World:
    world = World(seed, 3 if seed % 3 else 5, rules, **kind)
    for _ in range(turns):
        world.turn()
    return world


def run_many(seeds: int, rules: Rules, **kind: Any) -> None:
    for seed in range(seeds):
        run(seed, rules, **kind)


@pytest.mark.parametrize("start", range(0, 80, 20))
def test_raft_is_safe_in_a_hostile_network(start: int) -> None:
    """Raft figure 3, for each seed after each step; and something must have happened."""
    worlds = [run(seed) for seed in range(start, start + 20)]
    assert sum(len(world.applied) for world in worlds) > 500
    assert sum(len(world.leaders) for world in worlds) > 100


def test_after_the_storm_the_members_agree() -> None:
    """Liveness: with everybody up and no loss, one leader commits new entries to all."""
    world = run(7)
    world.loss, world.calm = 0, True
    for name, member in world.members.items():
        if member is None:
            world.boot(name)
    for _ in range(200):
        world.now += 0.5
        for name, member in world.members.items():
            assert member
            member.tick(world.now)
            world.settle(name)
        while world.packets:
            world.deliver()
    leaders = [m for m in world.members.values() if m and m.state is State.LEADER]
    assert len(leaders) == 1
    commits = {m.commit for m in world.members.values() if m}
    assert commits == {leaders[0].log.last_index}
    world.check()


def test_a_voter_that_votes_for_everybody_is_caught() -> None:
    """The test can fail: without one vote a term (Raft 5.2) two leaders appear."""
    everybody = replace(RULES, may_grant_vote=lambda voter, request: request.term >= voter.term)
    with pytest.raises(AssertionError, match=VIOLATION):
        run_many(300, everybody)


def test_a_disk_that_forgets_votes_is_caught() -> None:
    """The test can fail: a vote that does not survive a restart elects two leaders."""

    def eager(voter: Any, request: Any) -> bool:
        calm = replace(voter, hears_leader=False)
        return RULES.may_grant_vote(calm, request)

    with pytest.raises(AssertionError, match=VIOLATION):
        run_many(200, replace(RULES, may_grant_vote=eager), loses_votes=True)
