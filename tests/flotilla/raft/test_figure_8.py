"""Figure 8 of the Raft paper, on three bare cores: an entry of an old term on a majority of them.

L appends an entry and is cut off with it. A begins a later term and is cut off with its beginning.
L comes back, B votes for it and gets the old entry: now a majority has it. Here L is cut off again,
and A comes back. `suites/plans/raft-figure-8.toml` plays the same with a whole cluster.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from clusters.flotilla.raft.core import Raft, RaftTiming
from clusters.flotilla.raft.effects import RaftState
from clusters.flotilla.raft.journal import RaftJournal
from clusters.flotilla.raft.leader_state import MAX_BATCH_BYTES
from clusters.flotilla.raft.membership import Configuration
from clusters.flotilla.raft.messages import Message
from clusters.flotilla.raft.votes import commit_index
from clusters.flotilla.rules import RULES

CommitIndex = Callable[[Sequence[int], Callable[[int], int | None], int], int]

ELECTION_S = 10.0
SMALL, BIG = b"entry", bytes(MAX_BATCH_BYTES)


def careless(matches: Sequence[int], term_at: Callable[[int], int | None], term: int) -> int:
    """A wrong rule: counts copies without regard to their term."""
    return sorted(matches, reverse=True)[len(matches) // 2]


class Stage:
    """L, A and B, the pairs that can talk, and the messages in flight."""

    def __init__(self, rule: CommitIndex) -> None:
        rules, names = replace(RULES, commit_index=rule), ("L", "A", "B")
        timing = RaftTiming(heartbeat_s=1.0, election_s=ELECTION_S)
        self.now = 0.0
        members = Configuration(dict.fromkeys(names, "somewhere"))
        self.cores = {
            name: Raft(name, RaftJournal(members), timing, lambda least, most: least, rules, 0.0)
            for name in names
        }
        self.linked: frozenset[str] = frozenset(names)
        self.under_way: deque[tuple[str, Message]] = deque()
        self.acted: dict[int, bytes] = {}  # upon which entries anybody has, by index
        self.contradicted = False

    def link(self, *names: str) -> None:
        """Let these talk, and no others; messages in flight are lost."""
        self.linked = frozenset(names)
        self.under_way.clear()

    def collect(self) -> None:
        for name, core in self.cores.items():
            effects = core.take_effects()
            for peer, message in effects.messages:
                if {name, peer} <= self.linked:
                    self.under_way.append((peer, message))
            for index, entry in effects.committed:
                self.contradicted |= self.acted.setdefault(index, entry.data) != entry.data

    def talk(self, until: Callable[[], bool] = lambda: False) -> None:
        """Deliver messages one by one, in order, until the condition holds or none is left."""
        self.collect()
        while self.under_way and not until():
            peer, message = self.under_way.popleft()
            self.cores[peer].step(self.now, message)
            self.collect()

    def stand(self, name: str) -> None:
        """Let the member try for leadership, long after a leader was heard, until it leads or
        cannot."""
        core = self.cores[name]
        for _ in range(4):  # a leader that lost its majority steps down first; terms catch up
            self.now += 3 * ELECTION_S
            core.tick(self.now)
            self.talk(lambda: core.state is RaftState.LEADER)
            if core.state is RaftState.LEADER:
                return


def figure_8(rule: CommitIndex, data: bytes) -> Stage:
    stage = Stage(rule)
    old, other = stage.cores["L"], stage.cores["A"]
    stage.stand("L")
    stage.talk()
    stage.link()
    index = old.propose(stage.now, data)
    stage.collect()
    stage.link("A", "B")
    stage.stand("A")
    assert other.log.term_at(index or 0) == 2, "A has its own entry where L has the old one"
    stage.link("L", "B")
    stage.stand("L")
    assert old.log.last_term > 2, "L leads again"
    stage.talk(lambda: old.commit == index or not stage.under_way)
    stage.talk(lambda: old.commit >= (index or 0))
    stage.link("A", "B")
    stage.stand("A")
    stage.talk()
    return stage


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["small", "big"])
def test_what_a_leader_acted_upon_stays(data: bytes) -> None:
    """However the entry travels, L follows it with an entry of its own term on B, or does not
    commit it yet."""
    stage = figure_8(commit_index, data)
    assert not stage.contradicted


def test_counting_copies_of_old_terms_is_wrong() -> None:
    """The careless rule, and an entry so large that L's own entry needs another frame: B has only
    the old one when L commits it, votes for A, and A overwrites it."""
    stage = figure_8(careless, BIG)
    assert stage.acted[2] == BIG
    assert stage.cores["A"].state is RaftState.LEADER
    assert stage.cores["B"].log[2].data != BIG
    assert stage.contradicted


def test_one_frame_hides_the_wrong_rule() -> None:
    """An entry that fits into one frame with the first entry of L's new term arrives with it, so B
    refuses A; therefore no random search convicts the careless rule."""
    stage = figure_8(careless, SMALL)
    assert stage.acted[2] == SMALL
    assert stage.cores["B"].log[2].data == SMALL
    assert not stage.contradicted
