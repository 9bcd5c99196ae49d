"""Raft's safety in a hostile network: many seeds, and schedules that hypothesis invents.

The laws and what happens to the members are in `raft_world`. Paper sections: 5 (elections, log), 7
(snapshots); thesis 4 (membership), 6.4 (reads).
"""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raft_world import World, run
from table_sizes import examples

from clusters.flotilla.raft.effects import RaftState
from clusters.flotilla.rules import RULES, Rules

VIOLATION = r"leader|logs do not match|applies another|restores another"


def run_many(seeds: int, rules: Rules, **kind: bool) -> None:
    for seed in range(seeds):
        run(seed, rules, **kind)


@pytest.mark.parametrize("start", range(0, 60, 15))
def test_raft_is_safe_in_a_hostile_network(start: int) -> None:
    """Raft figure 3 for each seed after each step; and each kind of event must have happened:
    entries, elections, snapshots sent, members changed, reads."""
    worlds = [run(seed) for seed in range(start, start + 15)]
    assert sum(len(world.applied) for world in worlds) > 200
    assert sum(len(world.leaders) for world in worlds) > 80
    assert sum(world.installed for world in worlds) > 5
    assert sum(entry.kind for world in worlds for entry in world.applied.values()) > 20
    assert sum(world.fresh_reads for world in worlds) > 50


@given(st.randoms(use_true_random=False), st.sampled_from((1, 2, 3)))
@settings(max_examples=examples(40), deadline=None)
def test_no_schedule_breaks_a_law(luck: random.Random, size: int) -> None:
    """The same laws, where hypothesis chooses the events, and can shorten a failure."""
    world = World(luck, size)
    for _ in range(150):
        world.turn()
    world.check_configurations()


@pytest.mark.parametrize("seed", [7, 8, 11])
def test_after_the_storm_the_members_agree(seed: int) -> None:
    """Liveness: with all members up and no loss, one leader commits new entries to all its members,
    learners included, which are voters in the end (thesis 4.2.1)."""
    world = run(seed)
    world.calm_down()
    lives = {name: life for name, life in world.lives.items() if life}
    [leader] = [life for life in lives.values() if life.raft.state is RaftState.LEADER]
    members = leader.raft.members
    assert not members.learners
    for name in members.voters:
        assert lives[name].applied == leader.raft.log.last_index
        assert lives[name].state == leader.state
        assert lives[name].raft.members == members
    world.check()


def test_a_voter_that_votes_for_everybody_is_caught() -> None:
    """The test can fail: without one vote a term (Raft 5.2) two leaders appear."""
    always = replace(RULES, may_grant_vote=lambda voter, request: request.term >= voter.term)
    with pytest.raises(AssertionError, match=VIOLATION):
        run_many(300, always)


def test_a_disk_that_forgets_votes_is_caught() -> None:
    """The test can fail: a vote that does not survive a restart elects two leaders."""

    def eager(voter: Any, request: Any) -> bool:
        calm = replace(voter, hears_leader=False)
        return RULES.may_grant_vote(calm, request)

    with pytest.raises(AssertionError, match=VIOLATION):
        run_many(200, replace(RULES, may_grant_vote=eager), loses_votes=True, changes=False)


def test_reads_that_one_member_confirms_are_caught() -> None:
    """The test can fail: a leader that does not ask a majority reads outdated state (thesis
    6.4)."""
    with pytest.raises(AssertionError, match="too early"):
        run_many(200, replace(RULES, confirmed_round=max), changes=False)
