"""What seeds draw: each its own, all of them possible, together everything."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from harness import registry
from harness.campaign.swarm import draw_trial, recover_within_s
from harness.contracts import Node
from harness.errors import BadRequest, UnknownName, Unsupported
from harness.judge.claims import claims_in_force
from harness.judge.effects import effects_of
from harness.run.launch import make_plan
from harness.trial import Trial
from nemesis import Plan, load, swarm
from nemesis._plan.drawing import USUAL

BASE = Trial(duration_s=20.0)
SEEDS = range(1, 31)
DETECTION_S = 1.5
GIVEN = '[[fault]]\nkind = "kill"\nat_s = 2.0\nfor_s = 0.1\ntarget = "master"\n'
NODES = [
    Node(f"{role}-{n}", role)
    for role, count in {"nameserver": 1, "controller": 3, "broker": 3, "client": 2}.items()
    for n in range(1, count + 1)
]
EVERYTHING = frozenset({"links", "loss", "signal", "restart", "power", "handover"})
TOLD = """
from harness.campaign.swarm import draw_trial, recover_within_s
from harness.trial import Trial
trial, plan = draw_trial(7, Trial())
print(trial.to_toml() + plan)
"""


def plan_of(seed: int, trial: Trial = BASE, can: frozenset[str] = EVERYTHING) -> Plan:
    return swarm(Random(seed), trial, DETECTION_S, NODES, can)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    short = Trial(duration_s=20.0, short_faults=True, profile="sync-flush")
    return [plan_of(seed, short) for seed in range(150)]


# ------------------------------------------------------------------------------------- a trial


def test_a_seed_always_draws_the_same() -> None:
    """Also in another process with other hashes, for a seed is all that a campaign notes down."""
    told = {
        subprocess.run(
            [sys.executable, "-c", TOLD],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }
    trial, plan = draw_trial(7, Trial())
    assert told == {trial.to_toml() + plan + "\n"}
    assert draw_trial(8, Trial())[1] != plan


def test_what_is_drawn_can_be_run() -> None:
    """The plan passes every check that a plan written by hand does, for the very trial."""
    for seed in SEEDS:
        trial, plan = draw_trial(seed, BASE)
        assert make_plan(trial, plan) == plan
        assert trial == Trial.from_toml(trial.to_toml())


@pytest.mark.parametrize("profile", ["", "sync-flush", "allack-min2", "unsafe-default"])
def test_nothing_is_drawn_that_the_profile_does_not_claim_to_survive(profile: str) -> None:
    """Power cuts hit any number of nodes, so they are drawn where that many are claimed."""
    drawn_kinds = set()
    for seed in SEEDS:
        trial, plan = draw_trial(seed, replace(BASE, profile=profile))
        claims = claims_in_force(trial)
        kinds = {fault.kind for fault in load(plan).faults}
        assert set(trial.faults) == kinds
        able = {kind for kind in kinds if effects_of(kind).may_break}  # others need no claim
        assert {claims.get(kind) for kind in able} <= {"all"}
        drawn_kinds |= kinds
    assert ("power" in drawn_kinds) == (profile in ("", "sync-flush"))


def test_worlds_differ() -> None:
    """Sizes, load, settings and the hosts' own options are drawn."""
    trials = [draw_trial(seed, BASE)[0] for seed in SEEDS]
    for table in ("nodes", "load", "settings", "bed"):
        assert len({str(getattr(trial, table)) for trial in trials}) > 5, table


def test_what_is_set_stays() -> None:
    """Whatever the base trial says is the same for every seed."""
    base = Trial(
        duration_s=7.0,
        profile="allack-min2",
        nodes={"broker": 3},
        load={"rate": 5.0},
        settings={
            "haTransferBatchSize": 2048,
            "controllerType": "jraft",
            "raftSnapshotEntries": 7,
            "brokerSets": 1,
        },
        bed={"latency_ms": 3.0},
        faults=("pause",),
        recover_within_s=11.0,
    )
    for seed in SEEDS:
        trial, plan = draw_trial(seed, base)
        for table in ("nodes", "load", "settings", "bed"):
            assert getattr(base, table).items() <= getattr(trial, table).items()
        assert (trial.duration_s, trial.recover_within_s) == (7.0, 11.0)
        assert trial.profile == "allack-min2"
        assert {fault.kind for fault in load(plan).faults} <= {"pause"}


def test_a_load_that_the_options_forbid_is_not_drawn() -> None:
    """Each ordered producer needs a queue of its own, whatever is drawn of either."""
    for options in ({"ordered": True}, {"ordered": True, "producers": 4}):
        base = replace(BASE, load=options)
        for seed in SEEDS:
            trial, _ = draw_trial(seed, base)
            registry.load("workload", trial.workload)(trial).check_options()


def test_a_set_may_shrink_to_its_master_unless_disks_are_lost() -> None:
    """What only the master has is on its disk, so nothing but the loss of that disk loses it."""
    for faults, drawn in (((), {1, None}), (("wipe", "kill"), {None})):
        base = replace(BASE, faults=faults)
        least = {draw_trial(seed, base)[0].settings.get("minInSyncReplicas") for seed in SEEDS}
        assert least == drawn


def test_a_simulated_cluster_recovers_within_five_detection_times() -> None:
    """No machine is slow; a cluster that works with real times has as long as a real one."""
    assert recover_within_s(BASE) == 7.5
    assert recover_within_s(replace(BASE, settings={"timeScale": 1.0})) == 30.0


def test_sizes_that_the_settings_forbid_are_not_drawn() -> None:
    """Three copies need three brokers, so no seed draws two."""
    for seed in SEEDS:
        trial, _ = draw_trial(seed, Trial(settings={"minInSyncReplicas": 3, "inSyncReplicas": 3}))
        assert trial.nodes.get("broker", 3) >= 3


def test_every_kind_of_cluster_is_drawn() -> None:
    """Both ways in which controllers agree, snapshots rare and all the time, one set and several;
    and whatever is drawn, each set has the two brokers that an acknowledgement needs."""
    trials = [draw_trial(seed, BASE)[0] for seed in range(1, 61)]
    assert _of(trials, "controllerType") == {"dledger", "jraft"}
    assert _of(trials, "raftSnapshotEntries") == {1, 3, 20, 1000}
    assert _of(trials, "brokerSets") == {1, 2, 3}
    for trial in trials:
        each, rest = divmod(trial.nodes["broker"], trial.settings["brokerSets"])
        assert rest == 0
        assert each >= 2


def test_rarer_settings_are_drawn_now_and_then() -> None:
    """Each by some seeds and not by most; learners only where enough other brokers are left, and
    nothing that changes a SyncStateSet beside a plan."""
    rarer = ("slaveReadEnable", "haFlowControlEnable", "enableSemiSync", "learners")
    rarer += ("strictMetadata", "lockInStrictMode")
    trials = [draw_trial(seed, BASE)[0] for seed in range(1, 61)]
    for key in rarer:
        assert 3 <= sum(bool(trial.settings.get(key)) for trial in trials) <= 30, key
    for trial in trials:
        each = trial.nodes["broker"] // trial.settings["brokerSets"]
        assert each - trial.settings.get("learners", 0) >= 2
    for trial in [draw_trial(seed, BASE, GIVEN)[0] for seed in SEEDS]:
        assert not {"enableSemiSync", "learners"} & set(trial.settings)


def test_one_seed_in_eight_has_much_to_write() -> None:
    """400 to 1,000 sends a second, in bursts that the producers' open sends have room for."""
    loads = [draw_trial(seed, BASE)[0].load for seed in range(1, 161)]
    heavy = [load for load in loads if load["rate"] >= 400]
    assert 10 <= len(heavy) <= 30
    assert all(1 < load["burst"] <= load["concurrency"] for load in heavy)
    assert all("burst" not in load and load["rate"] <= 50 for load in loads if load not in heavy)


@pytest.mark.parametrize(
    ("base", "sets", "brokers"),
    [
        (Trial(settings={"brokerSets": 1}), {1}, {2, 3, 4}),
        (Trial(settings={"brokerSets": 2}), {2}, {4, 6}),
        (Trial(settings={"brokerSets": 5}), {5}, {10, 15}),
        (Trial(nodes={"broker": 1}, profile="allack-min1"), {1}, {1}),
        (Trial(nodes={"broker": 3}), {1}, {3}),
        (Trial(nodes={"broker": 6}), {1, 2, 3}, {6}),
        (Trial(nodes={"broker": 6}, settings={"minInSyncReplicas": 3}), {1, 2}, {6}),
        (Trial(nodes={"broker": 4}, settings={"brokerSets": 2}), {2}, {4}),
        (Trial(profile="sync-replication-sync-flush"), {1, 2, 3}, {3, 4, 6, 9}),
        (Trial(settings={"minInSyncReplicas": 5}), {1, 2, 3}, {5, 10, 15}),
    ],
)
def test_sets_and_their_brokers_go_together(base: Trial, sets: set[int], brokers: set[int]) -> None:
    """What is set of the two decides what is drawn of the other."""
    trials = [draw_trial(seed, base)[0] for seed in range(1, 61)]
    assert _of(trials, "brokerSets") == sets
    assert {trial.nodes["broker"] for trial in trials} == brokers


def _of(trials: list[Trial], key: str) -> set[object]:
    return {trial.settings[key] for trial in trials}


def test_a_plan_is_written_for_one_set() -> None:
    """Unless the trial says otherwise: its words for one master would mean several."""
    assert _of([draw_trial(seed, BASE, GIVEN)[0] for seed in SEEDS], "brokerSets") == {1}
    several = Trial(settings={"brokerSets": 2})
    assert _of([draw_trial(seed, several, GIVEN)[0] for seed in SEEDS], "brokerSets") == {2}


def test_a_plan_that_is_given_is_every_seeds_plan() -> None:
    """Only the world differs then."""
    first, second = draw_trial(1, BASE, GIVEN), draw_trial(2, BASE, GIVEN)
    assert first[1] == second[1]
    assert load(first[1]).faults == load(GIVEN).faults
    assert first[0].bed != second[0].bed


def test_a_plan_that_is_given_is_checked_as_everywhere() -> None:
    """Two faults that want one process, told by file and line; a drawn plan spares who is held."""
    both = GIVEN.replace("master", "broker-1") + GIVEN.replace("master", "broker-1, broker-2")
    with pytest.raises(BadRequest, match=r"p.toml line 8: at_s: fault 1 .* breaks again"):
        draw_trial(1, replace(BASE, plan="p.toml"), both)
    assert load(draw_trial(1, BASE, both)[1]).faults == load(both).faults
    assert draw_trial(1, replace(BASE, plan="p.toml"), GIVEN)[0].plan == ""


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (Trial(faults=("pauze",)), "did you mean pause"),
        (Trial(profile="sink-flush"), "did you mean sync-flush"),
        (Trial(settings={"mutant": "double-vole"}), "double-vo"),
        (Trial(settings={"brokerSets": 0}), "brokerSets"),
        (Trial(settings={"brokerSets": 2}, nodes={"broker": 3}), "3 brokers cannot be distributed"),
        (Trial(nodes={"broker": "many"}), "nodes.broker"),
        (Trial(workload="massages"), "did you mean messages"),
        (Trial(system="flotila"), "did you mean flotilla"),
        (Trial(targets=("admiral",)), "admiral"),
    ],
)
def test_what_can_not_be_simulated_is_named(base: Trial, says: str) -> None:
    """In the words of whoever knows what there is."""
    with pytest.raises(BadRequest, match=says):
        draw_trial(1, base)


# -------------------------------------------------------------------------------------- a plan


def test_the_end_is_quiet(plans: list[Plan]) -> None:
    """After half a second of load faults begin; the last stretch has none."""
    for plan in plans:
        assert all(fault.at_s >= 0.5 for fault in plan)
        assert all(fault.at_s + fault.for_s <= 20.0 - DETECTION_S + 0.002 for fault in plan)


def test_plans_have_their_own_mixtures(plans: list[Plan]) -> None:
    """Each usual kind is in many plans, and missing in many; others have to be asked for."""
    kinds = Counter(kind for plan in plans for kind in {fault.kind for fault in plan})
    assert set(kinds) == set(USUAL) <= set(registry.names("fault"))
    assert all(len(plans) / 4 < count < len(plans) * 0.9 for count in kinds.values())


def test_faults_overlap_and_vary(plans: list[Plan]) -> None:
    """Some plans have one fault at a time and some many; short ones and long ones."""
    together = [sum(fault.for_s for fault in plan) / 20.0 for plan in plans]
    assert min(together) < 0.5
    assert max(together) > 2.5
    lasting = sorted(fault.for_s for plan in plans for fault in plan)
    assert lasting[0] < DETECTION_S / 10
    assert lasting[-1] > 3 * DETECTION_S


def test_every_way_to_cut_is_tried(plans: list[Plan]) -> None:
    """All shapes, both directions, with clients and without."""
    cuts = [fault.params for plan in plans for fault in plan if fault.kind == "partition"]
    shapes = {"halves", "majority", "one", "bridge", "ring", "isolate", "one-way", "between"}
    assert {cut["shape"] for cut in cuts} == shapes
    assert {cut["direction"] for cut in cuts if cut["shape"] == "one-way"} == {"in", "out"}
    assert {cut["clients"] for cut in cuts} == {True, False}


def test_parts_roles_and_names_are_hit(plans: list[Plan]) -> None:
    """Whoever plays a part, several at once, and a node whatever part it plays."""
    targets = {fault.target for plan in plans for fault in plan}
    assert targets > {"master", "one slave", "controller-leader", "majority broker", "broker-2"}


def test_hosts_decide_what_is_drawn() -> None:
    """What hosts can not do is left out; asked for by name, it is refused."""
    can = frozenset({"signal"})
    short = Trial(short_faults=True)
    assert {fault.kind for seed in range(20) for fault in plan_of(seed, short, can)} == {"pause"}
    power = Trial(short_faults=True, faults=("power",))
    with pytest.raises(Unsupported, match="power"):
        plan_of(1, power, can)
    with pytest.raises(UnknownName, match="did you mean power"):
        plan_of(1, Trial(faults=("powr",)))


def test_other_names_of_faults_mean_what_they_mean() -> None:
    """OpenChaos's names are as good as ours."""
    plan = plan_of(1, Trial(short_faults=True, faults=("leader-kill",)))
    assert {(fault.kind, fault.target) for fault in plan} == {("kill", "master")}


def test_no_fault_at_all_is_none() -> None:
    """OpenChaos has a name for it: alone it is no plan, and beside others it is left out."""
    assert plan_of(1, Trial(faults=("noop",), duration_s=20.0)) == ()
    both = plan_of(1, Trial(faults=("noop", "pause"), duration_s=20.0, short_faults=True))
    assert {fault.kind for fault in both} == {"pause"}


def test_a_system_without_parts_gets_faults_too() -> None:
    """Where there are no brokers, none is aimed at."""
    nodes = [Node("db-1", "db"), Node("db-2", "db")]
    for seed in range(50):
        assert swarm(Random(seed), Trial(short_faults=True), DETECTION_S, nodes, EVERYTHING)
