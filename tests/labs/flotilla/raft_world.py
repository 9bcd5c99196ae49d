"""A few Raft cores in a hostile network, and what must hold after each step.

Members run in memory. Messages are dropped, doubled and delivered in any order; members crash
before, amid or after their disk gets what they promised, and come back with what it has. They take
snapshots at any time, leaders add and remove members, and read. The laws
are those of Raft's figure 3, and two more:

    election safety        at most one leader in a term
    log matching           the same index and term means the same log up to there
    leader completeness    a leader's log holds everything committed before its term
    state machine safety   no member applies something else at an index, nor skips one, and a
                           snapshot is what applying everything up to its index gives
    one at a time          a committed configuration differs from the one before by one voter
    reads are fresh        who answers a read has applied all that anybody had when it began
"""

import random
from dataclasses import dataclass, field, replace
from itertools import combinations

from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.effects import RaftEffects, RaftState
from clusters.flotilla.raft.journal import RaftJournal
from clusters.flotilla.raft.log import START, EntryId, RaftLog
from clusters.flotilla.raft.membership import (
    Add,
    ChangeMustWait,
    ChangeRefused,
    Configuration,
    Remove,
)
from clusters.flotilla.raft.messages import EntryKind, LogEntry, Message
from clusters.flotilla.raft.snapshot import Snapshot
from clusters.flotilla.raft.votes import Vote
from clusters.flotilla.rules import RULES, Rules

TIMING = RaftTiming(heartbeat_s=1, election_s=4)
CRASHES = ("before", "amid", "after")
TURNS = ("deliver", "time", "propose", "crash", "boot", "snapshot", "change", "read", "stall")


@dataclass
class Disk:
    vote: Vote = field(default_factory=Vote)
    snapshot: Snapshot | None = None
    base: EntryId = START
    entries: list[LogEntry] = field(default_factory=list)

    def write(self, effects: RaftEffects, *, amid: bool = False) -> None:
        """`amid`: the power fails between the snapshot and the log."""
        log = effects.log
        if log.install:
            self.snapshot = log.install
        if amid:
            return
        if effects.vote:
            self.vote = effects.vote
        if log.base:
            self.base, self.entries = log.base, list(log.entries)
        elif log.first:
            self.entries[log.first - self.base.index - 1 :] = log.entries

    def journal(self, first: Configuration) -> RaftJournal:
        """Recover as `Storage.recover` does: a log that the snapshot has overtaken is dropped."""
        held = self.snapshot
        if held and RaftLog(self.entries, self.base).term_at(held.index) != held.place.term:
            self.base, self.entries = held.place, []
        return RaftJournal(first, held, self.base, self.entries)


@dataclass
class Life:
    """A running member, and what its state machine has applied."""

    raft: Raft
    applied: int = 0
    state: list[bytes] = field(default_factory=list)
    reads: dict[int, int] = field(default_factory=dict)  # round -> what had been applied anywhere


class World:
    """`first`: how many of the names are the first configuration; the others wait to be added."""

    def __init__(
        self,
        luck: random.Random,
        size: int,
        rules: Rules = RULES,
        *,
        loses_votes: bool = False,
        changes: bool = True,
    ) -> None:
        self.luck = luck
        self.names = tuple("abcdefg"[: size + 2 * changes])
        self.first = Configuration({name: f"at {name}" for name in self.names[:size]})
        self.rules = rules
        self.loses_votes = loses_votes
        self.weights = (60, 10, 8, 2, 5, 5, changes * 2, 4, 0.5)
        self.now = 0.0
        self.stalled = ""  # time passes without this one, and it does not know that yet
        self.calm = False  # no doubled messages and no crashes any more
        self.disks = {name: Disk() for name in self.names}
        self.lives: dict[str, Life | None] = {}
        self.packets: list[tuple[str, Message]] = []
        self.leaders: dict[int, str] = {}
        self.applied: dict[int, LogEntry] = {}
        self.applied_term: dict[int, int] = {}
        self.proposed = self.installed = self.fresh_reads = 0
        self.loss = luck.choice((0.0, 0.05, 0.3))
        for name in self.names:
            self.boot(name)

    def boot(self, name: str) -> None:
        disk = self.disks[name]
        if self.loses_votes:
            disk.vote = replace(disk.vote, voted_for=None)
        journal = disk.journal(self.first if name in self.first.voters else Configuration())
        raft = Raft(name, journal, TIMING, self.luck.uniform, self.rules, self.now, vote=disk.vote)
        self.lives[name] = Life(raft)
        if disk.snapshot:
            self._restore(name, disk.snapshot)

    def settle(self, name: str, *, crash: str = "") -> None:
        """Carry out a member's effects, or crash around the write."""
        life = self.lives[name]
        assert life
        effects = life.raft.take_effects()
        if crash != "before":
            self.disks[name].write(effects, amid=crash == "amid")
        if crash:
            self.lives[name] = None
            return
        self.packets += [p for p in effects.messages if self.luck.random() >= self.loss]
        if effects.log.install:
            self.installed += 1
            self._restore(name, effects.log.install)
        for index, entry in effects.committed:
            self._apply(name, index, entry)
        for number in [number for number in life.reads if number <= effects.readable]:
            self.fresh_reads += 1
            assert life.applied >= life.reads.pop(number), f"{name} answers a read too early"

    def _apply(self, name: str, index: int, entry: LogEntry) -> None:
        life = self.lives[name]
        assert life
        assert index == life.applied + 1, f"{name} applies another entry than the next"
        life.applied = index
        known = self.applied.setdefault(index, entry)
        assert known == entry, f"{name} applies another entry at {index}"
        self.applied_term.setdefault(index, life.raft.term)
        if entry.kind == EntryKind.DATA and entry.data:
            life.state.append(entry.data)

    def _restore(self, name: str, snapshot: Snapshot) -> None:
        life = self.lives[name]
        assert life
        life.applied, life.state = snapshot.index, snapshot.data.split()
        told = [self.applied[index] for index in range(1, snapshot.index + 1)]
        wanted = [e.data for e in told if e.kind == EntryKind.DATA and e.data]
        assert life.state == wanted, f"{name} restores another state than entries give"

    # what happens

    def turn(self) -> None:
        """One random thing happens."""
        kind = self.luck.choices(TURNS, self.weights)[0]
        asked = [n for n, life in self.lives.items() if life and life.raft.leading]
        to_leader = (
            asked and kind in ("propose", "change", "read", "stall") and self.luck.random() < 0.8
        )
        name = self.luck.choice(asked if to_leader else self.names)
        life = self.lives[name]
        if kind == "boot" and life is None:
            self.boot(name)
        elif kind == "deliver" and self.packets:
            self.deliver()
        elif kind == "time":
            self.pass_time(self.luck.choice((0.01, 0.5, 1.0, 4.0)))
        elif kind == "propose" and life:
            self.proposed += 1
            life.raft.propose(self.now, b"%d" % self.proposed)
            self.settle(name)
        elif kind == "crash" and life:
            life.raft.tick(self.now)
            self.settle(name, crash=self.luck.choice(CRASHES))
        elif kind == "snapshot" and life:
            self.save(name, life)
        elif kind == "change" and life and life.raft.leading:
            self.change(name, life)
        elif kind == "read" and life:
            self.read(name, life)
        elif kind == "stall":
            self.stalled = "" if self.stalled else name
        self.check()

    def pass_time(self, by_s: float) -> None:
        self.now += by_s
        for name, life in self.lives.items():
            if life and life.raft.wake_at <= self.now and name != self.stalled:
                life.raft.tick(self.now)
                self.settle(name)

    def deliver(self) -> None:
        at = self.luck.randrange(len(self.packets))
        name, message = self.packets[at]
        if self.calm or self.luck.random() > 0.1:
            self.packets[at] = self.packets[-1]
            self.packets.pop()
        life = self.lives[name]
        if life and name != self.stalled:
            life.raft.step(self.now, message)
            spared = self.calm or self.luck.random() > 0.005
            self.settle(name, crash="" if spared else self.luck.choice(CRASHES))
        del self.packets[:-60]

    def save(self, name: str, life: Life) -> None:
        """Take a snapshot of the applied state; the power may fail before the log is cut."""
        if life.raft.log.term_at(life.applied) is None or not life.applied:
            return
        snapshot = life.raft.journal.snapshot_at(life.applied, b" ".join(life.state))
        self.settle(name)
        held = self.disks[name].snapshot
        if held is None or held.index < snapshot.index:
            self.disks[name].snapshot = snapshot
        life.raft.compact(snapshot)
        self.settle(name, crash="before" if self.luck.random() < 0.1 else "")

    def change(self, name: str, life: Life) -> None:
        other = self.luck.choice(self.names)
        there = other in life.raft.members.addresses
        change = Remove(other) if there else Add(other, f"at {other}")
        if there and len(life.raft.members.voters) <= 2:
            return
        try:
            life.raft.change(self.now, change)
        except (ChangeMustWait, ChangeRefused):
            return
        self.settle(name)

    def read(self, name: str, life: Life) -> None:
        number = life.raft.read(self.now)
        if number is not None:
            life.reads[number] = max(self.applied, default=0)
        self.settle(name)

    # what must hold

    def check(self) -> None:
        alive = [life.raft for life in self.lives.values() if life]
        for raft in alive:
            if raft.state is RaftState.LEADER:
                known = self.leaders.setdefault(raft.term, raft.me)
                assert known == raft.me, f"two leaders in term {raft.term}"
                self._is_complete(raft)
        for one, other in combinations(alive, 2):
            self._match(one, other)

    def _is_complete(self, leader: Raft) -> None:
        for index in range(leader.log.base.index + 1, len(self.applied) + 1):
            if self.applied_term[index] < leader.term:
                held = index <= leader.log.last_index and leader.log[index] == self.applied[index]
                assert held, f"the leader {leader.me} misses committed entry {index}"

    def _match(self, one: Raft, other: Raft) -> None:
        first = max(one.log.base.index, other.log.base.index) + 1
        last = min(one.log.last_index, other.log.last_index)
        while last >= first and one.log.term_at(last) != other.log.term_at(last):
            last -= 1
        if last >= first:
            count = last - first + 1
            same = one.log.entries_from(first)[:count] == other.log.entries_from(first)[:count]
            assert same, "logs do not match"

    def check_configurations(self) -> None:
        """Each committed configuration has one voter more or less than the one before."""
        before = set(self.first.voters)
        for index in sorted(self.applied):
            entry = self.applied[index]
            if entry.kind == EntryKind.MEMBERS:
                voters = set(Configuration.unpack(entry.data).voters)
                assert len(before ^ voters) <= 1, f"entry {index} changes two voters"
                before = voters

    def calm_down(self) -> None:
        """All members are up and connected; let time pass until no message is left."""
        self.loss, self.calm, self.stalled = 0, True, ""
        for name, life in self.lives.items():
            if life is None:
                self.boot(name)
        for _ in range(200):
            self.pass_time(0.5)
            while self.packets:
                self.deliver()


def run(seed: int, rules: Rules = RULES, turns: int = 4000, **kind: bool) -> World:
    world = World(random.Random(seed), 3 if seed % 3 else 5, rules, **kind)
    for _ in range(turns):
        world.turn()
    world.check_configurations()
    return world
