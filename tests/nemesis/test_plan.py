"""Plans: drawn from the seed, written by hand, refused with a reason."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import registry
from harness.contracts import Node, PlannedFault
from harness.contracts.membership import CONTAINERS, CONVERSION, HOLDS, VERSIONS
from harness.errors import BadRequest, UnknownName, Unsupported
from harness.trial import Rhythm, Trial
from harness.zones import assign_zones
from nemesis import membership, swarm
from nemesis._plan import plan as _plan
from nemesis._plan.aliases import ALIASES, JEPSEN, OPENCHAOS, aliases
from nemesis._plan.kinds import param_problem

NODES = (
    Node("nameserver-1", "nameserver"),
    *(Node(f"controller-{n}", "controller") for n in (1, 2, 3)),
    *(Node(f"broker-{n}", "broker") for n in (1, 2, 3)),
    Node("client-1", "client"),
)
KINDS = ("kill", "pause", "partition", "loss")
PLANS = Path(__file__).resolve().parents[2] / "suites/plans"
ALL = frozenset[str]().union(
    registry.load("system", "flotilla")(Trial()).can,
    {CONTAINERS, CONVERSION, HOLDS, VERSIONS},
    *(
        registry.load("hosts", name)(Trial(hosts=name), Path()).can
        for name in ("local", "simulated")
    ),
)

trials = st.builds(
    Trial,
    faults=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4, unique=True).map(tuple),
    seed=st.integers(0, 2**32),
    duration_s=st.floats(20, 300),
    rhythm=st.builds(
        Rhythm,
        quiet_s=st.floats(0.5, 4),
        fault_s=st.floats(4.5, 8),
        recovery_s=st.floats(1, 8),
    ),
)


@given(trials)
def test_a_drawn_plan_keeps_the_rhythm(trial: Trial) -> None:
    """Quiet first, then fault and recovery in turn, all inside the load."""
    plan = _plan.draw(trial, 1.5, NODES)
    starts = sorted({fault.at_s for fault in plan})
    rhythm = trial.rhythm
    assert starts[0] == pytest.approx(rhythm.quiet_s, abs=0.001)
    for a, b in pairwise(starts):
        assert b - a == pytest.approx(rhythm.fault_s + rhythm.recovery_s, abs=0.002)
    assert starts[-1] + rhythm.fault_s + rhythm.recovery_s <= trial.duration_s + 0.002
    assert {fault.for_s for fault in plan} == {rhythm.fault_s}


@given(trials)
def test_every_kind_is_in_a_drawn_plan(trial: Trial) -> None:
    """Each kind asked for at least once, no other, and never the same kind twice at once."""
    plan = _plan.draw(trial, 1.5, NODES)
    assert {fault.kind for fault in plan} == set(trial.faults)
    assert len({(fault.at_s, fault.kind) for fault in plan}) == len(plan)


@given(trials)
def test_the_seed_decides(trial: Trial) -> None:
    """The same trial draws the same plan."""
    assert _plan.draw(trial, 1.5, NODES) == _plan.draw(trial, 1.5, NODES)


def test_seeds_differ() -> None:
    """Other seeds draw other plans."""
    plans = {_plan.dump(_plan.draw(Trial(faults=KINDS, seed=n), 1.5, NODES)) for n in range(10)}
    assert len(plans) == 10


@given(trials)
def test_a_saved_plan_reads_back_the_same(trial: Trial) -> None:
    """dump and load are inverse, so a replay carries out what was planned."""
    plan = _plan.draw(trial, 1.5, NODES)
    assert _plan.load(_plan.dump(plan)).faults == plan


def test_targets_of_the_trial_restrict_the_draw() -> None:
    """A drawn plan hits only the trial's targets."""
    trial = Trial(faults=KINDS, targets=("broker-2", "one slave"), duration_s=300)
    assert {f.target for f in _plan.draw(trial, 1.5, NODES)} == {"broker-2", "one slave"}


@pytest.mark.parametrize(
    ("kind", "targets", "drawn"),
    [
        ("membership", ("broker-1",), {"broker-1"}),
        ("membership", ("slave", "nameserver"), {"slave"}),
        ("membership", (), {*membership.TARGETS}),
        ("handover", ("broker-1", "nameserver"), {"broker-1"}),
        ("handover", (), {"master"}),
        ("crash", ("client-1",), {"client-1"}),
        ("crash", ("master", "one client"), {"one client"}),
    ],
)
def test_targets_restrict_every_kind(kind: str, targets: tuple[str, ...], drawn: set[str]) -> None:
    """Each is drawn among those that it can hit, also in a swarm."""
    for seed in range(20):
        trial = Trial(faults=(kind,), seed=seed, targets=targets)
        assert {fault.target for fault in _plan.draw(trial, 1.5, NODES)} <= drawn
        dense = swarm(Random(seed), replace(trial, short_faults=True), 1.5, NODES, ALL)
        assert {fault.target for fault in dense} <= drawn or not targets


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("crash", ("broker-1",)),
        ("crash", ("master", "server")),
        ("membership", ("nameserver-1", "client")),
    ],
)
def test_a_kind_that_can_hit_no_target_is_refused(kind: str, targets: tuple[str, ...]) -> None:
    """It would have to hit other nodes instead."""
    trial = Trial(faults=("kill", kind), targets=targets, short_faults=True)
    sentence = f"{kind} can hit none of the targets {', '.join(targets)}; add one that it can, or"
    with pytest.raises(BadRequest, match=sentence):
        _plan.draw(trial, 1.5, NODES)
    with pytest.raises(BadRequest, match=sentence):
        swarm(Random(1), replace(trial, faults=(kind,)), 1.5, NODES, ALL)


def test_a_kind_that_can_hit_nothing_here_is_refused() -> None:
    """Before anything is started: a drill of zones where no node is in a zone."""
    trial = Trial(faults=("zone-drill",), short_faults=True)
    sentence = "the fault zone-drill cannot hit '.*': it means no zone that a master may be in"
    with pytest.raises(BadRequest, match=sentence):
        _plan.draw(trial, 1.5, NODES)
    assert _plan.draw(trial, 1.5, assign_zones(NODES, {"count": 2}))


def test_more_kinds_than_windows_share_them() -> None:
    """With room for one window all kinds fall into it."""
    trial = Trial(faults=KINDS, duration_s=17)
    assert [f.at_s for f in _plan.draw(trial, 1.5, NODES)] == [4.0] * 4


def test_no_faults_no_plan() -> None:
    """A trial without faults has an empty plan, which is a plan."""
    assert _plan.draw(Trial(), 1.5, NODES) == ()
    assert _plan.load(_plan.dump(())).faults == ()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"faults": ("kil",)}, r"unknown fault 'kil' \(did you mean kill\?\)"),
        ({"faults": ("kill",), "duration_s": 10.0}, "no room for a fault"),
        ({"faults": ("kill",), "targets": ("brokr-1",)}, "unknown target 'brokr-1'"),
        ({"faults": ("kill",), "targets": ("one client",)}, "not hit by kill"),
        ({"faults": ("pause",), "rhythm": Rhythm(fault_s=4.0)}, "make it at least 4.5 s"),
        ({"faults": ("kill",), "duration_s": 1e9}, "more than 10,000 windows of faults"),
        ({"faults": ("fixed-kill",)}, "kill needs a target"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], sentence: str) -> None:
    """Unknown names, no room, clients killed, faults that are too short: refused with a reason."""
    with pytest.raises(BadRequest, match=sentence):
        _plan.draw(replace(Trial(), **changes), 1.5, NODES)


def test_short_faults_if_allowed() -> None:
    """The trial may allow faults that will not be detected."""
    trial = Trial(faults=("pause",), rhythm=Rhythm(fault_s=1.0), short_faults=True)
    assert _plan.draw(trial, 1.5, NODES)


def test_hosts_that_cannot_are_named() -> None:
    """Missing abilities of hosts are reported before anything starts."""
    trial = Trial(faults=("loss",), hosts="ssh")
    with pytest.raises(Unsupported, match="cannot be done on ssh hosts, which lack: loss"):
        _plan.plan_for_trial(trial, None, 1.5, NODES, frozenset({"links", "signal"}))


PLAN = """
[trial]
settings = { timeScale = 1.0 }

[[fault]]
kind = "partition"
at_s = 5
for_s = 8.0
target = "master"
params = { shape = "isolate", from = "slave" }
until = "next"

[[fault]]
kind = "kill"       # a comment
at_s = 5.0
for_s = 20.0
target = "master"
after = "1000 acks within 9 s"
until = "another-master"
"""


def test_a_plan_by_hand() -> None:
    """What the file leaves out gets its default; [trial] is given back for the trial."""
    overrides, (cut, kill) = _plan.load(PLAN)
    assert overrides == {"settings": {"timeScale": 1.0}}
    assert cut.params["direction"] == "out"
    assert cut.at_s == 5.0
    assert kill == PlannedFault(
        "kill", 5.0, 20.0, "master", {}, "1000 acks within 9 s", "another-master"
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[[fault]]\nkind", "[[fault]\nkind", "is not valid TOML.*line 5"),
        ('kind = "kill"', 'kind = "kil"', r"p.toml line 14: kind: unknown fault 'kil'"),
        ("at_s = 5\n", 'at_s = "5"\n', "line 7: at_s: must be a number, not '5'"),
        ("for_s = 8.0\n", "", "line 5: for_s: is missing"),
        ("for_s = 8.0", "for_s = -8.0", "line 8: for_s: "),
        ('from = "slave"', "frm = 1", "line 10: params.frm: unknown parameter; .*shape"),
        ('"isolate"', '"circle"', "line 10: params.shape: must be one of halves"),
        ('"isolate", from = "slave"', '"between"', "line 10: params.a: .*needs the parameter 'a'"),
        ("for_s = 8.0", "for_s = nan", "line 8: for_s: must be a positive number, not nan"),
        ("at_s = 5\n", "at_s = inf\n", "line 7: at_s: must be a number from 0, not inf"),
        ('target = "master"\nafter', "after", "line 13: target: kill needs a target"),
        ('target = "master"\nparams', "params", "needs a target, such as 'master'"),
        ('"next"', '"later"', "line 11: until: must be one of another-master, next"),
        ("1000 acks within 9 s", "soon", "line 18: after: must read like"),
        ("timeScale = 1.0 }", "timeScale = 1.0 }\nsped = 3", "line 4: unknown key 'sped'"),
        ("[trial]", "[trail]", "unknown key 'trail'"),
        ("[[fault]]\nkind", "[[fault]]\nwhen = 1\nkind", "line 6: when: unknown key"),
    ],
)
def test_a_broken_plan_names_the_line_and_the_key(old: str, new: str, sentence: str) -> None:
    """The error names the location in the file."""
    assert old in PLAN
    with pytest.raises(BadRequest, match=sentence):
        _plan.load(PLAN.replace(old, new, 1), "p.toml")


def test_a_fault_after_the_load_is_refused() -> None:
    """A fault without operations proves nothing."""
    plan = (PlannedFault("kill", 50.0, 20.0, "master"),)
    with pytest.raises(BadRequest, match="after the load"):
        _plan.check(plan, Trial(), 1.5, NODES)


@pytest.mark.parametrize("name", sorted(set(aliases()) - {"noop"}))
def test_names_of_others_are_understood(name: str) -> None:
    """Each alias draws a fault of one of our kinds, aimed as OpenChaos and Jepsen aim it."""
    alias = ALIASES[name]
    trial = Trial(faults=(name,), targets=() if alias.target else ("broker-2",))
    plan = _plan.plan_for_trial(trial, None, 1.5, NODES, ALL)
    assert {fault.kind for fault in plan} == {alias.kind}
    assert {fault.target for fault in plan} == {alias.target or "broker-2"}
    params = registry.fault(alias.kind).params
    assert not [word for word in alias.params.items() if param_problem(params, *word)]


def test_every_name_of_openchaos_and_jepsen_is_known() -> None:
    """All that their programs take, as an alias or as a kind of its own; `noop` is no fault."""
    theirs = {"noop", "random-delay", "partition-majorities-ring", "bridge", "random-loss"}
    theirs |= {f"{who}-kill" for who in ("minor", "major", "random", "fixed", "leader")}
    theirs |= {f"{who}-suspend" for who in ("minor", "major", "random", "fixed", "leader")}
    theirs |= {f"{who}-partition" for who in ("random", "fixed", "leader")}
    refused = ("cpu-high", "mem-high", "disk-error", "io-hang")  # by it, but for their names
    theirs |= {f"{who}-{what}" for who in ("minor", "major", "random", "fixed") for what in refused}
    theirs |= {f"{who}-{what}" for who in ("minor", "major", "fixed") for what in ("loss", "delay")}
    assert theirs == OPENCHAOS.keys()
    words = {"partition-one", "majorities-ring", "primaries", "packet", "bitflip", "truncate"}
    words |= {"partition-halves", "partition-random-halves", "partition-random-node"}
    words |= {"partition-minority-third", "hammer-time", "slow", "flaky", "strobe", "strobe-clock"}
    words |= {"bump", "clock-scrambler", "faketime", "truncate-file", "bitflip-file-chunks"}
    words |= {f"packet-{what}" for what in ("delay", "loss", "reorder", "rate")}
    words |= {"lose-unfsynced-writes", "crash"}
    assert words <= JEPSEN.keys()
    for name in theirs | words | {"kill", "pause", "clock", "membership", "partition"}:
        _plan.check_kinds([name])
    assert _plan.draw(Trial(faults=("noop",)), 1.5, NODES) == ()
    with pytest.raises(BadRequest, match="noop is not a fault"):
        _plan.load(PLAN.replace('"kill"', '"noop"'))


def test_unknown_kinds_list_ours_and_the_aliases() -> None:
    """Names of OpenChaos are listed among the known ones."""
    with pytest.raises(
        UnknownName, match=r"did you mean major-cpu-high\?.*`seatrial list faults` names all"
    ):
        _plan.check_kinds(["kill", "major-cpu-hgih"])


@pytest.mark.parametrize("kind", registry.names("fault"))
def test_every_fault_declares_its_needs(kind: str) -> None:
    """A fault's module states its parameters with meanings, its needs and how it is drawn."""
    plugin = registry.fault(kind)
    assert plugin.needs <= ALL
    assert all(param.meaning for param in plugin.params.values())


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_our_own_plans_are_sound(path: Path) -> None:
    """Every plan that we ship loads and fits the trial that it asks for."""
    overrides, plan = _plan.load(path.read_text(), str(path))
    trial = Trial().with_({"plan": str(path), **overrides})
    system = registry.load("system", trial.system)(trial)
    _plan.check(plan, trial, system.detection_s, assign_zones(system.nodes(), trial.zones), ALL)


def test_drawn_faults_last_until_the_system_notices_them() -> None:
    """By default; a rhythm that is too short for the system is refused."""
    nodes = [Node(f"server-{n}", "server") for n in (1, 2, 3)]
    trial = Trial(faults=("kill",), duration_s=60.0)
    assert {fault.for_s for fault in _plan.draw(trial, 4.0, nodes)} == {12.0}
    assert {fault.for_s for fault in _plan.draw(trial, 1.0, nodes)} == {6.0}
    short = replace(trial, rhythm=Rhythm(fault_s=5.0))
    with pytest.raises(BadRequest, match="make it at least 12 s"):
        _plan.draw(short, 4.0, nodes)
