"""Claims: what a profile says it survives, and which faults of a run went beyond that."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import registry
from harness.cli.options import request
from harness.errors import BadRequest
from harness.history.faults_and_events import ClusterEvent, FaultInterval
from harness.judge.claims import (
    UnclaimedFault,
    allowed_nodes,
    claims_in_force,
    claims_of,
    claims_text,
    damaged_nodes,
    destroyed_majorities,
    exceeding_claims,
    in_effect,
    unclaimed_faults,
    whole_group_faults,
)
from harness.judge.demands import ALL_DEMANDS
from harness.judge.judge import mark_excused
from harness.judge.verdict import Finding, Judgement, Result, worst_judgement
from harness.trial import EXTENTS, Trial

GROUPS = {
    **{f"broker-{n}": "set-1" for n in (1, 2, 3)},
    **{f"broker-{n}": "set-2" for n in (4, 5, 6)},
    **{f"controller-{n}": "controller" for n in (1, 2, 3)},
}


def fault(
    number: int,
    kind: str,
    nodes: Sequence[str],
    begin: int = 0,
    healed: int | None = 10,
    **more: Any,
) -> FaultInterval:
    times = {"begin": begin, "applied": begin, "observed": begin, "heal": healed, "healed": healed}
    return FaultInterval(
        number, kind, targets={"broker": tuple(nodes)}, **{**times, "state": "installed", **more}
    )


def unclaimed(faults: Sequence[FaultInterval], **claims: str) -> set[int]:
    hit = {one.id: damaged_nodes(one) for one in faults}
    return set(exceeding_claims(faults, hit, claims, GROUPS))


# ---------------------------------------------------------------------------- what is in force


def test_a_profile_claims_what_its_configuration_can_keep() -> None:
    """Synchronous flushes promise power cuts of everything; asynchronous ones of one machine."""
    claims = {
        profile: claims_in_force(Trial(profile=profile))
        for profile in registry.system("flotilla").profiles()
    }
    assert all(one["kill"] == one["partition"] == "all" for one in claims.values())
    assert claims["sync-flush"]["power"] == claims["sync-flush"]["unsynced"] == "all"
    assert claims["allack-min2"]["power"] == "one"
    assert "power" not in claims["unsafe-default"]
    assert "wipe" not in claims["allack-min1"]
    assert all(set(one.values()) <= set(EXTENTS) for one in claims.values())


def test_a_trials_claims_take_precedence_kind_by_kind() -> None:
    """What it does not name stays the profile's; `none` takes a claim back; `*` replaces all."""
    theirs = claims_in_force(Trial())
    own = claims_in_force(Trial(claims={"power": "all", "kill": "none"}))
    assert own == {**theirs, "power": "all", "kill": "none"}
    assert claims_in_force(Trial(claims={"*": "none", "kill": "one"})) == {
        "*": "none",
        "kill": "one",
    }


def test_survives_is_read_as_claims_of_these_kinds_and_no_others(tmp_path: Path) -> None:
    """In trial files, in the [trial] of a plan and as a flag, each layer replacing those below."""
    complete = {"*": "none", "kill": "all", "power": "all"}
    assert Trial.from_toml('survives = ["kill", "power"]').claims == complete
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[trial]\nsurvives = ["kill", "power"]\n'
        '[[fault]]\nkind = "kill"\ntarget = "master"\nat_s = 5.0\nfor_s = 5.0\n'
    )
    flags = {"plan": str(plan)}
    assert request("messages", flags).trial.claims == complete
    over = request("messages", {**flags, "claims": {"wipe": "one"}}).trial.claims
    assert over == {**complete, "wipe": "one"}
    assert request("messages", {**flags, "survives": ("pause",)}).trial.claims == {
        "*": "none",
        "pause": "all",
    }
    assert Trial.from_toml(Trial(claims=complete).to_toml()).claims == complete


@pytest.mark.parametrize("extent", ["most", 2, True])
def test_an_extent_that_does_not_exist_is_refused(extent: object) -> None:
    """With the kind and the extents that there are."""
    with pytest.raises(BadRequest, match=r"claims\.power must be one of none, one, minority, all"):
        Trial().with_({"claims": {"power": extent}})


def test_claims_in_words() -> None:
    assert claims_text({"kill": "all", "power": "one", "wipe": "none"}) == "kill; power of one"
    assert claims_text({"*": "none"}) == "nothing"


# ------------------------------------------------------------------------ which went beyond it


def test_a_kind_that_is_not_claimed_is_unclaimed() -> None:
    """Every fault of it, wherever it hit."""
    faults = [fault(0, "power", ["broker-1"]), fault(1, "kill", ["broker-2"])]
    assert unclaimed(faults, kill="all") == {0}
    assert unclaimed(faults, kill="all", power="none") == {0}
    assert unclaimed(faults, **{"*": "all"}) == set()


def test_an_extent_is_exceeded_by_faults_that_are_there_together() -> None:
    """Two at one moment are two nodes; one after the other they are one each; groups are apart."""
    together = [fault(0, "power", ["broker-1"]), fault(1, "power", ["broker-2"], 5, 15)]
    apart = [fault(0, "power", ["broker-1"], 0, 4), fault(1, "power", ["broker-2"], 5, 15)]
    sets = [fault(0, "power", ["broker-1"]), fault(1, "power", ["broker-4", "controller-1"], 5, 15)]
    assert unclaimed(together, power="one") == {0, 1}
    assert unclaimed(apart, power="one") == unclaimed(sets, power="one") == set()
    assert unclaimed(together, power="all") == set()


def moments(*events: tuple[int, str, str, dict[str, Any]]) -> list[ClusterEvent]:
    return [ClusterEvent(t, node, kind, fields) for t, node, kind, fields in events]


def unclaimed_powers(
    second_at: int, events: Sequence[ClusterEvent], kind: str = "power"
) -> tuple[UnclaimedFault, ...]:
    """Return which of two faults of one broker each, at 0 to 10 and later, are unclaimed."""
    nodes = ["broker-1", "broker-2"]
    faults = [
        fault(
            n,
            kind,
            [node],
            at,
            at + 10,
            observation={"effect": {"files": {node: {"lost_bytes": 1}}}},
        )
        for n, (node, at) in enumerate(zip(nodes, (0, second_at), strict=True))
    ]
    names = {
        "nodes": list(GROUPS),
        "roles": {node: "broker" if "broker" in node else "controller" for node in GROUPS},
        "sets": {
            name: {"nodes": [n for n in GROUPS if GROUPS[n] == name], "full": 3, "keys": []}
            for name in ("set-1", "set-2")
        },
    }
    history = SimpleNamespace(
        faults=faults, events=events, names=names, state={}, shared={}, phases={"end": 99}
    )
    trial = Trial(system="none", claims={"power": "one", "kill": "one"})
    return unclaimed_faults(history, trial)  # type: ignore[arg-type]


SLAVE = {"role": "slave"}
SET = {"brokerName": "set-1"}
LEFT = (
    (1, "controller-1", "set", {**SET, "set": [1, 2, 3]}),
    (5, "controller-1", "set", {**SET, "set": [2, 3]}),
)
BACK = (20, "controller-1", "set", {**SET, "set": [1, 2, 3]})


@pytest.mark.parametrize(
    ("events", "until"),
    [
        ((), 10),  # nodes that log nothing
        (((-1, "broker-1", "role", SLAVE), (15, "broker-1", "role", SLAVE)), 15),
        (((-1, "broker-1", "role", SLAVE), (15, "broker-1", "role", {"role": "fenced"})), None),
        ((*LEFT, (12, "broker-1", "role", SLAVE), BACK), 20),
        ((*LEFT, (12, "broker-1", "role", SLAVE)), None),
        ((*LEFT, BACK, (25, "broker-1", "role", SLAVE)), 25),
        ((LEFT[0], (5, "broker-4", "set", {"brokerName": "set-2", "set": [5]}), BACK), 10),
    ],
)
def test_data_that_was_taken_counts_until_it_is_back(
    events: Sequence[tuple[int, str, str, dict[str, Any]]], until: int | None
) -> None:
    """A power cut leaves a copy less until its node has a role again and its set is whole. A second
    one before that exceeds `one`, whenever the first was healed; and one after it does not. A kill
    takes no data, so it counts as long as it lasts."""
    logged = moments(*events)
    for second_at in (11, 14, 16, 19, 21, 24, 26, 40):
        both = until is None or second_at <= until
        found = {one.fault.id for one in unclaimed_powers(second_at, logged)}
        assert found == ({0, 1} if both else set()), second_at
        assert unclaimed_powers(second_at, logged, "kill") == ()


def test_two_copies_that_were_taken_one_after_the_other_excuse_together() -> None:
    """The first fault lasts, for what both held, until its node has its data again."""
    events = moments((-1, "broker-1", "role", SLAVE), (15, "broker-1", "role", SLAVE))
    first, second = unclaimed_powers(12, events)
    assert first.fault.healed == 10
    assert first.until >= 15 > second.begin


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("kill", "power")),
            st.sets(st.sampled_from(sorted(GROUPS)), min_size=1),
            st.integers(0, 20),
            st.integers(0, 20) | st.none(),
        ),
        max_size=5,
    ),
    st.sampled_from(EXTENTS),
)
def test_extents_against_every_moment(drawn: list[Any], extent: str) -> None:
    """A fault is unclaimed when at some instant the faults of its kind that were there hit more of
    a group than the extent covers, it being one of them; or where none is covered."""
    faults = [
        fault(i, kind, sorted(nodes), begin, None if lasts is None else begin + lasts)
        for i, (kind, nodes, begin, lasts) in enumerate(drawn)
    ]
    expected = {f.id for f in faults if extent == "none"}
    for t in range(42):
        for kind in ("kill", "power"):
            there = [
                f
                for f in faults
                if f.kind == kind and (f.begin or 0) <= t and (f.healed is None or t <= f.healed)
            ]
            for group in set(GROUPS.values()):
                mine = {n for f in there for n in f.names if GROUPS[n] == group}
                if len(mine) > allowed_nodes(extent, 3):
                    expected |= {f.id for f in there if mine & set(f.names)}
    assert unclaimed(faults, kill=extent, power=extent) == expected


@pytest.mark.parametrize(
    ("wiped", "majority"),
    [
        (("broker-1", "broker-2"), True),
        (("broker-1", "broker-4"), False),
        (("controller-1", "controller-2"), True),
        (("nameserver-1",), False),
    ],
)
def test_no_claim_covers_a_majority_of_destroyed_disks(
    wiped: Sequence[str], majority: bool
) -> None:
    """What two of three of a set hold, no other broker does, however many there are."""
    faults = [fault(0, "wipe", wiped)]
    assert destroyed_majorities(faults, GROUPS) == ({0} if majority else set())
    assert unclaimed(faults, wipe="all") == ({0} if majority else set())


# ------------------------------------------------------------------------------- what was seen


def test_only_what_was_observed_is_in_effect() -> None:
    """Neither a fault that failed nor one that was only planned."""
    seen = fault(0, "kill", ["broker-1"])
    assert in_effect(seen)
    assert in_effect(fault(0, "kill", ["broker-1"], state="partial"))
    assert not in_effect(fault(0, "kill", ["broker-1"], state="failed"))
    assert not in_effect(fault(0, "kill", ["broker-1"], observed=None))
    assert not in_effect(FaultInterval(0, "kill"))


def test_a_power_cut_damages_the_disks_that_lost_something() -> None:
    """As observed; without such a record, all that it hit."""
    nodes = ["broker-1", "broker-2"]
    files = {"broker-1": {"lost_bytes": 7, "lost_names": 0}, "broker-2": {"lost_bytes": 0}}
    assert damaged_nodes(fault(0, "power", nodes)) == set(nodes)
    seen = fault(0, "power", nodes, observation={"effect": {"files": files}})
    assert damaged_nodes(seen) == {"broker-1"}


# --------------------------------------------------------------------------------- by the time


@pytest.mark.parametrize(
    ("spans", "count", "left"),
    [
        (((5, 5),), 1, 0),
        (((0, 1), (14, 40)), 2, 0),
        (((5, 5), (16, 16)), 2, 1),
        (((5, 5),), 3, 2),  # of the others it is not known when they were
        ((), 1, 1),
    ],
)
def test_what_has_no_rows_is_excused_by_time(
    spans: tuple[tuple[int, int], ...], count: int, left: int
) -> None:
    """Each of it that overlaps the time from applied to recovered; the rest convicts."""
    cut = fault(0, "power", ["broker-1"], 1, 10)
    one = UnclaimedFault(cut, frozenset({"broker-1"}), 15, "the system does not claim to survive")
    found = Finding("NOT_RECOVERED", count, "it did not", "recovers", spans=spans)
    result = mark_excused(Result("recovery", (found,)), [one])
    assert result.findings[0].count - result.findings[0].excused == left
    assert worst_judgement([result]) is (Judgement.INVALID if left else Judgement.UNKNOWN)
    assert [r.code for r in result.reasons] == ([] if left else ["EXCUSED"])


def test_a_fault_excuses_only_what_it_may_break() -> None:
    """A kill may cost the recovery; it invents no message."""
    kill = UnclaimedFault(fault(0, "kill", ["broker-1"]), frozenset({"broker-1"}), 99, "why")
    for demand, code in (("recovers", "NODE_CRASHED"), ("integrity", "CORRUPTED")):
        found = Finding(code, 1, "it", demand, spans=((5, 5),))
        result = mark_excused(Result("x", (found,)), [kill])
        assert bool(result.findings[0].excuses) == (demand == "recovers")


def test_pairs_of_faults_are_found_whatever_their_order() -> None:
    """The one that began later sees the other; both are named."""
    nodes = [f"broker-{n}" for n in (1, 2, 3)]
    for one, other in combinations(nodes, 2):
        faults = [fault(0, "power", [one], 3, 20), fault(1, "power", [other], 1, 5)]
        assert unclaimed(faults, power="one") == {0, 1}


def test_a_fault_that_hit_a_part_of_its_targets_damaged_that_part() -> None:
    """As its evidence shows by node; without such evidence none."""
    nodes = ["broker-1", "broker-2"]
    states = {"broker-1": {"is": "exited"}, "broker-2": {"is": "running"}}
    for effect, hit in (
        ({"processes": states}, {"broker-1"}),
        ({"processes": states, "files": {"broker-2": {"bytes": 3}}}, {"broker-2"}),
        ({"processes": "?"}, set()),
        ({}, set()),
    ):
        for kind in ("kill", "wipe"):
            seen = fault(0, kind, nodes, state="partial", observation={"effect": effect})
            assert damaged_nodes(seen) == hit


def test_a_fault_of_one_broker_set_excuses_nothing_of_another() -> None:
    """By the time, too, where it is known which set a row is of; controllers serve all of them."""
    hit = frozenset({"broker-4"})
    cut = UnclaimedFault(fault(0, "power", ["broker-4"]), hit, 15, "why", sets=frozenset({"set-2"}))
    spans = ((5, 5),) * 3
    found = Finding("OFFSET_CONFLICT", 3, "3", "order-per-queue", spans=spans)
    for groups, left in ((("set-1", "set-2", ""), 1), ((), 0), (("set-1",) * 3, 3)):
        one = mark_excused(Result("x", (replace(found, broker_sets=groups),)), [cut]).findings[0]
        assert one.count - one.excused == left
    anywhere = replace(cut, sets=frozenset())
    one = mark_excused(
        Result("x", (replace(found, broker_sets=("set-1",) * 3),)), [anywhere]
    ).findings[0]
    assert one.excused == 3


def test_lost_elements_need_a_fault_of_a_whole_group() -> None:
    """Which nodes held them is not known; and they were acknowledged before it was healed."""
    faults = [fault(n, "kill", [f"broker-{n + 1}"], 0, 10) for n in range(3)]
    some = [UnclaimedFault(one, damaged_nodes(one), 15, "why") for one in faults]
    assert whole_group_faults(some, GROUPS, {"set-1"}) == {0, 1, 2}
    assert whole_group_faults(some[:2], GROUPS, {"set-1"}) == frozenset()
    controllers = fault(7, "kill", [f"controller-{n}" for n in (1, 2, 3)])
    many = [UnclaimedFault(controllers, damaged_nodes(controllers), 15, "why")]
    assert whole_group_faults(many, GROUPS, {"set-1", "set-2"}) == frozenset()
    for whole, begin, left in ((True, 10, 0), (True, 11, 1), (False, 10, 1)):
        lost = Finding("ELEMENT_LOST", 1, "1", "no-loss", spans=((begin, 40),))
        one = mark_excused(Result("x", (lost,)), [replace(some[0], whole=whole)]).findings[0]
        assert one.count - one.excused == left


@pytest.mark.parametrize(
    "recorded", [{"power": "everything"}, {"power": 7, "kill": ["all"]}, [], "all", {"*": None}]
)
def test_claims_of_a_run_that_make_no_sense_are_none(recorded: Any) -> None:
    """A run's record may come from anybody: what is no extent is as if it were not there."""
    history = SimpleNamespace(state={"claims": recorded})
    found = claims_of(history, Trial(system="none", claims={"pause": "one"}))  # type: ignore[arg-type]
    assert found == {"pause": "one"}
    faults = [fault(0, "power", ["broker-1"]), fault(1, "unheard-of", ["broker-2"])]
    assert unclaimed(faults, **found) == {0, 1}


def test_a_kind_of_fault_that_is_not_installed_excuses_nothing() -> None:
    """What it may break is not known."""
    strange = fault(0, "unheard-of", ["broker-1"])
    one = UnclaimedFault(strange, damaged_nodes(strange), 99, "why")
    for demand in ALL_DEMANDS:
        found = Finding("ANY", 1, "it", demand, spans=((5, 5),))
        assert not mark_excused(Result("x", (found,)), [one]).findings[0].excuses
