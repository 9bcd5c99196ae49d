"""Guided search: the same whatever order results arrive in, and whenever it was interrupted; plans
that showed something new are kept, and changed into others that are valid."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from campaigning import BASE, conducted, shown
from seedlings import Explorer

from harness import registry
from harness.campaign.checkpoint import FinishedSeed, open_checkpoint
from harness.campaign.features import packed
from harness.campaign.forms import (
    FEW_FAULTS,
    REPEATS,
    Aims,
    Plan,
    draw_acts,
    draw_few,
    draw_standing,
    fits_standing,
)
from harness.campaign.guided import (
    ACTS,
    DENSE,
    DRAW,
    FEW,
    MUTATE,
    RERUN,
    STANDING,
    Bandit,
    GuidedSearch,
    SearchCandidate,
    SearchRules,
    _is_valid,
    _Made,
)
from harness.campaign.mutation import MUTATIONS, Material, Scenario, mutate
from harness.campaign.run import (
    DURATION,
    DURATIONS_S,
    WORKLOAD,
    Campaign,
    CampaignState,
    conduct,
)
from harness.campaign.swarm import draw_faults
from harness.campaign.tally import SeedResult
from harness.errors import BadRequest
from harness.run.launch import PlanLimits
from harness.trial import Trial

SHORT = replace(BASE, duration_s=8.0, hosts="simulated")
QUICK = SearchRules(lag=1, drawn_first=1)
SEARCHED = 45  # candidates: more than are drawn first, and than may be in progress


def guided(last: int = SEARCHED, jobs: int = 2, base: Trial = SHORT) -> Campaign:
    return Campaign(base, tuple(range(1, last + 1)), jobs, guided=True)


def corpus_of(state: CampaignState) -> str:
    assert state.search
    return state.search.corpus_digest()


def resumed(asked: Campaign, runs: Path, work: Explorer) -> CampaignState:
    """A campaign that leaves its checkpoint behind, as if it was killed at its end."""
    with open_checkpoint(asked.key, "now", runs) as checkpoint:
        return conduct(asked, runs, lambda state: None, work, checkpoint)


def row_of(candidate: SearchCandidate) -> SeedResult:
    return Explorer()(candidate, Path())[0]


# ----------------------------------------------------------------------------------- determinism


def test_workers_share_one_corpus(tmp_path: Path) -> None:
    """One or three of them find and keep the same, since a candidate depends on results that
    have all arrived."""
    states = [conducted(guided(jobs=jobs), tmp_path, Explorer()) for jobs in (1, 3)]
    assert len({corpus_of(state) for state in states}) == 1
    tried = [sorted((row.seed, row.tried) for row in state.rows) for state in states]
    assert tried[0] == tried[1]
    assert len(tried[0]) == SEARCHED
    (search,) = (state.search for state in states[:1])
    assert search
    assert search.progress.kept > 5
    assert search.progress.features == search.progress.curve[-1][1]


def test_the_order_of_results_does_not_matter() -> None:
    """They are learned from in the order of the candidates."""
    digests = set()
    for shuffled in (False, True):
        search, waiting = GuidedSearch((SHORT,), 1), list[SearchCandidate]()
        for _ in range(SEARCHED):
            while (candidate := search.candidate()) is None:
                given = waiting.pop(-1 if shuffled else 0)
                search.add(given.number, row_of(given))
            waiting.append(candidate)
        for given in waiting:
            search.add(given.number, row_of(given))
        search.learn_rest()
        digests.add(search.corpus_digest())
    assert len(digests) == 1


def test_an_interrupted_search_comes_to_the_same(tmp_path: Path) -> None:
    """Results are stored; the search is repeated from them, and no candidate is run twice."""
    whole = conducted(guided(), tmp_path, Explorer())
    (tmp_path / "runs").mkdir()
    resumed(guided(25), tmp_path / "runs", Explorer())
    rest = resumed(guided(), tmp_path / "runs", Explorer(deadly=tuple(range(1, 26))))
    assert not rest.lost
    assert rest.resumed == set(range(1, 26))
    assert corpus_of(rest) == corpus_of(whole)


def test_a_result_of_another_candidate_does_not_count(tmp_path: Path) -> None:
    """One that was lost, and is run after all, changes those that come after it: their stored
    results are of other plans."""
    whole = conducted(guided(), tmp_path, Explorer())
    runs = tmp_path / "runs"
    runs.mkdir()
    first = resumed(guided(), runs, Explorer(deadly=(3,)))
    assert list(first.lost) == [3]
    rest = resumed(guided(), runs, Explorer())
    assert corpus_of(rest) == corpus_of(whole) != corpus_of(first)
    assert 4 in rest.resumed
    assert len(rest.resumed) < SEARCHED - 1
    assert sorted(row.seed for row in rest.rows) == list(range(1, SEARCHED + 1))


def test_a_failure_is_never_forgotten(tmp_path: Path) -> None:
    """Even of a candidate that the search does not come to again."""
    runs = tmp_path / "runs"
    runs.mkdir()
    first = resumed(guided(), runs, Explorer(deadly=(3,), failing=(SEARCHED,)))
    assert first.exit_code == 1
    rest = resumed(guided(), runs, Explorer())
    assert [row.seed for row in rest.rows if row.failure] == [SEARCHED]
    assert rest.exit_code == 1


@pytest.mark.parametrize(
    ("changes", "lost", "counts", "features"),
    [
        ({}, "", True, 1),
        ({}, "the engine is gone", True, 0),
        ({"tried": "other"}, "", False, 0),
        ({"tried": "other", "failure": ("LOST_ACKED",)}, "", True, 0),
    ],
    ids=["same", "lost", "other", "other-failed"],
)
def test_only_a_result_of_the_same_candidate_teaches(
    changes: dict[str, object], lost: str, counts: bool, features: int
) -> None:
    search = GuidedSearch((SHORT,), 1, QUICK)
    candidate = search.candidate()
    assert candidate
    assert not search.recall(candidate, None)
    row = replace(row_of(candidate), features="AQAAAA==", **changes)  # type: ignore[arg-type]
    assert search.recall(candidate, FinishedSeed(row, lost=lost)) is counts
    search.learn_rest()
    assert search.progress.features == features


def test_a_search_with_fewer_candidates_keeps_the_results(tmp_path: Path) -> None:
    """Of the others, for the next search with more."""
    resumed(guided(6), tmp_path, Explorer())
    state = resumed(guided(4), tmp_path, Explorer())
    assert sorted(row.seed for row in state.beside) == [5, 6]
    assert state.continues
    state = resumed(guided(6), tmp_path, Explorer(deadly=tuple(range(1, 7))))
    assert len(state.rows) == 6
    assert not state.continues


@pytest.mark.parametrize(
    "damage",
    [
        {"features": 5},
        {"features": "%%"},
        {"weak_s": ["a"]},
        {"steps": "x"},
        {"planned": [1]},
        {"failure": [3]},
        {"planned": {"kill": "x"}},
        {"counted": {"kill": None}},
        {"looks": {"epochs": -1}},
        {"steps": 10**400},
        {"cpu_s": float("nan")},
    ],
    ids=str,
)
def test_a_damaged_result_is_left_out(tmp_path: Path, damage: dict[str, object]) -> None:
    """And its candidate is run again."""
    resumed(guided(2), tmp_path, Explorer())
    (part,) = tmp_path.glob("*.part")
    lines = [json.loads(line) for line in part.read_text().splitlines()]
    lines[0]["row"] |= damage
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = resumed(guided(2), tmp_path, Explorer())
    assert len(state.resumed) == 1
    assert len(state.rows) == 2


HASHED = """
from pathlib import Path
from seedlings import Explorer
from harness.campaign.guided import GuidedSearch
from harness.trial import Trial
search = GuidedSearch((Trial(profile="sync-flush", duration_s=8.0),), 1)
for _ in range(40):
    candidate = search.candidate()
    search.add(candidate.number, Explorer()(candidate, Path())[0])
print(candidate.digest, search.corpus_digest())
"""


def test_hashes_do_not_matter() -> None:
    """The same search in a process with other hashes of texts."""
    labs = Path(__file__).parents[2] / "labs" / "sample_runs"
    digests = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(labs)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(digests) == 1


def test_sizes_that_do_not_fit_are_drawn_again() -> None:
    """A trial that names a node may draw too few of them."""
    named = replace(SHORT, targets=("broker-3",))
    search = GuidedSearch((named,), 1)
    for number in range(1, 16):
        candidate = search.candidate()
        assert candidate
        assert candidate.number == number


def test_what_was_found_is_shown(tmp_path: Path) -> None:
    text = shown(conducted(guided(30), tmp_path, Explorer()), tmp_path)
    assert "plans kept, corpus " in text
    assert "mean rewards" in text


# --------------------------------------------------------------------------------- what is refused


def test_a_search_has_no_plan_of_its_own_and_no_gaps() -> None:
    with pytest.raises(BadRequest, match="leave --plan out"):
        replace(guided(), plan="[[fault]]").refuse()
    with pytest.raises(BadRequest, match=r"use --seeds 1\.\.100"):
        replace(guided(), seeds=(1, 3)).refuse()


def test_a_search_is_no_evidence_for_drawn_seeds() -> None:
    """Its candidates are others than the seeds of the same numbers, or than those of a search that
    began elsewhere."""
    asked = guided()
    others = (
        replace(asked, guided=False),
        replace(asked, seeds=(2, 3)),
        replace(asked, free=frozenset({WORKLOAD, DURATION})),
    )
    assert len({asked.key, *(other.key for other in others)}) == 4


def test_a_free_search_draws_what_clients_can_do() -> None:
    """Workloads without a client, or without a load to draw, are left out."""
    bases = replace(guided(), free=frozenset({WORKLOAD, DURATION})).bases
    assert {base.workload for base in bases} >= {"messages", "register", "topics", "lock"}
    assert "queue" not in {base.workload for base in bases}
    assert {base.duration_s for base in bases} == set(DURATIONS_S)


# ------------------------------------------------------------------------------------ the corpus


def searched(rows: Sequence[dict[str, object]], rules: SearchRules = QUICK) -> GuidedSearch:
    """A search whose candidates had these results, over the explorer's."""
    search = GuidedSearch((SHORT,), 1, rules)
    for changes in rows:
        candidate = search.candidate()
        assert candidate
        search.add(candidate.number, replace(row_of(candidate), **changes))  # type: ignore[arg-type]
    search.learn_rest()
    return search


def test_only_what_is_new_and_sound_is_kept() -> None:
    """A plan whose run failed, or proved nothing, would be repeated by its mutations."""
    assert searched([{}]).progress.kept == 1
    assert searched([{"failure": ("LOST_ACKED",)}]).progress.kept == 0
    assert searched([{"unproven": ("NO_FINAL_READ",)}]).progress.kept == 0
    same = searched([{"features": "AQAAAA=="}] * 5)
    assert (same.progress.kept, same.progress.features) == (1, 1)


def test_with_luck_a_plan_is_run_once_more() -> None:
    """Before it is mutated; what it does not show again makes it less likely to be chosen."""
    lucky = replace(QUICK, rerun=True)
    steady, shaky = (
        searched([{"features": "AQAAAA=="}, {"features": again}], lucky)
        for again in ("AQAAAA==", "AgAAAA==")
    )
    assert [one._corpus[0].steady for one in (steady, shaky)] == [1.0, 0.0]
    assert RERUN not in MUTATIONS


def test_a_shorter_plan_with_the_same_features_takes_the_place() -> None:
    """If it only leaves faults out."""
    search = GuidedSearch((SHORT,), 1, QUICK)
    lengths = set()
    for _ in range(150):
        candidate = search.candidate()
        assert candidate
        search.add(candidate.number, replace(row_of(candidate), features="AQAAAA=="))
        lengths |= {len(kept.scenario.plan) for kept in search._corpus}
    assert len(search._corpus) == 1
    assert len(lengths) > 1


@pytest.mark.parametrize("best", [DRAW, MUTATE])
def test_the_way_that_pays_off_is_taken_more_often(best: str) -> None:
    """And the other one still gets a share."""
    search, mutated = GuidedSearch((SHORT,), 1, QUICK), list[bool]()
    for number in range(1, 121):
        candidate = search.candidate()
        assert candidate
        mutated.append(bool(search._made[number].mutations))
        new = number == 1 or mutated[-1] == (best == MUTATE)
        row = replace(row_of(candidate), features=packed([number if new else 1]), steps=1)
        search.add(number, row)
    taken = mutated[40:].count(best == MUTATE)
    assert 48 < taken < 80


def test_some_mutated_plans_are_tried_in_another_world() -> None:
    """And some in that of their parent, so that what comes before the change is the same."""
    search, same = GuidedSearch((SHORT,), 1, QUICK), list[bool]()
    for number in range(1, 81):
        candidate = search.candidate()
        assert candidate
        made = search._made[number]
        if made.parent and "reseed" not in made.mutations:
            same.append(made.scenario.trial.seed == made.parent.scenario.trial.seed)
        search.add(number, replace(row_of(candidate), features=packed([number])))
    assert 0.25 < same.count(True) / len(same) < 0.75


def test_plans_whose_runs_cost_little_are_preferred() -> None:
    cheap, dear = (
        searched([{"features": packed([1]), "steps": steps}]) for steps in (1_000, 100_000)
    )
    ours, theirs = (one._energy(one._corpus[0]) for one in (cheap, dear))
    assert ours == pytest.approx(100 * theirs)


def test_a_bandit_learns_and_forgets() -> None:
    """What paid off is preferred; what was never tried gets its turn; an old reward fades."""
    bandit = Bandit()
    for _ in range(50):
        bandit.reward(["good"], 0.9)
        bandit.reward(["bad"], 0.1)
    assert bandit.score("new") > bandit.score("good") > bandit.score("bad")
    for _ in range(200):
        bandit.reward(["good"], 0.0)
    assert bandit.mean("good") < 0.1


# ------------------------------------------------------------------------------------- few faults


def test_a_few_faults_of_a_drawn_plan() -> None:
    """In order, within the load, possible, some of them longer; or one of them repeated."""
    longest, repeated = 0.0, 0
    for seed in range(40):
        trial, plan = draw_few(seed, SHORT)
        drawn_trial, drawn = draw_faults(seed, SHORT)
        assert replace(trial, faults=()) == replace(drawn_trial, faults=())
        again = len(plan) in REPEATS and len({(f.kind, f.target) for f in plan}) == 1
        repeated += again
        assert again or len(plan) in FEW_FAULTS or len(plan) == len(drawn)
        assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)
        assert all(fault.at_s + fault.for_s <= SHORT.duration_s for fault in plan)
        assert {fault.kind for fault in plan} <= {fault.kind for fault in drawn}
        assert _is_valid(Scenario(trial, plan))
        longest = max(longest, *(fault.for_s for fault in plan))
    assert longest > 1
    assert repeated > 4


AIMS = replace(
    Aims.of(SHORT), kinds=frozenset({"kill", "pause", "partition"}), events=("election", "set")
)


def test_faults_that_outlast_the_recovery() -> None:
    """One after another, except short ones; half of them aim at nodes that matter, the long ones
    mostly at leaders, the short ones at those who replace them. The usual few if the load is too
    short."""
    base = replace(SHORT, duration_s=40.0, recover_within_s=7.5)
    aimed, targets, short = 0, Counter[str](), Counter[str]()
    for seed in range(40):
        trial, plan = draw_standing(seed, base, AIMS)
        assert _is_valid(Scenario(trial, plan))
        assert all(fault.at_s + fault.for_s <= 39.001 for fault in plan)
        lasting = [fault for fault in plan if fault.for_s > 7.5]
        assert lasting
        assert all(a.at_s + a.for_s < b.at_s for a, b in pairwise(lasting))
        short.update(fault.target for fault in plan if fault not in lasting)
        usual = {(fault.kind, fault.target) for fault in draw_faults(seed, base)[1]}
        aimed += sum((fault.kind, fault.target) not in usual for fault in plan)
        targets.update(fault.target for fault in lasting)
    assert aimed > 10
    assert targets["master"] + targets["controller-leader"] > 3 * targets["one slave"]
    assert short["majority controller"] + short["one slave"] > short["master"]
    brief = replace(base, duration_s=8.0)
    assert draw_standing(1, brief, AIMS) == draw_few(1, brief)


def test_acts_strike_when_a_fault_has_changed_something() -> None:
    """Each strike waits for an event, and for no other than those that there are; it may aim at
    whom an earlier fault hit, or at the others."""
    valid, targets = 0, set[str]()
    for seed in range(40):
        trial, plan = draw_acts(seed, SHORT, AIMS)
        assert [fault.at_s for fault in plan] == sorted(fault.at_s for fault in plan)
        assert not plan[0].after
        strikes = [fault for fault in plan if fault.after]
        assert len(strikes) >= len(plan) / 2 - 1
        assert all(fault.after.startswith(("event set", "event election")) for fault in strikes)
        for place, fault in enumerate(plan):
            found = re.search(r"fault-(\d+)", fault.target)
            assert not found or int(found[1]) < place
            targets.add(fault.target.rstrip("0123456789"))
        valid += _is_valid(Scenario(trial, plan))
    assert targets >= {"master", "in-set", "teller", "fault-", "broker but fault-"}
    assert valid >= 36


def test_what_a_system_has_not_is_no_target() -> None:
    """Servers without controllers have no leader of controllers; targets that the trial names are
    all that there are."""
    etcd = Aims.of(Trial(system="etcd"))
    assert {"master", "all", "majority server"} <= set(etcd.support)
    assert not [name for name in etcd.support if "controller" in name]
    assert Aims.of(replace(SHORT, targets=("broker-1",))).support == ()


def test_a_plan_is_drawn_in_the_form_that_the_rules_want() -> None:
    """The first ones in the first form; later ones in all of them."""
    dump, longer = registry.nemesis().dump, replace(SHORT, duration_s=40.0, recover_within_s=7.5)

    def standing(seed: int, base: Trial) -> tuple[Trial, Plan]:
        return draw_standing(seed, base, Aims.of(base))

    for form, draw in ((DENSE, draw_faults), (FEW, draw_few), (STANDING, standing)):
        rules = SearchRules(((form, 1), (ACTS, 9)), drawn_first=1, lag=1)
        search = GuidedSearch((longer,), 1, rules)
        first = search.candidate()
        assert first
        assert first.plan == dump(draw(1, longer)[1])
        search.add(1, replace(row_of(first), failure=("X",), events={"set": 1, "election": 2}))
        acted = 0
        for number in range(2, 12):  # none is kept, so none is a mutation
            candidate = search.candidate()
            assert candidate
            acted += "event set" in candidate.plan or "event election" in candidate.plan
            search.add(number, replace(row_of(candidate), failure=("X",)))
        assert acted >= 5


def drawn_by(rules: SearchRules, bases: Sequence[Trial], number: int) -> list[SearchCandidate]:
    """The candidates of a search in which nothing is kept."""
    search, made = GuidedSearch(bases, 1, rules), list[SearchCandidate]()
    for _ in range(number):
        candidate = search.candidate()
        assert candidate
        made.append(candidate)
        search.add(candidate.number, replace(row_of(candidate), failure=("X",)))
    return made


def test_costly_worlds_are_drawn_less() -> None:
    """Long loads with many requests, of worlds; a real cluster costs the same whatever its load."""
    bases = [replace(SHORT, duration_s=duration_s) for duration_s in (10.0, 40.0)]
    long = []
    for cheap_steps in (25_000, math.inf):
        rules = SearchRules(((DENSE, 1),), drawn_first=1, lag=1, cheap_steps=cheap_steps)
        made = drawn_by(rules, bases, 40)
        long.append(sum(candidate.trial.duration_s == 40 for candidate in made))
    assert 1 <= long[0] < 12
    assert long[1] > 15
    (costly,) = drawn_by(SearchRules(cheap_steps=1, drawn_first=0), bases[1:], 1)
    assert costly.plan  # if all are, one is taken


def test_only_a_plan_that_is_shorter_takes_the_place_of_its_parent() -> None:
    """One that was moved to another world shows something else. It keeps what its parent was kept
    for, and what it showed itself."""
    search = GuidedSearch((SHORT,), 1, QUICK)
    first = search.candidate()
    assert first
    search.add(1, replace(row_of(first), features=packed([1, 2])))
    search.learn_rest()
    (parent,) = search._corpus
    whole = parent.scenario
    shorter = replace(whole, plan=whole.plan[:-1])
    elsewhere = replace(shorter, trial=replace(shorter.trial, seed=99))
    row = replace(row_of(first), features=packed([1, 2, 3]))
    search._results[2] = row
    search._made[2] = _Made(elsewhere, parent, ("drop",))
    search._next = 3
    search.learn_rest()
    assert len(search._corpus) == 2
    assert parent.scenario == whole
    search._results[3] = replace(row, features=packed([1, 2, 3, 4]))
    search._made[3] = _Made(shorter, parent, ("drop", "drop"))
    search._next = 4
    search.learn_rest()
    assert len(search._corpus) == 2
    assert parent.scenario.plan == shorter.plan
    assert parent.own == {1, 2, 4}


def test_standing_faults_get_a_load_that_is_long_enough() -> None:
    """Where the duration is drawn, and one is."""
    bases = [
        replace(SHORT, duration_s=duration_s, recover_within_s=7.5) for duration_s in (10.0, 20.0)
    ]
    assert [fits_standing(base) for base in bases] == [False, True]
    rules = SearchRules(((STANDING, 1),), drawn_first=1, lag=1)
    assert {c.trial.duration_s for c in drawn_by(rules, bases, 10)} == {20.0}
    assert drawn_by(rules, bases[:1], 2)[1].plan


# -------------------------------------------------------------------------------------- mutations


def scenario(seed: int) -> Scenario:
    trial, plan = draw_faults(seed, SHORT)
    return Scenario(trial, plan[:100], ("election", "truncate"), (2.0, 5.5))


def mutated(name: str, seed: int) -> tuple[Scenario, Scenario]:
    """A drawn scenario and its mutation."""
    parent = scenario(seed)
    aims = replace(Aims.of(SHORT), kinds=frozenset({"power", "kill", "pause", "partition"}))
    material = Material(scenario(seed + 1000), scenario(seed + 2000), aims)
    return parent, mutate(name, Random(seed), parent, material)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_changes_something_and_is_valid(name: str) -> None:
    """Most of the time; a search takes another one where it is not."""
    valid = changed = 0
    for seed in range(1, 21):
        parent, child = mutated(name, seed)
        times = [fault.at_s for fault in child.plan]
        assert times == sorted(times)
        assert all(f.at_s + f.for_s <= SHORT.duration_s - 1 + 1e-6 for f in child.plan)
        changed += (parent.trial, parent.plan) != (child.trial, child.plan)
        limits = PlanLimits.of(child.trial)
        try:
            registry.nemesis().check(
                child.plan, child.trial, limits.detection_s, limits.nodes, limits.can
            )
        except BadRequest:
            continue
        valid += 1
    assert changed >= 12
    assert valid >= 12


def test_mutations_do_what_they_say() -> None:
    """Each in its own way."""
    for seed in range(1, 11):
        for name in ("add", "repeat"):
            parent, child = mutated(name, seed)
            assert len(child.plan) >= len(parent.plan)
        parent, child = mutated("drop", seed)
        assert len(child.plan) < len(parent.plan)
        parent, child = mutated("strike", seed)
        (struck,) = (fault for fault in child.plan if fault.after)
        assert struck.after.startswith(("event election", "event truncate"))
        parent, child = mutated("undermine", seed)
        added = [fault for fault in child.plan if fault not in parent.plan]
        assert 1 <= len(added) <= 2
        assert min(abs(added[0].at_s - weak) for weak in parent.weak_s) < 0.5
        parent, child = mutated("reseed", seed)
        assert child.trial == replace(parent.trial, seed=child.trial.seed)
        assert child.trial.seed != parent.trial.seed
        parent, child = mutated("set", seed)
        assert child.plan == parent.plan


def test_named_targets_are_kept() -> None:
    """A trial that names its targets gets no faults on others."""
    aimed = replace(SHORT, targets=("broker-1",), nodes={"broker": 3, "controller": 3})
    search = GuidedSearch((aimed,), 1, QUICK)
    seen = set()
    for _ in range(60):
        candidate = search.candidate()
        assert candidate
        faults = registry.nemesis().load(candidate.plan, "the plan").faults
        seen |= {fault.target for fault in faults}
        search.add(candidate.number, row_of(candidate))
    assert seen <= {"broker-1", "one client", "server", "cluster", ""}
