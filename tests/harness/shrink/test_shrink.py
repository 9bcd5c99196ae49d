"""Shrinking, with an oracle in the place of simulated worlds: laws that hold whatever fails."""

import re
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.campaign.pool import PoolResult
from harness.contracts import Node, PlannedFault
from harness.errors import BadRequest
from harness.plans import first_faults, keep_faults, shift_plan
from harness.registry import load, nemesis
from harness.shrink.search import Case, size
from harness.shrink.workers import Attempt, AttemptResult, CandidatePool, failure_classes
from harness.trial import Trial

KINDS = ("kill", "pause", "loss", "partition", "power")
LOST = "LOST_ACKED"
Fails = Callable[[Trial, tuple[PlannedFault, ...]], bool | tuple[str, ...]]  # True: LOST


def drawn(random: Random, count: int) -> Case:
    """A trial with that many faults of all kinds, and options that are not plain."""
    plan = [
        PlannedFault(random.choice(KINDS), round(0.7 + 0.37 * n, 3), 0.4, "master", {})
        for n in range(count)
    ]
    trial = Trial(
        hosts="simulated",
        seed=random.randrange(1000),
        short_faults=True,
        nodes={"broker": 4},
        settings={"timeScale": 0.1, "haTransferBatchSize": 1024},
        bed={"latency_ms": 20.0, "spread": 4.0},
        load={"rate": 25.0, "queues": 4, "poll_limit": 4},
    )
    case = Case(trial, _explicit(tuple(plan)))
    return case.with_plan(case.plan, 9.0)


def _explicit(plan: tuple[PlannedFault, ...]) -> tuple[PlannedFault, ...]:
    loaded: tuple[PlannedFault, ...] = nemesis().load(nemesis().dump(plan)).faults
    return loaded


def searched(
    case: Case, fails: Fails, luck: int = 4, jobs: int = 1, order: int = 0
) -> CandidatePool:
    """The search to its end, with so many tries at once that end in any order."""
    tries, random = CandidatePool(case, luck), Random(order)
    under_way: list[Attempt] = []
    while not tries.over:
        while len(under_way) < jobs and (attempt := next(tries, None)):
            under_way.append(attempt)
        assert under_way, "the search waits for nothing"
        attempt = under_way.pop(random.randrange(len(under_way)))
        tries.take(PoolResult(attempt, _asked(attempt, fails)))
    return tries


def _asked(attempt: Attempt, fails: Fails) -> AttemptResult:
    trial = Trial.from_toml(attempt.trial)
    try:
        load("system", trial.system)(trial)
    except BadRequest as e:
        return AttemptResult(why=str(e))
    plan = nemesis().load(attempt.plan).faults
    failure = fails(trial, plan)
    return AttemptResult(failure if isinstance(failure, tuple) else (LOST,) * failure)


def kinds(case: Case) -> tuple[str, ...]:
    return tuple(fault.kind for fault in case.plan)


@settings(max_examples=15)
@given(st.integers(0, 999), st.integers(2, 40), st.data())
def test_what_is_to_blame_is_all_that_is_left(seed: int, count: int, data: st.DataObject) -> None:
    """Faults that fail together whatever else there is, whenever; all the rest becomes plain."""
    case = drawn(Random(seed), count)
    guilty = data.draw(st.sets(st.sampled_from(range(count)), min_size=1, max_size=3))
    wanted = sorted(case.plan[number].kind for number in guilty)

    def fails(_: Trial, plan: tuple[PlannedFault, ...]) -> bool:
        there = [fault.kind for fault in plan]
        return all(there.count(kind) >= wanted.count(kind) for kind in wanted)

    best = searched(case, fails).best
    assert sorted(kinds(best)) == wanted
    assert best.trial.bed == {}
    assert best.trial.settings == {"timeScale": 0.1}
    assert best.trial.load["rate"] == 1.0
    assert best.trial.nodes == {"broker": 2, "controller": 1, "client": 1}  # of which 2 must ack
    assert best.trial.duration_s <= 12


@pytest.mark.parametrize("jobs", [2, 3, 7])
def test_how_many_run_at_once_changes_nothing(jobs: int) -> None:
    """Whichever ends first: the answer to each question is the first in its order that fails."""
    case = drawn(Random(jobs), 30)

    def fails(trial: Trial, plan: tuple[PlannedFault, ...]) -> bool:
        """Arbitrary, and different for each luck."""
        there = {fault.kind for fault in plan}
        return case.plan == plan or ("kill" in there and (trial.seed + len(plan)) % 3 == 0)

    alone = searched(case, fails).best
    assert all(searched(case, fails, 4, jobs, order).best == alone for order in range(3))


def test_a_candidate_that_fails_with_other_luck_is_taken() -> None:
    """Its luck is kept: the result fails as it stands."""
    case = drawn(Random(1), 3)

    def fails(trial: Trial, plan: tuple[PlannedFault, ...]) -> bool:
        return plan == case.plan or (len(plan) == 1 and trial.seed != case.trial.seed)

    best = searched(case, fails).best
    assert len(best.plan) == 1
    assert fails(best.trial, best.plan)
    assert len(searched(case, fails, luck=1).best.plan) == 3


def test_another_failure_is_not_the_failure() -> None:
    """The class of the whole run must stay; others may come and go."""
    case = drawn(Random(2), 4)

    def failure(_: Trial, plan: tuple[PlannedFault, ...]) -> tuple[str, ...]:
        return (LOST, "UNREAD_ACKED") if plan == case.plan else ("UNREAD_ACKED",)

    asked = searched(case, failure, luck=2)
    assert asked.failure == LOST
    assert asked.best.plan == case.plan


def test_a_case_that_does_not_fail_is_left_alone() -> None:
    """One try shows it."""
    tries = searched(drawn(Random(3), 4), lambda trial, plan: False)
    assert (tries.count, tries.failure) == (1, "")


def test_a_world_that_was_lost_did_not_fail() -> None:
    """Its process died: that proves nothing of the candidate."""
    case = drawn(Random(4), 2)
    tries = CandidatePool(case, 1)
    tries.take(PoolResult(next(tries), AttemptResult((LOST,))))
    while not tries.over:
        tries.take(PoolResult(next(tries), None, "its process was killed by SIGKILL"))
    assert tries.best == case


def test_worlds_that_stopped_are_told_apart_by_their_errors() -> None:
    """An assertion is not a livelock."""
    stop = "the simulated world stopped: "
    one = failure_classes(("STOPPED",), f"{stop}AssertionError: 1 > 0; see run.log")
    assert one == failure_classes(("STOPPED",), f"{stop}AssertionError: 2 > 0; see another.log")
    assert one != failure_classes(("STOPPED",), f"{stop}KeyError: 'x'; see run.log")
    assert failure_classes((LOST, "DUPLICATED"), "Invalid: 1: 2") == (LOST, "DUPLICATED")
    assert failure_classes(("STOPPED", LOST), f"{stop}KeyError: 'x'") == ("STOPPED: KeyError", LOST)


# ---------------------------------------------------------------------------------- parts of plans


def test_faults_that_stay_still_speak_of_the_same_faults() -> None:
    """Numbers change with places; who was left out is nobody, and the plan is refused."""
    plan = (
        PlannedFault("kill", 1.0, 1.0, "nameserver"),
        PlannedFault("kill", 2.0, 1.0, "master"),
        PlannedFault("pause", 3.0, 1.0, "controller but fault-1", {}, "event set by fault-1"),
    )
    *_, last = keep_faults(plan, [1, 2])
    assert (last.target, last.after) == ("controller but fault-0", "event set by fault-0")
    (alone,) = keep_faults(plan, [2])
    assert not re.search(r"fault-\d", f"{alone.target} {alone.after}")
    nodes = [Node("controller-1", "controller")]
    with pytest.raises(BadRequest, match="left-out"):
        nemesis().check((alone,), Trial(short_faults=True), 1.0, nodes)


def test_the_first_faults_are_those_that_begin_first() -> None:
    """In the order of the plan; shifting keeps what is between them."""
    plan = tuple(PlannedFault("kill", at_s, 1.0, "master") for at_s in (3.0, 1.0, 2.0))
    assert [fault.at_s for fault in first_faults(plan, 2)] == [1.0, 2.0]
    assert [fault.at_s for fault in shift_plan(plan, 0.5)] == [2.5, 0.5, 1.5]
    assert shift_plan((), 0.5) == ()


def test_sizes_are_told_in_words() -> None:
    """With all nodes of the system, not only those that the trial names."""
    case = drawn(Random(5), 1)
    assert size(case) == f"1 fault in {case.trial.duration_s:g} s of load on 10 nodes"
